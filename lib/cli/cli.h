/* SPDX-License-Identifier: Apache-2.0 */
/* The `gmm` command. It uses the public interface only. */
#ifndef GMM_CLI_CLI_H
#define GMM_CLI_CLI_H

#include <gmm/gmm.h>

#include "cli/views/views.h"

/* The options of a command line. */
struct options {
  gmm_context_desc context;
  gmm_device device;         /* -1: the command line names none */
  gmm_kind kind;             /* UNSPECIFIED: it names none */
  uint64_t operations;       /* snapshot: the number of operations to run; UINT64_MAX: all */
  int threads;               /* replay: one thread for each recorded thread */
  int environment;           /* info: the variables of the environment, not the devices */
  uint64_t process;          /* info: what this process uses; 0: the devices */
  struct view_choice choice; /* trace */
  int (*view)(const struct view_input *input, FILE *out); /* trace; NULL: as a text for people */
  int is_binary;                                          /* trace: the view is not for a terminal */
  const char *output;                                     /* trace; NULL: stdout */
  char **files;
  int file_count;
};

/* Exit codes. */
enum { EXIT_GOOD = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

int command_info(const struct options *options);
int command_process(const struct options *options);
int command_replay(const struct options *options);
int command_snapshot(const struct options *options);
int command_trace(const struct options *options);
/* An option of a command line. read() takes its value, or refuses it by 0; an option without one sets the int `to`. */
struct option {
  const char *name;
  int (*read)(const char *value, void *to);
  void *to;
};
/* Reads the option at the first word, of a list that ends without a name. The number of words that it takes; 0: the
   word is no option; -1: it is wrong, and a message was printed. */
int read_option(const char *command, const struct option *options, int count, char **words);
/* For struct option: a text that is not empty, into a const char *. */
int read_text(const char *value, void *to);

/* Runs the program that the words after `run` name. It does not return if the program starts. */
int command_run(int count, char **words, const char *usage);
/* The server of the machine (serve/serve.cpp). The words are those after `serve`. */
int command_serve(int count, char **words, const char *usage);

/* Prints what failed and the library's message on stderr. Returns 0. */
int report(const char *what, gmm_result result);

#endif
