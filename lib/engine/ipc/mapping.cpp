// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/mapping.h"

#include <gmm/keep.h>

#include <cinttypes>
#include <cstring>
#include <utility>

#include "base/os_memory.h"
#include "base/process.h"
#include "engine/ipc/exports.h"

namespace gmm {

bool IpcMapping::is_of(const IpcHandle &handle, Device device) const {
  // A mapping of a descriptor has an empty handle, and no decoded handle has the process number 0.
  return device_ == device && handle_.exporter == handle.exporter &&
         handle_.allocation_size == handle.allocation_size && (is_own() || handle_.generation == handle.generation) &&
         std::memcmp(handle_.token, handle.token, kIpcExtentsTokenSize) == 0;
}

Status IpcMapping::check_block(const IpcHandle &handle, uint64_t timeout_ms, const IpcPolicy &policy) const {
  uintptr_t base = 0;
  if (is_own()) return own_->import_own(handle, false, &base);
  IpcConnection brief;
  IpcAnswer unused;
  return is_fabric_ ? Status() : ipc_connect(handle, IpcWant::kCheck, timeout_ms, &brief, &unused, policy);
}

// unmap() unmaps it from now on.
Status IpcMapping::adopt(Form form, void *base, uint64_t size) {
  form_ = form;
  base_ = static_cast<char *>(base);
  size_ = size;
  return Status();
}

Status IpcMapping::map_handle(uint64_t timeout_ms, const IpcPolicy &policy) {
  kind_ = handle_.kind;
  if (is_own()) {
    uintptr_t base = 0;
    GMM_TRY(own_->import_own(handle_, true, &base));
    return adopt(Form::kOwn, reinterpret_cast<void *>(base), handle_.allocation_size);
  }
  is_fabric_ = handle_.route == IpcRoute::kFabric && handle_.machine != ipc_machine();
  // The exporter's size is the handle's: the driver maps whole allocations only.
  if (is_fabric_) return map_extents(&handle_.allocation_size, 1, nullptr);
  const bool is_legacy = handle_.route == IpcRoute::kLegacy;
  const IpcWant want = is_legacy ? IpcWant::kCount : IpcWant::kDescriptors;
  IpcAnswer granted;
  GMM_TRY(ipc_connect(handle_, want, timeout_ms, &connection_, &granted, policy));
  const IpcReply &reply = granted.reply;
  if (kind_ == Kind::kVmm && reply.allocation_size != handle_.allocation_size)
    return fail(GMM_ERROR_IPC_INVALID_HANDLE,
                "gmm_ipc_import: the exporter's memory has another size than the handle says.");
  if (kind_ == Kind::kVmm) return map_extents(reply.sizes, reply.extents, granted.fds.each);
  if (!is_legacy && reply.extents != 1)
    return fail(GMM_ERROR_IPC_INVALID_HANDLE, "gmm_ipc_import: memory of this kind has one extent.");
  if (!is_legacy) return map_file(std::exchange(granted.fds.each[0], -1), handle_.allocation_size);
  void *base = nullptr;
  GMM_TRY(backend_.legacy_import(handle_.legacy, device_, &base));
  return adopt(Form::kLegacy, base, handle_.allocation_size);
}

Status IpcMapping::map_descriptor(int32_t fd, gmm_fd_type type, uint64_t size) {
  if (type == GMM_FD_OPAQUE) {
    kind_ = Kind::kVmm;
    return map_extents(&size, 1, &fd);
  }
  if (type == GMM_FD_FILE) {
    kind_ = Kind::kHost;
    // No process can shorten the file after this. An access beyond its end would end the process with SIGBUS.
    if (const int error = os::seal_against_shrinking(fd); error != 0)
      return fail_native(GMM_ERROR_INVALID_VALUE, error,
                         "gmm_ipc_import_fd(%" PRId32
                         "): the file cannot be sealed against shrinking (%s); make it with memfd_create() and "
                         "MFD_ALLOW_SEALING.",
                         fd, ErrorText(error).text);
    int32_t own_fd = -1;
    GMM_TRY(os::duplicate(fd, &own_fd));
    return map_file(own_fd, size);
  }
  kind_ = Kind::kDevice;
  GMM_TRY(backend_.external_import(fd, type, size, device_, &allocation_));
  return adopt(Form::kExternal, allocation_.base, size);
}

Status IpcMapping::map_kept(const KeptMemory &memory, const int32_t *fds, uint32_t flags) {
  kind_ = Kind::kVmm;
  is_read_only_ = (flags & GMM_ATTACH_READ_ONLY) != 0;
  void *const at = (flags & GMM_ATTACH_SAME_ADDRESS) != 0 ? reinterpret_cast<void *>(memory.base) : nullptr;
  return map_extents(memory.sizes, memory.extents, fds, at);
}

// Physical memory side by side at one address: of descriptors, or, where `fds` is NULL, of the fabric handle. `at`:
// the address; NULL: any.
Status IpcMapping::map_extents(const uint64_t *sizes, uint32_t count, const int32_t *fds, void *at) {
  void *base = at;
  GMM_TRY(at != nullptr ? backend_.reserve_at(at, handle_.allocation_size)
                        : backend_.reserve(handle_.allocation_size, &base));
  GMM_TRY(adopt(Form::kExtents, base, handle_.allocation_size));
  uint64_t mapped = 0;
  for (uint32_t i = 0; i < count; ++i) {
    MappedExtent &extent = extents_[i];
    extent.size = sizes[i];
    if (extent.size % kExtentAlignment != 0)
      return fail(GMM_ERROR_IPC_INVALID_HANDLE, "gmm_ipc_import: the exporter's memory is not of whole 2 MiB.");
    GMM_TRY(fds != nullptr ? backend_.import_fd(fds[i], extent.size, device_, &extent.physical)
                           : backend_.import_fabric(handle_.legacy, extent.size, device_, &extent.physical));
    GMM_TRY(backend_.map(base_ + mapped, extent.size, extent.physical));
    extent.is_mapped = true;
    mapped += extent.size;
  }
  return is_read_only_ ? backend_.set_read_only(base_, mapped, device_)
                       : backend_.set_access(base_, mapped, device_, 0);
}

// Owns the descriptor, also when it fails.
Status IpcMapping::map_file(int32_t own_fd, uint64_t size) {
  const Status status = backend_.import_host(own_fd, size, device_, kind_ == Kind::kHost, &allocation_);
  if (!status.ok()) {
    os::close_file(own_fd).ignore();
    return status;
  }
  return adopt(Form::kFile, allocation_.base, size);
}

Status IpcMapping::unmap() {
  switch (form_) {
    case Form::kNone:
      return Status();
    case Form::kExtents:
      GMM_TRY(unmap_extents());
      break;
    case Form::kFile:
      GMM_TRY(backend_.deallocate(allocation_));
      break;
    case Form::kLegacy:
      GMM_TRY(backend_.legacy_close(base_));
      break;
    case Form::kExternal:
      GMM_TRY(backend_.external_close(allocation_));
      break;
    case Form::kOwn:
      own_->importer_gone(handle_.allocation, true);
      break;
  }
  // The rest stays as it is until the mapping is destroyed, with the table's lock: other threads publish the table.
  return Status();
}

Status IpcMapping::unmap_extents() {
  uint64_t at = 0;
  for (MappedExtent &extent : extents_) {
    if (extent.is_mapped) GMM_TRY(backend_.unmap(base_ + at, extent.size));
    extent.is_mapped = false;
    if (extent.physical.value != 0) GMM_TRY(backend_.release(extent.physical));
    extent.physical = PhysicalHandle{};
    at += extent.size;
  }
  return backend_.unreserve(base_, size_);
}

}  // namespace gmm
