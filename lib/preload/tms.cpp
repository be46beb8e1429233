// SPDX-License-Identifier: Apache-2.0
// The functions of torch_memory_saver. No failure ends the process: see preload.h.
#include <cstring>

#include "preload/context.h"
#include "preload/memory.h"
#include "preload/preload.h"

using namespace gmm::preload;

namespace {

constinit std::atomic<int> g_retain{-1};  // -1: the environment decides

using Change = gmm_result (*)(gmm_context *, const gmm_pause_desc *, uint64_t *);

// Finds all tags of a name: one for each kind of contents of its regions.
int change(Change operation, const char *what, const char *name, uint32_t flags) {
  gmm_context *owner = g_context.load(std::memory_order_acquire);
  if (owner == nullptr) return 0;  // nothing was allocated yet
  Inside inside;
  gmm_tag tags[GMM_CONTENTS_FILE + 2];  // one for each kind of contents, and for pageable host memory
  gmm_pause_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.flags = flags;
  const bool all = name == nullptr || name[0] == '\0';
  for (Label *label = all ? nullptr : labels(); label != nullptr; label = label->next) {
    const gmm_tag tag = label->tag.load(std::memory_order_acquire);
    if (tag != 0 && std::strcmp(label->name, name) == 0) tags[desc.tag_count++] = tag;
  }
  if (!all && desc.tag_count == 0) return 0;  // the tag is unknown, or has no memory
  desc.tags = all ? nullptr : tags;
  const gmm_result result = operation(owner, &desc, nullptr);
  if (result >= 0) return 0;
  say_gmm(result, what);
  return result;
}

}  // namespace

#define SETTING(name, field)                     \
  void tms_set_##name(bool value) GMM_NOEXCEPT { \
    region_settings().field = value;             \
    region_changed();                            \
  }                                              \
  bool tms_get_##name(void) GMM_NOEXCEPT { return region_settings().field; }
SETTING(interesting_region, interesting)
SETTING(enable_cpu_backup, cpu_backup)
SETTING(enable_disk_backup, disk_backup)
#undef SETTING

void tms_set_current_tag(const char *tag) GMM_NOEXCEPT {
  // The name of a label is never freed.
  const Label *label = tag != nullptr && tag[0] != '\0' ? label_of(tag, GMM_CONTENTS_DROP) : nullptr;
  if (label == nullptr) {
    if (tag == nullptr || tag[0] == '\0') say("The tag of a region is empty; pass a name.");
    return;
  }
  region_settings().name = label->name;
  region_changed();
}

const char *tms_get_current_tag(void) GMM_NOEXCEPT { return region_settings().name; }

void tms_set_cpu_backup_backend(const char *backend) GMM_NOEXCEPT {
  const bool pageable = backend != nullptr && std::strcmp(backend, "mmap") == 0;
  if (!pageable && (backend == nullptr || std::strcmp(backend, "pinned") != 0)) {
    say("The backend \"%.63s\" of a backup is unknown; pass \"mmap\" or \"pinned\".",
        backend != nullptr ? backend : "");
    return;
  }
  region_settings().pageable = pageable;
  region_changed();
}

const char *tms_get_cpu_backup_backend(void) GMM_NOEXCEPT { return region_settings().pageable ? "mmap" : "pinned"; }

void tms_set_disk_backup_dir(const char *directory) GMM_NOEXCEPT {
  if (directory == nullptr || directory[0] == '\0') {
    say("The name of the directory for backups is empty; pass one.");
    return;
  }
  Inside inside;
  (void)set_backup_directory(g_context.load(std::memory_order_acquire), directory);  // its message stays
}

void tms_set_retain_cpu_backup(bool retain) GMM_NOEXCEPT { g_retain.store(retain, std::memory_order_relaxed); }

bool tms_get_retain_cpu_backup(void) GMM_NOEXCEPT {
  const int set = g_retain.load(std::memory_order_relaxed);
  return set >= 0 ? set != 0 : config().retain;
}

void set_memory_margin_bytes(uint64_t bytes) GMM_NOEXCEPT { g_margin.store(bytes, std::memory_order_relaxed); }

int tms_pause(const char *tag) GMM_NOEXCEPT { return change(gmm_pause, "pause", tag, 0); }

int tms_resume(const char *tag) GMM_NOEXCEPT {
  return change(gmm_resume, "resume", tag, tms_get_retain_cpu_backup() ? GMM_RESUME_RETAIN : 0);
}

uint8_t *tms_get_cpu_backup_pointer(const uint8_t *memory, uint64_t size) GMM_NOEXCEPT {
  gmm_context *owner = g_context.load(std::memory_order_acquire);
  if (owner == nullptr) {
    say("%p: gmm has allocated nothing yet; pass memory of a region.", static_cast<const void *>(memory));
    return nullptr;
  }
  Inside inside;
  const void *kept = nullptr;
  const gmm_result result = gmm_backup_map(owner, memory, size, &kept);
  if (result < 0) say_gmm(result, "backup");
  // The contents are read-only. torch_memory_saver's type is not const.
  return const_cast<uint8_t *>(static_cast<const uint8_t *>(kept));
}

// --- For PyTorch's CUDAPluggableAllocator -----------------------------------------------------------------------

void *tms_torch_malloc(ssize_t size, int device, gmm_preload_stream stream) GMM_NOEXCEPT {
  if (size < 0) {
    say("The size %lld of an allocation is negative; pass a size in bytes.", static_cast<long long>(size));
    return nullptr;
  }
  if (size == 0) return nullptr;  // as cudaMalloc does
  Label *label = current_region();
  if (label == nullptr) label = label_of(config().tag, config().contents);
  if (label == nullptr || context(true) == nullptr) return nullptr;
  void *memory = nullptr;
  const Outcome outcome =
      allocate(label, Route::kDevice, device, static_cast<uint64_t>(size), static_cast<CUstream>(stream), &memory);
  if (!outcome.done) say("This process was forked from one that uses CUDA; start it by exec or spawn.");
  return memory;
}

void tms_torch_free(void *memory, ssize_t, int, gmm_preload_stream) GMM_NOEXCEPT {
  if (memory != nullptr && !free_idle(memory, Free::kDevice).done)
    say("%p was not allocated by this library; free it by the function of its own library.", memory);
}
