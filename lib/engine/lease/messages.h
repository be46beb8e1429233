// SPDX-License-Identifier: Apache-2.0
// The two messages between a member and the arbiter. Both run on one machine, so the structs are the bytes.
//
// Each has the whole state of its sender, and a number that rises on a connection. So a message that was lost is made
// good by the next one, and a late or doubled one is ignored.
#ifndef GMM_ENGINE_LEASE_MESSAGES_H
#define GMM_ENGINE_LEASE_MESSAGES_H

#include <cstdint>
#include <cstring>

namespace gmm {

inline constexpr uint32_t kLeaseReportMagic = 0x4d6d6d67, kLeaseOrderMagic = 0x416d6d67;  // "gmmM", "gmmA"
inline constexpr uint32_t kLeaseVersion = 1;
inline constexpr uint32_t kLeaseDevices = 16;  // of one member, and of all members of an arbiter
inline constexpr uint32_t kLeaseNameSize = 64;
inline constexpr uint64_t kLeaseMostBytes = uint64_t{1} << 56;  // of a field of a row; so sums do not wrap

struct LeaseUuid {
  uint8_t bytes[16] = {};
  bool operator==(const LeaseUuid &other) const { return std::memcmp(bytes, other.bytes, sizeof bytes) == 0; }
};

enum class LeaseState : uint32_t { kIdle, kWaiting, kTaking, kInUse };

// What a member says. Times are ages, as clocks of processes need not agree.
struct LeaseReport {
  struct Row {
    LeaseUuid device;
    uint64_t free = 0;     // by the member's own driver
    uint64_t held = 0;     // by its context
    uint64_t floor = 0;    // is left to it
    uint64_t offered = 0;  // pages of offered tags
    uint64_t wanted = 0;   // by its request
    uint64_t granted = 0;  // and not taken yet
  };
  uint32_t magic = kLeaseReportMagic, version = kLeaseVersion;
  uint64_t number = 0;
  uint64_t identity = 0;              // of the lease; 0: asks for the arbiter's status alone
  uint64_t request = 0, attempt = 0;  // which request, and how often what it wants has changed
  uint64_t round = 0;                 // the last round that it saw before it measured
  uint64_t gave = 0;                  // the last order to give up that it carried out or refused
  uint64_t state_ms = 0;              // for so long in this state; a waiting one: since the request
  uint64_t grant_ms = 0;              // since its last grant
  uint64_t residency_ms = 0;          // after a grant
  LeaseState state = LeaseState::kIdle;
  int32_t priority = 0;
  uint32_t cost = 0;     // the least of its offers
  uint32_t devices = 0;  // rows
  char name[kLeaseNameSize] = {};
  Row rows[kLeaseDevices] = {};
};

// What the arbiter says to a member.
struct LeaseOrder {
  struct Row {
    LeaseUuid device;
    uint64_t give = 0;
  };
  uint32_t magic = kLeaseOrderMagic, version = kLeaseVersion;
  uint64_t number = 0;
  uint64_t incarnation = 0;
  uint64_t round = 0;                                 // reports older than it are stale
  uint64_t granted_request = 0, granted_attempt = 0;  // request 0: no grant
  uint64_t denied_request = 0, denied_attempt = 0;
  uint64_t give = 0;  // number of the order to give up `rows`; 0: none
  uint64_t ask = 0;   // how often it was asked
  uint64_t ask_bytes = 0, ask_waiting_ms = 0;
  int32_t ask_priority = 0, ask_process = 0;
  uint32_t devices = 0, reserved = 0;
  char ask_name[kLeaseNameSize] = {};
  char text[448] = {};  // who holds what its request waits for, or why it is denied
  Row rows[kLeaseDevices] = {};
};

static_assert(sizeof(LeaseReport) == 160 + kLeaseDevices * sizeof(LeaseReport::Row));
static_assert(sizeof(LeaseOrder) == 624 + kLeaseDevices * sizeof(LeaseOrder::Row));

}  // namespace gmm
#endif
