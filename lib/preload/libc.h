// SPDX-License-Identifier: Apache-2.0
// The system's own look-up of symbols, which the library stands in front of as well.
#ifndef GMM_PRELOAD_LIBC_H
#define GMM_PRELOAD_LIBC_H

#include <cstdint>

namespace gmm::preload {

using DlsymFn = void *(*)(void *handle, const char *name);
using DlvsymFn = void *(*)(void *handle, const char *name, const char *version);

// Found in the symbol table of the C library, as asking the dynamic linker for them would ask ourselves. Never NULL: where there is none, a
// function that finds nothing.
DlsymFn system_dlsym();
DlvsymFn system_dlvsym();

// Whether the code lies in the library that gives `inside`, an address of its code: gmm's own calls are told so.
struct CodeRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool contains(const void *address) const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    return at >= begin && at < end;
  }
};
CodeRange code_around(const void *inside);

// A loaded object whose file's name begins with `stem`, as a path for dlopen(); false when there is none.
bool find_loaded(const char *stem, char *path, uint64_t size);

}  // namespace gmm::preload
#endif
