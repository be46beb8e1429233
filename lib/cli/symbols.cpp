// SPDX-License-Identifier: Apache-2.0
// The names of the frames of a trace. binutils' addr2line finds functions, lines and inlined calls, also in the debug
// files of /usr/lib/debug. It runs once for each file of the trace.
#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/call_stack.h"
#include "cli/list.h"

extern "C" {
#include "cli/trace.h"
}

namespace {

// Whether the file has the build-id that the trace names.
bool has_build_id(const trace_module &module) {
  const int descriptor = open(module.path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // the path may name a pipe
  struct stat about = {};
  const bool is_file = descriptor >= 0 && fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode);
  FILE *file = is_file ? fdopen(descriptor, "rb") : nullptr;
  if (file == nullptr && descriptor >= 0) close(descriptor);
  if (file == nullptr) return false;
  Elf64_Ehdr head = {};
  bool is_same = false;
  const bool is_elf = std::fread(&head, sizeof head, 1, file) == 1 && std::memcmp(head.e_ident, ELFMAG, SELFMAG) == 0;
  for (uint32_t i = 0; is_elf && i < head.e_phnum && !is_same; ++i) {
    Elf64_Phdr part = {};
    char notes[4096];
    uint8_t build_id[32];
    char text[sizeof module.build_id];
    std::fseek(file, static_cast<long>(head.e_phoff + i * sizeof part), SEEK_SET);
    if (std::fread(&part, sizeof part, 1, file) != 1 || part.p_type != PT_NOTE) continue;
    std::fseek(file, static_cast<long>(part.p_offset), SEEK_SET);
    const size_t size = std::fread(notes, 1, part.p_filesz < sizeof notes ? part.p_filesz : sizeof notes, file);
    const uint64_t bytes = gmm::find_build_id(notes, size, build_id);
    gmm::build_id_text(build_id, bytes, text);
    is_same = bytes != 0 && std::strcmp(text, module.build_id) == 0;
  }
  std::fclose(file);
  return is_same;
}

// Runs addr2line on a file, which gets the lines of `input` and whose lines come out of the result; null: it cannot.
FILE *start(const char *path, FILE *input, pid_t *process) {
  int ends[2];
  if (pipe(ends) != 0) return nullptr;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(input), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  char program[] = "addr2line", form[] = "-aCfi", option[] = "-e";
  char *words[] = {program, form, option, const_cast<char *>(path), nullptr};
  const int error = posix_spawnp(process, program, &actions, nullptr, words, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error == 0) return fdopen(ends[0], "r");
  close(ends[0]);
  std::fprintf(stderr, "gmm: addr2line cannot be run: %s; install binutils to see functions and lines\n",
               std::strerror(error));
  return nullptr;
}

// The frame that another one is inlined into.
trace_frame *add_outer(trace *of, const trace_frame *inner) {
  const trace_frame made = {inner->address, inner->module, TRACE_NO_FRAME, 0, "", ""};
  const auto at = inner - of->frames;
  const uint32_t outer = gmm::append(&of->frames, &of->frame_count, made);
  of->frames[at].outer = outer;
  return &of->frames[outer];
}

// For each question a line with its address, then two lines for each function there, the innermost first: the name,
// "??" where it is not known, and FILE:LINE, behind which more may stand in brackets.
void read_answers(trace *of, const gmm::List<uint32_t> &asked, FILE *answers) {
  char name[sizeof trace_frame::name], place[sizeof trace_frame::file + 32];
  uint64_t next = 0;
  trace_frame *frame = nullptr;
  for (bool is_first = true; std::fgets(name, sizeof name, answers) != nullptr;) {
    const size_t length = std::strcspn(name, "\n");
    for (int c = name[length] == '\n' ? '\n' : 0; c != '\n' && c != EOF;) c = std::fgetc(answers);  // of a long name
    name[length] = '\0';
    if (std::strncmp(name, "0x", 2) == 0) {
      if (next == asked.size()) return;
      frame = &of->frames[asked[next++]];
      is_first = true;
      continue;
    }
    if (frame == nullptr || std::fgets(place, sizeof place, answers) == nullptr) return;
    if (!is_first) frame = add_outer(of, frame);
    is_first = false;
    if (std::strcmp(name, "??") != 0) std::memcpy(frame->name, name, length + 1);
    char *colon = std::strrchr(place, ':');
    if (colon == nullptr || place[0] == '?') continue;
    *colon = '\0';
    frame->line = static_cast<uint32_t>(std::strtoul(colon + 1, nullptr, 10));
    std::snprintf(frame->file, sizeof frame->file, "%.511s", place);
  }
}

void ask(trace *of, uint32_t index) {
  const trace_module &module = of->modules[index];
  gmm::List<uint32_t> asked;  // frames, in the order of the questions
  for (uint32_t i = 0; i < of->frame_count; ++i)
    if (of->frames[i].module == index) asked.add(i);
  if (asked.empty()) return;
  if (!has_build_id(module)) {
    std::fprintf(stderr, "gmm: %s: there is no file of the build-id in the trace; its frames are addresses\n",
                 module.path);
    return;
  }
  FILE *questions = std::tmpfile();
  if (questions == nullptr) return;
  // A call stands before the address where it returns to.
  for (const uint32_t frame : asked)
    std::fprintf(questions, "0x%" PRIx64 "\n", of->frames[frame].address - 1 - module.base);
  std::rewind(questions);
  pid_t process = 0;
  if (FILE *answers = start(module.path, questions, &process); answers != nullptr) {
    read_answers(of, asked, answers);
    std::fclose(answers);
    waitpid(process, nullptr, 0);
  }
  std::fclose(questions);
}

}  // namespace

void trace_symbolize(trace *of) {
  for (uint32_t i = 0; i < of->module_count; ++i) ask(of, i);
  for (uint32_t i = 0; i < of->frame_count; ++i) {
    trace_frame &frame = of->frames[i];
    if (frame.name[0] != '\0') continue;
    const trace_module *module = frame.module == TRACE_NO_FRAME ? nullptr : &of->modules[frame.module];
    const char *slash = module == nullptr ? nullptr : std::strrchr(module->path, '/');
    std::snprintf(frame.name, sizeof frame.name, "%.200s+0x%" PRIx64, slash == nullptr ? "?" : slash + 1,
                  frame.address - (module == nullptr ? 0 : module->base));
  }
}
