/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.InteropServices;
using System.Text;

namespace Gmm
{
    /// <summary>The bytes of a C struct, as bindings/swig/struct.h describes them.</summary>
    internal sealed class Struct
    {
        private readonly byte[] fields;

        /// <summary>Where pointers stand in the descriptor, and the data that they point to.</summary>
        private readonly List<KeyValuePair<int, byte[]>> pointers = new List<KeyValuePair<int, byte[]>>();

        private Struct(byte[] fields) => this.fields = fields;

        /// <summary>A descriptor of all defaults.</summary>
        internal Struct(int size) : this(ForAnswer(size))
        {
        }

        internal void Put(int at, int value) => BitConverter.GetBytes(value).CopyTo(fields, at);

        internal void Put(int at, long value) => BitConverter.GetBytes(value).CopyTo(fields, at);

        /// <summary>A pointer to text; null stays NULL.</summary>
        internal void Put(int at, string text)
        {
            if (text != null)
            {
                if (text.IndexOf('\0') >= 0)
                {
                    throw new ArgumentException("text holds a NUL character");
                }
                pointers.Add(new KeyValuePair<int, byte[]>(at, Encoding.UTF8.GetBytes(text + "\0")));
            }
        }

        internal void Put(int at, GmmTag tag) => Put(at, tag == null ? 0 : tag.Number);

        internal void Put(int at, GmmStream stream) => Put(at, stream == null ? 0L : (long)stream.RawAddress);

        /// <summary>A pointer to numbers, and their count.</summary>
        internal void Put(int at, int countAt, ICollection<int> numbers)
        {
            Put(at, countAt, numbers.Count, numbers.SelectMany(BitConverter.GetBytes));
        }

        internal void Put(int at, int countAt, GmmTag[] tags)
        {
            Put(at, countAt, tags.Length, tags.SelectMany(tag => BitConverter.GetBytes(tag.Number)));
        }

        /// <summary>A pointer to pairs of a number and bytes, and their count.</summary>
        internal void Put(int at, int countAt, IDictionary<int, long> pairs)
        {
            Put(at, countAt, pairs.Count, pairs.SelectMany(pair => BitConverter.GetBytes((long)(uint)pair.Key)
                .Concat(BitConverter.GetBytes(Show.CheckSize("bytes", pair.Value)))));
        }

        /// <summary>A pointer to pairs of an address and bytes, and their count.</summary>
        internal void Put(int at, int countAt, IList<KeyValuePair<IntPtr, long>> ranges)
        {
            Put(at, countAt, ranges.Count, ranges.SelectMany(range => BitConverter.GetBytes((long)range.Key)
                .Concat(BitConverter.GetBytes(Show.CheckSize("size", range.Value)))));
        }

        private void Put(int at, int countAt, int count, IEnumerable<byte> list)
        {
            if (count != 0)
            {
                pointers.Add(new KeyValuePair<int, byte[]>(at, list.ToArray()));
                Put(countAt, count);
            }
        }

        /// <summary>A function with the pointer that it gets; zero: none.</summary>
        internal void Put(int at, string type, IntPtr user)
        {
            if (user != IntPtr.Zero)
            {
                Put(at, (long)Native.gmm_csharp_callback(type));
                Put(at + 8, (long)user);
            }
        }

        /// <summary>The descriptor with its data behind it.</summary>
        internal byte[] Bytes()
        {
            int data = Align(fields.Length + 4 + 4 * pointers.Count);
            byte[] made = new byte[data + pointers.Sum(pointer => Align(pointer.Value.Length))];
            int list = fields.Length;
            BitConverter.GetBytes(pointers.Count).CopyTo(made, list);
            foreach (KeyValuePair<int, byte[]> pointer in pointers)
            {
                list += 4;
                BitConverter.GetBytes(pointer.Key).CopyTo(made, list);
                Put(pointer.Key, (long)data);
                pointer.Value.CopyTo(made, data);
                data += Align(pointer.Value.Length);
            }
            fields.CopyTo(made, 0);
            return made;
        }

        private static int Align(int size) => (size + 7) / 8 * 8;

        /// <summary>Bytes for C to fill.</summary>
        internal static byte[] ForAnswer(int size)
        {
            byte[] made = new byte[size];
            BitConverter.GetBytes(size).CopyTo(made, 0);
            return made;
        }

        /// <summary>The fields of an answer. An older library's is shorter: fields that it lacks are 0.</summary>
        internal static Struct Answer(byte[] from, int size)
        {
            byte[] copy = new byte[size];
            Array.Copy(from, copy, Math.Min(size, from.Length));
            return new Struct(copy);
        }

        /// <summary>A copy of a struct that the library lends, which has the library's size.</summary>
        internal static byte[] Lent(IntPtr info)
        {
            byte[] made = new byte[Marshal.ReadInt32(info)];
            Marshal.Copy(info, made, 0, made.Length);
            return made;
        }

        internal int Int(int at) => BitConverter.ToInt32(fields, at);

        internal long Long(int at) => BitConverter.ToInt64(fields, at);

        internal IntPtr Address(int at) => (IntPtr)Long(at);

        /// <summary>The text in a field of `size` bytes, with or without a NUL.</summary>
        internal string Text(int at, int size)
        {
            int end = Array.IndexOf(fields, (byte)0, at, size);
            return Encoding.UTF8.GetString(fields, at, end < 0 ? size : end - at);
        }

        /// <summary>Text of C, which is UTF-8.</summary>
        internal static string Text(IntPtr text)
        {
            int length = 0;
            while (Marshal.ReadByte(text, length) != 0)
            {
                length++;
            }
            byte[] bytes = new byte[length];
            Marshal.Copy(text, bytes, 0, length);
            return Encoding.UTF8.GetString(bytes);
        }

        internal byte[] Bytes(int at, int size)
        {
            byte[] part = new byte[size];
            Array.Copy(fields, at, part, 0, size);
            return part;
        }
    }
}
