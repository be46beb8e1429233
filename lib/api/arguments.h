// SPDX-License-Identifier: Apache-2.0
// How the interface reads descriptors, fills output structs and checks the arguments that many functions take. The
// functions of api/ check and copy arguments and call the engine; they keep no state and take no lock.
#ifndef GMM_API_ARGUMENTS_H
#define GMM_API_ARGUMENTS_H

#include <gmm/gmm.h>

#include <cinttypes>
#include <cstring>

#include "engine/context/context.h"

namespace gmm {

inline gmm_result result_of(Status status) { return status.code(); }
// The same for a call that returns an address or a handle: that is NULL after a failure.
template <typename T>
gmm_result result_of(Status status, T **out) {
  if (!status.ok() && out != nullptr) *out = nullptr;
  return status.code();
}

// Copies a descriptor of any release into a zeroed one of this release. NULL: all defaults. The structs of release 0.1
// are the smallest that exist.
template <typename T>
Status read_descriptor(const T *in, const char *name, T *out) {
  std::memset(static_cast<void *>(out), 0, sizeof(T));
  out->struct_size = sizeof(T);
  if (in == nullptr) return Status();
  const uint32_t size = in->struct_size;
  if (size < sizeof(T))
    return fail(GMM_ERROR_INVALID_DESCRIPTOR, "%s.struct_size = %u is too small; set it to sizeof(%s), %zu here.", name,
                size, name, sizeof(T));
  const unsigned char *bytes = reinterpret_cast<const unsigned char *>(in);
  // A newer program may pass a larger struct, if it uses only the fields that this release knows. A size far above that
  // is garbage.
  if (size > sizeof(T) + 4096)
    return fail(GMM_ERROR_INVALID_DESCRIPTOR, "%s.struct_size = %u is too large for any release; set it to sizeof(%s).",
                name, size, name);
  for (uint32_t i = sizeof(T); i < size; ++i)
    if (bytes[i] != 0)
      return fail(GMM_ERROR_INVALID_DESCRIPTOR,
                  "%s.struct_size = %u: this release knows %zu bytes, and byte %u behind them is %u, not 0; clear it, "
                  "or use a newer gmm.",
                  name, size, sizeof(T), i, bytes[i]);
  std::memcpy(static_cast<void *>(out), in, sizeof(T));
  out->struct_size = sizeof(T);
  return Status();
}

inline Status check_zero(uint64_t value, const char *field) {
  if (value == 0) return Status();
  return fail(GMM_ERROR_INVALID_DESCRIPTOR, "%s = %" PRIu64 ": the field is reserved; set it to 0.", field, value);
}
inline Status check_flags(uint32_t flags, uint32_t known, const char *field) {
  if ((flags & ~known) == 0) return Status();
  return fail(GMM_ERROR_INVALID_FLAGS, "%s = 0x%x: this release does not know the bits 0x%x; clear them.", field, flags,
              flags & ~known);
}
inline Status check_not_null(const void *pointer, const char *function, const char *argument) {
  if (__builtin_expect(pointer != nullptr, 1)) return Status();
  return fail(GMM_ERROR_NULL_ARGUMENT, "%s: %s is NULL; pass a valid pointer.", function, argument);
}
inline Status check_device(const Context &context, gmm_device device) {
  if (__builtin_expect(context.valid_device(device), 1)) return Status();
  return fail(GMM_ERROR_INVALID_DEVICE, "Device %d does not exist: the %s backend has %u devices; ordinals start at 0.",
              device, context.core.backend->name(), context.device_count);
}
inline Status check_location(const Context &context, gmm_device location) {
  return location == GMM_DEVICE_HOST ? Status() : check_device(context, location);
}
inline Status check_tag(const Context &context, gmm_tag tag) {
  if (context.tags.get(tag) != nullptr) return Status();
  return fail(GMM_ERROR_INVALID_TAG, "Tag %u does not exist; create it with gmm_tag_create().", tag);
}

// Checks that the caller's output struct has room for this release's fields.
template <typename T>
Status check_output(const T *out, const char *name) {
  if (out == nullptr) return fail(GMM_ERROR_NULL_ARGUMENT, "%s: out is NULL; pass the address of a struct.", name);
  if (out->struct_size < sizeof(T) || out->struct_size > sizeof(T) + 4096)
    return fail(GMM_ERROR_INVALID_DESCRIPTOR, "%s.struct_size = %u; set it to sizeof(%s), %zu here, before the call.",
                name, out->struct_size, name, sizeof(T));
  return Status();
}
// Fills an output struct. struct_size stays the caller's, and fields that this release does not know become zero.
template <typename T>
void write_output(const T &value, T *out) {
  const uint32_t size = out->struct_size;
  std::memcpy(static_cast<void *>(out), &value, sizeof(T));
  std::memset(reinterpret_cast<unsigned char *>(out) + sizeof(T), 0, size - sizeof(T));
  out->struct_size = size;
}

// Reads the descriptor of an import and fills in the default timeout.
inline Status read_import(const Context &context, const gmm_ipc_import_desc *desc, gmm_ipc_import_desc *out) {
  constexpr uint64_t kDefaultTimeout = 5000;
  GMM_TRY(read_descriptor(desc, "gmm_ipc_import_desc", out));
  GMM_TRY(check_flags(out->flags, 0, "gmm_ipc_import_desc.flags"));
  GMM_TRY(check_zero(out->reserved, "gmm_ipc_import_desc.reserved"));
  GMM_TRY(check_device(context, out->device));
  if (out->timeout_ms == 0) out->timeout_ms = kDefaultTimeout;
  return Status();
}

// The device whose default stream is meant for work on an address, and a weight. The memory of a larger weight may be
// out of the reach of other devices, VMM memory most of all.
struct Place {
  Device device{0};
  uint32_t weight = 0;
};
inline Place place_of(const Context &context, const void *address) {
  const auto weigh = [](Kind kind) -> uint32_t { return kind == Kind::kVmm ? 3 : kind == Kind::kDevice ? 2 : 1; };
  Block block;
  if (find_block(context.core, address, &block))
    return Place{block.heap->options().device, weigh(block.heap->options().kind)};
  Range range;
  if (context.ipc.imports.find(address, &range) || context.ipc.exports.find_own(address, &range))
    return Place{IpcImports::device(range), weigh(IpcImports::kind(range))};
  return Place{};
}
inline Device device_of(const Context &context, const void *address) { return place_of(context, address).device; }

Status check_scope(const Context &context, const gmm_scope_desc *in, gmm_scope_desc *out);

}  // namespace gmm
#endif
