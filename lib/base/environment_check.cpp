// SPDX-License-Identifier: Apache-2.0
#include "base/environment_check.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/disk_file.h"
#include "base/environment.h"
#include "base/status.h"

namespace gmm {
namespace {

// NULL when the row allows the text, else the reason.
const char *objection(Variable variable, const char *text, char *space, uint64_t size) {
  const VariableRow &row = environment_row(variable);
  uint32_t place = 0;
  uint64_t number = 0;
  struct stat status;
  int32_t file = -1;
  switch (row.form) {
    case VariableForm::kWords:
      return environment_word(variable, &place) == Reading::kBad ? "this is none of its values" : nullptr;
    case VariableForm::kList:
      return environment_words(variable, &place) == Reading::kBad ? "a word is none of its values" : nullptr;
    case VariableForm::kBytes:
    case VariableForm::kTime:
      return environment_number(variable, &number) == Reading::kBad ? "this is no number from 1" : nullptr;
    case VariableForm::kFiles:
      if (::stat(text, &status) != 0) return system_error_text(errno, space, size);
      if (!S_ISDIR(status.st_mode)) return "this is no folder";
      if (const int error = os::make_unnamed_file(text, "gmm-backup-", &file); error != 0)
        return system_error_text(error, space, size);
      ::close(file);
      return nullptr;
    case VariableForm::kSockets:
      if (*text != '/') return "the path does not begin with /";
      return std::strlen(text) < kMaxSocketFolder ? nullptr : "the path is too long";
    case VariableForm::kFile:
      if (std::strchr(text, '/') == nullptr || ::access(text, R_OK) == 0) return nullptr;
      return system_error_text(errno, space, size);
    case VariableForm::kText:
      break;
  }
  return nullptr;
}

}  // namespace

void check_environment(const Log &log) {
  for (char *const *each = environ; each != nullptr && *each != nullptr; ++each) {
    if (std::strncmp(*each, "GMM_", 4) != 0) continue;
    const uint64_t length = std::strcspn(*each, "=");
    uint32_t i = 0;
    for (; i < kVariableCount; ++i) {
      const char *name = environment_row(Variable{i}).name;
      if (std::strlen(name) == length && std::strncmp(*each, name, length) == 0) break;
    }
    if (i == kVariableCount)
      log.complain("%.*s in the environment is no variable of gmm, and has no effect; `gmm info --env` lists them.",
                   static_cast<int>(length), *each);
  }
  for (uint32_t i = 0; i < kVariableCount; ++i) {
    const Variable variable{i};
    const char *text = environment_text(variable);
    if (text == nullptr || environment_row(variable).reader == VariableReader::kPreload) continue;
    char space[128];
    const char *reason = objection(variable, text, space, sizeof space);
    if (reason == nullptr) continue;
    log.complain("%s=%.200s in the environment: %s; set it to %s, or unset it.", environment_row(variable).name, text,
                 reason, environment_row(variable).values);
  }
}

}  // namespace gmm
