// SPDX-License-Identifier: Apache-2.0
// Every bad input that the interface knows, one row each: the call, its exact result, and words of which the message must hold
// one. After each row nothing may have changed: no output, no counter, no block.
#include "../support/gmm_test.h"

// What the rows use. `marked` is compared with a copy after each row.
static struct {
  void *pointer;
  gmm_context *context;
  gmm_heap *heap;
  gmm_stream stream;
  gmm_event *event;
  gmm_tag tag;
  int32_t fd;
  uint64_t bytes;
  uint32_t word;
  gmm_ipc_handle handle;
  gmm_context_info context_info, context_info_short, context_info_long;
  gmm_device_info device_info, device_info_short;
  gmm_pointer_info pointer_info, pointer_info_short, pointer_info_long;
  uint8_t after_pointer_info_long[16];
  gmm_pause_info pause_info, pause_info_short;
  gmm_statistics statistics, statistics_short;
} marked, marked_before;

static char *block;      // live, kind VMM where the device has it, 5,000 bytes
static char *device_block;
static char *managed;    // 5,000 bytes, or NULL
static char *freed;
static char *paused;     // under paused_tag
static gmm_tag tag, paused_tag;
static gmm_stream stream;
static gmm_stream dead_stream;
static gmm_heap *heap;
static gmm_event *event;
static uint8_t own[64 * 1024];
static char bytes[10000];
static gmm_ipc_handle garbage;
static uint64_t wild[64];
static gmm_tag unknown_tags[2];

static void nothing(void *user) { (void)user; }
static int32_t swallow(void *user, const char *text, uint64_t size) {
  (void)user, (void)text, (void)size;
  return 0;
}

typedef struct newer_alloc {
  gmm_alloc_desc desc;
  uint8_t tail[24];
} newer_alloc;
typedef struct newer_scope {
  gmm_scope scope;
  uint8_t tail[8];
} newer_scope;

#define ALLOC_WITH(...) (&(gmm_alloc_desc){.struct_size = sizeof(gmm_alloc_desc), __VA_ARGS__})
#define CONTEXT_WITH(...) (&(gmm_context_desc){.struct_size = sizeof(gmm_context_desc), __VA_ARGS__})
#define HEAP_WITH(...) (&(gmm_heap_desc){.struct_size = sizeof(gmm_heap_desc), __VA_ARGS__})
#define PIN_WITH(...) (&(gmm_pin_desc){.struct_size = sizeof(gmm_pin_desc), __VA_ARGS__})
#define MOVE_WITH(...) (&(gmm_move_desc){.struct_size = sizeof(gmm_move_desc), __VA_ARGS__})
#define PAUSE_WITH(...) (&(gmm_pause_desc){.struct_size = sizeof(gmm_pause_desc), __VA_ARGS__})
#define TAG_WITH(...) (&(gmm_tag_desc){.struct_size = sizeof(gmm_tag_desc), __VA_ARGS__})
#define IMPORT_WITH(...) (&(gmm_ipc_import_desc){.struct_size = sizeof(gmm_ipc_import_desc), __VA_ARGS__})
#define SCOPE_WITH(...) (&(gmm_scope){.struct_size = sizeof(gmm_scope), __VA_ARGS__})
#define OUT (&marked.pointer)
#define DEFAULT_STREAM GMM_STREAM_DEFAULT

enum { PLAIN_ROW = 0, NEEDS_HOST = 1, NEEDS_MANAGED = 2, NEEDS_VMM = 4, WANTS_MEMORY = 8 };
#define SIZE_BEYOND ((uint64_t)1 << 62)

