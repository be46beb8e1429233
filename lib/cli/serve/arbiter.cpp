// SPDX-License-Identifier: Apache-2.0
#include "cli/serve/arbiter.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdio>

#include "base/name.h"

namespace gmm {
namespace {

using Phase = LeaseArbiter::Phase;
using Row = LeaseArbiter::Row;

bool is_valid(const LeaseReport &report) {
  if (!report.header.is(ServeKind::kLeaseReport) || report.devices > kLeaseDevices ||
      report.state > LeaseState::kInUse || !is_plain_name(report.name))
    return false;
  for (uint32_t i = 0; i < report.devices; ++i) {
    const LeaseRow &row = report.rows[i];
    if (std::max({row.free, row.held, row.floor, row.offered, row.wanted, row.granted}) > kLeaseMostBytes) return false;
    for (uint32_t k = 0; k < i; ++k)
      if (report.rows[k].device == row.device) return false;
  }
  return true;
}

Phase phase_of(const LeaseReport &report, const LeaseCommand &command) {
  static constexpr Phase kOfStates[] = {Phase::kIdle, Phase::kWaiting, Phase::kTaking, Phase::kInUse};
  if (report.state != LeaseState::kWaiting || !command.answers(report.request, report.attempt))
    return kOfStates[static_cast<uint32_t>(report.state)];
  return command.answer == LeaseAnswer::kGranted ? Phase::kGranted : Phase::kDenied;
}

}  // namespace

LeaseArbiter::LeaseArbiter(uint64_t number, bool has_predecessor, uint64_t now)
    : number_(number), began_(now), has_predecessor_(has_predecessor) {}

LeaseArbiter::~LeaseArbiter() {
  while (!members_.empty()) end_member(members_.size() - 1);
}

// --- Members and devices ---------------------------------------------------------------------------------------------

LeaseArbiter::Member *LeaseArbiter::add(int32_t process, void *user) {
  if (!members_.reserve(members_.size() + 1)) return nullptr;
  Member *member = allocator_.create<Member>();
  if (member == nullptr) return nullptr;
  member->process = process;
  member->user = user;
  members_.push_back_reserved(member);
  return member;
}

// A member that was cut off may come again: the rest of its grant stays for a while.
void LeaseArbiter::remove(Member *member, uint64_t now) {
  now_ = now;
  for (Row &row : member->used_rows()) {
    const uint64_t granted = member->may_hold_a_grant() ? row.granted : 0;
    static_cast<LeaseRow &>(row) = LeaseRow{};
    row.granted = granted;
    row.give = 0;
    begin_round_of_taking(row.of);
  }
  member->gone_at = member->phase == Phase::kNew ? 0 : now_;
  member->phase = Phase::kGone;
  member->command.give = 0;
  end_those_gone();
}

void LeaseArbiter::end_member(uint64_t index) {
  Member *member = members_[index];
  replace_rows(member, nullptr, 0);
  members_.erase(index);
  allocator_.destroy(member);
}

void LeaseArbiter::end_those_gone() {
  for (uint64_t i = members_.size(); i-- != 0;) {
    const Member &member = *members_[i];
    if (member.phase != Phase::kGone) continue;
    if (now_ < member.gone_at + kGraceMs) {
      wake_at(member.gone_at + kGraceMs);
      continue;
    }
    for (const Row &row : member.used_rows()) begin_round_of_taking(row.of);
    end_member(i);
  }
}

void LeaseArbiter::end_former_connection(uint64_t identity) {
  for (uint64_t i = members_.size(); i-- != 0;)
    if (members_[i]->phase == Phase::kGone && members_[i]->report.identity == identity) end_member(i);
}

// NULL: there is no memory. A device without users ends with the next change of rows.
LeaseArbiter::Device *LeaseArbiter::device_of(const LeaseUuid &uuid) {
  for (Device *device : devices_)
    if (device->uuid == uuid) return device;
  if (!devices_.reserve(devices_.size() + 1)) return nullptr;
  Device *device = allocator_.create<Device>();
  if (device == nullptr) return nullptr;
  device->uuid = uuid;
  devices_.push_back_reserved(device);
  return device;
}

bool LeaseArbiter::read_rows(const LeaseReport &report, Row rows[kLeaseDevices]) {
  for (uint32_t i = 0; i < report.devices; ++i) {
    static_cast<LeaseRow &>(rows[i]) = report.rows[i];
    rows[i].of = device_of(report.rows[i].device);
    if (rows[i].of == nullptr) return false;
  }
  return true;
}

void LeaseArbiter::replace_rows(Member *member, const Row rows[kLeaseDevices], uint32_t count) {
  std::copy_n(rows, count, member->rows);
  member->row_count = count;
  for (uint64_t i = devices_.size(); i-- != 0;) {
    if (std::any_of(members_.begin(), members_.end(), [&](const Member *each) { return each->row_of(devices_[i]); }))
      continue;
    allocator_.destroy(devices_[i]);
    devices_.erase_unordered(i);
  }
}

// Calls fn(member, row) for the rows that other members have of a device.
template <typename Fn>
void LeaseArbiter::for_others(const Member &waiting, const Device *device, Fn fn) const {
  for (const Member *other : members_)
    if (const Row *row = other == &waiting ? nullptr : other->row_of(device)) fn(*other, *row);
}

// --- Reports ---------------------------------------------------------------------------------------------------------

bool LeaseArbiter::receive(Member *member, const LeaseReport &report, uint64_t now) {
  now_ = now;
  if (!is_valid(report) || report.round > round_ || report.gave > last_give_) return false;
  const LeaseReport &last = member->report;
  if (report.number <= last.number) return true;
  const bool is_first = member->phase == Phase::kNew;
  if (report.former != 0 && report.former != number_) has_predecessor_ = true;
  if (is_first) end_former_connection(report.identity);
  Row rows[kLeaseDevices];
  if (!read_rows(report, rows)) return false;
  // Free memory may change all the time. A change in the answer to a round begins no other round.
  const bool is_answer = report.round > last.round;
  const bool is_same_state = !is_first && report.state == last.state && report.request == last.request;
  const bool is_step = !is_same_state || report.attempt != last.attempt;
  const bool has_carried_out = member->is_giving() && report.gave >= member->command.give;
  // A grant that is not this request's any more was given up, or came short.
  const bool is_of_grant = member->phase == Phase::kGranted && report.state != LeaseState::kIdle &&
                           member->command.answers(report.request, report.attempt);
  const bool is_pending = is_of_grant && report.state == LeaseState::kWaiting;
  if (report.state != LeaseState::kWaiting || !member->command.answers(report.request, report.attempt))
    member->command.answer = LeaseAnswer::kNone;
  const Phase phase = phase_of(report, member->command);
  const bool may_hold_a_grant = phase == Phase::kGranted || phase == Phase::kTaking || phase == Phase::kInUse;
  bool has_given = false;
  for (uint32_t i = 0; i < report.devices; ++i) {
    Row &row = rows[i];
    const Row *known = member->row_of(row.of);
    const Row before = known == nullptr ? Row{} : *known;
    // The bytes that a member reports as granted never rise.
    if (is_pending)
      row.granted = before.granted;
    else if (!is_first && !is_of_grant)
      row.granted = std::min(row.granted, before.granted);
    if (!may_hold_a_grant) row.granted = 0;
    row.give = has_carried_out ? 0 : before.give;
    has_given = has_given || (before.give != 0 && row.offered < before.offered);
    const bool has_moved = row.held != before.held || row.offered != before.offered;
    if (is_first || row.promised() < before.promised())
      begin_round_of_taking(row.of);
    else if (known == nullptr || row.granted < before.granted || (!is_answer && row.free != before.free) ||
             (is_step && (has_moved || row.wanted != 0)) || (has_carried_out && (has_moved || before.give != 0)))
      begin_round(row.of);
  }
  for (const Row &before : member->used_rows()) {
    const bool stays = std::any_of(rows, rows + report.devices, [&](const Row &row) { return row.of == before.of; });
    if (!stays && before.promised() != 0) begin_round_of_taking(before.of);
  }
  if (has_carried_out && !has_given) member->refused_until = now_ + kRefusedMs;
  if (is_first) member->must_send = true;
  if (is_first || is_answer) member->silent_since = now_;  // it may be slow, but it answers
  if (report.state != LeaseState::kWaiting) member->waits_for_others = 0;
  if (is_step) member->answers_due_since = 0;
  if (report.request != last.request) member->command.text[0] = 0;
  member->resident_until = now_ + report.residency_ms - std::min(report.grant_ms, report.residency_ms);
  // A report that was under way for long says too little.
  const uint64_t since = now_ - std::min(now_, report.state_ms);
  member->state_since = is_same_state ? std::min(member->state_since, since) : since;
  member->report = report;
  member->phase = phase;
  replace_rows(member, rows, report.devices);
  return true;
}

// --- Decisions -------------------------------------------------------------------------------------------------------

uint64_t LeaseArbiter::step(uint64_t now) {
  now_ = now;
  wake_ = UINT64_MAX;
  end_those_gone();
  Vector<Member *> queue(allocator_);
  if (!find_waiting(&queue)) return now_ + kLookMs;
  const bool was_stopped = looks_at_ != 0 && now_ >= looks_at_ + kAnswerMs;
  looks_at_ = queue.empty() ? 0 : now_ + kLookMs;
  if (queue.empty()) return wake_;
  wake_at(looks_at_);
  // The arbiter was stopped itself, and newer reports than those that it has read may be under way.
  for (Device *device : devices_)
    if (was_stopped) begin_round_of_taking(device);
  // A report may have been lost after its sender had answered the round.
  for (Device *device : devices_)
    if (device->is_wanted && now_ >= device->round_since + kRoundMs) begin_round(device);
  if (now_ < decides_from()) return wake_;
  std::sort(queue.begin(), queue.end(), [&](const Member *a, const Member *b) {
    const bool a_is_old = now_ - a->state_since >= kOldMs, b_is_old = now_ - b->state_since >= kOldMs;
    if (a_is_old != b_is_old) return a_is_old;
    if (!a_is_old && a->report.priority != b->report.priority) return a->report.priority > b->report.priority;
    if (a->state_since != b->state_since) return a->state_since < b->state_since;
    return a->report.identity < b->report.identity;
  });
  bool plans_are_known = true;
  for (Member *next : queue) {
    const bool is_behind = is_behind_others(*next, plans_are_known);
    const Served served = is_behind ? Served::kLater : serve(*next);
    if (is_behind && next->command.text[0] == 0) explain(*next, "it waits behind others; ");
    // A process that does not answer holds up nobody.
    if (served == Served::kDone || is_silent(*next)) continue;
    plans_are_known = plans_are_known && served == Served::kPlanned;
    for (const Row &row : next->used_rows())
      if (row.wanted != 0 || row.offered != 0) row.of->is_claimed = true;
  }
  return wake_;
}

// Begins a step: nothing is claimed or planned yet. False: there is no memory.
bool LeaseArbiter::find_waiting(Vector<Member *> *queue) {
  for (Device *device : devices_) device->is_wanted = device->is_claimed = false;
  for (Member *member : members_) {
    member->is_planned = false;
    if (!member->has_request()) continue;
    if (!queue->push_back(member)) return false;
    for (const Row &row : member->used_rows())
      if (row.wanted != 0) row.of->is_wanted = true;
  }
  return true;
}

// An earlier request keeps its devices. A request of nothing, of a member that has nothing that an earlier one needs,
// waits for none.
bool LeaseArbiter::is_behind_others(const Member &waiting, bool plans_are_known) const {
  if (waiting.is_giving()) return true;
  bool is_claimed = false, wants_nothing = true;
  for (const Row &row : waiting.used_rows()) {
    is_claimed = is_claimed || (row.of->is_claimed && (row.wanted != 0 || row.offered != 0));
    wants_nothing = wants_nothing && row.wanted == 0;
  }
  return is_claimed && !(wants_nothing && !waiting.is_planned && plans_are_known);
}

LeaseArbiter::Served LeaseArbiter::serve(Member &waiting) {
  if (waiting.phase != Phase::kWaiting) return Served::kDone;
  if (!is_measure_fresh(waiting)) return Served::kLater;
  Plan plan{.waiting = waiting};
  bool is_enough = true;
  for (uint32_t i = 0; i < waiting.row_count; ++i) {
    plan.missing[i] = missing_of(waiting, i);
    is_enough = is_enough && plan.missing[i] == 0;
  }
  if (is_enough) {
    grant(waiting);
    return Served::kDone;
  }
  if (is_memory_coming(waiting)) {
    waiting.answers_due_since = 0;
    return Served::kLater;
  }
  // Others may change all the time, or be slow. Their last reports are good enough for a plan.
  if (are_answers_due(waiting)) {
    if (waiting.answers_due_since == 0) waiting.answers_due_since = now_;
    if (now_ < waiting.answers_due_since + kAnswerMs) return Served::kLater;
  }
  waiting.answers_due_since = 0;
  if (may_be_denied(waiting)) {
    // The reports of a round are of different moments, so it is the second one that counts.
    const bool was_doubted = waiting.doubted_request == waiting.report.request;
    waiting.doubted_request = waiting.report.request;
    if (!was_doubted) {
      begin_rounds_of(waiting);
      return Served::kLater;
    }
    answer(waiting, LeaseAnswer::kDenied, Phase::kDenied);
    explain(waiting, "free memory and all offers are less than that: ");
    return Served::kDone;
  }
  if (!choose(&plan)) return Served::kLater;
  const bool may_tell_all = std::all_of(plan.chosen.begin(), plan.chosen.end(),
                                        [](const Candidate &candidate) { return candidate.rank == 0; });
  if (plan.is_filled && may_tell_all)
    tell(plan);
  else
    ask(plan);
  return Served::kPlanned;
}

bool LeaseArbiter::is_measure_fresh(const Member &waiting) const {
  for (const Row &row : waiting.used_rows())
    if (row.wanted != 0 && waiting.report.round < row.of->taken) return false;
  return true;
}

// By the free memory that the waiting member measured, less the bytes that are kept for others.
uint64_t LeaseArbiter::missing_of(const Member &waiting, uint32_t row) const {
  uint64_t needed = waiting.rows[row].wanted;
  if (needed == 0) return 0;
  for_others(waiting, waiting.rows[row].of, [&](const Member &, const Row &other) { needed += other.promised(); });
  return needed > waiting.rows[row].free ? needed - waiting.rows[row].free : 0;
}

void LeaseArbiter::answer(Member &waiting, LeaseAnswer answer, Phase phase) {
  waiting.command.answer = answer;
  waiting.command.request = waiting.report.request;
  waiting.command.attempt = waiting.report.attempt;
  waiting.phase = phase;
  waiting.must_send = true;
}

void LeaseArbiter::begin_rounds_of(const Member &waiting) {
  for (const Row &row : waiting.used_rows())
    if (row.wanted != 0) begin_round(row.of);
}

void LeaseArbiter::grant(Member &waiting) {
  answer(waiting, LeaseAnswer::kGranted, Phase::kGranted);
  for (Row &row : waiting.used_rows()) row.granted = row.wanted;
  begin_rounds_of(waiting);
}

// Somebody gives up memory that the request wants.
bool LeaseArbiter::is_memory_coming(const Member &waiting) const {
  bool is_coming = false;
  for (const Row &wanted : waiting.used_rows()) {
    if (wanted.wanted == 0) continue;
    for_others(waiting, wanted.of, [&](const Member &other, const Row &row) {
      is_coming = is_coming || (other.is_giving() && row.give != 0 && now_ < other.give_until);
    });
  }
  return is_coming;
}

// Whether a member answered the rounds of the devices that the request wants.
bool LeaseArbiter::has_answered(const Member &member, const Member &waiting) const {
  for (const Row &row : waiting.used_rows()) {
    const bool is_shared = row.wanted != 0 && member.row_of(row.of) != nullptr;
    if (is_shared && (!member.is_connected() || member.report.round < row.of->changed)) return false;
  }
  return true;
}

// It was asked for a report, and did not answer in time.
bool LeaseArbiter::is_silent(const Member &member) const {
  return member.command.round > member.report.round && now_ >= member.silent_since + kAnswerMs;
}

bool LeaseArbiter::are_answers_due(const Member &waiting) const {
  return std::any_of(members_.begin(), members_.end(), [&](const Member *member) {
    if (has_answered(*member, waiting)) return false;
    return member == &waiting || (member->is_connected() && !is_silent(*member));
  });
}

// A missing answer denies nobody.
bool LeaseArbiter::may_be_denied(const Member &waiting) const {
  return now_ >= denies_from() && !can_ever_be_met(waiting) &&
         std::all_of(members_.begin(), members_.end(),
                     [&](const Member *member) { return has_answered(*member, waiting); });
}

// By free memory and all offers, in use or not, less the floors of others.
bool LeaseArbiter::can_ever_be_met(const Member &waiting) const {
  for (const Row &own : waiting.used_rows()) {
    uint64_t reachable = own.free, floors = 0;
    for_others(waiting, own.of, [&](const Member &, const Row &row) {
      reachable += row.gain();
      floors += row.floor_left();
    });
    if (own.wanted > reachable - std::min(reachable, floors)) return false;
  }
  return true;
}

// --- Plans -----------------------------------------------------------------------------------------------------------

uint64_t LeaseArbiter::Plan::gain_of(const Member &member, uint32_t row) const {
  const Row *of_member = missing[row] == 0 ? nullptr : member.row_of(waiting.rows[row].of);
  return of_member == nullptr ? 0 : of_member->gain();
}

bool LeaseArbiter::Plan::helps(const Member &member) const {
  for (uint32_t i = 0; i < waiting.row_count; ++i)
    if (gain_of(member, i) != 0) return true;
  return false;
}

// Whether the chosen members fill the missing bytes, also without one of them.
bool LeaseArbiter::Plan::fills(const Member *without) const {
  for (uint32_t i = 0; i < waiting.row_count; ++i) {
    uint64_t gain = 0;
    for (const Candidate &candidate : chosen) gain += candidate.member == without ? 0 : gain_of(*candidate.member, i);
    if (gain < missing[i]) return false;
  }
  return true;
}

// Chooses as many members as fill the missing bytes; then, from the last on, leaves out superfluous ones. False: there
// is no memory.
bool LeaseArbiter::choose(Plan *plan) {
  Vector<Candidate> candidates(allocator_);
  for (Member *other : members_) {
    const bool may_give = other->phase != Phase::kGone && other->phase != Phase::kGranted && !other->is_giving();
    if (other == &plan->waiting || !may_give || now_ < other->refused_until) continue;
    if (!plan->helps(*other)) continue;
    const uint64_t idle_s = (now_ - std::min(now_, other->state_since)) / 1000;
    const uint32_t rank = other->uses() ? 2 : now_ < other->resident_until ? 1 : 0;
    if (!candidates.push_back(Candidate{other, rank, static_cast<uint64_t>(std::bit_width(idle_s))})) return false;
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate &a, const Candidate &b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    const LeaseReport &x = a.member->report, &y = b.member->report;
    if (x.priority != y.priority) return x.priority < y.priority;
    if (a.idle != b.idle) return a.idle > b.idle;
    if (x.cost != y.cost) return x.cost < y.cost;
    return x.identity < y.identity;
  });
  if (!plan->chosen.reserve(candidates.size())) return false;
  for (const Candidate &candidate : candidates)
    if (!plan->fills(nullptr)) plan->chosen.push_back_reserved(candidate);
  plan->is_filled = plan->fills(nullptr);
  for (uint64_t i = plan->chosen.size(); plan->is_filled && i-- != 0;)
    if (plan->fills(plan->chosen[i].member)) plan->chosen.erase(i);
  for (const Candidate &candidate : plan->chosen) {
    candidate.member->is_planned = true;
    if (candidate.rank == 1) wake_at(candidate.member->resident_until);
  }
  return true;
}

