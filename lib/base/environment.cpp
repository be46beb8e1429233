// SPDX-License-Identifier: Apache-2.0
#include "base/environment.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/trusted_variable.h"

namespace gmm {
namespace {

constexpr VariableRow kRows[] = {
#define GMM_VARIABLE(id, name, reader, form, values, fallback, text) \
  {name, VariableReader::k##reader, VariableForm::k##form, values},
#include "base/environment.def"
#undef GMM_VARIABLE
};
static_assert(sizeof kRows / sizeof *kRows == kVariableCount);

// The place of a word among the values of a row.
Reading find_word(Variable variable, const char *text, uint64_t size, uint32_t *out) {
  uint32_t place = 0;
  for (const char *word = environment_row(variable).values;; ++place) {
    const uint64_t length = std::strcspn(word, "|");
    if (length == size && std::strncmp(word, text, size) == 0) {
      *out = place;
      return Reading::kGood;
    }
    if (word[length] == '\0') return Reading::kBad;
    word += length + 1;
  }
}

}  // namespace

const VariableRow &environment_row(Variable variable) { return kRows[static_cast<uint32_t>(variable)]; }

const char *environment_text(Variable variable) {
  const char *text = trusted_variable(environment_row(variable).name);
  return text == nullptr || *text == '\0' ? nullptr : text;
}

Reading environment_word(Variable variable, uint32_t *out) {
  const char *text = environment_text(variable);
  if (text == nullptr) return Reading::kUnset;
  return find_word(variable, text, std::strlen(text), out);
}

Reading environment_words(Variable variable, uint32_t *out) {
  const char *text = environment_text(variable);
  if (text == nullptr) return Reading::kUnset;
  uint32_t places = 0;
  for (;; ++text) {
    const uint64_t size = std::strcspn(text, ",");
    uint32_t place = 0;
    if (find_word(variable, text, size, &place) == Reading::kBad) return Reading::kBad;
    places |= 1u << place;
    text += size;
    if (*text == '\0') break;
  }
  *out = places;
  return Reading::kGood;
}

Reading environment_number(Variable variable, uint64_t *out) {
  const char *text = environment_text(variable);
  if (text == nullptr) return Reading::kUnset;
  if (environment_row(variable).form == VariableForm::kTime && std::strcmp(text, "never") == 0) {
    *out = UINT64_MAX;
    return Reading::kGood;
  }
  char *end = nullptr;
  errno = 0;
  const unsigned long long value = std::strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value == 0 || value > INT64_MAX) return Reading::kBad;
  *out = value;
  return Reading::kGood;
}

}  // namespace gmm
