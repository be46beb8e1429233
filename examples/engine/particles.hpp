// SPDX-License-Identifier: Apache-2.0
// Where the particles are at a time: by a kernel on a stream of CUDA, or by a function on a CPU.
#ifndef ENGINE_PARTICLES_HPP
#define ENGINE_PARTICLES_HPP

#include <cstdint>

#include "renderer.hpp"

// Three galaxies of two arms go around each other, faster inside than outside.
void step_on_cpu(point *points, uint32_t count, float time);

// The same as PTX, which the driver compiles for its GPU. The functions of the driver are looked up at run time.
class particles_kernel {
 public:
  particles_kernel() = default;
  particles_kernel(const particles_kernel &) = delete;
  particles_kernel &operator=(const particles_kernel &) = delete;
  ~particles_kernel();
  const char *open(int number);  // nullptr, or the function of the driver that is missing or failed
  bool launch(void *cuda_stream, void *points, uint32_t count, float time) const;

 private:
  void *library_ = nullptr, *context_ = nullptr, *module_ = nullptr, *function_ = nullptr;
  int device_ = 0;
};

#endif
