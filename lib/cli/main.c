/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/device_text.h"
#include "cli/cli.h"
#include "help.h"

int report(const char *what, gmm_result result) {
  fprintf(stderr, "gmm: %s: %s: %s\n", what, gmm_result_name(result), gmm_last_error_message());
  return 0;
}

static int parse_number(const char *text, uint64_t highest, uint64_t *out) {
  if (*text < '0' || *text > '9') return 0;
  char *end = NULL;
  errno = 0;
  const unsigned long long value = strtoull(text, &end, 10);
  if (errno != 0 || *end != '\0' || value > highest) return 0;
  *out = value;
  return 1;
}

static int parse_name(const char *text, const char *const *names, uint32_t count, uint32_t *out) {
  for (uint32_t i = 0; i < count; ++i) {
    if (names[i] != NULL && strcmp(text, names[i]) == 0) {
      *out = i;
      return 1;
    }
  }
  return 0;
}

static int read_backend(const char *value, void *to) {
  static const char *const names[] = {"auto", "host", "cuda", "sycl", "hip"};
  return parse_name(value, names, 5, to);
}
static int read_kind(const char *value, void *to) { return parse_name(value, kind_words, KIND_COUNT, to); }
static int read_device(const char *value, void *to) {
  uint64_t number = 0;
  const int good = parse_number(value, INT32_MAX, &number);
  *(gmm_device *)to = (gmm_device)number;
  return good;
}
static int read_gib(const char *value, void *to) {
  uint64_t number = 0;
  const int good = parse_number(value, UINT64_C(1) << 20, &number);
  *(uint64_t *)to = number << 30;
  return good;
}
static int read_process(const char *value, void *to) {
  return parse_number(value, INT32_MAX, to) && *(uint64_t *)to != 0;
}
static int read_count(const char *value, void *to) { return parse_number(value, UINT64_MAX, to); }

static int read_seconds(const char *value, void *to) {
  char *end = NULL;
  const double seconds = strtod(value, &end);
  if (end == value || *end != '\0' || !(seconds >= 0) || seconds > 1e9) return 0;
  *(uint64_t *)to = (uint64_t)(seconds * 1e9 + 0.5);
  return 1;
}
/* Bytes, with K, M, G or T behind them for powers of 1,024. */
static int read_bytes(const char *value, void *to) {
  static const char units[] = "KMGT";
  char digits[24];
  const size_t length = strlen(value);
  const char *const unit = length > 1 ? strchr(units, value[length - 1]) : NULL;
  snprintf(digits, sizeof digits, "%.*s", (int)(length - (unit != NULL)), value);
  const unsigned shift = unit != NULL ? 10 * (unsigned)(unit - units + 1) : 0;
  if (length >= sizeof digits || !parse_number(digits, UINT64_MAX >> shift, to)) return 0;
  *(uint64_t *)to <<= shift;
  return 1;
}

static const struct view {
  const char *name;
  void (*write)(const struct view_input *input, FILE *out);
  int is_binary;
} views[] = {{"text", view_text, 0},         {"plain", view_plain, 0},           {"csv", view_csv, 0},
             {"perfetto", view_perfetto, 1}, {"memory-viz", view_memory_viz, 0}, {"pprof", view_pprof, 1},
             {"html", view_html, 0}};

static int read_view(const char *value, void *to) {
  struct options *const options = to;
  for (size_t i = 0; i < sizeof views / sizeof *views; ++i) {
    if (strcmp(views[i].name, value) != 0) continue;
    options->view = views[i].write;
    options->is_binary = views[i].is_binary;
    return 1;
  }
  return 0;
}

static const struct command {
  const char *name, *help;
  int (*run)(const struct options *options);
  int least, most; /* words behind it */
} commands[] = {{"info", help_info, command_info, 0, 0},
                {"pause", help_pause, command_pause, 1, 1},
                {"ps", help_ps, command_ps, 0, 0},
                {"replay", help_replay, command_replay, 1, INT_MAX},
                {"resume", help_pause, command_resume, 1, 1},
                {"snapshot", help_snapshot, command_snapshot, 0, 1},
                {"top", help_ps, command_top, 0, 0},
                {"trace", help_trace, command_trace, 0, INT_MAX}};

static const struct command *find_command(const char *name) {
  for (size_t i = 0; i < sizeof commands / sizeof *commands; ++i)
    if (strcmp(name, commands[i].name) == 0) return &commands[i];
  return NULL;
}

int main(int argc, char **argv) {
  /* These parse their own options. */
  if (argc > 1 && strcmp(argv[1], "run") == 0) return command_run(argc - 2, argv + 2, help_run);
  if (argc > 1 && strcmp(argv[1], "serve") == 0) return command_serve(argc - 2, argv + 2, help_serve);
  struct options options = {.context = {.struct_size = sizeof options.context},
                            .device = -1,
                            .operations = UINT64_MAX,
                            .timeout = UINT64_C(5000000000),
                            .seconds = UINT64_C(10000000000),
                            .choice = {.to = UINT64_MAX, .most = UINT64_MAX}};
  const struct option known[] = {{"--backend", read_backend, &options.context.backend},
                                 {"--device", read_device, &options.device},
                                 {"--env", NULL, &options.environment},
                                 {"--from", read_seconds, &options.choice.from},
                                 {"--host-memory", read_gib, &options.context.host_memory},
                                 {"--json", NULL, &options.json},
                                 {"--kind", read_kind, &options.kind},
                                 {"--least", read_bytes, &options.choice.least},
                                 {"--most", read_bytes, &options.choice.most},
                                 {"--once", NULL, &options.once},
                                 {"--operations", read_count, &options.operations},
                                 {"--output", read_text, &options.output},
                                 {"--pid", read_process, &options.process},
                                 {"--peak", NULL, &options.choice.at_peak},
                                 {"--process", read_process, &options.process},
                                 {"--seconds", read_seconds, &options.seconds},
                                 {"--tag", read_text, &options.choice.tag},
                                 {"--threads", NULL, &options.threads},
                                 {"--timeout", read_seconds, &options.timeout},
                                 {"--to", read_seconds, &options.choice.to},
                                 {"--view", read_view, &options},
                                 {NULL, NULL, NULL}};
  char **rest = calloc((size_t)argc + 1, sizeof *rest);
  if (rest == NULL) return EXIT_FAILED;
  int count = 0;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      const struct command *command = find_command(count > 0 ? rest[0] : "");
      return fputs(command != NULL ? command->help : help_gmm, stdout), free(rest), EXIT_GOOD;
    }
    if (strcmp(argv[i], "--version") == 0) return printf("gmm %s\n", gmm_version_string()), free(rest), EXIT_GOOD;
    const int taken = read_option("gmm", known, argc - i, argv + i);
    if (taken < 0) return free(rest), EXIT_USAGE;
    if (taken == 0) rest[count++] = argv[i];
    i += taken > 1;
  }
  const struct command *command = find_command(count > 0 ? rest[0] : "");
  options.files = rest + 1;
  options.file_count = count - 1;
  int code = EXIT_USAGE;
  if (count == 0) {
    fputs(help_gmm, stderr);
  } else if (command == NULL) {
    fprintf(stderr, "gmm: there is no command '%s'; `gmm --help` lists the commands\n", rest[0]);
  } else if (options.file_count < command->least || options.file_count > command->most) {
    fprintf(stderr, "gmm %s: %s; `gmm %s --help` tells how to call it\n", rest[0],
            options.file_count < command->least ? "too few words" : "too many words", rest[0]);
  } else {
    options.choice.kind = options.kind;
    code = command->run(&options);
  }
  free(rest);
  return code;
}
