/* SPDX-License-Identifier: Apache-2.0 */
using System;

namespace Gmm
{
    /// <summary>
    /// A call of the library failed and changed nothing. The message says what was asked, what stood in the way and
    /// what to do.
    /// </summary>
    public sealed class GmmException : Exception
    {
        internal GmmException(int code, int nativeCode, string name, string message) : base(message)
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
            Name + " (" + Code + (NativeCode != 0 ? ", native " + NativeCode : "") + "): " + Message
                + Environment.NewLine + StackTrace;
    }
}
