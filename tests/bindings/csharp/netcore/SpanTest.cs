/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Reflection;
using Gmm;
using static Tap;

/// <summary>The part of the assembly that needs .NET: spans, and where the native library is found.</summary>
internal static class SpanTest
{
    private const int Size = 1 << 20;

    private static int Main()
    {
        // A compiler older than C# 9 does not make a module initialiser of it.
        typeof(GmmContext)
            .Assembly.GetType("Gmm.NativeResolver")
            .GetMethod("Install", BindingFlags.Static | BindingFlags.NonPublic)
            .Invoke(null, null);
        Tap tap = new Tap();
        tap.Test("the library comes from GMM_LIBRARY_PATH", () => Check(GmmContext.Version.Length > 0, "a version"));
        tap.Test("a span sees the buffer", SeesTheBuffer);
        tap.Test("slices", Slices);
        tap.Test("a span of paused memory is refused", Paused);
        tap.Test("a span after Dispose is refused", Disposed);
        return tap.Finish();
    }

    private static void SeesTheBuffer()
    {
        using (GmmContext context = new GmmContext())
        using (GmmBuffer buffer = context.Alloc(Size, GmmKind.Host))
        {
            buffer.Fill(0x5A);
            buffer.Read(0, 1);
            Span<byte> span = buffer.Span;
            Same(Size, span.Length, "the length");
            Same((byte)0x5A, span[Size - 1], "the last byte");
            span[77] = 7;
            Same((byte)7, buffer.Read(77, 1)[0], "a byte that was written through the span");
            GC.KeepAlive(buffer);
        }
    }

    private static void Slices()
    {
        using (GmmContext context = new GmmContext())
        using (GmmBuffer buffer = context.Alloc(Size, GmmKind.Host))
        {
            buffer.Write(0, Pattern(Size));
            Span<byte> part = buffer.Slice(Size - 16, 16);
            Same(16, part.Length, "the length");
            SameBytes(buffer.Read(Size - 16, 16), part.ToArray(), "the part");
            Same(0, buffer.Slice(Size, 0).Length, "an empty slice at the end");
            Fails<ArgumentOutOfRangeException>(() => buffer.Slice(Size - 15, 16));
            Fails<ArgumentOutOfRangeException>(() => buffer.Slice(-1, 1));
        }
    }

    private static void Paused()
    {
        using (GmmContext context = new GmmContext())
        {
            GmmTag tag = context.Tag("span", GmmContents.Host, 0);
            using (GmmBuffer buffer = context.Alloc(Size, new GmmAllocOptions { Kind = GmmKind.Vmm, Tag = tag }))
            {
                buffer.Write(0, Pattern(Size));
                tag.Pause();
                Fails(GmmResult.Paused, () => buffer.Slice(0, 1));
                tag.Resume();
                if (buffer.Query().HostAccessible)
                {
                    SameBytes(Pattern(Size), buffer.Span.ToArray(), "the contents");
                }
                else
                {
                    Fails(GmmResult.NotSupported, () => buffer.Slice(0, 1));
                }
            }
        }
    }

    private static void Disposed()
    {
        using (GmmContext context = new GmmContext())
        {
            GmmBuffer buffer = context.Alloc(Size, GmmKind.Host);
            buffer.Dispose();
            Fails<ObjectDisposedException>(() => buffer.Slice(0, 1));
        }
    }
}
