// SPDX-License-Identifier: Apache-2.0
// dlsym and dlvsym as the program calls them. If the result is a CUDA function of the table, they return its hook.
//
// RTLD_NEXT, RTLD_DEFAULT and the link namespace depend on the caller, whom the system's dlsym knows by its return
// address. So the functions here look at the arguments, leave the stack unchanged, and jump to the system's function,
// which returns to the caller.
#include <dlfcn.h>
#include <gmm/version.h>

#include <cstring>

#include "preload/config.h"
#include "preload/libc.h"
#include "preload/real.h"

namespace gmm::preload {
namespace {

// gmm opens the driver for itself and must get the driver's functions.
bool is_gmm(const void *caller) {
  Dl_info own, info;
  return dladdr(reinterpret_cast<const void *>(&gmm_version), &own) != 0 && dladdr(caller, &info) != 0 &&
         info.dli_fbase == own.dli_fbase;
}

bool is_cuda(const void *address) {
  Dl_info info;
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return false;
  const char *slash = std::strrchr(info.dli_fname, '/');
  const char *file = slash != nullptr ? slash + 1 : info.dli_fname;
  return std::strncmp(file, "libcuda.so", 10) == 0 || std::strncmp(file, "libcudart", 9) == 0;
}

// Two registers: an address, and whether it is the result (0) or a function to jump to (1).
struct Target {
  void *address;
  uint64_t jump;
};

// This runs in every process with the library. The names of the driver's and the runtime's functions begin with "cu".
bool concerns(void *handle, const char *name, const void *caller) {
  return name != nullptr && name[0] == 'c' && name[1] == 'u' && handle != RTLD_NEXT && !is_gmm(caller);
}

template <typename Function, typename... Version>
Target look_up(Function system, void *handle, const char *name, const void *caller, Version... version) {
  const Target as_the_system_says{reinterpret_cast<void *>(system), 1};
  if (__builtin_expect(!concerns(handle, name, caller), 1)) return as_the_system_says;
  const Entry entry = find_symbol(name);
  void *found = entry != Entry::kCount ? system(handle, name, version...) : nullptr;
  if (found == nullptr) return as_the_system_says;
  // The scope begins with this library. Without it the scope would hold the real function or nothing. In the latter
  // case the last look-up fails, so that dlerror() has a text: Python's ctypes uses that text without a check.
  // RTLD_NEXT is what the system finds behind this library, and RTLD_DEFAULT the global scope as for the program.
  if (is_hook(found))
    return find_loaded_real(entry) != nullptr || system(RTLD_NEXT, name, version...) != nullptr ? as_the_system_says
                                                                                                : Target{nullptr, 0};
  if (!config().hooks || !is_cuda(found)) return as_the_system_says;
  remember_real(entry, found);
  return {entry_info(entry).hook, 0};
}

}  // namespace

extern "C" {

__attribute__((visibility("hidden"))) Target gmm_preload_dlsym(void *handle, const char *name, const void *caller);
__attribute__((visibility("hidden"))) Target gmm_preload_dlvsym(void *handle, const char *name, const char *version,
                                                                const void *caller);

Target gmm_preload_dlsym(void *handle, const char *name, const void *caller) {
  return look_up(system_dlsym(), handle, name, caller);
}

Target gmm_preload_dlvsym(void *handle, const char *name, const char *version, const void *caller) {
  return look_up(system_dlvsym(), handle, name, caller, version);
}
}

}  // namespace gmm::preload

// dlsym(handle, name) and dlvsym(handle, name, version). The arguments survive the call in between, and the stack is
// unchanged at the jump.
#if defined(__x86_64__)
#define GMM_PRELOAD_LOOK_UP(function, caller_register)                                     \
  asm(".text\n.globl " #function "\n.type " #function ",@function\n.p2align 4\n" #function \
      ":\n"                                                                                \
      ".cfi_startproc\n"                                                                   \
      "endbr64\n"                                                                          \
      "push %rdi\n.cfi_adjust_cfa_offset 8\n"                                              \
      "push %rsi\n.cfi_adjust_cfa_offset 8\n"                                              \
      "push %rdx\n.cfi_adjust_cfa_offset 8\n"                                              \
      "mov 24(%rsp), %" caller_register                                                    \
      "\n"                                                                                 \
      "call gmm_preload_" #function                                                        \
      "\n"                                                                                 \
      "mov %rdx, %rcx\n"                                                                   \
      "pop %rdx\n.cfi_adjust_cfa_offset -8\n"                                              \
      "pop %rsi\n.cfi_adjust_cfa_offset -8\n"                                              \
      "pop %rdi\n.cfi_adjust_cfa_offset -8\n"                                              \
      "test %rcx, %rcx\n"                                                                  \
      "jz 1f\n"                                                                            \
      "jmp *%rax\n"                                                                        \
      "1: ret\n"                                                                           \
      ".cfi_endproc\n.size " #function ", .-" #function "\n")
GMM_PRELOAD_LOOK_UP(dlsym, "rdx");
GMM_PRELOAD_LOOK_UP(dlvsym, "rcx");
#elif defined(__aarch64__)
#define GMM_PRELOAD_LOOK_UP(function, caller_register)                                                \
  asm(".text\n.globl " #function "\n.type " #function ",%function\n.p2align 4\n" #function            \
      ":\n"                                                                                           \
      ".cfi_startproc\n"                                                                              \
      "hint #34\n" /* bti c */                                                                        \
      "stp x29, x30, [sp, #-48]!\n.cfi_def_cfa_offset 48\n.cfi_offset 29, -48\n.cfi_offset 30, -40\n" \
      "mov x29, sp\n"                                                                                 \
      "stp x0, x1, [sp, #16]\n"                                                                       \
      "str x2, [sp, #32]\n"                                                                           \
      "mov " caller_register                                                                          \
      ", x30\n"                                                                                       \
      "bl gmm_preload_" #function                                                                     \
      "\n"                                                                                            \
      "mov x16, x0\n"                                                                                 \
      "mov x17, x1\n"                                                                                 \
      "ldp x0, x1, [sp, #16]\n"                                                                       \
      "ldr x2, [sp, #32]\n"                                                                           \
      "ldp x29, x30, [sp], #48\n.cfi_def_cfa_offset 0\n.cfi_restore 29\n.cfi_restore 30\n"            \
      "cbnz x17, 1f\n"                                                                                \
      "mov x0, x16\n"                                                                                 \
      "ret\n"                                                                                         \
      "1: br x16\n"                                                                                   \
      ".cfi_endproc\n.size " #function ", .-" #function "\n")
GMM_PRELOAD_LOOK_UP(dlsym, "x2");
GMM_PRELOAD_LOOK_UP(dlvsym, "x3");
#else
#error "dlsym() is not interposed on this machine: configure with -Dpreload=disabled or write its look-up"
#endif
