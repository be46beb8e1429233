/* SPDX-License-Identifier: Apache-2.0 */
/* The context, and the way of failures to PyTorch. */
#include <stdio.h>

#include "gmm_torch.h"

static _Atomic(gmm_context *) attached;
static _Atomic(int32_t) ending;
static int forked; /* memory of the parent is still about, which no context of this process knows */
static void (*throw_memory)(const char *);
static void (*throw_other)(const char *, const char *, uint32_t, const char *);

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

void gmm_torch_forget(void) {
  gmm_torch_set_managed(0);
  atomic_store_explicit(&attached, NULL, memory_order_release);
  forked = 1;
  torch_host_forget();
  torch_blocks_forget();
  torch_pools_forget();
  torch_advise_forget();
}

void gmm_torch_set_errors(void (*memory)(const char *),
                          void (*other)(const char *, const char *, uint32_t, const char *)) {
  throw_memory = memory;
  throw_other = other;
}

void torch_reason(char reason[TORCH_REASON]) {
  snprintf(reason, TORCH_REASON, "%s",
           torch_context() == NULL ? "the process was forked from one that uses gmm; start it by spawn"
                                   : gmm_last_error_message());
}

void torch_throw(gmm_result result, const char *what) {
  char reason[TORCH_REASON];
  torch_reason(reason);
  torch_throw_reason(result, what, reason);
}

void torch_throw_reason(gmm_result result, const char *what, const char *reason) {
  const int memory = result == GMM_ERROR_OUT_OF_MEMORY || result == GMM_ERROR_LIMIT_EXCEEDED ||
                     result == GMM_ERROR_OUT_OF_HOST_MEMORY || result == GMM_ERROR_SIZE_OVERFLOW;
  char message[TORCH_REASON + 128];
  /* Programs search PyTorch's message for "out of memory". */
  snprintf(message, sizeof message, "%s%s: %s", memory ? "CUDA out of memory. gmm: " : "gmm: ", what, reason);
  if (memory && throw_memory != NULL) throw_memory(message);
  if (throw_other != NULL) throw_other(what, "gmm", 0, message);
}

void torch_complain(gmm_result result, const char *what, const void *memory) {
  if (result >= 0 || result == GMM_ERROR_FORKED || (forked && result == GMM_ERROR_UNKNOWN_POINTER)) return;
  fprintf(stderr, "gmm: %s(%p): %s: %s\n", what, memory, gmm_result_name(result), gmm_last_error_message());
}
