// SPDX-License-Identifier: Apache-2.0
#include "preload/context.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/lock.h"
#include "preload/preload.h"
#include "preload/real.h"

namespace gmm::preload {
namespace {

constinit Mutex g_context_mutex{LockRank::kPreloadContext};
constinit std::atomic<bool> g_failed{false};
constinit std::atomic<bool> g_cuda{false};
constinit char g_reason[640] = "";

constinit Mutex g_settings_mutex{LockRank::kPreloadSettings};
constinit char *g_directory = nullptr;  // NULL: the environment's

// Files in a directory that was asked for have names, as users of torch_memory_saver expect. The caller holds
// g_settings_mutex.
gmm_result apply_directory(gmm_context *context, const char *directory) {
  gmm_backup_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.directory = directory != nullptr ? directory : config().disk_directory;
  desc.flags = GMM_BACKUP_NAMED_FILES;
  const gmm_result result = desc.directory == nullptr ? gmm_result{GMM_OK} : gmm_backup_configure(context, &desc);
  if (result < 0) say_gmm(result, "backups");
  return result;
}

gmm_context *make() {
  gmm_context_desc desc = {};
  desc.struct_size = sizeof desc;
  gmm_context *made = nullptr;
  gmm_result result = gmm_context_create(&desc, &made);
  gmm_context_info info = {};
  info.struct_size = sizeof info;
  if (result >= 0) result = gmm_context_query(made, &info);
  if (result >= 0) {
    // A directory that is not writable does not prevent the use of gmm. A pause that needs it will report it.
    LockGuard guard(g_settings_mutex);
    if (apply_directory(made, g_directory) < 0) std::fprintf(stderr, "gmm preload: %s\n", t_thread.message);
    g_cuda.store(info.backend == GMM_BACKEND_CUDA, std::memory_order_relaxed);
    g_context.store(made, std::memory_order_release);
    return made;
  }
  say_gmm(result, "No context of gmm");
  std::memcpy(g_reason, t_thread.message, sizeof g_reason);
  // Without a driver the real functions report that. Any other cause is printed, because nothing goes to gmm from now
  // on.
  if (result != GMM_ERROR_NO_BACKEND)
    std::fprintf(stderr, "gmm preload: %s; the program uses CUDA's own functions\n", g_reason);
  g_failed.store(true, std::memory_order_release);
  return nullptr;
}

uint32_t peers_of(gmm_device device) {
  const Driver *entries = driver();
  gmm_context_info info = {};
  info.struct_size = sizeof info;
  if (!context_is_cuda() || entries == nullptr) return 0;
  if (gmm_context_query(g_context.load(std::memory_order_relaxed), &info) != GMM_OK) return 0;
  uint32_t peers = 0;
  for (uint32_t other = 0; other < info.device_count && other < 32; ++other) {
    int can = 0;
    if (static_cast<gmm_device>(other) == device) continue;
    if (entries->cuDeviceCanAccessPeer(&can, static_cast<int>(other), device) == CUDA_SUCCESS && can != 0)
      peers |= 1u << other;
  }
  return peers;
}

gmm_result make_heap(Label *label, gmm_device device, gmm_kind kind, gmm_heap **out) {
  gmm_heap_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.device = device;
  desc.kind = kind;
  if (gmm_result result = tag_of(label, &desc.tag); result < 0) return result;
  gmm_context *owner = g_context.load(std::memory_order_acquire);
  gmm_device_info info = {};
  info.struct_size = sizeof info;
  if (gmm_result result = gmm_device_query(owner, device, &info); result < 0) return result;
  if (kind == GMM_KIND_VMM && (info.kinds & (1u << GMM_KIND_VMM)) == 0) desc.kind = GMM_KIND_DEVICE;
  if (desc.kind == GMM_KIND_VMM) desc.peer_devices = peers_of(device);
  return gmm_heap_create(owner, &desc, out);
}

gmm_heap *find(const Label *label, gmm_device device, gmm_kind kind, bool ordered) {
  for (HeapEntry *entry = label->heaps.load(std::memory_order_acquire); entry != nullptr; entry = entry->next)
    if (entry->device == device && entry->kind == kind && entry->ordered == ordered) return entry->heap;
  return nullptr;
}

}  // namespace

bool context_is_cuda() { return g_cuda.load(std::memory_order_relaxed); }

gmm_context *context(bool retry) {
  gmm_context *known = g_context.load(std::memory_order_acquire);
  if (__builtin_expect(known != nullptr, 1)) return known;
  if (g_failed.load(std::memory_order_acquire) && !retry) {
    say("%s", g_reason);
    return nullptr;
  }
  Inside inside;
  LockGuard guard(g_context_mutex);
  known = g_context.load(std::memory_order_relaxed);
  return known == nullptr && (retry || !g_failed.load(std::memory_order_relaxed)) ? make() : known;
}

gmm_result set_backup_directory(gmm_context *context, const char *directory) {
  char *copy = strdup(directory);
  if (copy == nullptr) {
    say("The host has no memory for the name of a directory.");
    return GMM_ERROR_OUT_OF_HOST_MEMORY;
  }
  LockGuard guard(g_settings_mutex);
  const gmm_result result = context != nullptr ? apply_directory(context, copy) : GMM_OK;
  std::free(result >= 0 ? std::exchange(g_directory, copy) : copy);
  return result;
}

gmm_result tag_of(Label *label, gmm_tag *out) {
  *out = label->tag.load(std::memory_order_acquire);
  if (*out != 0) return GMM_OK;
  char name[64];
  tag_name(*label, name);
  gmm_tag_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.contents = label->contents;
  desc.flags = label->pageable ? GMM_TAG_PAGEABLE : 0;
  const gmm_result result = gmm_tag_create(g_context.load(std::memory_order_acquire), name, &desc, out);
  if (result >= 0) label->tag.store(*out, std::memory_order_release);
  return result;
}

gmm_result heap_of(Label *label, gmm_device device, gmm_kind kind, bool ordered, gmm_heap **out) {
  *out = find(label, device, kind, ordered);
  if (__builtin_expect(*out != nullptr, 1)) return GMM_OK;
  LockGuard guard(g_context_mutex);
  *out = find(label, device, kind, ordered);
  if (*out != nullptr) return GMM_OK;
  void *memory = std::malloc(sizeof(HeapEntry));
  const gmm_result result = memory != nullptr ? make_heap(label, device, kind, out) : GMM_ERROR_OUT_OF_HOST_MEMORY;
  if (result < 0) {
    std::free(memory);
    return result;
  }
  HeapEntry *first = label->heaps.load(std::memory_order_relaxed);
  label->heaps.store(::new (memory) HeapEntry{device, kind, ordered, *out, first}, std::memory_order_release);
  return GMM_OK;
}

}  // namespace gmm::preload

