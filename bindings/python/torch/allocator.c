/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's CUDA memory: blocks and segments for native_allocator.cpp, the functions of pools with a tag, and the other
 * entries of native.h. */
#include <stdio.h>
#include <string.h>

#include "gmm_torch.h"
#include "native.h"

/* The context. */

static _Atomic(gmm_context *) attached;
static _Atomic(int32_t) ending;
static int forked; /* memory of the parent is still about, which no context of this process knows */

/* NULL in a child after fork(), which every function of gmm refuses: reason() has the words. */
gmm_context *torch_context(void) { return atomic_load_explicit(&attached, memory_order_acquire); }

gmm_context *torch_context_for_free(void) {
  return atomic_load_explicit(&ending, memory_order_relaxed) ? NULL : torch_context();
}

void gmm_torch_end(void) { atomic_store_explicit(&ending, 1, memory_order_relaxed); }

gmm_result gmm_torch_attach(gmm_context *context) {
  gmm_context *known = torch_context();
  if (known == context && context != NULL) return GMM_UNCHANGED;
  if (known != NULL) return GMM_ERROR_BUSY;
  const gmm_result result = gmm_context_retain(context); /* tensors may outlive its owner */
  if (result >= 0) atomic_store_explicit(&attached, context, memory_order_release);
  return result;
}

void torch_complain(gmm_result result, const char *what, const void *memory) {
  if (result >= 0 || result == GMM_ERROR_FORKED || (forked && result == GMM_ERROR_UNKNOWN_POINTER)) return;
  fprintf(stderr, "gmm: %s(%p): %s: %s\n", what, memory, gmm_result_name(result), gmm_last_error_message());
}

static const char *reason(void) {
  return torch_context() == NULL ? "the process was forked from one that uses gmm; start it by spawn"
                                 : gmm_last_error_message();
}

/* Allocation and free. */

static _Atomic(gmm_kind) kind = GMM_KIND_VMM;
static _Atomic(int32_t) managed;

void gmm_torch_set_kind(gmm_kind wanted) { atomic_store_explicit(&kind, wanted, memory_order_relaxed); }
void gmm_torch_set_managed(int32_t on) { atomic_store_explicit(&managed, on, memory_order_relaxed); }
int32_t gmm_torch_get_managed(void) { return atomic_load_explicit(&managed, memory_order_relaxed); }

static gmm_result allocate_as(gmm_kind wanted, gmm_tag tag, uint32_t flags, uint64_t size, gmm_device device,
                              gmm_stream stream, void **out) {
  gmm_context *context = torch_context();
  const gmm_alloc_desc desc = {
      .struct_size = sizeof desc, .kind = wanted, .device = device, .tag = tag, .stream = stream, .flags = flags};
  const gmm_result result = gmm_alloc(context, size, &desc, out);
  if (result >= 0 && wanted == GMM_KIND_MANAGED) torch_advise_new(context, *out, device, 0);
  return result;
}

static gmm_kind current_kind(void) {
  return gmm_torch_get_managed() ? GMM_KIND_MANAGED : atomic_load_explicit(&kind, memory_order_relaxed);
}

static int32_t allocate(uint64_t size, int32_t device, void *stream, void **out) {
  return allocate_as(current_kind(), GMM_TAG_CURRENT, 0, size, device, stream, out);
}

static int32_t segment(uint64_t size, int32_t device, void **out) {
  return allocate_as(current_kind(), GMM_TAG_CURRENT, GMM_ALLOC_DEDICATED, size, device, GMM_STREAM_DEFAULT, out);
}

static void *block(uint64_t size, int32_t device, void *stream, uint32_t wanted) {
  void *memory = NULL;
  return allocate_as(wanted, GMM_TAG_CURRENT, 0, size, device, stream, &memory) < 0 ? NULL : memory;
}

static void release(void *memory, void *stream) {
  gmm_context *context = torch_context_for_free();
  if (memory != NULL && context != NULL) torch_complain(gmm_free(context, memory, stream), "free", memory);
}

void gmm_torch_dealloc(void *memory, ssize_t size, int device, gmm_stream stream) {
  (void)size;
  (void)device;
  release(memory, stream);
}

/* Pools with a tag. The functions of a pluggable allocator get no argument of their own, so each pair of a tag and a
 * kind has its own function: a slot. */

static struct {
  gmm_tag tag;
  gmm_kind kind;
} slots[GMM_TORCH_SLOTS];
static int32_t slot_count;

static void *slot_alloc(uint32_t slot, ssize_t size, int device, gmm_stream stream) {
  void *memory = NULL;
  if (size <= 0) return NULL;
  /* After NULL PyTorch empties its cache and tries again. */
  return allocate_as(slots[slot].kind, slots[slot].tag, 0, (uint64_t)size, device, stream, &memory) < 0 ? NULL : memory;
}

