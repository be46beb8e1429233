/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;

namespace Gmm
{
    /// <summary>Finds the native library in a package, for Mono.</summary>
    internal static class Library
    {
        private const int ResolveAll = 2; // RTLD_NOW

        [DllImport("libdl.so.2")]
        private static extern IntPtr dlopen(string file, int flags);

        /// <summary>
        /// Called before anything else of the native library, SWIG's part of it too. Mono looks for the library when
        /// it compiles a method that calls it, so such a method is not inlined into the caller of this one.
        /// </summary>
        internal static void Load()
        {
            // The static constructor has done it.
        }

        /// <summary>
        /// Mono looks for the library beside this assembly, and knows no runtimes/ of a package. It finds a
        /// library that was loaded from there by its name.
        /// </summary>
        static Library()
        {
            string folder = Path.GetDirectoryName(typeof(Library).Assembly.Location);
            if (Type.GetType("Mono.Runtime") == null || string.IsNullOrEmpty(folder)
                || File.Exists(Path.Combine(folder, "libgmm_csharp.so")))
            {
                return;
            }
            string[] packages = { folder, Path.Combine(folder, "..", "..") };
            packages.Select(each => Path.Combine(each, "runtimes")).Where(Directory.Exists)
                .SelectMany(each => Directory.GetFiles(each, "libgmm_csharp.so", SearchOption.AllDirectories))
                .Any(file => dlopen(file, ResolveAll) != IntPtr.Zero); // that of another machine does not load
        }
    }
}
