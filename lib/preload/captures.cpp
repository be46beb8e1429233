// SPDX-License-Identifier: Apache-2.0
#include "preload/captures.h"

#include <atomic>

#include "base/lock.h"
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
  LockGuard guard(g_captures_mutex);
  const uint32_t count = g_count.load(std::memory_order_relaxed);
  if (count == kMost) return;
  g_streams[count] = stream;
  g_count.store(count + 1, std::memory_order_release);
}

void capture_gone(CUstream stream) {
  if (!any_capture()) return;
  LockGuard guard(g_captures_mutex);
  const uint32_t count = g_count.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (g_streams[i] != stream) continue;
    g_streams[i] = g_streams[count - 1];
    g_count.store(count - 1, std::memory_order_release);
    return;
  }
}

}  // namespace gmm::preload

using namespace gmm::preload;

namespace {

CUresult begin(CUstream stream, CUresult result) {
  if (result == CUDA_SUCCESS && t_thread.depth == 0) capture_begun(stream);
  return result;
}

// The driver's calls that a function of the runtime makes are part of it.
template <class Call>
CUresult inside(Call call) {
  Inside guard;
  return call();
}

// A call that fails to end a capture has ended it, unless the stream was not captured.
CUresult end(CUstream stream, CUresult result) {
  if (t_thread.depth == 0) capture_gone(stream);
  return result;
}

}  // namespace

// Each function exists for both meanings of a null stream.
#define GMM_PRELOAD_CAPTURES(suffix)                                                                                   \
  CUresult cuStreamBeginCapture_v2##suffix(CUstream stream, CUstreamCaptureMode mode) {                                \
    return begin(stream, GMM_PRELOAD_REAL(cuStreamBeginCapture_v2##suffix)(stream, mode));                             \
  }                                                                                                                    \
  CUresult cuStreamBeginCaptureToGraph##suffix(CUstream stream, CUgraph graph, const CUgraphNode *nodes,               \
                                               const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) { \
    return begin(stream,                                                                                               \
                 GMM_PRELOAD_REAL(cuStreamBeginCaptureToGraph##suffix)(stream, graph, nodes, edges, count, mode));     \
  }                                                                                                                    \
  CUresult cuStreamEndCapture##suffix(CUstream stream, CUgraph *graph) {                                               \
    return end(stream, GMM_PRELOAD_REAL(cuStreamEndCapture##suffix)(stream, graph));                                   \
  }                                                                                                                    \
  CUresult cudaStreamBeginCapture##suffix(CUstream stream, CUstreamCaptureMode mode) {                                 \
    auto *real_begin = GMM_PRELOAD_REAL(cudaStreamBeginCapture##suffix);                                               \
    return begin(stream, inside([=] { return real_begin(stream, mode); }));                                            \
  }                                                                                                                    \
  CUresult cudaStreamBeginCaptureToGraph##suffix(CUstream stream, CUgraph graph, const CUgraphNode *nodes,             \
                                                 const CUgraphEdgeData *edges, size_t count,                           \
                                                 CUstreamCaptureMode mode) {                                           \
    auto *real_begin = GMM_PRELOAD_REAL(cudaStreamBeginCaptureToGraph##suffix);                                        \
    return begin(stream, inside([=] { return real_begin(stream, graph, nodes, edges, count, mode); }));                \
  }                                                                                                                    \
  CUresult cudaStreamEndCapture##suffix(CUstream stream, CUgraph *graph) {                                             \
    auto *real_end = GMM_PRELOAD_REAL(cudaStreamEndCapture##suffix);                                                   \
    return end(stream, inside([=] { return real_end(stream, graph); }));                                               \
  }
GMM_PRELOAD_CAPTURES()
GMM_PRELOAD_CAPTURES(_ptsz)
