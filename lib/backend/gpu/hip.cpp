// SPDX-License-Identifier: Apache-2.0
// HIP's library as a Driver. Functions that differ from CUDA's have one here, and so have the faults of ROCm that gmm
// can work around. Each fault is named by the thread that reports it.
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "backend/backend.h"
#include "backend/gpu/context_guard.h"
#include "backend/gpu/driver.h"
#include "backend/gpu/hip_api.h"
#include "base/lock.h"

namespace gmm::gpu {
namespace hip {
namespace {

constexpr int kMemcpyDefault = 4;           // hipMemcpyDefault
constexpr int kFirstWithHost = 7'02'00000;  // ROCm 7.2

// The library's functions. They belong to the process, as the library does: the first open sets them.
struct Functions {
#define GMM_HIP_MEMBER(name, parameters) name##_fn *name;
  GMM_HIP_FUNCTIONS(GMM_HIP_MEMBER, GMM_HIP_MEMBER)
#undef GMM_HIP_MEMBER
} g_hip;
constinit Mutex g_hip_mutex{LockRank::kHipFunctions};

// --- Contexts: a device is one -----------------------------------------------------------------------------------
// HIP's own calls for contexts are deprecated: hipCtxPopCurrent() leaves the device as it is, and hipCtxSynchronize()
// is not supported (hip_context.cpp of ROCm's clr).

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1); }
int device_of(CUcontext context) { return static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1; }

CUresult retain_context(CUcontext *out, CUdevice device) {
  *out = context_of(device);
  return CUDA_SUCCESS;
}

CUresult release_context(CUdevice) { return CUDA_SUCCESS; }

CUresult context_state(CUdevice, unsigned *flags, int *active) {
  *flags = 0;
  *active = 1;  // a wait for a device without work costs nothing
  return CUDA_SUCCESS;
}

CUresult current_context(CUcontext *out) {
  int device = 0;
  const CUresult result = g_hip.hipGetDevice(&device);
  *out = context_of(device);
  return result;
}

CUresult push_context(CUcontext context) { return g_hip.hipSetDevice(device_of(context)); }
// ContextGuard passes the context that it found.
CUresult pop_context(CUcontext *earlier) { return g_hip.hipSetDevice(device_of(*earlier)); }

CUresult context_of_stream(CUstream stream, CUcontext *out) {
  int device = 0;
  const CUresult result = g_hip.hipStreamGetDevice(stream, &device);
  *out = context_of(device);
  return result;
}

// --- Questions -----------------------------------------------------------------------------------------------------

CUresult attribute(int *out, CUdevice_attribute which, CUdevice device) {
  switch (which) {
#define GMM_HIP_ATTRIBUTE(name, hip, number) \
  case CU_DEVICE_ATTRIBUTE_##name:           \
    return g_hip.hipDeviceGetAttribute(out, number, device);
    GMM_HIP_ATTRIBUTES(GMM_HIP_ATTRIBUTE)
#undef GMM_HIP_ATTRIBUTE
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
      *out = g_hip.hipMemGetHandleForAddressRange != nullptr;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      *out = 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: {
      // Older releases fail where the memory is created (rocm-systems#8971, #9359).
      int version = 0;
      const CUresult result = g_hip.hipDriverGetVersion(&version);
      *out = version >= kFirstWithHost;
      return result;
    }
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult pointer_attributes(unsigned count, CUpointer_attribute *which, void **values, CUdeviceptr address) {
  if (*which != CU_POINTER_ATTRIBUTE_CONTEXT) return g_hip.hipDrvPointerGetAttributes(count, which, values, address);
  int device = -1;
  CUpointer_attribute ordinal[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *value[] = {&device};
  const CUresult result = g_hip.hipDrvPointerGetAttributes(1, ordinal, value, address);
  *static_cast<CUcontext *>(*values) = device < 0 ? nullptr : context_of(device);
  return result;
}

// --- Virtual memory management -------------------------------------------------------------------------------------
// ROCm keeps released memory until the addresses are freed where it was mapped (vllm#37533, rocm-systems#4363). So each
// mapping has a reservation of its own, which ends with it. The addresses between mappings are the process's alone.
// Another thread may map memory there before the driver has them back: then the mapping fails.

void *pointer(CUdeviceptr address) { return reinterpret_cast<void *>(address); }

bool hold(CUdeviceptr address, size_t size) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  void *held = ::mmap(pointer(address), size, PROT_NONE, flags, -1, 0);
  if (held != MAP_FAILED && held != pointer(address)) ::munmap(held, size);  // a kernel before 4.17
  return held == pointer(address);
}

// The second try is there because nobody else frees them.
bool free_addresses(CUdeviceptr address, size_t size) {
  return twice([&] { return g_hip.hipMemAddressFree(address, size); });
}

CUresult reserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
  for (int tries = 0; tries < 3; ++tries) {
    const CUresult result = g_hip.hipMemAddressReserve(out, size, alignment, hint, flags);
    if (result != CUDA_SUCCESS) return result;
    if (!free_addresses(*out, size)) return CUDA_ERROR_UNKNOWN;
    if (hold(*out, size)) return CUDA_SUCCESS;
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult unreserve(CUdeviceptr address, size_t size) {
  return ::munmap(pointer(address), size) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult reserve_there(CUdeviceptr address, size_t size) {
  CUdeviceptr got = 0;
  const CUresult result = g_hip.hipMemAddressReserve(&got, size, kExtentAlignment, address, 0);
  if (result != CUDA_SUCCESS || got == address) return result;
  free_addresses(got, size);
  return CUDA_ERROR_ILLEGAL_STATE;
}

CUresult map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags) {
  if (::munmap(pointer(address), size) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  CUresult result = reserve_there(address, size);
  if (result == CUDA_SUCCESS) {
    result = g_hip.hipMemMap(address, size, offset, handle, flags);
    if (result != CUDA_SUCCESS) free_addresses(address, size);
  }
  if (result != CUDA_SUCCESS) hold(address, size);
  return result;
}

// Of one mapping, see Vendor::unmaps_runs.
CUresult unmap(CUdeviceptr address, size_t size) {
  const CUresult result = g_hip.hipMemUnmap(address, size);
  if (result == CUDA_SUCCESS && free_addresses(address, size)) hold(address, size);
  return result;
}

// How many bytes from the address on one mapping or allocation has.
size_t bytes_from(CUdeviceptr address) {
  CUdeviceptr base = 0;
  size_t size = 0;
  if (g_hip.hipMemGetAddressRange(&base, &size, address) != CUDA_SUCCESS || address - base >= size) return SIZE_MAX;
  return size - (address - base);
}

// Access is refused for a part of a mapping and for some sizes (rocm-systems#2516).
CUresult set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count) {
  CUresult result = CUDA_SUCCESS;
  for (size_t done = 0, part = 0; done < size && result == CUDA_SUCCESS; done += part) {
    part = std::min(size - done, bytes_from(address + done));
    result = g_hip.hipMemSetAccess(address + done, part, access, count);
  }
  return result;
}

CUresult dma_buf(void *out, CUdeviceptr address, size_t size, CUmemRangeHandleType type, unsigned long long flags) {
  if (g_hip.hipMemGetHandleForAddressRange == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return g_hip.hipMemGetHandleForAddressRange(out, address, size, type, flags);
}

CUresult import_external(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *handle) {
  if (handle->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
  return g_hip.hipImportExternalMemory(out, handle);
}

// --- Copies and fills: one over several mappings is refused (intel/llvm#22671) -------------------------------------

// Calls call(offset, size) for the whole, and for parts where that is refused. bytes_at(offset): the most of a part.
template <typename BytesAt, typename Call>
CUresult in_parts(size_t size, BytesAt bytes_at, Call call) {
  CUresult result = call(size_t{0}, size);
  const CUresult whole = result;
  for (size_t done = 0, part = 0; whole != CUDA_SUCCESS && done < size; done += part) {
    part = std::min(size - done, bytes_at(done));
    if (part == size) return whole;
    result = call(done, part);
    if (result != CUDA_SUCCESS) return result;
  }
  return result;
}

CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return in_parts(
      size, [&](size_t at) { return std::min(bytes_from(to + at), bytes_from(from + at)); },
      [&](size_t at, size_t part) { return g_hip.hipMemcpyAsync(to + at, from + at, part, kMemcpyDefault, stream); });
}

CUresult fill(CUdeviceptr to, unsigned char value, size_t size, CUstream stream) {
  return in_parts(
      size, [&](size_t at) { return bytes_from(to + at); },
      [&](size_t at, size_t part) { return g_hip.hipMemsetD8Async(to + at, value, part, stream); });
}

// --- The table -----------------------------------------------------------------------------------------------------

void take_adapters(Driver *out) {
  out->cuDeviceGetAttribute = &attribute;
  out->cuDevicePrimaryCtxRetain = &retain_context;
  out->cuDevicePrimaryCtxRelease = &release_context;
  out->cuDevicePrimaryCtxGetState = &context_state;
  out->cuCtxGetCurrent = &current_context;
  out->cuCtxGetDevice = g_hip.hipGetDevice;
  out->cuCtxPushCurrent = &push_context;
  out->cuCtxPopCurrent = &pop_context;
  out->cuPointerGetAttributes = &pointer_attributes;
  out->cuMemAddressReserve = &reserve;
  out->cuMemAddressFree = &unreserve;
  out->cuMemMap = &map;
  out->cuMemUnmap = &unmap;
  out->cuMemSetAccess = &set_access;
  out->cuMemGetHandleForAddressRange = &dma_buf;
  out->cuImportExternalMemory = &import_external;
  out->cuStreamGetCtx = &context_of_stream;
  out->cuMemcpyAsync = &copy;
  out->cuMemsetD8Async = &fill;
}

Status resolve(Driver *out, void *library, const char *path) {
  Functions found = {};
  const char *missing = nullptr;
  const auto find = [&](const char *name, bool is_required) {
    void *address = dlsym(library, name);
    if (address == nullptr && is_required) missing = name;
    return address;
  };
#define GMM_HIP_FIND(name, parameters) found.name = reinterpret_cast<name##_fn *>(find(#name, true));
#define GMM_HIP_FIND_OPTIONAL(name, parameters) found.name = reinterpret_cast<name##_fn *>(find(#name, false));
#define GMM_HIP_SAME(name, suffix, hip) out->name = reinterpret_cast<name##suffix##_fn *>(find(#hip, true));
#define GMM_HIP_NONE(name, hip)
  GMM_HIP_FUNCTIONS(GMM_HIP_FIND, GMM_HIP_FIND_OPTIONAL)
  GMM_HIP_ENTRIES(GMM_HIP_SAME, GMM_HIP_NONE)
#undef GMM_HIP_FIND
#undef GMM_HIP_FIND_OPTIONAL
#undef GMM_HIP_SAME
#undef GMM_HIP_NONE
  if (missing != nullptr) return fail(GMM_ERROR_NO_BACKEND, "%s has no %s; install ROCm 6.3 or newer.", path, missing);
  LockGuard lock(g_hip_mutex);
  if (g_hip.hipGetDevice == nullptr) g_hip = found;
  take_adapters(out);
  return Status();
}

const char *name_of(const char *entry) {
#define GMM_HIP_SAME(name, suffix, hip) \
  if (std::strcmp(entry, #name) == 0) return #hip;
#define GMM_HIP_ADAPTED(name, hip) GMM_HIP_SAME(name, , hip)
  GMM_HIP_ENTRIES(GMM_HIP_SAME, GMM_HIP_ADAPTED)
#undef GMM_HIP_SAME
#undef GMM_HIP_ADAPTED
  return entry;
}

std::atomic<int> g_initialised_by{0};

}  // namespace
}  // namespace hip

constexpr Vendor kHip = {
    .id = GMM_BACKEND_HIP,
    .backend = "hip",
    .name = "HIP",
    .library = "libamdhip64.so",
    .library_variable = Variable::kHipDriver,
    .to_install = "ROCm",
    .to_check = "check rocm-smi and HIP_VISIBLE_DEVICES",
    // ROCm tells a lack of descriptors by the same number (rocm-systems#10604).
    .memory_advice =
        "free or trim memory, pause a tag, or request less; if the device has memory, raise ulimit -n, as "
        "each VMM handle takes a descriptor",
    .major = 1'00'00000,
    .minor = 1'00000,
    .oldest_version = 6'03'00000,
    .has_kernels = false,
    .unmaps_runs = false,
    .resolve = &hip::resolve,
    .name_of = &hip::name_of,
    .initialised_by = &hip::g_initialised_by,
};

}  // namespace gmm::gpu