// Commands the chosen members to give up the missing bytes.
void LeaseArbiter::tell(Plan &plan) {
  plan.waiting.waits_for_others = 0;
  for (const Candidate &candidate : plan.chosen) {
    Member &giver = *candidate.member;
    uint64_t bytes = 0;
    for (Row &row : giver.used_rows()) {
      row.give = 0;
      for (uint32_t k = 0; k < plan.waiting.row_count; ++k) {
        if (plan.waiting.rows[k].of != row.of) continue;
        row.give = std::min(plan.missing[k], row.takeable());
        plan.missing[k] -= row.give;
      }
      bytes += row.give;
    }
    giver.command.give = ++last_give_;
    giver.give_until = now_ + kPatienceMs + bytes / kBytesPerMs;
    giver.must_send = true;
  }
}

// Asks the chosen members that are in use; after a while all that have something. A member is asked for a lower
// priority only when that request is old.
void LeaseArbiter::ask(Plan &plan) {
  Member &waiting = plan.waiting;
  explain(waiting, "");
  if (waiting.waits_for_others == 0) waiting.waits_for_others = now_;
  const bool asks_all = !plan.is_filled || now_ >= waiting.waits_for_others + kAskAgainMs;
  const bool is_old = now_ - waiting.state_since >= kOldMs;
  for (Member *user : members_) {
    if (user->phase != Phase::kInUse || !plan.helps(*user)) continue;
    if (now_ < user->resident_until)
      wake_at(user->resident_until);
    else if ((user->is_planned || asks_all) && (is_old || waiting.report.priority >= user->report.priority))
      ask_one(*user, waiting);
  }
}

