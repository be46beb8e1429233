// SPDX-License-Identifier: Apache-2.0
#include "particles.hpp"

static __global__ void particles(point *points, uint32_t count, float time) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) points[i] = particle(i, time);
}

bool launch_particles(void *cuda_stream, point *points, uint32_t count, float time) {
  particles<<<(count + 255) / 256, 256, 0, static_cast<cudaStream_t>(cuda_stream)>>>(points, count, time);
  return cudaGetLastError() == cudaSuccess;
}
