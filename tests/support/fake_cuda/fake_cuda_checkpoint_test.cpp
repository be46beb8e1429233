// SPDX-License-Identifier: Apache-2.0
// The calls of the checkpoint, between processes with a ledger.
#include <poll.h>

#include <string>

#include "fake_cuda_test.h"

namespace {

// A process with some memory of device 0. It frees that when it is told to.
class Holder {
 public:
  explicit Holder(size_t size) {
    IS(pipe(told_), 0);
    IS(pipe(hears_), 0);
    pid_ = fork();
    if (pid_ == 0) {
      CUdeviceptr address = 0;
      char byte = 0;
      start();
      OK(cuMemAlloc_v2(&address, size));
      IS(write(told_[1], "x", 1), 1);
      IS(read(hears_[0], &byte, 1), 1);
      OK(cuMemFree_v2(address));
      IS(write(told_[1], "x", 1), 1);
      _exit(0);
    }
    CHECK(tells(10000));
  }
  int pid() const { return pid_; }
  void go_on() { IS(write(hears_[1], "x", 1), 1); }
  bool tells(int timeout_ms) {
    pollfd wait = {told_[0], POLLIN, 0};
    char byte = 0;
    return poll(&wait, 1, timeout_ms) == 1 && read(told_[0], &byte, 1) == 1;
  }
  void end() {
    int status = 1;
    IS(waitpid(pid_, &status, 0), pid_);
    IS(status, 0);
  }
  CUprocessState state() const {
    CUprocessState state = CU_PROCESS_STATE_FAILED;
    OK(cuCheckpointProcessGetState(pid_, &state));
    return state;
  }

 private:
  int told_[2], hears_[2], pid_;
};

class Ledger {
 public:
  Ledger() {
    const int fd = mkstemp(path_);
    CHECK(fd >= 0);
    close(fd);
    setenv("FAKE_CUDA_LEDGER", path_, 1);
  }
  ~Ledger() { IS(unlink(path_), 0); }

 private:
  char path_[32] = "/tmp/fake-ledger-XXXXXX";
};

CASE(a_process_is_checkpointed_by_another, "") {
  Ledger ledger;
  Holder holder(kTwo);
  OK(cuInit(0));
  IS(holder.state(), CU_PROCESS_STATE_RUNNING);
  IS(cuCheckpointProcessLock(1, nullptr), CUDA_ERROR_INVALID_VALUE);
  IS(cuCheckpointProcessCheckpoint(holder.pid(), nullptr), CUDA_ERROR_ILLEGAL_STATE);
  CUcheckpointLockArgs args = {};
  args.timeoutMs = 1000;
  OK(cuCheckpointProcessLock(holder.pid(), &args));
  args.reserved0 = 1;
  IS(cuCheckpointProcessLock(holder.pid(), &args), CUDA_ERROR_INVALID_VALUE);
  IS(cuCheckpointProcessLock(holder.pid(), nullptr), CUDA_ERROR_ILLEGAL_STATE);
  holder.go_on();
  CHECK(!holder.tells(100));
  OK(cuCheckpointProcessCheckpoint(holder.pid(), nullptr));
  IS(holder.state(), CU_PROCESS_STATE_CHECKPOINTED);
  IS(cuCheckpointProcessUnlock(holder.pid(), nullptr), CUDA_ERROR_ILLEGAL_STATE);
  OK(cuCheckpointProcessRestore(holder.pid(), nullptr));
  IS(holder.state(), CU_PROCESS_STATE_LOCKED);
  CHECK(!holder.tells(50));
  OK(cuCheckpointProcessUnlock(holder.pid(), nullptr));
  CHECK(holder.tells(10000));
  holder.end();
  IS(cuCheckpointProcessLock(holder.pid(), nullptr), CUDA_ERROR_INVALID_VALUE);
}

CASE(processes_share_the_memory, "FAKE_CUDA_MEMORY=0x40000000") {
  Ledger ledger;
  Holder holder(kMiB << 9);
  start();
  CUdeviceptr address = 0;
  size_t room = 0, all = 0;
  OK(cuMemGetInfo_v2(&room, &all));
  IS(room, kMiB << 9);
  IS(cuMemAlloc_v2(&address, (kMiB << 9) + kTwo), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemAlloc_v2(&address, kMiB << 9));
  OK(cuMemFree_v2(address));
  IS(kill(holder.pid(), SIGKILL), 0);
  IS(waitpid(holder.pid(), nullptr, 0), holder.pid());
  OK(cuMemAlloc_v2(&address, (kMiB << 9) + kTwo));
}

CASE(a_restore_without_memory_is_the_last, "FAKE_CUDA_MEMORY=0x40000000") {
  Ledger ledger;
  Holder holder(kMiB << 9);
  start();
  CUdeviceptr address = 0;
  OK(cuCheckpointProcessLock(holder.pid(), nullptr));
  OK(cuCheckpointProcessCheckpoint(holder.pid(), nullptr));
  OK(cuMemAlloc_v2(&address, kMiB << 9));
  IS(cuCheckpointProcessRestore(holder.pid(), nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemFree_v2(address));
  IS(cuCheckpointProcessRestore(holder.pid(), nullptr), CUDA_ERROR_OPERATING_SYSTEM);
  IS(cuCheckpointProcessUnlock(holder.pid(), nullptr), CUDA_ERROR_ILLEGAL_STATE);
  IS(holder.state(), CU_PROCESS_STATE_CHECKPOINTED);
  IS(kill(holder.pid(), SIGKILL), 0);
  IS(waitpid(holder.pid(), nullptr, 0), holder.pid());
}

CASE(failures_come_from_the_environment, "FAKE_CUDA_FAIL=cuMemAlloc:2:2,cuMemFree:1:801") {
  start();
  CUdeviceptr address = 0, other = 0;
  OK(cuMemAlloc_v2(&address, kTwo));
  IS(cuMemAlloc_v2(&other, kTwo), CUDA_ERROR_OUT_OF_MEMORY);
  IS(cuMemFree_v2(address), CUDA_ERROR_NOT_SUPPORTED);
  OK(cuMemFree_v2(address));
}

}  // namespace