// Once a second, or at once when nobody waits any more for whom it was asked.
void LeaseArbiter::ask_one(Member &user, const Member &waiting) {
  const bool still_waits = std::any_of(members_.begin(), members_.end(), [&](const Member *member) {
    return member->phase == Phase::kWaiting && member->report.identity == user.asked_identity &&
           member->report.request == user.asked_request;
  });
  if (still_waits && now_ < user.asked_at + kAskAgainMs) return;
  user.asked_identity = waiting.report.identity;
  user.asked_request = waiting.report.request;
  user.asked_at = now_;
  gmm_lease_ask &asked = user.command.asked;
  ++user.command.ask;
  asked.bytes = 0;
  for (const Row &row : waiting.used_rows()) asked.bytes += row.wanted;
  asked.waiting_ms = now_ - waiting.state_since;
  asked.priority = waiting.report.priority;
  asked.process = waiting.process;
  std::memcpy(asked.name, waiting.report.name, sizeof asked.name);
  user.must_send = true;
}

// Sends the waiting member the holders of the memory that it waits for.
void LeaseArbiter::explain(Member &waiting, const char *why) {
  char text[sizeof waiting.command.text];
  uint64_t used = 0;
  const auto add = [&](const char *format, auto... values) {  // text that does not fit is cut
    const int length = std::snprintf(text + used, sizeof text - used, format, values...);
    used = std::min(sizeof text - 1, used + static_cast<uint64_t>(std::max(length, 0)));
  };
  add("%s", why);
  const char *separator = "";
  for (const Row &row : waiting.used_rows()) {
    if (row.wanted == 0) continue;
    const uint8_t *uuid = row.device.bytes;
    add("%sdevice %02x%02x%02x%02x: %" PRIu64 " bytes wanted, %" PRIu64 " free", separator, uuid[0], uuid[1], uuid[2],
        uuid[3], row.wanted, row.free);
    separator = " ";
    for_others(waiting, row.of, [&](const Member &other, const Row &held) {
      if (held.held + held.promised() == 0) return;
      add(", \"%s\" (process %" PRId32 ") holds %" PRIu64 " and offers %" PRIu64 "%s", other.report.name, other.process,
          held.held, held.offered, other.uses() ? ", in use" : "");
      if (held.promised() != 0) add(", %" PRIu64 " are kept for it", held.promised());
    });
    add("%s", ".");
  }
  if (std::strcmp(text, waiting.command.text) == 0) return;
  std::memcpy(waiting.command.text, text, sizeof text);
  waiting.must_send = true;
}

