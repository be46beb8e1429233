// SPDX-License-Identifier: Apache-2.0
#include "engine/range/residency.h"

#include <cinttypes>
#include <utility>

#include "engine/heap/block.h"
#include "engine/heap/extents.h"

namespace gmm {
namespace {

Status find_managed(Core &core, void *memory, const char *operation, uint64_t *size, Block *block) {
  GMM_TRY(find_block(core, memory, operation, block));
  if (block->heap->options().kind != Kind::kManaged)
    return fail(GMM_ERROR_INVALID_KIND,
                "%s(%p): the block is %s memory, and only MANAGED memory has a residency; allocate it as MANAGED.",
                operation, memory, kind_name(block->heap->options().kind));
  return check_range(*block, memory, operation, size);
}

// The device is idle until the block lies in its new pages.
Status move_extent(Core &core, Extent &extent, Heap &heap, Device location, gmm_stream stream) {
  Vector<Piece> all(core.allocator);
  if (!all.push_back(Piece{ByteRange{base_of(extent), size_of(extent)}, PhysicalHandle{}, &extent}))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "gmm_move(): no host memory to plan a move; free host memory.");
  GMM_TRY(move_to_new_pages(core, extent, heap.options().device, location, stream, &all));
  const PhysicalHandle old = std::exchange(extent.handle, all[0].handle);
  extent.is_out.store(false, std::memory_order_relaxed);
  extent.location.store(location, std::memory_order_relaxed);
  core.deferred_release.release(*core.backend, old);
  return Status();
}

// With the lock of this heap: its block, if it may move.
Status find_movable(Core &core, void *memory, const Heap &heap, Block *out) {
  GMM_TRY(find_block(core, memory, "gmm_move", out));
  if (out->heap != &heap) return fail(GMM_ERROR_ALREADY_FREED, "gmm_move(%p): another thread freed the block.", memory);
  if (out->paused) return paused_block(*out, memory, "gmm_move");
  Extent &extent = *out->extent;
  const uintptr_t begin = base_of(extent);
  if (out->span->begin() != begin || out->span->bytes() != size_of(extent))
    return fail(GMM_ERROR_BUSY,
                "gmm_move(%p): the block has no single extent to itself; allocate it with GMM_ALLOC_DEDICATED.",
                memory);
  if (const uint32_t importers = other_importers(extent); importers != 0)
    return fail(GMM_ERROR_BUSY, "gmm_move(%p): %u importers hold the memory; move it after they have closed it.",
                memory, importers);
  return Status();
}

Status check_node(Core &core, const HeapOptions &options, void *memory, Device location) {
  if (location.numa_node() < 0) return Status();
  if (options.kind != Kind::kVmm)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "gmm_move(%p): %s memory cannot move to NUMA node %d; pass GMM_DEVICE_HOST, or allocate VMM memory.",
                memory, kind_name(options.kind), location.numa_node());
  if ((core.traits(options.device).capabilities & GMM_DEVICE_CAN_HOST_NUMA) != 0) return Status();
  return fail(GMM_ERROR_NOT_SUPPORTED,
              "gmm_move(%p): device %d cannot have memory on NUMA node %d, as gmm_device_query() says by "
              "GMM_DEVICE_CAN_HOST_NUMA; pass GMM_DEVICE_HOST.",
              memory, options.device.ordinal, location.numa_node());
}

Status is_there() { return unchanged("gmm_move(): the block is at that location already."); }

Status check_capture(Core &core, Device device, void *memory, gmm_stream stream) {
  bool capturing = false;
  GMM_TRY(core.backend->stream_is_capturing(device, stream, &capturing));
  if (!capturing) return Status();
  return fail(GMM_ERROR_CAPTURING,
              "gmm_move(%p): VMM memory cannot move while the stream is captured; end the capture first.", memory);
}

}  // namespace

Status check_move(Core &core, void *memory, Device location, gmm_stream stream, ByteRange *out) {
  Block block;
  GMM_TRY(find_block(core, memory, "gmm_move", &block));
  GMM_TRY(check_node(core, block.heap->options(), memory, location));
  GMM_TRY(check_capture(core, block.heap->options().device, memory, stream));
  LockGuard guard(block.heap->mutex);
  Block again;
  GMM_TRY(find_movable(core, memory, *block.heap, &again));
  *out = ByteRange{again.span->begin(), again.span->bytes()};
  return again.extent->location.load(std::memory_order_relaxed) == location ? is_there() : Status();
}

Status advise(Core &core, void *memory, uint64_t size, gmm_advice advice, Device location) {
  Block block;
  GMM_TRY(find_managed(core, memory, "gmm_advise", &size, &block));
  return core.backend->advise(memory, size, advice, location);
}

Status prefetch(Core &core, void *memory, uint64_t size, Device location, gmm_stream stream) {
  Block block;
  GMM_TRY(find_managed(core, memory, "gmm_prefetch", &size, &block));
  return core.backend->prefetch(memory, size, location, block.heap->options().device, stream);
}

Status move(Core &core, void *memory, Device location, uint32_t flags, gmm_stream stream) {
  Block block;
  GMM_TRY(find_block(core, memory, "gmm_move", &block));
  GMM_TRY(check_node(core, block.heap->options(), memory, location));
  void *base = reinterpret_cast<void *>(block.base);
  const Device device = block.heap->options().device;
  switch (block.heap->options().kind) {
    case Kind::kManaged:
      GMM_TRY(core.backend->advise(base, block.requested, GMM_ADVISE_SET_PREFERRED_LOCATION, location));
      GMM_TRY(core.backend->advise(base, block.requested, GMM_ADVISE_SET_ACCESSED_BY, location));
      GMM_TRY(core.backend->prefetch(base, block.requested, location, device, stream));
      if (location.is_host() && (flags & GMM_MOVE_NON_BLOCKING) == 0)
        return core.backend->stream_synchronize(device, stream);
      return Status();
    case Kind::kVmm:
      break;
    default:
      return fail(GMM_ERROR_INVALID_KIND, "gmm_move(%p): %s memory cannot move; allocate MANAGED or VMM memory.",
                  memory, kind_name(block.heap->options().kind));
  }
  GMM_TRY(check_capture(core, device, memory, stream));
  const OperationGuard guard(*block.heap);  // a copy is waited for
  Block again;
  GMM_TRY(find_movable(core, memory, *block.heap, &again));
  if (again.extent->location.load(std::memory_order_relaxed) == location) return is_there();
  return move_extent(core, *again.extent, *block.heap, location, stream);
}

}  // namespace gmm
