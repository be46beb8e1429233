// SPDX-License-Identifier: Apache-2.0
// Descriptors of memory: for other libraries, and from them.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>

#include "base/os_memory.h"
#include "engine/ipc/ipc.h"

namespace gmm {
namespace {

const char *type_name(gmm_fd_type type) {
  constexpr const char *kNames[] = {"DEFAULT", "OPAQUE", "FILE", "DMA_BUF", "VULKAN"};
  return type < sizeof kNames / sizeof *kNames ? kNames[type] : "unknown";
}

// Another process could cut the file short, and whoever reads behind its end dies of SIGBUS. The seal stays with the file.
Status seal(int32_t fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals >= 0 && ((seals & F_SEAL_SHRINK) != 0 || ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0)) return Status();
  const int error = errno;
  char text[96];
  return fail_native(GMM_ERROR_INVALID_VALUE, error,
                     "gmm_import_fd(%" PRId32
                     "): the file cannot be sealed against shrinking (%s); make it with memfd_create() and "
                     "MFD_ALLOW_SEALING.",
                     fd, system_error_text(error, text, sizeof text));
}

// *type: what DEFAULT means.
Status check_descriptor(int32_t fd, gmm_fd_type *type) {
  struct stat state;
  if (::fstat(fd, &state) != 0) {
    const int error = errno;
    char text[96];
    return fail_native(GMM_ERROR_INVALID_VALUE, error, "gmm_import_fd(%" PRId32 "): not an open file descriptor: %s.",
                       fd, system_error_text(error, text, sizeof text));
  }
  const bool file = S_ISREG(state.st_mode);
  if (*type == GMM_FD_DEFAULT) *type = file ? GMM_FD_FILE : GMM_FD_OPAQUE;
  if (file || *type != GMM_FD_FILE) return Status();
  return fail(GMM_ERROR_INVALID_VALUE,
              "gmm_import_fd(%" PRId32
              "): the descriptor is no file, which GMM_FD_FILE means; pass the type that its maker says.",
              fd);
}

}  // namespace

Status Sharing::export_fd(const void *memory, gmm_fd_type type, int32_t *fd, uint64_t *offset, uint64_t *size) {
  Block block;
  GMM_TRY(find_block(core_, memory, "gmm_ipc_export_fd", &block));
  const Kind kind = block.heap->options().kind;
  const Device device = block.heap->options().device;
  const uint32_t ways = routes(block);
  if ((ways & (GMM_IPC_ROUTE_FD | GMM_IPC_ROUTE_DMA_BUF)) == 0 ||
      (type == GMM_FD_DEFAULT && (ways & GMM_IPC_ROUTE_FD) == 0))
    return fail(kind == Kind::kVmm || kind == Kind::kHost ? GMM_ERROR_NOT_SUPPORTED : GMM_ERROR_INVALID_KIND,
                "gmm_ipc_export_fd(%p): %s memory has no descriptor on device %d; allocate VMM or HOST memory.", memory,
                kind_name(kind), device.ordinal);
  const bool opaque = kind == Kind::kVmm && (core_.traits(device).capabilities & GMM_DEVICE_IS_HOST) == 0;
  const gmm_fd_type own = opaque ? GMM_FD_OPAQUE : GMM_FD_FILE;
  if (type == GMM_FD_DEFAULT) type = own;
  const bool fits =
      type == GMM_FD_DMA_BUF ? (ways & GMM_IPC_ROUTE_DMA_BUF) != 0 : type == own && (ways & GMM_IPC_ROUTE_FD) != 0;
  if (!fits)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "gmm_ipc_export_fd(%p): %s memory of device %d has no descriptor of type %s; ask gmm_query() for its "
                "routes, and for "
                "GMM_FD_DEFAULT.",
                memory, kind_name(kind), device.ordinal, type_name(type));
  LockGuard heap_guard(block.heap->mutex);
  GMM_TRY(find_block(core_, memory, "gmm_ipc_export_fd", &block));
  if (block.paused)
    return fail(GMM_ERROR_PAUSED, "gmm_ipc_export_fd(%p): the block is paused; resume its tag first.", memory);
  const uintptr_t begin = block.extent->base.load(std::memory_order_relaxed);
  const uint64_t bytes = block.extent->size.load(std::memory_order_relaxed);
  if (block.base + block.reserved > begin + bytes)
    return fail(
        GMM_ERROR_NOT_SUPPORTED,
        "gmm_ipc_export_fd(%p): the block lies over several driver allocations; allocate it with GMM_ALLOC_DEDICATED.",
        memory);
  if (type == GMM_FD_DMA_BUF)
    GMM_TRY(core_.backend->export_dma_buf(reinterpret_cast<void *>(begin), bytes, fd));
  else
    GMM_TRY(open_extent(*block.heap, *block.extent, fd));
  if (offset != nullptr) *offset = reinterpret_cast<uintptr_t>(memory) - begin;
  if (size != nullptr) *size = bytes;
  return Status();
}

