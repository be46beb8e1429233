// SPDX-License-Identifier: Apache-2.0
// Ranges and blocks for NVIDIA's tools, such as Nsight Systems and compute-sanitizer, by NVTX version 3.
//
// A tool names its library in NVTX_INJECTION64_PATH. Each library of the process has a copy of NVTX, which gives the
// tool a table of functions to fill in. nvtx.cpp is gmm's copy. So every build has the ranges: NVTX's own copy lies in
// headers of the CUDA toolkit, which a build does not need.
#ifndef GMM_BASE_NVTX_H
#define GMM_BASE_NVTX_H

#include <cstdint>

#include "base/no_copy.h"

namespace gmm {

// Loads the tool's library, at the first call of the process. The caller holds no lock.
void load_nvtx();
bool has_nvtx_tool();
void push_nvtx_range(const char *name, uint64_t bytes);
void pop_nvtx_range();

// A range of the thread. bytes() -> uint64_t is its payload, and is called for a tool only.
class NvtxRange : NoCopy {
 public:
  template <typename Fn>
  NvtxRange(const char *name, Fn bytes) : is_open_(has_nvtx_tool()) {
    if (is_open_) push_nvtx_range(name, bytes());
  }
  ~NvtxRange() {
    if (is_open_) pop_nvtx_range();
  }

 private:
  const bool is_open_;
};

// --- The memory extension ---
// compute-sanitizer takes it with --nvtx yes. It reports an access to an allocation of the driver that lies in none of
// its blocks. It refuses mapped memory.

bool has_nvtx_memory_tool();
// From now on no block lies there. NULL: the tool refuses the allocation.
void *begin_nvtx_allocation(uintptr_t base, uint64_t size);
// With its blocks.
void end_nvtx_allocation(void *allocation);
void begin_nvtx_block(void *allocation, uintptr_t block, uint64_t size);
void end_nvtx_block(uintptr_t block);

}  // namespace gmm
#endif
