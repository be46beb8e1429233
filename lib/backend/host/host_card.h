// SPDX-License-Identifier: Apache-2.0
// The memory of host devices that several processes share, as they share a GPU: GMM_HOST_CARD names its file.
//
// Owns: a mapping of that file, and one entry in it. The file has the size of a device and, for each backend
// that lives, the bytes that it has taken. So each process measures the free memory, and an allocation that does not
// fit is refused. An entry of a process that has ended counts nothing and is given away.
//
// Two processes that take the last bytes at one moment may both be refused. Neither gets the other one's bytes.
//
// Locks: none; the entries are atomic.
// Callers: HostBackend.
#ifndef GMM_BACKEND_HOST_HOST_CARD_H
#define GMM_BACKEND_HOST_HOST_CARD_H

#include <atomic>

#include "base/status.h"

namespace gmm {

class HostCard : NoCopy {
 public:
  static constexpr uint32_t kDevices = 16, kEntries = 64;

  HostCard() = default;

  // `*memory`: bytes of a device. The first process says them, and all others have the same.
  Status open(const char *path, uint64_t *memory);
  void close();  // not in a forked child, whose parent has the entry
  bool is_open() const { return file_ != nullptr; }
  // False: it does not fit.
  bool take(uint32_t device, uint64_t size, uint64_t memory);
  void give_back(uint32_t device, uint64_t size) { own_->taken[device].fetch_sub(size, std::memory_order_relaxed); }
  // By all processes.
  uint64_t taken(uint32_t device) const;

 private:
  struct Entry {
    std::atomic<uint64_t> process{0};  // 0: the entry is free
    std::atomic<uint64_t> taken[kDevices];
  };
  struct File {
    uint64_t magic = 0;
    uint64_t memory = 0;
    Entry entries[kEntries];
  };
  Status map(int32_t fd, const char *path, uint64_t *memory);
  static bool has_ended(uint64_t process);

  File *file_ = nullptr;
  Entry *own_ = nullptr;
};

}  // namespace gmm
#endif
