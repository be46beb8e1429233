// SPDX-License-Identifier: Apache-2.0
// Every struct of the interface that may grow, which is every one with struct_size: X(type, minimum).
// The minimum is its bytes in the release that brought it. The library refuses smaller structs, so the number stays.
#ifndef GMM_API_STRUCTS_H
#define GMM_API_STRUCTS_H

#define GMM_GROWING_STRUCTS(X)  \
  X(gmm_context_desc, 72)       \
  X(gmm_context_info, 88)       \
  X(gmm_device_info, 216)       \
  X(gmm_alloc_desc, 40)         \
  X(gmm_pointer_info, 88)       \
  X(gmm_heap_desc, 48)          \
  X(gmm_stream_desc, 16)        \
  X(gmm_event_desc, 16)         \
  X(gmm_pin_desc, 16)           \
  X(gmm_move_desc, 16)          \
  X(gmm_tag_desc, 16)           \
  X(gmm_pause_desc, 48)         \
  X(gmm_tag_info, 152)          \
  X(gmm_ticket_info, 40)        \
  X(gmm_backup_desc, 40)        \
  X(gmm_backup_info, 72)        \
  X(gmm_publish_desc, 16)       \
  X(gmm_attach_desc, 24)        \
  X(gmm_published_info, 128)    \
  X(gmm_ipc_desc, 32)           \
  X(gmm_ipc_import_desc, 24)    \
  X(gmm_ipc_fd_desc, 24)        \
  X(gmm_ipc_fd_info, 32)        \
  X(gmm_ipc_legacy_info, 88)    \
  X(gmm_semaphore_desc, 40)     \
  X(gmm_scope_desc, 24)         \
  X(gmm_compact_desc, 32)       \
  X(gmm_compact_info, 32)       \
  X(gmm_stats_info, 120)        \
  X(gmm_snapshot_info, 40)      \
  X(gmm_block_info, 120)        \
  X(gmm_extent_info, 56)        \
  X(gmm_trace_desc, 16)         \
  X(gmm_watch_desc, 72)         \
  X(gmm_watch_info, 56)         \
  X(gmm_lease_ask, 96)          \
  X(gmm_lease_desc, 56)         \
  X(gmm_lease_entry_info, 176)  \
  X(gmm_lease_info, 80)         \
  X(gmm_lease_request_desc, 32) \
  X(gmm_oom_info, 40)

#endif
