// SPDX-License-Identifier: Apache-2.0
// Regions: which allocations of which threads are taken, and the label, a name and what becomes of the contents, that they go under.
#ifndef GMM_PRELOAD_REGION_H
#define GMM_PRELOAD_REGION_H

#include <gmm/pause.h>

#include <atomic>

#include "preload/config.h"
#include "preload/thread.h"

namespace gmm::preload {

struct HeapEntry;

// A name and a kind of contents: a tag of gmm. Made once, never freed.
struct Label {
  char *name;
  gmm_contents contents;
  std::atomic<gmm_tag> tag;        // 0: not made yet
  std::atomic<HeapEntry *> heaps;  // heap_table.h
  Label *next;
};

// All labels so far, newest first.
Label *labels();
// Finds or makes one; NULL with a message when there is no memory.
Label *label_of(const char *name, gmm_contents contents);
// "NAME", "NAME#host" or "NAME#file", shortened where a tag's name must be.
void tag_name(const char *name, gmm_contents contents, char out[64]);

// False, and everything else here may be left out, while no region was ever entered.
inline constinit std::atomic<bool> g_regions{false};
// The label that the calling thread's allocations go under; NULL: it is in no region.
Label *current_region();

// The thread's own settings, as they are or as threads start.
ThreadState &region_settings();
// After a change of them.
void region_changed();

}  // namespace gmm::preload
#endif
