// SPDX-License-Identifier: Apache-2.0
// The system's own look-up of symbols, which the library interposes too.
#ifndef GMM_PRELOAD_LIBC_H
#define GMM_PRELOAD_LIBC_H

#include <cstdint>

namespace gmm::preload {

using DlsymFn = void *(*)(void *handle, const char *name);
using DlvsymFn = void *(*)(void *handle, const char *name, const char *version);

// The functions come from the symbol table of the C library, because the dynamic linker would return our own. The
// result is never NULL: if there is none, it is a function that finds nothing.
DlsymFn system_dlsym();
DlvsymFn system_dlvsym();

// Finds a loaded object whose file's name begins with `stem`, as a path for dlopen(). False: there is none.
bool find_loaded(const char *stem, char *path, uint64_t size);

}  // namespace gmm::preload
#endif
