// SPDX-License-Identifier: Apache-2.0
#include "preload/backup_settings.h"

#include <cstdlib>
#include <cstring>

#include "base/lock.h"
#include "preload/config.h"
#include "preload/context.h"

namespace gmm::preload {
namespace {

constinit Mutex g_settings_mutex{LockRank::kPreloadSettings};
constinit char *g_directory = nullptr;  // NULL: the environment's

// The caller holds g_settings_mutex.
gmm_result apply(gmm_context *context, const char *directory) {
  const Config &start = config();
  gmm_backup_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.directory = directory != nullptr ? directory : start.disk_directory;
  desc.flags = GMM_BACKUP_NAMED_FILES;
  if (desc.directory == nullptr) return GMM_OK;
  const gmm_result result = gmm_backup_configure(context, &desc);
  if (result < 0) say_gmm(result, "backups");
  return result;
}

}  // namespace

gmm_result set_backup_directory(gmm_context *context, const char *directory) {
  char *copy = strdup(directory);
  if (copy == nullptr) {
    say("The host has no memory for the name of a directory.");
    return GMM_ERROR_OUT_OF_HOST_MEMORY;
  }
  g_settings_mutex.lock();
  const gmm_result result = context != nullptr ? apply(context, copy) : GMM_OK;
  char *unused = copy;
  if (result >= 0) {
    unused = g_directory;
    g_directory = copy;
  }
  g_settings_mutex.unlock();
  std::free(unused);
  return result;
}

gmm_result apply_backup_settings(gmm_context *context) {
  g_settings_mutex.lock();
  const gmm_result result = apply(context, g_directory);
  g_settings_mutex.unlock();
  return result;
}

}  // namespace gmm::preload
