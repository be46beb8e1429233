/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout of every public struct on 64-bit machines, as programs in the world were compiled with. A struct with
 * struct_size may grow at its end: then its size changes in lib/api/structs.h, and an OFFSET is added here. Nothing
 * else here ever changes.
 */
#include <gmm/gmm.h>
#include <stddef.h>

#include "../../lib/api/structs.h"

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "the size of " #type " changed")
#define OFFSET(type, field, bytes) _Static_assert(offsetof(type, field) == (bytes), #type "." #field " moved")

#define SIZE_OF_ROW(type, direction, minimum, size) SIZE(type, size);
GMM_GROWING_STRUCTS(SIZE_OF_ROW)

SIZE(gmm_log_callback, 16);
OFFSET(gmm_log_callback, fn, 0);
OFFSET(gmm_log_callback, user, 8);

SIZE(gmm_progress_callback, 16);
OFFSET(gmm_progress_callback, fn, 0);
OFFSET(gmm_progress_callback, user, 8);

SIZE(gmm_semaphore_calls, 24);
OFFSET(gmm_semaphore_calls, wait, 0);
OFFSET(gmm_semaphore_calls, signal, 8);
OFFSET(gmm_semaphore_calls, user, 16);
OFFSET(gmm_semaphore_desc, struct_size, 0);
OFFSET(gmm_semaphore_desc, type, 4);
OFFSET(gmm_semaphore_desc, device, 8);
OFFSET(gmm_semaphore_desc, fd, 12);
OFFSET(gmm_semaphore_desc, calls, 16);

SIZE(gmm_host_allocator, 24);
OFFSET(gmm_host_allocator, allocate, 0);
OFFSET(gmm_host_allocator, deallocate, 8);
OFFSET(gmm_host_allocator, user, 16);

OFFSET(gmm_context_desc, struct_size, 0);
OFFSET(gmm_context_desc, backend, 4);
OFFSET(gmm_context_desc, flags, 8);
OFFSET(gmm_context_desc, host_devices, 12);
OFFSET(gmm_context_desc, log, 16);
OFFSET(gmm_context_desc, host_allocator, 32);
OFFSET(gmm_context_desc, host_memory, 56);
OFFSET(gmm_context_desc, decommit_after_ms, 64);

OFFSET(gmm_context_info, struct_size, 0);
OFFSET(gmm_context_info, backend, 4);
OFFSET(gmm_context_info, device_count, 8);
OFFSET(gmm_context_info, flags, 12);
OFFSET(gmm_context_info, backend_name, 16);
OFFSET(gmm_context_info, driver_version, 32);
OFFSET(gmm_context_info, decommit_after_ms, 80);

OFFSET(gmm_device_info, struct_size, 0);
OFFSET(gmm_device_info, device, 4);
OFFSET(gmm_device_info, capabilities, 8);
OFFSET(gmm_device_info, kinds, 12);
OFFSET(gmm_device_info, total_memory, 16);
OFFSET(gmm_device_info, free_memory, 24);
OFFSET(gmm_device_info, granularity, 32);
OFFSET(gmm_device_info, name, 40);
OFFSET(gmm_device_info, uuid, 168);
OFFSET(gmm_device_info, held_bytes, 184);
OFFSET(gmm_device_info, budget_bytes, 192);
OFFSET(gmm_device_info, luid, 200);
OFFSET(gmm_device_info, node_mask, 208);
OFFSET(gmm_device_info, numa_node, 212);

OFFSET(gmm_alloc_desc, struct_size, 0);
OFFSET(gmm_alloc_desc, kind, 4);
OFFSET(gmm_alloc_desc, device, 8);
OFFSET(gmm_alloc_desc, tag, 12);
OFFSET(gmm_alloc_desc, stream, 16);
OFFSET(gmm_alloc_desc, alignment, 24);
OFFSET(gmm_alloc_desc, flags, 32);
OFFSET(gmm_alloc_desc, reserved, 36);

OFFSET(gmm_pointer_info, struct_size, 0);
OFFSET(gmm_pointer_info, kind, 4);
OFFSET(gmm_pointer_info, base, 8);
OFFSET(gmm_pointer_info, size, 16);
OFFSET(gmm_pointer_info, reserved_size, 24);
OFFSET(gmm_pointer_info, device, 32);
OFFSET(gmm_pointer_info, tag, 36);
OFFSET(gmm_pointer_info, state, 40);
OFFSET(gmm_pointer_info, usm, 44);
OFFSET(gmm_pointer_info, ipc_routes, 48);
OFFSET(gmm_pointer_info, flags, 52);
OFFSET(gmm_pointer_info, allocation_base, 56);
OFFSET(gmm_pointer_info, allocation_size, 64);
OFFSET(gmm_pointer_info, device_pointer, 72);
OFFSET(gmm_pointer_info, generation, 80);

