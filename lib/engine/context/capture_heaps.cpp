// SPDX-License-Identifier: Apache-2.0
// Capture heaps: made at the first allocation in a capture, ended when graph and blocks are gone. See
// engine/heap/capture.h.
#include "engine/context/context.h"
#include "engine/heap/capture.h"

namespace gmm {

// *out: the capture heap, kept from ending until leave_capture(); NULL when the stream is in no capture after all.
Status Context::enter_capture(Heap &parent, gmm_stream stream, gmm_heap **out) {
  *out = nullptr;
  Capture capture;
  GMM_TRY(core.backend->capture_of(parent.options().device, stream, &capture));
  if (capture.id == 0) return Status();
  collect_ended_captures(true);
  LockGuard guard(captures.mutex);
  for (uint64_t i = captures.heaps.size(); i-- > 0;) {
    gmm_heap *heap = captures.heaps[i];
    if (heap->parent != &parent || heap->heap.options().capture != capture.id) continue;
    heap->users.fetch_add(1, std::memory_order_relaxed);
    *out = heap;
    return Status();
  }
  if (!captures.heaps.reserve(captures.heaps.size() + 1))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the heap of a graph capture.");
  HeapOptions options = parent.options();
  options.capture = capture.id;
  gmm_heap *heap = nullptr;
  GMM_TRY(make_heap(options, GMM_NO_LIMIT, &heap));
  heap->parent = &parent;
  heap->heap.quotas().each[5] = &parent.own_quota();
  heap->users.store(1, std::memory_order_relaxed);
  heap->graph = GraphLife::make();
  Status status = heap->graph != nullptr
                      ? heap->graph->tie(*core.backend, options.device, capture.graph)
                      : fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to know the end of a graph.");
  if (!status.ok()) {
    MessageGuard message_guard;
    heaps.begin_end(heap->heap);
    heaps.finish_end(heap->heap, true);
    end_capture_heap(heap);
    return status;
  }
  captures.heaps.push_back_reserved(heap);
  *out = heap;
  return Status();
}

void Context::leave_capture(gmm_heap *heap) { heap->users.fetch_sub(1, std::memory_order_release); }

// Nobody uses it, it holds nothing, and it has left the set. With captures.mutex held.
void Context::end_capture_heap(gmm_heap *heap) {
  if (!heap->heap.close(true).ok())
    core.log.write(LogLevel::kError, "Memory of a graph could not be given back: %s", last_message());
  if (heap->parent != nullptr) {
    // Counters of a heap do not go backwards.
    heap->parent->caches.add_calls(heap->heap.totals());
  }
  if (heap->graph != nullptr) heap->graph->release();
  retire(heap);
}

void Context::collect_ended_captures(bool patient) {
  const uint64_t ended = GraphLife::ended();
  if (captures.seen.load(std::memory_order_relaxed) == ended && captures.pending.load(std::memory_order_relaxed) == 0)
    return;
  if (patient)
    captures.mutex.lock();
  else if (!captures.mutex.try_lock())
    return;
  MessageGuard message_guard;
  captures.seen.store(ended, std::memory_order_relaxed);
  uint32_t pending = 0;
  for (uint64_t i = captures.heaps.size(); i-- > 0;) {
    gmm_heap *heap = captures.heaps[i];
    if (!heap->graph->over()) continue;
    ++pending;
    if (heap->users.load(std::memory_order_acquire) != 0) continue;
    // Before a heap grows: not behind a pause.
    if (!patient && heap->heap.mutex.has_operation()) continue;
    heap->heap.end_of_graph();
    // What cannot go now is asked again at the next occasion, until the heap is empty.
    heap->heap.drain_caches(false).ignore();
    heap->heap.free_held_for_importers();
    uint64_t released = 0;
    heap->heap.release_free(UINT64_MAX, false, &released).ignore();
    if (heap->heap.totals().extents != 0 || !heaps.remove_unless_visited(heap->heap)) continue;
    captures.heaps.erase(i);
    end_capture_heap(heap);
    --pending;
  }
  captures.pending.store(pending, std::memory_order_relaxed);
  captures.mutex.unlock();
}

// The heap `parent` is to end. With captures.mutex held.
Status Context::check_captures_of(const Heap &parent) {
  for (gmm_heap *heap : captures.heaps)
    if (heap->parent == &parent && heap->heap.totals().live_blocks != 0)
      return fail(GMM_ERROR_BUSY,
                  "The heap still has live blocks that were allocated in a graph capture; free them before "
                  "gmm_heap_destroy().");
  return Status();
}

void Context::orphan_captures_of(const Heap &parent) {
  for (gmm_heap *heap : captures.heaps) {
    if (heap->parent != &parent) continue;
    LockGuard guard(heap->heap.mutex);
    heap->parent = nullptr;
    heap->heap.quotas().each[5] = nullptr;
  }
}

}  // namespace gmm
