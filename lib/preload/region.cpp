// SPDX-License-Identifier: Apache-2.0
#include "preload/region.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/lock.h"

namespace gmm::preload {
namespace {

constexpr uint64_t kLongestName = 48;  // of a tag's name, before the suffix of its contents

constinit std::atomic<Label *> g_labels{nullptr};
constinit Mutex g_label_mutex{LockRank::kPreloadLabels};

Label *look_up(const char *name, gmm_contents contents, bool pageable) {
  for (Label *label = labels(); label != nullptr; label = label->next)
    if (label->contents == contents && label->pageable == pageable && std::strcmp(label->name, name) == 0) return label;
  return nullptr;
}

void find_label(ThreadState *thread) {
  const RegionSettings &region = thread->region;
  const gmm_contents contents = region.cpu_backup    ? GMM_CONTENTS_HOST
                                : region.disk_backup ? GMM_CONTENTS_FILE
                                                     : GMM_CONTENTS_DROP;
  thread->label = region.interesting ? label_of(region.name, contents, region.pageable) : nullptr;
}

// The calling thread, with its settings.
ThreadState &configured_thread() {
  ThreadState &thread = t_thread;
  if (!thread.configured) {
    thread.configured = true;
    thread.region = config().region;
    find_label(&thread);
  }
  return thread;
}

}  // namespace

Label *labels() { return g_labels.load(std::memory_order_acquire); }

Label *label_of(const char *name, gmm_contents contents, bool pageable) {
  pageable = pageable && contents == GMM_CONTENTS_HOST;
  if (Label *known = look_up(name, contents, pageable); known != nullptr) return known;
  LockGuard guard(g_label_mutex);
  if (Label *known = look_up(name, contents, pageable); known != nullptr) return known;
  char *copy = strdup(name);
  void *memory = copy != nullptr ? std::malloc(sizeof(Label)) : nullptr;
  if (memory == nullptr) {
    std::free(copy);
    say("The host has no memory for the tag \"%.63s\".", name);
    return nullptr;
  }
  Label *label = ::new (memory) Label{copy, contents, pageable, {0}, {nullptr}, labels()};
  g_labels.store(label, std::memory_order_release);
  return label;
}

void tag_name(const Label &label, char out[64]) {
  static const char *const kSuffix[] = {"", "#host", "#file"};
  const char *name = label.name;
  const char *suffix = label.pageable ? "#mmap" : kSuffix[label.contents <= GMM_CONTENTS_FILE ? label.contents : 0];
  const uint64_t length = std::strlen(name);
  if (length <= kLongestName) {
    std::snprintf(out, 64, "%s%s", name, suffix);
    return;
  }
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (uint64_t i = 0; i < length; ++i) hash = (hash ^ static_cast<unsigned char>(name[i])) * 1099511628211ull;
  std::snprintf(out, 64, "%.31s~%016llx%s", name, static_cast<unsigned long long>(hash), suffix);
}

Label *current_region() { return configured_thread().label; }

RegionSettings &region_settings() { return configured_thread().region; }

void region_changed() {
  find_label(&t_thread);
  if (t_thread.region.interesting) g_regions.store(true, std::memory_order_relaxed);
}

}  // namespace gmm::preload
