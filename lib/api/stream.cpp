// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"

using namespace gmm;

namespace {

// Of a block over several extents a part may be usable: gmm_resume_range().
bool is_usable(const Context &context, const void *memory, uint64_t size) {
  uintptr_t at = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t end = at + size;
  while (at < end) {
    const Extent *extent = context.core.page_map.find_extent(reinterpret_cast<void *>(at));
    if (extent == nullptr || is_paused(*extent)) return false;
    at = end_of(*extent);
  }
  return true;
}

// A range of a block or import must lie in it and be active. Ordinary memory is the caller's responsibility.
Status check_operand(Context &context, const void *memory, uint64_t size, const char *operation) {
  Block block;
  if (!find_block(context.core, memory, &block)) {
    Range range;
    if (context.ipc.exports.find_own(memory, &range))
      return context.ipc.exports.check_own(range, memory, size, operation);
    if (context.core.page_map.find_extent(memory) == nullptr)
      return context.ipc.imports.find(memory, &range)
                 ? context.ipc.imports.check_operand(range, memory, size, operation)
                 : Status();
    return fail(GMM_ERROR_ALREADY_FREED, "%s(%p): the block was freed; pass an address in a live one.", operation,
                memory);
  }
  if (block.paused && !block.partly)
    return fail(GMM_ERROR_PAUSED, "%s(%p): the block is paused; resume its tag first.", operation, memory);
  GMM_TRY(check_range(block, memory, operation, &size));
  if (block.partly && !is_usable(context, memory, size))
    return fail(GMM_ERROR_PAUSED, "%s(%p): a part of these %" PRIu64 " bytes is paused; resume its tag first.",
                operation, memory, size);
  return Status();
}

// Chooses the device whose queue copies: that of the side which the other device cannot reach. VMM memory of two
// devices can be copied only if one of the heaps lets the other device in.
Status copy_device(const Context &context, const void *destination, const void *source, Device *out) {
  const Place to = place_of(context, destination), from = place_of(context, source);
  *out = from.weight > to.weight ? from.device : to.device;
  Block to_block, from_block;
  if (to.device == from.device || context.core.backend->id() == GMM_BACKEND_HOST ||
      !find_block(context.core, destination, &to_block) || !find_block(context.core, source, &from_block) ||
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

// Waits for a stream. Every device has default streams of its own, and a special value does not tell the device, so it
// means all of them.
Status synchronize(Context &context, gmm_stream stream) {
  const bool is_default =
      stream == GMM_STREAM_DEFAULT || stream == GMM_STREAM_LEGACY || stream == GMM_STREAM_PER_THREAD;
  const uint32_t devices = is_default ? context.device_count : 1;
  for (uint32_t d = 0; d < devices; ++d)
    GMM_TRY(context.core.backend->stream_synchronize(Device{static_cast<int32_t>(d)}, stream));
  context.core.ended_streams.remove(stream);
  return Status();
}

// INVALID_HANDLE: gmm destroyed the stream. The driver must not be asked about it.
Status check_not_ended(const Context &context, gmm_stream stream, const char *operation) {
  if (!context.core.ended_streams.contains(stream)) return Status();
  return fail(
      GMM_ERROR_INVALID_HANDLE,
      "%s: stream %p was destroyed by gmm_stream_destroy(); pass a living one. If the driver gave its handle to "
      "a stream of the program, call gmm_stream_synchronize() for that one first.",
      operation, static_cast<void *>(stream));
}

}  // namespace

gmm_result gmm_stream_create(gmm_context *context, const gmm_stream_desc *desc, gmm_stream *out) noexcept {
  const auto create = [&]() -> Status {
    gmm_stream_desc copy;
    GMM_TRY(Context::check(context));
    GMM_TRY(check_not_null(out, "gmm_stream_create", "out"));
    GMM_TRY(read_descriptor(desc, &copy));
    GMM_TRY(check_flags(copy.flags, 0, "gmm_stream_desc.flags"));
    GMM_TRY(check_device(*context, copy.device));
    GMM_TRY(context->core.backend->stream_create(Device{copy.device}, copy.priority, out));
    context->core.ended_streams.remove(*out);
    return Status();
  };
  return result_of(create(), out);
}

gmm_result gmm_stream_forget(gmm_context *context, gmm_stream stream) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = synchronize(*context, stream);
  if (status.ok()) context->forget_stream(stream);
  return result_of(status);
}

gmm_result gmm_stream_destroy(gmm_context *context, gmm_stream stream) noexcept {
  Status status = Context::check(context);
  if (status.ok() && (stream == GMM_STREAM_DEFAULT || stream == GMM_STREAM_LEGACY || stream == GMM_STREAM_PER_THREAD))
    status = fail(GMM_ERROR_INVALID_HANDLE,
                  "gmm_stream_destroy: a default stream cannot be destroyed; pass one of gmm_stream_create().");
  if (status.ok()) status = check_not_ended(*context, stream, "gmm_stream_destroy");
  if (status.ok()) status = synchronize(*context, stream);
  if (!status.ok()) return result_of(status);
  context->forget_stream(stream);
  // Before its end, as the driver may give the handle to another thread's stream at once.
  context->core.ended_streams.add(stream);
  status = context->core.backend->stream_destroy(stream);
  if (!status.ok()) context->core.ended_streams.remove(stream);
  return result_of(status);
}

gmm_result gmm_stream_synchronize(gmm_context *context, gmm_stream stream) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = synchronize(*context, stream);
  return result_of(status);
}

