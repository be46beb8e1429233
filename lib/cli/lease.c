/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "cli/cli.h"

enum { STATUS_MS = 5000 };

static int32_t print_piece(void *user, const char *text, uint64_t size) {
  (void)user;
  return fwrite(text, 1, (size_t)size, stdout) == (size_t)size ? 0 : 1;
}

int command_lease(const struct options *options) {
  /* The arbiter has no memory, so it needs no GPU. */
  gmm_context_desc desc = options->context;
  desc.backend = GMM_BACKEND_HOST;
  gmm_context *context = NULL;
  gmm_result result = gmm_context_create(&desc, &context);
  if (result < 0) return report("context", result), EXIT_FAILED;
  result = options->status ? gmm_lease_write(context, options->name, print_piece, NULL, STATUS_MS)
                           : gmm_lease_serve(context, options->name, GMM_FOREVER);
  if (result < 0) report("lease", result);
  gmm_context_release(context);
  return result < 0 || fflush(stdout) != 0 ? EXIT_FAILED : EXIT_GOOD;
}
