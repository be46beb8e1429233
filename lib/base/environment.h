// SPDX-License-Identifier: Apache-2.0
// The variables of the environment. environment.def is the table of them, and nobody reads GMM_* past it. Two libraries
// have these functions inside: libgmm and libgmm_preload.
#ifndef GMM_BASE_ENVIRONMENT_H
#define GMM_BASE_ENVIRONMENT_H

#include <cstdint>

namespace gmm {

enum class Variable : uint32_t {
#define GMM_VARIABLE(id, name, reader, form, values, fallback, text) k##id,
#include "base/environment.def"
#undef GMM_VARIABLE
  kCount
};
inline constexpr uint32_t kVariableCount = static_cast<uint32_t>(Variable::kCount);

enum class VariableReader : uint32_t { kLibrary, kPreload, kPython };
enum class VariableForm : uint32_t { kWords, kList, kBytes, kTime, kFiles, kSockets, kFile, kText };

struct VariableRow {
  const char *name;
  VariableReader reader;
  VariableForm form;
  const char *values;  // also for messages: "set it to ..."
};
const VariableRow &environment_row(Variable variable);

// NULL when the variable is not set or empty, and in a set-user-id program, whose caller must not choose its libraries
// and folders.
const char *environment_text(Variable variable);

enum class Reading : uint32_t { kUnset, kGood, kBad };
// Of the form Words: the place of the word among the values. `*out` changes for kGood only, as below.
Reading environment_word(Variable variable, uint32_t *out);
// Of the form List: a bit for each place.
Reading environment_words(Variable variable, uint32_t *out);
// Of the forms Bytes and Time: the number, from 1 to INT64_MAX. "never" is UINT64_MAX.
Reading environment_number(Variable variable, uint64_t *out);

}  // namespace gmm
#endif
