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
constinit Stream g_streams[kMost] = {};
constinit Mutex g_captures_mutex{LockRank::kPreloadCaptures};

}  // namespace

bool any_capture() { return g_count.load(std::memory_order_acquire) != 0; }

// The per-thread default stream has the same name in every thread, so it may be recorded more than once.
void capture_begun(Stream stream) {
  g_captures_mutex.lock();
  const uint32_t count = g_count.load(std::memory_order_relaxed);
  if (count < kMost) {
    g_streams[count] = stream;
    g_count.store(count + 1, std::memory_order_release);
  }
  g_captures_mutex.unlock();
}

void capture_gone(Stream stream) {
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

Code begin(Stream stream, Code result) {
  if (result == kSuccess && t_thread.depth == 0) capture_begun(stream);
  return result;
}

// A call that fails to end a capture has ended it, unless the stream was not captured.
Code end(Stream stream, Code result) {
  if (t_thread.depth == 0) capture_gone(stream);
  return result;
}

}  // namespace

Code cuStreamBeginCapture_v2(Stream stream, int mode) {
  return begin(stream, GMM_PRELOAD_REAL(cuStreamBeginCapture_v2)(stream, mode));
}
Code cuStreamBeginCapture_v2_ptsz(Stream stream, int mode) {
  return begin(stream, GMM_PRELOAD_REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}
Code cuStreamBeginCaptureToGraph(Stream stream, void *graph, const void *nodes, const void *edges, size_t count,
                                 int mode) {
  return begin(stream, GMM_PRELOAD_REAL(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges, count, mode));
}
Code cuStreamBeginCaptureToGraph_ptsz(Stream stream, void *graph, const void *nodes, const void *edges, size_t count,
                                      int mode) {
  return begin(stream, GMM_PRELOAD_REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, nodes, edges, count, mode));
}
Code cuStreamEndCapture(Stream stream, void **graph) {
  return end(stream, GMM_PRELOAD_REAL(cuStreamEndCapture)(stream, graph));
}
Code cuStreamEndCapture_ptsz(Stream stream, void **graph) {
  return end(stream, GMM_PRELOAD_REAL(cuStreamEndCapture_ptsz)(stream, graph));
}

// The runtime's functions. The driver's calls that they make are part of them.
namespace {

template <class Call>
Code inside(Call call) {
  Inside guard;
  return call();
}

}  // namespace

Code cudaStreamBeginCapture(Stream stream, int mode) {
  auto *real_begin = GMM_PRELOAD_REAL(cudaStreamBeginCapture);
  return begin(stream, inside([=] { return real_begin(stream, mode); }));
}
Code cudaStreamBeginCapture_ptsz(Stream stream, int mode) {
  auto *real_begin = GMM_PRELOAD_REAL(cudaStreamBeginCapture_ptsz);
  return begin(stream, inside([=] { return real_begin(stream, mode); }));
}
Code cudaStreamBeginCaptureToGraph(Stream stream, void *graph, const void *nodes, const void *edges, size_t count,
                                   int mode) {
  auto *real_begin = GMM_PRELOAD_REAL(cudaStreamBeginCaptureToGraph);
  return begin(stream, inside([=] { return real_begin(stream, graph, nodes, edges, count, mode); }));
}
Code cudaStreamBeginCaptureToGraph_ptsz(Stream stream, void *graph, const void *nodes, const void *edges, size_t count,
                                        int mode) {
  auto *real_begin = GMM_PRELOAD_REAL(cudaStreamBeginCaptureToGraph_ptsz);
  return begin(stream, inside([=] { return real_begin(stream, graph, nodes, edges, count, mode); }));
}
Code cudaStreamEndCapture(Stream stream, void **graph) {
  auto *real_end = GMM_PRELOAD_REAL(cudaStreamEndCapture);
  return end(stream, inside([=] { return real_end(stream, graph); }));
}
Code cudaStreamEndCapture_ptsz(Stream stream, void **graph) {
  auto *real_end = GMM_PRELOAD_REAL(cudaStreamEndCapture_ptsz);
  return end(stream, inside([=] { return real_end(stream, graph); }));
}