// --- Commands and the list -------------------------------------------------------------------------------------------

LeaseArbiter::Member *LeaseArbiter::next_command(uint64_t now, LeaseCommand *out) {
  for (Member *member : members_) {
    if (member->phase == Phase::kGone) continue;
    uint64_t wanted_round = 0, round = member->command.round;
    for (const Row &row : member->used_rows()) {
      round = std::max(round, row.of->changed);
      if (row.of->is_wanted) wanted_round = std::max(wanted_round, row.of->changed);
    }
    const bool is_due = member->phase == Phase::kGranted || member->is_giving() || member->report.round < wanted_round;
    const bool is_new = member->must_send || member->command.round < wanted_round;
    if (!is_new && !(is_due && now >= member->sent_at + kRepeatMs)) continue;
    if (member->report.round >= member->command.round) member->silent_since = now;
    member->must_send = false;
    member->sent_at = now;
    member->command.round = round;
    member->command.server = number_;
    ++member->command.number;
    *out = member->command;
    if (!member->is_giving()) out->give = 0;
    for (const Row &row : member->used_rows())
      if (out->give != 0 && row.give != 0) out->rows[out->devices++] = LeaseCommand::Row{row.device, row.give};
    return member;
  }
  return nullptr;
}

// An entry for each device of a member; one without devices has one, too.
void LeaseArbiter::list(uint64_t index, uint64_t now, gmm_lease_entry_info *out) const {
  out->server = number_;
  for (const Member *member : members_) {
    if (member->phase == Phase::kGone) continue;
    const uint64_t entries = std::max(member->row_count, 1u), first = out->entry_count;
    out->entry_count += entries;
    if (index < first || index >= out->entry_count) continue;
    out->since_ms = now - std::min(now, member->state_since);
    out->process = member->process;
    out->priority = member->report.priority;
    out->state = public_state(member->report.state);
    std::memcpy(out->name, member->report.name, sizeof out->name);
    if (member->row_count == 0) continue;
    const Row &row = member->rows[index - first];
    std::memcpy(out->uuid, row.device.bytes, sizeof out->uuid);
    out->free_bytes = row.free;
    out->held_bytes = row.held;
    out->floor_bytes = row.floor;
    out->offered_bytes = row.offered;
    out->wanted_bytes = row.wanted;
    out->granted_bytes = row.granted;
  }
}

}  // namespace gmm
