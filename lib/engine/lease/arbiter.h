// SPDX-License-Identifier: Apache-2.0
// The arbiter of leases: who is granted, asked, told and denied (README.md has the protocol and the rules).
//
// It accounts what members report, and knows no clock, no thread, no socket and no memory. Whoever runs it gives it the
// time, reports and ends of connections, and sends its orders.
//
// Invariants.
// - A grant is given only against a measure of the waiting member that is younger than everything that was reported as
//   taken from its devices.
// - What a member was granted and has not taken is never part of another grant, as long as the member is connected, and
//   kGraceMs longer.
// - A member that has an order to give up, and has not answered, is granted nothing.
// - Nobody is denied anything while the answer of somebody on the same devices is missing.
//
// Locks: none. One thread uses it.
// Callers: context/lease_server.cpp.
#ifndef GMM_ENGINE_LEASE_ARBITER_H
#define GMM_ENGINE_LEASE_ARBITER_H

#include "engine/lease/messages.h"

namespace gmm {

class LeaseArbiter {
 public:
  static constexpr uint32_t kMembers = 64;
  // Milliseconds.
  static constexpr uint64_t kGraceMs = 500;           // a successor, and who was cut off, wait so long
  static constexpr uint64_t kAnswerMs = 200;          // then a plan is made without those that did not answer a round
  static constexpr uint64_t kPatienceMs = 5000;       // for an order to give up, and the time of its bytes
  static constexpr uint64_t kBytesPerMs = 1'000'000;  // at least, of a member that copies what it gives up
  static constexpr uint64_t kRefusedMs = 1000;        // until who refused is told again
  static constexpr uint64_t kAskAgainMs = 1000;  // between calls of `asked`; then all are asked that have something
  static constexpr uint64_t kOldMs = 30'000;     // a request of this age comes before all younger ones
  static constexpr uint64_t kRepeatMs = 500;     // of an order that shows no effect
  static constexpr uint64_t kRoundMs = 1000;     // a round is not older while somebody waits
  static constexpr uint64_t kLookMs = 20;        // while somebody waits

  struct Member {
    bool is_there = false;       // the slot is in use
    bool is_connected = false;   // otherwise it was cut off, and what it was granted stands until `gone_at` + kGraceMs
    bool is_registered = false;  // it sent a report
    int32_t process = 0;
    LeaseReport report;
    uint32_t devices = ~0u;  // those of the report, as bits; before the first one it may use all
    uint64_t gone_at = 0;
    uint64_t silent_since = 0;  // it was asked for a report, and has not answered
    uint64_t state_since = 0;   // of the report's state
    uint64_t free_for_all = 0;  // when its residency is over
    // By index of devices_.
    uint64_t free[kLeaseDevices] = {}, held[kLeaseDevices] = {}, floor[kLeaseDevices] = {};
    uint64_t offered[kLeaseDevices] = {}, wanted[kLeaseDevices] = {};
    uint64_t granted[kLeaseDevices] = {};  // and not taken
    uint64_t give[kLeaseDevices] = {};     // as told
    // What it is told.
    uint64_t granted_request = 0, granted_attempt = 0;  // not yet taken up
    uint64_t denied_request = 0, denied_attempt = 0;
    uint64_t doubted_request = 0;              // one round said that it can't be met
    uint64_t give_number = 0, give_until = 0;  // give_number > report.gave: not answered
    uint64_t refused_until = 0;
    uint64_t ask_number = 0;
    uint64_t asked_at[kMembers] = {};  // on behalf of the member of that slot
    uint64_t waits_for_others = 0;     // since when it asks others; 0: not
    uint64_t answers_due_since = 0;    // since when it waits for reports; 0: not
    uint64_t ask_bytes = 0, ask_waiting_ms = 0;
    int32_t ask_priority = 0, ask_process = 0;
    char ask_name[kLeaseNameSize] = {};
    char text[sizeof LeaseOrder::text] = {};
    uint64_t order_number = 0, sent_at = 0, sent_round = 0;
    bool must_send = false;
    bool is_planned = false;  // in this step: its offers serve an earlier request

