/* SPDX-License-Identifier: Apache-2.0 */
using System;

namespace Gmm
{
    public sealed partial class GmmContext
    {
        /// <summary>Does the same as Import(byte[]), from a part of a received message.</summary>
        public GmmBuffer Import(ReadOnlySpan<byte> ipcHandle, int device = 0, int timeoutMilliseconds = 0) =>
            Import(ipcHandle.ToArray(), device, timeoutMilliseconds);

        /// <summary>Does the same as ImportEvent(byte[]), from a part of a received message.</summary>
        public GmmEvent ImportEvent(ReadOnlySpan<byte> ipcHandle, int device = 0, int timeoutMilliseconds = 0) =>
            ImportEvent(ipcHandle.ToArray(), device, timeoutMilliseconds);
    }
}
