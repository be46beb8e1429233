// SPDX-License-Identifier: Apache-2.0
// The purpose of a heap. It never changes.
#ifndef GMM_ENGINE_HEAP_HEAP_OPTIONS_H
#define GMM_ENGINE_HEAP_HEAP_OPTIONS_H

#include <gmm/types.h>

#include <cstdint>

#include "backend/backend.h"

namespace gmm {

struct HeapOptions {
  Kind kind = Kind::kDevice;
  Device device;
  gmm_tag tag = GMM_TAG_DEFAULT;
  const char *tag_name = "";
  uint64_t minimum_extent = 0;
  uint32_t peers = 0;
  bool exportable = false;  // every block lies in one driver allocation
  uint64_t capture = 0;     // the graph capture that the heap serves (engine/heap/capture.h); 0: none

  // Whether a region is one driver allocation, which comes and goes as a whole.
  bool whole_regions() const { return kind != Kind::kVmm || exportable; }
};

}  // namespace gmm
#endif
