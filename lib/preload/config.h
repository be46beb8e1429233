// SPDX-License-Identifier: Apache-2.0
// The settings of the environment. The first call that needs them reads them once.
#ifndef GMM_PRELOAD_CONFIG_H
#define GMM_PRELOAD_CONFIG_H

#include <gmm/pause.h>

#include <atomic>

namespace gmm::preload {

// The family of calls through which an allocation came.
enum class Route : uint32_t { kDevice = 1u << 0, kAsync = 1u << 1, kManaged = 1u << 2, kHost = 1u << 3 };

// The settings of a region. A thread begins with those of the environment.
struct RegionSettings {
  bool interesting = false;  // the thread is in the region
  bool cpu_backup = false;
  bool disk_backup = false;
  bool pageable = false;
  const char *name = "default";
};

struct Config {
  uint32_t routes = 0;  // for the whole program: GMM_PRELOAD
  bool hooks = false;   // the library also replaces functions that the program looks up: GMM_PRELOAD is not off
  const char *tag = nullptr;
  gmm_contents contents = GMM_CONTENTS_HOST;
  RegionSettings region;
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