OFFSET(gmm_heap_desc, struct_size, 0);
OFFSET(gmm_heap_desc, kind, 4);
OFFSET(gmm_heap_desc, device, 8);
OFFSET(gmm_heap_desc, tag, 12);
OFFSET(gmm_heap_desc, minimum_extent, 16);
OFFSET(gmm_heap_desc, limit, 24);
OFFSET(gmm_heap_desc, peer_devices, 32);
OFFSET(gmm_heap_desc, flags, 40);
OFFSET(gmm_heap_desc, reserved, 44);

OFFSET(gmm_stream_desc, struct_size, 0);
OFFSET(gmm_stream_desc, flags, 4);
OFFSET(gmm_stream_desc, device, 8);
OFFSET(gmm_stream_desc, priority, 12);

OFFSET(gmm_event_desc, struct_size, 0);
OFFSET(gmm_event_desc, flags, 4);
OFFSET(gmm_event_desc, device, 8);
OFFSET(gmm_event_desc, reserved, 12);

OFFSET(gmm_pin_desc, struct_size, 0);
OFFSET(gmm_pin_desc, flags, 4);
OFFSET(gmm_pin_desc, device, 8);
OFFSET(gmm_pin_desc, reserved, 12);

OFFSET(gmm_move_desc, struct_size, 0);
OFFSET(gmm_move_desc, flags, 4);
OFFSET(gmm_move_desc, stream, 8);

OFFSET(gmm_tag_desc, struct_size, 0);
OFFSET(gmm_tag_desc, contents, 4);
OFFSET(gmm_tag_desc, priority, 8);
OFFSET(gmm_tag_desc, flags, 12);

OFFSET(gmm_pause_desc, struct_size, 0);
OFFSET(gmm_pause_desc, flags, 4);
OFFSET(gmm_pause_desc, tags, 8);
OFFSET(gmm_pause_desc, tag_count, 16);
OFFSET(gmm_pause_desc, reserved, 20);
OFFSET(gmm_pause_desc, progress, 24);
OFFSET(gmm_pause_desc, hold_ms, 40);

OFFSET(gmm_tag_info, struct_size, 0);
OFFSET(gmm_tag_info, tag, 4);
OFFSET(gmm_tag_info, contents, 8);
OFFSET(gmm_tag_info, priority, 12);
OFFSET(gmm_tag_info, active_bytes, 16);
OFFSET(gmm_tag_info, paused_bytes, 24);
OFFSET(gmm_tag_info, backup_host_bytes, 32);
OFFSET(gmm_tag_info, backup_file_bytes, 40);
OFFSET(gmm_tag_info, pauses, 48);
OFFSET(gmm_tag_info, name, 56);
OFFSET(gmm_tag_info, backup_pinned_bytes, 120);
OFFSET(gmm_tag_info, backup_zero_bytes, 128);
OFFSET(gmm_tag_info, backup_active_bytes, 136);
OFFSET(gmm_tag_info, flags, 144);
OFFSET(gmm_tag_info, state, 148);
OFFSET(gmm_tag_info, foreign_bytes, 152);

OFFSET(gmm_backup_info, struct_size, 0);
OFFSET(gmm_backup_info, reserved, 4);
OFFSET(gmm_backup_info, arena_bytes, 8);
OFFSET(gmm_backup_info, arena_used, 16);
OFFSET(gmm_backup_info, arena_limit, 24);
OFFSET(gmm_backup_info, pageable_bytes, 32);
OFFSET(gmm_backup_info, file_bytes, 40);
OFFSET(gmm_backup_info, zero_bytes, 48);
OFFSET(gmm_backup_info, copied_bytes, 56);
OFFSET(gmm_backup_info, skipped_bytes, 64);

OFFSET(gmm_backup_desc, struct_size, 0);
OFFSET(gmm_backup_desc, flags, 4);
OFFSET(gmm_backup_desc, arena_limit, 8);
OFFSET(gmm_backup_desc, pageable_limit, 16);
OFFSET(gmm_backup_desc, directory, 24);
OFFSET(gmm_backup_desc, threads, 32);
OFFSET(gmm_backup_desc, reserved, 36);

OFFSET(gmm_ticket_info, struct_size, 0);
OFFSET(gmm_ticket_info, state, 4);
OFFSET(gmm_ticket_info, result, 8);
OFFSET(gmm_ticket_info, reserved, 12);
OFFSET(gmm_ticket_info, bytes, 16);
OFFSET(gmm_ticket_info, copied_bytes, 24);
OFFSET(gmm_ticket_info, total_bytes, 32);

SIZE(gmm_ipc_handle, 256);
OFFSET(gmm_ipc_handle, bytes, 0);

