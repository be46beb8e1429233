// SPDX-License-Identifier: Apache-2.0
// The messages between a process and the server of the machine. Both run on one machine, so the structs are the bytes.
//
// A member of leases sends reports and gets commands (README.md). A question is answered once.
#ifndef GMM_ENGINE_LEASE_MESSAGES_H
#define GMM_ENGINE_LEASE_MESSAGES_H

#include <gmm/lease.h>

#include <cstdint>
#include <cstring>

namespace gmm {

inline constexpr char kServeSocket[] = "serve.sock";  // in the directory of ipc/directory.h
inline constexpr uint32_t kLeaseDevices = 16;         // of one member
inline constexpr uint32_t kLeaseNameSize = 64;
inline constexpr uint64_t kLeaseMostBytes = uint64_t{1} << 56;  // of a field of a row; so sums do not wrap

enum class ServeKind : uint8_t {
  kLeaseReport = 1,
  kLeaseCommand,
  kLeaseQuestion,
  kLeaseEntry,
  kKeepRequest,  // ipc/keep_messages.h
  kKeepAnswer,
};

// Every message begins with it. Another service of the server gets kinds of its own.
struct ServeHeader {
  static constexpr uint32_t kMagic = 0x536d6d67;  // "gmmS"
  static constexpr uint16_t kVersion = 1;
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  ServeKind kind;
  uint8_t reserved = 0;
  explicit constexpr ServeHeader(ServeKind of) : kind(of) {}
  bool is(ServeKind wanted) const { return magic == kMagic && version == kVersion && kind == wanted; }
};

struct LeaseUuid {
  uint8_t bytes[16] = {};
  bool operator==(const LeaseUuid &other) const { return std::memcmp(bytes, other.bytes, sizeof bytes) == 0; }
};

enum class LeaseState : uint32_t { kIdle, kWaiting, kTaking, kInUse };
constexpr gmm_lease_state public_state(LeaseState state) {
  if (state == LeaseState::kIdle) return GMM_LEASE_IDLE;
  return state == LeaseState::kInUse ? GMM_LEASE_IN_USE : GMM_LEASE_WAITING;
}

// The bytes of a device, as a member reports them.
struct LeaseRow {
  LeaseUuid device;
  uint64_t free = 0;     // by the member's own driver
  uint64_t held = 0;     // by its context
  uint64_t floor = 0;    // is left to it
  uint64_t offered = 0;  // pages of offered tags
  uint64_t wanted = 0;   // by its request
  uint64_t granted = 0;  // and not taken yet
};

// The state of a member. Times are ages, as clocks of processes need not agree.
struct LeaseReport {
  ServeHeader header{ServeKind::kLeaseReport};
  uint64_t number = 0;
  uint64_t identity = 0;              // of the lease
  uint64_t request = 0, attempt = 0;  // the request's number, and how often its bytes have changed
  uint64_t round = 0;                 // the last round that the member saw before it measured
  uint64_t gave = 0;                  // the last command to give up that it carried out or refused
  uint64_t state_ms = 0;              // the age of the state; of a waiting one: of the request
  uint64_t grant_ms = 0;              // since its last grant
  uint64_t residency_ms = 0;          // after a grant
  LeaseState state = LeaseState::kIdle;
  int32_t priority = 0;
  uint32_t cost = 0;     // the least of its offers
  uint32_t devices = 0;  // rows
  char name[kLeaseNameSize] = {};
  LeaseRow rows[kLeaseDevices] = {};
  uint64_t former = 0;  // the last server whose commands it got; 0: none
};

enum class LeaseAnswer : uint32_t { kNone, kGranted, kDenied };

// The server's decisions about a member.
struct LeaseCommand {
  struct Row {
    LeaseUuid device;
    uint64_t give = 0;
  };
  ServeHeader header{ServeKind::kLeaseCommand};
  uint64_t number = 0;
  uint64_t server = 0;                // a later one has a greater number
  uint64_t round = 0;                 // reports older than it are stale
  uint64_t request = 0, attempt = 0;  // what `answer` is about
  uint64_t give = 0;                  // number of the command to give up `rows`; 0: none
  uint64_t ask = 0;                   // how often the member in use was asked to return; the last time for:
  gmm_lease_ask asked = {};
  LeaseAnswer answer = LeaseAnswer::kNone;
  uint32_t devices = 0;
  char text[448] = {};  // who holds what its request waits for, or why it is denied
  Row rows[kLeaseDevices] = {};

  bool answers(uint64_t to_request, uint64_t to_attempt) const {
    return answer != LeaseAnswer::kNone && request == to_request && attempt == to_attempt;
  }
};

// Asks for one entry of the list of all leases: a lease, and one of its devices.
struct LeaseQuestion {
  ServeHeader header{ServeKind::kLeaseQuestion};
  uint64_t index = 0;
};
struct LeaseEntry {
  ServeHeader header{ServeKind::kLeaseEntry};
  gmm_lease_entry_info info = {};  // an index from `entry_count` on has only the server's fields
};

static_assert(sizeof(LeaseReport) == 168 + kLeaseDevices * sizeof(LeaseRow));
static_assert(sizeof(LeaseCommand) == 616 + kLeaseDevices * sizeof(LeaseCommand::Row));
static_assert(sizeof(LeaseEntry) == 8 + sizeof(gmm_lease_entry_info));

}  // namespace gmm
#endif
