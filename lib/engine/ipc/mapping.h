// SPDX-License-Identifier: Apache-2.0
// The memory of one import as it is mapped into this process, with the connection that counts it.
#ifndef GMM_ENGINE_IPC_MAPPING_H
#define GMM_ENGINE_IPC_MAPPING_H

#include <gmm/ipc.h>

#include "backend/backend.h"
#include "engine/ipc/client.h"
#include "engine/ipc/handle.h"
#include "engine/ipc/keep_messages.h"

namespace gmm {

class IpcExports;

class IpcMapping : NoCopy {
 public:
  // Whether the table's other threads may use the mapping; guarded by the table's lock.
  enum class Phase : uint8_t {
    kMapping,  // one thread maps it, without the lock
    kMapped,
    kUnmapping  // one thread unmaps it, without the lock
  };

  // `handle`: of the first import; of a descriptor it has the sizes only. `own`: the exports of the context, which made
  // the handle, so its memory is mapped already.
  IpcMapping(Backend &backend, Device device, const IpcHandle &handle, IpcExports *own)
      : backend_(backend), device_(device), handle_(handle), own_(own) {}

  // Each maps once. unmap() removes what a failure left.
  // Connects to the exporter, and waits for its answer.
  Status map_handle(uint64_t timeout_ms, const IpcPolicy &policy);
  // `fd` stays the caller's. `type` is not GMM_FD_DEFAULT.
  Status map_descriptor(int32_t fd, gmm_fd_type type, uint64_t size);
  // Published memory, by GMM_ATTACH_* flags.
  Status map_kept(const KeptMemory &memory, const int32_t *fds, uint32_t flags);
  // The mapping owns the socket, which counts it.
  void own(int32_t socket) { connection_.peer.connection = socket; }
  // Unmaps everything, then ends the connection. When the driver refuses a step, a later call goes on with it.
  Status unmap();

  // Whether the handle means the memory that is mapped here: a block in it, which may be another one or freed.
  bool is_of(const IpcHandle &handle, Device device) const;
  // Asks the exporter whether the block of such a handle lives.
  Status check_block(const IpcHandle &handle, uint64_t timeout_ms, const IpcPolicy &policy) const;
  char *base() const { return base_; }
  uint64_t size() const { return size_; }
  Kind kind() const { return kind_; }
  Device device() const { return device_; }
  const IpcHandle &handle() const { return handle_; }
  bool is_read_only() const { return is_read_only_; }
  bool is_own() const { return own_ != nullptr; }
  // The driver maps it; the memory ends with the exporter.
  bool is_legacy() const { return form_ == Form::kLegacy; }
  // It counts this process as an importer, and watches the exporter's process. None for a descriptor.
  const IpcConnection &connection() const { return connection_; }

  Phase phase = Phase::kMapping;
  uint32_t checks = 0;  // imports that wait for the exporter's word on a further block; guarded by the table's lock

 private:
  enum class Form : uint8_t {
    kNone,
    kExtents,   // VMM memory: one range of addresses, with the physical memory of each extent
    kFile,      // HOST memory, and all memory of the host backend: allocation_
    kLegacy,    // DEVICE memory that the driver mapped for the legacy handle
    kExternal,  // memory of another library: allocation_
    kOwn,       // memory of this context
  };
  struct MappedExtent {
    PhysicalHandle physical;
    uint64_t size = 0;
    bool is_mapped = false;
  };

  Status adopt(Form form, void *base, uint64_t size);
  Status map_extents(const uint64_t *sizes, uint32_t count, const int32_t *fds, void *at = nullptr);
  Status map_file(int32_t own_fd, uint64_t size);
  Status unmap_extents();

  Backend &backend_;
  const Device device_;  // of this process, that uses the memory
  const IpcHandle handle_;
  IpcExports *const own_;
  Form form_ = Form::kNone;
  Kind kind_ = Kind::kUnspecified;
  bool is_read_only_ = false;
  bool is_fabric_ = false;  // the memory of another machine, by the driver's fabric handle: no exporter counts it
  char *base_ = nullptr;
  uint64_t size_ = 0;
  IpcConnection connection_;
  MappedExtent extents_[kIpcMaxExtents];
  Allocation allocation_;
};

}  // namespace gmm
#endif
