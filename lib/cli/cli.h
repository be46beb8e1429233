/* SPDX-License-Identifier: Apache-2.0 */
/* The `gmm` command. It uses the public interface only. */
#ifndef GMM_CLI_CLI_H
#define GMM_CLI_CLI_H

#include <gmm/gmm.h>

/* What the command line said. */
struct options {
  gmm_context_desc context;
  gmm_device device;
  gmm_kind kind;
  uint64_t operations; /* snapshot: how many of the trace to run; UINT64_MAX: all */
  int threads;         /* replay: with the recorded threads */
  char **files;
  int file_count;
};

/* Exit codes. */
enum { EXIT_GOOD = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

int command_info(const struct options *options);
int command_replay(const struct options *options);
int command_snapshot(const struct options *options);
int command_trace(const struct options *options);
/* The words after `run`. Does not return when the program starts. */
int command_run(int count, char **words);

const char *kind_name(gmm_kind kind);

/* Says on stderr what failed, with the library's message. Returns 0. */
int report(const char *what, gmm_result result);

#endif
