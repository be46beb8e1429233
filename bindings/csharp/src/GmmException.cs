/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Text.RegularExpressions;

namespace Gmm
{
    /// <summary>
    /// A call of the library failed and changed nothing. The message says what was asked, what stood in the way and
    /// what to do. It is a <see cref="GmmOutOfMemoryException"/> where memory is short. Where a Dispose() fails, the
    /// InnerException is the failure of the thread before it: a using statement whose body threw would lose that.
    /// </summary>
    public class GmmException : Exception
    {
        internal GmmException(int code, int nativeCode, string name, string message, Exception before = null)
            : base(message, before)
        {
            Code = code;
            NativeCode = nativeCode;
            Name = name;
        }

        /// <summary>A failure that this layer finds before it calls the library.</summary>
        internal GmmException(GmmResult result, string message)
            : this((int)result, 0, Native.gmm_result_name((int)result), message)
        {
        }

        /// <summary>A message of the library, with the method in the place of each function of C.</summary>
        private static string InCSharp(string message) => Regex.Replace(message, @"\bgmm_\w+",
            found => Methods.Of.TryGetValue(found.Value, out string method) ? method : found.Value);

        internal static GmmException Of(int code, int nativeCode, string name, string message)
        {
            message = InCSharp(message);
            switch ((GmmResult)code)
            {
                case GmmResult.OutOfMemory:
                case GmmResult.OutOfHostMemory:
                case GmmResult.LimitExceeded:
                    return new GmmOutOfMemoryException(code, nativeCode, name, message);
                default:
                    return new GmmException(code, nativeCode, name, message);
            }
        }

        /// <summary>The result code of the C interface, below zero.</summary>
        public int Code { get; }

        /// <summary>The result, Unknown when the library is newer than this assembly.</summary>
        public GmmResult Result => Enum.IsDefined(typeof(GmmResult), Code) ? (GmmResult)Code : GmmResult.Unknown;

        /// <summary>The name of the result, for example "GMM_ERROR_OUT_OF_MEMORY".</summary>
        public string Name { get; }

        /// <summary>
        /// The driver's (CUresult) or the system's (errno) own number; 0 when gmm found the failure itself.
        /// </summary>
        public int NativeCode { get; }

        /// <inheritdoc/>
        public override string ToString() =>
            GetType() + ": " + Name + " (" + Code + (NativeCode != 0 ? ", native " + NativeCode : "") + "): " + Message
                + (InnerException == null ? "" : " ---> " + InnerException) + Environment.NewLine + StackTrace;
    }

    /// <summary>
    /// The device, the host or a limit has no memory left: OutOfMemory, OutOfHostMemory or LimitExceeded.
    /// </summary>
    public sealed class GmmOutOfMemoryException : GmmException
    {
        internal GmmOutOfMemoryException(int code, int nativeCode, string name, string message)
            : base(code, nativeCode, name, message)
        {
        }
    }
}
