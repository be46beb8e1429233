/* SPDX-License-Identifier: Apache-2.0 */
using System;

namespace Gmm
{
    public sealed partial class GmmContext
    {
        /// <summary>As Import(byte[]), from a part of something received.</summary>
        public GmmBuffer Import(ReadOnlySpan<byte> ipcHandle, int device = 0, int timeoutMilliseconds = 0)
        {
            return Import(ipcHandle.ToArray(), device, timeoutMilliseconds);
        }

        /// <summary>As ImportEvent(byte[]), from a part of something received.</summary>
        public GmmEvent ImportEvent(ReadOnlySpan<byte> ipcHandle, int device = 0, int timeoutMilliseconds = 0)
        {
            return ImportEvent(ipcHandle.ToArray(), device, timeoutMilliseconds);
        }
    }
}
