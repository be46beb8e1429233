/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process for tests of control: 32 MiB of VMM memory of the tag "model", full of sevens. It carries out each line of
 * stdin and answers it by another one, and ends its context with stdin.
 *
 * Usage: controlled [FOLDER USER]      it may share memory with the user there
 */
#include <gmm/gmm.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(gmm_result result) {
  if (result >= 0) return;
  fprintf(stderr, "%s: %s\n", gmm_result_name(result), gmm_last_error_message());
  exit(EXIT_FAILURE);
}

/* Until the next line comes. */
static void churn(gmm_context *context, const gmm_alloc_desc *of) {
  while (poll(&(struct pollfd){.events = POLLIN}, 1, 2) == 0) {
    void *small = NULL;
    must(gmm_alloc(context, 4096, of, &small));
    must(gmm_free(context, small, GMM_STREAM_DEFAULT));
  }
}

int main(int argc, char **argv) {
  enum { SIZE = 32 << 20 };
  const gmm_tag_desc keeps = {.struct_size = sizeof keeps, .contents = GMM_CONTENTS_HOST};
  gmm_alloc_desc of = {.struct_size = sizeof of, .kind = GMM_KIND_VMM};
  gmm_context *context = NULL;
  gmm_ipc_handle handle;
  unsigned char *block = NULL;
  char line[16];
  must(gmm_context_create(NULL, &context));
  if (argc == 3) {
    const uint32_t user = (uint32_t)atoi(argv[2]);
    must(gmm_ipc_configure(context, &(gmm_ipc_desc){sizeof(gmm_ipc_desc), 0, argv[1], &user, 1, 0}));
  }
  must(gmm_tag_create(context, "model", &keeps, &of.tag));
  must(gmm_alloc(context, SIZE, &of, (void **)&block));
  memset(block, 7, SIZE);
  do {
    gmm_tag_info info = {.struct_size = sizeof info};
    must(gmm_tag_query(context, of.tag, &info)); /* behind a resume by another thread */
    puts(block[0] == 7 && memcmp(block, block + 1, SIZE - 1) == 0 ? "sevens" : "other bytes");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL) break;
    if (strcmp(line, "churn\n") == 0) churn(context, &of);
    if (strcmp(line, "export\n") == 0) must(gmm_ipc_export(context, block, &handle));
  } while (1);
  must(gmm_free(context, block, GMM_STREAM_DEFAULT));
  must(gmm_context_release(context));
  return EXIT_SUCCESS;
}
