// SPDX-License-Identifier: Apache-2.0
// The objects that every part of a context shares.
#ifndef GMM_ENGINE_SPACE_CORE_H
#define GMM_ENGINE_SPACE_CORE_H

#include <atomic>
#include <cstdint>

#include "backend/backend.h"
#include "base/call_stack.h"
#include "base/object_pool.h"
#include "base/thread.h"
#include "engine/space/deferred_release.h"
#include "engine/space/ended_streams.h"
#include "engine/space/page_map.h"
#include "engine/space/span.h"

namespace gmm {

// The word that the fast paths look at once: anything but kGateOpen sends them to the slow path. It lies in a page that
// the kernel empties in a forked child (MADV_WIPEONFORK), so a child reads 0 without asking for its pid.
inline constexpr uint64_t kGateOpen = 0x676d6d2d6f70656e;   // every fast path
inline constexpr uint64_t kGateWatched = 0x676d6d2d776174;  // a trace is running: slow path, but alive
inline constexpr uint64_t kGateChecked = 0x676d6d2d636865;  // no trace, but Core::checks: the same
struct Gate {
  std::atomic<uint64_t> word{kGateOpen};
};

// The properties of a device, asked for once, as they do not change.
struct DeviceTraits {
  uint32_t capabilities = 0;
  gmm_kind_mask kinds = 0;
  uint8_t uuid[16] = {};
};
inline constexpr uint32_t kMaxDevices = 16;

// Bits of Core::checks, all but the last in the order of GMM_DEBUG's words (engine/heap/checks.h).
inline constexpr uint32_t kCheckRedZone = 1, kCheckPoison = 2, kCheckQuarantine = 4, kCheckGuard = 8, kCheckStacks = 16,
                          kCheckTool = 32;

struct Core {
  Core(const HostAllocator &host_allocator, const Log &context_log)
      : allocator(host_allocator),
        log(context_log),
        deferred_release(host_allocator, context_log),
        page_map(host_allocator),
        spans(host_allocator),
        slabs(host_allocator),
        regions(host_allocator),
        extents(host_allocator),
        stacks(host_allocator) {}

  const HostAllocator allocator;
  const Log log;
  Backend *backend = nullptr;
  Gate *gate = nullptr;
  DeviceTraits devices[kMaxDevices];
  DeferredRelease deferred_release;
  EndedStreams ended_streams;
  PageMap page_map;
  ObjectPool<Span> spans;
  ObjectPool<SlabSpan> slabs;
  ObjectPool<Region> regions;
  ObjectPool<Extent> extents;
  StackTable stacks;
  std::atomic<uint64_t> next_extent_id{1};
  std::atomic<uint32_t> defer_depth{0};  // depth of gmm_defer_begin()
  // Streams above this value are asked whether they are captured, at each allocation. Before the first heap.
  uintptr_t last_uncaptured = UINTPTR_MAX;
  uint32_t checks = 0;  // of each block; before the first heap

  // Bytes of spares (engine/heap/extents.h), and how they return before a heap asks the driver for that much: those of
  // other heaps of the device. The caller holds no lock of a heap.
  std::atomic<uint64_t> spare_bytes{0};
  void (*return_spares)(void *user, Device device, uint64_t bytes, const Heap *but) = nullptr;
  void *return_spares_user = nullptr;
  void ask_for_spares(Device device, uint64_t bytes, const Heap *but) {
    if (spare_bytes.load(std::memory_order_relaxed) != 0) return_spares(return_spares_user, device, bytes, but);
  }

  const DeviceTraits &traits(Device device) const { return devices[device.ordinal]; }
  uint64_t gate_without_trace() const { return checks == 0 ? kGateOpen : kGateChecked; }
  // The calling thread's number, and that of its stack << 32 where GMM_DEBUG says so. It holds no lock then.
  uint64_t caller() {
    const uint32_t stack = (checks & kCheckStacks) != 0 ? stacks.here() : 0;
    return static_cast<uint32_t>(thread_number()) | uint64_t{stack} << 32;
  }
  bool alive() const { return gate->word.load(std::memory_order_relaxed) != 0; }
};

}  // namespace gmm
#endif
