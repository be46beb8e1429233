// SPDX-License-Identifier: Apache-2.0
// The arbiter of leases: which member is granted its request, asked for memory, commanded to give up some, or denied
// (engine/lease/README.md has the protocol and the rules).
//
// It accounts what members report, and knows no clock, no thread and no socket. Its owner gives it the time, reports
// and ends of connections, and sends its commands.
//
// | phase of a member | begins when | memory that is kept for it | others may have its offers |
// | --- | --- | --- | --- |
// | new | its connection begins, until its first report | | |
// | idle | it reports so | its floor | yes |
// | waiting | it reports a request | its floor | yes |
// | granted | the arbiter grants the request | the grant, its floor | no |
// | denied | the arbiter denies the request | its floor | yes |
// | taking, in use | it reports so | the rest of the grant, its floor | if it returns when it is asked |
// | gone | its connection ends | the rest of the grant, for kGraceMs | no |
//
// An idle or waiting member may have a command to give up memory beside its phase.
//
// Invariants.
// - A grant is given only against a measure of the waiting member that is younger than everything that was reported as
//   taken from its devices.
// - Memory that is kept for one member is never part of the grant of another one.
// - A member that has not answered a command to give up is granted nothing.
// - Nobody is denied anything while an answer of somebody on the same devices is missing.
//
// Locks: none. One thread uses it.
// Callers: server.cpp.
#ifndef GMM_CLI_SERVE_ARBITER_H
#define GMM_CLI_SERVE_ARBITER_H

#include <span>

#include "base/vector.h"
#include "engine/lease/messages.h"

namespace gmm {

class LeaseArbiter : NoCopy {
 public:
  // Milliseconds.
  static constexpr uint64_t kGraceMs = 500;           // a successor waits so long, and keeps memory of members cut off
  static constexpr uint64_t kAnswerMs = 200;          // then a plan is made without the answers that are missing
  static constexpr uint64_t kPatienceMs = 5000;       // for a command to give up, and the time of its bytes
  static constexpr uint64_t kBytesPerMs = 1'000'000;  // at least, of a member that copies contents
  static constexpr uint64_t kRefusedMs = 1000;        // until a member that refused gets another command
  static constexpr uint64_t kAskAgainMs = 1000;  // between calls of `asked`; then all are asked that have something
  static constexpr uint64_t kOldMs = 30'000;     // a request of this age comes before all younger ones
  static constexpr uint64_t kRepeatMs = 500;     // of a command that shows no effect
  static constexpr uint64_t kRoundMs = 1000;     // a round is not older while somebody waits
  static constexpr uint64_t kLookMs = 20;        // while somebody waits

  enum class Phase : uint8_t { kNew, kIdle, kWaiting, kGranted, kDenied, kTaking, kInUse, kGone };

  struct Device {
    LeaseUuid uuid;
    bool is_wanted = false;    // by somebody who waits
    bool is_claimed = false;   // in this step: by an earlier request
    uint64_t changed = 0;      // the round that began with its last change
    uint64_t taken = 0;        // with the last time that somebody may have taken memory that was kept
    uint64_t round_since = 0;  // when the round `changed` began
  };
  // A member's bytes of a device: its report's, but for `granted`, and the bytes that it must give up.
  struct Row : LeaseRow {
    Device *of = nullptr;
    uint64_t give = 0;

    uint64_t floor_left() const { return floor > held ? floor - held : 0; }
    // The member must be able to take these at any time.
    uint64_t promised() const { return floor_left() > granted ? floor_left() : granted; }
    // Of its offers, by its floor.
    uint64_t takeable() const {
      const uint64_t above = held > floor ? held - floor : 0;
      return offered < above ? offered : above;
    }
    // Everything that others could have if it returned: its grant may be on the way to its offered tags.
    uint64_t gain() const { return takeable() + promised() - floor_left(); }
  };
  struct Member {
    Phase phase = Phase::kNew;
    int32_t process = 0;
    void *user = nullptr;
    LeaseReport report;  // the last one
    uint32_t row_count = 0;
    Row rows[kLeaseDevices];
    uint64_t gone_at = 0;
    uint64_t silent_since = 0;    // it was asked for a report, and has not answered
    uint64_t state_since = 0;     // of the report's state
    uint64_t resident_until = 0;  // its offers stay so long
    uint64_t refused_until = 0;   // it gets no command to give up
    // Of its request.
    uint64_t doubted_request = 0;    // one round said that it can't be met
    uint64_t waits_for_others = 0;   // since when it asks others; 0: not
    uint64_t answers_due_since = 0;  // since when it waits for reports; 0: not
    bool is_planned = false;         // in this step: its offers serve an earlier request
    // Of the member that it was last asked for.
    uint64_t asked_identity = 0, asked_request = 0, asked_at = 0;
    uint64_t give_until = 0;  // its patience ends
    LeaseCommand command;     // the last one, or the next one
    bool must_send = false;
    uint64_t sent_at = 0;

