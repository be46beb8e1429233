// SPDX-License-Identifier: Apache-2.0
// Every struct of the interface that may grow, which is every one with struct_size. The tests in C read this table too.
//
//   X(type, direction, minimum, size)
//     direction  IN: a descriptor. OUT: the library fills it. DRIVER: it does so on a driver only. LENT: a callback
//                gets it, with the library's size.
//     minimum    its bytes in the release that brought it. The library refuses smaller structs. The number stays.
//     size       its bytes in this release. A further field at the end raises it.
#ifndef GMM_API_STRUCTS_H
#define GMM_API_STRUCTS_H

#define GMM_GROWING_STRUCTS(X)           \
  X(gmm_context_desc, IN, 72, 72)        \
  X(gmm_context_info, OUT, 88, 88)       \
  X(gmm_device_info, OUT, 216, 216)      \
  X(gmm_alloc_desc, IN, 40, 40)          \
  X(gmm_pointer_info, OUT, 88, 88)       \
  X(gmm_heap_desc, IN, 48, 48)           \
  X(gmm_stream_desc, IN, 16, 16)         \
  X(gmm_event_desc, IN, 16, 16)          \
  X(gmm_pin_desc, IN, 16, 16)            \
  X(gmm_move_desc, IN, 16, 16)           \
  X(gmm_tag_desc, IN, 16, 16)            \
  X(gmm_pause_desc, IN, 48, 48)          \
  X(gmm_tag_info, OUT, 152, 160)         \
  X(gmm_ticket_info, OUT, 40, 40)        \
  X(gmm_backup_desc, IN, 40, 40)         \
  X(gmm_backup_info, OUT, 72, 72)        \
  X(gmm_ipc_desc, IN, 32, 32)            \
  X(gmm_ipc_import_desc, IN, 24, 24)     \
  X(gmm_ipc_fd_desc, IN, 24, 24)         \
  X(gmm_ipc_fd_info, OUT, 32, 32)        \
  X(gmm_ipc_legacy_info, DRIVER, 88, 88) \
  X(gmm_semaphore_desc, IN, 40, 40)      \
  X(gmm_scope_desc, IN, 24, 24)          \
  X(gmm_compact_desc, IN, 32, 32)        \
  X(gmm_compact_info, OUT, 32, 32)       \
  X(gmm_stats_info, OUT, 120, 136)       \
  X(gmm_snapshot_info, OUT, 40, 40)      \
  X(gmm_block_info, OUT, 120, 120)       \
  X(gmm_extent_info, OUT, 56, 56)        \
  X(gmm_watch_desc, IN, 72, 72)          \
  X(gmm_watch_info, LENT, 56, 56)        \
  X(gmm_lease_ask, LENT, 96, 96)         \
  X(gmm_lease_desc, IN, 56, 56)          \
  X(gmm_lease_entry_info, OUT, 176, 176) \
  X(gmm_lease_info, OUT, 80, 80)         \
  X(gmm_lease_request_desc, IN, 32, 32)  \
  X(gmm_oom_info, LENT, 40, 40)

#endif