// name, needs, expected, words of the message ("a|b": one of them), call
#define ROWS(X)                                                                                                                              \
  /* sizes */                                                                                                                                \
  X(alloc_zero, 0, INVALID_SIZE, "0", gmm_alloc(context, 0, NULL, OUT))                                                                       \
  X(alloc_overflow, 0, SIZE_OVERFLOW, "18446744073709551615", gmm_alloc(context, UINT64_MAX, NULL, OUT))                                      \
  X(alloc_overflow_by_rounding, 0, SIZE_OVERFLOW, "18446744073709551000", gmm_alloc(context, 18446744073709551000u, NULL, OUT))               \
  X(alloc_beyond_addresses, 0, SIZE_OVERFLOW, "4611686018427387904", gmm_alloc(context, SIZE_BEYOND, NULL, OUT))                              \
  X(alloc_huge, WANTS_MEMORY, OUT_OF_MEMORY, "35184372088832", gmm_alloc(context, (uint64_t)1 << 45, NULL, OUT))                               \
  X(heap_alloc_zero, 0, INVALID_SIZE, "0", gmm_heap_alloc(heap, 0, stream, OUT))                                                             \
  X(heap_alloc_overflow, 0, SIZE_OVERFLOW, "18446744073709551615", gmm_heap_alloc(heap, UINT64_MAX, stream, OUT))                             \
  X(heap_minimum_overflow, 0, SIZE_OVERFLOW, "18446744073709551615", gmm_heap_create(context, HEAP_WITH(.minimum_extent = UINT64_MAX), &marked.heap)) \
  X(pin_zero, 0, INVALID_SIZE, "0", gmm_pin(context, own, 0, NULL, OUT))                                                                      \
  X(pin_overflow, 0, SIZE_OVERFLOW, "18446744073709551615", gmm_pin(context, own, UINT64_MAX, NULL, OUT))                                     \
  X(copy_past_the_block, 0, INVALID_SIZE, "5001", gmm_copy(context, block, bytes, 5001, stream))                                              \
  X(copy_past_the_block_from_inside, 0, INVALID_SIZE, "4002", gmm_copy(context, block + 999, bytes, 4002, stream))                            \
  X(copy_past_the_source, 0, INVALID_SIZE, "5001", gmm_copy(context, bytes, block, 5001, stream))                                             \
  X(copy_overflow, 0, INVALID_SIZE, "18446744073709551615", gmm_copy(context, block, bytes, UINT64_MAX, stream))                              \
  X(fill_past_the_block, 0, INVALID_SIZE, "5001", gmm_fill(context, block, 0, 5001, stream))                                                  \
  X(fill_overflow, 0, INVALID_SIZE, "18446744073709551615", gmm_fill(context, block, 0, UINT64_MAX, stream))                                  \
  X(fill_value, 0, INVALID_VALUE, "256", gmm_fill(context, block, 256, 10, stream))                                                           \
  X(fill_value_huge, 0, INVALID_VALUE, "4294967295", gmm_fill(context, block, 0xffffffffu, 10, stream))                                       \
  X(advise_past_the_block, NEEDS_MANAGED, INVALID_SIZE, "5001", gmm_advise(context, managed, 5001, GMM_ADVISE_SET_READ_MOSTLY, 0))            \
  X(advise_overflow, NEEDS_MANAGED, INVALID_SIZE, "18446744073709551615", gmm_advise(context, managed + 9, UINT64_MAX, 1, 0))                 \
  X(prefetch_past_the_block, NEEDS_MANAGED, INVALID_SIZE, "5001", gmm_prefetch(context, managed, 5001, 0, stream))                            \
  /* alignments */                                                                                                                           \
  X(alignment_3, 0, INVALID_ALIGNMENT, "3", gmm_alloc(context, 100, ALLOC_WITH(.alignment = 3), OUT))                                         \
  X(alignment_257, 0, INVALID_ALIGNMENT, "257", gmm_alloc(context, 100, ALLOC_WITH(.alignment = 257), OUT))                                   \
  X(alignment_4_mib, 0, INVALID_ALIGNMENT, "4194304", gmm_alloc(context, 100, ALLOC_WITH(.alignment = 4 * MIB), OUT))                         \
  X(alignment_largest, 0, INVALID_ALIGNMENT, "9223372036854775808", gmm_alloc(context, 100, ALLOC_WITH(.alignment = (uint64_t)1 << 63), OUT)) \
  /* kinds */                                                                                                                                \
  X(kind_5, 0, INVALID_KIND, "5", gmm_alloc(context, 100, ALLOC_WITH(.kind = 5), OUT))                                                        \
  X(kind_huge, 0, INVALID_KIND, "4294967295", gmm_alloc(context, 100, ALLOC_WITH(.kind = UINT32_MAX), OUT))                                   \
  X(heap_kind, 0, INVALID_KIND, "77", gmm_heap_create(context, HEAP_WITH(.kind = 77), &marked.heap))                                          \
  X(stats_kind, 0, INVALID_KIND, "77", gmm_stats(context, SCOPE_WITH(.flags = GMM_SCOPE_KIND, .kind = 77), &marked.statistics))               \
  X(stats_kind_unspecified, 0, INVALID_KIND, "0", gmm_stats(context, SCOPE_WITH(.flags = GMM_SCOPE_KIND), &marked.statistics))                \
  X(trim_kind, 0, INVALID_KIND, "77", gmm_trim(context, SCOPE_WITH(.flags = GMM_SCOPE_KIND, .kind = 77), &marked.bytes))                      \
  X(advise_kind, NEEDS_VMM, INVALID_KIND, "VMM", gmm_advise(context, block, 0, GMM_ADVISE_SET_READ_MOSTLY, 0))                                \
  X(advise_device_memory, 0, INVALID_KIND, "DEVICE", gmm_advise(context, device_block, 0, GMM_ADVISE_SET_READ_MOSTLY, 0))                     \
  X(prefetch_kind, NEEDS_VMM, INVALID_KIND, "VMM", gmm_prefetch(context, block, 0, 0, stream))                                                \
  X(move_device_memory, 0, INVALID_KIND, "DEVICE", gmm_move(context, device_block, GMM_DEVICE_HOST, NULL))                                    \
  X(export_managed, NEEDS_MANAGED, INVALID_KIND, "MANAGED", gmm_ipc_export(context, managed, &marked.handle))                                 \
  X(export_fd_managed, NEEDS_MANAGED, INVALID_KIND, "MANAGED", gmm_ipc_export_fd(context, managed, &marked.fd, NULL, NULL))                   \
  X(export_fd_device, 0, INVALID_KIND, "DEVICE", gmm_ipc_export_fd(context, device_block, &marked.fd, NULL, NULL))                            \
  X(pin_memory_of_gmm, 0, INVALID_KIND, "0x", gmm_pin(context, block, 100, NULL, OUT))                                                        \
  X(pin_inside_memory_of_gmm, 0, INVALID_KIND, "0x", gmm_pin(context, block + 10, 100, NULL, OUT))                                            \
  /* devices */                                                                                                                              \
  X(device_99, 0, INVALID_DEVICE, "99", gmm_alloc(context, 100, ALLOC_WITH(.device = 99), OUT))                                               \
  X(device_host, 0, INVALID_DEVICE, "-1", gmm_alloc(context, 100, ALLOC_WITH(.device = GMM_DEVICE_HOST), OUT))                                \
  X(device_most_negative, 0, INVALID_DEVICE, "-2147483648", gmm_alloc(context, 100, ALLOC_WITH(.device = INT32_MIN), OUT))                    \
  X(device_info_99, 0, INVALID_DEVICE, "99", gmm_device_get_info(context, 99, &marked.device_info))                                           \
  X(device_info_host, 0, INVALID_DEVICE, "-1", gmm_device_get_info(context, -1, &marked.device_info))                                         \
  X(heap_device, 0, INVALID_DEVICE, "99", gmm_heap_create(context, HEAP_WITH(.device = 99), &marked.heap))                                    \
  X(heap_peer, NEEDS_VMM, INVALID_DEVICE, "31", gmm_heap_create(context, HEAP_WITH(.kind = GMM_KIND_VMM, .peer_devices = 1u << 31), &marked.heap)) \
  X(stream_device, 0, INVALID_DEVICE, "99", gmm_stream_create(context, 99, &marked.stream))                                                   \
  X(event_device, 0, INVALID_DEVICE, "99", gmm_event_create(context, 99, &marked.event))                                                      \
  X(pin_device, 0, INVALID_DEVICE, "99", gmm_pin(context, own, 100, PIN_WITH(.device = 99), OUT))                                             \
  X(advise_device, NEEDS_MANAGED, INVALID_DEVICE, "99", gmm_advise(context, managed, 0, GMM_ADVISE_SET_PREFERRED_LOCATION, 99))               \
  X(advise_device_negative, NEEDS_MANAGED, INVALID_DEVICE, "-2", gmm_advise(context, managed, 0, GMM_ADVISE_SET_ACCESSED_BY, -2))             \
  X(prefetch_device, NEEDS_MANAGED, INVALID_DEVICE, "99", gmm_prefetch(context, managed, 0, 99, stream))                                      \
  X(move_device, NEEDS_VMM, INVALID_DEVICE, "99", gmm_move(context, block, 99, NULL))                                                         \
  X(import_device, 0, INVALID_DEVICE, "99", gmm_ipc_import(context, &garbage, IMPORT_WITH(.device = 99), OUT))                                \
  X(limit_device, 0, INVALID_DEVICE, "99", gmm_set_limit(context, SCOPE_WITH(.flags = GMM_SCOPE_DEVICE, .device = 99), 0))                    \
  X(stats_device, 0, INVALID_DEVICE, "99", gmm_stats(context, SCOPE_WITH(.flags = GMM_SCOPE_DEVICE, .device = 99), &marked.statistics))       \
  X(trim_device, 0, INVALID_DEVICE, "99", gmm_trim(context, SCOPE_WITH(.flags = GMM_SCOPE_DEVICE, .device = 99), &marked.bytes))              \
  /* tags */                                                                                                                                 \
  X(alloc_tag, 0, INVALID_TAG, "3993", gmm_alloc(context, 100, ALLOC_WITH(.tag = 3993), OUT))                                                 \
  X(alloc_tag_huge, 0, INVALID_TAG, "4294967295", gmm_alloc(context, 100, ALLOC_WITH(.tag = UINT32_MAX), OUT))                                \
  X(heap_tag, 0, INVALID_TAG, "3993", gmm_heap_create(context, HEAP_WITH(.tag = 3993), &marked.heap))                                         \
  X(push_tag, 0, INVALID_TAG, "3993", gmm_tag_push(context, 3993))                                                                            \
  X(push_tag_zero, 0, INVALID_TAG, "0", gmm_tag_push(context, GMM_TAG_CURRENT))                                                               \
  X(process_tag, 0, INVALID_TAG, "3993", gmm_tag_set_process_default(context, 3993))                                                          \
  X(find_tag, 0, INVALID_TAG, "nobody", gmm_tag_find(context, "nobody", &marked.tag))                                                         \
  X(pause_tag, 0, INVALID_TAG, "3993", gmm_pause(context, PAUSE_WITH(.tags = unknown_tags, .tag_count = 2), &marked.bytes))                   \
  X(resume_tag, 0, INVALID_TAG, "3993", gmm_resume(context, PAUSE_WITH(.tags = unknown_tags, .tag_count = 2), &marked.bytes))                 \
  X(pause_query_tag, 0, INVALID_TAG, "3993", gmm_pause_query(context, 3993, &marked.pause_info))                                              \
  X(pause_query_tag_zero, 0, INVALID_TAG, "0", gmm_pause_query(context, 0, &marked.pause_info))                                               \
  X(limit_tag, 0, INVALID_TAG, "3993", gmm_set_limit(context, SCOPE_WITH(.flags = GMM_SCOPE_TAG, .tag = 3993), 0))                            \
  X(stats_tag, 0, INVALID_TAG, "3993", gmm_stats(context, SCOPE_WITH(.flags = GMM_SCOPE_TAG, .tag = 3993), &marked.statistics))               \
  X(trim_tag, 0, INVALID_TAG, "3993", gmm_trim(context, SCOPE_WITH(.flags = GMM_SCOPE_TAG, .tag = 3993), &marked.bytes))                      \
  X(tag_name_empty, 0, INVALID_VALUE, "name", gmm_tag_create(context, "", NULL, &marked.tag))                                                 \
  X(tag_name_long, 0, INVALID_VALUE, "63", gmm_tag_create(context, "0123456789012345678901234567890123456789012345678901234567890123", NULL, &marked.tag)) \
  X(tag_contents, 0, INVALID_VALUE, "3", gmm_tag_create(context, "odd", TAG_WITH(.contents = 3), &marked.tag))                                \
  X(tag_differs, 0, INVALID_VALUE, "paused", gmm_tag_create(context, "paused", TAG_WITH(.contents = GMM_CONTENTS_DROP), &marked.tag))         \
  X(tag_priority_differs, 0, INVALID_VALUE, "paused", gmm_tag_create(context, "paused", TAG_WITH(.contents = GMM_CONTENTS_HOST, .priority = 1), &marked.tag)) \
  X(pop_without_push, 0, UNBALANCED, "pop|push", gmm_tag_pop(context))                                                                        \
  X(defer_end_without_begin, 0, UNBALANCED, "begin", gmm_defer_end(context))                                                                  \
  X(trace_end_without_begin, 0, UNBALANCED, "begin|trace", gmm_trace_end(context))                                                            \
  X(unpin_what_is_not_pinned, 0, NOT_PINNED, "0x", gmm_unpin(context, own))                                                                   \
  /* flags */                                                                                                                                \
  X(alloc_flags, 0, INVALID_FLAGS, "80|128", gmm_alloc(context, 100, ALLOC_WITH(.flags = 0x80), OUT))                                         \
  X(alloc_flags_beside_known, 0, INVALID_FLAGS, "80000002|80000000", gmm_alloc(context, 100, ALLOC_WITH(.flags = 0x80000000u | GMM_ALLOC_ZERO), OUT)) \
  X(context_flags, 0, INVALID_DESCRIPTOR, "flags", gmm_context_create(CONTEXT_WITH(.flags = 1), &marked.context))                             \
  X(heap_flags, 0, INVALID_FLAGS, "40|64", gmm_heap_create(context, HEAP_WITH(.flags = 0x40), &marked.heap))                                  \
  X(pin_flags, 0, INVALID_FLAGS, "40|64", gmm_pin(context, own, 100, PIN_WITH(.flags = 0x40), OUT))                                           \
  X(move_flags, NEEDS_VMM, INVALID_FLAGS, "40|64", gmm_move(context, block, 0, MOVE_WITH(.flags = 0x40)))                                     \
  X(pause_flags, 0, INVALID_FLAGS, "40|64", gmm_pause(context, PAUSE_WITH(.flags = 0x40), &marked.bytes))                                     \
  X(resume_flags, 0, INVALID_FLAGS, "1", gmm_resume(context, PAUSE_WITH(.flags = GMM_PAUSE_FORCE), &marked.bytes))                            \
  X(import_flags, 0, INVALID_FLAGS, "40|64", gmm_ipc_import(context, &garbage, IMPORT_WITH(.flags = 0x40), OUT))                              \
  X(limit_no_scope, 0, INVALID_FLAGS, "scope", gmm_set_limit(context, NULL, 5))                                                               \
  X(limit_no_flags, 0, INVALID_FLAGS, "0", gmm_set_limit(context, SCOPE_WITH(.flags = 0), 5))                                                 \
  X(limit_kind, 0, INVALID_FLAGS, "4|kind|KIND", gmm_set_limit(context, SCOPE_WITH(.flags = GMM_SCOPE_KIND | GMM_SCOPE_TAG, .tag = 1, .kind = 1), 5)) \
  X(limit_flags, 0, INVALID_FLAGS, "40|64", gmm_set_limit(context, SCOPE_WITH(.flags = 0x40), 5))                                             \
  X(stats_flags, 0, INVALID_FLAGS, "40|64", gmm_stats(context, SCOPE_WITH(.flags = 0x40), &marked.statistics))                                \
  X(trim_flags, 0, INVALID_FLAGS, "40|64", gmm_trim(context, SCOPE_WITH(.flags = 0x40), &marked.bytes))                                       \
  X(advice_zero, NEEDS_MANAGED, INVALID_VALUE, "0", gmm_advise(context, managed, 0, 0, 0))                                                    \
  X(advice_unknown, NEEDS_MANAGED, INVALID_VALUE, "99", gmm_advise(context, managed, 0, 99, 0))                                               \
  X(backend_unknown, 0, INVALID_VALUE, "77", gmm_context_create(CONTEXT_WITH(.backend = 77), &marked.context))                                \
  X(backend_reserved, 0, NO_BACKEND, "SYCL|sycl", gmm_context_create(CONTEXT_WITH(.backend = GMM_BACKEND_SYCL), &marked.context))             \
  X(too_many_devices, 0, INVALID_VALUE, "17", gmm_context_create(CONTEXT_WITH(.backend = GMM_BACKEND_HOST, .host_devices = 17), &marked.context)) \
  /* struct sizes and reserved fields */                                                                                                     \
  X(alloc_size_zero, 0, INVALID_DESCRIPTOR, "0|struct_size", gmm_alloc(context, 100, &(gmm_alloc_desc){.struct_size = 0}, OUT))                \
  X(alloc_size_small, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_alloc(context, 100, &(gmm_alloc_desc){.struct_size = 3}, OUT))               \
  X(alloc_size_newer_tail, 0, INVALID_DESCRIPTOR, "struct_size|72", gmm_alloc(context, 100, &(newer_alloc){.desc.struct_size = sizeof(newer_alloc), .tail[23] = 1}.desc, OUT)) \
  X(alloc_size_newer_tail_first, 0, INVALID_DESCRIPTOR, "struct_size|72", gmm_alloc(context, 100, &(newer_alloc){.desc.struct_size = sizeof(newer_alloc), .tail[0] = 1}.desc, OUT)) \
  X(alloc_reserved, 0, INVALID_DESCRIPTOR, "reserved", gmm_alloc(context, 100, ALLOC_WITH(.reserved = 1), OUT))                               \
  X(context_size, 0, INVALID_DESCRIPTOR, "2|struct_size", gmm_context_create(&(gmm_context_desc){.struct_size = 2}, &marked.context))          \
  X(context_reserved, 0, INVALID_DESCRIPTOR, "reserved", gmm_context_create(CONTEXT_WITH(.reserved = 1), &marked.context))                    \
  X(context_reserved1, 0, INVALID_DESCRIPTOR, "reserved", gmm_context_create(CONTEXT_WITH(.reserved1 = 1), &marked.context))                  \
  X(half_an_allocator, 0, INVALID_DESCRIPTOR, "allocat", gmm_context_create(CONTEXT_WITH(.host_allocator.deallocate = (void (*)(void *, void *, uint64_t))(uintptr_t)1), &marked.context)) \
  X(heap_size, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_heap_create(context, &(gmm_heap_desc){.struct_size = 3}, &marked.heap))             \
  X(pin_size, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_pin(context, own, 100, &(gmm_pin_desc){.struct_size = 3}, OUT))                      \
  X(pin_reserved, 0, INVALID_DESCRIPTOR, "reserved", gmm_pin(context, own, 100, PIN_WITH(.reserved = 1), OUT))                                \
  X(move_size, NEEDS_VMM, INVALID_DESCRIPTOR, "3|struct_size", gmm_move(context, block, 0, &(gmm_move_desc){.struct_size = 3}))                \
  X(pause_size, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_pause(context, &(gmm_pause_desc){.struct_size = 3}, &marked.bytes))                \
  X(resume_size, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_resume(context, &(gmm_pause_desc){.struct_size = 3}, &marked.bytes))              \
  X(pause_reserved, 0, INVALID_DESCRIPTOR, "reserved", gmm_pause(context, PAUSE_WITH(.reserved = 1), &marked.bytes))                          \
  X(tag_size, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_tag_create(context, "odd", &(gmm_tag_desc){.struct_size = 3}, &marked.tag))          \
  X(tag_reserved, 0, INVALID_DESCRIPTOR, "reserved", gmm_tag_create(context, "odd", TAG_WITH(.reserved = 1), &marked.tag))                    \
  X(import_size, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_ipc_import(context, &garbage, &(gmm_ipc_import_desc){.struct_size = 3}, OUT))     \
  X(limit_size, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_set_limit(context, &(gmm_scope){.struct_size = 3, .flags = 1}, 5))                 \
  X(limit_reserved, 0, INVALID_DESCRIPTOR, "reserved", gmm_set_limit(context, SCOPE_WITH(.flags = 1, .reserved = 1), 5))                      \
  X(stats_scope_size, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_stats(context, &(gmm_scope){.struct_size = 3}, &marked.statistics))          \
  X(stats_scope_reserved, 0, INVALID_DESCRIPTOR, "reserved", gmm_stats(context, SCOPE_WITH(.reserved = 1), &marked.statistics))               \
  X(stats_scope_newer, 0, INVALID_DESCRIPTOR, "struct_size|32", gmm_stats(context, &(newer_scope){.scope.struct_size = sizeof(newer_scope), .tail[7] = 9}.scope, &marked.statistics)) \
  X(trim_scope_size, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_trim(context, &(gmm_scope){.struct_size = 3}, &marked.bytes))                 \
  X(context_info_size, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_context_get_info(context, &marked.context_info_short))                      \
  X(device_info_size, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_device_get_info(context, 0, &marked.device_info_short))                      \
  X(query_size, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_query(context, block, &marked.pointer_info_short))                                 \
  X(pause_info_size, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_pause_query(context, tag, &marked.pause_info_short))                          \
  X(stats_size, 0, INVALID_DESCRIPTOR, "3|struct_size", gmm_stats(context, NULL, &marked.statistics_short))                                    \
  /* pointers */                                                                                                                             \
  X(free_foreign, 0, UNKNOWN_POINTER, "0x", gmm_free(context, bytes, stream))                                                                 \
  X(free_small_number, 0, UNKNOWN_POINTER, "0x", gmm_free(context, (void *)1, stream))                                                        \
  X(free_largest_address, 0, UNKNOWN_POINTER, "0x", gmm_free(context, (void *)UINTPTR_MAX, stream))                                           \
  X(free_code, 0, UNKNOWN_POINTER, "0x", gmm_free(context, (void *)(uintptr_t)nothing, stream))                                               \
  X(free_freed, 0, ALREADY_FREED, "0x", gmm_free(context, freed, stream))                                                                     \
  X(free_inside, 0, INTERIOR_POINTER, "0x", gmm_free(context, block + 1, stream))                                                             \
  X(free_inside_aligned, 0, INTERIOR_POINTER, "0x", gmm_free(context, block + 256, stream))                                                   \
  X(free_last_byte, 0, INTERIOR_POINTER, "0x", gmm_free(context, block + 4999, stream))                                                       \
  X(free_inside_freed, 0, ALREADY_FREED, "0x", gmm_free(context, freed + 256, stream))                                                        \
  X(record_foreign, 0, UNKNOWN_POINTER, "0x", gmm_record_use(context, bytes, stream))                                                         \
  X(record_freed, 0, ALREADY_FREED, "0x", gmm_record_use(context, freed, stream))                                                             \
  X(advise_foreign, 0, UNKNOWN_POINTER, "0x", gmm_advise(context, bytes, 0, 1, 0))                                                            \
  X(advise_freed, 0, ALREADY_FREED, "0x", gmm_advise(context, freed, 0, 1, 0))                                                                \
  X(prefetch_foreign, 0, UNKNOWN_POINTER, "0x", gmm_prefetch(context, bytes, 0, 0, stream))                                                   \
  X(prefetch_freed, 0, ALREADY_FREED, "0x", gmm_prefetch(context, freed, 0, 0, stream))                                                       \
  X(move_foreign, 0, UNKNOWN_POINTER, "0x", gmm_move(context, bytes, 0, NULL))                                                                \
  X(move_freed, 0, ALREADY_FREED, "0x", gmm_move(context, freed, 0, NULL))                                                                    \
  X(export_foreign, 0, UNKNOWN_POINTER, "0x", gmm_ipc_export(context, bytes, &marked.handle))                                                 \
  X(export_freed, 0, ALREADY_FREED, "0x", gmm_ipc_export(context, freed, &marked.handle))                                                     \
  X(export_fd_foreign, 0, UNKNOWN_POINTER, "0x", gmm_ipc_export_fd(context, bytes, &marked.fd, NULL, NULL))                                   \
  X(export_fd_freed, 0, ALREADY_FREED, "0x", gmm_ipc_export_fd(context, freed, &marked.fd, NULL, NULL))                                       \
  X(close_foreign, 0, UNKNOWN_POINTER, "0x", gmm_ipc_close(context, bytes))                                                                   \
  X(unpin_foreign, 0, NOT_PINNED, "0x", gmm_unpin(context, bytes))                                                                            \
  X(import_zeros, 0, IPC_INVALID_HANDLE, "", gmm_ipc_import(context, &(gmm_ipc_handle){{0}}, NULL, OUT))                                       \
  X(import_garbage, 0, IPC_INVALID_HANDLE, "", gmm_ipc_import(context, &garbage, NULL, OUT))                                                  \
  /* paused memory */                                                                                                                        \
  X(copy_to_paused, NEEDS_VMM, PAUSED, "paused", gmm_copy(context, paused, bytes, 100, stream))                                               \
  X(copy_from_paused, NEEDS_VMM, PAUSED, "paused", gmm_copy(context, bytes, paused + 50, 100, stream))                                        \
  X(fill_paused, NEEDS_VMM, PAUSED, "paused", gmm_fill(context, paused, 0, 100, stream))                                                      \
  X(move_paused, NEEDS_VMM, PAUSED, "paused", gmm_move(context, paused, GMM_DEVICE_HOST, NULL))                                               \
  X(export_paused, NEEDS_VMM, PAUSED, "paused", gmm_ipc_export(context, paused, &marked.handle))                                              \
  X(export_fd_paused, NEEDS_VMM, PAUSED, "paused", gmm_ipc_export_fd(context, paused, &marked.fd, NULL, NULL))                                \
  X(heap_with_live_blocks, 0, BUSY, "", gmm_heap_destroy(heap))                                                                               \
  /* streams */                                                                                                                              \
  X(destroy_default_stream, 0, INVALID_HANDLE, "", gmm_stream_destroy(context, GMM_STREAM_DEFAULT))                                           \
  X(destroy_legacy_stream, 0, INVALID_HANDLE, "", gmm_stream_destroy(context, GMM_STREAM_LEGACY))                                             \
  X(destroy_per_thread_stream, 0, INVALID_HANDLE, "", gmm_stream_destroy(context, GMM_STREAM_PER_THREAD))                                     \
  X(destroy_wild_stream, NEEDS_HOST, INVALID_HANDLE, "0x", gmm_stream_destroy(context, (gmm_stream)(void *)wild))                             \
  X(destroy_dead_stream, NEEDS_HOST, INVALID_HANDLE, "0x", gmm_stream_destroy(context, dead_stream))                                          \
  X(synchronize_wild_stream, NEEDS_HOST, INVALID_HANDLE, "0x", gmm_stream_synchronize(context, (gmm_stream)(void *)wild))                     \
  X(synchronize_dead_stream, NEEDS_HOST, INVALID_HANDLE, "0x", gmm_stream_synchronize(context, dead_stream))                                  \
  X(call_on_wild_stream, NEEDS_HOST, INVALID_HANDLE, "0x", gmm_stream_call(context, (gmm_stream)(void *)wild, nothing, NULL))                 \
  X(copy_on_wild_stream, NEEDS_HOST, INVALID_HANDLE, "0x", gmm_copy(context, block, bytes, 100, (gmm_stream)(void *)wild))                    \
  X(copy_on_dead_stream, NEEDS_HOST, INVALID_HANDLE, "0x", gmm_copy(context, block, bytes, 100, dead_stream))                                 \
  X(fill_on_wild_stream, NEEDS_HOST, INVALID_HANDLE, "0x", gmm_fill(context, block, 1, 100, (gmm_stream)(void *)wild))                        \
  X(record_event_on_wild_stream, NEEDS_HOST, INVALID_HANDLE, "0x", gmm_event_record(context, event, (gmm_stream)(void *)wild))                \
  X(wait_on_wild_stream, NEEDS_HOST, INVALID_HANDLE, "0x", gmm_stream_wait_event(context, (gmm_stream)(void *)wild, event))                   \
  X(prefetch_on_wild_stream, NEEDS_HOST | NEEDS_MANAGED, INVALID_HANDLE, "0x", gmm_prefetch(context, managed, 0, 0, (gmm_stream)(void *)wild)) \
  X(forget_wild_stream, NEEDS_HOST, INVALID_HANDLE, "0x", gmm_stream_forget(context, (gmm_stream)(void *)wild))                               \
  /* NULL, argument by argument */                                                                                                           \
  X(null_create_out, 0, NULL_ARGUMENT, "out", gmm_context_create(NULL, NULL))                                                                 \
  X(null_retain, 0, NULL_ARGUMENT, "context", gmm_context_retain(NULL))                                                                       \
  X(null_info_context, 0, NULL_ARGUMENT, "context", gmm_context_get_info(NULL, &marked.context_info))                                         \
  X(null_info_out, 0, NULL_ARGUMENT, "out", gmm_context_get_info(context, NULL))                                                              \
  X(null_device_context, 0, NULL_ARGUMENT, "context", gmm_device_get_info(NULL, 0, &marked.device_info))                                      \
  X(null_device_out, 0, NULL_ARGUMENT, "out", gmm_device_get_info(context, 0, NULL))                                                          \
  X(null_alloc_context, 0, NULL_ARGUMENT, "context", gmm_alloc(NULL, 100, NULL, OUT))                                                         \
  X(null_alloc_out, 0, NULL_ARGUMENT, "out", gmm_alloc(context, 100, NULL, NULL))                                                             \
  X(null_free_context, 0, NULL_ARGUMENT, "context", gmm_free(NULL, block, stream))                                                            \
  X(null_query_context, 0, NULL_ARGUMENT, "context", gmm_query(NULL, block, &marked.pointer_info))                                            \
  X(null_query_out, 0, NULL_ARGUMENT, "out", gmm_query(context, block, NULL))                                                                 \
  X(null_heap_context, 0, NULL_ARGUMENT, "context", gmm_heap_create(NULL, NULL, &marked.heap))                                                \
  X(null_heap_out, 0, NULL_ARGUMENT, "out", gmm_heap_create(context, HEAP_WITH(.kind = 1), NULL))                                             \
  X(null_heap_alloc_heap, 0, NULL_ARGUMENT, "heap", gmm_heap_alloc(NULL, 100, stream, OUT))                                                   \
  X(null_heap_alloc_out, 0, NULL_ARGUMENT, "out", gmm_heap_alloc(heap, 100, stream, NULL))                                                    \
  X(null_stream_context, 0, NULL_ARGUMENT, "context", gmm_stream_create(NULL, 0, &marked.stream))                                             \
  X(null_stream_out, 0, NULL_ARGUMENT, "out", gmm_stream_create(context, 0, NULL))                                                            \
  X(null_stream_destroy, 0, NULL_ARGUMENT, "context", gmm_stream_destroy(NULL, stream))                                                       \
  X(null_stream_forget, 0, NULL_ARGUMENT, "context", gmm_stream_forget(NULL, stream))                                                         \
  X(null_stream_synchronize, 0, NULL_ARGUMENT, "context", gmm_stream_synchronize(NULL, stream))                                               \
  X(null_call_context, 0, NULL_ARGUMENT, "context", gmm_stream_call(NULL, stream, nothing, NULL))                                             \
  X(null_call_fn, 0, NULL_ARGUMENT, "fn", gmm_stream_call(context, stream, NULL, NULL))                                                       \
  X(null_copy_context, 0, NULL_ARGUMENT, "context", gmm_copy(NULL, block, bytes, 10, stream))                                                 \
  X(null_copy_destination, 0, NULL_ARGUMENT, "destination", gmm_copy(context, NULL, bytes, 10, stream))                                       \
  X(null_copy_source, 0, NULL_ARGUMENT, "source", gmm_copy(context, block, NULL, 10, stream))                                                 \
  X(null_fill_context, 0, NULL_ARGUMENT, "context", gmm_fill(NULL, block, 0, 10, stream))                                                     \
  X(null_fill_destination, 0, NULL_ARGUMENT, "destination", gmm_fill(context, NULL, 0, 10, stream))                                           \
  X(null_record_context, 0, NULL_ARGUMENT, "context", gmm_record_use(NULL, block, stream))                                                    \
  X(null_record_memory, 0, UNKNOWN_POINTER, "", gmm_record_use(context, NULL, stream))                                                        \
  X(null_event_context, 0, NULL_ARGUMENT, "context", gmm_event_create(NULL, 0, &marked.event))                                                \
  X(null_event_out, 0, NULL_ARGUMENT, "out", gmm_event_create(context, 0, NULL))                                                              \
  X(null_event_destroy, 0, NULL_ARGUMENT, "context", gmm_event_destroy(NULL, event))                                                          \
  X(null_event_record_context, 0, NULL_ARGUMENT, "context", gmm_event_record(NULL, event, stream))                                            \
  X(null_event_record, 0, NULL_ARGUMENT, "event", gmm_event_record(context, NULL, stream))                                                    \
  X(null_wait_context, 0, NULL_ARGUMENT, "context", gmm_stream_wait_event(NULL, stream, event))                                               \
  X(null_wait_event, 0, NULL_ARGUMENT, "event", gmm_stream_wait_event(context, stream, NULL))                                                 \
  X(null_event_synchronize_context, 0, NULL_ARGUMENT, "context", gmm_event_synchronize(NULL, event))                                          \
  X(null_event_synchronize, 0, NULL_ARGUMENT, "event", gmm_event_synchronize(context, NULL))                                                  \
  X(null_event_query_context, 0, NULL_ARGUMENT, "context", gmm_event_query(NULL, event, &marked.word))                                        \
  X(null_event_query, 0, NULL_ARGUMENT, "event", gmm_event_query(context, NULL, &marked.word))                                                \
  X(null_event_query_out, 0, NULL_ARGUMENT, "out", gmm_event_query(context, event, NULL))                                                     \
  X(null_pin_context, 0, NULL_ARGUMENT, "context", gmm_pin(NULL, own, 100, NULL, OUT))                                                        \
  X(null_pin_memory, 0, NULL_ARGUMENT, "memory", gmm_pin(context, NULL, 100, NULL, OUT))                                                      \
  X(null_unpin_context, 0, NULL_ARGUMENT, "context", gmm_unpin(NULL, own))                                                                    \
  X(null_unpin_memory, 0, NULL_ARGUMENT, "memory", gmm_unpin(context, NULL))                                                                  \
  X(null_advise_context, 0, NULL_ARGUMENT, "context", gmm_advise(NULL, managed, 0, 1, 0))                                                     \
  X(null_advise_memory, 0, UNKNOWN_POINTER, "", gmm_advise(context, NULL, 0, 1, 0))                                                           \
  X(null_prefetch_context, 0, NULL_ARGUMENT, "context", gmm_prefetch(NULL, managed, 0, 0, stream))                                            \
  X(null_prefetch_memory, 0, UNKNOWN_POINTER, "", gmm_prefetch(context, NULL, 0, 0, stream))                                                  \
  X(null_move_context, 0, NULL_ARGUMENT, "context", gmm_move(NULL, block, 0, NULL))                                                           \
  X(null_move_memory, 0, UNKNOWN_POINTER, "", gmm_move(context, NULL, 0, NULL))                                                               \
  X(null_tag_context, 0, NULL_ARGUMENT, "context", gmm_tag_create(NULL, "odd", NULL, &marked.tag))                                            \
  X(null_tag_name, 0, NULL_ARGUMENT, "name", gmm_tag_create(context, NULL, NULL, &marked.tag))                                                \
  X(null_tag_out, 0, NULL_ARGUMENT, "out", gmm_tag_create(context, "odd", NULL, NULL))                                                        \
  X(null_find_context, 0, NULL_ARGUMENT, "context", gmm_tag_find(NULL, "paused", &marked.tag))                                                \
  X(null_find_name, 0, NULL_ARGUMENT, "name", gmm_tag_find(context, NULL, &marked.tag))                                                       \
  X(null_find_out, 0, NULL_ARGUMENT, "out", gmm_tag_find(context, "paused", NULL))                                                            \
  X(null_push, 0, NULL_ARGUMENT, "context", gmm_tag_push(NULL, tag))                                                                          \
  X(null_pop, 0, NULL_ARGUMENT, "context", gmm_tag_pop(NULL))                                                                                 \
  X(null_process_default, 0, NULL_ARGUMENT, "context", gmm_tag_set_process_default(NULL, tag))                                                \
  X(null_pause_context, 0, NULL_ARGUMENT, "context", gmm_pause(NULL, NULL, &marked.bytes))                                                    \
  X(null_pause_tags, 0, NULL_ARGUMENT, "tags", gmm_pause(context, PAUSE_WITH(.tag_count = 2), &marked.bytes))                                 \
  X(null_resume_context, 0, NULL_ARGUMENT, "context", gmm_resume(NULL, NULL, &marked.bytes))                                                  \
  X(null_resume_tags, 0, NULL_ARGUMENT, "tags", gmm_resume(context, PAUSE_WITH(.tag_count = 2), &marked.bytes))                               \
  X(null_pause_query_context, 0, NULL_ARGUMENT, "context", gmm_pause_query(NULL, tag, &marked.pause_info))                                    \
  X(null_pause_query_out, 0, NULL_ARGUMENT, "out", gmm_pause_query(context, tag, NULL))                                                       \
  X(null_export_context, 0, NULL_ARGUMENT, "context", gmm_ipc_export(NULL, block, &marked.handle))                                            \
  X(null_export_memory, 0, NULL_ARGUMENT, "memory", gmm_ipc_export(context, NULL, &marked.handle))                                            \
  X(null_export_out, 0, NULL_ARGUMENT, "out", gmm_ipc_export(context, block, NULL))                                                           \
  X(null_import_context, 0, NULL_ARGUMENT, "context", gmm_ipc_import(NULL, &garbage, NULL, OUT))                                              \
  X(null_import_handle, 0, NULL_ARGUMENT, "handle", gmm_ipc_import(context, NULL, NULL, OUT))                                                 \
  X(null_import_out, 0, NULL_ARGUMENT, "out", gmm_ipc_import(context, &garbage, NULL, NULL))                                                  \
  X(null_close_context, 0, NULL_ARGUMENT, "context", gmm_ipc_close(NULL, block))                                                              \
  X(null_close_memory, 0, NULL_ARGUMENT, "memory", gmm_ipc_close(context, NULL))                                                              \
  X(null_export_fd_context, 0, NULL_ARGUMENT, "context", gmm_ipc_export_fd(NULL, block, &marked.fd, NULL, NULL))                              \
  X(null_export_fd_memory, 0, NULL_ARGUMENT, "memory", gmm_ipc_export_fd(context, NULL, &marked.fd, NULL, NULL))                              \
  X(null_export_fd_fd, 0, NULL_ARGUMENT, "fd", gmm_ipc_export_fd(context, block, NULL, NULL, NULL))                                           \
  X(null_limit_context, 0, NULL_ARGUMENT, "context", gmm_set_limit(NULL, SCOPE_WITH(.flags = 1), 5))                                          \
  X(null_handler_context, 0, NULL_ARGUMENT, "context", gmm_set_oom_handler(NULL, NULL, NULL))                                                 \
  X(null_stats_context, 0, NULL_ARGUMENT, "context", gmm_stats(NULL, NULL, &marked.statistics))                                               \
  X(null_stats_out, 0, NULL_ARGUMENT, "out", gmm_stats(context, NULL, NULL))                                                                  \
  X(null_snapshot_context, 0, NULL_ARGUMENT, "context", gmm_snapshot(NULL, swallow, NULL))                                                    \
  X(null_snapshot_write, 0, NULL_ARGUMENT, "write", gmm_snapshot(context, NULL, NULL))                                                        \
  X(null_trace_context, 0, NULL_ARGUMENT, "context", gmm_trace_begin(NULL, "/dev/null"))                                                      \
  X(null_trace_path, 0, NULL_ARGUMENT, "path", gmm_trace_begin(context, NULL))                                                                \
  X(null_trace_end, 0, NULL_ARGUMENT, "context", gmm_trace_end(NULL))                                                                         \
  X(null_trim, 0, NULL_ARGUMENT, "context", gmm_trim(NULL, NULL, &marked.bytes))                                                              \
  X(null_reset, 0, NULL_ARGUMENT, "context", gmm_reset(NULL))                                                                                 \
  X(null_defer_begin, 0, NULL_ARGUMENT, "context", gmm_defer_begin(NULL))                                                                     \
  X(null_defer_end, 0, NULL_ARGUMENT, "context", gmm_defer_end(NULL))                                                                         \
  X(trace_into_no_directory, 0, IO, "/no/such/place", gmm_trace_begin(context, "/no/such/place/trace"))

