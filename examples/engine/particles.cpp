// SPDX-License-Identifier: Apache-2.0
#include "particles.hpp"

#include <dlfcn.h>

#include <cmath>

#include "particles_ptx.hpp"

void step_on_cpu(point *points, uint32_t count, float time) {
  const auto part = [](uint32_t i, uint32_t salt) {
    const uint32_t hash = (i + salt) * 2654435761u;
    return static_cast<float>((hash ^ hash >> 15) * 2246822519u >> 16) / 65536;
  };
  for (uint32_t i = 0; i < count; ++i) {
    const float galaxy = static_cast<float>(i % 3) * 2.094f + 0.35f * time, arm = i % 2 == 0 ? 0 : 3.1416f;
    const float out = part(i, 1), radius = 0.02f + 0.5f * out * out;
    const float spread = (part(i, 7) + part(i, 77) - 1) * (0.4f + out);
    const float angle = arm + 3 * std::log(radius) + spread - 0.5f * time / std::sqrt(radius * radius + 0.01f);
    points[i] = {(0.85f * std::cos(galaxy) + radius * std::cos(angle)) * 0.5625f,
                 0.45f * std::sin(galaxy) + radius * std::sin(angle) * 0.8f, 1 - 0.9f * std::sqrt(out), 2.5f};
  }
}

namespace {

// What the program calls of CUDA's driver. 0 is success; contexts, modules, functions and streams are pointers.
struct driver {
  int (*init)(unsigned flags);
  int (*find)(int *device, int number);
  int (*retain)(void **context, int device);
  int (*release)(int device);
  int (*push)(void *context);
  int (*pop)(void **context);
  int (*load)(void **module, const void *image);
  int (*unload)(void *module);
  int (*get)(void **function, void *module, const char *name);
  int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                unsigned block_z, unsigned shared_bytes, void *stream, void **arguments, void **extra);
};
driver cuda;

// The name of the first function that the library lacks, or nullptr.
const char *look_up(void *library) {
  const char *missing = nullptr;
  const auto take = [&](auto *function, const char *name) {
    *reinterpret_cast<void **>(function) = dlsym(library, name);
    if (*function == nullptr && missing == nullptr) missing = name;
  };
  take(&cuda.init, "cuInit");
  take(&cuda.find, "cuDeviceGet");
  take(&cuda.retain, "cuDevicePrimaryCtxRetain");
  take(&cuda.release, "cuDevicePrimaryCtxRelease_v2");
  take(&cuda.push, "cuCtxPushCurrent_v2");
  take(&cuda.pop, "cuCtxPopCurrent_v2");
  take(&cuda.load, "cuModuleLoadData");
  take(&cuda.unload, "cuModuleUnload");
  take(&cuda.get, "cuModuleGetFunction");
  take(&cuda.launch, "cuLaunchKernel");
  return missing;
}

// The device's context is current while this lives, and the caller's again afterwards.
class current {
 public:
  explicit current(void *context) : is_current_(cuda.push(context) == 0) {}
  current(const current &) = delete;
  current &operator=(const current &) = delete;
  ~current() {
    void *popped = nullptr;
    if (is_current_) cuda.pop(&popped);
  }

 private:
  const bool is_current_;
};

}  // namespace

const char *particles_kernel::open(int number) {
  library_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return "libcuda.so.1";
  if (const char *missing = look_up(library_); missing != nullptr) return missing;
  if (cuda.init(0) != 0) return "cuInit";
  if (cuda.find(&device_, number) != 0) return "cuDeviceGet";
  if (cuda.retain(&context_, device_) != 0) return "cuDevicePrimaryCtxRetain";  // the context that gmm uses too
  const current here(context_);
  if (cuda.load(&module_, kParticlesPtx) != 0) return "cuModuleLoadData";
  return cuda.get(&function_, module_, "particles") == 0 ? nullptr : "cuModuleGetFunction";
}

particles_kernel::~particles_kernel() {
  if (module_ != nullptr) {
    const current here(context_);
    cuda.unload(module_);
  }
  if (context_ != nullptr) cuda.release(device_);
  if (library_ != nullptr) dlclose(library_);
}

bool particles_kernel::launch(void *cuda_stream, void *points, uint32_t count, float time) const {
  constexpr uint32_t kThreads = 256;
  void *arguments[] = {&points, &count, &time};
  const current here(context_);
  return cuda.launch(function_, (count + kThreads - 1) / kThreads, 1, 1, kThreads, 1, 1, 0, cuda_stream, arguments,
                     nullptr) == 0;
}
