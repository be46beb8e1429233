// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/capture.h"

#include <cstdlib>
#include <new>

namespace gmm {
namespace {

constinit std::atomic<uint64_t> g_ended{0};

}  // namespace

uint64_t GraphLife::ended() { return g_ended.load(std::memory_order_acquire); }

GraphLife *GraphLife::make() {
  void *memory = std::malloc(sizeof(GraphLife));
  return memory == nullptr ? nullptr : ::new (memory) GraphLife();
}

void GraphLife::release() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) std::free(this);
}

// On a thread of the driver's, perhaps while other threads wait inside the driver with locks of gmm: no lock, no call.
void GraphLife::on_end(void *self) {
  GraphLife *life = static_cast<GraphLife *>(self);
  life->over_.store(true, std::memory_order_release);
  life->release();
  g_ended.fetch_add(1, std::memory_order_release);
}

Status GraphLife::tie(Backend &backend, Device device, void *graph) {
  references_.fetch_add(1, std::memory_order_relaxed);
  return backend.at_end_of_graph(device, graph, on_end, this);
}

CaptureHeaps::CaptureHeaps(const HostAllocator &allocator) : heaps(allocator), seen_(GraphLife::ended()) {}

bool CaptureHeaps::any_ended() const {
  return seen_.load(std::memory_order_relaxed) != GraphLife::ended() || ended_.load(std::memory_order_relaxed) != 0;
}

bool CaptureHeaps::may_end(Heap &heap) {
  return heap.capture.graph->over() && heap.capture.users.load(std::memory_order_acquire) == 0 &&
         heap.totals().extents == 0;
}

void CaptureHeaps::release_ended() {
  if (!any_ended() || !mutex.try_lock()) return;
  release_ended_locked(false);
  mutex.unlock();
}

void CaptureHeaps::release_ended_locked(bool may_wait) {
  MessageGuard message_guard;
  seen_.store(GraphLife::ended(), std::memory_order_relaxed);
  uint32_t ended = 0;
  for (Heap *heap : heaps) {
    if (!heap->capture.graph->over()) continue;
    ++ended;
    // Memory that cannot go now is offered again at the next occasion, until the heap is empty.
    if (heap->capture.users.load(std::memory_order_acquire) == 0 && (may_wait || !heap->mutex.has_operation())) {
      heap->end_of_graph();
      heap->drain_caches(false).ignore();
      heap->free_held_for_importers();
      uint64_t released = 0;
      heap->reclaim().release(false, &released).ignore();
    }
  }
  ended_.store(ended, std::memory_order_relaxed);
}

}  // namespace gmm
