// SPDX-License-Identifier: Apache-2.0
// Streams of a context, and work on them.

#include "engine/context/context.h"
#include "engine/heap/block.h"

namespace gmm {
namespace {

// The device whose default stream is meant for work on an address, and a weight. The memory of a larger weight may be
// out of the reach of other devices, VMM memory most of all.
struct Place {
  Device device{0};
  uint32_t weight = 0;
};
Place place_of(const Context &context, const void *address) {
  const auto weigh = [](Kind kind) -> uint32_t { return kind == Kind::kVmm ? 3 : kind == Kind::kDevice ? 2 : 1; };
  Block block;
  if (find_block(context.core(), address, &block))
    return Place{block.heap->options().device, weigh(block.heap->options().kind)};
  Range range;
  if (context.ipc().imports.find(address, &range))
    return Place{IpcImports::device(range), weigh(IpcImports::kind(range))};
  return Place{};
}

// Of a block over several extents a part may be usable: gmm_resume_range().
bool is_usable(const Context &context, const void *memory, uint64_t size) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(memory);
  return context.core().page_map.for_each_extent(at, at + size, [](const Extent &each) { return !is_paused(each); });
}

// A range of a block or import must lie in it and be active. Ordinary memory is the caller's responsibility.
Status check_operand(Context &context, const void *memory, uint64_t size, bool writes, const char *operation) {
  Block block;
  if (!find_block(context.core(), memory, &block)) {
    const IpcImports &imports = context.ipc().imports;
    const bool is_own = context.core().page_map.find_extent(memory) != nullptr;
    Range range, imported;
    if (is_own && !imports.find_block(memory, &imported))
      return fail(GMM_ERROR_ALREADY_FREED, "%s(%p): the block was freed; pass an address in a live one.", operation,
                  memory);
    if (!imports.find(memory, &range)) return Status();
    GMM_TRY(imports.check_operand(range, memory, size, writes, operation));
    if (!is_own || is_usable(context, memory, size)) return Status();
    return fail(GMM_ERROR_PAUSED, "%s(%p): the block is paused; resume its tag first.", operation, memory);
  }
  if (block.paused && !block.partly) return paused_block(block, memory, operation);
  GMM_TRY(check_range(block, memory, operation, &size));
  return block.partly && !is_usable(context, memory, size) ? paused_block(block, memory, operation) : Status();
}

// Chooses the device whose queue copies: that of the side which the other device cannot reach. VMM memory of two
// devices can be copied only if one of the heaps lets the other device in.
Status copy_device(const Context &context, const void *destination, const void *source, Device *out) {
  const Place to = place_of(context, destination), from = place_of(context, source);
  *out = from.weight > to.weight ? from.device : to.device;
  Block to_block, from_block;
  if (to.device == from.device || context.core().backend->id() == GMM_BACKEND_HOST ||
      !find_block(context.core(), destination, &to_block) || !find_block(context.core(), source, &from_block) ||
      to_block.heap->options().kind != Kind::kVmm || from_block.heap->options().kind != Kind::kVmm)
    return Status();
  const auto lets_in = [](const Block &block, Device device) {
    return (block.heap->options().peers >> device.ordinal & 1) != 0;
  };
  if (lets_in(from_block, to.device)) return Status();
  *out = from.device;
  if (lets_in(to_block, from.device)) return Status();
  return fail(GMM_ERROR_NOT_SUPPORTED,
              "gmm_copy(%p, %p): devices %d and %d cannot reach each other's VMM memory; create one of the "
              "heaps with "
              "gmm_heap_desc.peer_devices, or copy through HOST memory.",
              destination, source, to.device.ordinal, from.device.ordinal);
}

bool is_default(gmm_stream stream) {
  return stream == GMM_STREAM_DEFAULT || stream == GMM_STREAM_LEGACY || stream == GMM_STREAM_PER_THREAD;
}

}  // namespace

// INVALID_HANDLE: gmm destroyed the stream. The driver must not be asked about it.
Status Context::check_not_ended(gmm_stream stream, const char *operation) const {
  if (!core_.ended_streams.contains(stream)) return Status();
  return fail(
      GMM_ERROR_INVALID_HANDLE,
      "%s: stream %p was destroyed by gmm_stream_destroy(); pass a living one. If the driver gave its handle to "
      "a stream of the program, call gmm_stream_synchronize() for that one first.",
      operation, static_cast<void *>(stream));
}

Status Context::create_stream(Device device, int32_t priority, gmm_stream *out) {
  GMM_TRY(core_.backend->stream_create(device, priority, out));
  core_.ended_streams.remove(*out);
  return Status();
}

// Every device has default streams of its own, and a special value does not tell the device, so it means all of them.
Status Context::synchronize(gmm_stream stream) {
  const uint32_t devices = is_default(stream) ? device_count_ : 1;
  for (uint32_t d = 0; d < devices; ++d)
    GMM_TRY(core_.backend->stream_synchronize(Device{static_cast<int32_t>(d)}, stream));
  core_.ended_streams.remove(stream);
  return Status();
}

Status Context::forget_stream(gmm_stream stream) {
  GMM_TRY(synchronize(stream));
  heaps_.for_each_even_ending([&](Heap &heap) { heap.forget_stream(stream); });
  return Status();
}

Status Context::destroy_stream(gmm_stream stream) {
  if (is_default(stream))
    return fail(GMM_ERROR_INVALID_HANDLE,
                "gmm_stream_destroy: a default stream cannot be destroyed; pass one of gmm_stream_create().");
  GMM_TRY(check_not_ended(stream, "gmm_stream_destroy"));
  GMM_TRY(forget_stream(stream));
  // Before its end, as the driver may give the handle to another thread's stream at once.
  core_.ended_streams.add(stream);
  const Status status = core_.backend->stream_destroy(stream);
  if (!status.ok()) core_.ended_streams.remove(stream);
  return status;
}

Status Context::copy(void *destination, const void *source, uint64_t size, gmm_stream stream) {
  GMM_TRY(check_operand(*this, destination, size, true, "gmm_copy"));
  GMM_TRY(check_operand(*this, source, size, false, "gmm_copy"));
  Device device;
  GMM_TRY(copy_device(*this, destination, source, &device));
  return core_.backend->copy(device, stream, destination, source, size);
}

Status Context::fill(void *destination, uint8_t value, uint64_t size, gmm_stream stream) {
  GMM_TRY(check_operand(*this, destination, size, true, "gmm_fill"));
  return core_.backend->fill(place_of(*this, destination).device, stream, destination, value, size);
}

Status Context::record_use(const void *memory, gmm_stream stream) {
  Block block;
  GMM_TRY(find_block(core_, memory, "gmm_record_use", &block));
  GMM_TRY(check_not_ended(stream, "gmm_record_use"));
  bool capturing = false;
  // The call checks that the handle is a stream. A wrong handle fails here and not at the free.
  GMM_TRY(core_.backend->stream_is_capturing(block.heap->options().device, stream, &capturing));
  GMM_TRY(block.heap->record_use(CacheEntry{reinterpret_cast<void *>(block.base), block.slot}, stream));
  if (trace_.running()) trace_.used(reinterpret_cast<const void *>(block.base), stream);
  return Status();
}

}  // namespace gmm
