/* SPDX-License-Identifier: Apache-2.0 */
/* RFC-0023's hints. The preferred location of a CUDA tensor's new memory is its device. That of a CPU tensor's is the
 * host, and the device has a mapping of it. A block whose pages were moved gets these hints again before another tensor
 * gets it. */
#include "gmm_torch.h"

#define KNOWN 4096

/* The pages that have their hints. A lost entry only repeats a hint. */
static _Atomic(uint64_t) known[KNOWN];

/* A device that cannot share pages has no hints. The memory works without. */
static gmm_result hint(gmm_result result) { return result == GMM_ERROR_NOT_SUPPORTED ? GMM_UNCHANGED : result; }

static gmm_result advise(gmm_context *context, void *memory, uint64_t size, gmm_device device, int host) {
  gmm_result result =
      hint(gmm_advise(context, memory, size, GMM_ADVISE_SET_PREFERRED_LOCATION, host ? GMM_DEVICE_HOST : device));
  if (result < 0) return result;
  return hint(
      gmm_advise(context, memory, size, host ? GMM_ADVISE_SET_ACCESSED_BY : GMM_ADVISE_UNSET_ACCESSED_BY, device));
}

void torch_advise_again(gmm_context *context, void *memory, uint64_t size, gmm_device device, int host) {
  torch_complain(advise(context, memory, size, device, host), "advice", memory);
}

void torch_advise_forget(void) {
  for (uint32_t i = 0; i < KNOWN; ++i) atomic_store_explicit(&known[i], 0, memory_order_relaxed);
}

void torch_advise_new(gmm_context *context, void *memory, gmm_device device, int host) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  if (gmm_query(context, memory, &info) < 0) return;
  /* A small block shares its pages, of at most 64 KiB. Pages that have their hints need no others. */
  const uint64_t page = (uint64_t)(uintptr_t)memory >> 16;
  const uint64_t mark = (page << 2 | (host ? 2 : 0) | 1);
  _Atomic(uint64_t) *entry = &known[(page ^ (page >> 12)) % KNOWN];
  if (info.size < 1u << 16 && atomic_load_explicit(entry, memory_order_relaxed) == mark) return;
  torch_complain(advise(context, memory, info.size, device, host), "advice", memory);
  atomic_store_explicit(entry, mark, memory_order_relaxed);
}

gmm_result gmm_torch_move(void *memory, uint64_t size, gmm_device location, gmm_device device, gmm_stream stream) {
  gmm_context *context = torch_context();
  gmm_pointer_info info = {.struct_size = sizeof info};
  if (context == NULL) return GMM_ERROR_FORKED;
  gmm_result result = gmm_query(context, memory, &info);
  if (result < 0) return result;
  if (info.state == GMM_STATE_UNKNOWN || info.kind != GMM_KIND_MANAGED) return GMM_UNCHANGED; /* another library's */
  result = torch_block_note_move(info.base, info.size);
  if (result < 0) return result;
  result = advise(context, memory, size, device, location == GMM_DEVICE_HOST);
  if (result < 0) return result;
  return hint(gmm_prefetch(context, memory, size, location, stream));
}
