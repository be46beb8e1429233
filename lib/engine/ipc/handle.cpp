// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/handle.h"

#include <cinttypes>
#include <cstring>

#include "base/bytes.h"

namespace gmm {
namespace {

constexpr uint32_t kHandleMagic = 0x496d6d67;  // "gmmI"
constexpr uint16_t kHandleVersion = 1;

constexpr unsigned kAtMagic = 0, kAtVersion = 4, kAtRoute = 6, kAtKind = 7, kAtDevice = 8, kAtSerial = 12, kAtUuid = 16,
                   kAtPid = 32, kAtReserved1 = 36, kAtStartTime = 40, kAtToken = 48, kAtAllocation = 64,
                   kAtAllocationSize = 72, kAtOffset = 80, kAtBlockSize = 88, kAtGeneration = 96, kAtLegacy = 104,
                   kAtBlockOffset = 168, kAtNamespace = 176, kAtMachine = 184, kAtReserved2 = 192, kAtChecksum = 252;

constexpr uint8_t kEventKind = 5;
static_assert(kAtChecksum + 4 == sizeof(gmm_ipc_handle));

constexpr gmm_result kInvalid = GMM_ERROR_IPC_INVALID_HANDLE;

Status check_place(const IpcHandle &handle) {
  if (handle.allocation_size == 0) return fail(kInvalid, "import of a handle: the size of its allocation is zero");
  if (handle.block_size == 0) return fail(kInvalid, "import of a handle: the size of its block is zero");
  if (handle.block_size > handle.allocation_size || handle.block_offset > handle.allocation_size - handle.block_size)
    return fail(kInvalid,
                "import of a handle: its block (%" PRIu64 " bytes at offset %" PRIu64
                ") reaches past its allocation of %" PRIu64 " bytes",
                handle.block_size, handle.block_offset, handle.allocation_size);
  if (handle.offset < handle.block_offset || handle.offset - handle.block_offset >= handle.block_size)
    return fail(kInvalid,
                "import of a handle: its offset %" PRIu64 " lies outside its block (%" PRIu64
                " bytes at offset %" PRIu64 ")",
                handle.offset, handle.block_size, handle.block_offset);
  return Status();
}

Status check_origin(const IpcHandle &handle) {
  if (!handle.event && handle.kind != Kind::kDevice && handle.kind != Kind::kVmm && handle.kind != Kind::kHost)
    return fail(kInvalid, "import of a handle: its kind %u is not one that can be shared",
                static_cast<unsigned>(handle.kind));
  if (handle.route != IpcRoute::kBroker && handle.route != IpcRoute::kLegacy && handle.route != IpcRoute::kFabric)
    return fail(kInvalid, "import of a handle: its route %u is unknown", static_cast<unsigned>(handle.route));
  if (handle.route == IpcRoute::kLegacy && handle.kind != Kind::kDevice && !handle.event)
    return fail(
        kInvalid,
        "import of a handle: its route is the driver's legacy one, which only device memory has, but its kind is %u",
        static_cast<unsigned>(handle.kind));
  if (handle.route == IpcRoute::kFabric && (handle.kind != Kind::kVmm || handle.event))
    return fail(kInvalid, "import of a handle: its route is the fabric, which only VMM memory has, but its kind is %u",
                static_cast<unsigned>(handle.kind));
  if ((handle.route == IpcRoute::kFabric) != (handle.machine != 0))
    return fail(kInvalid, "import of a handle: it names a machine, or none, against its route");
  const bool no_legacy = all_zero(handle.legacy, sizeof handle.legacy);
  if (handle.route == IpcRoute::kBroker && !no_legacy)
    return fail(kInvalid, "import of a handle: it carries a legacy driver handle, which its route does not use");
  if (handle.route != IpcRoute::kBroker && no_legacy)
    return fail(kInvalid, "import of a handle: its route is one of the driver, but its driver handle is empty");
  if (handle.device.ordinal < GMM_DEVICE_HOST ||
      ((handle.event || handle.kind == Kind::kDevice) && handle.device.is_host()))
    return fail(kInvalid, "import of a handle: its device %d is not valid for its kind", handle.device.ordinal);
  if (handle.exporter.pid == 0 || handle.exporter.pid > INT32_MAX)
    return fail(kInvalid, "import of a handle: its process id %" PRIu32 " is not valid", handle.exporter.pid);
  if (all_zero(handle.token, sizeof handle.token)) return fail(kInvalid, "import of a handle: its token is empty");
  return Status();
}

}  // namespace

void ipc_handle_encode(const IpcHandle &handle, gmm_ipc_handle *out) {
  uint8_t *bytes = out->bytes;
  std::memset(bytes, 0, sizeof out->bytes);
  store_little(bytes + kAtMagic, kHandleMagic);
  store_little(bytes + kAtVersion, kHandleVersion);
  bytes[kAtRoute] = static_cast<uint8_t>(handle.route);
  bytes[kAtKind] = handle.event ? kEventKind : static_cast<uint8_t>(handle.kind);
  store_little(bytes + kAtDevice, static_cast<uint32_t>(handle.device.ordinal));
  store_little(bytes + kAtSerial, handle.exporter.serial);
  std::memcpy(bytes + kAtUuid, handle.device_uuid, sizeof handle.device_uuid);
  store_little(bytes + kAtPid, handle.exporter.pid);
  store_little(bytes + kAtStartTime, handle.exporter.start_time);
  std::memcpy(bytes + kAtToken, handle.token, sizeof handle.token);
  store_little(bytes + kAtAllocation, handle.allocation);
  store_little(bytes + kAtAllocationSize, handle.allocation_size);
  store_little(bytes + kAtOffset, handle.offset);
  store_little(bytes + kAtBlockSize, handle.block_size);
  store_little(bytes + kAtGeneration, handle.generation);
  std::memcpy(bytes + kAtLegacy, handle.legacy, sizeof handle.legacy);
  store_little(bytes + kAtBlockOffset, handle.block_offset);
  store_little(bytes + kAtNamespace, handle.exporter.pid_namespace);
  store_little(bytes + kAtMachine, handle.machine);
  store_little(bytes + kAtChecksum, crc32c(bytes, kAtChecksum));
}

Status ipc_handle_decode(const gmm_ipc_handle &in, IpcHandle *out) {
  const uint8_t *bytes = in.bytes;
  if (load_little<uint32_t>(bytes + kAtMagic) != kHandleMagic)
    return fail(kInvalid,
                "import of a handle: these bytes are not a handle of gmm (they start with %02x %02x %02x %02x)",
                bytes[0], bytes[1], bytes[2], bytes[3]);
  const uint16_t version = load_little<uint16_t>(bytes + kAtVersion);
  if (version != kHandleVersion)
    return fail(
        kInvalid,
        "import of a handle: it has version %u, this library reads version %u; use the same release on both sides",
        version, kHandleVersion);
  const uint32_t checksum = load_little<uint32_t>(bytes + kAtChecksum);
  const uint32_t computed = crc32c(bytes, kAtChecksum);
  if (checksum != computed)
    return fail(kInvalid,
                "import of a handle: its checksum is %08x, but its bytes give %08x; it was damaged in transit",
                checksum, computed);
  if (!all_zero(bytes + kAtReserved1, 4) || !all_zero(bytes + kAtReserved2, kAtChecksum - kAtReserved2))
    return fail(kInvalid, "import of a handle: its reserved bytes are not zero");

  IpcHandle handle;
  handle.route = static_cast<IpcRoute>(bytes[kAtRoute]);
  handle.event = bytes[kAtKind] == kEventKind;
  handle.kind = handle.event ? Kind::kUnspecified : static_cast<Kind>(bytes[kAtKind]);
  handle.device.ordinal = static_cast<int32_t>(load_little<uint32_t>(bytes + kAtDevice));
  std::memcpy(handle.device_uuid, bytes + kAtUuid, sizeof handle.device_uuid);
  handle.exporter.pid = load_little<uint32_t>(bytes + kAtPid);
  handle.exporter.serial = load_little<uint32_t>(bytes + kAtSerial);
  handle.exporter.pid_namespace = load_little<uint64_t>(bytes + kAtNamespace);
  handle.machine = load_little<uint64_t>(bytes + kAtMachine);
  handle.exporter.start_time = load_little<uint64_t>(bytes + kAtStartTime);
  std::memcpy(handle.token, bytes + kAtToken, sizeof handle.token);
  handle.allocation = load_little<uint64_t>(bytes + kAtAllocation);
  handle.allocation_size = load_little<uint64_t>(bytes + kAtAllocationSize);
  handle.offset = load_little<uint64_t>(bytes + kAtOffset);
  handle.block_offset = load_little<uint64_t>(bytes + kAtBlockOffset);
  handle.block_size = load_little<uint64_t>(bytes + kAtBlockSize);
  handle.generation = load_little<uint64_t>(bytes + kAtGeneration);
  std::memcpy(handle.legacy, bytes + kAtLegacy, sizeof handle.legacy);
  GMM_TRY(check_origin(handle));
  GMM_TRY(check_place(handle));
  *out = handle;
  return Status();
}

}  // namespace gmm
