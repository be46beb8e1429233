/* SPDX-License-Identifier: Apache-2.0
 *
 * C#'s low layer. It is internal to the assembly, so that programs see the hand-written classes only. Handles and
 * addresses are IntPtr, outputs are out parameters, IPC handles are byte[].
 */
%module(imclassname="NativePINVOKE") Native

%include <stdint.i>

%pragma(csharp) moduleclassmodifiers="internal static class"
%pragma(csharp) imclassclassmodifiers="internal class"
%typemap(csclassmodifiers) SWIGTYPE "internal class"

%{
#include "native.h"
%}
%insert(runtime) %{
SWIGEXPORT void SWIGSTDCALL GmmRegisterCallbacks(gmm_csharp_fail_fn fail, gmm_csharp_log_fn log, gmm_csharp_oom_fn oom,
                                              gmm_write_fn write, gmm_progress_fn progress) {
  gmm_csharp_register(fail, log, oom, write, progress);
}
%}
%insert(begin) %{
#include "native.h"
%}

%pragma(csharp) imclasscode=%{
  [global::System.Runtime.InteropServices.DllImport("$dllimport")]
  internal static extern void GmmRegisterCallbacks(FailCallback fail, LogCallback log, OomCallback oom,
    WriteCallback write, ProgressCallback progress);

  // Static, so that the delegates live as long as C can call them.
  private static readonly FailCallback fail = Callbacks.Fail;
  private static readonly LogCallback log = Callbacks.Log;
  private static readonly OomCallback oom = Callbacks.Oom;
  private static readonly WriteCallback write = Callbacks.Write;
  private static readonly ProgressCallback progress = ProgressCall.Call;

  internal static void Register() {
    GmmRegisterCallbacks(fail, log, oom, write, progress);
  }
%}
/* This runs before the first call of any function, after SWIG's own initialisers. */
%pragma(csharp) modulecode=%{
  static Native() {
    NativePINVOKE.Register();
  }
%}

/* Results. "Not yet" is asked for in loops, and is no exception. */
%typemap(ctype) gmm_result "int"
%typemap(imtype) gmm_result "int"
%typemap(cstype) gmm_result "int"
%typemap(csin) gmm_result "$csinput"
%typemap(in) gmm_result "$1 = (gmm_result)$input;"
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
%typemap(ctype) void *GMM_ADDRESS "void *"
%typemap(imtype) void *GMM_ADDRESS "global::System.IntPtr"
%typemap(cstype) void *GMM_ADDRESS "global::System.IntPtr"
%typemap(csin) void *GMM_ADDRESS "$csinput"
%typemap(csout) void *GMM_ADDRESS { return $imcall; }
%typemap(csvarin) void *GMM_ADDRESS %{
    set { $imcall; } %}
%typemap(csvarout) void *GMM_ADDRESS %{
    get { return $imcall; } %}
%typemap(in) void *GMM_ADDRESS %{ $1 = ($1_ltype)$input; %}
%typemap(out) void *GMM_ADDRESS %{ $result = (void *)$1; %}
%apply void *GMM_ADDRESS { gmm_context *, gmm_heap *, gmm_event *, gmm_ticket *, gmm_watcher *, gmm_lease * }
%ignore gmm_context;
%ignore gmm_heap;
%ignore gmm_event;
%ignore gmm_ticket;

/* Outputs. */
%define GMM_CSHARP_OUT(Pattern, CType, CsType)
%typemap(ctype) Pattern #CType
%typemap(imtype) Pattern "out " #CsType
%typemap(cstype) Pattern "out " #CsType
%typemap(csin) Pattern "out $csinput"
%typemap(in) Pattern %{ $1 = ($1_ltype)$input; %}
%enddef
GMM_CSHARP_OUT(void **GMM_OUT_ADDRESS, void *, global::System.IntPtr)
GMM_CSHARP_OUT(SWIGTYPE **GMM_OUT_HANDLE, void *, global::System.IntPtr)
GMM_CSHARP_OUT(uint64_t *GMM_OUT_UINT64, void *, ulong)
GMM_CSHARP_OUT(uint32_t *GMM_OUT_UINT32, void *, uint)

