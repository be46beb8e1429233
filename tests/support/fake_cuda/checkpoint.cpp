// SPDX-License-Identifier: Apache-2.0
// The checkpoint of processes. A locked process waits in its next call. A checkpointed one keeps its bytes, which lie
// in files of the machine anyway; only the account of the device changes.
#include "state.h"

using namespace fake;

namespace {

// The process goes from one state to another. `checked_from`: the first byte of its arguments that must be 0.
template <class Args>
CUresult change(Entry entry, int pid, const Args *args, size_t checked_from, int32_t from, int32_t to) {
  if (CUresult early = enter(entry)) return early;
  fake_ledger_process *process = find_process(pid);
  if (process == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = checked_from; args != nullptr && i < sizeof *args; ++i)
    if (reinterpret_cast<const char *>(args)[i] != 0) return CUDA_ERROR_INVALID_VALUE;
  // As driver 580 does it: after one restore that found no memory all later ones fail, and the state stays.
  if (from == CU_PROCESS_STATE_CHECKPOINTED && __atomic_load_n(&process->state, __ATOMIC_SEQ_CST) == from) {
    if (__atomic_load_n(&process->stuck, __ATOMIC_SEQ_CST) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
    if (!has_room_for(*process)) {
      __atomic_store_n(&process->stuck, 1, __ATOMIC_SEQ_CST);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  return __atomic_compare_exchange_n(&process->state, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
             ? CUDA_SUCCESS
             : CUDA_ERROR_ILLEGAL_STATE;
}

}  // namespace

extern "C" {

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state) {
  if (CUresult early = enter(Entry::cuCheckpointProcessGetState)) return early;
  fake_ledger_process *process = find_process(pid);
  if (state == nullptr || process == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = static_cast<CUprocessState>(__atomic_load_n(&process->state, __ATOMIC_SEQ_CST));
  return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
  return change(Entry::cuCheckpointProcessLock, pid, args, sizeof(unsigned int), CU_PROCESS_STATE_RUNNING,
                CU_PROCESS_STATE_LOCKED);
}
CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
  return change(Entry::cuCheckpointProcessCheckpoint, pid, args, 0, CU_PROCESS_STATE_LOCKED,
                CU_PROCESS_STATE_CHECKPOINTED);
}
CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
  return change(Entry::cuCheckpointProcessRestore, pid, args, 0, CU_PROCESS_STATE_CHECKPOINTED,
                CU_PROCESS_STATE_LOCKED);
}
CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
  return change(Entry::cuCheckpointProcessUnlock, pid, args, 0, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING);
}

}  // extern "C"
