// SPDX-License-Identifier: Apache-2.0
// The messages about published memory, between a process (kept.h) and the server (cli/serve/keeper.h).
//
// A connection carries one request and its answer, and then stands for one thing: a claim, the publisher or a reader.
// The server counts it until it ends. The descriptors of memory travel with the message that describes it. When a
// server has ended, the same request and descriptors give the memory to the next one.
//
// After the answer the server sends at most one thing: an answer with IPC_PEER_GONE where the name was withdrawn, or
// one byte and the end where a forced pause revoked the memory (Peer::state()).
#ifndef GMM_ENGINE_IPC_KEEP_MESSAGES_H
#define GMM_ENGINE_IPC_KEEP_MESSAGES_H

#include "base/utf8.h"
#include "engine/ipc/protocol.h"
#include "engine/lease/messages.h"

namespace gmm {

inline constexpr uint64_t kKeptNameSize = 64;
inline bool is_kept_name(const char *name) {
  const uint64_t length = strnlen(name, kKeptNameSize);
  return length != 0 && length < kKeptNameSize && utf8_prefix(name, length) == length;
}

// Published memory: a block over whole extents.
struct KeptMemory {
  uint64_t generation = 0;
  uint64_t base = 0;  // of the extents, in the publisher
  uint64_t size = 0;  // of all extents
  uint64_t block_offset = 0, block_size = 0;
  LeaseUuid device;
  uint32_t backend = 0;
  uint32_t extents = 0;
  int32_t process = 0;  // of the publisher
  uint32_t readers = 0;
  uint64_t sizes[kIpcMaxExtents] = {};

  bool is_valid() const {
    if (extents == 0 || extents > kIpcMaxExtents || base % kExtentAlignment != 0) return false;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < extents; ++i) {
      if (sizes[i] == 0 || sizes[i] % kExtentAlignment != 0 || sizes[i] > kLeaseMostBytes) return false;
      sum += sizes[i];
    }
    return sum == size && base <= UINT64_MAX - size && block_size != 0 && block_size <= size &&
           block_offset <= size - block_size;
  }
};

enum class KeepVerb : uint32_t {
  kList = 1,   // the entry `index`
  kAttach,     // waits for the name
  kClaim,      // as kAttach; gives the claim where nobody has it
  kPublish,    // with memory
  kUnpublish,  // any process
  kRevoke,     // the publisher's second request, without an answer: a forced pause took the pages
  // To another server than the one before.
  kRestoreClaim,
  kRestorePublisher,  // with memory
  kRestoreReader,     // with memory
};

struct KeepRequest {
  ServeHeader header{ServeKind::kKeepRequest};
  KeepVerb verb = KeepVerb::kList;
  uint32_t reserved = 0;
  uint64_t client = 0;  // a context: it may publish where it has the claim
  uint64_t index = 0;   // of kAttach and kClaim: the generation; 0: any
  char name[kKeptNameSize] = {};
  KeptMemory memory;

  bool brings_memory() const {
    return verb == KeepVerb::kPublish || verb == KeepVerb::kRestorePublisher || verb == KeepVerb::kRestoreReader;
  }
};

struct KeepAnswer {
  ServeHeader header{ServeKind::kKeepAnswer};
  int32_t result = GMM_OK;  // gmm_result; UNCHANGED of kClaim: the client has the claim
  uint32_t reserved = 0;
  uint64_t count = 0;  // of kList
  char name[kKeptNameSize] = {};
  KeptMemory memory;
};

}  // namespace gmm
#endif
