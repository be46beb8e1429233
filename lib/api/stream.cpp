// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"

using namespace gmm;

gmm_result gmm_stream_create(gmm_context *context, const gmm_stream_desc *desc, gmm_stream *out) noexcept {
  const auto create = [&]() -> Status {
    gmm_stream_desc copy;
    GMM_TRY(Context::check(context));
    GMM_TRY(check_not_null(out, "gmm_stream_create", "out"));
    GMM_TRY(read_descriptor(desc, &copy));
    GMM_TRY(check_flags(copy.flags, 0, "gmm_stream_desc.flags"));
    GMM_TRY(check_device(*context, copy.device));
    return context->create_stream(Device{copy.device}, copy.priority, out);
  };
  return result_of(create(), out);
}

gmm_result gmm_stream_forget(gmm_context *context, gmm_stream stream) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->forget_stream(stream);
  return result_of(status);
}

gmm_result gmm_stream_destroy(gmm_context *context, gmm_stream stream) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->destroy_stream(stream);
  return result_of(status);
}

gmm_result gmm_stream_synchronize(gmm_context *context, gmm_stream stream) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->synchronize(stream);
  return result_of(status);
}

gmm_result gmm_stream_call(gmm_context *context, gmm_stream stream, void (*fn)(void *user), void *user) noexcept {
  Status status = Context::check(context);
  if (status.ok() && fn == nullptr)
    status = fail(GMM_ERROR_NULL_ARGUMENT, "gmm_stream_call: fn is NULL; pass a function.");
  if (status.ok()) status = context->core().backend->stream_call(Device{0}, stream, fn, user);
  return result_of(status);
}

gmm_result gmm_copy(gmm_context *context, void *destination, const void *source, uint64_t size,
                    gmm_stream stream) noexcept {
  const auto copy = [&]() -> Status {
    GMM_TRY(Context::check(context));
    if (size == 0) return Status();
    GMM_TRY(check_not_null(destination, "gmm_copy", "destination"));
    GMM_TRY(check_not_null(source, "gmm_copy", "source"));
    return context->copy(destination, source, size, stream);
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
    return context->fill(destination, static_cast<uint8_t>(value), size, stream);
  };
  return result_of(fill());
}

gmm_result gmm_record_use(gmm_context *context, const void *memory, gmm_stream stream) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->record_use(memory, stream);
  return result_of(status);
}
