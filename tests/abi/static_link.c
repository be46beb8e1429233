/* SPDX-License-Identifier: Apache-2.0 */
/* A plain C program that install_test.sh links with `cc static_link.c libgmm.a -lpthread` and nothing more. */
#include <gmm/gmm.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  gmm_context_desc desc = {.struct_size = sizeof desc, .backend = GMM_BACKEND_HOST, .host_memory = UINT64_C(1) << 30};
  gmm_context *context = NULL;
  if (gmm_context_create(&desc, &context) != GMM_OK) return fprintf(stderr, "%s\n", gmm_last_error_message()), 1;
  gmm_alloc_desc host = {.struct_size = sizeof host, .kind = GMM_KIND_HOST};
  void *memory = NULL;
  if (gmm_alloc(context, 1000, &host, &memory) != GMM_OK) return fprintf(stderr, "%s\n", gmm_last_error_message()), 1;
  memset(memory, 1, 1000);
  if (gmm_free(context, memory, GMM_STREAM_DEFAULT) != GMM_OK)
    return fprintf(stderr, "%s\n", gmm_last_error_message()), 1;
  if (gmm_context_release(context) != GMM_OK) return 1;
  printf("gmm %s\n", gmm_version_string());
  return 0;
}
