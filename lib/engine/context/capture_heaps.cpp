// SPDX-License-Identifier: Apache-2.0
// Capture heaps: made at the first allocation in a capture, ended when graph and blocks are gone. See
// engine/heap/capture.h.
#include "engine/context/context.h"

namespace gmm {

// *out: the capture heap, which its count of users keeps from ending; NULL when the stream is in no capture after all.
Status Context::enter_capture(Heap &parent, gmm_stream stream, Heap **out) {
  *out = nullptr;
  Capture capture;
  GMM_TRY(core_.backend->capture_of(parent.options().device, stream, &capture));
  if (capture.id == 0) return Status();
  collect_ended_captures();
  LockGuard guard(captures_.mutex);
  for (uint64_t i = captures_.heaps.size(); i-- > 0;) {
    Heap *heap = captures_.heaps[i];
    if (heap->capture.parent != &parent || heap->options().capture != capture.id) continue;
    heap->capture.users.fetch_add(1, std::memory_order_relaxed);
    *out = heap;
    return Status();
  }
  if (!captures_.heaps.reserve(captures_.heaps.size() + 1))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the heap of a graph capture.");
  HeapOptions options = parent.options();
  options.capture = capture.id;
  GraphLife *graph = GraphLife::make();
  if (graph == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to know the end of a graph.");
  gmm_heap *heap = nullptr;
  Status status = graph->tie(*core_.backend, options.device, capture.graph);
  if (status.ok()) status = make_heap(options, GMM_NO_LIMIT, &heap);
  if (!status.ok()) {
    graph->release();
    return status;
  }
  heap->capture.parent = &parent;
  heap->capture.graph = graph;
  heap->quotas().each[5] = &parent.own_quota();
  heap->capture.users.store(1, std::memory_order_relaxed);
  captures_.heaps.push_back_reserved(heap);
  *out = heap;
  return Status();
}

// Nobody uses it, it holds nothing, and it has left the set. With captures_.mutex held.
void Context::end_capture_heap(Heap *heap) {
  if (!heap->close(true).ok())
    core_.log.write(LogLevel::kError, "Memory of a graph could not be given back: %s", last_message());
  // Counters of a heap do not go backwards.
  if (heap->capture.parent != nullptr) heap->capture.parent->caches().count(heap->totals());
  if (heap->capture.graph != nullptr) heap->capture.graph->release();
  retire(static_cast<gmm_heap *>(heap));
}

void Context::collect_ended_captures(bool may_wait) {
  if (!captures_.any_ended()) return;
  if (may_wait)
    captures_.mutex.lock();
  else if (!captures_.mutex.try_lock())
    return;
  const UnlockAtEnd guard(captures_.mutex);
  MessageGuard message_guard;
  captures_.release_ended_locked(may_wait);
  for (uint64_t i = captures_.heaps.size(); i-- > 0;) {
    Heap *heap = captures_.heaps[i];
    if (!CaptureHeaps::may_end(*heap) || !heaps_.remove_unless_visited(*heap)) continue;
    captures_.heaps.erase(i);
    end_capture_heap(heap);
  }
}

// The heap `parent` is to end. With captures_.mutex held.
Status Context::check_captures_of(const Heap &parent) {
  for (Heap *heap : captures_.heaps)
    if (heap->capture.parent == &parent && heap->totals().live_blocks != 0)
      return fail(GMM_ERROR_BUSY,
                  "The heap still has live blocks that were allocated in a graph capture; free them before "
                  "gmm_heap_destroy().");
  return Status();
}

void Context::orphan_captures_of(const Heap &parent) {
  for (Heap *heap : captures_.heaps) {
    if (heap->capture.parent != &parent) continue;
    LockGuard guard(heap->mutex);
    heap->capture.parent = nullptr;
    heap->quotas().each[5] = nullptr;
  }
}

}  // namespace gmm
