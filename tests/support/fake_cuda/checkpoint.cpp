// SPDX-License-Identifier: Apache-2.0
// The checkpoint of processes. A locked process waits in its next call. A checkpointed one keeps its bytes, which lie
// in files of the machine anyway; only the account of the device changes.
#include "state.h"

namespace fake {
namespace {

CUresult change(fake_ledger_process *process, int32_t from, int32_t to) {
  return __atomic_compare_exchange_n(&process->state, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
             ? CUDA_SUCCESS
             : CUDA_ERROR_ILLEGAL_STATE;
}

template <class Args>
bool all_zero(const Args *args, size_t from) {
  for (size_t i = from; args != nullptr && i < sizeof *args; ++i)
    if (reinterpret_cast<const char *>(args)[i] != 0) return false;
  return true;
}

}  // namespace

}  // namespace fake

using namespace fake;

extern "C" {

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state) {
  if (CUresult early = enter(Entry::cuCheckpointProcessGetState)) return early;
  fake_ledger_process *process = find_process(pid);
  if (state == nullptr || process == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = static_cast<CUprocessState>(__atomic_load_n(&process->state, __ATOMIC_SEQ_CST));
  return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
  if (CUresult early = enter(Entry::cuCheckpointProcessLock)) return early;
  fake_ledger_process *process = find_process(pid);
  if (process == nullptr || !all_zero(args, sizeof(unsigned int))) return CUDA_ERROR_INVALID_VALUE;
  return change(process, FAKE_PROCESS_RUNNING, FAKE_PROCESS_LOCKED);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
  if (CUresult early = enter(Entry::cuCheckpointProcessCheckpoint)) return early;
  fake_ledger_process *process = find_process(pid);
  if (process == nullptr || !all_zero(args, 0)) return CUDA_ERROR_INVALID_VALUE;
  return change(process, FAKE_PROCESS_LOCKED, FAKE_PROCESS_CHECKPOINTED);
}

// As driver 580 does it: after one restore that found no memory all later ones fail, and the state stays.
CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
  if (CUresult early = enter(Entry::cuCheckpointProcessRestore)) return early;
  fake_ledger_process *process = find_process(pid);
  if (process == nullptr || !all_zero(args, 0)) return CUDA_ERROR_INVALID_VALUE;
  if (__atomic_load_n(&process->state, __ATOMIC_SEQ_CST) != FAKE_PROCESS_CHECKPOINTED) return CUDA_ERROR_ILLEGAL_STATE;
  if (__atomic_load_n(&process->stuck, __ATOMIC_SEQ_CST) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (!has_room_for(*process)) {
    __atomic_store_n(&process->stuck, 1, __ATOMIC_SEQ_CST);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return change(process, FAKE_PROCESS_CHECKPOINTED, FAKE_PROCESS_LOCKED);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
  if (CUresult early = enter(Entry::cuCheckpointProcessUnlock)) return early;
  fake_ledger_process *process = find_process(pid);
  if (process == nullptr || !all_zero(args, 0)) return CUDA_ERROR_INVALID_VALUE;
  return change(process, FAKE_PROCESS_LOCKED, FAKE_PROCESS_RUNNING);
}

}  // extern "C"