/* Bytes. */
%define GMM_CSHARP_BYTES(Pattern, Check)
%typemap(ctype) Pattern "void *"
%typemap(imtype) Pattern "byte[]"
%typemap(cstype) Pattern "byte[]"
%typemap(csin) Pattern Check
%typemap(in) Pattern %{ $1 = ($1_ltype)$input; %}
%enddef
GMM_CSHARP_BYTES(gmm_ipc_handle *GMM_OUT_BYTES, "Callbacks.CheckIpcHandle($csinput)")
GMM_CSHARP_BYTES(const gmm_ipc_handle *GMM_IN_BYTES, "Callbacks.CheckIpcHandle($csinput)")
%typemap(ctype) uint8_t GMM_BYTES[ANY] "void *"
%typemap(imtype) uint8_t GMM_BYTES[ANY] "global::System.IntPtr"
%typemap(cstype) uint8_t GMM_BYTES[ANY] "byte[]"
%typemap(out) uint8_t GMM_BYTES[ANY] %{ $result = (void *)$1; %}
%typemap(csvarout) uint8_t GMM_BYTES[ANY] %{
    get {
      byte[] made = new byte[$1_dim0];
      global::System.Runtime.InteropServices.Marshal.Copy($imcall, made, 0, $1_dim0);
      return made;
    } %}

/* Callbacks: the user pointer is a GCHandle of Callbacks.cs; C calls one static delegate each. */
%define GMM_CSHARP_CALLBACK(Pattern, Trampoline)
%typemap(ctype) Pattern "void *"
%typemap(imtype) Pattern "global::System.IntPtr"
%typemap(cstype) Pattern "global::System.IntPtr"
%typemap(csin) Pattern "$csinput"
%typemap(in) Pattern %{
  $1 = $input ? Trampoline : NULL;
  $2 = $input;
%}
%enddef
GMM_CSHARP_CALLBACK((gmm_log_fn fn, void *user), gmm_csharp_log)
GMM_CSHARP_CALLBACK((gmm_oom_fn fn, void *user), gmm_csharp_oom)
GMM_CSHARP_CALLBACK((gmm_write_fn write, void *user), gmm_csharp_write)
GMM_CSHARP_CALLBACK((gmm_progress_fn progress, void *user), gmm_csharp_progress)
GMM_CSHARP_CALLBACK((gmm_watch_fn fn, void *user), gmm_csharp_watch)
GMM_CSHARP_CALLBACK((gmm_lease_ask_fn fn, void *user), gmm_csharp_asked)
GMM_CSHARP_CALLBACK((void (*fn)(void *user), void *user), gmm_csharp_run)

%apply void *GMM_ADDRESS { void * }
enum {
  GMM_CSHARP_TASK = 0,
  GMM_CSHARP_LOG = 1,
  GMM_CSHARP_PROGRESS = 2,
  GMM_CSHARP_WATCH = 3,
  GMM_CSHARP_ASKED = 4
};
void gmm_csharp_close(int32_t fd);
void *gmm_csharp_next(void);
void gmm_csharp_finish(void *request, int32_t answer);
void gmm_csharp_stop(void);
void gmm_csharp_enter_watch(uint32_t event);

/* The functions above have none of this: the dispatcher waits inside one, and is no call of the library. */
%csnothrowexception %{
  ++gmm_csharp_depth;
  $action
  --gmm_csharp_depth;
%}

/* What a watcher's callback must not call: the library knows its own thread, and the callback runs on another. */
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
GMM_CSHARP_OUTSIDE(gmm_resume_range, 1)
GMM_CSHARP_OUTSIDE(gmm_move, 1)
GMM_CSHARP_OUTSIDE(gmm_compact, 1)
GMM_CSHARP_OUTSIDE(gmm_reset, 1)
GMM_CSHARP_OUTSIDE(gmm_backup_discard, 1)
GMM_CSHARP_OUTSIDE(gmm_tag_destroy, 1)
GMM_CSHARP_OUTSIDE(gmm_tag_configure, 1)

/* `base` is a word of C#. */
%rename(base_address) gmm_pointer_info::base;

%include "gmm.i"
%include "watch.i"
%include "lease.i"