OFFSET(gmm_ipc_import_desc, struct_size, 0);
OFFSET(gmm_ipc_import_desc, flags, 4);
OFFSET(gmm_ipc_import_desc, device, 8);
OFFSET(gmm_ipc_import_desc, reserved, 12);
OFFSET(gmm_ipc_import_desc, timeout_ms, 16);

OFFSET(gmm_ipc_desc, struct_size, 0);
OFFSET(gmm_ipc_desc, flags, 4);
OFFSET(gmm_ipc_desc, directory, 8);
OFFSET(gmm_ipc_desc, users, 16);
OFFSET(gmm_ipc_desc, user_count, 24);
OFFSET(gmm_ipc_desc, reserved, 28);

OFFSET(gmm_ipc_fd_desc, struct_size, 0);
OFFSET(gmm_ipc_fd_desc, flags, 4);
OFFSET(gmm_ipc_fd_desc, type, 8);
OFFSET(gmm_ipc_fd_desc, device, 12);
OFFSET(gmm_ipc_fd_desc, size, 16);

OFFSET(gmm_ipc_fd_info, struct_size, 0);
OFFSET(gmm_ipc_fd_info, type, 4);
OFFSET(gmm_ipc_fd_info, fd, 8);
OFFSET(gmm_ipc_fd_info, device, 12);
OFFSET(gmm_ipc_fd_info, offset, 16);
OFFSET(gmm_ipc_fd_info, size, 24);

OFFSET(gmm_ipc_legacy_info, struct_size, 0);
OFFSET(gmm_ipc_legacy_info, device, 4);
OFFSET(gmm_ipc_legacy_info, offset, 8);
OFFSET(gmm_ipc_legacy_info, size, 16);
OFFSET(gmm_ipc_legacy_info, bytes, 24);

OFFSET(gmm_compact_desc, struct_size, 0);
OFFSET(gmm_compact_desc, flags, 4);
OFFSET(gmm_compact_desc, heap, 8);
OFFSET(gmm_compact_desc, max_bytes, 16);
OFFSET(gmm_compact_desc, max_us, 24);

OFFSET(gmm_compact_info, struct_size, 0);
OFFSET(gmm_compact_info, reserved, 4);
OFFSET(gmm_compact_info, moved_bytes, 8);
OFFSET(gmm_compact_info, released_bytes, 16);
OFFSET(gmm_compact_info, largest_free, 24);

OFFSET(gmm_scope_desc, struct_size, 0);
OFFSET(gmm_scope_desc, flags, 4);
OFFSET(gmm_scope_desc, device, 8);
OFFSET(gmm_scope_desc, tag, 12);
OFFSET(gmm_scope_desc, kind, 16);
OFFSET(gmm_scope_desc, reserved, 20);

OFFSET(gmm_watch_desc, struct_size, 0);
OFFSET(gmm_watch_desc, events, 4);
OFFSET(gmm_watch_desc, tag, 8);
OFFSET(gmm_watch_desc, device, 12);
OFFSET(gmm_watch_desc, address, 16);
OFFSET(gmm_watch_desc, size, 24);
OFFSET(gmm_watch_desc, budget_bytes, 32);
OFFSET(gmm_watch_desc, timeout_ms, 40);
OFFSET(gmm_watch_desc, order, 48);
OFFSET(gmm_watch_desc, flags, 52);
OFFSET(gmm_watch_desc, name, 56);
OFFSET(gmm_watch_desc, callback, 64);

OFFSET(gmm_watch_info, struct_size, 0);
OFFSET(gmm_watch_info, event, 4);
OFFSET(gmm_watch_info, tag, 8);
OFFSET(gmm_watch_info, device, 12);
OFFSET(gmm_watch_info, address, 16);
OFFSET(gmm_watch_info, size, 24);
OFFSET(gmm_watch_info, generation, 32);
OFFSET(gmm_watch_info, budget_bytes, 40);
OFFSET(gmm_watch_info, remaining_ms, 48);
OFFSET(gmm_watch_info, cause, 56);
OFFSET(gmm_watch_info, reserved, 60);

OFFSET(gmm_watch_callback, fn, 0);
OFFSET(gmm_watch_callback, user, 8);

OFFSET(gmm_lease_ask, struct_size, 0);
OFFSET(gmm_lease_ask, priority, 4);
OFFSET(gmm_lease_ask, bytes, 8);
OFFSET(gmm_lease_ask, waiting_ms, 16);
OFFSET(gmm_lease_ask, process, 24);
OFFSET(gmm_lease_ask, reserved, 28);
OFFSET(gmm_lease_ask, name, 32);

OFFSET(gmm_lease_ask_callback, fn, 0);
OFFSET(gmm_lease_ask_callback, user, 8);

