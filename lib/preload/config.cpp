// SPDX-License-Identifier: Apache-2.0
#include "preload/config.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace gmm::preload {
namespace {

constinit Config g_read;
constinit pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;

const char *text_of(const char *variable) {
  const char *text = std::getenv(variable);
  return text != nullptr && text[0] != '\0' ? text : nullptr;
}

bool same(const char *text, uint64_t size, const char *word) {
  return std::strlen(word) == size && std::strncmp(text, word, size) == 0;
}

// A preloaded library must not end the process, nor guess what an unknown word means.
void complain(const char *variable, const char *text, const char *takes) {
  std::fprintf(stderr, "gmm preload: %s=%.80s is unknown and ignored; set it to %s\n", variable, text, takes);
}

// The words of torch_memory_saver.
bool read_switch(const char *variable) {
  const char *text = text_of(variable);
  if (text == nullptr) return false;
  for (const char *word : {"1", "true", "TRUE", "True", "yes", "YES", "on"})
    if (std::strcmp(text, word) == 0) return true;
  for (const char *word : {"0", "false", "FALSE", "False", "no", "NO", "off"})
    if (std::strcmp(text, word) == 0) return false;
  complain(variable, text, "1 or 0");
  return false;
}

uint32_t choose(const char *variable, const char *const *words, uint32_t count, uint32_t fallback, const char *takes) {
  const char *text = text_of(variable);
  if (text == nullptr) return fallback;
  for (uint32_t i = 0; i < count; ++i)
    if (std::strcmp(text, words[i]) == 0) return i;
  complain(variable, text, takes);
  return fallback;
}

// Reads off, on, regions, or a list of calls. False: the text is none of them.
bool read_routes(const char *text, Config *out) {
  constexpr uint32_t kAll = 15;
  if (same(text, std::strlen(text), "off") || same(text, std::strlen(text), "0")) return true;
  uint32_t routes = 0;
  for (const char *word = text;;) {
    const uint64_t size = std::strcspn(word, ",");
    if (same(word, size, "on") || same(word, size, "1") || same(word, size, "all")) {
      routes |= kAll;
    } else if (same(word, size, "device")) {
      routes |= static_cast<uint32_t>(Route::kDevice);
    } else if (same(word, size, "async")) {
      routes |= static_cast<uint32_t>(Route::kAsync);
    } else if (same(word, size, "managed")) {
      routes |= static_cast<uint32_t>(Route::kManaged);
    } else if (same(word, size, "host")) {
      routes |= static_cast<uint32_t>(Route::kHost);
    } else if (!same(word, size, "regions")) {
      return false;
    }
    if (word[size] == '\0') break;
    word += size + 1;
  }
  out->hooks = true;
  out->routes = routes;
  return true;
}

void read(Config *out) {
  if (const char *text = text_of("GMM_PRELOAD"); text != nullptr && !read_routes(text, out))
    complain("GMM_PRELOAD", text, "off, on, regions, or a list of device,async,managed,host");
  const char *tag = text_of("GMM_PRELOAD_TAG");
  out->tag = strdup(tag != nullptr ? tag : "preload");
  static const char *const kContents[] = {"drop", "host", "file"};
  out->contents = choose("GMM_PRELOAD_CONTENTS", kContents, 3, GMM_CONTENTS_HOST, "drop, host or file");
  static const char *const kKinds[] = {"vmm", "device"};
  out->kind = choose("GMM_PRELOAD_KIND", kKinds, 2, 0, "vmm or device") == 0 ? GMM_KIND_VMM : GMM_KIND_DEVICE;
  static const char *const kPeers[] = {"all", "none"};
  out->peers = choose("GMM_PRELOAD_PEERS", kPeers, 2, 0, "all or none") == 0;
  static const char *const kScopes[] = {"process", "thread"};
  out->process_regions = choose("GMM_PRELOAD_REGION_SCOPE", kScopes, 2, 0, "process or thread") == 0;
  out->region = read_switch("TMS_INIT_ENABLE");
  out->cpu_backup = read_switch("TMS_INIT_ENABLE_CPU_BACKUP");
  out->disk_backup = read_switch("TMS_INIT_ENABLE_DISK_BACKUP");
  out->retain = read_switch("TMS_RETAIN_CPU_BACKUP");
  static const char *const kBackends[] = {"pinned", "mmap"};
  out->pageable = choose("TMS_INIT_CPU_BACKUP_BACKEND", kBackends, 2, 0, "pinned or mmap") == 1;
  const char *directory = text_of("TMS_DISK_BACKUP_DIR");
  out->disk_directory = directory != nullptr ? strdup(directory) : nullptr;
}

}  // namespace

const Config &read_config() {
  pthread_mutex_lock(&g_mutex);
  if (g_config.load(std::memory_order_relaxed) == nullptr) {
    read(&g_read);
    if (g_read.tag == nullptr) g_read.tag = "preload";  // there was no memory for a copy
    g_config.store(&g_read, std::memory_order_release);
  }
  pthread_mutex_unlock(&g_mutex);
  return g_read;
}

}  // namespace gmm::preload
