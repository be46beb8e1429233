// SPDX-License-Identifier: Apache-2.0
// What an allocation or free of the program comes to: done by gmm, with the number that CUDA would answer, or the real function's.
#ifndef GMM_PRELOAD_MEMORY_H
#define GMM_PRELOAD_MEMORY_H

#include <atomic>

#include "preload/config.h"
#include "preload/cuda_types.h"
#include "preload/region.h"
#include "preload/thread.h"

namespace gmm::preload {

struct Outcome {
  bool done;  // false: call the real function
  Code code;
};
inline constexpr Outcome kReal = {false, kSuccess};

// The label for an allocation by these calls; NULL: it is the real function's. The first question of every hook.
Label *wanted(Route route);

// Memory of a device; `device` as the program's current one.
Outcome allocate(Label *label, Route route, int device, uint64_t size, Stream stream, void **out);

enum class Free { kDevice, kHost };
// Waits until the device is done with the memory, as cudaFree does.
Outcome free_idle(void *memory, Free kind);
// In the order of the stream.
Outcome free_ordered(void *memory, Stream stream);
// A stream that the program is about to destroy.
void forget_stream(Stream stream);

// The device of the thread's current driver context, or of the stream's.
Code current_device(int *out);
Code stream_device(Stream stream, int *out);

// set_memory_margin_bytes()
inline constinit std::atomic<uint64_t> g_margin{0};

}  // namespace gmm::preload
#endif
