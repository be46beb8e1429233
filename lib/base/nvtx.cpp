// SPDX-License-Identifier: Apache-2.0
#include "base/nvtx.h"

#include <dlfcn.h>

#include <atomic>
#include <cstddef>

#include "base/trusted_variable.h"

namespace gmm {
namespace {

// --- NVTX's binary interface (nvtx3/nvToolsExt.h, nvtxDetail/nvtxTypes.h) ---

using Function = void (*)();
enum : uint32_t { kEtidCallbacks = 1, kEtidVersionInfo = 3 };                   // NVTX_ETID_*
enum : uint32_t { kModuleCore = 1, kModules = 7 };                              // NVTX_CB_MODULE_*
enum : uint32_t { kCoreRangePushEx = 8, kCoreRangePop = 11, kFunctions = 16 };  // NVTX_CBID_CORE_*

struct EventAttributes {
  uint16_t version = 3, size = sizeof(EventAttributes);
  uint32_t category = 0;
  int32_t color_type = 0;
  uint32_t color = 0;
  int32_t payload_type = 1;  // NVTX_PAYLOAD_TYPE_UNSIGNED_INT64
  int32_t reserved = 0;
  uint64_t payload = 0;
  int32_t message_type = 1;  // NVTX_MESSAGE_TYPE_ASCII
  const char *message = nullptr;
};
static_assert(sizeof(EventAttributes) == 48);

// A tool writes its functions through the pointers. The first place and the last are NULL.
Function g_nvtx_functions[2][kFunctions] = {};
Function *g_nvtx_tables[2][kFunctions + 1] = {};

// Tools ask for every module. Functions that gmm does not call share a table, which nobody reads.
int get_function_table(uint32_t module, Function ***table, uint32_t *count) {
  if (module == 0 || module >= kModules) return 0;
  const uint32_t which = module == kModuleCore ? 0 : 1;
  for (uint32_t i = 1; i < kFunctions; ++i) g_nvtx_tables[which][i] = &g_nvtx_functions[which][i];
  if (table != nullptr) *table = g_nvtx_tables[which];
  if (count != nullptr) *count = kFunctions;
  return 1;
}

constexpr struct {
  size_t struct_size;
  int (*get_function_table)(uint32_t, Function ***, uint32_t *);
} kCallbacks = {sizeof kCallbacks, get_function_table};
constexpr struct {
  size_t struct_size;
  uint32_t version, reserved;
  void (*set_tool_version)(uint32_t);
} kVersionInfo = {sizeof kVersionInfo, 3, 0, [](uint32_t) {}};

const void *get_export_table(uint32_t id) {
  return id == kEtidCallbacks     ? &kCallbacks
         : id == kEtidVersionInfo ? static_cast<const void *>(&kVersionInfo)
                                  : nullptr;
}

constinit std::atomic<bool> g_was_loaded{false}, g_has_tool{false};

}  // namespace

void load_nvtx() {
  const char *path = trusted_variable("NVTX_INJECTION64_PATH");
  if (path == nullptr || g_was_loaded.exchange(true, std::memory_order_relaxed)) return;
  void *library = dlopen(path, RTLD_LAZY);
  if (library == nullptr) return;  // as NVTX does; the tool's user sees no ranges of other libraries either
  const auto begin = reinterpret_cast<int (*)(const void *(*)(uint32_t))>(dlsym(library, "InitializeInjectionNvtx2"));
  if (begin == nullptr || begin(get_export_table) == 0) return;
  g_has_tool.store(g_nvtx_functions[0][kCoreRangePushEx] != nullptr && g_nvtx_functions[0][kCoreRangePop] != nullptr,
                   std::memory_order_release);
}

bool has_nvtx_tool() { return __builtin_expect(g_has_tool.load(std::memory_order_acquire), 0); }

void push_nvtx_range(const char *name, uint64_t bytes) {
  EventAttributes event;
  event.payload = bytes;
  event.message = name;
  reinterpret_cast<int (*)(const EventAttributes *)>(g_nvtx_functions[0][kCoreRangePushEx])(&event);
}

void pop_nvtx_range() { reinterpret_cast<int (*)()>(g_nvtx_functions[0][kCoreRangePop])(); }

}  // namespace gmm
