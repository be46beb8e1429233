// SPDX-License-Identifier: Apache-2.0
// The position of each particle at a time: three galaxies of two arms go around each other, faster inside than outside.
// A kernel and the CPU share this function.
#ifndef ENGINE_PARTICLES_HPP
#define ENGINE_PARTICLES_HPP

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define ENGINE_BOTH_SIDES __host__ __device__
#else
#define ENGINE_BOTH_SIDES
#endif

// A point of a mesh or a particle, as the shader reads it.
struct point {
  float x, y, colour, size;
};

ENGINE_BOTH_SIDES inline float hashed(uint32_t i, uint32_t salt) {
  const uint32_t hash = (i + salt) * 2654435761u;
  return static_cast<float>((hash ^ hash >> 15) * 2246822519u >> 16) / 65536;
}

ENGINE_BOTH_SIDES inline point particle(uint32_t i, float time) {
  const float galaxy = static_cast<float>(i % 3) * 2.094f + 0.35f * time, arm = i % 2 == 0 ? 0 : 3.1416f;
  const float out = hashed(i, 1), radius = 0.02f + 0.5f * out * out;
  const float spread = (hashed(i, 7) + hashed(i, 77) - 1) * (0.4f + out);
  const float angle = arm + 3 * logf(radius) + spread - 0.5f * time / sqrtf(radius * radius + 0.01f);
  return {(0.85f * cosf(galaxy) + radius * cosf(angle)) * 0.5625f, 0.45f * sinf(galaxy) + radius * sinf(angle) * 0.8f,
          1 - 0.9f * sqrtf(out), 2.5f};
}

// Queues the kernel on a stream of CUDA, in the device's primary context, which gmm uses too. In particles.cu, which
// is part of the engine where the build found nvcc.
extern "C" bool launch_particles(void *cuda_stream, point *points, uint32_t count, float time);

#endif
