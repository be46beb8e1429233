/* SPDX-License-Identifier: Apache-2.0 */
/* gmm trace: shows traces in one of the views. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static int read_into(void *user, const char *path) {
  struct view_input *const input = user;
  struct trace *const traces = realloc(input->traces, (input->count + 1) * sizeof *traces);
  if (traces == NULL) return fprintf(stderr, "gmm: trace: no memory for the traces\n"), 0;
  input->traces = traces;
  if (!trace_read(path, &traces[input->count])) return 0;
  ++input->count;
  return 1;
}

static int write_view(const struct options *options, const struct view_input *input) {
  const char *const path = options->output;
  if (path == NULL && options->is_binary && isatty(STDOUT_FILENO)) {
    fprintf(stderr, "gmm: trace: that file is not for a terminal; name one with --output FILE\n");
    return EXIT_USAGE;
  }
  FILE *const out = path == NULL ? stdout : fopen(path, "wb");
  if (out != NULL) (options->view != NULL ? options->view : view_text)(input, out);
  int good = out != NULL && fflush(out) == 0 && !ferror(out);
  if (!good) fprintf(stderr, "gmm: trace: %s cannot be written: %s\n", path == NULL ? "stdout" : path, strerror(errno));
  if (out != NULL && out != stdout && fclose(out) != 0) good = 0;
  return good ? EXIT_GOOD : EXIT_FAILED;
}

int command_trace(const struct options *options) {
  struct view_input input = {.choice = options->choice};
  if ((options->process != 0) == (options->file_count != 0)) {
    fprintf(stderr, "gmm: trace: name a trace, or a process by --pid\n");
    return EXIT_USAGE;
  }
  int good = options->process == 0 || trace_process(options, read_into, &input);
  for (uint64_t i = 0; i < input.count; ++i)
    snprintf(input.traces[i].file, sizeof input.traces[i].file, "process %u", input.traces[i].process);
  for (int i = 0; i < options->file_count; ++i) good = trace_each(options->files[i], read_into, &input) && good;
  for (uint32_t i = 0; i < input.count && options->view != view_plain; ++i) trace_symbolize(&input.traces[i]);
  const int code = good ? write_view(options, &input) : EXIT_FAILED;
  while (input.count != 0) trace_free(&input.traces[--input.count]);
  free(input.traces);
  return code;
}