typedef struct row {
  const char *name, *text, *words;
  gmm_result (*call)(void);
  gmm_result expected;
  int needs;
} row;
#define FUNCTION(name, needs, expected, words, call) \
  static gmm_result row_##name(void) { return call; }
ROWS(FUNCTION)
#define ENTRY(name, needs, expected, words, call) {#name, #call, words, row_##name, GMM_ERROR_##expected, needs},
static const row rows[] = {ROWS(ENTRY)};

static bool has_one_of(const char *message, const char *words) {
  char copy[200];
  snprintf(copy, sizeof copy, "%s", words);
  if (copy[0] == 0) return true;
  for (char *word = strtok(copy, "|"); word != NULL; word = strtok(NULL, "|"))
    if (strstr(message, word) != NULL) return true;
  return false;
}

static const row *current;
static void run_row(void) {
  if ((current->needs & NEEDS_HOST) && !on_host_backend()) SKIP("a driver crashes on a wild stream");
  if ((current->needs & NEEDS_MANAGED) && managed == NULL) SKIP("the device has no managed memory");
  if ((current->needs & NEEDS_VMM) && !has_kind(GMM_KIND_VMM)) SKIP("the device has no VMM memory");
  memcpy(&marked_before, &marked, sizeof marked);
  gmm_statistics before = stats();
  gmm_result result = current->call();
  char message[1024];
  snprintf(message, sizeof message, "%s", gmm_last_error_message());
  CHECK_MESSAGE(result == current->expected, "%s gave %s, expected %s: %s", current->text, gmm_result_name(result), gmm_result_name(current->expected), result < 0 ? message : "");
  CHECK_MESSAGE(strlen(message) >= 20, "the message says too little: \"%s\"", message);
  CHECK_MESSAGE(has_one_of(message, current->words), "the message of %s does not say \"%s\": %s", current->text, current->words, message);
  CHECK_MESSAGE(memcmp(&marked_before, &marked, sizeof marked) == 0, "%s wrote an output", current->text);
  memcpy(&marked, &marked_before, sizeof marked);
  gmm_statistics after = stats();
  if (current->needs & WANTS_MEMORY) before.failures = after.failures, before.backend_calls = after.backend_calls, before.peak_reserved_bytes = after.peak_reserved_bytes;
  CHECK_MESSAGE(memcmp(&before, &after, sizeof before) == 0, "%s changed a counter", current->text);
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  CHECK_EQUAL(query(block).size, 5000);
}

