/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of native.h. */
#include "native.h"

#include <string.h>

#include "gmm_torch.h"

static int32_t usable(void) { return torch_context_for_free() != NULL; }

static void release(void *memory, uint64_t size, int32_t device, void *stream) {
  gmm_torch_dealloc(memory, (ssize_t)size, device, stream);
}

static int32_t record(void *memory, int32_t device, void *stream) { return gmm_torch_record(memory, device, stream); }

static int32_t trim(void) {
  gmm_context *context = torch_context();
  if (context == NULL) return GMM_ERROR_FORKED;
  gmm_torch_host_collect(0);
  const gmm_result result = gmm_trim(context, NULL, NULL);
  torch_advise_forget();
  return result;
}

/* Page-locked memory is counted for a device too, and is no memory of it. */
static const gmm_kind kinds[] = {GMM_KIND_DEVICE, GMM_KIND_VMM, GMM_KIND_MANAGED};
#define KINDS (sizeof kinds / sizeof kinds[0])

static int32_t memory(int32_t device, gmm_torch_memory *out) {
  gmm_context *context = torch_context();
  if (context == NULL) return GMM_ERROR_FORKED;
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
  gmm_context *context = torch_context();
  if (context == NULL) return GMM_ERROR_FORKED;
  gmm_device_info info = {.struct_size = sizeof info};
  const gmm_result result = gmm_device_query(context, device, &info);
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
  gmm_context *context = torch_context();
  if (context == NULL) return GMM_ERROR_FORKED;
  for (uint32_t i = 0; i < KINDS; ++i) {
    const gmm_scope_desc scope = {
        .struct_size = sizeof scope, .flags = GMM_SCOPE_DEVICE | GMM_SCOPE_KIND, .device = device, .kind = kinds[i]};
    gmm_snapshot *snapshot = NULL;
    gmm_result result = gmm_snapshot_create(context, &scope, &snapshot);
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
  gmm_context *context = torch_context();
  gmm_pointer_info info = {.struct_size = sizeof info};
  if (context == NULL) return GMM_ERROR_FORKED;
  const gmm_result result = gmm_query(context, address, &info);
  if (result < 0) return result;
  if (info.state == GMM_STATE_UNKNOWN) return GMM_ERROR_UNKNOWN_POINTER;
  *start = info.allocation_base;
  *size = info.allocation_size;
  *device = info.device;
  return GMM_OK;
}

_Static_assert(sizeof(gmm_ipc_handle) == GMM_TORCH_HANDLE, "the handle's size");

static int32_t share(const void *address, uint8_t handle[GMM_TORCH_HANDLE]) {
  gmm_context *context = torch_context();
  return context == NULL ? GMM_ERROR_FORKED : gmm_ipc_export(context, address, (gmm_ipc_handle *)handle);
}

static int32_t open_handle(const uint8_t handle[GMM_TORCH_HANDLE], int32_t device, void **out) {
  gmm_context *context = torch_context();
  if (context == NULL) return GMM_ERROR_FORKED;
  const gmm_ipc_import_desc desc = {.struct_size = sizeof desc, .device = device};
  return gmm_ipc_import(context, (const gmm_ipc_handle *)handle, &desc, out);
}

static int32_t close_handle(void *address) {
  gmm_context *context = torch_context_for_free();
  return context == NULL ? GMM_UNCHANGED : gmm_ipc_close(context, address);
}

static int32_t event(int32_t device, void *stream, void **out) {
  gmm_context *context = torch_context();
  if (context == NULL) return GMM_ERROR_FORKED;
  const gmm_event_desc desc = {.struct_size = sizeof desc, .device = device};
  gmm_event *made = NULL;
  gmm_result result = gmm_event_create(context, &desc, &made);
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

static int32_t routed(uint64_t first, uint64_t second) { return torch_is_routed((gmm_torch_pool_id){first, second}); }
static void begin(uint64_t first, uint64_t second) { torch_route_begin((gmm_torch_pool_id){first, second}); }
static void end(uint64_t first, uint64_t second) { torch_route_end((gmm_torch_pool_id){first, second}); }

static const char *reason(void) {
  static _Thread_local char text[TORCH_REASON];
  torch_reason(text);
  return text;
}

static const gmm_torch_native functions = {
    .usable = usable,
    .allocate = torch_allocate,
    .segment = torch_allocate_dedicated,
    .release = release,
    .record = record,
    .trim = trim,
    .fraction = torch_fraction,
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
    .routed = routed,
    .begin = begin,
    .end = end,
    .count = torch_count,
    .reason = reason,
};

const gmm_torch_native *gmm_torch_native_functions(void) { return &functions; }
