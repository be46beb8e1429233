// SPDX-License-Identifier: Apache-2.0
#include "base/spawn.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/trusted_variable.h"
#include "base/vector.h"

// The command, relative to the library. A build without Meson installs into lib and bin.
#ifndef GMM_COMMAND_FROM_LIB
#define GMM_COMMAND_FROM_LIB "../bin/gmm"
#endif

namespace gmm::os {
namespace {

const char kAnchor = 0;  // lies in this file's library

// The folder of the file that this code lies in: the shared library, or the program.
bool own_folder(char *path, uint64_t size) {
  Dl_info info;
  if (::dladdr(&kAnchor, &info) == 0 || info.dli_fname == nullptr) return false;
  const char *slash = std::strrchr(info.dli_fname, '/');
  if (slash == nullptr) return false;
  const int length = std::snprintf(path, size, "%.*s", static_cast<int>(slash - info.dli_fname), info.dli_fname);
  return length > 0 && static_cast<uint64_t>(length) < size;
}

// A program without a slash is searched on PATH.
int start_program(const char *program, const char *const *words, int32_t *process) {
  // The caller of a set-user-id program must not choose what it starts.
  const bool is_searched = std::strchr(program, '/') == nullptr;
  if (is_searched && trusted_variable("PATH") == nullptr) return ENOENT;
  Vector<char *> environment;
  for (char **each = environ; *each != nullptr; ++each)
    if (std::strncmp(*each, "LD_PRELOAD=", 11) != 0 && !environment.push_back(*each)) return ENOMEM;
  if (!environment.push_back(nullptr)) return ENOMEM;
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t all, none;
  ::sigfillset(&all);
  ::sigemptyset(&none);
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
  pid_t started = 0;
  int error = 0;
  for (int fd = 0; fd <= 2 && error == 0; ++fd)
    error = ::posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
  if (error == 0)
    error = (is_searched ? ::posix_spawnp : ::posix_spawn)(&started, program, &actions, &attributes,
                                                           const_cast<char *const *>(words), environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error == 0) *process = started;
  return error;
}

}  // namespace

int start_command(const char *const *words, int32_t *process) {
  char folder[4096], path[4096 + 64];
  int error = ENOENT;
  if (own_folder(folder, sizeof folder))
    for (const char *place : {"cli/gmm", "_bin/gmm", GMM_COMMAND_FROM_LIB}) {
      std::snprintf(path, sizeof path, "%s/%s", folder, place);
      if (error != 0) error = start_program(path, words, process);
    }
  return error == 0 ? 0 : start_program("gmm", words, process);
}

bool has_program_ended(int32_t process) {
  const pid_t ended = ::waitpid(process, nullptr, WNOHANG);
  return ended == process || (ended < 0 && errno == ECHILD);
}

}  // namespace gmm::os
