// SPDX-License-Identifier: Apache-2.0
#include "preload/config.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "base/environment.h"
#include "base/lock.h"

namespace gmm::preload {
namespace {

constinit Config g_read;
constinit Mutex g_config_mutex{LockRank::kPreloadConfig};

// A variable of torch_memory_saver.
const char *tms_text(const char *variable) {
  const char *text = secure_getenv(variable);
  return text != nullptr && text[0] != '\0' ? text : nullptr;
}

// A preloaded library must not end the process, nor guess the meaning of an unknown word.
void complain(const char *variable, const char *text, const char *advice) {
  std::fprintf(stderr, "gmm preload: %s=%.80s is unknown and ignored; %s\n", variable, text, advice);
}

void complain(Variable variable) {
  char advice[160];
  std::snprintf(advice, sizeof advice, "set it to %s", environment_row(variable).values);
  complain(environment_row(variable).name, environment_text(variable), advice);
}

// The words of torch_memory_saver.
bool read_switch(const char *variable) {
  const char *text = tms_text(variable);
  if (text == nullptr) return false;
  for (const char *word : {"1", "true", "TRUE", "True", "yes", "YES", "on"})
    if (std::strcmp(text, word) == 0) return true;
  for (const char *word : {"0", "false", "FALSE", "False", "no", "NO", "off"})
    if (std::strcmp(text, word) == 0) return false;
  complain(variable, text, "set it to 1 or 0");
  return false;
}

// Reads off, on, regions, or a list of calls. False: the text is none of them.
bool read_routes(const char *text, Config *out) {
  static constexpr struct {
    const char *word;
    uint32_t routes;
  } kWords[] = {{"on", 15},   {"1", 15},      {"all", 15}, {"device", 1},
                {"async", 2}, {"managed", 4}, {"host", 8}, {"regions", 0}};
  static_assert(static_cast<uint32_t>(Route::kDevice) == 1 && static_cast<uint32_t>(Route::kAsync) == 2 &&
                static_cast<uint32_t>(Route::kManaged) == 4 && static_cast<uint32_t>(Route::kHost) == 8);
  if (std::strcmp(text, "off") == 0 || std::strcmp(text, "0") == 0) return true;
  uint32_t routes = 0;
  for (const char *word = text;;) {
    const uint64_t size = std::strcspn(word, ",");
    bool is_known = false;
    for (const auto &each : kWords)
      if (std::strlen(each.word) == size && std::strncmp(word, each.word, size) == 0) {
        routes |= each.routes;
        is_known = true;
      }
    if (!is_known) return false;
    if (word[size] == '\0') break;
    word += size + 1;
  }
  out->hooks = true;
  out->routes = routes;
  return true;
}

void read(Config *out) {
  const char *text = environment_text(Variable::kPreload);
  if (text != nullptr && !read_routes(text, out)) complain(Variable::kPreload);
  const char *tag = environment_text(Variable::kPreloadTag);
  out->tag = strdup(tag != nullptr ? tag : "preload");
  // The words of the table stand in the order of these numbers.
  static_assert(GMM_CONTENTS_DROP == 0 && GMM_CONTENTS_HOST == 1 && GMM_CONTENTS_FILE == 2);
  if (environment_word(Variable::kPreloadContents, &out->contents) == Reading::kBad)
    complain(Variable::kPreloadContents);
  out->region.interesting = read_switch("TMS_INIT_ENABLE");
  out->region.cpu_backup = read_switch("TMS_INIT_ENABLE_CPU_BACKUP");
  out->region.disk_backup = read_switch("TMS_INIT_ENABLE_DISK_BACKUP");
  out->retain = read_switch("TMS_RETAIN_CPU_BACKUP");
  const char *place = tms_text("TMS_INIT_CPU_BACKUP_BACKEND");
  out->region.pageable = place != nullptr && std::strcmp(place, "mmap") == 0;
  if (place != nullptr && !out->region.pageable && std::strcmp(place, "pinned") != 0)
    complain("TMS_INIT_CPU_BACKUP_BACKEND", place, "set it to pinned or mmap");
  const char *directory = tms_text("TMS_DISK_BACKUP_DIR");
  out->disk_directory = directory != nullptr ? strdup(directory) : nullptr;
}

}  // namespace

const Config &read_config() {
  LockGuard guard(g_config_mutex);
  if (g_config.load(std::memory_order_relaxed) == nullptr) {
    read(&g_read);
    if (g_read.tag == nullptr) g_read.tag = "preload";  // there was no memory for a copy
    g_config.store(&g_read, std::memory_order_release);
  }
  return g_read;
}

}  // namespace gmm::preload
