/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.IO;
using System.Reflection;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Gmm
{
    /// <summary>
    /// Takes the native library from the directory that the environment variable GMM_LIBRARY_PATH names. Without it
    /// .NET looks where it always does: runtimes/linux-x64/native of the package, the program's directory, the system.
    /// </summary>
    internal static class NativeResolver
    {
        [ModuleInitializer]
        internal static void Install() => NativeLibrary.SetDllImportResolver(typeof(NativeResolver).Assembly, Resolve);

        private static IntPtr Resolve(string name, Assembly assembly, DllImportSearchPath? searchPath)
        {
            string directory = Environment.GetEnvironmentVariable("GMM_LIBRARY_PATH");
            if (name != "gmm_csharp" || string.IsNullOrEmpty(directory))
            {
                return IntPtr.Zero;
            }
            return NativeLibrary.Load(Path.Combine(directory, "libgmm_csharp.so"));
        }
    }
}
