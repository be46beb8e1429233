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
  uint64_t process;          /* info: what this process uses; others: the process to ask; 0: none */
  uint64_t timeout, seconds; /* nanoseconds: for an answer of a process; that a trace of one takes */
  int json, once;            /* ps, top */
  struct view_choice choice; /* trace */
  void (*view)(const struct view_input *input, FILE *out); /* trace; NULL: as a text for people */
  int is_binary;                                           /* trace: the view is not for a terminal */
  const char *output;                                      /* trace; NULL: stdout */
  char **files;
  int file_count;
};

/* Exit codes. */
enum { EXIT_GOOD = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

int command_info(const struct options *options);
int command_pause(const struct options *options);
int command_process(const struct options *options);
int command_ps(const struct options *options);
int command_replay(const struct options *options);
int command_resume(const struct options *options);
int command_snapshot(const struct options *options);
int command_top(const struct options *options);
int command_trace(const struct options *options);
/* The snapshots of the contexts of options->process. Returns an exit code. */
int snapshot_process(const struct options *options);
/* Traces the contexts of options->process for its seconds, and calls fn for each of their files. 0: something failed,
   and a message was printed. */
int trace_process(const struct options *options, int (*fn)(void *user, const char *path), void *user);

/* A card and the processes on it, as NVML has them. */
struct card {
  unsigned int index, count;
  char name[128], uuid[96];
  uint64_t total, used; /* bytes */
  struct card_process {
    unsigned int pid;
    unsigned long long used; /* bytes; UINT64_MAX: NVML does not tell them */
    unsigned int gpu_instance, compute_instance;
  } * processes;
};
/* Calls fn for each card while it returns 1. 0: something failed, and a message was printed; or there is no NVML, which
   is a failure with a message only if it is needed. */
int each_card(int is_needed, int (*fn)(void *user, const struct card *card), void *user);

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
