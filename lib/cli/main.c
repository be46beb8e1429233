/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "help.h"

const char *kind_name(gmm_kind kind) {
  static const char *const names[] = {"unspecified", "device", "vmm", "host", "managed"};
  return kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}

int report(const char *what, gmm_result result) {
  fprintf(stderr, "gmm: %s: %s: %s\n", what, gmm_result_name(result), gmm_last_error_message());
  return 0;
}

static int wrong(const char *option, const char *value) {
  fprintf(stderr, "gmm: %s does not take '%s'; `gmm --help` lists what it takes\n", option, value);
  return EXIT_USAGE;
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

/* 1: a good option with its value; 0: the value is wrong; -1: it is no option with a value. */
static int parse_option(const char *name, const char *value, struct options *options) {
  static const char *const backends[] = {"auto", "host", "cuda"};
  static const char *const kinds[] = {NULL, "device", "vmm", "host", "managed"};
  uint64_t number = 0;
  if (strcmp(name, "--backend") == 0) return parse_name(value, backends, 3, &options->context.backend);
  if (strcmp(name, "--kind") == 0) return options->has_kind = parse_name(value, kinds, 5, &options->kind);
  if (strcmp(name, "--device") == 0) {
    if (!parse_number(value, INT32_MAX, &number)) return 0;
    options->device = (gmm_device)number;
    return options->has_device = 1;
  }
  if (strcmp(name, "--host-memory") == 0) {
    if (!parse_number(value, UINT64_C(1) << 20, &number)) return 0;
    options->context.host_memory = number << 30;
    return 1;
  }
  if (strcmp(name, "--process") == 0) return parse_number(value, INT32_MAX, &options->process) && options->process != 0;
  if (strcmp(name, "--operations") == 0) return parse_number(value, UINT64_MAX, &options->operations);
  return -1;
}

static const struct command {
  const char *name, *help;
  int (*run)(const struct options *options);
  int least, most; /* words behind it */
} commands[] = {{"info", help_info, command_info, 0, 0},
                {"replay", help_replay, command_replay, 1, INT_MAX},
                {"snapshot", help_snapshot, command_snapshot, 0, 1},
                {"trace", help_trace, command_trace, 1, INT_MAX}};

static const struct command *find_command(const char *name) {
  for (size_t i = 0; i < sizeof commands / sizeof *commands; ++i)
    if (strcmp(name, commands[i].name) == 0) return &commands[i];
  return NULL;
}

int main(int argc, char **argv) {
  /* These parse their own options. */
  if (argc > 1 && strcmp(argv[1], "run") == 0) return command_run(argc - 2, argv + 2, help_run);
  if (argc > 1 && strcmp(argv[1], "serve") == 0) return command_serve(argc - 2, argv + 2, help_serve);
  struct options options = {
      .context = {.struct_size = sizeof options.context}, .kind = GMM_KIND_VMM, .operations = UINT64_MAX};
  char **rest = calloc((size_t)argc + 1, sizeof *rest);
  if (rest == NULL) return EXIT_FAILED;
  int count = 0;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      const struct command *command = find_command(count > 0 ? rest[0] : "");
      return fputs(command != NULL ? command->help : help_gmm, stdout), free(rest), EXIT_GOOD;
    }
    if (strcmp(argv[i], "--version") == 0) return printf("gmm %s\n", gmm_version_string()), free(rest), EXIT_GOOD;
    if (strcmp(argv[i], "--threads") == 0) {
      options.threads = 1;
      continue;
    }
    if (strcmp(argv[i], "--env") == 0) {
      options.environment = 1;
      continue;
    }
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    const int parsed = parse_option(argv[i], value, &options);
    if (parsed == 0) return free(rest), wrong(argv[i], value);
    if (parsed < 0 && argv[i][0] == '-') return free(rest), wrong("gmm", argv[i]);
    if (parsed < 0)
      rest[count++] = argv[i];
    else
      ++i;
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
            count == 1 ? "name a trace" : "too many words", rest[0]);
  } else {
    code = command->run(&options);
  }
  free(rest);
  return code;
}
