/* SPDX-License-Identifier: Apache-2.0 */
using System;
using Gmm;
using static Tap;

/// <summary>The part of the assembly that needs .NET: spans.</summary>
internal static class SpanTest
{
    private const int Size = 1 << 20;

    private static int Main()
    {
        Tap tap = new Tap();
        tap.Test("a span sees the buffer", SeesTheBuffer);
        tap.Test("memory without a span", Refused);
        return tap.Finish();
    }

    private static void SeesTheBuffer()
    {
        using (GmmContext context = new GmmContext())
        using (GmmBuffer buffer = context.Alloc(Size, GmmKind.Host))
        {
            buffer.Write(0, Pattern(Size));
            Span<byte> span = buffer.Span;
            SameBytes(Pattern(Size), span.ToArray(), "the contents");
            Span<byte> part = buffer.Slice(Size - 16, 16);
            part[15] = 7;
            Same((byte)7, buffer.Read(Size - 1, 1)[0], "a byte that was written through a part");
            Same(0, buffer.Slice(Size, 0).Length, "an empty slice at the end");
            Fails<ArgumentOutOfRangeException>(() => buffer.Slice(Size - 15, 16));
            Fails<ArgumentOutOfRangeException>(() => buffer.Slice(-1, 1));
        }
    }

    private static void Refused()
    {
        using (GmmContext context = new GmmContext())
        {
            GmmTag tag = context.Tag("span", GmmContents.Host, 0);
            GmmBuffer buffer = context.Alloc(Size, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag });
            tag.Pause();
            Fails(GmmResult.Paused, () => buffer.Slice(0, 1));
            buffer.Dispose();
            Fails<ObjectDisposedException>(() => buffer.Slice(0, 1));
        }
    }
}
