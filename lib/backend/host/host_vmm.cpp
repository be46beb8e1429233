// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: physical memory is a memory file, mapping is mmap over reserved addresses.
#include <sys/stat.h>

#include <cerrno>
#include <cinttypes>

#include "backend/host/host_class.h"
#include "backend/host/host_handle.h"
#include "base/os_memory.h"

namespace gmm {
namespace {

Status check_range(const char *what, const void *base, uint64_t size) {
  if (size == 0 || size % kExtentAlignment != 0)
    return fail(GMM_ERROR_INVALID_SIZE, "%s %" PRIu64 " bytes: not a multiple of 2 MiB; round it up.", what, size);
  if (reinterpret_cast<uintptr_t>(base) % kExtentAlignment != 0)
    return fail(GMM_ERROR_INVALID_ALIGNMENT,
                "%s memory at %p: not aligned to 2 MiB; pass an address inside a reservation.", what, base);
  return Status();
}

// The parts of a handle, when its file is still the one it was made for.
Status resolve(PhysicalHandle handle, HostHandle *out, uint64_t *size) {
  const HostHandle parts = HostHandle::unpack(handle);
  struct stat state;
  if (handle.value == 0 || fstat(parts.fd, &state) != 0 || static_cast<uint32_t>(state.st_ino) != parts.file_number)
    return fail(GMM_ERROR_INVALID_HANDLE,
                "Physical memory %#" PRIx64 ": never created, or released before; pass one that lives.", handle.value);
  *out = parts;
  *size = static_cast<uint64_t>(state.st_size);
  return Status();
}

Status make_handle(int32_t fd, uint32_t counted_device, PhysicalHandle *out) {
  struct stat state;
  if (fstat(fd, &state) != 0) return fail_native(GMM_ERROR_SYSTEM, errno, "A new memory file cannot be looked at.");
  if (fd > HostHandle::kMaxFd)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "Physical memory behind file descriptor %" PRId32 ": above %" PRId32 "; open fewer files.", fd,
                HostHandle::kMaxFd);
  *out = HostHandle{fd, counted_device, static_cast<uint32_t>(state.st_ino)}.pack();
  return Status();
}

}  // namespace

Status HostBackend::reserve(uint64_t size, void **out) {
  GMM_TRY(check_range("Reserving", nullptr, size));
  GMM_TRY(os::reserve(size, kExtentAlignment, out));
  count_call();
  return Status();
}

Status HostBackend::unreserve(void *base, uint64_t size) {
  GMM_TRY(check_range("Unreserving", base, size));
  GMM_TRY(os::unmap(base, size));
  count_call();
  return Status();
}

// What the system lets be known of a shortage is known here: see os_memory.h. Not guaranteed is that memory which
// was available when it was created still is when it is touched.
Status HostBackend::create(Device location, uint64_t size, PhysicalHandle *out) {
  GMM_TRY(check_location(location));
  GMM_TRY(check_range("Creating", nullptr, size));
  const bool counted = !location.is_host();
  if (counted) GMM_TRY(take(location, size));
  int32_t fd = -1;
  Status status = os::check_available(size, counted ? GMM_ERROR_OUT_OF_MEMORY : GMM_ERROR_OUT_OF_HOST_MEMORY);
  if (status.ok()) status = os::memory_file_create("gmm-vmm", size, &fd);
  if (status.ok())
    status = make_handle(fd, counted ? static_cast<uint32_t>(location.ordinal) : HostHandle::kNotCounted, out);
  if (!status.ok()) {
    MessageGuard guard;
    if (fd >= 0) os::close_file(fd).ignore();  // the first failure is what counts
    if (counted) give_back(location, size);
    return status;
  }
  count_call();
  return Status();
}

Status HostBackend::release(PhysicalHandle handle) {
  HostHandle parts;
  uint64_t size = 0;
  GMM_TRY(resolve(handle, &parts, &size));
  GMM_TRY(os::close_file(parts.fd));
  if (parts.counted_device < devices_) give_back(Device{static_cast<int32_t>(parts.counted_device)}, size);
  count_call();
  return Status();
}

Status HostBackend::map(void *base, uint64_t size, PhysicalHandle handle) {
  GMM_TRY(check_range("Mapping", base, size));
  HostHandle parts;
  uint64_t actual = 0;
  GMM_TRY(resolve(handle, &parts, &actual));
  if (size > actual)
    return fail(GMM_ERROR_INVALID_SIZE,
                "Mapping %" PRIu64 " bytes: the physical memory has %" PRIu64 "; map what was created.", size, actual);
  GMM_TRY(os::map_file_at(base, size, parts.fd, os::Access::kNone));
  count_call();
  return Status();
}

Status HostBackend::unmap(void *base, uint64_t size) {
  GMM_TRY(check_range("Unmapping", base, size));
  GMM_TRY(os::reserve_at(base, size));
  count_call();
  return Status();
}

Status HostBackend::set_access(void *base, uint64_t size, Device owner, uint32_t) {
  GMM_TRY(check_location(owner));
  GMM_TRY(check_range("Access to", base, size));
  GMM_TRY(os::set_access(base, size, os::Access::kReadWrite));
  count_call();
  return Status();
}

Status HostBackend::export_fd(PhysicalHandle handle, int32_t *fd) {
  HostHandle parts;
  uint64_t size = 0;
  GMM_TRY(resolve(handle, &parts, &size));
  GMM_TRY(os::duplicate(parts.fd, fd));
  count_call();
  return Status();
}

Status HostBackend::import_fd(int32_t fd, uint64_t size, Device device, PhysicalHandle *out) {
  GMM_TRY(check_device(device));
  GMM_TRY(check_range("Importing", nullptr, size));
  GMM_TRY(os::memory_file_check(fd, size));
  int32_t own = -1;
  GMM_TRY(os::duplicate(fd, &own));
  if (Status status = make_handle(own, HostHandle::kNotCounted, out); !status.ok()) {
    MessageGuard guard;
    os::close_file(own).ignore();  // the first failure is what counts
    return status;
  }
  count_call();
  return Status();
}

}  // namespace gmm
