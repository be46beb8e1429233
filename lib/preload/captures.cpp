// SPDX-License-Identifier: Apache-2.0
#include "preload/captures.h"

#include <atomic>

#include "base/lock.h"
#include "preload/hooks.h"
#include "preload/real.h"
#include "preload/thread.h"

namespace gmm::preload {
namespace {

constexpr uint32_t kMost = 256;  // captures at one time; further ones are not recorded

constinit std::atomic<uint32_t> g_count{0};
constinit CUstream g_streams[kMost] = {};
constinit Mutex g_captures_mutex{LockRank::kPreloadCaptures};

}  // namespace

bool any_capture() { return g_count.load(std::memory_order_acquire) != 0; }

// The per-thread default stream has the same name in every thread, so it may be recorded more than once.
void capture_begun(CUstream stream) {
  g_captures_mutex.lock();
  const uint32_t count = g_count.load(std::memory_order_relaxed);
  if (count < kMost) {
    g_streams[count] = stream;
    g_count.store(count + 1, std::memory_order_release);
  }
  g_captures_mutex.unlock();
}

void capture_gone(CUstream stream) {
  if (!any_capture()) return;
  g_captures_mutex.lock();
  const uint32_t count = g_count.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (g_streams[i] != stream) continue;
    g_streams[i] = g_streams[count - 1];
    g_count.store(count - 1, std::memory_order_release);
    break;
  }
  g_captures_mutex.unlock();
}

}  // namespace gmm::preload

using namespace gmm::preload;

namespace {

CUresult begin(CUstream stream, CUresult result) {
  if (result == CUDA_SUCCESS && t_thread.depth == 0) capture_begun(stream);
  return result;
}

// A call that fails to end a capture has ended it, unless the stream was not captured.
CUresult end(CUstream stream, CUresult result) {
  if (t_thread.depth == 0) capture_gone(stream);
  return result;
}

}  // namespace

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin(stream, GMM_PRELOAD_REAL(cuStreamBeginCapture_v2)(stream, mode));
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin(stream, GMM_PRELOAD_REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
  return begin(stream, GMM_PRELOAD_REAL(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges, count, mode));
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                          const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
  return begin(stream, GMM_PRELOAD_REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, nodes, edges, count, mode));
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  return end(stream, GMM_PRELOAD_REAL(cuStreamEndCapture)(stream, graph));
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
  return end(stream, GMM_PRELOAD_REAL(cuStreamEndCapture_ptsz)(stream, graph));
}

// The runtime's functions. The driver's calls that they make are part of them.
namespace {

template <class Call>
CUresult inside(Call call) {
  Inside guard;
  return call();
}

}  // namespace

CUresult cudaStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  auto *real_begin = GMM_PRELOAD_REAL(cudaStreamBeginCapture);
  return begin(stream, inside([=] { return real_begin(stream, mode); }));
}
CUresult cudaStreamBeginCapture_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  auto *real_begin = GMM_PRELOAD_REAL(cudaStreamBeginCapture_ptsz);
  return begin(stream, inside([=] { return real_begin(stream, mode); }));
}
CUresult cudaStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                       const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
  auto *real_begin = GMM_PRELOAD_REAL(cudaStreamBeginCaptureToGraph);
  return begin(stream, inside([=] { return real_begin(stream, graph, nodes, edges, count, mode); }));
}
CUresult cudaStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                            const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
  auto *real_begin = GMM_PRELOAD_REAL(cudaStreamBeginCaptureToGraph_ptsz);
  return begin(stream, inside([=] { return real_begin(stream, graph, nodes, edges, count, mode); }));
}
CUresult cudaStreamEndCapture(CUstream stream, CUgraph *graph) {
  auto *real_end = GMM_PRELOAD_REAL(cudaStreamEndCapture);
  return end(stream, inside([=] { return real_end(stream, graph); }));
}
CUresult cudaStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
  auto *real_end = GMM_PRELOAD_REAL(cudaStreamEndCapture_ptsz);
  return end(stream, inside([=] { return real_end(stream, graph); }));
}
