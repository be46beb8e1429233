// SPDX-License-Identifier: Apache-2.0
// The states of one lease (README.md has the protocol).
//
// A member decides the next act of the lease's thread: carry out a command to give up, call the program's `asked`, or
// send a report. It knows no clock, no thread, no socket and no memory, so a test runs thousands of histories with
// faults.
//
// Invariants.
// - The state is kInUse or kTaking only while a grant of the present request holds.
// - No pause for others runs in kTaking or kInUse: begin_give() and a grant exclude each other.
// - A grant is taken on the connection on which it came, and once.
//
// Locks: none. The owner's lock is held in every call.
// Callers: context/lease.cpp.
#ifndef GMM_ENGINE_LEASE_MEMBER_H
#define GMM_ENGINE_LEASE_MEMBER_H

#include "base/no_copy.h"
#include "engine/lease/messages.h"

namespace gmm {

// A device as the owner measures it. The member knows what is wanted and granted.
struct LeaseMeasure : LeaseRow {
  bool is_used = false;  // others are not reported; once used, it stays so
  uint64_t paused = 0;   // offered tags' memory without pages
};

class LeaseMember : NoCopy {
 public:
  // How often a report is repeated while the member waits.
  static constexpr uint64_t kRepeatMs = 500;
  struct Next {
    enum class Act : uint8_t { kWait, kReport, kGive, kAsk } act = Act::kWait;
    uint64_t until = UINT64_MAX;  // of kWait
  };

  LeaseMember(uint64_t identity, const char *name, int32_t priority, uint64_t residency_ms);

  // --- The program's calls ---
  // A request begins. `extra`: by the rows of the measures. Only in kIdle, and not while giving.
  void begin(const uint64_t extra[kLeaseDevices], uint64_t now);
  // The request ends without success, from kWaiting or kTaking, or its memory is returned, from kInUse.
  void end(uint64_t now);
  // To the request. After kGranted the state is kTaking, after kDenied kIdle.
  LeaseAnswer answer() const { return answer_; }
  // Of kTaking: everything is taken.
  void took(uint64_t now);
  // Of kTaking: nothing could be taken, as memory was short. The request waits again.
  void came_short();

  // --- The lease's thread ---
  void connected();
  void disconnected();
  void receive(const LeaseCommand &command, uint64_t now);
  Next next(uint64_t now) const;
  // After next() said kReport, and before the measures are taken: what changes during them is reported again.
  void begin_report() { is_changed_ = false; }
  void report(const LeaseMeasure *measures, uint32_t devices, uint64_t now, LeaseReport *out);
  // The bytes that must be given up, by device. A pause runs until gave().
  const LeaseCommand &begin_give();
  void gave();
  // `asked` is called with what command() says.
  void begin_ask() { asked_ = command_.ask; }
  // Something changed that the server should know.
  void touch() { is_changed_ = true; }

  LeaseState state() const { return state_; }
  bool is_giving() const { return is_giving_; }
  uint64_t request() const { return request_; }
  bool wants_extra(uint32_t device) const { return extra_[device] != 0; }
  const LeaseCommand &command() const { return command_; }  // the last one
  // The holders of the memory that the request waits for, or the reason of the denial; empty: the server sent none.
  const char *text() const { return text_; }
  void set_residency(uint64_t milliseconds) { residency_ms_ = milliseconds; }
  void set_cost(uint32_t cost) { cost_ = cost; }

 private:
  void set_state(LeaseState state, uint64_t now);
  bool is_at_rest() const { return state_ == LeaseState::kIdle || state_ == LeaseState::kWaiting; }

  const uint64_t identity_;
  const int32_t priority_;
  uint64_t residency_ms_;
  uint32_t cost_ = 0;
  char name_[kLeaseNameSize] = {};

  LeaseState state_ = LeaseState::kIdle;
  LeaseAnswer answer_ = LeaseAnswer::kNone;
  uint64_t since_ = 0;       // when the state began
  uint64_t granted_at_ = 0;  // 0: never
  uint64_t request_ = 0, attempt_ = 0, asked_at_ = 0;
  uint64_t extra_[kLeaseDevices] = {};
  uint64_t wanted_[kLeaseDevices] = {};    // as last reported; those of a grant stay
  uint64_t held_[kLeaseDevices] = {};      // when the grant was taken
  uint64_t left_[kLeaseDevices] = {};      // of the grant, not taken
  uint64_t measured_[kLeaseDevices] = {};  // held, as last reported

  bool is_connected_ = false, is_changed_ = false;
  bool is_giving_ = false;
  uint64_t number_ = 0;       // of the last report
  uint64_t reported_at_ = 0;  // when
  uint64_t round_ = 0, asked_ = 0, gave_ = 0;
  uint64_t server_ = 0;  // of the last command
  LeaseCommand command_;
  LeaseCommand giving_;
  char text_[sizeof LeaseCommand::text] = {};
};

}  // namespace gmm
#endif
