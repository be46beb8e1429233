// SPDX-License-Identifier: Apache-2.0
#include "engine/context/allocation.h"

namespace gmm {

gmm_result alloc_past(Heap *heap, uint64_t size, gmm_stream stream, void **out, Context *context) {
  const Status status = alloc_past_cache(*heap, size, 0, stream, out);
  if (__builtin_expect(status.ok(), 1)) {
    // The trace began since the fast path looked at the gate.
    if (__builtin_expect(context->trace().running(), 0)) context->trace().allocated(*heap, *out, size, 0, 0, stream);
    return status.code();
  }
  return result_of(context->allocate_from(*heap, size, 0, 0, stream, out, status), out);
}

gmm_result ask_and_alloc(Heap *heap, uint64_t size, gmm_stream stream, void **out, Context *context) {
  if (may_be_captured(*heap, stream)) return result_of(context->allocate(*heap, size, 0, 0, stream, out), out);
  return alloc_from_cache(*heap, size, stream, out) ? GMM_OK : alloc_past(heap, size, stream, out, context);
}

gmm_result heap_alloc_past(gmm_heap *heap, uint64_t size, gmm_stream stream, void **out) {
  return alloc_past(heap, size, stream, out, heap->context);
}

gmm_result heap_ask_and_alloc(gmm_heap *heap, uint64_t size, gmm_stream stream, void **out) {
  Context &context = *heap->context;
  if (!context.core().alive()) return result_of(Context::check(&context), out);
  if (is_open(*heap)) return ask_and_alloc(heap, size, stream, out, &context);
  return result_of(context.allocate(*heap, size, 0, 0, stream, out), out);
}

}  // namespace gmm
