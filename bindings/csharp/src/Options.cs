/* SPDX-License-Identifier: Apache-2.0 */
using System;

namespace Gmm
{
    /// <summary>How to open a context.</summary>
    public sealed class GmmContextOptions
    {
        /// <summary>The backend.</summary>
        public GmmBackend Backend { get; set; }
        /// <summary>Where messages go; null: warnings and errors to stderr when GMM_LOG is set. A logger that refers to the context keeps it from the garbage collector.</summary>
        public GmmLogger Logger { get; set; }
        /// <summary>Host backend: bytes each device pretends to have; 0: the machine's memory.</summary>
        public long HostMemory { get; set; }
        /// <summary>Host backend: how many devices it shows; 0: one.</summary>
        public int HostDevices { get; set; }
        /// <summary>As <see cref="GmmContext.DecommitAfterMilliseconds"/>; 0: what GMM_DECOMMIT_AFTER_MS in the environment says, else never.</summary>
        public long DecommitAfterMilliseconds { get; set; }
    }

    /// <summary>How to allocate.</summary>
    public sealed class GmmAllocOptions
    {
        /// <summary>The kind of memory; Device when not set.</summary>
        public GmmKind Kind { get; set; }
        /// <summary>The device; for Host and Managed memory the one it is counted for.</summary>
        public int Device { get; set; }
        /// <summary>The tag; null: the thread's current tag.</summary>
        public GmmTag Tag { get; set; }
        /// <summary>The stream on which the block is used first; null: the default stream.</summary>
        public GmmStream Stream { get; set; }
        /// <summary>Bytes, a power of two up to 2 MiB; 0: 256.</summary>
        public long Alignment { get; set; }
        /// <summary>The block gets a driver allocation of its own.</summary>
        public bool Dedicated { get; set; }
        /// <summary>The bytes read as zero.</summary>
        public bool Zero { get; set; }

        internal gmm_alloc_desc ToNative(IntPtr stream)
        {
            gmm_alloc_desc desc = new gmm_alloc_desc();
            desc.kind = (uint)Kind;
            desc.device = Device;
            desc.tag = Tag == null ? 0 : (uint)Tag.Number;
            desc.stream = stream;
            desc.alignment = (ulong)Alignment;
            desc.flags = (Dedicated ? (uint)Native.GMM_ALLOC_DEDICATED : 0) | (Zero ? (uint)Native.GMM_ALLOC_ZERO : 0);
            return desc;
        }
    }

    /// <summary>What a limit or a count is about: one device or all, one tag or all, one kind or all. Null means all.</summary>
    public sealed class GmmScope
    {
        /// <summary>Of one device only.</summary>
        public int? Device { get; set; }
        /// <summary>Of one tag only.</summary>
        public GmmTag Tag { get; set; }
        /// <summary>Of one kind only.</summary>
        public GmmKind? Kind { get; set; }

        /// <summary>For a null scope too: everything.</summary>
        internal static gmm_scope ToNative(GmmScope scope)
        {
            gmm_scope made = new gmm_scope();
            if (scope != null)
            {
                made.flags = (scope.Device.HasValue ? (uint)Native.GMM_SCOPE_DEVICE : 0) | (scope.Tag != null ? (uint)Native.GMM_SCOPE_TAG : 0)
                    | (scope.Kind.HasValue ? (uint)Native.GMM_SCOPE_KIND : 0);
                made.device = scope.Device ?? 0;
                made.tag = scope.Tag == null ? 0 : (uint)scope.Tag.Number;
                made.kind = (uint)(scope.Kind ?? GmmKind.Unspecified);
            }
            return made;
        }
    }
}
