// SPDX-License-Identifier: Apache-2.0
// The checkpoint of processes. A locked process waits in its next call. A checkpointed one keeps its bytes, which lie
// in files of the machine anyway; only the account of the device changes.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "ledger.h"
#include "state.h"

#if CUDA_VERSION < 12080
using CUprocessState = int;
struct CUcheckpointLockArgs {
  unsigned int timeoutMs, reserved0;
  cuuint64_t reserved1[7];
};
struct CUcheckpointCheckpointArgs {
  cuuint64_t reserved[8];
};
struct CUcheckpointRestoreArgs {
  void *gpuPairs;
  unsigned int gpuPairsCount;
  char reserved[52 - sizeof(void *)];
  cuuint64_t reserved1;
};
struct CUcheckpointUnlockArgs {
  cuuint64_t reserved[8];
};
#endif

namespace fake {
namespace {

std::atomic<fake_ledger_page *> own_page{nullptr};

fake_ledger_page *map_page(const char *folder, int pid, bool make) {
  char path[512];
  std::snprintf(path, sizeof path, "%s/%d", folder, pid);
  const int fd = open(path, O_RDWR | O_CLOEXEC | (make ? O_CREAT | O_TRUNC : 0), 0600);
  if (fd < 0) return nullptr;
  void *page = MAP_FAILED;
  if (!make || ftruncate(fd, sizeof(fake_ledger_page)) == 0)
    page = mmap(nullptr, sizeof(fake_ledger_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return page == MAP_FAILED ? nullptr : static_cast<fake_ledger_page *>(page);
}

// The page of another process, until the end of the object.
class Page {
 public:
  explicit Page(int pid) {
    const char *folder = getenv("FAKE_CUDA_LEDGER");
    if (folder == nullptr || pid <= 0 || kill(pid, 0) != 0) return;
    page_ = map_page(folder, pid, false);
    if (page_ != nullptr && page_->magic != FAKE_LEDGER_MAGIC) munmap(page_, sizeof *page_), page_ = nullptr;
  }
  ~Page() {
    if (page_ != nullptr) munmap(page_, sizeof *page_);
  }
  Page(const Page &) = delete;
  Page &operator=(const Page &) = delete;
  fake_ledger_page *get() const { return page_; }
  fake_ledger_page *operator->() const { return page_; }

 private:
  fake_ledger_page *page_ = nullptr;
};

uint64_t bytes_on(const fake_ledger_page &page, int device) {
  return __atomic_load_n(&page.used[device], __ATOMIC_SEQ_CST) +
         (__atomic_load_n(&page.contexts[device], __ATOMIC_SEQ_CST) ? FAKE_LEDGER_CONTEXT_BYTES : 0);
}

// Whether the devices have room for what the process held.
bool has_room(int pid, const fake_ledger_page &page) {
  uint64_t taken[FAKE_LEDGER_DEVICES] = {};
  DIR *folder = opendir(getenv("FAKE_CUDA_LEDGER"));
  for (dirent *entry; folder != nullptr && (entry = readdir(folder)) != nullptr;) {
    const int number = std::atoi(entry->d_name);
    if (number <= 0 || number == pid) continue;
    const Page each(number);
    if (each.get() == nullptr || __atomic_load_n(&each->state, __ATOMIC_SEQ_CST) >= FAKE_PROCESS_CHECKPOINTED) continue;
    for (int i = 0; i < FAKE_LEDGER_DEVICES; ++i) taken[i] += bytes_on(*each.get(), i);
  }
  if (folder != nullptr) closedir(folder);
  for (int i = 0; i < FAKE_LEDGER_DEVICES; ++i)
    if (taken[i] + bytes_on(page, i) > page.memory && bytes_on(page, i) != 0) return false;
  return true;
}

CUresult change(fake_ledger_page *page, int32_t from, int32_t to) {
  return __atomic_compare_exchange_n(&page->state, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
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

void open_ledger(State &state) {
  const char *folder = getenv("FAKE_CUDA_LEDGER");
  fake_ledger_page *page = folder == nullptr ? nullptr : map_page(folder, getpid(), true);
  if (page == nullptr) return;
  page->devices = state.configuration.devices;
  page->memory = state.configuration.memory;
  page->magic = FAKE_LEDGER_MAGIC;
  static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t) && kMaxDevices == FAKE_LEDGER_DEVICES);
  state.used = reinterpret_cast<std::atomic<uint64_t> *>(page->used);
  own_page = page;
}

void note_context(int device, bool is_live) {
  if (fake_ledger_page *page = own_page) __atomic_store_n(&page->contexts[device], is_live, __ATOMIC_SEQ_CST);
}

void wait_while_locked() {
  fake_ledger_page *page = own_page;
  while (page != nullptr && __atomic_load_n(&page->state, __ATOMIC_SEQ_CST) != FAKE_PROCESS_RUNNING) usleep(200);
}

}  // namespace fake

using namespace fake;

extern "C" {

// Older headers lack these declarations.
CUresult CUDAAPI cuCheckpointProcessGetState(int pid, CUprocessState *state);
CUresult CUDAAPI cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args);
CUresult CUDAAPI cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args);
CUresult CUDAAPI cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args);
CUresult CUDAAPI cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args);

CUresult CUDAAPI cuCheckpointProcessGetState(int pid, CUprocessState *state) {
  if (CUresult early = enter(Entry::cuCheckpointProcessGetState)) return early;
  const Page page(pid);
  if (state == nullptr || page.get() == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = static_cast<CUprocessState>(__atomic_load_n(&page->state, __ATOMIC_SEQ_CST));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
  if (CUresult early = enter(Entry::cuCheckpointProcessLock)) return early;
  const Page page(pid);
  if (page.get() == nullptr || !all_zero(args, sizeof(unsigned int))) return CUDA_ERROR_INVALID_VALUE;
  return change(page.get(), FAKE_PROCESS_RUNNING, FAKE_PROCESS_LOCKED);
}

CUresult CUDAAPI cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
  if (CUresult early = enter(Entry::cuCheckpointProcessCheckpoint)) return early;
  const Page page(pid);
  if (page.get() == nullptr || !all_zero(args, 0)) return CUDA_ERROR_INVALID_VALUE;
  return change(page.get(), FAKE_PROCESS_LOCKED, FAKE_PROCESS_CHECKPOINTED);
}

// As driver 580 does it: after one restore that found no memory all later ones fail, and the state stays.
CUresult CUDAAPI cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
  if (CUresult early = enter(Entry::cuCheckpointProcessRestore)) return early;
  const Page page(pid);
  if (page.get() == nullptr || !all_zero(args, 0)) return CUDA_ERROR_INVALID_VALUE;
  if (__atomic_load_n(&page->state, __ATOMIC_SEQ_CST) != FAKE_PROCESS_CHECKPOINTED) return CUDA_ERROR_ILLEGAL_STATE;
  if (__atomic_load_n(&page->stuck, __ATOMIC_SEQ_CST) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (!has_room(pid, *page.get())) {
    __atomic_store_n(&page->stuck, 1, __ATOMIC_SEQ_CST);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return change(page.get(), FAKE_PROCESS_CHECKPOINTED, FAKE_PROCESS_LOCKED);
}

CUresult CUDAAPI cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
  if (CUresult early = enter(Entry::cuCheckpointProcessUnlock)) return early;
  const Page page(pid);
  if (page.get() == nullptr || !all_zero(args, 0)) return CUDA_ERROR_INVALID_VALUE;
  return change(page.get(), FAKE_PROCESS_LOCKED, FAKE_PROCESS_RUNNING);
}

}  // extern "C"
