/* SPDX-License-Identifier: Apache-2.0 */
/* No class is made of a struct. Handles are addresses, options and answers are bytes. */
%rename("$ignore", %$isclass) "";
%rename("$ignore", %$ismember) "";
%apply void *GMM_ADDRESS { SWIGTYPE * }
%apply SWIGTYPE **GMM_OUT_HANDLE { SWIGTYPE ** }
%apply const void *GMM_OPTIONS { const SWIGTYPE * }
%apply void *GMM_ANSWER { SWIGTYPE *out }
