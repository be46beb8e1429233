/* SPDX-License-Identifier: Apache-2.0 */
using System;

namespace Gmm
{
    // Not for the plain layer: Span<T> is a part of .NET, not of Mono's class library.
    public sealed partial class GmmBuffer
    {
        /// <summary>
        /// The whole buffer as a span, for memory that the CPU can reach, of at most 2^31-1 bytes. A span cannot keep
        /// the buffer: hold the buffer in a using statement around it, and touch no span of freed or paused memory.
        /// </summary>
        public Span<byte> Span
        {
            get
            {
                if (Size > int.MaxValue)
                {
                    throw new InvalidOperationException("a span holds at most 2147483647 bytes, this buffer has "
                        + Size + ": use Slice(offset, length)");
                }
                return Slice(0, (int)Size);
            }
        }

        /// <summary>A part of the buffer as a span; see <see cref="Span"/>.</summary>
        public unsafe Span<byte> Slice(long offset, int length)
        {
            Check(offset, length);
            using (Use self = Using())
            {
                GmmPointerInfo info = GmmContext.Query(context.DangerousGetHandle(), self.Address);
                if (info.State == GmmState.Paused || info.State == GmmState.PartlyPaused)
                {
                    throw new GmmException(GmmResult.Paused,
                        "a span of a buffer at 0x" + self.Address.ToString("x")
                            + " was asked for; it is paused: resume its tag first");
                }
                if (!info.HostAccessible)
                {
                    throw new GmmException(GmmResult.NotSupported,
                        "a span of a buffer at 0x" + self.Address.ToString("x")
                            + " was asked for; the CPU cannot reach " + Kind
                            + " memory of this device: copy it with Read() instead");
                }
                return new Span<byte>((byte*)self.Address + offset, length);
            }
        }
    }
}
