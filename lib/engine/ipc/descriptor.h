// SPDX-License-Identifier: Apache-2.0
// File descriptors of memory: the routes of a block, how its descriptor is opened, and the checks of a
// descriptor from elsewhere.
//
// A descriptor that gmm_ipc_export_fd() returns holds the memory by itself. Its users are not counted as importers
// and cannot be revoked.
#ifndef GMM_ENGINE_IPC_DESCRIPTOR_H
#define GMM_ENGINE_IPC_DESCRIPTOR_H

#include <gmm/ipc.h>

#include "engine/heap/block.h"

namespace gmm {

// The GMM_IPC_ROUTE_* bits of memory of a kind and device.
uint32_t ipc_routes(const Core &core, const HeapOptions &options);

// gmm_ipc_export_fd().
Status export_descriptor(const Core &core, const void *memory, gmm_fd_type type, gmm_ipc_fd_info *out);

// NOT_SUPPORTED: the extent's descriptor would open other memory, too. With the heap's lock held.
Status check_exportable(const Core &core, const Heap &heap, const Extent &extent);

// Opens the descriptor of one extent, which the caller closes. With the heap's lock held; the extent is not paused.
Status open_extent(const Core &core, const Heap &heap, Extent &extent, int32_t *fd);

// "DEFAULT", "OPAQUE" and so on, for messages.
const char *descriptor_type_name(gmm_fd_type type);

// For gmm_ipc_import_fd(): an open descriptor of that type. Replaces GMM_FD_DEFAULT in *type by what it means.
Status check_descriptor(int32_t fd, gmm_fd_type *type);

}  // namespace gmm
#endif
