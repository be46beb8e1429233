// SPDX-License-Identifier: Apache-2.0
// Start, errors, devices and their attributes.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

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
  configuration.grace = number("FAKE_CUDA_GRACE", 0) != 0;
  configuration.unaligned = number("FAKE_CUDA_UNALIGNED", 0) != 0;
  configuration.blind = number("FAKE_CUDA_BLIND", 0) != 0;
  configuration.delay_us = static_cast<unsigned>(number("FAKE_CUDA_DELAY_US", 0));
  const char *lacks = getenv("FAKE_CUDA_LACKS");
  std::string word;
  for (const char *p = lacks ? lacks : ""; *p || !word.empty(); p += *p != 0) {
    if (*p && *p != ',') {
      word += *p;
      continue;
    }
    if (!word.empty()) configuration.lacks.insert(word);
    word.clear();
  }
  for (int i = 0; i < 2 * kMaxDevices; i++) contexts[i].device = i % kMaxDevices;
  open_ledger(*this);
}

State &state() {
  static State *only = new State;
  return *only;
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

struct Named {
  int value;
  const char *name, *text;
};
const Named kErrors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {206, "CUDA_ERROR_UNMAP_FAILED", "unmapping of buffer object failed"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {211, "CUDA_ERROR_NOT_MAPPED", "resource not mapped"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const Named *find_error(int value) {
  for (const Named &error : kErrors)
    if (error.value == value) return &error;
  return nullptr;
}

int attribute(int attribute) {
  auto &lacks = state().configuration.lacks;
  auto has = [&](const char *what) { return lacks.count(what) ? 0 : 1; };
  switch (attribute) {
    case 10:
      return 32;  // warp size
    case 16:
      return 132;  // multiprocessors
    case 18:
      return 0;  // integrated
    case 19:
      return 1;  // maps host memory
    case 33:
      return 0x81;  // PCI bus
    case 40:
      return 3;  // copy engines
    case 41:
      return 1;  // unified addressing
    case 75:
      return 9;  // compute capability
    case 83:
      return has("managed");  // managed memory
    case 88:
    case 100:
      return state().configuration.grace ? 1 : 0;  // pageable memory access, and by the host's page tables
    case 89:
      return has("managed") && has("concurrent");
    case 91:
      return has("same_address");  // registered memory keeps its address
    case 99:
      return has("register");
    case 102:
      return has("vmm");
    case 103:
      return has("vmm") && has("fd");
    case 110:
      return has("vmm") && has("rdma");
    case 113:
      return has("register") && has("readonly_register");
    case 115:
      return has("pools");
    case 119:
      return has("pools") ? 1 : 0;  // pools export POSIX fds
    case 124:
      return has("dmabuf");
    case 125:
      return has("ipc");  // IPC of events: where it is, so is IPC of memory
    case 128:
      return has("vmm") && has("fabric");
    case 131:
      return -1;  // NUMA node of the device's memory
    case 134:
      return 0;  // host NUMA node
    case 141:
      return has("vmm") && has("host_vmm");
    case 142:
      return 0;
    case 145:
      return state().configuration.version >= 13000 && has("vmm") && has("host_vmm");
    default:
      return 0;
  }
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
  *version = state().configuration.version;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult early = enter(Entry::cuGetErrorName)) return *text = nullptr, early;
  const Named *found = find_error(error);
  *text = found ? found->name : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult early = enter(Entry::cuGetErrorString)) return *text = nullptr, early;
  const Named *found = find_error(error);
  *text = found ? found->text : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count) {
  FAKE_CUDA_ENTER(cuDeviceGetCount);
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = state().configuration.devices;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  FAKE_CUDA_ENTER(cuDeviceGet);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
  FAKE_CUDA_ENTER(cuDeviceGetName);
  if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  strncpy(name, "Fake CUDA device for tests", static_cast<size_t>(length));
  name[length - 1] = 0;
  return CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *uuid, CUdevice device) {
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  for (int i = 0; i < 16; i++) uuid->bytes[i] = static_cast<char>("fake CUDA device"[i]);
  uuid->bytes[15] = static_cast<char>(device);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  FAKE_CUDA_ENTER(cuDeviceGetUuid);
  return device_uuid(uuid, device);
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  FAKE_CUDA_ENTER(cuDeviceGetUuid_v2);
  return device_uuid(uuid, device);
}

CUresult cuDeviceGetLuid(char *luid, unsigned int *node_mask, CUdevice device) {
  FAKE_CUDA_ENTER(cuDeviceGetLuid);
  if (!luid || !node_mask) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (lacks("luid")) return CUDA_ERROR_NOT_SUPPORTED;
  memcpy(luid, "fakeLUI", 7);
  luid[7] = static_cast<char>(device);
  *node_mask = 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  FAKE_CUDA_ENTER(cuDeviceTotalMem_v2);
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
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
  FAKE_CUDA_ENTER(cuDeviceCanAccessPeer);
  if (!can) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device) || !valid_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer && !lacks("peer");
  return CUDA_SUCCESS;
}

}  // extern "C"
