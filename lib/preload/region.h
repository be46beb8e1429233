// SPDX-License-Identifier: Apache-2.0
// Regions: which threads' allocations gmm takes, and their label. A label is a name and what a pause does with the
// contents.
#ifndef GMM_PRELOAD_REGION_H
#define GMM_PRELOAD_REGION_H

#include <gmm/pause.h>

#include <atomic>

#include "preload/config.h"
#include "preload/thread.h"

namespace gmm::preload {

struct HeapEntry;

// A label, which is a tag of gmm. It is created once and never freed.
struct Label {
  char *name;
  gmm_contents contents;
  bool pageable;                   // contents in host memory are not page-locked
  std::atomic<gmm_tag> tag;        // 0: not created yet
  std::atomic<HeapEntry *> heaps;  // context.cpp keeps them
  Label *next;
};

// All labels so far, the newest first.
Label *labels();
// Finds or creates a label. NULL: there is no memory, with a message.
Label *label_of(const char *name, gmm_contents contents, bool pageable = false);
// Writes "NAME", "NAME#host", "NAME#mmap" or "NAME#file", shortened to the length of a tag's name.
void tag_name(const Label &label, char out[64]);

// While this is false, no region was ever entered, and callers skip the rest.
inline constinit std::atomic<bool> g_regions{false};
// The label of the calling thread's allocations. NULL: the thread is in no region.
Label *current_region();

// The thread's own settings. At first they are those with which threads start.
RegionSettings &region_settings();
// The caller has changed the settings that region_settings() gave.
void region_changed();

}  // namespace gmm::preload
#endif
