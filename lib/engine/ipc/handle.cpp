// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/handle.h"

#include <bit>
#include <cinttypes>
#include <cstddef>
#include <cstring>

#include "base/bytes.h"
#include "base/hash_table.h"
#include "base/process.h"

namespace gmm {
namespace {

static_assert(std::endian::native == std::endian::little, "a handle is little-endian, and written as it is");
static_assert(offsetof(IpcHandle, token) == 40 && offsetof(IpcHandle, legacy) == 104 &&
              offsetof(IpcHandle, checksum) == 252);

constexpr gmm_result kInvalid = GMM_ERROR_IPC_INVALID_HANDLE;

uint32_t checksum_of(const void *handle) {
  return crc32c(static_cast<const uint8_t *>(handle), offsetof(IpcHandle, checksum));
}

// The maker of a forged handle can choose every field.
Status check_fields(const IpcHandle &handle) {
  const bool is_event = handle.event != 0, is_vmm = handle.kind == Kind::kVmm, is_device = handle.kind == Kind::kDevice;
  const bool is_legacy = handle.route == IpcRoute::kLegacy, is_fabric = handle.route == IpcRoute::kFabric;
  const bool has_kind = is_device || is_vmm || handle.kind == Kind::kHost;
  const bool has_driver_handle = !all_zero(handle.legacy, sizeof handle.legacy);
  if (handle.device.ordinal < GMM_DEVICE_HOST || ((is_event || is_device) && handle.device.is_host()))
    return fail(kInvalid, "import of a handle: its device %d is not valid for its kind", handle.device.ordinal);
  const auto kind = static_cast<uint64_t>(handle.kind), route = static_cast<uint64_t>(handle.route);
  const struct {
    bool is_broken;
    const char *field;
    uint64_t value;
    const char *trouble;
  } rules[] = {
      {handle.event > 1 || !all_zero(handle.reserved, sizeof handle.reserved), "allocation", handle.allocation,
       "is beside reserved bytes that are not zero"},
      {is_event ? handle.kind != Kind::kUnspecified : !has_kind, "kind", kind, "is not one that can be shared"},
      {handle.route != IpcRoute::kBroker && !is_legacy && !is_fabric, "route", route, "is unknown"},
      {is_legacy && !is_device && !is_event, "kind", kind,
       "is not that of its route, the driver's legacy one, which only device memory has"},
      {is_fabric && !is_vmm, "kind", kind, "is not that of its route, the fabric, which only VMM memory has"},
      {is_fabric != (handle.machine != 0), "route", route, "is wrong: it names a machine, or none, against it"},
      {handle.route == IpcRoute::kBroker && has_driver_handle, "route", route,
       "uses no handle of the driver, but it carries a legacy one"},
      {handle.route != IpcRoute::kBroker && !has_driver_handle, "route", route,
       "is one of the driver, but its driver handle is empty"},
      {handle.exporter.pid == 0 || handle.exporter.pid > INT32_MAX, "process id", handle.exporter.pid, "is not valid"},
      {all_zero(handle.token, sizeof handle.token), "allocation", handle.allocation,
       "cannot be had: its token is empty"},
      {handle.allocation_size == 0, "allocation size", 0, "must not be zero"},
      {handle.block_size == 0, "block size", 0, "must not be zero"},
      {handle.block_size > handle.allocation_size || handle.block_offset > handle.allocation_size - handle.block_size,
       "block size", handle.block_size, "reaches past its allocation"},
      {handle.offset < handle.block_offset || handle.offset - handle.block_offset >= handle.block_size, "offset",
       handle.offset, "lies outside its block"},
  };
  for (const auto &rule : rules)
    if (rule.is_broken)
      return fail(kInvalid, "import of a handle: its %s %" PRIu64 " %s", rule.field, rule.value, rule.trouble);
  return Status();
}

}  // namespace

void ipc_handle_encode(const IpcHandle &handle, gmm_ipc_handle *out) {
  IpcHandle sealed = handle;
  sealed.checksum = checksum_of(&sealed);
  std::memcpy(out->bytes, &sealed, sizeof sealed);
}

Status ipc_handle_decode(const gmm_ipc_handle &bytes, IpcHandle *out) {
  IpcHandle handle;
  std::memcpy(&handle, bytes.bytes, sizeof handle);
  if (handle.magic != IpcHandle::kMagic)
    return fail(kInvalid, "import of a handle: these bytes are not a handle of gmm (they start with %08x)",
                handle.magic);
  if (handle.version != IpcHandle::kVersion)
    return fail(
        kInvalid,
        "import of a handle: it has version %u, this library reads version %u; use the same release on both sides",
        handle.version, IpcHandle::kVersion);
  if (const uint32_t computed = checksum_of(&handle); handle.checksum != computed)
    return fail(kInvalid,
                "import of a handle: its checksum is %08x, but its bytes give %08x; it was damaged in transit",
                handle.checksum, computed);
  GMM_TRY(check_fields(handle));
  *out = handle;
  return Status();
}

uint64_t ipc_machine() {
  char text[64] = {};
  return machine_boot(text, sizeof text) ? hash_of_text(text) | 1 : 0;
}

}  // namespace gmm
