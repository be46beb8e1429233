// SPDX-License-Identifier: Apache-2.0
// Start, errors, devices and their attributes.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <sstream>

#include "state.h"

namespace fake {

extern std::atomic<int> initialized_by;

State::State() {
  auto number = [](const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 0) : otherwise;
  };
  configuration.version = static_cast<int>(number("FAKE_CUDA_VERSION", 13000));
  configuration.devices = static_cast<int>(std::min<uint64_t>(number("FAKE_CUDA_DEVICES", 1), kMaxDevices));
  configuration.memory = number("FAKE_CUDA_MEMORY", uint64_t{8} << 30);
  configuration.cpu_access = number("FAKE_CUDA_CPU_ACCESS", 0) != 0;
  configuration.unaligned = number("FAKE_CUDA_UNALIGNED", 0) != 0;
  configuration.blind = number("FAKE_CUDA_BLIND", 0) != 0;
  auto words = [](const char *name, std::set<std::string> *out) {
    const char *text = getenv(name);
    std::istringstream all(text ? text : "");
    for (std::string word; std::getline(all, word, ',');) out->insert(word);
  };
  words("FAKE_CUDA_LACKS", &configuration.lacks);
  if (is_hip()) words("FAKE_HIP_QUIRKS", &configuration.quirks);
  // ROCm 7.0 and 7.1 (rocm-systems#8971, #9359).
  if (configuration.quirks.count("host")) configuration.lacks.insert("host_vmm");
  for (int i = 0; i < 2 * kMaxDevices; i++) contexts[i].device = i % kMaxDevices;
  open_ledger(*this);
}

bool valid_device(int device) { return device >= 0 && device < state().configuration.devices; }

// First it counts, then it looks at the others: of two processes that do not fit together at least one sees the other.
bool charge(int device, uint64_t bytes) {
  State &s = state();
  settle_exported();
  uint64_t used = s.used[device].load();
  do {
    if (bytes > s.configuration.memory || used > s.configuration.memory - bytes) return false;
  } while (!s.used[device].compare_exchange_weak(used, used + bytes));
  if (used_by_all(device) <= s.configuration.memory) return true;
  s.used[device] -= bytes;
  return false;
}

}  // namespace fake

using namespace fake;

