// SPDX-License-Identifier: Apache-2.0
// How contents are kept, as torch_memory_saver's words say: for the whole context.
#ifndef GMM_PRELOAD_BACKUP_SETTINGS_H
#define GMM_PRELOAD_BACKUP_SETTINGS_H

#include <gmm/pause.h>

namespace gmm::preload {

// The folder for files, copied. With a context it holds from now on, or is refused by gmm; else from the context's beginning on.
gmm_result set_backup_directory(gmm_context *context, const char *directory);

// What was asked for before there was a context: TMS_DISK_BACKUP_DIR, TMS_INIT_CPU_BACKUP_BACKEND=mmap, a folder.
gmm_result apply_backup_settings(gmm_context *context);

}  // namespace gmm::preload
#endif