#define SLOT(n)                                                              \
  static void *slot_alloc_##n(ssize_t size, int device, gmm_stream stream) { \
    return slot_alloc(n, size, device, stream);                              \
  }
#define NAME(n) slot_alloc_##n,
#define EIGHT(X, d) X(d##0) X(d##1) X(d##2) X(d##3) X(d##4) X(d##5) X(d##6) X(d##7)
/* Octal: 64 numbers. */
#define ALL(X) EIGHT(X, 0) EIGHT(X, 01) EIGHT(X, 02) EIGHT(X, 03) EIGHT(X, 04) EIGHT(X, 05) EIGHT(X, 06) EIGHT(X, 07)
ALL(SLOT)
static void *(*const slot_functions[])(ssize_t, int, gmm_stream) = {ALL(NAME)};
_Static_assert(sizeof slot_functions / sizeof slot_functions[0] == GMM_TORCH_SLOTS, "a function for each slot");

void *gmm_torch_slot(gmm_tag tag, gmm_kind wanted) {
  int32_t slot = 0;
  while (slot < slot_count && (slots[slot].tag != tag || slots[slot].kind != wanted)) ++slot;
  if (slot < GMM_TORCH_SLOTS && slot == slot_count) {
    slots[slot].tag = tag;
    slots[slot].kind = wanted;
    ++slot_count;
  }
  return slot < GMM_TORCH_SLOTS ? (void *)slot_functions[slot] : NULL;
}

void gmm_torch_forget(void) {
  gmm_torch_set_managed(0);
  atomic_store_explicit(&attached, NULL, memory_order_release);
  forked = 1;
  slot_count = 0; /* the tags are the parent's */
  torch_managed_forget();
}

/* The other functions of native.h. */

static int32_t usable(void) { return torch_context_for_free() != NULL; }

static int32_t record(void *memory, int32_t device, void *stream) { return gmm_torch_record(memory, device, stream); }

/* The limit is that of gmm_limit_set() on the device. Managed memory counts wherever its pages are. */
static int32_t fraction(double part, int32_t device) {
  gmm_context *context = torch_context();
  gmm_device_info info = {.struct_size = sizeof info};
  const gmm_result result = gmm_device_query(context, device, &info);
  if (result < 0) return result;
  const gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_DEVICE, .device = device};
  return gmm_limit_set(context, &scope, part >= 1.0 ? GMM_NO_LIMIT : (uint64_t)(part * (double)info.total_memory));
}

static int32_t trim(void) {
  gmm_torch_host_collect(0);
  const gmm_result result = gmm_trim(torch_context(), NULL, NULL);
  torch_advise_forget();
  return result;
}

/* Page-locked memory is counted for a device too, and is no memory of it. */
static const gmm_kind kinds[] = {GMM_KIND_DEVICE, GMM_KIND_VMM, GMM_KIND_MANAGED};
#define KINDS (sizeof kinds / sizeof kinds[0])

static int32_t memory(int32_t device, gmm_torch_memory *out) {
  gmm_context *context = torch_context();
  memset(out, 0, sizeof *out);
  for (uint32_t i = 0; i < KINDS; ++i) {
    gmm_scope_desc scope = {
        .struct_size = sizeof scope, .flags = GMM_SCOPE_DEVICE | GMM_SCOPE_KIND, .device = device, .kind = kinds[i]};
    gmm_stats_info stats = {.struct_size = sizeof stats};
    if (gmm_stats_query(context, &scope, &stats) < 0) continue; /* the device lacks the kind */
    out->reserved += stats.reserved_bytes;
    out->peak_reserved += stats.peak_reserved_bytes;
    out->extents += stats.extents;
    if (kinds[i] != GMM_KIND_MANAGED || torch_host_tag() == 0) continue;
    scope.flags |= GMM_SCOPE_TAG; /* CPU tensors */
    scope.tag = torch_host_tag();
    stats = (gmm_stats_info){.struct_size = sizeof stats};
    if (gmm_stats_query(context, &scope, &stats) < 0) continue;
    out->reserved -= stats.reserved_bytes;
    out->peak_reserved -= stats.peak_reserved_bytes;
    out->extents -= stats.extents;
  }
  return GMM_OK;
}

static int32_t capacity(int32_t device, uint64_t *free_bytes, uint64_t *total) {
  gmm_device_info info = {.struct_size = sizeof info};
  const gmm_result result = gmm_device_query(torch_context(), device, &info);
  *free_bytes = result < 0 ? 0 : info.free_memory;
  *total = result < 0 ? 0 : info.total_memory;
  return result;
}

