// SPDX-License-Identifier: Apache-2.0
// How the interface reads descriptors, fills output structs and checks the arguments that many functions take. The
// functions of api/ check and copy arguments and call the engine; they keep no state and take no lock.
#ifndef GMM_API_ARGUMENTS_H
#define GMM_API_ARGUMENTS_H

#include <gmm/gmm.h>

#include <cinttypes>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "api/structs.h"
#include "engine/context/context.h"

namespace gmm {

// --- Structs that grow ----------------------------------------------------------------------------------------------
// A struct of another release begins like this release's. An older one lacks fields at the end, which have their
// defaults. A newer one is served where its further fields are zero.

struct GrowingStruct {
  static constexpr uint32_t kMaximum = 4096;  // bytes; no release needs as many

  const char *name;
  uint32_t minimum;  // bytes in the release that brought it
  uint32_t size;     // bytes here
};
// The row of the table in api/structs.h.
template <typename T>
struct GrowingStructOf;
#define GMM_GROWING_STRUCT(type, bytes)                                                         \
  template <>                                                                                   \
  struct GrowingStructOf<type> {                                                                \
    static constexpr GrowingStruct kRow = {#type, bytes, sizeof(type)};                         \
    static_assert(bytes % 8 == 0 && sizeof(type) % 8 == 0 && offsetof(type, struct_size) == 0); \
    static_assert(bytes <= sizeof(type) && sizeof(type) <= GrowingStruct::kMaximum);            \
  };
GMM_GROWING_STRUCTS(GMM_GROWING_STRUCT)
#undef GMM_GROWING_STRUCT

// The functions below call these for a struct of another release, or for none.
Status read_other_release(const GrowingStruct &type, const void *in, void *out);
bool has_first_fields_only(const GrowingStruct &type, const void *in, uint32_t size);
Status check_other_release(const GrowingStruct &type, const void *out, uint32_t *size);
void fill_other_release(const GrowingStruct &type, const void *value, uint32_t size, void *out);

inline uint64_t struct_word(const void *in, uint32_t offset) {
  uint64_t word;
  std::memcpy(&word, static_cast<const char *>(in) + offset, sizeof word);
  return word;
}

// Copies a descriptor of any release into a zeroed one of this release. NULL: all defaults.
template <typename T>
Status read_descriptor(const T *in, T *out) {
  if (in == nullptr || in->struct_size != sizeof(T)) return read_other_release(GrowingStructOf<T>::kRow, in, out);
  *out = *in;
  return Status();
}
// Outlined with one argument, because more of them cost the fast path 3 instructions.
template <typename T>
__attribute__((noinline, cold)) bool other_release_has_first_fields_only(const T &in) {
  return has_first_fields_only(GrowingStructOf<T>::kRow, &in, in.struct_size);
}
// Whether a descriptor of any release sets no field that came after its first release. For fast paths, which serve the
// first fields only; a wrong size is for read_descriptor() to explain.
template <typename T>
inline bool has_first_fields_only(const T &in) {
  if (__builtin_expect(in.struct_size != sizeof(T), 0)) return other_release_has_first_fields_only(in);
  uint64_t rest = 0;
  for (uint32_t offset = GrowingStructOf<T>::kRow.minimum; offset < sizeof(T); offset += 8)
    rest |= struct_word(&in, offset);
  return rest == 0;
}

// Checks the size of the caller's output struct and returns it for fill_output().
template <typename T>
Status check_output(const T *out, uint32_t *size) {
  if (__builtin_expect(out != nullptr && (*size = out->struct_size) == sizeof(T), 1)) return Status();
  return check_other_release(GrowingStructOf<T>::kRow, out, size);
}
// Fills an output struct as far as it reaches. struct_size stays the caller's, and fields that this release does not
// know become zero.
template <typename T>
void fill_output(const T &value, uint32_t size, T *out) {
  if (__builtin_expect(size != sizeof(T), 0)) return fill_other_release(GrowingStructOf<T>::kRow, &value, size, out);
  *out = value;
  out->struct_size = size;
}

// --- Arguments that many functions take -----------------------------------------------------------------------------

inline Status check_reserved(uint64_t value, const char *type) {
  if (value == 0) return Status();
  return fail(GMM_ERROR_INVALID_DESCRIPTOR, "%s.reserved = %" PRIu64 ": the field is reserved; set it to 0.", type,
              value);
}
inline Status check_flags(uint32_t flags, uint32_t known, const char *whose, const char *field = ".flags") {
  if ((flags & ~known) == 0) return Status();
  return fail(GMM_ERROR_INVALID_FLAGS, "%s%s = 0x%x: this release does not know the bits 0x%x; clear them.", whose,
              field, flags, flags & ~known);
}
// read_descriptor(), with a check of the flags and of the reserved field.
template <typename T>
Status read_checked(const T *in, uint32_t known_flags, T *out) {
  GMM_TRY(read_descriptor(in, out));
  GMM_TRY(check_flags(out->flags, known_flags, GrowingStructOf<T>::kRow.name));
  if constexpr (requires { out->reserved; }) GMM_TRY(check_reserved(out->reserved, GrowingStructOf<T>::kRow.name));
  return Status();
}
inline Status check_not_null(const void *pointer, const char *function, const char *argument) {
  if (__builtin_expect(pointer != nullptr, 1)) return Status();
  return fail(GMM_ERROR_NULL_ARGUMENT, "%s: %s is NULL; pass a valid pointer.", function, argument);
}
template <typename Fn>
Status check_function(Fn *fn, const char *function) {
  return fn != nullptr ? Status() : fail(GMM_ERROR_NULL_ARGUMENT, "%s: fn is NULL; pass a function.", function);
}
// A live handle of the library, in a live context.
inline Status check_handle(const gmm_context *context) { return Context::check(context); }
inline const Context *context_of(const Context *context) { return context; }
inline const Context *context_of(const Context &context) { return &context; }
template <typename T>
Status check_handle(const T *handle) {
  const char *name = T::kHandleName;
  if (handle == nullptr) return fail(GMM_ERROR_NULL_ARGUMENT, "gmm_%s: %s is NULL; pass a valid pointer.", name, name);
  if (handle->magic != T::kMagic)
    return fail(GMM_ERROR_INVALID_HANDLE, "%p is no %s, or was destroyed; pass a live one.",
                static_cast<const void *>(handle), name);
  return Context::check(context_of(handle->context));
}
inline Status check_device(const Context &context, gmm_device device) {
  if (__builtin_expect(context.valid_device(device), 1)) return Status();
  return fail(GMM_ERROR_INVALID_DEVICE, "Device %d does not exist: the %s backend has %u devices; ordinals start at 0.",
              device, context.core().backend->name(), context.device_count());
}
inline Status check_location(const Context &context, gmm_device location) {
  return location == GMM_DEVICE_HOST ? Status() : check_device(context, location);
}
// Where a block may move to. The engine asks whether the block's device has nodes.
inline Status check_move_location(const Context &context, gmm_device location) {
  constexpr int32_t kMostNodes = 1024;  // Linux has no more
  const int32_t node = Device{location}.numa_node();
  return node >= 0 && node < kMostNodes ? Status() : check_location(context, location);
}
inline Status check_tag(const Context &context, gmm_tag tag) {
  return context.tags().get(tag) != nullptr ? Status() : TagTable::unknown(tag);
}

// Reads the descriptor of an import and fills in the default timeout.
inline Status read_import(const Context &context, const gmm_ipc_import_desc *desc, gmm_ipc_import_desc *out) {
  constexpr uint64_t kDefaultTimeout = 5000;
  GMM_TRY(read_checked(desc, 0, out));
  GMM_TRY(check_device(context, out->device));
  if (out->timeout_ms == 0) out->timeout_ms = kDefaultTimeout;
  return Status();
}

// --- Calls behind a handle ------------------------------------------------------------------------------------------
// fn() checks the other arguments and calls the engine; it returns a Status, or nothing.

template <typename Fn, typename... Arguments>
Status status_of(Fn fn, Arguments... arguments) {
  if constexpr (std::is_void_v<decltype(fn(arguments...))>) {
    fn(arguments...);
    return Status();
  } else {
    return fn(arguments...);
  }
}
template <typename T, typename Fn>
gmm_result call(const T *handle, Fn fn) {
  Status status = check_handle(handle);
  if (status.ok()) status = status_of(fn);
  return status.code();
}
// NULL is no handle to destroy.
template <typename T, typename Fn>
gmm_result destroy(const T *handle, Fn fn) {
  return handle == nullptr ? gmm_result{GMM_OK} : call(handle, fn);
}
// fn() makes *out, which is NULL after a failure. function NULL: `out` may be NULL.
template <typename T, typename Out, typename Fn>
gmm_result make(const T *handle, const char *function, Out **out, Fn fn) {
  Status status = check_handle(handle);
  if (status.ok() && function != nullptr) status = check_not_null(out, function, "out");
  if (status.ok()) status = fn();
  return result_of(status, out);
}
// fn(uint64_t *) counts bytes, which the caller learns after a success unless `bytes` is NULL.
template <typename T, typename Fn>
gmm_result count(const T *handle, uint64_t *bytes, Fn fn) {
  uint64_t counted = 0;
  Status status = check_handle(handle);
  if (status.ok()) status = fn(&counted);
  if (status.ok() && bytes != nullptr) *bytes = counted;
  return status.code();
}
// query(Info *) fills a zeroed struct, from which the caller's is filled as far as it reaches.
template <typename T, typename Info, typename Fn>
gmm_result answer(const T *handle, Info *out, Fn query) {
  uint32_t size = 0;
  Info info = {};
  Status status = check_handle(handle);
  if (status.ok()) status = check_output(out, &size);
  if (status.ok()) status = status_of(query, &info);
  if (status.ok()) fill_output(info, size, out);
  return status.code();
}

// A name that is a part of keys and of file names.
Status check_plain_name(const char *name, const char *field, const char *whose);

Status check_scope(const Context &context, const gmm_scope_desc *in, gmm_scope_desc *out);

}  // namespace gmm
#endif
