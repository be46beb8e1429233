/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections;
using System.Globalization;
using System.Linq;

namespace Gmm
{
    /// <summary>Text for people, and the check of what they pass.</summary>
    internal static class Show
    {
        private static readonly string[] units = { "bytes", "KiB", "MiB", "GiB", "TiB" };

        /// <summary>Bytes in words: 1536 is "1.5 KiB".</summary>
        internal static string Size(long bytes)
        {
            double value = bytes;
            int unit = 0;
            while (Math.Abs(value) >= 1024 && unit + 1 < units.Length)
            {
                value /= 1024;
                unit++;
            }
            return value.ToString("0.#", CultureInfo.InvariantCulture) + " " + units[unit];
        }

        internal static string Hex(IntPtr address) =>
            "0x" + address.ToInt64().ToString("x", CultureInfo.InvariantCulture);

        /// <summary>The text of a value: its class, and the name and value of each property.</summary>
        internal static string All(string name, params object[] pairs)
        {
            return name + " { " + string.Join(", ", pairs.Where((each, i) => i % 2 == 0)
                .Zip(pairs.Where((each, i) => i % 2 == 1), (own, value) => own + " = " + Value(value))) + " }";
        }

        /// <summary>The text of an object, which is asked of the library; `otherwise`: it is closed.</summary>
        internal static string Open(string name, Func<string> describe, string otherwise)
        {
            try
            {
                otherwise = describe();
            }
            catch (Exception error) when (error is ObjectDisposedException || error is GmmException)
            {
                // by another thread, or with its context
            }
            return name + " { " + otherwise + " }";
        }

        private static string Value(object value)
        {
            if (value is byte[] bytes)
            {
                return BitConverter.ToString(bytes).Replace("-", "").ToLowerInvariant();
            }
            if (value is IEnumerable list && !(value is string))
            {
                return "[" + string.Join(", ", list.Cast<object>().Select(Value)) + "]";
            }
            return value is IntPtr address ? Hex(address)
                : value == null ? "null" : Convert.ToString(value, CultureInfo.InvariantCulture);
        }

        /// <summary>
        /// A size that is none: C would read it as one of nearly 2^64 bytes. orAll: -1 stands for all or none.
        /// </summary>
        internal static long CheckSize(string name, long size, bool orAll = false)
        {
            if (size < 0 && !(orAll && size == -1))
            {
                throw new ArgumentOutOfRangeException(name, size, "a size is not negative");
            }
            return size;
        }
    }
}