    bool is_connected() const { return phase != Phase::kGone; }
    bool has_request() const { return phase == Phase::kWaiting || phase == Phase::kGranted || phase == Phase::kDenied; }
    bool uses() const { return phase == Phase::kTaking || phase == Phase::kInUse; }
    bool may_hold_a_grant() const { return phase == Phase::kGranted || uses(); }
    bool is_giving() const { return command.give > report.gave; }
    std::span<Row> used_rows() { return {rows, row_count}; }
    std::span<const Row> used_rows() const { return {rows, row_count}; }
    const Row *row_of(const Device *device) const {
      for (const Row &row : used_rows())
        if (row.of == device) return &row;
      return nullptr;
    }
  };

  // `has_predecessor`: members may have grants of it. They report soon, but one that is giving up memory only when it
  // has: nobody is denied anything until then. A report that names another server says so too.
  LeaseArbiter(uint64_t number, bool has_predecessor, uint64_t now);
  ~LeaseArbiter();

  // For the first report of a connection, which receive() gets next. The member is valid until remove(). NULL: there is
  // no memory.
  Member *add(int32_t process, void *user);
  void remove(Member *member, uint64_t now);
  // False: it is no report, or there is no memory; the connection must be cut.
  bool receive(Member *member, const LeaseReport &report, uint64_t now);
  // Decides. Call it after each of the above, and at the time that it returned; UINT64_MAX: never by itself.
  uint64_t step(uint64_t now);
  // The next command to send, and its member; NULL: none. It counts as sent.
  Member *next_command(uint64_t now, LeaseCommand *out);
  void list(uint64_t index, uint64_t now, gmm_lease_entry_info *out) const;
  bool has_members() const { return !members_.empty(); }

 private:
  struct Candidate {
    Member *member;
    uint32_t rank;  // 0: may get a command, 1: its residency is not over, 2: in use
    uint64_t idle;  // powers of two of a second
  };
  // The plan of a request: the bytes that it lacks, by its rows, and the members whose offers fill that.
  struct Plan {
    Member &waiting;
    uint64_t missing[kLeaseDevices] = {};
    Vector<Candidate> chosen{HostAllocator()};
    bool is_filled = false;

    uint64_t gain_of(const Member &member, uint32_t row) const;
    bool helps(const Member &member) const;
    bool fills(const Member *without) const;
  };
  enum class Served : uint8_t { kDone, kPlanned, kLater };

  // Reports.
  Device *device_of(const LeaseUuid &uuid);
  bool read_rows(const LeaseReport &report, Row rows[kLeaseDevices]);
  void replace_rows(Member *member, const Row rows[kLeaseDevices], uint32_t count);
  void end_member(uint64_t index);
  void end_former_connection(uint64_t identity);
  void begin_round(Device *device) {
    device->changed = ++round_;
    device->round_since = now_;
  }
  void begin_round_of_taking(Device *device) {
    begin_round(device);
    device->taken = round_;
  }
  void begin_rounds_of(const Member &waiting);
  // Decisions.
  bool has_answered(const Member &member, const Member &waiting) const;
  bool is_silent(const Member &member) const;
  bool is_measure_fresh(const Member &waiting) const;
  bool are_answers_due(const Member &waiting) const;
  bool is_memory_coming(const Member &waiting) const;
  bool can_ever_be_met(const Member &waiting) const;
  bool may_be_denied(const Member &waiting) const;
  bool is_behind_others(const Member &waiting, bool plans_are_known) const;
  uint64_t missing_of(const Member &waiting, uint32_t row) const;
  void end_those_gone();
  bool find_waiting(Vector<Member *> *queue);
  Served serve(Member &waiting);
  void answer(Member &waiting, LeaseAnswer answer, Phase phase);
  void grant(Member &waiting);
  bool choose(Plan *plan);
  void tell(Plan &plan);
  void ask(Plan &plan);
  void ask_one(Member &user, const Member &waiting);
  void explain(Member &waiting, const char *why);
  uint64_t decides_from() const { return has_predecessor_ ? began_ + kGraceMs : began_; }
  uint64_t denies_from() const { return has_predecessor_ ? began_ + kPatienceMs : began_; }
  void wake_at(uint64_t time) { wake_ = time < wake_ ? time : wake_; }
  template <typename Fn>
  void for_others(const Member &waiting, const Device *device, Fn fn) const;

  const HostAllocator allocator_;
  const uint64_t number_;
  const uint64_t began_;
  bool has_predecessor_;  // whose members may have its grants
  uint64_t now_ = 0;      // as the owner last gave it
  uint64_t round_ = 1;    // the last one
  uint64_t last_give_ = 0;
  uint64_t looks_at_ = 0;  // when it meant to decide again; 0: nobody waits
  uint64_t wake_ = UINT64_MAX;
  Vector<Device *> devices_;
  Vector<Member *> members_;
};

}  // namespace gmm
#endif
