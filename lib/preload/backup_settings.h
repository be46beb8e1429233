// SPDX-License-Identifier: Apache-2.0
// Where backups lie, by the settings of torch_memory_saver. They apply to the whole context.
#ifndef GMM_PRELOAD_BACKUP_SETTINGS_H
#define GMM_PRELOAD_BACKUP_SETTINGS_H

#include <gmm/pause.h>

namespace gmm::preload {

// Sets the directory of backup files, which is copied. If the context exists, the setting applies at once or gmm
// refuses it. Otherwise it applies when the context is created.
gmm_result set_backup_directory(gmm_context *context, const char *directory);

// Applies what was set before the context existed: TMS_DISK_BACKUP_DIR, or a directory. Files in a directory that was
// asked for have names, as users of torch_memory_saver expect.
gmm_result apply_backup_settings(gmm_context *context);

}  // namespace gmm::preload
#endif