// What is odd but right.
static void what_is_allowed(void) {
  OK(gmm_context_release(NULL));
  OK(gmm_free(context, NULL, stream));
  OK(gmm_heap_destroy(NULL));
  OK(gmm_event_destroy(context, NULL));
  void *memory = NULL;
  OK(gmm_alloc(context, 100, &(newer_alloc){.desc.struct_size = sizeof(newer_alloc)}.desc, &memory));  // a newer program's descriptor
  OK(gmm_free(context, memory, stream));
  gmm_alloc_desc older = {.struct_size = offsetof(gmm_alloc_desc, alignment), .alignment = 3, .flags = 0x80};
  OK(gmm_alloc(context, 100, &older, &memory));  // an older program's: the rest is not looked at
  OK(gmm_free(context, memory, stream));
  gmm_pointer_info info = {.struct_size = sizeof info};
  OK(gmm_query(context, NULL, &info));
  CHECK_EQUAL(info.state, GMM_STATE_UNKNOWN);
  OK(gmm_copy(context, block, bytes, 0, stream));
  OK(gmm_copy(context, NULL, NULL, 0, stream));
  uint64_t back = 9;
  gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = &paused_tag, .tag_count = 1};
  if (has_kind(GMM_KIND_VMM)) {
    RESULT(gmm_pause(context, &desc, &back), GMM_UNCHANGED);
    CHECK_EQUAL(back, 0);
    OK(gmm_resume(context, &desc, NULL));
    back = 9;
    RESULT(gmm_resume(context, &desc, &back), GMM_UNCHANGED);
    CHECK_EQUAL(back, 0);
    CHECK_PATTERN(paused, 5000, 8);
  }
}

