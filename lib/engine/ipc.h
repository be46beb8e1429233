// SPDX-License-Identifier: Apache-2.0
// Sharing with other processes: which allocations were exported, and what was imported.
//
// What the system shares is an extent, or, for a VMM block that lies over several, a run of extents. An export is one block, for as
// long as it lives; exports in one run of extents carry the same token, by which an importer knows that it has the
// memory mapped already. Piece k of a run is asked for under the export's id with k in its top 16 bits, so every reply carries one
// descriptor. Importers are counted on the extents by their open connections (ipc_broker.h), so a killed importer is
// counted down by the system. A block that is freed while importers hold its extent is kept aside until they are gone.
#ifndef GMM_ENGINE_IPC_H
#define GMM_ENGINE_IPC_H

#include <gmm/ipc.h>

#include "base/lock.h"
#include "base/range_table.h"
#include "base/vector.h"
#include "engine/heap_set.h"
#include "engine/ipc_broker.h"
#include "engine/ipc_client.h"
#include "engine/lookup.h"

namespace gmm {

class Sharing {
 public:
  Sharing(Core &core, HeapSet &heaps);
  ~Sharing() { clear(); }

  Status export_block(const void *memory, gmm_ipc_handle *out);
  Status export_fd(const void *memory, int32_t *fd, uint64_t *offset, uint64_t *size);
  Status import_block(const gmm_ipc_handle &bytes, Device device, uint32_t timeout_ms, void **out);
  Status close(void *memory);

  // The import around an address; import_kind() and import_device() read its value. No lock.
  bool find(const void *address, Range *out) const { return table_.find(reinterpret_cast<uint64_t>(address), out); }
  static Kind import_kind(const Range &range) { return static_cast<Kind>(range.value & 0xff); }
  static Device import_device(const Range &range) { return Device{static_cast<int32_t>(range.value >> 8)}; }
  uint64_t imported_bytes() const { return imported_bytes_.load(std::memory_order_relaxed); }
  // GMM_IPC_ROUTE_* bits of a live block.
  uint32_t routes(const Block &block) const;
  // Ends the broker and all imports.
  void clear();

 private:
  static constexpr uint32_t kMaxPieces = 16;
  static constexpr uint32_t kPieceShift = 48;  // where a piece's number stands in the id that is asked for
  struct Export {
    uint64_t id;
    uint8_t token[kIpcTokenSize];
    uintptr_t block;
    uintptr_t base;  // of the run of extents
    uint64_t size;
    uint32_t pieces;
    uint32_t importers;  // granted to other processes, all pieces together
    uint32_t self_imports;
    uint64_t extents[kMaxPieces];  // ids, so that later memory at the address is told apart
  };
  struct Piece {
    PhysicalHandle physical;  // VMM
    uint64_t size = 0;
    bool mapped = false;
    IpcConnection connection;
  };
  struct Import {
    IpcHandle handle;  // as it was first imported; names the export
    Device device;     // the importer's
    char *base = nullptr;
    uint64_t size = 0;
    uint64_t references = 1;
    Piece pieces[kMaxPieces];
    Allocation allocation;  // kinds that are one allocation
  };

  static Status resolve(void *self, uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out);
  static void importer_gone(void *self, uint64_t id);
  Extent *piece_of(const Export &entry, uint32_t piece, uintptr_t *base) const;
  Status find_export(const Block &block, Export *out);
  bool stale(const Export &entry) const;
  Status connect(Import &import, uint32_t piece, IpcWant want, uint32_t timeout_ms, int32_t *fd);
  Status map_import(Import &import, uint32_t timeout_ms);
  Status map_vmm(Import &import, uint32_t timeout_ms);
  Status unmap_import(Import &import);
  Status find_own(const IpcHandle &handle, void **out);
  Status close_own(const void *memory);
  bool publish();

  Core &core_;
  HeapSet &heaps_;
  IpcBroker broker_;
  IpcEndpoint endpoint_;
  Mutex mutex_;         // exports; before HeapSet::mutex
  Mutex import_mutex_;  // imports; an import waits for another process, so it is a lock of its own
  uint64_t next_id_ = 1;
  Vector<Export> exports_;
  Vector<Import *> imports_;
  RangeTable table_;
  Vector<Range> ranges_;
  std::atomic<uint64_t> imported_bytes_{0};
};

}  // namespace gmm
#endif
