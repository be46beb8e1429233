// SPDX-License-Identifier: Apache-2.0
#include "ledger.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "state.h"

namespace fake {
namespace {

std::atomic<fake_ledger *> ledger{nullptr};
std::atomic<fake_ledger_process *> own{nullptr};

template <class Number>
Number get(const Number &number) {
  return __atomic_load_n(&number, __ATOMIC_SEQ_CST);
}

// A zombie holds nothing.
bool is_alive(int32_t pid) {
  char path[64], text[512] = {};
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  const char *name_end = size > 0 ? strrchr(text, ')') : nullptr;
  return name_end && name_end[1] == ' ' && name_end[2] != 'Z' && name_end[2] != 'X';
}

// Nobody's, or that of an ended process or of this one's image before exec.
bool take(fake_ledger_process &process) {
  int32_t before = get(process.pid);
  if (before != 0 && before != getpid() && is_alive(before)) return false;
  if (!__atomic_compare_exchange_n(&process.pid, &before, -1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return false;
  process.state = CU_PROCESS_STATE_RUNNING;
  process.stuck = 0;
  memset(process.used, 0, sizeof process.used);
  memset(process.contexts, 0, sizeof process.contexts);
  __atomic_store_n(&process.pid, getpid(), __ATOMIC_SEQ_CST);
  return true;
}

// Calls fn(const fake_ledger_process &) for each process that lives and is not checkpointed.
template <class Fn>
void for_each_holder(Fn fn) {
  const fake_ledger *all = ledger;
  for (int i = 0; all != nullptr && i < FAKE_LEDGER_PROCESSES; ++i) {
    const fake_ledger_process &process = all->processes[i];
    const int32_t pid = get(process.pid);
    if (pid > 0 && get(process.state) < CU_PROCESS_STATE_CHECKPOINTED && (pid == getpid() || is_alive(pid)))
      fn(process);
  }
}

uint64_t with_context(const fake_ledger_process &process, int device) {
  return get(process.used[device]) + (get(process.contexts[device]) ? FAKE_LEDGER_CONTEXT_BYTES : 0);
}

}  // namespace

void open_ledger(State &state) {
  const char *path = getenv("FAKE_CUDA_LEDGER");
  if (path == nullptr || *path == 0) return;
  const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(fake_ledger)) != 0) abort();
  void *mapped = mmap(nullptr, sizeof(fake_ledger), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped == MAP_FAILED) abort();
  fake_ledger *all = static_cast<fake_ledger *>(mapped);
  int place = 0;
  while (place < FAKE_LEDGER_PROCESSES && !take(all->processes[place])) ++place;
  if (place == FAKE_LEDGER_PROCESSES) abort();
  static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t) && kMaxDevices == FAKE_LEDGER_DEVICES);
  state.used = reinterpret_cast<std::atomic<uint64_t> *>(all->processes[place].used);
  own = &all->processes[place];
  ledger = all;
}

uint64_t used_by_all(int device) {
  if (ledger == nullptr) return state().used[device];
  uint64_t sum = 0;
  for_each_holder([&](const fake_ledger_process &process) { sum += get(process.used[device]); });
  return sum;
}

bool has_room_for(const fake_ledger_process &process) {
  for (int i = 0; i < FAKE_LEDGER_DEVICES; ++i) {
    uint64_t bytes = with_context(process, i);
    if (bytes == 0) continue;
    for_each_holder(
        [&](const fake_ledger_process &other) { bytes += &other == &process ? 0 : with_context(other, i); });
    if (bytes > state().configuration.memory) return false;
  }
  return true;
}

fake_ledger_process *find_process(int pid) {
  fake_ledger *all = ledger;
  for (int i = 0; all != nullptr && pid > 0 && i < FAKE_LEDGER_PROCESSES; ++i)
    if (get(all->processes[i].pid) == pid) return is_alive(pid) ? &all->processes[i] : nullptr;
  return nullptr;
}

void note_context(int device, bool is_live) {
  if (fake_ledger_process *process = own) __atomic_store_n(&process->contexts[device], is_live, __ATOMIC_SEQ_CST);
}

void wait_while_locked() {
  const fake_ledger_process *process = own;
  while (process != nullptr && get(process->state) != CU_PROCESS_STATE_RUNNING) usleep(200);
}

}  // namespace fake
