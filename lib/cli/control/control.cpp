// SPDX-License-Identifier: Apache-2.0
// Requests, and the commands that ask one process: pause, resume, and snapshot and trace with --pid.
#include "cli/control/control.h"

#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/os_memory.h"
#include "base/process.h"
#include "base/utf8.h"
#include "engine/ipc/directory.h"

extern "C" {
#include "cli/cli.h"
}

namespace gmm {
namespace {

[[gnu::format(printf, 3, 4)]] void failed(Answer &answer, gmm_result result, const char *format, ...) {
  answer.reply.result = result;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(answer.reply.message, sizeof answer.reply.message, format, arguments);
  va_end(arguments);
}

struct Search {
  const int32_t process;
  ControlRequest request;
  List<Answer> &list;
  int32_t folder = -1;
  static void look(void *search, const char *name);
  void send(Answer &answer, const char *name);
};

// The folder is this user's alone, and so are its sockets.
void Search::send(Answer &answer, const char *name) {
  int error = os::make_socket(&answer.socket);
  if (error == 0) error = os::connect_socket(answer.socket, folder, name);
  if (error == EAGAIN) return failed(answer, GMM_ERROR_IPC_TIMEOUT, "many requests wait already; it may be stopped");
  if (error != 0) return failed(answer, GMM_ERROR_IPC_PEER_GONE, "its socket: %s", ErrorText(error).text);
  request.head.start_time = answer.asked.start_time;
  request.head.serial = answer.asked.serial;
  os::send_bytes(answer.socket, &request, sizeof request);  // an end of the other side shows when the reply is read
}

void Search::look(void *self, const char *name) {
  Search &search = *static_cast<Search *>(self);
  Answer answer;
  char whole[kIpcNameSize];
  uint64_t start_time = 0;
  if (!ipc_socket_name_parse(name, &answer.asked)) return;
  ipc_socket_name(answer.asked, whole);
  const int32_t process = static_cast<int32_t>(answer.asked.pid);
  if (std::strcmp(name, whole) != 0 || process == process_number()) return;
  if (search.process != 0 && process != search.process) return;
  if (process_start_time(process, &start_time) != 0 || start_time != answer.asked.start_time) return;
  search.send(answer, name);
  search.list.add(answer);
}

void receive(Answer &answer, uint64_t deadline) {
  os::Descriptors files;
  const auto take = [&] {
    return os::receive_with_descriptors(answer.socket, &answer.reply, sizeof answer.reply, &files);
  };
  int64_t got;
  while ((got = take()) == -EAGAIN) {
    if (milliseconds_until(deadline) == 0)
      return failed(answer, GMM_ERROR_IPC_TIMEOUT,
                    "no answer in time (--timeout); it may be stopped or busy, and may do later what was asked");
    os::wait_until_readable(answer.socket, milliseconds_until(deadline));
  }
  if (got == -ECONNRESET) got = take();  // it closed before it read the request
  if (got == sizeof(ControlReply) && answer.reply.magic == IpcReply::kMagic) {
    make_printable(answer.reply.message, sizeof answer.reply.message);
    if (files.count != 0) answer.file = std::exchange(files.each[0], -1);
  } else if (got <= 0) {
    failed(answer, GMM_ERROR_IPC_PEER_GONE, "it ended, or its context did");
  } else if (answer.reply.result == GMM_ERROR_BUSY) {
    failed(answer, GMM_ERROR_BUSY, "it serves as many requests as it can, or it ends; try again");
  } else {
    failed(answer, GMM_ERROR_IPC_REFUSED, "it does not allow that; GMM_CONTROL=1 or GMM_CONTEXT_CONTROL does");
  }
}

}  // namespace

Answers::Answers(int32_t process, const ControlRequest &request, uint64_t timeout_ms) {
  constexpr uint32_t kMostNames = 65536;  // read of one folder
  const uint64_t deadline = deadline_after(timeout_ms);
  Search search{process, request, list};
  for (unsigned n = 0; n < kIpcDirectoryCandidates; ++n) {
    char path[kIpcPathSize];
    int32_t error = 0;
    if (!ipc_directory_candidate(n, path) || !ipc_directory_open(path, false, &search.folder, &error).ok()) continue;
    os::for_each_name(search.folder, kMostNames, Search::look, &search);
    os::close_file(search.folder).ignore();
  }
  for (Answer &answer : list) {
    if (answer.reply.result == GMM_OK) receive(answer, deadline);
    os::close_socket(answer.socket);
  }
}

Answers::~Answers() {
  for (const Answer &answer : list)
    if (answer.file >= 0) os::close_file(answer.file).ignore();
}

namespace {

// Calls fn(const Answer &) -> bool for each context that did what was asked. True: at least one did, and fn is content.
// Another context may have no tag of that name.
template <typename Fn>
int ask(const options &options, const char *what, const ControlRequest &request, Fn fn) {
  Answers answers(static_cast<int32_t>(options.process), request, options.timeout / 1'000'000 + request.milliseconds);
  bool any = false, good = true;
  for (const Answer &answer : answers.list) any = any || answer.reply.result >= 0;
  for (const Answer &answer : answers.list) {
    const gmm_result result = answer.reply.result;
    if (result >= 0) {
      good = fn(answer) && good;
    } else if (!any || result != GMM_ERROR_INVALID_TAG) {
      std::fprintf(stderr, "gmm: %s: process %" PRIu64 ": %s: %s\n", what, options.process, gmm_result_name(result),
                   answer.reply.message);
      good = false;
    }
  }
  if (answers.list.empty())
    std::fprintf(stderr,
                 "gmm: %s: process %" PRIu64
                 " has no socket for that; start it with GMM_CONTROL=1, as this user and with the same GMM_IPC_DIR and "
                 "XDG_RUNTIME_DIR\n",
                 what, options.process);
  return any && good && std::fflush(stdout) == 0;
}

int change_tag(const options *options, const char *what, ControlVerb verb) {
  ControlRequest request;
  request.verb = verb;
  if (options->process == 0 || std::strlen(options->files[0]) >= sizeof request.tag) {
    std::fprintf(stderr, "gmm: %s: name a process by --pid, and a tag of at most 63 bytes\n", what);
    return EXIT_USAGE;
  }
  std::strcpy(request.tag, options->files[0]);
  const auto print = [&](const Answer &answer) {
    return std::printf("%s: \"%s\", %.1f MiB\n", what, request.tag, static_cast<double>(answer.reply.bytes) / 1048576);
  };
  return ask(*options, what, request, print) ? EXIT_GOOD : EXIT_FAILED;
}

}  // namespace
}  // namespace gmm

