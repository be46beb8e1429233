/* SPDX-License-Identifier: Apache-2.0 */
/* The functions and hooks of torch.cuda.memory.CUDAPluggableAllocator. */
#include <stdlib.h>

#include "gmm_torch.h"
#include "native.h"

static _Atomic(gmm_kind) kind = GMM_KIND_VMM;
static _Atomic(int32_t) managed;

static _Atomic(uint64_t) calls[GMM_TORCH_CALLS];

void torch_count(int32_t which) { atomic_fetch_add_explicit(&calls[which], 1, memory_order_relaxed); }

void gmm_torch_calls(uint64_t out[8]) {
  for (int i = 0; i < GMM_TORCH_CALLS; ++i) out[i] = atomic_load_explicit(&calls[i], memory_order_relaxed);
}

void gmm_torch_set_kind(gmm_kind wanted) { atomic_store_explicit(&kind, wanted, memory_order_relaxed); }
void gmm_torch_set_managed(int32_t on) { atomic_store_explicit(&managed, on, memory_order_relaxed); }
int32_t gmm_torch_get_managed(void) { return atomic_load_explicit(&managed, memory_order_relaxed); }

static gmm_result allocate(gmm_context *context, uint64_t size, int device, gmm_stream stream, const TorchRoute *route,
                           uint32_t flags, void **out) {
  gmm_alloc_desc desc = {.struct_size = sizeof desc,
                         .kind = GMM_KIND_MANAGED,
                         .device = device,
                         .tag = GMM_TAG_CURRENT,
                         .stream = stream,
                         .flags = flags};
  const int32_t on = atomic_load_explicit(&managed, memory_order_relaxed);
  if (!on) desc.kind = atomic_load_explicit(&kind, memory_order_relaxed);
  if (route != NULL) {
    desc.tag = route->tag;
    desc.kind = route->kind;
  }
  const gmm_result result = gmm_alloc(context, size, &desc, out);
  if (result >= 0 && desc.kind == GMM_KIND_MANAGED) torch_advise_new(context, *out, device, 0);
  return result;
}

int32_t torch_allocate(uint64_t size, int32_t device, void *stream, void **out) {
  gmm_context *context = torch_context();
  if (context == NULL) return GMM_ERROR_FORKED;
  return allocate(context, size, device, stream, torch_route(), 0, out);
}

int32_t torch_allocate_dedicated(uint64_t size, int32_t device, void **out) {
  gmm_context *context = torch_context();
  if (context == NULL) return GMM_ERROR_FORKED;
  return allocate(context, size, device, GMM_STREAM_DEFAULT, torch_route(), GMM_ALLOC_DEDICATED, out);
}

void *gmm_torch_alloc(ssize_t size, int device, gmm_stream stream) {
  if (size <= 0) return NULL; /* as cudaMalloc */
  gmm_context *context = torch_context();
  void *memory = NULL;
  gmm_result result = GMM_ERROR_FORKED;
  if (context != NULL) result = allocate(context, (uint64_t)size, device, stream, torch_route(), 0, &memory);
  if (__builtin_expect(result < 0, 0)) {
    char reason[TORCH_REASON];
    torch_reason(reason);
    /* The missing memory may be that of CPU tensors whose release is deferred. */
    if (context != NULL && gmm_torch_host_collect(1) != 0) {
      result = allocate(context, (uint64_t)size, device, stream, torch_route(), 0, &memory);
      if (result < 0) torch_reason(reason);
    }
    if (result < 0) torch_throw_reason(result, "allocation", reason);
  }
  return memory;
}

void gmm_torch_dealloc(void *memory, ssize_t size, int device, gmm_stream stream) {
  gmm_context *context = torch_context_for_free();
  if (memory == NULL || context == NULL) return;
  TorchBlock *note = torch_block_take(memory);
  if (note != NULL) {
    if (note->moved) torch_advise_again(context, memory, (uint64_t)size, device, 0);
    free(note);
  }
  torch_complain(gmm_free(context, memory, stream), "free", memory);
}

void *gmm_torch_block(uint64_t size, int device, gmm_stream stream, gmm_kind wanted) {
  gmm_context *context = torch_context();
  const TorchRoute route = {.tag = GMM_TAG_CURRENT, .kind = wanted};
  void *memory = NULL;
  if (context == NULL || allocate(context, size, device, stream, &route, 0, &memory) < 0) return NULL;
  return memory;
}

void gmm_torch_init(int device_count) {
  (void)device_count;
  torch_count(GMM_TORCH_INIT);
}

void gmm_torch_reset(void) {
  torch_count(GMM_TORCH_RESET);
  gmm_context *context = torch_context();
  if (context == NULL) return;
  gmm_torch_host_collect(0);
  const gmm_result result = gmm_trim(context, NULL, NULL);
  torch_advise_forget();
  if (result < 0) torch_throw(result, "empty_cache");
}

/* The quota is that of gmm_limit_set() on the device. Managed memory counts wherever its pages are. */
int32_t torch_fraction(double fraction, int32_t device) {
  gmm_context *context = torch_context();
  gmm_device_info info = {.struct_size = sizeof info};
  gmm_result result = context == NULL ? GMM_ERROR_FORKED : gmm_device_query(context, device, &info);
  if (result >= 0) {
    const gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_DEVICE, .device = device};
    const uint64_t bytes = fraction >= 1.0 ? GMM_NO_LIMIT : (uint64_t)(fraction * (double)info.total_memory);
    result = gmm_limit_set(context, &scope, bytes);
  }
  return result;
}

void gmm_torch_memory_fraction(double fraction, int device) {
  torch_count(GMM_TORCH_FRACTION);
  const gmm_result result = torch_fraction(fraction, device);
  if (result < 0) torch_throw(result, "set_per_process_memory_fraction");
}

void *gmm_torch_base_alloc(void *memory, size_t *size) {
  torch_count(GMM_TORCH_BASE);
  gmm_context *context = torch_context();
  gmm_pointer_info info = {.struct_size = sizeof info};
  if (context == NULL || gmm_query(context, memory, &info) < 0 || info.state == GMM_STATE_UNKNOWN) return memory;
  if (size != NULL) *size = info.allocation_size;
  return info.allocation_base;
}

void gmm_torch_use_on_stream(void *memory, gmm_stream stream) {
  torch_count(GMM_TORCH_STREAM);
  if (memory == NULL) return;
  const gmm_result result = gmm_torch_record(memory, 0, stream);
  if (result < 0) torch_throw(result, "record_stream");
}

/* The engine handles memory of captures, whatever the pool: it asks the stream. A pool with a tag of its own changes
 * the tag and kind of this thread's allocations. */
void gmm_torch_begin_pool(int device, gmm_torch_pool_id id, void *filter) {
  (void)device;
  (void)filter; /* a std::function that accepts this thread, in torch.cuda.use_mem_pool() and torch.cuda.graph() */
  torch_count(GMM_TORCH_BEGIN);
  torch_route_begin(id);
}

void gmm_torch_end_pool(int device, gmm_torch_pool_id id) {
  (void)device;
  torch_count(GMM_TORCH_END);
  torch_route_end(id);
}

/* A pool has no memory of its own: only its blocks and graphs have. */
void gmm_torch_release_pool(int device, gmm_torch_pool_id id) {
  (void)device;
  (void)id;
  torch_count(GMM_TORCH_RELEASE);
}
