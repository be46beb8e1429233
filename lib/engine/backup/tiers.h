// SPDX-License-Identifier: Apache-2.0
// Kept contents, the chunks that they consist of, and the tiers that chunks lie in.
//
// A tier is a place for chunks: the page-locked arena, pageable memory, a backup file. BackupTiers owns one of each,
// and the copy threads. Transfers that run at the same time share them.
#ifndef GMM_ENGINE_BACKUP_TIERS_H
#define GMM_ENGINE_BACKUP_TIERS_H

#include "base/vector.h"
#include "engine/backup/arena.h"
#include "engine/backup/copy_threads.h"
#include "engine/backup/file.h"
#include "engine/backup/pageable.h"
#include "engine/backup/settings.h"
#include "engine/backup/staging.h"

namespace gmm {

// The most bytes of a chunk, 4 MiB. A chunk is the unit of the search for zeros, of a checksum, of a staging slot and
// of a request to a file. At 55 GB/s its copy takes 75 us: long against the start of a copy (3 us) and a request to a
// disk. The slots of the 24 in-flight batches together take 96 MiB of page-locked memory.
inline constexpr uint64_t kMaxChunk = uint64_t{4} << 20;

// Bytes that a chunk takes in a tier: blocks of direct I/O.
constexpr uint64_t size_in_tier(uint64_t chunk_size) { return (chunk_size + 4095) & ~uint64_t{4095}; }

// kZero: the contents are all zero and take no memory.
enum class Tier : uint32_t { kZero, kArena, kPageable, kFile };

struct Chunk {
  uintptr_t base = 0;
  uint64_t size = 0;
  Tier tier = Tier::kZero;
  bool has_checksum = false;
  uint64_t location = 0;  // offset in the arena or pageable memory; of a file, as BackupFile defines it
  uint64_t checksum = 0;  // chunk_checksum() of the bytes

  uintptr_t end() const { return base + size; }
  // True too when there is no checksum.
  bool matches_checksum(const char *bytes) const;
};

// The kept contents of one extent: chunks by address, which do not overlap. The store that filled it must empty it.
struct KeptContents {
  explicit KeptContents(const HostAllocator &allocator) : chunks(allocator) {}
  // The index of the first chunk that ends behind the address.
  uint64_t first_chunk_behind(uintptr_t address) const;

  Vector<Chunk> chunks;
  // Tag::epoch when they were saved. In a later epoch a resume still restores them, but no pause takes them for what
  // the memory holds since.
  uint64_t epoch = 0;
  static constexpr uint64_t kNoEpoch = UINT64_MAX;  // no pause ever takes them
  // The memory is active, and its contents of the last pause can still be read.
  bool is_retained = false;
};

// The CORRUPT of a chunk whose bytes do not match their checksum.
Status corrupt_chunk(const Chunk &chunk);
// Puts the chunk's addresses in front of the thread's message.
Status name_chunk(Status status, const Chunk &chunk);

struct BackupTiers {
  explicit BackupTiers(Core &core)
      : core(core),
        threads(core.log, 0),
        file_threads(core.log, kFileThreads),
        arena(core, threads),
        pageable(core),
        file(core) {}

  // True: the device copies to and from the tier itself, without a staging slot.
  bool is_direct(Tier tier) const;
  // Where a chunk of the arena or of pageable memory lies.
  char *address(const Chunk &chunk) const;
  // The threads that move bytes between staging slots and the tier.
  CopyThreads &threads_of(Tier tier);

  // Allocates a range for the chunk in the first tier of host memory that has one, right behind the chunk `previous`
  // when it can. False: the file tier must take the chunk.
  [[nodiscard]] bool allocate_in_host_memory(const BackupLimits &limits, bool may_use_arena, const Chunk *previous,
                                             Chunk *chunk);
  // The chunk's range is free again.
  void free(const Chunk &chunk);
  // A committed chunk counts in kept_bytes until it is dropped, which frees its range.
  void count_kept(const Chunk &chunk);
  void drop_kept(const Chunk &chunk);

  // The device may still copy to or from host memory of the tiers: that memory is never used again and never freed.
  void abandon_host_memory();

  // Requests to a disk at the same time. A thread waits for each, so the number of cores does not bound them.
  static constexpr uint32_t kFileThreads = 16;

  Core &core;
  BackupSettings settings;
  CopyThreads threads, file_threads;
  BackupArena arena;
  BackupPageable pageable;
  BackupFile file;

  std::atomic<uint64_t> kept_bytes[4] = {};  // by tier
  std::atomic<uint64_t> copied_bytes{0}, skipped_bytes{0};
  std::atomic<bool> has_warned_of_zeros{false};
};

}  // namespace gmm
#endif