// The descriptor of one extent, the caller's to close. With the heap's lock held, the extent not paused.
Status Sharing::open_extent(const Heap &heap, const Extent &extent, int32_t *fd) {
  if (heap.options().kind == Kind::kVmm) return core_.backend->export_fd(extent.handle, fd);
  return os::duplicate(extent.region.load(std::memory_order_relaxed)->allocation.fd, fd);
}

// What a failure leaves, unmap_import() takes away.
Status Sharing::map_fd(Import &import, int32_t fd, gmm_fd_type type) {
  Backend &backend = *core_.backend;
  const uint64_t size = import.handle.allocation_size;
  if (type == GMM_FD_OPAQUE) {
    import.handle.kind = Kind::kVmm;
    Piece &piece = import.pieces[0];
    piece.size = size;
    GMM_TRY(backend.import_fd(fd, size, import.device, &piece.physical));
    void *base = nullptr;
    GMM_TRY(backend.reserve(size, &base));
    import.base = static_cast<char *>(base);
    import.size = size;
    GMM_TRY(backend.map(import.base, size, piece.physical));
    piece.mapped = true;
    return backend.set_access(import.base, size, import.device, 0);
  }
  if (type == GMM_FD_FILE) {
    import.handle.kind = Kind::kHost;
    GMM_TRY(seal(fd));
    int32_t own = -1;
    GMM_TRY(os::duplicate(fd, &own));
    if (Status status = backend.import_host(own, size, import.device, true, &import.allocation); !status.ok()) {
      ::close(own);
      return status;
    }
  } else {
    import.handle.kind = Kind::kDevice;
    import.external = true;
    GMM_TRY(backend.external_import(fd, type, size, import.device, &import.allocation));
  }
  import.base = static_cast<char *>(import.allocation.base);
  import.size = size;
  return Status();
}

Status Sharing::import_fd(int32_t fd, gmm_fd_type type, uint64_t size, Device device, void **out) {
  GMM_TRY(check_descriptor(fd, &type));
  const uint64_t unit = type == GMM_FD_OPAQUE ? kExtentAlignment : os::page_size();
  if (size == 0 || size % unit != 0 || size > UINT64_MAX / 2)
    return fail(GMM_ERROR_INVALID_SIZE,
                "gmm_import_fd(%" PRId32 "): a size of %" PRIu64 " bytes; memory of type %s has a multiple of %" PRIu64
                ".",
                fd, size, type_name(type), unit);
  if (type == GMM_FD_OPAQUE && (core_.traits(device).capabilities & GMM_DEVICE_IS_HOST) != 0)
    return fail(GMM_ERROR_NOT_SUPPORTED, "gmm_import_fd(%" PRId32 "): device %d takes files only; pass GMM_FD_FILE.",
                fd, device.ordinal);
  LockGuard guard(import_mutex_);
  Import *import = nullptr;
  GMM_TRY(make_import(&import));
  import->from_fd = true;
  import->device = device;
  import->handle.route = IpcRoute::kBroker;
  import->handle.allocation_size = size;
  return enter_import(import, map_fd(*import, fd, type), 0, out);
}

}  // namespace gmm