using namespace gmm::preload;

gmm_context *gmm_preload_context(void) GMM_NOEXCEPT { return context(true); }

bool gmm_preload_active(void) GMM_NOEXCEPT { return g_context.load(std::memory_order_acquire) != nullptr; }

const char *gmm_preload_last_error(void) GMM_NOEXCEPT { return t_thread.message; }

gmm_result gmm_preload_tag(const char *name, gmm_contents contents, gmm_tag *out) GMM_NOEXCEPT {
  if (name == nullptr || out == nullptr) {
    say("gmm_preload_tag: name or out is NULL; pass both.");
    return GMM_ERROR_NULL_ARGUMENT;
  }
  if (contents > GMM_CONTENTS_FILE || name[0] == '\0') {
    say("gmm_preload_tag: contents = %u, name = \"%.63s\": pass one of GMM_CONTENTS_* and a name.", contents, name);
    return GMM_ERROR_INVALID_VALUE;
  }
  if (context(true) == nullptr) return GMM_ERROR_NO_BACKEND;
  Inside inside;
  Label *label = label_of(name, contents);
  if (label == nullptr) return GMM_ERROR_OUT_OF_HOST_MEMORY;
  const gmm_result result = tag_of(label, out);
  if (result < 0) say_gmm(result, "gmm_preload_tag");
  return result;
}
