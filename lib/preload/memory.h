// SPDX-License-Identifier: Apache-2.0
// Allocations and frees of the program: gmm does them and returns CUDA's result, or the real function does.
#ifndef GMM_PRELOAD_MEMORY_H
#define GMM_PRELOAD_MEMORY_H

#include <atomic>

#include "backend/gpu/driver_api.h"
#include "preload/config.h"
#include "preload/region.h"
#include "preload/thread.h"

namespace gmm::preload {

struct Outcome {
  bool done;  // false: call the real function
  CUresult code;
};
inline constexpr Outcome kReal = {false, CUDA_SUCCESS};

// Serves an allocation of the program on the device that `device_of` gives, or on the stream's.
Outcome take(Route route, CUstream stream, uint64_t size, void **out, CUresult (*device_of)(int *));
// Allocates memory of a device, which is the program's current one.
Outcome allocate(Label *label, Route route, int device, uint64_t size, CUstream stream, void **out);

enum class Free { kDevice, kHost };
// Frees memory after the device has finished its work, as cudaFree does.
Outcome free_idle(void *memory, Free kind);
// Frees memory in the order of the stream.
Outcome free_ordered(void *memory, CUstream stream);
// The program is about to destroy the stream.
void forget_stream(CUstream stream);

// Returns the device of the thread's current driver context, or of the stream's.
CUresult current_device(int *out);
CUresult stream_device(CUstream stream, int *out);

// The value of set_memory_margin_bytes().
inline constinit std::atomic<uint64_t> g_margin{0};

}  // namespace gmm::preload
#endif
