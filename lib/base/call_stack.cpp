// SPDX-License-Identifier: Apache-2.0
#include "base/call_stack.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace gmm {
namespace {

using Unwind = int (*)(void **frames, int most);
constinit std::atomic<Unwind> g_unwind{backtrace};
// The code of the library. Of a static one they are 0, as the program's code is in the same file.
constinit std::atomic<uint64_t> g_own_begin{0}, g_own_end{0};

Module describe(const dl_phdr_info &info) {
  Module made = {};
  made.base = info.dlpi_addr;
  made.begin = UINT64_MAX;
  for (uint32_t i = 0; i < info.dlpi_phnum; ++i) {
    const auto &part = info.dlpi_phdr[i];
    const uint64_t begin = info.dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD) {
      made.begin = std::min<uint64_t>(made.begin, begin);
      made.end = std::max<uint64_t>(made.end, begin + part.p_memsz);
    }
    if (part.p_type == PT_NOTE && made.build_id_bytes == 0)
      made.build_id_bytes = find_build_id(reinterpret_cast<const void *>(begin), part.p_memsz, made.build_id);
  }
  std::snprintf(made.path, sizeof made.path, "%s", info.dlpi_name);
  // The program itself has no name there.
  if (made.path[0] == '\0' && ::readlink("/proc/self/exe", made.path, sizeof made.path - 1) < 0) made.path[0] = '\0';
  return made;
}

}  // namespace

bool copy_modules(Vector<Module> *out) {
  const auto copy = [](dl_phdr_info *info, size_t, void *to) {
    return static_cast<Vector<Module> *>(to)->push_back(describe(*info)) ? 0 : 1;
  };
  return dl_iterate_phdr(copy, out) == 0;
}

uint64_t loaded_modules() {
  uint64_t count = 0;
  const auto first = [](dl_phdr_info *info, size_t, void *to) {
    *static_cast<uint64_t *>(to) = info->dlpi_adds;
    return 1;
  };
  dl_iterate_phdr(first, &count);
  return count;
}

void prepare_call_stacks() {
  Vector<Module> modules;  // the program is the first
  const auto here = reinterpret_cast<uint64_t>(&prepare_call_stacks);
  const bool is_known = copy_modules(&modules);
  for (uint64_t i = 1; is_known && i < modules.size(); ++i) {
    if (here < modules[i].begin || here >= modules[i].end) continue;
    g_own_begin.store(modules[i].begin, std::memory_order_relaxed);
    g_own_end.store(modules[i].end, std::memory_order_relaxed);
  }
  Unwind unwind = backtrace;
  if (void *library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL); library != nullptr)
    if (void *found = dlsym(library, "unw_backtrace"); found != nullptr) unwind = reinterpret_cast<Unwind>(found);
  void *one = nullptr;
  unwind(&one, 1);
  g_unwind.store(unwind, std::memory_order_relaxed);
}

uint32_t call_stack(uint64_t *out) {
  static_assert(sizeof(void *) == sizeof(uint64_t));
  const int count = g_unwind.load(std::memory_order_relaxed)(reinterpret_cast<void **>(out), kMostFrames);
  const uint64_t begin = g_own_begin.load(std::memory_order_relaxed), end = g_own_end.load(std::memory_order_relaxed);
  int own = 0;
  while (own < count && out[own] >= begin && out[own] < end) ++own;
  std::copy(out + own, out + std::max(own, count), out);
  return static_cast<uint32_t>(std::max(own, count) - own);
}

}  // namespace gmm
