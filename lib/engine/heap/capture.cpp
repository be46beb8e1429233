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

}  // namespace gmm
