// SPDX-License-Identifier: Apache-2.0
// The memory of other processes that is mapped into this one.
//
// Imports of the same memory for the same device share one mapping, which counts them. Each import of a descriptor is a
// mapping of its own. Queries search the mappings by address without a lock.
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
#include "engine/ipc/settings.h"
#include "engine/space/core.h"

namespace gmm {

class IpcImports {
 public:
  IpcImports(Core &core, const IpcSettings &settings)
      : core_(core),
        client_(settings.policy()),
        mappings_(core.allocator),
        table_(core.allocator),
        ranges_(core.allocator) {}

  // The handle is another context's.
  Status import_block(const IpcHandle &handle, Device device, uint64_t timeout_ms, void **out);
  Status import_descriptor(int32_t fd, gmm_fd_type type, uint64_t size, Device device, void **out);
  // Closes one import. *found: the address lies in a mapping.
  Status close(void *memory, bool *found);
  // Closes all imports and idle connections.
  void clear();

  // The mapping around an address; the functions below read its value. No lock.
  bool find(const void *address, Range *out) const { return table_.find(reinterpret_cast<uint64_t>(address), out); }
  static Kind kind(const Range &range) { return static_cast<Kind>(range.value & 0x7); }
  static Device device(const Range &range) { return Device{static_cast<int32_t>(range.value >> 4 & 0xff)}; }
  // Whether the exporter lives and has not revoked the memory; a system call. kAlive for the mapping of a descriptor,
  // which has no exporter.
  static PeerState state(const Range &range);
  // Fails with IPC_REVOKED after a revocation, and with IPC_PEER_GONE when the memory ended with the exporter.
  static Status check(const Range &range, const void *address, const char *operation);
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  Status make(Device device, IpcMapping **out);
  Status add(IpcMapping *mapping, const Status &mapped, uint64_t offset, void **out);
  bool publish();

  Core &core_;
  IpcClient client_;
  // Before the client's lock. An import waits for its exporter while it holds this lock, so only imports and closes
  // take it.
  Mutex mutex_;
  Vector<IpcMapping *> mappings_;
  RangeTable table_;      // of mappings_, for readers without a lock
  Vector<Range> ranges_;  // scratch of publish()
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace gmm
#endif