OFFSET(gmm_lease_desc, struct_size, 0);
OFFSET(gmm_lease_desc, flags, 4);
OFFSET(gmm_lease_desc, name, 8);
OFFSET(gmm_lease_desc, arbiter, 16);
OFFSET(gmm_lease_desc, priority, 24);
OFFSET(gmm_lease_desc, reserved, 28);
OFFSET(gmm_lease_desc, floor_bytes, 32);
OFFSET(gmm_lease_desc, residency_ms, 40);
OFFSET(gmm_lease_desc, asked, 48);

OFFSET(gmm_lease_amount, device, 0);
OFFSET(gmm_lease_amount, reserved, 4);
OFFSET(gmm_lease_amount, bytes, 8);

OFFSET(gmm_lease_request_desc, struct_size, 0);
OFFSET(gmm_lease_request_desc, flags, 4);
OFFSET(gmm_lease_request_desc, amounts, 8);
OFFSET(gmm_lease_request_desc, amount_count, 16);
OFFSET(gmm_lease_request_desc, reserved, 20);
OFFSET(gmm_lease_request_desc, timeout_ms, 24);

OFFSET(gmm_lease_info, struct_size, 0);
OFFSET(gmm_lease_info, state, 4);
OFFSET(gmm_lease_info, arbiter, 8);
OFFSET(gmm_lease_info, arbiter_process, 16);
OFFSET(gmm_lease_info, is_arbiter, 20);
OFFSET(gmm_lease_info, grants, 24);
OFFSET(gmm_lease_info, shorts, 32);
OFFSET(gmm_lease_info, asked, 40);
OFFSET(gmm_lease_info, evictions, 48);
OFFSET(gmm_lease_info, evicted_bytes, 56);
OFFSET(gmm_lease_info, active_bytes, 64);
OFFSET(gmm_lease_info, paused_bytes, 72);

OFFSET(gmm_oom_info, struct_size, 0);
OFFSET(gmm_oom_info, device, 4);
OFFSET(gmm_oom_info, kind, 8);
OFFSET(gmm_oom_info, tag, 12);
OFFSET(gmm_oom_info, requested_bytes, 16);
OFFSET(gmm_oom_info, reserved_bytes, 24);
OFFSET(gmm_oom_info, attempt, 32);
OFFSET(gmm_oom_info, cause, 36);

OFFSET(gmm_stats_info, struct_size, 0);
OFFSET(gmm_stats_info, live_tags, 4);
OFFSET(gmm_stats_info, live_bytes, 8);
OFFSET(gmm_stats_info, live_blocks, 16);
OFFSET(gmm_stats_info, peak_live_bytes, 24);
OFFSET(gmm_stats_info, cached_bytes, 32);
OFFSET(gmm_stats_info, reserved_bytes, 40);
OFFSET(gmm_stats_info, peak_reserved_bytes, 48);
OFFSET(gmm_stats_info, paused_bytes, 56);
OFFSET(gmm_stats_info, pinned_bytes, 64);
OFFSET(gmm_stats_info, imported_bytes, 72);
OFFSET(gmm_stats_info, allocations, 80);
OFFSET(gmm_stats_info, frees, 88);
OFFSET(gmm_stats_info, failures, 96);
OFFSET(gmm_stats_info, extents, 104);
OFFSET(gmm_stats_info, backend_calls, 112);
OFFSET(gmm_stats_info, limit_bytes, 120);
OFFSET(gmm_stats_info, foreign_bytes, 128);

OFFSET(gmm_snapshot_info, struct_size, 0);
OFFSET(gmm_snapshot_info, backend, 4);
OFFSET(gmm_snapshot_info, heap_count, 8);
OFFSET(gmm_snapshot_info, extent_count, 16);
OFFSET(gmm_snapshot_info, block_count, 24);
OFFSET(gmm_snapshot_info, live_bytes, 32);

OFFSET(gmm_block_info, struct_size, 0);
OFFSET(gmm_block_info, kind, 4);
OFFSET(gmm_block_info, device, 8);
OFFSET(gmm_block_info, tag, 12);
OFFSET(gmm_block_info, state, 16);
OFFSET(gmm_block_info, flags, 20);
OFFSET(gmm_block_info, address, 24);
OFFSET(gmm_block_info, size, 32);
OFFSET(gmm_block_info, reserved_size, 40);
OFFSET(gmm_block_info, heap, 48);
OFFSET(gmm_block_info, name, 56);

SIZE(gmm_result, 4);
SIZE(gmm_device, 4);
SIZE(gmm_kind, 4);
SIZE(gmm_tag, 4);
SIZE(gmm_stream, sizeof(void *));

int main(void) { return 0; }
