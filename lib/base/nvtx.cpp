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

// --- The memory extension's (nvtx3/nvToolsExtMem.h, nvtxDetail/nvtxExtTypes.h) ---

constexpr uint16_t kMemory = 1, kCompatibility = 0x0102;  // NVTX_EXT_MODULEID_MEM, NVTX_EXT_COMPATID_MEM
constexpr uint32_t kVirtualAddress = 1;                   // NVTX_MEM_TYPE_VIRTUAL_ADDRESS
enum : uint32_t { kHeapRegister = 0, kHeapUnregister = 1, kRegionsRegister = 3, kRegionsUnregister = 5, kSlots = 63 };

struct NvtxRangeOfMemory {
  uint64_t size;
  uintptr_t base;
};
struct NvtxHeap {
  uint16_t compatibility = kCompatibility, struct_size = sizeof(NvtxHeap);
  uint32_t reserved = 0;
  uint32_t usage = 1;  // NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR
  uint32_t type = kVirtualAddress;
  uint64_t range_size = sizeof(NvtxRangeOfMemory);
  const NvtxRangeOfMemory *range = nullptr;
  uint32_t category = 0, message_type = 1;  // NVTX_MESSAGE_TYPE_ASCII
  const char *message = "gmm";
};
struct NvtxRegions {
  uint16_t compatibility = kCompatibility, struct_size = sizeof(NvtxRegions);
  uint32_t type = kVirtualAddress;
  void *heap = nullptr;
  uint64_t count = 1, range_size = sizeof(NvtxRangeOfMemory);
  const NvtxRangeOfMemory *ranges = nullptr;
  void **handles = nullptr;
};
struct NvtxEndOfRegions {
  uint16_t compatibility = kCompatibility, struct_size = sizeof(NvtxEndOfRegions);
  uint32_t type = 1;  // NVTX_MEM_REGION_REF_TYPE_POINTER
  uint64_t count = 1, reference_size = sizeof(uintptr_t);
  const uintptr_t *blocks = nullptr;
};
struct NvtxSegment {
  uint64_t id = 1, count = kSlots;
  intptr_t *slots = nullptr;
};
struct NvtxModule {
  uint16_t version = 3, struct_size = sizeof(NvtxModule), module = kMemory, compatibility = kCompatibility;
  uint64_t segment_count = 1;
  NvtxSegment *segments = nullptr;
  intptr_t (*get_export)(uint32_t) = nullptr;
  const void *more = nullptr;
};
static_assert(sizeof(NvtxHeap) == 48 && sizeof(NvtxRegions) == 48 && sizeof(NvtxEndOfRegions) == 32 &&
              sizeof(NvtxSegment) == 24 && sizeof(NvtxModule) == 40);

// The tool writes its functions there. 0 is none, and 1 one that it leaves out.
constinit intptr_t g_memory_functions[kSlots] = {};

template <typename Signature, typename... Arguments>
auto call_memory_function(uint32_t index, Arguments... arguments) {
  const auto domain = nullptr;
  return reinterpret_cast<Signature *>(g_memory_functions[index])(domain, arguments...);
}

bool load_memory_extension(void *library) {
  const auto begin = reinterpret_cast<int (*)(NvtxModule *)>(dlsym(library, "InitializeInjectionNvtxExtension"));
  NvtxSegment segment;
  segment.slots = g_memory_functions;
  NvtxModule module;
  module.segments = &segment;
  bool has_all = begin != nullptr && begin(&module) != 0;
  for (const uint32_t index : {kHeapRegister, kHeapUnregister, kRegionsRegister, kRegionsUnregister})
    has_all = has_all && g_memory_functions[index] != 0 && g_memory_functions[index] != 1;
  return has_all;
}

constinit std::atomic<bool> g_was_loaded{false}, g_has_tool{false}, g_has_memory_tool{false};

}  // namespace

void load_nvtx() {
  const char *path = trusted_variable("NVTX_INJECTION64_PATH");
  if (path == nullptr || g_was_loaded.exchange(true, std::memory_order_relaxed)) return;
  void *library = dlopen(path, RTLD_LAZY);
  if (library == nullptr) return;  // as NVTX does; the tool's user sees no ranges of other libraries either
  g_has_memory_tool.store(load_memory_extension(library), std::memory_order_release);
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

bool has_nvtx_memory_tool() { return g_has_memory_tool.load(std::memory_order_acquire); }

void *begin_nvtx_allocation(uintptr_t base, uint64_t size) {
  const NvtxRangeOfMemory range{size, base};
  NvtxHeap heap;
  heap.range = &range;
  return call_memory_function<void *(void *, const NvtxHeap *)>(kHeapRegister, &heap);
}

void end_nvtx_allocation(void *allocation) { call_memory_function<void(void *, void *)>(kHeapUnregister, allocation); }

void begin_nvtx_block(void *allocation, uintptr_t block, uint64_t size) {
  const NvtxRangeOfMemory range{size, block};
  NvtxRegions regions;
  regions.heap = allocation;
  regions.ranges = &range;
  call_memory_function<void(void *, const NvtxRegions *)>(kRegionsRegister, &regions);
}

void end_nvtx_block(uintptr_t block) {
  NvtxEndOfRegions regions;
  regions.blocks = &block;
  call_memory_function<void(void *, const NvtxEndOfRegions *)>(kRegionsUnregister, &regions);
}

}  // namespace gmm
