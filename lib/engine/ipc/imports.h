// SPDX-License-Identifier: Apache-2.0
// The memory of other processes that is mapped into this one, and the memory of this context that it imported itself.
//
// Imports of the same memory for the same device share one mapping. The mapping knows which blocks of it were imported
// and counts the imports of each; it goes with the last one. Each import of a descriptor is a mapping of its own, with
// one block. Queries search mappings and blocks by address without a lock.
//
// A mapping that a thread maps or unmaps stands in the table, so other imports of the same memory wait for that thread.
#ifndef GMM_ENGINE_IPC_IMPORTS_H
#define GMM_ENGINE_IPC_IMPORTS_H

#include <gmm/ipc.h>

#include <atomic>

#include "base/lock.h"
#include "base/peer.h"
#include "base/range_table.h"
#include "base/vector.h"
#include "engine/ipc/client.h"
#include "engine/ipc/mapping.h"
#include "engine/ipc/policy.h"
#include "engine/space/core.h"

namespace gmm {

class IpcImports {
 public:
  IpcImports(Core &core, const IpcSettings &settings)
      : core_(core),
        policy_(settings.policy()),
        mappings_(core.allocator),
        blocks_(core.allocator),
        mapping_table_(core.allocator),
        block_table_(core.allocator),
        ranges_(core.allocator) {}

  // `own`: this context's exports, if it made the handle; else NULL.
  Status import_block(const IpcHandle &handle, Device device, uint64_t timeout_ms, IpcExports *own, void **out);
  Status import_descriptor(int32_t fd, gmm_fd_type type, uint64_t size, Device device, void **out);
  // Maps published memory, which lies on the device. The socket is the mapping's, also when it fails.
  Status attach(const KeptMemory &memory, const int32_t *fds, Device device, uint32_t flags, int32_t socket,
                void **out);
  // Closes one import of the block around the address. *found: the address lies in a mapping.
  Status close(void *memory, bool *found);
  // Closes all imports. No other thread uses the table.
  void clear();

  // The mapping around an address; the functions below read its value. No lock.
  bool find(const void *address, Range *out) const {
    return mapping_table_.find(reinterpret_cast<uint64_t>(address), out);
  }
  static Kind kind(const Range &range) { return static_cast<Kind>(range.value & 0x7); }
  static Device device(const Range &range) { return Device{static_cast<int32_t>(range.value >> 4 & 0x7f)}; }
  static bool is_read_only(const Range &range) { return (range.value >> 11 & 1) != 0; }
  // The socket that counts the mapping; -1: there is none.
  static int32_t connection(const Range &range);
  // Whether the exporter lives and has not revoked the memory; a system call. kAlive for the mapping of a descriptor,
  // which has no exporter.
  static PeerState state(const Range &range);
  // Fails with IPC_REVOKED after a revocation, and with IPC_PEER_GONE when the memory ended with the exporter.
  static Status check(const Range &range, const void *address, const char *operation);
  // The imported block around an address. No lock.
  bool find_block(const void *address, Range *out) const {
    return block_table_.find(reinterpret_cast<uint64_t>(address), out);
  }
  // check(), and INVALID_SIZE unless [address, address + size) lies in an imported block; INVALID_VALUE: it `writes` to
  // memory that is attached read-only.
  Status check_operand(const Range &range, const void *address, uint64_t size, bool writes,
                       const char *operation) const;
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct ImportedBlock {
    uint64_t base, size;
    IpcMapping *mapping;
    uint8_t token[kIpcTokenSize];
    uint64_t imports;  // that were not closed
  };

  IpcMapping *find_mapping(const IpcHandle &handle, Device device);
  ImportedBlock *find_imported(const IpcMapping &mapping, const uint8_t token[kIpcTokenSize]);
  template <typename Fn>
  Status add_mapping(IpcMapping *mapping, Fn map, void **out);
  Status add_to_mapping(IpcMapping &mapping, const IpcHandle &handle, uint64_t deadline, void **out);
  Status add_block(IpcMapping &mapping, const IpcHandle &handle);
  Status close_mapping(IpcMapping *mapping);
  void undo(IpcMapping *mapping);
  void remove(IpcMapping *mapping);
  int64_t blocks_of(const IpcMapping &mapping) const;
  bool reserve_tables();
  void publish();
  void publish_ranges(RangeTable *table);

  Core &core_;
  const IpcPolicy &policy_;
  Mutex mutex_{LockRank::kIpcImports};  // held for looks at the tables only
  Condition changed_;                   // a mapping was mapped or removed
  Vector<IpcMapping *> mappings_;
  Vector<ImportedBlock> blocks_;  // ascending by base
  RangeTable mapping_table_;      // of mappings_ that are mapped, for readers without a lock
  RangeTable block_table_;        // of blocks_; in both, those that overlap are one range
  Vector<Range> ranges_;          // scratch of publish()
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace gmm
#endif