using namespace gmm;

int command_pause(const options *options) { return change_tag(options, "pause", ControlVerb::kPause); }
int command_resume(const options *options) { return change_tag(options, "resume", ControlVerb::kResume); }

int snapshot_process(const options *options) {
  ControlRequest request;
  request.verb = ControlVerb::kSnapshot;
  const auto copy = [](const Answer &answer) {
    char piece[65536];
    ssize_t got;
    while ((got = read(answer.file, piece, sizeof piece)) > 0) std::fwrite(piece, 1, static_cast<size_t>(got), stdout);
    return got == 0 && std::putchar('\n') != EOF && std::ferror(stdout) == 0;
  };
  return ask(*options, "snapshot", request, copy) ? EXIT_GOOD : EXIT_FAILED;
}

int trace_process(const options *options, int (*fn)(void *user, const char *path), void *user) {
  ControlRequest request;
  request.verb = ControlVerb::kTrace;
  request.milliseconds = options->seconds / 1'000'000;
  if (request.milliseconds > ControlRequest::kMostMilliseconds) {
    std::fprintf(stderr, "gmm: trace: a process is traced for at most an hour; choose fewer --seconds\n");
    return 0;
  }
  return ask(*options, "trace", request, [&](const Answer &answer) {
    char path[40];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", answer.file);
    return fn(user, path) != 0;
  });
}
