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

constexpr uint8_t kEventKind = 5;

// Version 1. Other releases and machines read it, so it does not change.
struct HandleBytes {
  static constexpr uint32_t kMagic = 0x496d6d67;  // "gmmI"
  static constexpr uint16_t kVersion = 1;
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint8_t route = 0;
  uint8_t kind = 0;  // a Kind, or kEventKind
  int32_t device = 0;
  uint32_t serial = 0;
  uint8_t uuid[16] = {};
  uint32_t pid = 0;
  uint32_t reserved1 = 0;
  uint64_t start_time = 0;
  uint8_t token[kIpcTokenSize] = {};
  uint64_t allocation = 0, allocation_size = 0, offset = 0, block_size = 0, generation = 0;
  uint8_t legacy[kLegacyHandleSize] = {};
  uint64_t block_offset = 0, pid_namespace = 0, machine = 0;
  uint8_t reserved2[60] = {};
  uint32_t checksum = 0;  // CRC-32C of the bytes before
};
static_assert(sizeof(HandleBytes) == sizeof(gmm_ipc_handle) && offsetof(HandleBytes, legacy) == 104 &&
              offsetof(HandleBytes, machine) == 184 && offsetof(HandleBytes, checksum) == 252);

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
  HandleBytes bytes;
  bytes.route = static_cast<uint8_t>(handle.route);
  bytes.kind = handle.event ? kEventKind : static_cast<uint8_t>(handle.kind);
  bytes.device = handle.device.ordinal;
  bytes.serial = handle.exporter.serial;
  std::memcpy(bytes.uuid, handle.device_uuid, sizeof bytes.uuid);
  bytes.pid = handle.exporter.pid;
  bytes.start_time = handle.exporter.start_time;
  std::memcpy(bytes.token, handle.token, sizeof bytes.token);
  bytes.allocation = handle.allocation;
  bytes.allocation_size = handle.allocation_size;
  bytes.offset = handle.offset;
  bytes.block_size = handle.block_size;
  bytes.generation = handle.generation;
  std::memcpy(bytes.legacy, handle.legacy, sizeof bytes.legacy);
  bytes.block_offset = handle.block_offset;
  bytes.pid_namespace = handle.exporter.pid_namespace;
  bytes.machine = handle.machine;
  bytes.checksum = crc32c(reinterpret_cast<const uint8_t *>(&bytes), offsetof(HandleBytes, checksum));
  std::memcpy(out->bytes, &bytes, sizeof bytes);
}

Status ipc_handle_decode(const gmm_ipc_handle &in, IpcHandle *out) {
  HandleBytes bytes;
  std::memcpy(&bytes, in.bytes, sizeof bytes);
  if (bytes.magic != HandleBytes::kMagic)
    return fail(kInvalid,
                "import of a handle: these bytes are not a handle of gmm (they start with %02x %02x %02x %02x)",
                in.bytes[0], in.bytes[1], in.bytes[2], in.bytes[3]);
  if (bytes.version != HandleBytes::kVersion)
    return fail(
        kInvalid,
        "import of a handle: it has version %u, this library reads version %u; use the same release on both sides",
        bytes.version, HandleBytes::kVersion);
  if (const uint32_t computed = crc32c(in.bytes, offsetof(HandleBytes, checksum)); bytes.checksum != computed)
    return fail(kInvalid,
                "import of a handle: its checksum is %08x, but its bytes give %08x; it was damaged in transit",
                bytes.checksum, computed);
  if (bytes.reserved1 != 0 || !all_zero(bytes.reserved2, sizeof bytes.reserved2))
    return fail(kInvalid, "import of a handle: its reserved bytes are not zero");

  IpcHandle handle;
  handle.route = static_cast<IpcRoute>(bytes.route);
  handle.event = bytes.kind == kEventKind;
  handle.kind = handle.event ? Kind::kUnspecified : static_cast<Kind>(bytes.kind);
  handle.device.ordinal = bytes.device;
  std::memcpy(handle.device_uuid, bytes.uuid, sizeof handle.device_uuid);
  handle.exporter = {bytes.pid, bytes.serial, bytes.start_time, bytes.pid_namespace};
  std::memcpy(handle.token, bytes.token, sizeof handle.token);
  handle.allocation = bytes.allocation;
  handle.allocation_size = bytes.allocation_size;
  handle.offset = bytes.offset;
  handle.block_offset = bytes.block_offset;
  handle.block_size = bytes.block_size;
  handle.generation = bytes.generation;
  std::memcpy(handle.legacy, bytes.legacy, sizeof handle.legacy);
  handle.machine = bytes.machine;
  GMM_TRY(check_origin(handle));
  GMM_TRY(check_place(handle));
  *out = handle;
  return Status();
}

uint64_t ipc_machine() {
  char text[64] = {};
  return machine_boot(text, sizeof text) ? hash_of_text(text) | 1 : 0;
}

}  // namespace gmm