/* Of memory that is mapped, without CPU tensors. */
static gmm_result read_extents(gmm_snapshot *snapshot, gmm_torch_extent receive, void *user) {
  gmm_snapshot_info info = {.struct_size = sizeof info};
  gmm_result result = gmm_snapshot_query(snapshot, &info);
  for (uint64_t i = 0; result >= 0 && i < info.extent_count; ++i) {
    gmm_extent_info extent = {.struct_size = sizeof extent};
    result = gmm_snapshot_query_extent(snapshot, i, &extent);
    if (result < 0 || extent.state != GMM_STATE_ACTIVE) continue;
    if (torch_host_tag() != 0 && extent.tag == torch_host_tag()) continue;
    receive(user, (uint64_t)(uintptr_t)extent.address, extent.size);
  }
  return result;
}

static int32_t extents(int32_t device, gmm_torch_extent receive, void *user) {
  for (uint32_t i = 0; i < KINDS; ++i) {
    const gmm_scope_desc scope = {
        .struct_size = sizeof scope, .flags = GMM_SCOPE_DEVICE | GMM_SCOPE_KIND, .device = device, .kind = kinds[i]};
    gmm_snapshot *snapshot = NULL;
    gmm_result result = gmm_snapshot_create(torch_context(), &scope, &snapshot);
    if (result == GMM_ERROR_OUT_OF_HOST_MEMORY) return result;
    if (result < 0) continue; /* the device lacks the kind */
    result = read_extents(snapshot, receive, user);
    torch_complain(gmm_snapshot_destroy(snapshot), "snapshot", NULL);
    if (result < 0) return result;
  }
  return GMM_OK;
}

static uint64_t changes(void) {
  gmm_context *context = torch_context();
  gmm_stats_info stats = {.struct_size = sizeof stats};
  return context != NULL && gmm_stats_query(context, NULL, &stats) >= 0 ? stats.backend_calls : 0;
}

static int32_t base(void *address, void **start, uint64_t *size, int32_t *device) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  const gmm_result result = gmm_query(torch_context(), address, &info);
  if (result < 0) return result;
  if (info.state == GMM_STATE_UNKNOWN) return GMM_ERROR_UNKNOWN_POINTER;
  *start = info.allocation_base;
  *size = info.allocation_size;
  *device = info.device;
  return GMM_OK;
}

_Static_assert(sizeof(gmm_ipc_handle) == GMM_TORCH_HANDLE, "the handle's size");

static int32_t share(const void *address, uint8_t handle[GMM_TORCH_HANDLE]) {
  return gmm_ipc_export(torch_context(), address, (gmm_ipc_handle *)handle);
}

static int32_t open_handle(const uint8_t handle[GMM_TORCH_HANDLE], int32_t device, void **out) {
  const gmm_ipc_import_desc desc = {.struct_size = sizeof desc, .device = device};
  return gmm_ipc_import(torch_context(), (const gmm_ipc_handle *)handle, &desc, out);
}

static int32_t close_handle(void *address) {
  gmm_context *context = torch_context_for_free();
  return context == NULL ? GMM_UNCHANGED : gmm_ipc_close(context, address);
}

static int32_t event(int32_t device, void *stream, void **out) {
  const gmm_event_desc desc = {.struct_size = sizeof desc, .device = device};
  gmm_event *made = NULL;
  gmm_result result = gmm_event_create(torch_context(), &desc, &made);
  if (result < 0) return result;
  result = gmm_event_record(made, 0, stream);
  if (result < 0) torch_complain(gmm_event_destroy(made), "event", NULL);
  *out = result < 0 ? NULL : made;
  return result;
}

static int32_t passed(void *of, int32_t wait) {
  if (wait) {
    const gmm_result result = gmm_event_synchronize(of, 0, GMM_FOREVER);
    return result < 0 ? result : 1;
  }
  uint64_t has = 0;
  const gmm_result result = gmm_event_query(of, &has);
  return result < 0 ? result : (int32_t)has;
}

static void forget(void *of) { torch_complain(gmm_event_destroy(of), "event", NULL); }

static const gmm_torch_native functions = {
    .usable = usable,
    .allocate = allocate,
    .segment = segment,
    .release = release,
    .record = record,
    .trim = trim,
    .fraction = fraction,
    .memory = memory,
    .capacity = capacity,
    .collect = gmm_torch_host_collect,
    .extents = extents,
    .changes = changes,
    .base = base,
    .share = share,
    .open = open_handle,
    .close = close_handle,
    .event = event,
    .passed = passed,
    .forget = forget,
    .managed = gmm_torch_get_managed,
    .host_alloc = gmm_torch_host_alloc,
    .host_free = gmm_torch_host_free,
    .block = block,
    .reason = reason,
};

const gmm_torch_native *gmm_torch_native_functions(void) { return &functions; }
