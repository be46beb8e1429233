// SPDX-License-Identifier: Apache-2.0
// The tiers together, and which of them a chunk goes to.
#ifndef GMM_ENGINE_BACKUP_TIERS_H
#define GMM_ENGINE_BACKUP_TIERS_H

#include "engine/backup/arena.h"
#include "engine/backup/buffer.h"
#include "engine/backup/copy_threads.h"
#include "engine/backup/file.h"
#include "engine/backup/pageable.h"
#include "engine/backup/settings.h"

namespace gmm {

struct Chunk;
enum class Tier : uint32_t;

struct BackupTiers {
  explicit BackupTiers(Core &core)
      : core(core),
        threads(core.log, 0),
        requests(core.log, kRequests),
        arena(core, threads),
        pageable(core),
        file(core),
        ring(core),
        probes(core) {}

  // In host memory, and a copy of the backend may touch it there: no staging.
  bool is_direct(Tier tier) const;
  // Where a chunk of a tier in host memory lies.
  char *address(const Chunk &chunk) const;
  // Who does what a copy between the device and the tier leaves to do.
  BackupThreads &threads_of(Tier tier);
  // The room of a chunk is free again; `counted`: it was kept.
  void give(const Chunk &chunk, bool counted);
  void count(const Chunk &chunk);

  // Requests to a disk that are under way at once. A thread waits for each, so they are not bound by the number of cores.
  static constexpr uint32_t kRequests = 16;

  Core &core;
  BackupSettings settings;
  BackupThreads threads, requests;
  BackupArena arena;
  BackupPageable pageable;
  BackupFile file;
  BackupBuffer ring;    // slots of a chunk each, for what is not direct
  BackupBuffer probes;  // what the devices are asked about zeros

  std::atomic<uint64_t> held[4] = {};  // bytes of kept contents, by tier
  std::atomic<uint64_t> copied{0}, skipped{0};
  std::atomic<bool> cannot_find_zeros{false};  // said so already
};

}  // namespace gmm
#endif
