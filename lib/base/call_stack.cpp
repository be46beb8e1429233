// SPDX-License-Identifier: Apache-2.0
#include "base/call_stack.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>

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

// False: no host memory for all.
bool copy_modules(Vector<Module> *out) {
  const auto copy = [](dl_phdr_info *info, size_t, void *to) {
    return static_cast<Vector<Module> *>(to)->push_back(describe(*info)) ? 0 : 1;
  };
  return dl_iterate_phdr(copy, out) == 0;
}

// Grows with each file that the process loads.
uint64_t loaded_modules() {
  uint64_t count = 0;
  const auto first = [](dl_phdr_info *info, size_t, void *to) {
    *static_cast<uint64_t *>(to) = info->dlpi_adds;
    return 1;
  };
  dl_iterate_phdr(first, &count);
  return count;
}

constinit std::atomic<gmm_frames_fn> g_frames{nullptr};

}  // namespace

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

// A stack while it is looked at. An interpreter's frames come first.
struct StackTable::Stack {
  StackTable &table;
  uint32_t count = 0;
  uint64_t words[kMostWords] = {};
};

void StackTable::set_frames(gmm_frames_fn fn) { g_frames.store(fn, std::memory_order_release); }

uint32_t StackTable::here() {
  check_may_call_program(ProgramCall::kTrace);
  Stack stack{*this};
  if (const gmm_frames_fn frames = g_frames.load(std::memory_order_acquire); frames != nullptr)
    frames(add_frame, &stack);
  stack.count += call_stack(stack.words + stack.count);
  if (loaded_modules() != loaded_.load(std::memory_order_relaxed)) add_modules();
  const LockGuard guard(mutex_);
  return add(Item::kStack, stack.words, stack.count);
}

void StackTable::add_frame(void *to, const char *name, const char *file, uint32_t line) {
  Stack &stack = *static_cast<Stack *>(to);
  if (stack.count == kMostFrames) return;
  uint64_t words[1 + (kNameBytes + kFileBytes) / 8] = {line};
  std::memcpy(words + 1, name, strnlen(name, kNameBytes));
  const uint64_t bytes = strnlen(file, kFileBytes);
  std::memcpy(words + 1 + kNameBytes / 8, file, bytes);
  const LockGuard guard(stack.table.mutex_);
  const uint32_t number = stack.table.add(Item::kFrame, words, 1 + kNameBytes / 8 + (bytes + 7) / 8);
  if (number != 0) stack.words[stack.count++] = number | kInterpreted;
}

// The next stack asks again where there was no host memory.
void StackTable::add_modules() {
  const uint64_t loaded = loaded_modules();
  Vector<Module> modules(allocator_);
  if (!copy_modules(&modules)) return;
  const LockGuard guard(mutex_);
  for (const Module &module : modules) {
    static_assert(sizeof module % 8 == 0);
    uint64_t words[sizeof module / 8];
    std::memcpy(words, &module, sizeof module);
    if (!modules_.reserve(modules_.size() + 1)) return;
    const uint64_t before = begins_.size();
    const uint32_t number = add(Item::kModule, words, sizeof module / 8);
    if (number == 0) return;
    if (number > before) modules_.push_back_reserved(number);
  }
  loaded_.store(loaded, std::memory_order_relaxed);
}

// With mutex_ held.
uint32_t StackTable::add(Item item, const uint64_t *words, uint64_t count) {
  auto hash = static_cast<uint64_t>(item);
  for (uint64_t i = 0; i < count; ++i) {
    hash = (hash ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= hash >> 32;
  }
  if (const uint32_t *known = known_.find(hash, [](uint32_t) { return true; }); known != nullptr) return *known;
  if (!known_.reserve() || !begins_.reserve(begins_.size() + 1) || !words_.reserve(words_.size() + count)) return 0;
  begins_.push_back_reserved(words_.size());
  for (uint64_t i = 0; i < count; ++i) words_.push_back_reserved(words[i]);
  const auto number = static_cast<uint32_t>(begins_.size());
  known_.add(hash, number);
  return number;
}

uint32_t StackTable::read(uint32_t number, uint64_t (&words)[kMostWords]) const {
  const LockGuard guard(mutex_);
  const uint64_t end = number < begins_.size() ? begins_[number] : words_.size();
  std::copy(words_.begin() + begins_[number - 1], words_.begin() + end, words);
  return static_cast<uint32_t>(end - begins_[number - 1]);
}

uint32_t StackTable::module(uint64_t index) const {
  const LockGuard guard(mutex_);
  return index < modules_.size() ? modules_[index] : 0;
}

void StackTable::name_call(uint64_t call, bool is_short, CallText &out) const {
  const auto shortened = [=](const char *path) {
    const char *slash = is_short ? std::strrchr(path, '/') : nullptr;
    return slash == nullptr ? path : slash + 1;
  };
  uint64_t words[kMostWords + 1] = {};  // with a zero behind the text
  const auto get = [&](uint32_t number) { return read(number, reinterpret_cast<uint64_t(&)[kMostWords]>(words)); };
  if ((call & kInterpreted) != 0) {
    get(static_cast<uint32_t>(call));
    char name[kNameBytes + 1] = "";
    std::memcpy(name, words + 1, kNameBytes);
    const char *file = shortened(reinterpret_cast<const char *>(words + 1 + kNameBytes / 8));
    std::snprintf(out, sizeof out, "%s (%s:%u)", name, file, static_cast<uint32_t>(words[0]));
    return;
  }
  std::snprintf(out, sizeof out, "0x%" PRIx64, call);
  uint32_t number;
  for (uint64_t i = 0; (number = module(i)) != 0; ++i) {
    get(number);
    Module module;
    std::memcpy(&module, words, sizeof module);
    if (call >= module.begin && call < module.end)
      std::snprintf(out, sizeof out, "%s+0x%" PRIx64, shortened(module.path), call - module.base);
  }
}

StackText::StackText(const StackTable &table, uint32_t stack, uint32_t most) {
  if (stack == 0) return;
  uint64_t words[StackTable::kMostWords];
  const uint32_t count = std::min(table.read(stack, words), most);
  uint64_t used = 0;
  for (uint32_t i = 0; i < count; ++i) {
    StackTable::CallText call;
    table.name_call(words[i], true, call);
    const uint64_t bytes = std::strlen(call) + 4;
    if (used + bytes >= sizeof text) return;
    used += static_cast<uint64_t>(std::snprintf(text + used, sizeof text - used, i == 0 ? " at %s" : " < %s", call));
  }
}

}  // namespace gmm
