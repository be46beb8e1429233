/* SPDX-License-Identifier: Apache-2.0 */
/* gmm trace: shows traces in one of the views. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

struct list {
  struct trace *traces;
  const char **names;
  uint32_t count;
};

static int read_into(void *user, const char *path) {
  struct list *const list = user;
  struct trace *const traces = realloc(list->traces, (list->count + 1) * sizeof *traces);
  if (traces != NULL) list->traces = traces;
  const char **const names = realloc(list->names, (list->count + 1) * sizeof *names);
  if (names != NULL) list->names = names;
  char *const name = strdup(path);
  if (traces == NULL || names == NULL || name == NULL) {
    fprintf(stderr, "gmm: trace: no memory for the names\n");
    return free(name), 0;
  }
  if (!trace_read(path, &list->traces[list->count])) return free(name), 0;
  list->names[list->count++] = name;
  return 1;
}

static int write_view(const struct options *options, const struct list *list) {
  const struct view_input input = {list->traces, list->names, list->count, options->choice};
  const char *const path = options->output;
  if (path == NULL && options->is_binary && isatty(STDOUT_FILENO)) {
    fprintf(stderr, "gmm: trace: that file is not for a terminal; name one with --output FILE\n");
    return EXIT_USAGE;
  }
  FILE *const out = path == NULL ? stdout : fopen(path, "wb");
  int good = out != NULL && (options->view != NULL ? options->view : view_text)(&input, out);
  if (out != NULL && (fflush(out) != 0 || ferror(out))) good = 0;
  if (!good) fprintf(stderr, "gmm: trace: %s cannot be written: %s\n", path == NULL ? "stdout" : path, strerror(errno));
  if (out != NULL && out != stdout && fclose(out) != 0) good = 0;
  return good ? EXIT_GOOD : EXIT_FAILED;
}

int command_trace(const struct options *options) {
  struct list list = {NULL, NULL, 0};
  int good = 1;
  for (int i = 0; i < options->file_count; ++i) good = trace_each(options->files[i], read_into, &list) && good;
  const int code = good ? write_view(options, &list) : EXIT_FAILED;
  for (uint32_t i = 0; i < list.count; ++i) {
    trace_free(&list.traces[i]);
    free((char *)list.names[i]);
  }
  free(list.traces);
  free(list.names);
  return code;
}