namespace {

struct ErrorName {
  CUresult value;
  const char *name;
};
#define X(error) \
  ErrorName { CUDA_ERROR_##error, "CUDA_ERROR_" #error }
constexpr ErrorName kErrors[] = {X(INVALID_VALUE),
                                 X(OUT_OF_MEMORY),
                                 X(NOT_INITIALIZED),
                                 X(DEINITIALIZED),
                                 X(NO_DEVICE),
                                 X(INVALID_DEVICE),
                                 X(INVALID_CONTEXT),
                                 X(UNMAP_FAILED),
                                 X(PEER_ACCESS_UNSUPPORTED),
                                 X(OPERATING_SYSTEM),
                                 X(INVALID_HANDLE),
                                 X(ILLEGAL_STATE),
                                 X(NOT_FOUND),
                                 X(NOT_READY),
                                 X(ILLEGAL_ADDRESS),
                                 X(LAUNCH_TIMEOUT),
                                 X(CONTEXT_IS_DESTROYED),
                                 X(HOST_MEMORY_ALREADY_REGISTERED),
                                 X(HOST_MEMORY_NOT_REGISTERED),
                                 X(LAUNCH_FAILED),
                                 X(NOT_PERMITTED),
                                 X(NOT_SUPPORTED),
                                 X(STREAM_CAPTURE_UNSUPPORTED),
                                 X(STREAM_CAPTURE_INVALIDATED),
                                 X(STREAM_CAPTURE_MERGE),
                                 X(STREAM_CAPTURE_UNJOINED),
                                 X(STREAM_CAPTURE_ISOLATION),
                                 X(STREAM_CAPTURE_IMPLICIT),
                                 X(CAPTURED_EVENT),
                                 X(STREAM_CAPTURE_WRONG_THREAD),
                                 X(UNKNOWN)};
#undef X

const char *name_of(CUresult error) {
  for (const ErrorName &each : kErrors)
    if (each.value == error) return each.name;
  return error == CUDA_SUCCESS ? "CUDA_SUCCESS" : nullptr;
}

// An attribute that is 0 where the device lacks an ability.
struct Attribute {
  int number, value;
  const char *needs, *needs_too;
};
constexpr const char *kNothing = "";
constexpr Attribute kAttributes[] = {
    {10, 32, kNothing, kNothing},    // warp size
    {16, 132, kNothing, kNothing},   // multiprocessors
    {19, 1, kNothing, kNothing},     // maps host memory
    {33, 0x81, kNothing, kNothing},  // PCI bus
    {40, 3, kNothing, kNothing},     // copy engines
    {41, 1, kNothing, kNothing},     // unified addressing
    {75, 9, kNothing, kNothing},     // compute capability
    {83, 1, "managed", kNothing},
    {89, 1, "managed", "concurrent"},
    {91, 1, "same_address", kNothing},  // registered memory keeps its address
    {99, 1, "register", kNothing},
    {102, 1, "vmm", kNothing},
    {103, 1, "vmm", "fd"},
    {110, 1, "vmm", "rdma"},
    {113, 1, "register", "readonly_register"},
    {115, 1, kNothing, kNothing},  // pools
    {119, 1, kNothing, kNothing},  // which export POSIX fds
    {124, 1, kNothing, kNothing},  // dma-buf
    {125, 1, "ipc", kNothing},     // IPC of events: where it is, so is IPC of memory
    {128, 1, "vmm", "fabric"},
    {131, -1, kNothing, kNothing},  // NUMA node of the device's memory
    {141, 1, "vmm", "host_vmm"},
    {145, 1, "vmm", "host_vmm"},
};

int attribute(int number) {
  const Configuration &configuration = state().configuration;
  if (number == 145 && configuration.version < 13000) return 0;
  for (const Attribute &each : kAttributes)
    if (each.number == number) return lacks(each.needs) || lacks(each.needs_too) ? 0 : each.value;
  return 0;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned int flags) {
  if (CUresult early = enter(Entry::cuInit)) return early;
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (state().configuration.devices <= 0) return CUDA_ERROR_NO_DEVICE;
  initialized_by = getpid();
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
  if (CUresult early = enter(Entry::cuDriverGetVersion)) return early;
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = !is_hip() ? state().configuration.version : has_quirk("host") ? 7'01'00000 : 7'02'00000;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **text) {
  if (CUresult early = enter(Entry::cuGetErrorName)) return *text = nullptr, early;
  *text = name_of(error);
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// The words of the driver are nobody's concern here.
CUresult cuGetErrorString(CUresult error, const char **text) {
  if (CUresult early = enter(Entry::cuGetErrorString)) return *text = nullptr, early;
  return cuGetErrorName(error, text);
}

CUresult cuDeviceGetCount(int *count) {
  FAKE_CUDA_ENTER(cuDeviceGetCount, !count);
  *count = state().configuration.devices;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  FAKE_CUDA_ENTER(cuDeviceGet, !device);
  if (!valid_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
  FAKE_CUDA_OF_DEVICE(cuDeviceGetName, !name || length <= 0);
  strncpy(name, "Fake CUDA device for tests", static_cast<size_t>(length));
  name[length - 1] = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  FAKE_CUDA_OF_DEVICE(cuDeviceGetUuid_v2, !uuid);
  memcpy(uuid->bytes, "fake CUDA device", sizeof uuid->bytes);
  uuid->bytes[15] = static_cast<char>(device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  FAKE_CUDA_OF_DEVICE(cuDeviceTotalMem_v2, !bytes);
  *bytes = state().configuration.memory;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
  FAKE_CUDA_ENTER(cuDeviceGetAttribute);
  // A driver refuses what is newer than itself.
  int newest = state().configuration.version >= 13000 ? 147 : state().configuration.version >= 12000 ? 141 : 125;
  if (!value || which <= 0 || which > newest) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute(which);
  if (which == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID) *value = device;
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  FAKE_CUDA_ENTER(cuDeviceCanAccessPeer, !can);
  if (!valid_device(device) || !valid_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer && !lacks("peer");
  return CUDA_SUCCESS;
}

}  // extern "C"
