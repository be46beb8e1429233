// SPDX-License-Identifier: Apache-2.0
// Modules and kernels. Nothing of PTX is understood: a kernel that is known by its name is carried out here.
#include <cstring>

#include "stream.h"

using namespace fake;

namespace {

// The layout of gmm's search for zeros.
struct ZeroRange {
  uint64_t base, size;
  uint32_t nonzero, reserved;
};
constexpr char kFindZeros[] = "gmm_find_zeros";

struct Module {
  Context *context;
  std::string text;
};
std::map<CUmodule, Module> &modules() { return forever<std::map<CUmodule, Module>>(); }
std::map<CUfunction, std::pair<CUmodule, std::string>> &functions() {
  return forever<std::map<CUfunction, std::pair<CUmodule, std::string>>>();
}
uintptr_t next_value = 0x5000;

CUresult find_zeros(uintptr_t ranges, uint64_t count, int device) {
  std::vector<Piece> table;
  Where where;
  {
    std::lock_guard<std::mutex> guard(state().mutex);
    if (translate(ranges, count * sizeof(ZeroRange), true, device, &table, &where) || where == Where::pageable)
      return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  if (table.size() != 1) return CUDA_ERROR_ILLEGAL_ADDRESS;
  auto *list = reinterpret_cast<ZeroRange *>(table[0].data);
  for (uint64_t i = 0; i < count; i++) {
    std::vector<Piece> pieces;
    {
      std::lock_guard<std::mutex> guard(state().mutex);
      if (translate(list[i].base, list[i].size, false, device, &pieces, &where) || where == Where::pageable)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (const Piece &piece : pieces)
      if (!is_zero(piece.data, piece.size)) list[i].nonzero = 1;
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  FAKE_CUDA_IN_CONTEXT(cuModuleLoadData, !out || !image);
  const char *text = static_cast<const char *>(image);
  if (!strstr(text, ".version") || !strstr(text, ".target") || !strstr(text, ".address_size 64"))
    return CUDA_ERROR_INVALID_PTX;
  *out = reinterpret_cast<CUmodule>(next_value++);
  modules()[*out] = {context, text};
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  FAKE_CUDA_IN_CONTEXT(cuModuleUnload);
  auto it = modules().find(module);
  if (it == modules().end() || it->second.context != context) return CUDA_ERROR_INVALID_HANDLE;
  modules().erase(it);
  std::erase_if(functions(), [&](auto &each) { return each.second.first == module; });
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  FAKE_CUDA_IN_CONTEXT(cuModuleGetFunction, !out || !name);
  auto it = modules().find(module);
  if (it == modules().end() || it->second.context != context) return CUDA_ERROR_INVALID_HANDLE;
  if (it->second.text.find(std::string(".entry ") + name + "(") == std::string::npos) return CUDA_ERROR_NOT_FOUND;
  *out = reinterpret_cast<CUfunction>(next_value++);
  functions()[*out] = {module, name};
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int, CUstream handle,
                        void **arguments, void **extra) {
  FAKE_CUDA_IN_CONTEXT(cuLaunchKernel);
  auto it = functions().find(function);
  if (it == functions().end()) return CUDA_ERROR_INVALID_HANDLE;
  if (modules()[it->second.first].context != context) return CUDA_ERROR_INVALID_CONTEXT;
  constexpr unsigned kMostBlocks = 65535, kMostThreads = 1024;
  const uint64_t threads = uint64_t{block_x} * block_y * block_z;
  if (!grid_x || !grid_y || !grid_z || grid_y > kMostBlocks || grid_z > kMostBlocks || !threads ||
      threads > kMostThreads)
    return CUDA_ERROR_INVALID_VALUE;
  if (!arguments || extra || it->second.second != kFindZeros) return CUDA_ERROR_NOT_SUPPORTED;
  FAKE_CUDA_STREAM(stream, handle);
  if (stream->context != context) return CUDA_ERROR_INVALID_HANDLE;
  const uintptr_t ranges = *static_cast<uintptr_t *>(arguments[0]);
  const int device = context->device;
  return enqueue(stream, [=] { return find_zeros(ranges, grid_y, device); });
}

}  // extern "C"
