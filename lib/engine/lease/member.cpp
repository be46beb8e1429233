// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/member.h"

#include <algorithm>
#include <cstdio>

namespace gmm {

LeaseMember::LeaseMember(uint64_t identity, const char *name, int32_t priority, uint64_t residency_ms)
    : identity_(identity), priority_(priority), residency_ms_(residency_ms) {
  std::snprintf(name_, sizeof name_, "%s", name);
}

void LeaseMember::set_state(LeaseState state, uint64_t now) {
  state_ = state;
  since_ = now;
  is_changed_ = true;
}

// --- The program's calls ---------------------------------------------------------------------------------------------

void LeaseMember::begin(const uint64_t extra[kLeaseDevices], uint64_t now) {
  ++request_;
  attempt_ = 1;
  answer_ = LeaseAnswer::kNone;
  text_[0] = 0;
  std::copy_n(extra, kLeaseDevices, extra_);
  std::fill_n(wanted_, kLeaseDevices, 0);
  asked_at_ = now;
  set_state(LeaseState::kWaiting, now);
}

void LeaseMember::end(uint64_t now) {
  std::fill_n(left_, kLeaseDevices, 0);
  answer_ = LeaseAnswer::kNone;
  set_state(LeaseState::kIdle, now);
}

void LeaseMember::took(uint64_t now) {
  answer_ = LeaseAnswer::kNone;
  set_state(LeaseState::kInUse, now);
}

// The request keeps its age.
void LeaseMember::came_short() {
  ++attempt_;
  answer_ = LeaseAnswer::kNone;
  std::fill_n(left_, kLeaseDevices, 0);
  set_state(LeaseState::kWaiting, asked_at_);
}

// --- The lease's thread ----------------------------------------------------------------------------------------------

// Numbers of rounds and commands are the server's. Another one has others.
void LeaseMember::connected() {
  is_connected_ = is_changed_ = true;
  command_ = LeaseCommand{};
  number_ = round_ = asked_ = gave_ = 0;
  text_[0] = 0;
}

void LeaseMember::disconnected() {
  is_connected_ = false;
  command_ = LeaseCommand{};
  gave_ = 0;
  if (state_ == LeaseState::kWaiting) text_[0] = 0;
}

void LeaseMember::receive(const LeaseCommand &command, uint64_t now) {
  if (!is_connected_ || command.number <= command_.number) return;
  command_ = command;
  server_ = command.server;
  std::snprintf(text_, sizeof text_, "%s", command.text);
  if (command.round > round_) is_changed_ = true;
  const bool was_at_rest = is_at_rest();
  if (state_ == LeaseState::kWaiting && !is_giving_) {
    const LeaseAnswer answer = command.answers(request_, attempt_) ? command.answer : LeaseAnswer::kNone;
    if (answer != LeaseAnswer::kNone) answer_ = answer;
    if (answer == LeaseAnswer::kGranted) {
      granted_at_ = now;
      for (uint32_t i = 0; i < kLeaseDevices; ++i) {
        left_[i] = wanted_[i];
        held_[i] = measured_[i];
      }
      set_state(LeaseState::kTaking, now);
    } else if (answer == LeaseAnswer::kDenied) {
      set_state(LeaseState::kIdle, now);
    }
  }
  // An ask that came before this grant is over.
  if (was_at_rest) asked_ = command.ask;
  // Refused: memory in use stays.
  if (command.give > gave_ && !is_giving_ && !is_at_rest()) {
    gave_ = command.give;
    is_changed_ = true;
  }
}

LeaseMember::Next LeaseMember::next(uint64_t now) const {
  using Act = Next::Act;
  if (!is_connected_ || is_giving_) return Next{};
  if (command_.give > gave_ && is_at_rest()) return Next{Act::kGive, now};
  if (is_changed_) return Next{Act::kReport, now};
  if (command_.ask > asked_ && state_ == LeaseState::kInUse) return Next{Act::kAsk, now};
  // Free memory and the program's allocations change without a message.
  if (state_ != LeaseState::kWaiting) return Next{};
  const uint64_t again = reported_at_ + kRepeatMs;
  return again <= now ? Next{Act::kReport, now} : Next{Act::kWait, again};
}

void LeaseMember::report(const LeaseMeasure *measures, uint32_t devices, uint64_t now, LeaseReport *out) {
  LeaseReport report;
  bool has_changed = false;
  for (uint32_t i = 0; i < devices; ++i) {
    const LeaseMeasure &measure = measures[i];
    if (!measure.is_used) continue;
    LeaseRow &row = report.rows[report.devices++] = measure;
    measured_[i] = measure.held;
    if (state_ == LeaseState::kWaiting) {
      row.wanted = std::min(measure.paused + std::min(extra_[i], kLeaseMostBytes), kLeaseMostBytes);
      has_changed = has_changed || row.wanted != wanted_[i];
      wanted_[i] = row.wanted;
    } else if (!is_at_rest()) {
      const uint64_t taken = measure.held > held_[i] ? measure.held - held_[i] : 0;
      left_[i] = std::min(left_[i], wanted_[i] - std::min(taken, wanted_[i]));
      row.granted = left_[i];
      row.wanted = wanted_[i];
    }
  }
  // A grant of the former bytes would be another one.
  if (has_changed) ++attempt_;
  if (command_.give > gave_ && !is_at_rest()) gave_ = command_.give;
  round_ = command_.round;
  report.number = ++number_;
  report.identity = identity_;
  report.request = request_;
  report.attempt = attempt_;
  report.round = round_;
  report.gave = gave_;
  report.state_ms = now - since_;
  report.grant_ms = granted_at_ == 0 ? UINT64_MAX : now - granted_at_;
  report.residency_ms = residency_ms_;
  report.former = server_;
  report.state = state_;
  report.priority = priority_;
  report.cost = cost_;
  std::snprintf(report.name, sizeof report.name, "%s", name_);
  reported_at_ = now;
  *out = report;
}

const LeaseCommand &LeaseMember::begin_give() {
  is_giving_ = true;
  giving_ = command_;
  return giving_;
}

// After a cut the number is another server's, or counts anew.
void LeaseMember::gave() {
  is_giving_ = false;
  is_changed_ = true;
  if (is_connected_ && command_.server == giving_.server) gave_ = std::max(gave_, giving_.give);
}

}  // namespace gmm
