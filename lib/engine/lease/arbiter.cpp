// SPDX-License-Identifier: Apache-2.0
#include "engine/lease/arbiter.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <utility>

namespace gmm {
namespace {

// Text that is cut where it finds no room.
class LeaseText {
 public:
  LeaseText(char *text, uint64_t size) : text_(text), size_(size) { text_[0] = 0; }
  [[gnu::format(printf, 2, 3)]] void add(const char *format, ...) {
    if (used_ + 1 >= size_) return;
    va_list arguments;
    va_start(arguments, format);
    const int length = std::vsnprintf(text_ + used_, size_ - used_, format, arguments);
    va_end(arguments);
    used_ = length < 0 ? used_ : std::min(size_ - 1, used_ + static_cast<uint64_t>(length));
  }

 private:
  char *const text_;
  const uint64_t size_;
  uint64_t used_ = 0;
};

// It stands in messages and in JSON.
bool is_plain_name(const char name[kLeaseNameSize]) {
  uint32_t length = 0;
  for (; length < kLeaseNameSize && name[length] != 0; ++length)
    if (name[length] <= ' ' || name[length] > '~' || name[length] == '"' || name[length] == '\\') return false;
  return length != 0 && length < kLeaseNameSize;
}

}  // namespace

LeaseArbiter::LeaseArbiter(uint64_t incarnation, bool has_predecessor, uint64_t now)
    : incarnation_(incarnation),
      decides_from_(has_predecessor ? now + kGraceMs : now),
      denies_from_(has_predecessor ? now + kPatienceMs : now) {}

// --- Members ---------------------------------------------------------------------------------------------------------

uint32_t LeaseArbiter::add(int32_t process, uint64_t now) {
  for (uint32_t slot = 0; slot < kMembers; ++slot) {
    if (members_[slot].is_there) continue;
    members_[slot] = Member{};
    members_[slot].is_there = members_[slot].is_connected = true;
    members_[slot].process = process;
    members_[slot].silent_since = now;
    return slot;
  }
  return kMembers;
}

void LeaseArbiter::remove(uint32_t slot, uint64_t now) {
  Member &member = members_[slot];
  // What it was granted stands for a while: it may have been cut off alone.
  member.is_connected = false;
  member.gone_at = now;
  if (!member.is_registered)
    member.is_there = false;
  else
    begin_round_of_takings(member.devices);
}

bool LeaseArbiter::has_members() const {
  for (const Member &member : members_)
    if (member.is_there && member.is_connected && member.is_registered) return true;
  return false;
}

void LeaseArbiter::forget(Member &member, uint32_t d) {
  member.free[d] = member.held[d] = member.floor[d] = member.offered[d] = member.wanted[d] = 0;
  member.granted[d] = member.give[d] = 0;
}

// The place of a device that nobody reports any more is the next one's.
bool LeaseArbiter::index_of(const LeaseUuid &device, uint8_t *out) {
  uint32_t d = 0;
  while (d < devices_count_ && !(devices_[d] == device)) ++d;
  if (d == kLeaseDevices) {
    for (d = 0; d < kLeaseDevices && is_reported(d); ++d) {
    }
    if (d == kLeaseDevices) return false;
    for (Member &member : members_) forget(member, d);
    devices_[d] = device;
    begin_round_of_takings(1u << d);
  } else if (d == devices_count_) {
    devices_[devices_count_++] = device;
  }
  *out = static_cast<uint8_t>(d);
  return true;
}

bool LeaseArbiter::is_reported(uint32_t device) const {
  for (const Member &member : members_)
    if (member.is_there && member.is_registered && (member.devices & 1u << device) != 0) return true;
  return false;
}

// --- Rounds ----------------------------------------------------------------------------------------------------------

void LeaseArbiter::begin_round(uint32_t devices) {
  ++round_;
  for (uint32_t d = 0; d < kLeaseDevices; ++d)
    if ((devices & 1u << d) != 0) changed_[d] = round_;
}

void LeaseArbiter::begin_round_of_takings(uint32_t devices) {
  begin_round(devices);
  for (uint32_t d = 0; d < kLeaseDevices; ++d)
    if ((devices & 1u << d) != 0) taken_[d] = round_;
}

uint32_t LeaseArbiter::wanted_by(const Member &member) const {
  uint32_t devices = 0;
  for (uint32_t d = 0; d < devices_count_; ++d)
    if (member.wanted[d] != 0) devices |= 1u << d;
  return devices;
}

bool LeaseArbiter::is_fresh(const Member &waiting, const uint64_t changes[kLeaseDevices]) const {
  for (uint32_t d = 0; d < devices_count_; ++d)
    if (waiting.wanted[d] != 0 && waiting.report.round < changes[d]) return false;
  return true;
}

bool LeaseArbiter::has_answered(const Member &member, uint32_t devices) const {
  if (!member.is_registered || !member.is_connected) return (member.devices & devices) == 0;
  for (uint32_t d = 0; d < devices_count_; ++d)
    if ((member.devices & devices & 1u << d) != 0 && member.report.round < changed_[d]) return false;
  return true;
}

uint64_t LeaseArbiter::round_of(const Member &member) const {
  uint64_t round = 0;
  for (uint32_t d = 0; d < devices_count_; ++d)
    if ((member.devices & 1u << d) != 0) round = std::max(round, changed_[d]);
  return round;
}

// --- Reports ---------------------------------------------------------------------------------------------------------

bool LeaseArbiter::receive(uint32_t slot, const LeaseReport &report, uint64_t now) {
  Member &member = members_[slot];
  if (report.magic != kLeaseReportMagic || report.version != kLeaseVersion || report.devices > kLeaseDevices ||
      report.state > LeaseState::kInUse || !is_plain_name(report.name))
    return false;
  if (report.round > round_ || report.gave > last_give_) return false;
  for (uint32_t i = 0; i < report.devices; ++i) {
    const LeaseReport::Row &row = report.rows[i];
    if (std::max({row.free, row.held, row.floor, row.offered, row.wanted, row.granted}) > kLeaseMostBytes) return false;
  }
  if (report.number <= member.report.number) return true;
  if (report.round > member.report.round) member.silent_since = now;  // it is slow, and answers
  uint8_t device[kLeaseDevices] = {};
  for (uint32_t i = 0; i < report.devices; ++i)
    if (!index_of(report.rows[i].device, &device[i])) return false;
  uint32_t devices = 0;
  for (uint32_t i = 0; i < report.devices; ++i) devices |= 1u << device[i];
  // Free memory may change all the time. What it is in answer to a round begins no other one.
  const bool is_answer = report.round > member.report.round;
  const bool is_step = !member.is_registered || report.state != member.report.state ||
                       report.request != member.report.request || report.attempt != member.report.attempt;
  uint32_t changed = 0, taken = 0;
  uint64_t kept[kLeaseDevices];
  for (uint32_t d = 0; d < devices_count_; ++d) kept[d] = promised(member, d);
  if (!member.is_registered) {
    for (Member &other : members_)  // it was cut off
      if (other.is_there && !other.is_connected && other.report.identity == report.identity) other.is_there = false;
    member.must_send = true;
    taken = devices;
  } else {
    changed = devices & ~member.devices;
    for (uint32_t d = 0; d < devices_count_; ++d)
      if ((member.devices & ~devices & 1u << d) != 0) forget(member, d);
  }
  const bool has_answered = member.is_giving() && report.gave >= member.give_number;
  bool has_given = false;
  // A grant that is not this request's any more was given up, or came short.
  const bool takes_up = member.has_grant() && report.request == member.granted_request &&
                        report.attempt == member.granted_attempt && report.state != LeaseState::kIdle;
  const bool is_pending = takes_up && report.state == LeaseState::kWaiting;
  if (!is_pending) member.granted_request = member.granted_attempt = 0;
  for (uint32_t i = 0; i < report.devices; ++i) {
    const LeaseReport::Row &row = report.rows[i];
    const uint32_t d = device[i];
    has_given = has_given || (member.give[d] != 0 && row.offered < member.offered[d]);
    // What it says of its grant never rises.
    const uint64_t granted = is_pending                          ? member.granted[d]
                             : !member.is_registered || takes_up ? row.granted
                                                                 : std::min(row.granted, member.granted[d]);
    const bool has_moved = row.held != member.held[d] || row.offered != member.offered[d];
    if (granted < member.granted[d] || (!is_answer && row.free != member.free[d]) ||
        (is_step && (has_moved || row.wanted != 0)) || (has_answered && (has_moved || member.give[d] != 0)))
      changed |= 1u << d;
    member.granted[d] = granted;
    member.free[d] = row.free;
    member.held[d] = row.held;
    member.floor[d] = row.floor;
    member.offered[d] = row.offered;
    member.wanted[d] = row.wanted;
  }
  if (has_answered) {
    if (!has_given) member.refused_until = now + kRefusedMs;
    std::fill_n(member.give, kLeaseDevices, 0);
  }
  const uint64_t residency_left = report.grant_ms < report.residency_ms ? report.residency_ms - report.grant_ms : 0;
  member.free_for_all = now + residency_left;
  // A report that was under way for long says too little.
  const bool is_same_state =
      member.is_registered && report.state == member.report.state && report.request == member.report.request;
  const uint64_t since = now - std::min(now, report.state_ms);
  member.state_since = is_same_state ? std::min(member.state_since, since) : since;
  if (report.state != LeaseState::kWaiting) member.waits_for_others = 0;
  if (is_step) member.answers_due_since = 0;
  member.report = report;
  member.devices = devices;
  member.is_registered = true;
  for (uint32_t d = 0; d < devices_count_; ++d)
    if (promised(member, d) < kept[d]) taken |= 1u << d;
  if (taken != 0) begin_round_of_takings(taken);
  if ((changed & ~taken) != 0) begin_round(changed & ~taken);
  return true;
}

// --- Decisions -------------------------------------------------------------------------------------------------------

bool LeaseArbiter::comes_before(const Member &a, const Member &b, uint64_t now) const {
  const bool a_is_old = is_old(a, now), b_is_old = is_old(b, now);
  if (a_is_old != b_is_old) return a_is_old;
  if (!a_is_old && a.report.priority != b.report.priority) return a.report.priority > b.report.priority;
  if (a.state_since != b.state_since) return a.state_since < b.state_since;
  return &a < &b;
}

// What others may have of its offers.
uint64_t LeaseArbiter::takeable(const Member &member, uint32_t device) const {
  const uint64_t above = member.held[device] > member.floor[device] ? member.held[device] - member.floor[device] : 0;
  return member.is_connected ? std::min(member.offered[device], above) : 0;
}

// It was asked for a report, and did not answer in time.
bool LeaseArbiter::is_silent(const Member &member, uint64_t now) const {
  const bool is_asked = !member.is_registered || member.sent_round > member.report.round;
  return is_asked && now >= member.silent_since + kAnswerMs;
}

uint64_t LeaseArbiter::floor_left(const Member &member, uint32_t device) const {
  const bool has_floor = member.is_connected && member.floor[device] > member.held[device];
  return has_floor ? member.floor[device] - member.held[device] : 0;
}

// What it must be able to take at any time.
uint64_t LeaseArbiter::promised(const Member &member, uint32_t device) const {
  const uint64_t granted = member.uses() || member.has_grant() ? member.granted[device] : 0;
  return std::max(floor_left(member, device), granted);
}

bool LeaseArbiter::can_ever_meet(const Member &waiting) const {
  for (uint32_t d = 0; d < devices_count_; ++d) {
    uint64_t reachable = waiting.free[d], floors = 0;
    for (const Member &other : members_) {
      if (&other == &waiting || !other.is_there || !other.is_registered) continue;
      // What it was granted may be on its way to its offered tags.
      reachable += takeable(other, d) + promised(other, d) - floor_left(other, d);
      floors += floor_left(other, d);
    }
    if (waiting.wanted[d] > (reachable > floors ? reachable - floors : 0)) return false;
  }
  return true;
}

uint64_t LeaseArbiter::step(uint64_t now) {
  wake_ = UINT64_MAX;
  Member *queue[kMembers];
  uint32_t waiting = 0;
  for (Member &member : members_) {
    if (!member.is_there) continue;
    member.is_planned = false;
    if (!member.is_connected) {
      if (now >= member.gone_at + kGraceMs) {
        member.is_there = false;
        begin_round_of_takings(member.devices);
      } else {
        wake_at(member.gone_at + kGraceMs);
      }
    } else if (member.waits()) {
      queue[waiting++] = &member;
    }
  }
  const bool was_stopped = looks_at_ != 0 && now >= looks_at_ + kAnswerMs;
  looks_at_ = waiting == 0 ? 0 : now + kLookMs;
  if (waiting == 0) return wake_;
  wake_at(looks_at_);
  // It was stopped, and newer reports than those that it has read may be under way.
  if (was_stopped) begin_round_of_takings(~0u);
  // A report may have been lost after its sender had answered the round.
  uint32_t wanted = 0, late = 0;
  for (uint32_t i = 0; i < waiting; ++i) wanted |= wanted_by(*queue[i]);
  for (uint32_t d = 0; d < devices_count_; ++d) {
    if (seen_[d] != changed_[d]) {
      seen_[d] = changed_[d];
      seen_at_[d] = now;
    }
    if ((wanted & 1u << d) != 0 && now >= seen_at_[d] + kRoundMs) late |= 1u << d;
  }
  if (late != 0) begin_round(late);
  if (now < decides_from_) return wake_;
  std::sort(queue, queue + waiting, [&](const Member *a, const Member *b) { return comes_before(*a, *b, now); });
  bool is_taken[kLeaseDevices] = {}, plans_are_known = true;
  for (uint32_t i = 0; i < waiting; ++i) {
    Member &next = *queue[i];
    // Who wants nothing, and has nothing that an earlier request needs, waits for none.
    bool may_serve = !next.is_giving(), wants_nothing = may_serve && !next.is_planned && plans_are_known;
    for (uint32_t d = 0; d < devices_count_; ++d) {
      may_serve = may_serve && !(is_taken[d] && uses_device(next, d));
      wants_nothing = wants_nothing && next.wanted[d] == 0;
    }
    const Served served = may_serve || wants_nothing ? serve(next, now) : Served::kLater;
    // A process that does not answer holds up nobody.
    if (served == Served::kDone || is_silent(next, now)) continue;
    plans_are_known = plans_are_known && served == Served::kPlanned;
    for (uint32_t d = 0; d < devices_count_; ++d) is_taken[d] = is_taken[d] || uses_device(next, d);
  }
  return wake_;
}

LeaseArbiter::Served LeaseArbiter::serve(Member &waiting, uint64_t now) {
  if (waiting.has_grant() ||
      (waiting.denied_request == waiting.report.request && waiting.denied_attempt == waiting.report.attempt))
    return Served::kDone;
  if (!is_fresh(waiting, taken_)) return Served::kLater;
  const uint32_t wanted = wanted_by(waiting);
  uint64_t missing[kLeaseDevices] = {};
  bool is_enough = true, all_answered = true, is_answer_due = !is_fresh(waiting, changed_), is_coming = false;
  for (const Member &other : members_) {
    if (&other == &waiting || !other.is_there) continue;
    if (!has_answered(other, wanted)) {
      all_answered = false;
      is_answer_due = is_answer_due || (other.is_connected && !is_silent(other, now));
    }
    for (uint32_t d = 0; d < devices_count_ && other.is_connected && now < other.give_until; ++d)
      is_coming = is_coming || (other.is_giving() && other.give[d] != 0 && waiting.wanted[d] != 0);
  }
  for (uint32_t d = 0; d < devices_count_; ++d) {
    uint64_t needed = waiting.wanted[d];
    if (needed == 0) continue;
    for (const Member &other : members_)
      if (&other != &waiting && other.is_there && other.is_registered) needed += promised(other, d);
    missing[d] = needed > waiting.free[d] ? needed - waiting.free[d] : 0;
    is_enough = is_enough && missing[d] == 0;
  }
  if (is_enough) {
    waiting.granted_request = waiting.report.request;
    waiting.granted_attempt = waiting.report.attempt;
    std::copy_n(waiting.wanted, kLeaseDevices, waiting.granted);
    waiting.must_send = true;
    begin_round(wanted);
    return Served::kDone;
  }
  if (is_coming) {
    waiting.answers_due_since = 0;
    return Served::kLater;
  }
  // Others may change all the time, or be slow. What they said last is good enough for a plan.
  if (is_answer_due) {
    if (waiting.answers_due_since == 0) waiting.answers_due_since = now;
    if (now < waiting.answers_due_since + kAnswerMs) return Served::kLater;
  }
  waiting.answers_due_since = 0;
  if (!is_answer_due && all_answered && now >= denies_from_ && !can_ever_meet(waiting)) {
    // The reports of a round are of different moments, so it is the second one that counts.
    if (waiting.doubted_request == waiting.report.request) {
      deny(waiting);
      return Served::kDone;
    }
    waiting.doubted_request = waiting.report.request;
    begin_round(wanted);
    return Served::kLater;
  }
  plan(waiting, missing, now);
  return Served::kPlanned;
}

// Chooses whose offers fill what is missing.
void LeaseArbiter::plan(Member &waiting, uint64_t missing[kLeaseDevices], uint64_t now) {
  struct Candidate {
    Member *member;
    uint32_t rank;  // 0: may be told, 1: its residency is not over, 2: in use
    uint64_t idle;  // powers of two of a second
  };
  const auto gain_of = [&](const Member &member, uint32_t d) {
    return takeable(member, d) + promised(member, d) - floor_left(member, d);
  };
  Candidate candidates[kMembers];
  uint32_t count = 0;
  for (Member &other : members_) {
    if (&other == &waiting || !other.is_there || !other.is_connected || !other.is_registered || other.has_grant())
      continue;
    bool helps = false;
    for (uint32_t d = 0; d < devices_count_; ++d) helps = helps || (missing[d] != 0 && gain_of(other, d) != 0);
    if (!helps || other.is_giving() || now < other.refused_until) continue;
    const uint64_t idle_s = (now - std::min(now, other.state_since)) / 1000;
    candidates[count++] = Candidate{&other,
                                    other.uses()               ? 2u
                                    : now < other.free_for_all ? 1u
                                                               : 0u,
                                    static_cast<uint64_t>(std::bit_width(idle_s))};
  }
  std::sort(candidates, candidates + count, [](const Candidate &a, const Candidate &b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    const LeaseReport &x = a.member->report, &y = b.member->report;
    if (x.priority != y.priority) return x.priority < y.priority;
    if (a.idle != b.idle) return a.idle > b.idle;
    if (x.cost != y.cost) return x.cost < y.cost;
    return a.member < b.member;
  });
  // As many as fill the gap; then, from the last on, less those without whom it is filled as well.
  uint64_t gain[kLeaseDevices] = {};
  const auto fills = [&](const Member *without) {
    for (uint32_t d = 0; d < devices_count_; ++d)
      if (gain[d] - (without == nullptr ? 0 : gain_of(*without, d)) < missing[d]) return false;
    return true;
  };
  uint32_t chosen = 0;
  while (chosen < count && !fills(nullptr)) {
    for (uint32_t d = 0; d < devices_count_; ++d) gain[d] += gain_of(*candidates[chosen].member, d);
    ++chosen;
  }
  const bool is_filled = fills(nullptr);
  for (uint32_t i = chosen; is_filled && i-- != 0;) {
    const Member *member = candidates[i].member;
    if (!fills(member)) continue;
    for (uint32_t d = 0; d < devices_count_; ++d) gain[d] -= gain_of(*member, d);
    std::copy(candidates + i + 1, candidates + chosen, candidates + i);
    --chosen;
  }
  uint32_t worst = 0;
  for (uint32_t i = 0; i < chosen; ++i) {
    candidates[i].member->is_planned = true;
    worst = std::max(worst, candidates[i].rank);
    if (candidates[i].rank == 1) wake_at(candidates[i].member->free_for_all);
  }
  if (is_filled && worst == 0) {
    waiting.waits_for_others = 0;
    for (uint32_t i = 0; i < chosen; ++i) {
      Member &giver = *candidates[i].member;
      uint64_t bytes = 0;
      for (uint32_t d = 0; d < devices_count_; ++d) {
        giver.give[d] = std::min(missing[d], takeable(giver, d));
        missing[d] -= giver.give[d];
        bytes += giver.give[d];
      }
      giver.give_number = ++last_give_;
      giver.give_until = now + kPatienceMs + bytes / kBytesPerMs;
      giver.must_send = true;
    }
    return;
  }
  tell_holders(waiting, "");
  if (waiting.waits_for_others == 0) waiting.waits_for_others = now;
  const bool asks_all = !is_filled || now >= waiting.waits_for_others + kAskAgainMs;
  for (Member &user : members_) {
    bool has_something = false;
    for (uint32_t d = 0; d < devices_count_; ++d)
      has_something = has_something || (missing[d] != 0 && gain_of(user, d) != 0);
    if (!user.is_there || !user.is_connected || user.report.state != LeaseState::kInUse || !has_something) continue;
    if (now < user.free_for_all) {
      wake_at(user.free_for_all);
    } else if ((user.is_planned || asks_all) &&
               (waiting.report.priority >= user.report.priority || is_old(waiting, now))) {
      ask(user, waiting, now);
    }
  }
}

void LeaseArbiter::ask(Member &user, Member &waiting, uint64_t now) {
  uint64_t &asked_at = user.asked_at[&waiting - members_];
  if (asked_at >= waiting.waits_for_others && now < asked_at + kAskAgainMs) return;
  ++user.ask_number;
  asked_at = now;
  user.ask_bytes = 0;
  for (uint32_t d = 0; d < devices_count_; ++d) user.ask_bytes += waiting.wanted[d];
  user.ask_waiting_ms = now - waiting.state_since;
  user.ask_priority = waiting.report.priority;
  user.ask_process = waiting.process;
  std::snprintf(user.ask_name, sizeof user.ask_name, "%s", waiting.report.name);
  user.must_send = true;
}

void LeaseArbiter::deny(Member &waiting) {
  waiting.denied_request = waiting.report.request;
  waiting.denied_attempt = waiting.report.attempt;
  tell_holders(waiting, "free memory and all offers are less than that: ");
  waiting.must_send = true;
}

void LeaseArbiter::tell_holders(Member &waiting, const char *why) {
  char text[sizeof waiting.text];
  LeaseText out(text, sizeof text);
  out.add("%s", why);
  const char *between = "";
  for (uint32_t d = 0; d < devices_count_; ++d) {
    if (waiting.wanted[d] == 0) continue;
    const uint8_t *uuid = devices_[d].bytes;
    const char *separator = std::exchange(between, " ");
    out.add("%sdevice %02x%02x%02x%02x: %" PRIu64 " bytes wanted, %" PRIu64 " free", separator, uuid[0], uuid[1],
            uuid[2], uuid[3], waiting.wanted[d], waiting.free[d]);
    for (const Member &other : members_) {
      if (!other.is_there || !other.is_registered || &other == &waiting || other.held[d] + promised(other, d) == 0)
        continue;
      out.add(", \"%s\" (process %" PRId32 ") holds %" PRIu64 " and offers %" PRIu64 "%s", other.report.name,
              other.process, other.held[d], other.offered[d], other.uses() ? ", in use" : "");
      if (promised(other, d) != 0) out.add(", %" PRIu64 " are kept for it", promised(other, d));
    }
    out.add(".");
  }
  if (std::strcmp(text, waiting.text) == 0) return;
  std::memcpy(waiting.text, text, sizeof text);
  waiting.must_send = true;
}

// --- Orders ----------------------------------------------------------------------------------------------------------

bool LeaseArbiter::next_order(uint64_t now, uint32_t *slot, LeaseOrder *out) {
  uint32_t wanted = 0;
  for (const Member &member : members_)
    if (member.is_there && member.waits()) wanted |= wanted_by(member);
  for (uint32_t i = 0; i < kMembers; ++i) {
    Member &member = members_[i];
    if (!member.is_there || !member.is_connected || !member.is_registered) continue;
    uint64_t round = 0;
    for (uint32_t d = 0; d < devices_count_; ++d)
      if ((member.devices & wanted & 1u << d) != 0) round = std::max(round, changed_[d]);
    const bool is_due = member.has_grant() || member.is_giving() || member.report.round < round;
    const bool is_new_round = member.sent_round < round;
    if (!member.must_send && !is_new_round && !(is_due && now >= member.sent_at + kRepeatMs)) continue;
    if (member.report.round >= member.sent_round) member.silent_since = now;
    member.must_send = false;
    member.sent_at = now;
    member.sent_round = std::max(member.sent_round, round_of(member));
    LeaseOrder order;
    order.number = ++member.order_number;
    order.incarnation = incarnation_;
    order.round = member.sent_round;
    order.granted_request = member.granted_request;
    order.granted_attempt = member.granted_attempt;
    order.denied_request = member.denied_request;
    order.denied_attempt = member.denied_attempt;
    order.give = member.is_giving() ? member.give_number : 0;
    order.ask = member.ask_number;
    order.ask_bytes = member.ask_bytes;
    order.ask_waiting_ms = member.ask_waiting_ms;
    order.ask_priority = member.ask_priority;
    order.ask_process = member.ask_process;
    std::snprintf(order.ask_name, sizeof order.ask_name, "%s", member.ask_name);
    std::snprintf(order.text, sizeof order.text, "%s", member.text);
    for (uint32_t d = 0; d < devices_count_; ++d) {
      if (order.give == 0 || member.give[d] == 0) continue;
      order.rows[order.devices].device = devices_[d];
      order.rows[order.devices++].give = member.give[d];
    }
    *slot = i;
    *out = order;
    return true;
  }
  return false;
}

}  // namespace gmm
