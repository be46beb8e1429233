// SPDX-License-Identifier: Apache-2.0
// Starts this program again as a second process and talks with it over two pipes. The second process reads orders from
// stdin and writes answers to SECOND_OUT. Its checks print to stderr.
#ifndef GMM_TESTS_SECOND_PROCESS_H
#define GMM_TESTS_SECOND_PROCESS_H

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gmm_test.h"

enum { SECOND_OUT = 3 };
typedef struct second_process {
  pid_t pid;
  int to, from;
} second_process;

// The new process gets the case's kind and device, and up to six words. run_cases_or() starts its part.
__attribute__((unused)) static bool second_start(second_process *process, const char *const words[], unsigned count) {
  int down[2], up[2];
  if (pipe(down) != 0 || pipe(up) != 0) return false;
  for (int i = 0; i < 2; ++i) {
    fcntl(down[i], F_SETFD, FD_CLOEXEC);
    fcntl(up[i], F_SETFD, FD_CLOEXEC);
  }
  char k[12], d[12], *arguments[11] = {(char *)"second", (char *)"--second", k, d};
  snprintf(k, sizeof k, "%u", kind);
  snprintf(d, sizeof d, "%d", device);
  for (unsigned i = 0; i < count && i < 6; ++i) arguments[4 + i] = (char *)words[i];
  fflush(stdout);
  process->pid = fork();
  if (process->pid < 0) return false;
  if (process->pid == 0) {
    dup2(down[0], 0);
    dup2(up[1], SECOND_OUT);
    dup2(2, 1);
    execv("/proc/self/exe", arguments);
    _exit(127);
  }
  close(down[0]);
  close(up[1]);
  process->to = down[1];
  process->from = up[0];
  return true;
}

__attribute__((unused)) static bool send_bytes(int fd, const void *bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t n = write(fd, (const char *)bytes + done, size - done);
    if (n <= 0) return false;
    done += (size_t)n;
  }
  return true;
}

// Waits at most 60 seconds.
__attribute__((unused)) static bool receive_bytes(int fd, void *bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    if (poll(&ready, 1, 60000) <= 0) return false;
    ssize_t n = read(fd, (char *)bytes + done, size - done);
    if (n <= 0) return false;
    done += (size_t)n;
  }
  return true;
}

// Waits for the end; the exit code, or 1000 and the signal.
__attribute__((unused)) static int second_wait(second_process *process) {
  close(process->to);
  close(process->from);
  int status = 0;
  if (waitpid(process->pid, &status, 0) != process->pid) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

__attribute__((unused)) static void second_kill(second_process *process) {
  kill(process->pid, SIGKILL);
  second_wait(process);
}

static char **second_words;
static int (*second_function)(char **words);
static int second_code;
__attribute__((unused)) static void run_second_function(void) { second_code = second_function(second_words); }
// For main(): runs the cases, or in a process of second_start() the function with the words. `kind` and `device` are
// those of the first process. 99: a check failed there.
__attribute__((unused)) static int run_cases_or(int (*second)(char **words), int count, char **words) {
  signal(SIGPIPE, SIG_IGN);
  if (count < 2 || strcmp(words[1], "--second") != 0) return run_cases();
  kind = (gmm_kind)atoi(words[2]);
  device = atoi(words[3]);
  second_words = words + 4;
  second_function = second;
  unsetenv("CHECK_ONLY");
  check_run("second process", run_second_function);
  return check_state.failed != 0 ? 99 : second_code;
}

#endif