static void after_all_that_everything_works(void) {
  CHECK_PATTERN(block, 5000, 7);
  OK(gmm_free(context, block, stream));
  OK(gmm_free(context, device_block, stream));
  if (managed != NULL) OK(gmm_free(context, managed, stream));
  if (paused != NULL) OK(gmm_free(context, paused, stream));
  CHECK_EQUAL(stats().live_blocks, 1);  // the heap's
  OK(gmm_reset(context));
  OK(gmm_heap_destroy(heap));
  OK(gmm_event_destroy(context, event));
  OK(gmm_stream_destroy(context, stream));
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

static void prepare(void) {
  memset(&marked, 0x5a, sizeof marked);
  marked.context_info.struct_size = sizeof marked.context_info;
  marked.device_info.struct_size = sizeof marked.device_info;
  marked.pointer_info.struct_size = sizeof marked.pointer_info;
  marked.pause_info.struct_size = sizeof marked.pause_info;
  marked.statistics.struct_size = sizeof marked.statistics;
  marked.context_info_short.struct_size = marked.device_info_short.struct_size = marked.pointer_info_short.struct_size = 3;
  marked.pause_info_short.struct_size = marked.statistics_short.struct_size = 3;
  for (unsigned i = 0; i < sizeof garbage.bytes; ++i) garbage.bytes[i] = (uint8_t)(i * 37 + 11);
  kind = has_kind(GMM_KIND_VMM) ? GMM_KIND_VMM : GMM_KIND_DEVICE;
  MUST(gmm_stream_create(context, 0, &stream));
  MUST(gmm_stream_create(context, 0, &dead_stream));
  MUST(gmm_stream_destroy(context, dead_stream));
  MUST(gmm_event_create(context, 0, &event));
  MUST(gmm_heap_create(context, HEAP_WITH(.kind = GMM_KIND_DEVICE), &heap));
  void *of_heap = NULL;
  MUST(gmm_heap_alloc(heap, 100, stream, &of_heap));
  tag = make_tag("live", GMM_CONTENTS_DROP);
  paused_tag = make_tag("paused", GMM_CONTENTS_HOST);
  unknown_tags[0] = tag;
  unknown_tags[1] = 3993;
  REQUIRE((block = ALLOC_TAG(5000, tag)) != NULL);
  write_pattern(block, 5000, 7, GMM_STREAM_DEFAULT);
  if (has_kind(GMM_KIND_VMM)) {
    REQUIRE((paused = ALLOC_TAG(5000, paused_tag)) != NULL);
    write_pattern(paused, 5000, 8, GMM_STREAM_DEFAULT);
    MUST(gmm_pause(context, PAUSE_WITH(.tags = &paused_tag, .tag_count = 1), NULL));
  }
  MUST(gmm_alloc(context, 5000, ALLOC_WITH(.kind = GMM_KIND_DEVICE), (void **)&device_block));
  if (has_kind(GMM_KIND_MANAGED)) MUST(gmm_alloc(context, 5000, ALLOC_WITH(.kind = GMM_KIND_MANAGED), (void **)&managed));
  REQUIRE((freed = ALLOC_TAG(700, tag)) != NULL);
  OK(gmm_free(context, freed, GMM_STREAM_DEFAULT));
}

int main(void) {
  context = open_context(2);
  read_device(0);
  RUN(prepare);
  if (check_state.failed > 0) return check_finish();
  for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    current = &rows[i];
    check_run(current->name, run_row);
  }
  RUN(what_is_allowed);
  RUN(after_all_that_everything_works);
  if (gmm_context_release(context) != GMM_OK) return 1;
  return check_finish();
}
