// SPDX-License-Identifier: Apache-2.0
// A small engine. A stream of gmm computes particles in gmm's memory, by a CUDA kernel or on the CPU, and a shader of
// Vulkan draws them from there without a copy.
// Two levels have meshes and textures under tags with budgets. A change of the level resumes one set and pauses the
// other while frames go on. Three frames are written as pictures, and the memory of each tag is printed then.
//
// Usage: engine [FOLDER]     writes frame-*.ppm; the folder is the current one
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <gmm/gmm.hpp>
#include <vector>

#include "renderer.hpp"

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint32_t kFrames = 48, kParticles = 24'000, kMeshPoints = 3'600, kLevels = 2;
#ifdef ENGINE_HAS_KERNEL
constexpr bool kHasKernel = true;
#else
constexpr bool kHasKernel = false;
#endif
constexpr uint64_t kLights = uint64_t{renderer::kWidth} * renderer::kHeight * 3;  // red, green and blue of each pixel

// Without exceptions every function of gmm.hpp returns a result. This engine has no plan B.
template <class T>
T must(gmm::result<T> result) {
  if (!result) {
    std::fprintf(stderr, "engine: %s: %s\n", result.error().name(), result.error().message());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// --- Memory by purpose: a tag with a budget, and a heap whose blocks Vulkan can import -------------------------------

struct pool {
  const char *name = "";
  uint64_t budget = 0;
  gmm::tag tag;
  gmm::heap heap;
};

pool make_pool(gmm::context_ref context, const char *name, uint64_t budget) {
  pool made;
  made.name = name;
  made.budget = budget;
  gmm::tag_desc kept;
  kept.contents = GMM_CONTENTS_HOST;
  made.tag = must(gmm::tag::create(context, name, kept));
  must(context.limit_set(gmm::scope().tag(made.tag), budget));
  gmm::heap_desc desc;
  desc.kind = GMM_KIND_VMM;
  desc.tag = made.tag;
  desc.flags = GMM_HEAP_EXPORTABLE;
  made.heap = must(gmm::heap::create(context, desc));
  return made;
}

// A block, and Vulkan's view of it while it has one.
struct resource {
  gmm::buffer block;
  view drawn;
};

// --- The contents of the levels --------------------------------------------------------------------------------------

std::vector<point> mesh_of(uint32_t level) {
  std::vector<point> points(kMeshPoints);
  for (uint32_t i = 0; i < kMeshPoints; ++i) {
    const float column = static_cast<float>(i % 60) / 59.0f, row = static_cast<float>(i / 60) / 59.0f;
    const float angle = column * 6.2832f + row, radius = 0.1f + row * 1.1f;
    points[i] = level == 0 ? point{column * 2 - 1, row * 2 - 1, 0.1f, 2}
                           : point{std::cos(angle) * radius * 0.5625f, std::sin(angle) * radius, 0.1f, 2.5f};
  }
  return points;
}
std::vector<uint32_t> palette_of(uint32_t level) {
  std::vector<uint32_t> colours(256);
  for (uint32_t i = 0; i < 256; ++i) {
    const uint32_t low = 30 + i / 6, middle = 40 + i * 3 / 5, high = 60 + i * 195 / 255;
    const uint32_t ember = high | middle * i / 255 << 8 | low << 16, ice = low | middle << 8 | high << 16;
    colours[i] = (level == 0 ? ember : ice) | 150u << 24;
  }
  return colours;
}

// --- The engine ------------------------------------------------------------------------------------------------------

class engine {
 public:
  engine(gmm::context_ref context, const gmm_device_info &device, renderer &with)
      : context_(context), device_(device), renderer_(with) {
    static constexpr const char *kNames[] = {"meshes 1",   "textures 1", "meshes 2",
                                             "textures 2", "simulation", "staging"};
    static constexpr uint64_t kBudgets[] = {8, 48, 8, 48, 16, 16};
    for (uint32_t i = 0; i < 6; ++i) pools_[i] = make_pool(context, kNames[i], kBudgets[i] * kMiB);
    stream_ = must(gmm::stream::create(context));
    gmm::semaphore_desc semaphore;
    if (is_cpu()) {
      semaphore.type = GMM_SEMAPHORE_CALLS;
      semaphore.calls = {wait, signal, this};
    } else {
      semaphore.type = GMM_SEMAPHORE_TIMELINE_FD;
      semaphore.fd = renderer_.timeline_fd();
    }
    timeline_ = must(gmm::event::import_semaphore(context, semaphore));
    if (!is_cpu()) close(semaphore.fd);
  }

  // Vulkan lets go first, then the blocks end, then their heaps.
  ~engine() {
    must(stream_.synchronize());
    hide(&levels_[shown_]);
    for (resource *each : {&particles_, &pixels_}) renderer_.end(&each->drawn);
  }

  void load() {
    for (uint32_t i = 0; i < kLevels; ++i) {
      level &of = levels_[i];
      of.meshes = &pools_[2 * i];
      of.textures = &pools_[2 * i + 1];
      of.mesh.block = must(of.meshes->heap.alloc(kMeshPoints * sizeof(point), stream_));
      of.texture.block = must(of.textures->heap.alloc(32 * kMiB, stream_));  // the palette is its beginning
      const std::vector<point> mesh = mesh_of(i);
      const std::vector<uint32_t> palette = palette_of(i);
      must(context_.copy(of.mesh.block.data(), mesh.data(), mesh.size() * sizeof(point), stream_));
      must(context_.fill(of.texture.block.data(), 0x5a, of.texture.block.size(), stream_));
      must(context_.copy(of.texture.block.data(), palette.data(), palette.size() * 4, stream_));
      must(stream_.synchronize());
    }
    particles_.block = must(pools_[4].heap.alloc(kParticles * sizeof(point), stream_));
    pixels_.block = must(pools_[5].heap.alloc(kLights * sizeof(uint32_t), stream_));
    if (!is_cpu() && !has_kernel()) {
      gmm::alloc_desc host;
      host.kind = GMM_KIND_HOST;
      host.stream = stream_;
      computed_ = must(context_.alloc(kParticles * sizeof(point), host));
    }
    show(&particles_);
    show(&pixels_);
    show(&levels_[0]);
    must(change(levels_[1], false).wait());  // the second level waits in host memory
  }

  // The frame's light.
  std::vector<uint32_t> frame(uint32_t number) {
    change_level(number);
    const uint64_t computed = 2 * number + 1, drawn = computed + 1;
    must(stream_.wait_event(timeline_, computed - 1));
    must(context_.fill(pixels_.block.data(), 0, pixels_.block.size(), stream_));
    compute();
    must(timeline_.record(stream_, computed));
    renderer_.draw(computed, drawn);
    must(stream_.wait_event(timeline_, drawn));
    std::vector<uint32_t> light(kLights);
    must(context_.copy(light.data(), pixels_.block.data(), pixels_.block.size(), stream_));
    must(stream_.synchronize());
    return light;
  }

  void print_statistics(uint32_t frame) const {
    std::printf("frame %u, level %u:", frame, shown_ + 1);
    for (const pool &of : pools_) {
      const gmm_stats_info stats = must(context_.stats_query(gmm::scope().tag(of.tag)));
      std::printf(" %s %.1f/%.0f MiB%s;", of.name, static_cast<double>(stats.reserved_bytes) / kMiB,
                  static_cast<double>(of.budget) / kMiB, stats.paused_bytes != 0 ? " paused" : "");
    }
    std::printf("\n");
  }

  bool has_kernel() const { return kHasKernel && !is_cpu(); }

 private:
  struct level {
    pool *meshes, *textures;
    resource mesh, texture;
  };
  bool is_cpu() const { return (device_.capabilities & GMM_DEVICE_IS_CPU) != 0; }
  float time() { return static_cast<float>(steps_++) * 0.06f; }

  // Makes Vulkan's view of a block: by the device's address on the CPU, by a descriptor on a GPU. Both name the
  // driver's whole allocation, in which the block has an offset.
  void show(resource *of) {
    const gmm_pointer_info where = must(context_.query(of->block.data()));
    memory_source source;
    source.size = where.allocation_size;
    source.offset = reinterpret_cast<uintptr_t>(of->block.data()) - reinterpret_cast<uintptr_t>(where.allocation_base);
    source.address = static_cast<std::byte *>(where.device_pointer) - source.offset;
    if (!is_cpu()) {
      const gmm_ipc_fd_info out = must(context_.ipc_export_fd(of->block.data()));
      source.fd = out.fd;
      source.size = out.size;
      source.offset = out.offset;
    }
    of->drawn = renderer_.import(source, of->block.size());
  }
  void show(level *of) {
    show(&of->mesh);
    show(&of->texture);
    renderer_.bind(of->mesh.drawn, particles_.drawn, of->texture.drawn, pixels_.drawn, kMeshPoints + kParticles);
  }
  // Before a pause: a view would keep the memory that the pause gives back.
  void hide(level *of) {
    renderer_.end(&of->mesh.drawn);
    renderer_.end(&of->texture.drawn);
  }

  gmm::ticket change(const level &of, bool resumes) {
    const gmm_tag tags[] = {of.meshes->tag, of.textures->tag};
    gmm::pause_desc desc;
    desc.tags = tags;
    desc.tag_count = 2;
    return must(resumes ? context_.resume_async(desc) : context_.pause_async(desc));
  }

  // Frames 16 and 32 ask for the other level. It is shown in the frame that finds it there; then the old one may go.
  void change_level(uint32_t number) {
    if (number == 16 || number == 32) {
      if (leaving_) must(leaving_.wait());  // the level that comes must have gone before
      arriving_ = change(levels_[1 - shown_], true);
    }
    if (!arriving_ || !must(arriving_.wait_for(gmm::milliseconds(number % 16 == 8 ? 60'000 : 0)))) return;
    arriving_ = gmm::ticket();
    hide(&levels_[shown_]);
    leaving_ = change(levels_[shown_], false);
    shown_ = 1 - shown_;
    show(&levels_[shown_]);
  }

  // Runs on the stream's thread.
  static void step(void *self) {
    engine &of = *static_cast<engine *>(self);
    const gmm::buffer &to = of.is_cpu() ? of.particles_.block : of.computed_;
    point *points = static_cast<point *>(must(of.context_.query(to.data())).device_pointer);
    const float now = of.time();
    for (uint32_t i = 0; i < kParticles; ++i) points[i] = particle(i, now);
  }

  // Queues the next step of the particles: the kernel, or the function and a copy where the CPU cannot write into them.
  void compute() {
    constexpr uint64_t kBytes = kParticles * sizeof(point);
#ifdef ENGINE_HAS_KERNEL
    if (has_kernel()) {
      if (launch_particles(stream_.get(), static_cast<point *>(particles_.block.data()), kParticles, time())) return;
      std::fputs("engine: the kernel could not be launched\n", stderr);
      std::exit(1);
    }
#endif
    must(stream_.call(step, this));
    if (!is_cpu()) must(context_.copy(particles_.block.data(), computed_.data(), kBytes, stream_));
  }

  static int32_t wait(void *self, uint64_t value) {
    const renderer &with = static_cast<engine *>(self)->renderer_;
    const VkSemaphore semaphore = with.timeline();
    const VkSemaphoreWaitInfo info = {VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, nullptr, 0, 1, &semaphore, &value};
    return vkWaitSemaphores(with.device(), &info, UINT64_MAX);
  }
  static int32_t signal(void *self, uint64_t value) {
    const renderer &with = static_cast<engine *>(self)->renderer_;
    const VkSemaphoreSignalInfo info = {VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, nullptr, with.timeline(), value};
    return vkSignalSemaphore(with.device(), &info);
  }

  gmm::context_ref context_;
  const gmm_device_info device_;
  renderer &renderer_;
  gmm::stream stream_;
  gmm::event timeline_;  // Vulkan's timeline semaphore: 2 f + 1: frame f is computed; 2 f + 2: it is drawn
  pool pools_[6];
  level levels_[kLevels];
  resource particles_, pixels_;
  gmm::buffer computed_;  // without the kernel, where the CPU cannot write into the particles themselves
  uint32_t shown_ = 0, steps_ = 0;
  gmm::ticket arriving_, leaving_;
};

bool write_ppm(const char *folder, uint32_t number, const std::vector<uint32_t> &light) {
  static constexpr uint32_t kBackground[] = {3, 3, 8};
  char path[512];
  std::snprintf(path, sizeof path, "%s/frame-%u.ppm", folder, number);
  std::FILE *file = std::fopen(path, "wb");
  if (file == nullptr) return false;
  std::fprintf(file, "P6 %u %u 255\n", renderer::kWidth, renderer::kHeight);
  for (uint64_t i = 0; i < kLights; ++i)
    std::fputc(static_cast<int>(std::min(255u, kBackground[i % 3] + light[i])), file);
  return std::fclose(file) == 0;
}

int run(const char *folder) {
  const gmm::context context = must(gmm::context::create());
  const gmm_device_info device = must(context.device_query(gmm::device_id(0)));
  renderer with;
  if (const char *why = with.open((device.capabilities & GMM_DEVICE_IS_CPU) != 0, device.uuid); why != nullptr) {
    std::printf("skipped: %s\n", why);
    with.close();
    return 0;
  }
  {
    engine game(context, device, with);
    game.load();
    for (uint32_t number = 0; number < kFrames; ++number) {
      const std::vector<uint32_t> light = game.frame(number);
      if (number % 16 != 12) continue;
      game.print_statistics(number);
      if (!write_ppm(folder, number, light)) return 1;
    }
    std::printf("%u frames, computed %s %s, drawn by %s\n", kFrames, game.has_kernel() ? "by a kernel on" : "on",
                device.name, with.name());
  }
  with.close();
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  const int code = run(argc > 1 ? argv[1] : ".");
  if (code == 0) std::puts("engine: ok");
  return code;
}
