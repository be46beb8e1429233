// SPDX-License-Identifier: Apache-2.0
// Plain allocations.
#include <sys/mman.h>

#include <cinttypes>

#include "backend/host/host_class.h"
#include "base/os_memory.h"

namespace gmm {
namespace {

constexpr const char *kFileNames[kKindCount] = {"", "gmm-device", "gmm-vmm", "gmm-host", "gmm-managed"};

// A file of its own behind each allocation, so that another process can map it.
Status map_new_file(Kind kind, uint64_t size, Allocation *out) {
  int32_t fd = -1;
  GMM_TRY(os::memory_file_create(kFileNames[static_cast<uint32_t>(kind)], size, &fd));
  void *base = nullptr;
  if (Status status = os::map_file(size, kExtentAlignment, fd, os::Access::kReadWrite, &base); !status.ok()) {
    MessageGuard guard;
    os::close_file(fd).ignore();  // the failure to map is what counts
    return status;
  }
  out->base = base;
  out->fd = fd;
  return Status();
}

Status check_size(uint64_t size) {
  if (size != 0 && size % kExtentAlignment == 0) return Status();
  return fail(GMM_ERROR_INVALID_SIZE, "%" PRIu64 " bytes of host memory: not a multiple of 2 MiB; round it up.", size);
}

}  // namespace

Status HostBackend::allocate(Kind kind, Device device, uint64_t size, Allocation *out) {
  GMM_TRY(check_device(device));
  GMM_TRY(check_size(size));
  Allocation made;
  made.kind = kind;
  made.device = device;
  made.size = size;
  switch (kind) {
    case Kind::kDevice: {
      GMM_TRY(take(device, size));
      Status status = os::check_available(size, GMM_ERROR_OUT_OF_MEMORY);
      if (status.ok()) status = map_new_file(kind, size, &made);
      if (!status.ok()) {
        give_back(device, size);
        return status;
      }
      break;
    }
    case Kind::kHost:
      GMM_TRY(os::check_available(size, GMM_ERROR_OUT_OF_HOST_MEMORY));
      GMM_TRY(map_new_file(kind, size, &made));
      lock_if_allowed(made.base, size);
      break;
    case Kind::kManaged: {
      GMM_TRY(os::check_available(size, GMM_ERROR_OUT_OF_MEMORY));
      GMM_TRY(os::map_anonymous(size, kExtentAlignment, &made.base));
      MessageGuard guard;
      os::advise_pages(made.base, size, MADV_HUGEPAGE).ignore();  // kernels without huge pages have none to give
      break;
    }
    default:
      return fail(GMM_ERROR_INVALID_KIND,
                  "A plain host allocation of kind %" PRIu32 ": there are DEVICE, HOST and MANAGED.",
                  static_cast<uint32_t>(kind));
  }
  count_call();
  made.driver_base = made.base;
  made.driver_size = size;
  *out = made;
  return Status();
}

Status HostBackend::deallocate(const Allocation &allocation) {
  GMM_TRY(os::unmap(allocation.base, allocation.size));
  count_call();
  if (allocation.kind == Kind::kDevice && has(allocation.device)) give_back(allocation.device, allocation.size);
  return allocation.fd < 0 ? Status() : os::close_file(allocation.fd);
}

Status HostBackend::import_host(int32_t fd, uint64_t size, Device device, bool locked, Allocation *out) {
  GMM_TRY(check_device(device));
  if (size == 0 || size % os::page_size() != 0)
    return fail(GMM_ERROR_INVALID_SIZE, "%" PRIu64 " bytes of another process's memory: not a multiple of the page.", size);
  GMM_TRY(os::memory_file_check(fd, size));
  Allocation made;
  GMM_TRY(os::map_file(size, kExtentAlignment, fd, os::Access::kReadWrite, &made.base));
  count_call();
  if (locked) lock_if_allowed(made.base, size);
  made.kind = Kind::kHost;
  made.device = device;
  made.size = made.driver_size = size;
  made.driver_base = made.base;
  made.fd = fd;
  *out = made;
  return Status();
}

}  // namespace gmm
