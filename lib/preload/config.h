// SPDX-License-Identifier: Apache-2.0
// What the environment asks for, read once, at the first call that wants to know.
#ifndef GMM_PRELOAD_CONFIG_H
#define GMM_PRELOAD_CONFIG_H

#include <gmm/pause.h>

#include <atomic>

namespace gmm::preload {

// Which calls an allocation came by.
enum class Route : uint32_t { kDevice = 1u << 0, kAsync = 1u << 1, kManaged = 1u << 2, kHost = 1u << 3 };

struct Config {
  uint32_t routes = 0;  // of the whole program: GMM_PRELOAD
  bool hooks = false;   // functions that the program looks up are replaced too: GMM_PRELOAD is not off
  const char *tag = nullptr;
  gmm_contents contents = GMM_CONTENTS_HOST;
  gmm_kind kind = GMM_KIND_VMM;
  bool peers = true;
  bool process_regions = true;
  // What a thread's region starts with.
  bool region = false;
  bool cpu_backup = false;
  bool disk_backup = false;
  bool pageable = false;
  bool retain = false;
  const char *disk_directory = nullptr;
};

const Config &read_config();
inline constinit std::atomic<const Config *> g_config{nullptr};
inline const Config &config() {
  const Config *known = g_config.load(std::memory_order_acquire);
  return __builtin_expect(known != nullptr, 1) ? *known : read_config();
}

}  // namespace gmm::preload
#endif
