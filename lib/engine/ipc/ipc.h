// SPDX-License-Identifier: Apache-2.0
// Sharing with other processes: which allocations were exported, and what was imported.
//
// What the system shares is an extent, or, for a VMM block that lies over several, a run of extents. An export is one block, for as
// long as it lives; exports in one run of extents carry the same token, by which an importer knows that it has the
// memory mapped already. Piece k of a run is asked for under the export's id with k in its top 16 bits, so every reply carries one
// descriptor. Events are exported beside the memory, under ids of the same sequence. Importers are counted on the extents by their open connections (ipc_broker.h), so a killed importer is
// counted down by the system. A block that is freed while importers hold its extent is kept aside until they are gone.
#ifndef GMM_ENGINE_IPC_IPC_H
#define GMM_ENGINE_IPC_IPC_H

#include <gmm/ipc.h>

#include "base/lock.h"
#include "base/range_table.h"
#include "base/vector.h"
#include "engine/heap/block.h"
#include "engine/heap/heap_set.h"
#include "engine/ipc/broker.h"
#include "engine/ipc/client.h"
#include "engine/ipc/event.h"

namespace gmm {

class Sharing {
 public:
  Sharing(Core &core, HeapSet &heaps);
  ~Sharing() { clear(); }

  // Before the first export and import.
  Status configure(const IpcPolicy &policy);

  Status export_block(const void *memory, gmm_ipc_handle *out);
  Status export_fd(const void *memory, gmm_fd_type type, int32_t *fd, uint64_t *offset, uint64_t *size);
  Status export_legacy(const void *memory, gmm_ipc_legacy_handle *out, uint64_t *offset, uint64_t *size);
  Status import_block(const gmm_ipc_handle &bytes, Device device, uint32_t timeout_ms, void **out);
  Status import_fd(int32_t fd, gmm_fd_type type, uint64_t size, Device device, void **out);
  Status close(void *memory);

  // Events (ipc_event.cpp). What is made here ends with end_event(), what was imported with end_import().
  Status create_event(Device device, SharedEvent **out);
  Status export_event(SharedEvent &event, gmm_ipc_handle *out);
  // Of another process's event *import is set; of this process's own, *event, once more.
  Status import_event(const gmm_ipc_handle &bytes, Device device, uint32_t timeout_ms, EventImport **import,
                      SharedEvent **event);
  Status end_event(SharedEvent *event);
  Status end_import(EventImport *import);

  // After a forced pause: importers of what was paused are told, and counted no more.
  void revoke_paused();

  // The import around an address; the functions below read its value. No lock.
  bool find(const void *address, Range *out) const { return table_.find(reinterpret_cast<uint64_t>(address), out); }
  static Kind import_kind(const Range &range) { return static_cast<Kind>(range.value & 0x7); }
  static Device import_device(const Range &range) { return Device{static_cast<int32_t>(range.value >> 4 & 0xff)}; }
  // What became of the exporter; a system call. kAlive for a descriptor, which has none.
  static PeerState import_state(const Range &range);
  // IPC_REVOKED; and IPC_PEER_GONE where the memory went with the exporter.
  static Status check_import(const Range &range, const void *address, const char *operation);
  uint64_t imported_bytes() const { return imported_bytes_.load(std::memory_order_relaxed); }
  // GMM_IPC_ROUTE_* bits of a live block.
  uint32_t routes(const Block &block) const;
  // Ends the broker and all imports.
  void clear();

 private:
  static constexpr uint32_t kMaxPieces = 16;
  static constexpr uint32_t kPieceShift = 48;  // where a piece's number stands in the id that is asked for
  static constexpr uint64_t kPlainId = (uint64_t{1} << kPieceShift) - 1;
  struct Export {
    uint64_t id;
    uint8_t token[kIpcTokenSize];
    uintptr_t block;
    uintptr_t base;  // of the run of extents
    uint64_t size;
    uint64_t granted_generation;  // of the last grant
    uint32_t pieces;
    uint32_t importers;  // granted to other processes, all pieces together
    uint32_t self_imports;
    uint64_t extents[kMaxPieces];  // ids, so that later memory at the address is told apart
  };
  // What exports in one run of extents have in common.
  struct Run {
    uint64_t first, last;  // ids of extents
    uint8_t token[kIpcTokenSize];
    uint8_t legacy[kLegacyHandleSize];  // the driver's, once asked for
    bool has_legacy;
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
    bool from_fd = false;   // no exporter is known, and nothing is shared with another import
    bool external = false;  // of another library: external_close()
  };

  static Status resolve(void *self, uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out);
  static void importer_gone(void *self, uint64_t id);
  Extent *piece_of(const Export &entry, uint32_t piece, uintptr_t *base) const;
  Status start_broker();
  Export *export_of(uint64_t id);
  SharedEvent *event_of(uint64_t id);
  Status find_export(const Block &block, Export *out);
  Run *run_of(const Export &entry);
  Status make_run(const Export &entry, Run **out);
  Status legacy_handle(Run &run, void *driver_base);
  bool stale(const Export &entry) const;
  bool block_lives(const Export &entry) const;
  void drop_stale();
  Status resolve_event(SharedEvent &event, IpcGrant *out);
  void finish_event(uint64_t index);
  void end_events();
  Status find_own_event(const IpcHandle &handle, SharedEvent **out);
  Status open_extent(const Heap &heap, const Extent &extent, int32_t *fd);
  Status map_fd(Import &import, int32_t fd, gmm_fd_type type);
  // Enters a mapped import into the lists; or takes it away again.
  Status enter_import(Import *import, Status status, uint64_t offset, void **out);
  Status make_import(Import **out);
  // The connection for one piece of an import.
  Status connect(Import &import, uint32_t piece, IpcWant want, uint32_t timeout_ms, int32_t *fd,
                 IpcMeanwhile meanwhile = IpcMeanwhile());
  Status map_import(Import &import, uint32_t timeout_ms);
  Status map_vmm(Import &import, uint32_t timeout_ms);
  Status unmap_import(Import &import);
  Status find_own(const IpcHandle &handle, void **out);
  Status close_own(const void *memory);
  bool publish();

  Core &core_;
  HeapSet &heaps_;
  IpcPolicy policy_;
  IpcBroker broker_;
  IpcEndpoint endpoint_;
  Mutex mutex_;           // exports; before HeapSet::mutex
  Mutex import_mutex_;    // imports; an import waits for another process, so it is a lock of its own
  bool serving_ = false;  // guarded by mutex_: the broker runs, and endpoint_ is known
  bool settled_ = false;  // guarded by mutex_: the policy is in use
  uint64_t next_id_ = 1;
  Vector<Export> exports_;  // ascending by id
  uint64_t sweep_at_ = 64;  // exports at which those of freed memory are dropped
  Vector<Run> runs_;        // ascending by first, last
  Vector<SharedEvent *> events_;
  Vector<Import *> imports_;
  IpcClient client_{policy_};
  RangeTable table_;
  Vector<Range> ranges_;
  std::atomic<uint64_t> imported_bytes_{0};
};

}  // namespace gmm
#endif
