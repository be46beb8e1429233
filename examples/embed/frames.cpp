// SPDX-License-Identifier: Apache-2.0
// How a game or a visualisation engine embeds gmm: linked statically, without exceptions, with the engine's own log and
// host allocator, one heap for what lives as long as a level and one for what lives as long as a frame.
#include <gmm/gmm.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

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

bool failed(gmm_result result, const char *what) {
  if (result >= 0) return false;
  std::fprintf(stderr, "%s: %s: %s\n", what, gmm_result_name(result), gmm_last_error_message());
  return true;
}

// Three frames of transient buffers on one stream: a buffer that was freed on the stream comes back at once.
bool draw(gmm_heap *frame_heap, gmm_context *context, gmm_stream stream) {
  for (int frame = 0; frame < 3; ++frame) {
    void *vertices = nullptr, *indices = nullptr;
    if (failed(gmm_heap_alloc(frame_heap, 4 * kMiB, 0, 0, stream, &vertices), "vertices")) return false;
    if (failed(gmm_heap_alloc(frame_heap, kMiB, 0, 0, stream, &indices), "indices")) return false;
    if (failed(gmm_fill(context, vertices, 0x3f, 4 * kMiB, stream), "fill")) return false;
    std::printf("frame %d: vertices %p, indices %p\n", frame, vertices, indices);
    if (failed(gmm_free(context, indices, stream), "free") || failed(gmm_free(context, vertices, stream), "free"))
      return false;
  }
  return !failed(gmm_stream_synchronize(context, stream), "synchronize");
}

// Textures leave the device while a menu is open and come back at the same address.
bool level(gmm_context *context, gmm_stream stream) {
  gmm_tag_desc kept{};
  kept.struct_size = sizeof kept;
  kept.contents = GMM_CONTENTS_HOST;
  gmm_tag textures = 0;
  if (failed(gmm_tag_create(context, "textures", &kept, &textures), "tag")) return false;

  gmm_alloc_desc desc{};
  desc.struct_size = sizeof desc;
  desc.kind = GMM_KIND_VMM;
  desc.tag = textures;
  desc.stream = stream;
  void *texture = nullptr;
  if (failed(gmm_alloc(context, 16 * kMiB, &desc, &texture), "texture")) return false;
  if (failed(gmm_fill(context, texture, 0x7e, 16 * kMiB, stream), "fill")) return false;

  gmm_pause_desc pause{};
  pause.struct_size = sizeof pause;
  pause.tags = &textures;
  pause.tag_count = 1;
  uint64_t gone = 0, back = 0;
  if (failed(gmm_pause(context, &pause, &gone), "pause") || failed(gmm_resume(context, &pause, &back), "resume"))
    return false;
  unsigned char last = 0;
  if (failed(gmm_copy(context, &last, static_cast<unsigned char *>(texture) + 16 * kMiB - 1, 1, stream), "read"))
    return false;
  if (failed(gmm_stream_synchronize(context, stream), "synchronize")) return false;
  std::printf("textures: %llu MiB went, %llu MiB came back, the last byte is 0x%02x\n",
              static_cast<unsigned long long>(gone / kMiB), static_cast<unsigned long long>(back / kMiB),
              unsigned{last});
  return !failed(gmm_free(context, texture, stream), "free") && last == 0x7e;
}

bool run(gmm_context *context) {
  gmm_heap_desc desc{};
  desc.struct_size = sizeof desc;
  desc.kind = GMM_KIND_DEVICE;
  gmm_heap *frame_heap = nullptr;
  gmm_stream stream = nullptr;
  if (failed(gmm_stream_create(context, nullptr, &stream), "stream")) return false;
  if (failed(gmm_heap_create(context, &desc, &frame_heap), "heap")) return false;
  const bool good = draw(frame_heap, context, stream) && level(context, stream);
  return !failed(gmm_heap_destroy(frame_heap), "heap") && !failed(gmm_stream_destroy(context, stream), "stream") &&
         good;
}

}  // namespace

int main() {
  HostMemory memory;
  gmm_context_desc desc{};
  desc.struct_size = sizeof desc;
  desc.log = {log, nullptr};
  desc.host_allocator = {allocate, deallocate, &memory};
  gmm_context *context = nullptr;
  if (failed(gmm_context_create(&desc, &context), "context")) return 1;
  const bool good = run(context);
  if (failed(gmm_context_release(context), "release")) return 1;
  std::printf("bookkeeping: %lld bytes at most, %lld left\n", static_cast<long long>(memory.highest),
              static_cast<long long>(memory.bytes));
  if (memory.bytes != 0 || !good) return 1;
  std::puts("frames: ok");
  return 0;
}
