/* SPDX-License-Identifier: Apache-2.0
 *
 * C#'s low layer. It is internal to the assembly, so that programs see the hand-written classes only. Handles and
 * addresses are IntPtr, outputs are out parameters, IPC handles are byte[].
 */
%module(imclassname="NativePINVOKE") Native

%include <stdint.i>

%pragma(csharp) moduleclassmodifiers="internal static class"
%pragma(csharp) imclassclassmodifiers="internal class"

%{
#include "native.h"
%}
%insert(runtime) %{
SWIGEXPORT void SWIGSTDCALL GmmRegisterCallbacks(gmm_csharp_fail_fn fail, gmm_csharp_perform_fn perform) {
  gmm_csharp_register(fail, perform);
}
%}
%insert(begin) %{
#include "native.h"
#include "struct.h"
%}

%pragma(csharp) imclasscode=%{
  [global::System.Runtime.InteropServices.DllImport("$dllimport")]
  internal static extern void GmmRegisterCallbacks(FailCallback fail, PerformCallback perform);

  // Static, so that the delegates live as long as C can call them.
  private static readonly FailCallback fail = HeldByC.Fail;
  private static readonly PerformCallback perform = HeldByC.Perform;

  internal static void Register() {
    GmmRegisterCallbacks(fail, perform);
  }
%}
/* This runs before the first call of any function, after SWIG's own initialisers. */
%pragma(csharp) modulecode=%{
  static Native() {
    NativePINVOKE.Register();
  }
%}

/* The type of a pattern in C, in the calls and in C#. Values pass as they are. */
%define GMM_CSHARP_TYPE(Pattern, CType, CsType)
%typemap(ctype) Pattern #CType
%typemap(imtype) Pattern #CsType
%typemap(cstype) Pattern #CsType
%typemap(csin) Pattern "$csinput"
%typemap(in) Pattern %{ $1 = ($1_ltype)$input; %}
%enddef

/* Results. "Not yet" is asked for in loops, and is no exception. */
GMM_CSHARP_TYPE(gmm_result, int, int)
%typemap(out, canthrow=1) gmm_result %{
  $result = $1;
  if ($1 < 0 && $1 != GMM_ERROR_NOT_READY) gmm_csharp_throw($1);
%}
/* Those that did not get an answer in time have failed. */
%apply gmm_result { gmm_result GMM_END };
%typemap(out, canthrow=1) gmm_result GMM_END %{
  $result = $1;
  if ($1 < 0) gmm_csharp_throw($1);
%}
%typemap(csout, excode=SWIGEXCODE) gmm_result, gmm_result GMM_END {
    int ret = $imcall;$excode
    return ret;
  }

/* Addresses and handles. */
GMM_CSHARP_TYPE(void *GMM_ADDRESS, void *, global::System.IntPtr)
%typemap(csout) void *GMM_ADDRESS { return $imcall; }
%typemap(out) void *GMM_ADDRESS %{ $result = (void *)$1; %}

/* Outputs. */
%define GMM_CSHARP_OUT(Pattern, CsType)
GMM_CSHARP_TYPE(Pattern, void *, out CsType)
%typemap(csin) Pattern "out $csinput"
%enddef
GMM_CSHARP_OUT(void **GMM_OUT_ADDRESS, global::System.IntPtr)
GMM_CSHARP_OUT(SWIGTYPE **GMM_OUT_HANDLE, global::System.IntPtr)
GMM_CSHARP_OUT(uint64_t *GMM_OUT_UINT64, ulong)
GMM_CSHARP_OUT(uint32_t *GMM_OUT_UINT32, uint)

/* Bytes. */
%define GMM_CSHARP_BYTES(Pattern)
GMM_CSHARP_TYPE(Pattern, void *, byte[])
%typemap(csin) Pattern "HeldByC.CheckIpcHandle($csinput)"
%enddef
GMM_CSHARP_BYTES(gmm_ipc_handle *GMM_OUT_BYTES)
GMM_CSHARP_BYTES(const gmm_ipc_handle *GMM_IN_BYTES)

/* Structs are bytes: options with their text and lists behind them (struct.h), answers for C to fill. */
GMM_CSHARP_TYPE(const void *GMM_OPTIONS, void *, byte[])
GMM_CSHARP_TYPE(void *GMM_ANSWER, void *, byte[])
%typemap(in) const void *GMM_OPTIONS %{ $1 = $input ? ($1_ltype)gmm_bind_struct($input) : NULL; %}

/* The array that gmm_tag_list() fills. */
GMM_CSHARP_TYPE(gmm_tag *tags, void *, uint[])

/* Callbacks: the user pointer is a GCHandle of a HeldByC. */
%define GMM_CSHARP_CALLBACK(Pattern, Trampoline)
GMM_CSHARP_TYPE(Pattern, void *, global::System.IntPtr)
%typemap(in) Pattern %{
  $1 = $input ? Trampoline : NULL;
  $2 = $input;
%}
%enddef
GMM_CSHARP_CALLBACK((gmm_oom_fn fn, void *user), gmm_csharp_oom)
GMM_CSHARP_CALLBACK((gmm_write_fn fn, void *user), gmm_csharp_write)
GMM_CSHARP_CALLBACK((void (*fn)(void *user), void *user), gmm_csharp_run)

%apply void *GMM_ADDRESS { void * }
void gmm_csharp_close(int32_t fd);
void *gmm_csharp_callback(const char *type);
void *gmm_csharp_next(void);
void gmm_csharp_finish(void *request, int32_t answer);
void gmm_csharp_stop(void);
void gmm_csharp_enter_watch(uint32_t event);
gmm_result gmm_csharp_check_outside(int32_t in_budget);

/* The functions above have none of this: the dispatcher waits inside one, and is no call of the library. */
%csnothrowexception %{
  ++gmm_csharp_depth;
  $action
  --gmm_csharp_depth;
%}

/* Functions that a watcher's callback must not call: the library knows its own thread, and the callback runs on
 * another. */
%define GMM_CSHARP_OUTSIDE(Function, InBudget)
%csnothrowexception Function %{
  ++gmm_csharp_depth;
  result = gmm_csharp_check_outside(InBudget);
  if (result == GMM_OK) {
    $action
  }
  --gmm_csharp_depth;
%}
%enddef
GMM_CSHARP_OUTSIDE(gmm_alloc, 0)
GMM_CSHARP_OUTSIDE(gmm_heap_alloc, 0)
GMM_CSHARP_OUTSIDE(gmm_heap_reserve, 0)
GMM_CSHARP_OUTSIDE(gmm_pause, 1)
GMM_CSHARP_OUTSIDE(gmm_resume, 1)
GMM_CSHARP_OUTSIDE(gmm_pause_range, 1)
GMM_CSHARP_OUTSIDE(gmm_resume_range, 1)
GMM_CSHARP_OUTSIDE(gmm_move, 1)
GMM_CSHARP_OUTSIDE(gmm_compact, 1)
GMM_CSHARP_OUTSIDE(gmm_reset, 1)
GMM_CSHARP_OUTSIDE(gmm_backup_discard, 1)
GMM_CSHARP_OUTSIDE(gmm_tag_destroy, 1)
GMM_CSHARP_OUTSIDE(gmm_tag_configure, 1)

%include "bytes.i"
%include "gmm.i"
%include "lease.i"
