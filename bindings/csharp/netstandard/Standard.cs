/* SPDX-License-Identifier: Apache-2.0 */
[assembly: System.Runtime.Versioning.TargetFramework(".NETStandard,Version=v2.0",
    FrameworkDisplayName = ".NET Standard 2.0")]

namespace Gmm
{
    /// <summary>Puts the name into the assembly, where build.py finds it.</summary>
    internal static class netstandard
    {
    }
}
