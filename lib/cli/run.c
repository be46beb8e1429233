/* SPDX-License-Identifier: Apache-2.0 */
/* gmm run: starts a program with libgmm_preload.so preloaded. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

#define LIBRARY GMM_PRELOAD_LIBRARY

/* The exit codes of a shell that cannot start a program. */
enum { EXIT_CANNOT_RUN = 126, EXIT_NOT_FOUND = 127 };

struct run {
  const char *library;
  const char *tag;
  const char *contents;
  int without[4]; /* device, async, managed, host */
  int regions, off, print;
};

static const char *const calls[] = {"device", "async", "managed", "host"};

static int read_contents(const char *value, void *to) {
  static const char *const contents[] = {"drop", "host", "file"};
  *(const char **)to = value;
  return strcmp(value, contents[0]) == 0 || strcmp(value, contents[1]) == 0 || strcmp(value, contents[2]) == 0;
}

/* The library lies beside the command, as in a build tree, where it was installed, or as in a wheel. */
static char *find_library(void) {
  static const char *const places[] = {LIBRARY, "../preload/" LIBRARY, GMM_PRELOAD_FROM_BIN "/" LIBRARY,
                                       "../libgmm_preload.so"};
  char command[4096];
  const ssize_t length = readlink("/proc/self/exe", command, sizeof command - 1);
  if (length <= 0) return NULL;
  command[length] = '\0';
  *strrchr(command, '/') = '\0';
  for (size_t i = 0; i < sizeof places / sizeof *places; ++i) {
    char path[8192];
    snprintf(path, sizeof path, "%s/%s", command, places[i]);
    char *real = realpath(path, NULL);
    if (real != NULL) return real;
  }
  fprintf(stderr,
          "gmm run: there is no " LIBRARY " in %s, %s/../preload or %s/" GMM_PRELOAD_FROM_BIN
          "; name it by --library\n",
          command, command, command);
  return NULL;
}

static int set(const struct run *run, const char *name, const char *value) {
  if (run->print) printf("%s=%s\n", name, value);
  if (run->print || setenv(name, value, 1) == 0) return 0;
  fprintf(stderr, "gmm run: %s cannot be set: %s\n", name, strerror(errno));
  return EXIT_FAILED;
}

static int set_preload(const struct run *run, const char *library) {
  const char *others = getenv("LD_PRELOAD");
  if (others == NULL || others[0] == '\0') return set(run, "LD_PRELOAD", library);
  const size_t size = strlen(library) + strlen(others) + 2;
  char *both = malloc(size);
  if (both == NULL) return fprintf(stderr, "gmm run: there is no memory\n"), EXIT_FAILED;
  snprintf(both, size, "%s:%s", library, others);
  const int code = set(run, "LD_PRELOAD", both);
  free(both);
  return code;
}

static int set_up(const struct run *run) {
  char list[64] = "";
  for (int i = 0; i < 4; ++i) {
    if (run->without[i] || run->regions) continue;
    if (list[0] != '\0') strcat(list, ",");
    strcat(list, calls[i]);
  }
  if (run->regions) strcpy(list, "regions");
  if (run->off || list[0] == '\0') strcpy(list, "off");
  int code = set(run, "GMM_PRELOAD", list);
  if (code == 0 && run->tag != NULL) code = set(run, "GMM_PRELOAD_TAG", run->tag);
  if (code == 0 && run->contents != NULL) code = set(run, "GMM_PRELOAD_CONTENTS", run->contents);
  if (code != 0) return code;
  char *library = run->library != NULL ? realpath(run->library, NULL) : find_library();
  if (library == NULL) {
    if (run->library != NULL) fprintf(stderr, "gmm run: --library %s: %s\n", run->library, strerror(errno));
    return EXIT_FAILED;
  }
  /* The dynamic linker takes either character for the end of a name. */
  if (strpbrk(library, " :") != NULL) {
    fprintf(stderr, "gmm run: LD_PRELOAD cannot name %s, as it has a blank or colon; move or link it elsewhere\n",
            library);
    code = EXIT_FAILED;
  } else {
    code = set_preload(run, library);
  }
  free(library);
  return code;
}

int command_run(int count, char **words, const char *usage) {
  struct run run = {0};
  const struct option known[] = {{"--contents", read_contents, &run.contents},
                                 {"--library", read_text, &run.library},
                                 {"--no-async", NULL, &run.without[1]},
                                 {"--no-device", NULL, &run.without[0]},
                                 {"--no-host", NULL, &run.without[3]},
                                 {"--no-managed", NULL, &run.without[2]},
                                 {"--off", NULL, &run.off},
                                 {"--print", NULL, &run.print},
                                 {"--regions", NULL, &run.regions},
                                 {"--tag", read_text, &run.tag},
                                 {NULL, NULL, NULL}};
  int at = 0;
  for (int taken = 1; at < count && taken != 0; at += taken) {
    if (strcmp(words[at], "--help") == 0 || strcmp(words[at], "-h") == 0) return fputs(usage, stdout), EXIT_GOOD;
    if (strcmp(words[at], "--") == 0) {
      ++at;
      break;
    }
    taken = read_option("gmm run", known, count - at, words + at);
    if (taken < 0) return EXIT_USAGE;
  }
  if (at >= count && !run.print) {
    fputs(usage, stderr);
    return EXIT_USAGE;
  }
  const int code = set_up(&run);
  if (code != 0 || run.print) return code;
  execvp(words[at], words + at);
  const int missing = errno == ENOENT;
  fprintf(stderr, "gmm run: %s: %s\n", words[at], missing ? "there is no such program" : strerror(errno));
  return missing ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
}
