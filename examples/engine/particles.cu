// SPDX-License-Identifier: Apache-2.0
// The particles as a kernel: what step_on_cpu() of particles.cpp computes. particles_ptx.hpp is this file as PTX, by
// nvcc --ptx -arch=compute_75, so that neither the build nor the program needs the toolkit.

static __device__ float part(unsigned i, unsigned salt) {
  const unsigned hash = (i + salt) * 2654435761u;
  return (float)((hash ^ hash >> 15) * 2246822519u >> 16) / 65536;
}

// From -pi to pi, where the fast sine and cosine are off by 2^-20 at most.
static __device__ float near_zero(float angle) { return angle - 6.2831853f * rintf(angle * 0.15915494f); }

extern "C" __global__ void particles(float4 *points, unsigned count, float time) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float galaxy = near_zero((float)(i % 3) * 2.094f + 0.35f * time), arm = i % 2 == 0 ? 0 : 3.1416f;
  const float out = part(i, 1), radius = 0.02f + 0.5f * out * out;
  const float spread = (part(i, 7) + part(i, 77) - 1) * (0.4f + out);
  const float angle =
      near_zero(arm + 3 * __logf(radius) + spread - 0.5f * time / __fsqrt_rn(radius * radius + 0.01f));
  points[i] = make_float4((0.85f * __cosf(galaxy) + radius * __cosf(angle)) * 0.5625f,
                          0.45f * __sinf(galaxy) + radius * __sinf(angle) * 0.8f, 1 - 0.9f * __fsqrt_rn(out), 2.5f);
}
