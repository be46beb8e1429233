/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.IO;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Gmm
{
    /// <summary>
    /// The native library is one for the process, and knows the callbacks of one application domain. So one domain of
    /// Mono or .NET Framework at a time uses gmm. When it is unloaded, the next one may.
    /// </summary>
    internal static class Domain
    {
        private static readonly object gate = new object();
        private static bool entered;

        private const int ResolveAll = 2; // RTLD_NOW

        [DllImport("libdl.so.2")]
        private static extern IntPtr dlopen(string file, int flags);

        [DllImport("gmm_csharp", EntryPoint = "gmm_csharp_enter_domain")]
        private static extern int EnterDomain(int domain);

        [DllImport("gmm_csharp", EntryPoint = "gmm_csharp_leave_domain")]
        private static extern void LeaveDomain();

        /// <summary>
        /// Mono looks for the library beside this assembly, and knows no runtimes/ of a package. What is loaded from
        /// there is found by its name afterwards.
        /// </summary>
        private static void LoadFromPackage()
        {
            string folder = Path.GetDirectoryName(typeof(Domain).Assembly.Location);
            if (Type.GetType("Mono.Runtime") == null || string.IsNullOrEmpty(folder)
                || File.Exists(Path.Combine(folder, "libgmm_csharp.so")))
            {
                return;
            }
            foreach (string package in new[] { folder, Path.Combine(folder, "..", "..") })
            {
                string runtimes = Path.Combine(package, "runtimes");
                if (!Directory.Exists(runtimes))
                {
                    continue;
                }
                foreach (string file in Directory.GetFiles(runtimes, "libgmm_csharp.so", SearchOption.AllDirectories))
                {
                    if (dlopen(file, ResolveAll) != IntPtr.Zero) // that of another machine does not load
                    {
                        return;
                    }
                }
            }
        }

        /// <summary>Called before anything else of the native library, SWIG's part of it too.</summary>
        internal static void Enter()
        {
            lock (gate)
            {
                if (entered)
                {
                    return;
                }
                LoadFromPackage();
                Claim(AppDomain.CurrentDomain);
                entered = true;
            }
        }

        /// <summary>Not inlined: Mono looks for the library when it compiles a method with such a call.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        private static void Claim(AppDomain domain)
        {
            if (EnterDomain(domain.Id + 1) == 0)
            {
                throw new InvalidOperationException("another application domain of this process uses gmm, so the "
                    + "domain \"" + domain.FriendlyName + "\" cannot; use gmm in one domain, or unload the other");
            }
            if (!domain.IsDefaultAppDomain())
            {
                domain.DomainUnload += (sender, arguments) => LeaveDomain();
            }
        }
    }
}
