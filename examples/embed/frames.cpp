// SPDX-License-Identifier: Apache-2.0
// How a game or a visualisation engine embeds gmm: linked statically, without exceptions, with the engine's own log and
// host allocator, one heap for what lives as long as a frame and a tag for what lives as long as a level. Without
// exceptions every function of gmm.hpp returns a gmm::result.
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

// Textures leave the device while a menu is open and come back at the same address. Returns their last byte.
gmm::result<unsigned char> level(gmm::context_ref context, gmm::stream_ref stream) {
  gmm::tag_desc kept;
  kept.contents = GMM_CONTENTS_HOST;
  auto textures = gmm::tag::create(context, "textures", kept);
  if (!textures) return textures.error();

  gmm::alloc_desc desc;
  desc.kind = GMM_KIND_VMM;
  desc.tag = *textures;
  desc.stream = stream;
  auto texture = context.alloc(16 * kMiB, desc);
  if (!texture) return texture.error();
  if (auto filled = context.fill(texture->data(), 0x7e, texture->size(), stream); !filled) return filled.error();

  auto gone = textures->pause();
  if (!gone) return gone.error();
  auto back = textures->resume();
  if (!back) return back.error();
  unsigned char last = 0;
  const std::byte *end = texture->as().data() + texture->size();
  if (auto copied = context.copy(&last, end - 1, 1, stream); !copied) return copied.error();
  if (auto waited = stream.synchronize(); !waited) return waited.error();
  std::printf("textures: %llu MiB went, %llu MiB came back, the last byte is 0x%02x\n",
              static_cast<unsigned long long>(*gone / kMiB), static_cast<unsigned long long>(*back / kMiB),
              unsigned{last});
  return last;
}

// Objects end in the reverse order: the heap and the stream before the context, whose end returns all memory.
gmm::result<unsigned char> run(HostMemory *memory) {
  gmm::context_desc desc;
  desc.log = {log, nullptr};
  desc.host_allocator = {allocate, deallocate, memory};
  auto context = gmm::context::create(desc);
  if (!context) return context.error();
  auto stream = gmm::stream::create(*context);
  if (!stream) return stream.error();
  auto frame_heap = gmm::heap::create(*context);
  if (!frame_heap) return frame_heap.error();
  if (auto drawn = draw(*context, *frame_heap, *stream); !drawn) return drawn.error();
  return level(*context, *stream);
}

}  // namespace

int main() {
  HostMemory memory;
  const gmm::result<unsigned char> last = run(&memory);
  if (!last) {
    std::fprintf(stderr, "%s: %s\n", last.error().name(), last.error().message());
    return 1;
  }
  std::printf("bookkeeping: %lld bytes at most, %lld left\n", static_cast<long long>(memory.highest),
              static_cast<long long>(memory.bytes));
  if (memory.bytes != 0 || *last != 0x7e) return 1;
  std::puts("frames: ok");
  return 0;
}
