// SPDX-License-Identifier: Apache-2.0
// A game or a visualisation engine embeds gmm: linked statically, without exceptions, with the engine's own log and
// host allocator, and one heap for the buffers of a frame. Without exceptions every function of gmm.hpp returns a
// gmm::result.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <gmm/gmm.hpp>

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Every byte of gmm's own bookkeeping goes through the engine's allocator and is counted.
struct HostMemory {
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> highest{0};
};

void *allocate(void *user, uint64_t size, uint64_t alignment) {
  HostMemory *memory = static_cast<HostMemory *>(user);
  const int64_t now = memory->bytes += static_cast<int64_t>(size);
  int64_t highest = memory->highest;
  while (now > highest && !memory->highest.compare_exchange_weak(highest, now)) {
  }
  return std::aligned_alloc(alignment, (size + alignment - 1) & ~(alignment - 1));
}

void deallocate(void *user, void *block, uint64_t size) {
  static_cast<HostMemory *>(user)->bytes -= static_cast<int64_t>(size);
  std::free(block);
}

void log(void *, gmm_log_level level, const char *message) { std::printf("[gmm %u] %s\n", level, message); }

// Three frames of transient buffers on one stream. Their owners free them on it, so they come back at once.
gmm::result<void> draw(gmm::context_ref context, gmm::heap_ref frame_heap, gmm::stream_ref stream) {
  for (int frame = 0; frame < 3; ++frame) {
    auto vertices = frame_heap.alloc(4 * kMiB, stream);
    if (!vertices) return vertices.error();
    auto indices = frame_heap.alloc(kMiB, stream);
    if (!indices) return indices.error();
    if (auto filled = context.fill(vertices->data(), 0x3f, vertices->size(), stream); !filled) return filled;
    std::printf("frame %d: vertices %p, indices %p\n", frame, vertices->data(), indices->data());
  }
  return stream.synchronize();
}

// Objects end in the reverse order: the heap and the stream before the context, whose end returns all memory.
gmm::result<void> run(HostMemory *memory) {
  gmm::context_desc desc;
  desc.log = {log, nullptr};
  desc.host_allocator = {allocate, deallocate, memory};
  auto context = gmm::context::create(desc);
  if (!context) return context.error();
  auto stream = gmm::stream::create(*context);
  if (!stream) return stream.error();
  auto frame_heap = gmm::heap::create(*context);
  if (!frame_heap) return frame_heap.error();
  return draw(*context, *frame_heap, *stream);
}

}  // namespace

int main() {
  HostMemory memory;
  const gmm::result<void> drawn = run(&memory);
  if (!drawn) {
    std::fprintf(stderr, "%s: %s\n", drawn.error().name(), drawn.error().message());
    return 1;
  }
  std::printf("bookkeeping: %lld bytes at most, %lld left\n", static_cast<long long>(memory.highest),
              static_cast<long long>(memory.bytes));
  if (memory.bytes != 0) return 1;
  std::puts("frames: ok");
  return 0;
}