gmm_result gmm_stream_call(gmm_context *context, gmm_stream stream, void (*fn)(void *user), void *user) noexcept {
  Status status = Context::check(context);
  if (status.ok() && fn == nullptr)
    status = fail(GMM_ERROR_NULL_ARGUMENT, "gmm_stream_call: fn is NULL; pass a function.");
  if (status.ok()) status = context->core.backend->stream_call(Device{0}, stream, fn, user);
  return result_of(status);
}

gmm_result gmm_copy(gmm_context *context, void *destination, const void *source, uint64_t size,
                    gmm_stream stream) noexcept {
  const auto copy = [&]() -> Status {
    GMM_TRY(Context::check(context));
    if (size == 0) return Status();
    GMM_TRY(check_not_null(destination, "gmm_copy", "destination"));
    GMM_TRY(check_not_null(source, "gmm_copy", "source"));
    GMM_TRY(check_operand(*context, destination, size, "gmm_copy"));
    GMM_TRY(check_operand(*context, source, size, "gmm_copy"));
    Device device;
    GMM_TRY(copy_device(*context, destination, source, &device));
    return context->core.backend->copy(device, stream, destination, source, size);
  };
  return result_of(copy());
}

gmm_result gmm_fill(gmm_context *context, void *destination, uint32_t value, uint64_t size,
                    gmm_stream stream) noexcept {
  const auto fill = [&]() -> Status {
    GMM_TRY(Context::check(context));
    if (value > 255)
      return fail(GMM_ERROR_INVALID_VALUE, "gmm_fill: value = %u does not fit a byte; pass 0 to 255.", value);
    if (size == 0) return Status();
    GMM_TRY(check_not_null(destination, "gmm_fill", "destination"));
    GMM_TRY(check_operand(*context, destination, size, "gmm_fill"));
    return context->core.backend->fill(device_of(*context, destination), stream, destination,
                                       static_cast<uint8_t>(value), size);
  };
  return result_of(fill());
}

gmm_result gmm_record_use(gmm_context *context, const void *memory, gmm_stream stream) noexcept {
  Block block;
  Status status = Context::check(context);
  if (status.ok()) status = find_block(context->core, memory, "gmm_record_use", &block);
  if (status.ok()) status = check_not_ended(*context, stream, "gmm_record_use");
  bool capturing = false;
  // The call checks that the handle is a stream. A wrong handle fails here and not at the free.
  if (status.ok())
    status = context->core.backend->stream_is_capturing(block.heap->options().device, stream, &capturing);
  if (status.ok())
    status = block.heap->record_use(CacheEntry{reinterpret_cast<void *>(block.base), block.slot}, stream);
  if (status.ok() && context->trace.running()) context->trace.used(reinterpret_cast<const void *>(block.base), stream);
  return result_of(status);
}
