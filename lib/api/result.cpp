// SPDX-License-Identifier: Apache-2.0
// The names and texts of results, and the version.
#include <gmm/gmm.h>

#include "base/status.h"

namespace {

struct Entry {
  gmm_result result;
  const char *name;
  const char *text;
};

#define GMM_ENTRY(result, text) \
  { result, #result, text }
constexpr Entry kEntries[] = {
    GMM_ENTRY(GMM_OK, "Success."),
    GMM_ENTRY(GMM_UNCHANGED, "Success: the state was already as requested, so the call changed nothing."),
    GMM_ENTRY(GMM_ERROR_NULL_ARGUMENT, "A required argument is NULL."),
    GMM_ENTRY(GMM_ERROR_INVALID_SIZE, "A size is zero where bytes are needed, or reaches past the memory."),
    GMM_ENTRY(GMM_ERROR_SIZE_OVERFLOW, "A size is beyond what any backend can address."),
    GMM_ENTRY(GMM_ERROR_INVALID_ALIGNMENT,
              "An alignment is not a power of two or too large, or an address is not aligned."),
    GMM_ENTRY(GMM_ERROR_INVALID_KIND, "The memory kind is unknown, or the operation does not take it."),
    GMM_ENTRY(GMM_ERROR_INVALID_DEVICE, "The device does not exist."),
    GMM_ENTRY(GMM_ERROR_INVALID_TAG, "The tag does not exist."),
    GMM_ENTRY(GMM_ERROR_INVALID_FLAGS, "Flags are unknown or exclude each other."),
    GMM_ENTRY(GMM_ERROR_INVALID_DESCRIPTOR,
              "A struct_size is the size of no release, or a reserved field is not zero."),
    GMM_ENTRY(GMM_ERROR_INVALID_VALUE, "An argument is out of its range."),
    GMM_ENTRY(GMM_ERROR_INVALID_HANDLE, "The handle is not a context, heap, stream or event, or no longer one."),
    GMM_ENTRY(GMM_ERROR_UNKNOWN_POINTER, "This context did not return the address."),
    GMM_ENTRY(GMM_ERROR_ALREADY_FREED, "The block was freed before."),
    GMM_ENTRY(GMM_ERROR_INTERIOR_POINTER, "The address lies inside a block where its start is required."),
    GMM_ENTRY(GMM_ERROR_OVERLAP, "The range overlaps one that is pinned differently."),
    GMM_ENTRY(GMM_ERROR_NOT_PINNED, "No pin starts at this address."),
    GMM_ENTRY(GMM_ERROR_UNBALANCED, "A pop, end or close comes without a push, begin or import."),
    GMM_ENTRY(GMM_ERROR_OUT_OF_MEMORY, "The device has too little memory, even after a trim."),
    GMM_ENTRY(GMM_ERROR_OUT_OF_HOST_MEMORY, "The host has too little memory for data or bookkeeping."),
    GMM_ENTRY(GMM_ERROR_LIMIT_EXCEEDED, "The call would exceed a limit."),
    GMM_ENTRY(GMM_ERROR_PAUSED, "The memory is paused."),
    GMM_ENTRY(GMM_ERROR_BUSY, "Live blocks, importers or pins use what the call would change."),
    GMM_ENTRY(GMM_ERROR_CAPTURING, "The driver forbids it while a stream is captured into a graph."),
    GMM_ENTRY(GMM_ERROR_NOT_SUPPORTED, "This backend, device, kind or older library cannot do it."),
    GMM_ENTRY(GMM_ERROR_NO_BACKEND, "The requested backend has no driver or no device here."),
    GMM_ENTRY(GMM_ERROR_FORKED, "The context belongs to the parent process."),
    GMM_ENTRY(GMM_ERROR_CANCELLED, "The program cancelled the operation, which was undone."),
    GMM_ENTRY(GMM_ERROR_OFFERED, "Another lease of the context offers the tag."),
    GMM_ENTRY(GMM_ERROR_DRIVER, "The driver refused a call."),
    GMM_ENTRY(GMM_ERROR_SYSTEM, "The operating system refused a call."),
    GMM_ENTRY(GMM_ERROR_IO, "A file could not be written or read completely."),
    GMM_ENTRY(GMM_ERROR_CORRUPT, "The checksum of a backup differs from the one at its save."),
    GMM_ENTRY(GMM_ERROR_IPC_INVALID_HANDLE, "The bytes are no handle of gmm, or one of another version."),
    GMM_ENTRY(GMM_ERROR_IPC_PEER_GONE, "The exporting process ended, or freed the memory."),
    GMM_ENTRY(GMM_ERROR_IPC_REFUSED, "The exporter refused: a user that it did not name, or a wrong token."),
    GMM_ENTRY(GMM_ERROR_IPC_TIMEOUT, "The exporter did not answer in time."),
    GMM_ENTRY(GMM_ERROR_IPC_REVOKED, "The exporter revoked the memory."),
    GMM_ENTRY(GMM_ERROR_NOT_READY, "The operation has not finished, or the call would have to wait for its result."),
};
#undef GMM_ENTRY

const Entry *find(gmm_result result) {
  for (const Entry &entry : kEntries)
    if (entry.result == result) return &entry;
  return nullptr;
}

}  // namespace

#define GMM_TEXT_OF(number) #number
#define GMM_VERSION_TEXT(major, minor, patch) GMM_TEXT_OF(major) "." GMM_TEXT_OF(minor) "." GMM_TEXT_OF(patch)

uint32_t gmm_version(void) noexcept { return GMM_VERSION; }
const char *gmm_version_string(void) noexcept {
  return GMM_VERSION_TEXT(GMM_VERSION_MAJOR, GMM_VERSION_MINOR, GMM_VERSION_PATCH) GMM_VERSION_SUFFIX;
}

const char *gmm_result_name(gmm_result result) noexcept {
  const Entry *entry = find(result);
  return entry == nullptr ? "GMM_ERROR_UNKNOWN" : entry->name;
}
const char *gmm_result_text(gmm_result result) noexcept {
  const Entry *entry = find(result);
  return entry == nullptr ? "This release does not know the result." : entry->text;
}
const char *gmm_last_error_message(void) noexcept { return gmm::last_message(); }
int32_t gmm_last_native_code(void) noexcept { return gmm::last_native(); }
