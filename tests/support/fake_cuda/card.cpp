// SPDX-License-Identifier: Apache-2.0
// FAKE_CUDA_CARD: processes that share a device's memory. Each has an entry in the file; that of an ended one counts
// nothing.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "state.h"

namespace fake {
namespace {

struct CardEntry {
  std::atomic<int64_t> pid{0};
  std::atomic<uint64_t> used[kMaxDevices];
};
constexpr int kCardEntries = 64;

// A zombie holds nothing.
bool is_alive(int64_t pid) {
  char path[64], text[512] = {};
  snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  const char *name_end = size > 0 ? strrchr(text, ')') : nullptr;
  return name_end && name_end[1] == ' ' && name_end[2] != 'Z' && name_end[2] != 'X';
}

struct Card {
  CardEntry *entries = nullptr, *own = nullptr;
  Card() {
    const char *path = getenv("FAKE_CUDA_CARD");
    if (!path || !*path) return;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(CardEntry) * kCardEntries) != 0) abort();
    void *mapped = mmap(nullptr, sizeof(CardEntry) * kCardEntries, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) abort();
    entries = static_cast<CardEntry *>(mapped);
    for (int i = 0; i < kCardEntries && !own; i++) {
      int64_t before = entries[i].pid.load();
      if ((before && is_alive(before)) || !entries[i].pid.compare_exchange_strong(before, getpid())) continue;
      own = &entries[i];
      for (auto &used : own->used) used = 0;
    }
    if (!own) abort();
  }
  ~Card() {
    if (own) own->pid = 0;
  }
};
Card &card() {
  static Card only;
  return only;
}

}  // namespace

uint64_t used_by_all(int device) {
  Card &all = card();
  if (!all.own) return state().used[device];
  uint64_t sum = 0;
  for (int i = 0; i < kCardEntries; i++) {
    CardEntry &entry = all.entries[i];
    int64_t pid = entry.pid.load();
    uint64_t used = entry.used[device].load();
    if (pid && used && (&entry == all.own || is_alive(pid))) sum += used;
  }
  return sum;
}

// First it counts, then it looks: of two that do not fit together at least one sees the other.
bool charge_card(int device, uint64_t bytes) {
  Card &all = card();
  if (!all.own) return true;
  all.own->used[device] += bytes;
  if (used_by_all(device) <= state().configuration.memory) return true;
  all.own->used[device] -= bytes;
  return false;
}

void uncharge_card(int device, uint64_t bytes) {
  if (card().own) card().own->used[device] -= bytes;
}

}  // namespace fake
