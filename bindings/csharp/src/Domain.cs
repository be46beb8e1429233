/* SPDX-License-Identifier: Apache-2.0 */
using System;
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

        [DllImport("gmm_csharp", EntryPoint = "gmm_csharp_enter_domain")]
        private static extern int EnterDomain(int domain);

        [DllImport("gmm_csharp", EntryPoint = "gmm_csharp_leave_domain")]
        private static extern void LeaveDomain();

        /// <summary>Called before anything else of the native library, SWIG's part of it too.</summary>
        internal static void Enter()
        {
            lock (gate)
            {
                if (entered)
                {
                    return;
                }
                AppDomain domain = AppDomain.CurrentDomain;
                if (EnterDomain(domain.Id + 1) == 0)
                {
                    throw new InvalidOperationException("another application domain of this process uses gmm, so the "
                        + "domain \"" + domain.FriendlyName + "\" cannot; use gmm in one domain, or unload the other");
                }
                if (!domain.IsDefaultAppDomain())
                {
                    domain.DomainUnload += (sender, arguments) => LeaveDomain();
                }
                entered = true;
            }
        }
    }
}