    bool waits() const { return is_connected && is_registered && report.state == LeaseState::kWaiting; }
    bool uses() const { return report.state == LeaseState::kTaking || report.state == LeaseState::kInUse; }
    bool is_giving() const { return give_number > report.gave; }
    bool has_grant() const { return granted_request != 0; }
  };

  // `has_predecessor`: members may have grants of it. They register soon, but one that is giving up memory only when it
  // has: nobody is denied anything until then.
  LeaseArbiter(uint64_t incarnation, bool has_predecessor, uint64_t now);
  LeaseArbiter(const LeaseArbiter &) = delete;
  LeaseArbiter &operator=(const LeaseArbiter &) = delete;

  // A connection begins: its slot. kMembers: there is none left.
  uint32_t add(int32_t process, uint64_t now);
  void remove(uint32_t slot, uint64_t now);
  // False: it is no report of this version, or one device too many; the connection must be cut.
  bool receive(uint32_t slot, const LeaseReport &report, uint64_t now);
  // Decides. Call it after each of the above, and at the time that it returned; UINT64_MAX: never by itself.
  uint64_t step(uint64_t now);
  // The next order to send; false: none. It counts as sent.
  bool next_order(uint64_t now, uint32_t *slot, LeaseOrder *out);

  const Member &member(uint32_t slot) const { return members_[slot]; }
  uint64_t incarnation() const { return incarnation_; }
  uint64_t decides_from() const { return decides_from_; }
  bool has_members() const;

 private:
  // The measures of these devices are stale.
  void begin_round(uint32_t devices);
  // Of what it wants. `changes`: by the rounds of these.
  bool is_fresh(const Member &waiting, const uint64_t changes[kLeaseDevices]) const;
  bool has_answered(const Member &member, uint32_t devices) const;
  // The last round of its devices.
  uint64_t round_of(const Member &member) const;
  uint32_t wanted_by(const Member &member) const;
  bool index_of(const LeaseUuid &device, uint8_t *out);
  static void forget(Member &member, uint32_t device);
  bool is_reported(uint32_t device) const;
  void begin_round_of_takings(uint32_t devices);
  bool is_old(const Member &member, uint64_t now) const { return now - member.state_since >= kOldMs; }
  bool comes_before(const Member &a, const Member &b, uint64_t now) const;
  bool is_silent(const Member &member, uint64_t now) const;
  uint64_t takeable(const Member &member, uint32_t device) const;
  uint64_t floor_left(const Member &member, uint32_t device) const;
  uint64_t promised(const Member &member, uint32_t device) const;
  bool can_ever_meet(const Member &waiting) const;
  bool uses_device(const Member &member, uint32_t device) const {
    return member.wanted[device] != 0 || member.offered[device] != 0;
  }
  enum class Served : uint8_t { kDone, kPlanned, kLater };
  Served serve(Member &waiting, uint64_t now);
  void plan(Member &waiting, uint64_t missing[kLeaseDevices], uint64_t now);
  void ask(Member &user, Member &waiting, uint64_t now);
  void deny(Member &waiting);
  void tell_holders(Member &waiting, const char *why);
  void wake_at(uint64_t time) { wake_ = time < wake_ ? time : wake_; }

  const uint64_t incarnation_;
  const uint64_t decides_from_, denies_from_;
  uint64_t round_ = 1;  // the last one
  // By device: the rounds that began with its last change, and with the last time that something may have been taken
  // from it which was kept for somebody.
  uint64_t changed_[kLeaseDevices] = {}, taken_[kLeaseDevices] = {};
  uint64_t seen_[kLeaseDevices] = {}, seen_at_[kLeaseDevices] = {};  // the round of a device, and since when
  uint64_t last_give_ = 0;
  uint64_t looks_at_ = 0;  // when it meant to decide again; 0: nobody waits
  uint64_t wake_ = UINT64_MAX;
  uint32_t devices_count_ = 0;
  LeaseUuid devices_[kLeaseDevices];
  Member members_[kMembers];
};

}  // namespace gmm
#endif
