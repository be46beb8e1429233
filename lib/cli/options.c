/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

int read_option(const char *command, const struct option *options, int count, char **words) {
  const char *value = count > 1 ? words[1] : "";
  if (words[0][0] != '-') return 0;
  for (; options->name != NULL; ++options) {
    if (strcmp(words[0], options->name) != 0) continue;
    if (options->read == NULL) return *(int *)options->to = 1;
    if (options->read(value, options->to)) return 2;
    fprintf(stderr, "%s: %s does not take '%s'; `%s --help` lists what it takes\n", command, words[0], value, command);
    return -1;
  }
  fprintf(stderr, "%s: there is no option '%s'; `%s --help` lists them\n", command, words[0], command);
  return -1;
}

int read_text(const char *value, void *to) {
  *(const char **)to = value;
  return value[0] != '\0';
}
