// SPDX-License-Identifier: Apache-2.0
// The allocation of a plain block, which has no alignment, flags or other wish, and its ways past the fast path: a
// stream that may be captured, a trace or check that runs, a cache without a block, memory that is short.
//
// Functions that the fast paths call last are not inlined, so that the fast paths save no register.
//
// Callers: api/memory.cpp, which has checked the handles, the size and `out`.
#ifndef GMM_ENGINE_CONTEXT_ALLOCATION_H
#define GMM_ENGINE_CONTEXT_ALLOCATION_H

#include "engine/context/context.h"
#include "engine/heap/capture.h"
#include "engine/heap/fast_path.h"

namespace gmm {

// The tag of a descriptor, and its shared heap of a kind and a device that exist. NULL: there is none.
inline const Tag *tag_of(const Context &context, gmm_tag tag) {
  return context.tags().get(tag == GMM_TAG_CURRENT ? context.tags().current() : tag);
}
inline Heap *existing_heap(const Tag *tag, uint32_t kind, gmm_device device) {
  return tag == nullptr ? nullptr : tag->heaps[kind][device].load(std::memory_order_acquire);
}

gmm_result alloc_past(Heap *heap, uint64_t size, gmm_stream stream, void **out, Context *context);
// The stream may be captured.
gmm_result ask_and_alloc(Heap *heap, uint64_t size, gmm_stream stream, void **out, Context *context);
// With the context that it loads itself, so that the fast path of a heap does not: 3 to 5 instructions a pair.
gmm_result heap_alloc_past(gmm_heap *heap, uint64_t size, gmm_stream stream, void **out);
// The stream may be captured, a trace or check runs, or the context is another process's.
gmm_result heap_ask_and_alloc(gmm_heap *heap, uint64_t size, gmm_stream stream, void **out);

// The context is open.
inline __attribute__((always_inline)) gmm_result alloc_plain(Context *context, Heap *heap, uint64_t size,
                                                             gmm_stream stream, void **out) {
  if (__builtin_expect(needs_driver(*heap, stream), 0)) return ask_and_alloc(heap, size, stream, out, context);
  if (__builtin_expect(alloc_from_cache(*heap, size, stream, out), 1)) return GMM_OK;
  return alloc_past(heap, size, stream, out, context);
}

inline bool is_open(const Heap &heap) { return heap.fast.gate->word.load(std::memory_order_relaxed) == kGateOpen; }

inline __attribute__((always_inline)) gmm_result heap_alloc_plain(gmm_heap *heap, uint64_t size, gmm_stream stream,
                                                                  void **out) {
  if (__builtin_expect(!is_open(*heap) || needs_driver(*heap, stream), 0))
    return heap_ask_and_alloc(heap, size, stream, out);
  if (__builtin_expect(alloc_from_cache(*heap, size, stream, out), 1)) return GMM_OK;
  return heap_alloc_past(heap, size, stream, out);
}

// gmm_try_alloc() and gmm_heap_try_alloc(). False: the plain form has to wait or to ask.
inline bool try_alloc_plain(Heap &heap, uint64_t size, gmm_stream stream, void **out) {
  return is_open(heap) && !needs_driver(heap, stream) && try_alloc(heap, size, stream, out);
}

}  // namespace gmm
#endif
