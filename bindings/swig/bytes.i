/* SPDX-License-Identifier: Apache-2.0 */
/* For Java and C#, what generate.py says of a type: handles are addresses, structs are bytes. */
/* No class is made of a struct. */
%rename("$ignore", %$ismember) "";

%define GMM_HANDLE(Type, Kind)
%ignore Type;
%apply void *GMM_ADDRESS { Type * }
%apply SWIGTYPE **GMM_OUT_HANDLE { Type ** }
%enddef
%define GMM_OPTIONS(Type)
%ignore Type;
%apply const void *GMM_OPTIONS { const Type * }
%enddef
%define GMM_ANSWER(Type)
%ignore Type;
%apply void *GMM_ANSWER { Type * }
%enddef
