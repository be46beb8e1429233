// SPDX-License-Identifier: Apache-2.0
// Leases in a simulation: an arbiter and members with a virtual clock. Devices refuse what they do not have. Messages
// are lost, delayed, doubled and changed, and connections cut. Processes, the server's too, die or stop at any step. A
// seed decides everything.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "cli/serve/arbiter.h"
#include "engine/lease/member.h"

namespace gmm::test {
namespace {

constexpr uint64_t kLeaseNever = UINT64_MAX, kLeaseCapacity = 1000;
// So many times fewer histories run under a sanitizer. The plain build runs all.
constexpr uint64_t kFewer = CHECK_SANITIZED ? 10 : 1;

// In permille of the messages, of the steps of a process, of its measures, and of its pauses for others.
struct LeaseFaults {
  uint32_t lost = 0, doubled = 0, delayed = 0, cut = 0, killed = 0, stopped = 0;
  uint32_t slow = 0;            // a measure takes up to slow_ms
  uint32_t deaf = 0;            // a pause takes many seconds, and its process hears nothing
  uint32_t arbiter_killed = 0;  // during the pause of another process
  uint32_t forged = 0;          // a message has other bytes: nothing that its sender promised counts
  uint64_t slow_ms = 400;
  bool outsider = false;  // a process without a lease takes and gives memory
  bool any() const {
    return lost + doubled + delayed + cut + killed + stopped + slow + deaf + arbiter_killed + forged != 0 || outsider;
  }
};

class LeaseSimulation {
 public:
  struct Process {
    std::unique_ptr<LeaseMember> member;
    int32_t priority = 0;
    bool is_dead = false, returns_when_asked = true;
    uint64_t stopped_until = 0;
    // Its memory: pages of the offered tag, the tag's paused bytes, and what is not offered.
    uint64_t pages[2] = {}, paused[2] = {}, extra[2] = {}, floor[2] = {};
    bool is_pausing = false, is_measuring = false, is_resuming = false, may_have_lost_its_promise = false;
    uint64_t busy_until = 0;                // its lease's thread pauses or measures
    uint64_t possible_since = kLeaseNever;  // since when what it waits for could be met
    bool is_busy() const { return is_pausing || is_measuring; }
    uint64_t granted_at = 0, residency = 0, asked_at = 0, deadline = kLeaseNever, cut_since = 0;
    uint64_t link = 0;                      // of its connection; 0: none
    LeaseArbiter::Member *entry = nullptr;  // by its first report on this connection
    uint64_t grants = 0, denials = 0, timeouts = 0, shorts = 0, use_ms = 100, rest_ms = 100;
    uint64_t longest_wait = 0;
    uint64_t timer = 0;
    uint64_t timeout = 60'000;
  };

  LeaseSimulation(uint64_t seed, uint32_t processes, uint32_t devices) : random_(seed), devices_(devices) {
    processes_.resize(processes);
    for (uint32_t i = 0; i < processes; ++i) {
      Process &process = processes_[i];
      process.priority = static_cast<int32_t>(chance(3));
      process.residency = chance(3) * 150;
      process.use_ms = 1 + chance(300);
      process.rest_ms = 1 + chance(400);
      process.member = std::make_unique<LeaseMember>(100 + i, ("p" + std::to_string(i)).c_str(), process.priority,
                                                     process.residency);
      for (uint32_t d = 0; d < devices; ++d) {
        process.paused[d] = chance(4) == 0 ? 0 : 100 + chance(500);
        process.floor[d] = chance(4) == 0 ? chance(150) : 0;
      }
    }
  }

  Process &operator[](uint32_t i) { return processes_[i]; }
  const Process &operator[](uint32_t i) const { return processes_[i]; }
  uint32_t size() const { return static_cast<uint32_t>(processes_.size()); }
  uint64_t chance(uint64_t below) { return below == 0 ? 0 : random_() % below; }
  uint64_t now() const { return now_; }

  // Every process asks, uses and returns by turns until `until`; then what runs ends.
  void run(uint64_t until) {
    until_ = until;
    for (uint32_t i = 0; i < size(); ++i) {
      at(now_ + chance(20), i, [this, i] { connect(i); });
      at(now_ + chance(200), i, [this, i] { ask_for_memory(i); });
    }
    if (faults.outsider) at(now_ + 50, kNobody, [this] { take_from_outside(); });
    // The claims of forged messages end with the server that heard them.
    if (faults.forged != 0 && now_ < faults_until) at(faults_until, kNobody, [this] { end_arbiter(); });
    while (!events_.empty()) {
      const Item item = events_.top();
      events_.pop();
      now_ = item.time;
      if (item.process < kServer && processes_[item.process].is_dead) continue;
      uint64_t *const stopped_until = item.process < kServer    ? &processes_[item.process].stopped_until
                                      : item.process == kServer ? &server_stopped_until_
                                                                : nullptr;
      const bool may_fail = stopped_until != nullptr && *stopped_until <= now_ && now_ < faults_until;
      if (may_fail && strikes(faults.killed) && (item.process == kServer || living() > 1)) {
        item.process == kServer ? end_arbiter() : kill(item.process);
        continue;
      }
      if (may_fail && strikes(faults.stopped)) *stopped_until = now_ + 10 + chance(3000);
      if (stopped_until != nullptr && *stopped_until > now_) {
        events_.push(Item{*stopped_until, ++last_, item.process, item.fn});
        continue;
      }
      (*item.fn)();
      for (uint32_t i = 0; i < size(); ++i) {
        Process &each = processes_[i];
        if (each.member->state() != LeaseState::kWaiting || !can_be_met(i))
          each.possible_since = kLeaseNever;
        else if (each.possible_since == kLeaseNever)
          each.possible_since = now_;
      }
      if (::testing::Test::HasFailure()) return;
    }
  }

  uint64_t free_of(uint32_t d) const {
    uint64_t used = outsider_[d];
    for (const Process &process : processes_)
      if (!process.is_dead) used += process.pages[d] + process.extra[d];
    EXPECT_LE(used, kLeaseCapacity);
    return kLeaseCapacity - used;
  }
  uint32_t living() const {
    uint32_t count = 0;
    for (const Process &process : processes_) count += !process.is_dead;
    return count;
  }
  bool always_fits(uint32_t i) const {
    for (uint32_t d = 0; d < devices_; ++d) {
      uint64_t sum = processes_[i].pages[d] + processes_[i].paused[d];
      for (uint32_t k = 0; k < size(); ++k) sum += k == i || processes_[k].is_dead ? 0 : processes_[k].floor[d];
      if (sum > kLeaseCapacity) return false;
    }
    return true;
  }
  // By free memory and all that others offer, less their floors.
  bool can_be_met(uint32_t i) const {
    for (uint32_t d = 0; d < devices_; ++d) {
      uint64_t reachable = free_of(d), floors = 0;
      for (uint32_t k = 0; k < size(); ++k) {
        const Process &other = processes_[k];
        if (k == i || other.is_dead) continue;
        const uint64_t held = other.pages[d] + other.extra[d];
        // The arbiter can't take from processes without a connection.
        const bool is_gone = other.link == 0 && now_ >= other.cut_since + LeaseArbiter::kGraceMs;
        reachable += is_gone ? 0 : std::min(other.pages[d], held - std::min(held, other.floor[d]));
        floors += other.floor[d] - std::min(held, other.floor[d]);
      }
      if (processes_[i].paused[d] + wanted_extra(processes_[i], d) + floors > reachable) return false;
    }
    return true;
  }
  void kill(uint32_t i) {
    processes_[i].is_dead = true;
    if (processes_[i].link != 0) cut(i);
  }

  LeaseFaults faults;
  uint64_t faults_until = kLeaseNever;
  bool has_extras = true;
  uint64_t arbiters = 0, gives = 0, deaf_gives = 0, killed_in_pauses = 0, checked_denials = 0;

 private:
  static constexpr uint32_t kNobody = UINT32_MAX, kServer = UINT32_MAX - 1;
  struct Item {
    uint64_t time, number;
    uint32_t process;  // whose event; kServer: the server's, kNobody: nobody's
    std::shared_ptr<std::function<void()>> fn;
    bool operator<(const Item &other) const { return time != other.time ? time > other.time : number > other.number; }
  };
  void at(uint64_t time, uint32_t process, std::function<void()> fn) {
    events_.push(Item{time, ++last_, process, std::make_shared<std::function<void()>>(std::move(fn))});
  }
  bool strikes(uint32_t permille) { return permille != 0 && chance(1000) < permille; }

  // --- Connections: a number for each, so that what is under way on an old one is lost ---
  void connect(uint32_t i) {
    Process &process = processes_[i];
    if (process.link != 0) return;
    if (process.is_busy()) return at(process.busy_until, i, [this, i] { connect(i); });
    if (!arbiter_) {
      arbiter_ = std::make_unique<LeaseArbiter>(arbiters + 1, arbiters != 0, now_);
      ++arbiters;
      ++arbiter_timer_;
    }
    if (process.cut_since != 0 && now_ - process.cut_since >= LeaseArbiter::kGraceMs) mark_late(process);
    process.link = ++links_;
    process.member->connected();
    run_member(i);
  }
  void mark_late(Process &process) {
    if (process.member->state() == LeaseState::kTaking || process.member->state() == LeaseState::kInUse)
      process.may_have_lost_its_promise = true;
  }
  void cut(uint32_t i) {
    Process &process = processes_[i];
    process.link = 0;
    process.cut_since = now_;
    if (arbiter_ && process.entry != nullptr) arbiter_->remove(process.entry, now_);
    process.entry = nullptr;
    process.member->disconnected();
    if (arbiter_) at(now_, kServer, [this] { run_arbiter(); });
    if (!process.is_dead) at(now_ + 1 + chance(20), i, [this, i] { connect(i); });
  }
  void end_arbiter() {
    arbiter_.reset();
    server_stopped_until_ = 0;
    for (Process &process : processes_) process.entry = nullptr;
    for (uint32_t i = 0; i < size(); ++i)
      if (processes_[i].link != 0) cut(i);
  }
  // Some bytes become others, half of them those of the fields before the text.
  template <typename Message>
  void may_forge(Message *message) {
    constexpr size_t kFields = 96;
    if (now_ >= faults_until || !strikes(faults.forged)) return;
    for (uint64_t times = 1 + chance(7); times != 0; --times)
      reinterpret_cast<uint8_t *>(message)[chance(chance(2) == 0 ? kFields : sizeof *message)] =
          static_cast<uint8_t>(chance(256));
  }
  // fn runs at the receiver, unless the connection has ended.
  void send(uint32_t member, uint32_t receiver, std::function<void()> fn) {
    const uint64_t link = processes_[member].link;
    const bool is_faulty = now_ < faults_until;
    if (is_faulty && strikes(faults.lost)) return;
    if (is_faulty && strikes(faults.cut)) return cut(member);
    const uint32_t copies = is_faulty && strikes(faults.doubled) ? 2 : 1;
    for (uint32_t k = 0; k < copies; ++k) {
      const uint64_t delay = is_faulty && strikes(faults.delayed) ? chance(800) : 1 + chance(3);
      at(now_ + delay, receiver, [this, member, link, fn] {
        if (processes_[member].link == link) fn();
      });
    }
  }

  // --- The arbiter ---
  void run_arbiter() {
    if (!arbiter_) return;
    const uint64_t wake = arbiter_->step(now_);
    check_promises();
    LeaseCommand command;
    while (LeaseArbiter::Member *member = arbiter_->next_command(now_, &command)) {
      const uint32_t i = static_cast<uint32_t>(static_cast<Process *>(member->user) - processes_.data());
      if (command.answer == LeaseAnswer::kDenied && command.request == processes_[i].member->request()) check_denial(i);
      may_forge(&command);
      send(i, i, [this, i, command, link = processes_[i].link] { hear_command(i, command, link); });
    }
    const uint64_t timer = ++arbiter_timer_;
    if (wake != kLeaseNever)
      at(std::max(wake, now_ + 1), kServer, [this, timer] {
        if (timer == arbiter_timer_) run_arbiter();
      });
  }
  // Held bytes, granted bytes that were not taken, and grants under way fit into the device together.
  void check_promises() {
    if (faults.outsider || faults.forged != 0 || now_ < broken_until_) return;
    for (uint32_t d = 0; d < devices_; ++d) {
      uint64_t sum = kLeaseCapacity - free_of(d);
      for (Process &process : processes_) {
        if (process.link == 0 && now_ >= process.cut_since + LeaseArbiter::kGraceMs) mark_late(process);
        if (process.is_dead || process.may_have_lost_its_promise) continue;
        const LeaseState state = process.member->state();
        const bool is_granted = process.entry != nullptr && process.entry->phase == LeaseArbiter::Phase::kGranted &&
                                process.entry->report.request == process.member->request();
        if (state == LeaseState::kTaking || (state == LeaseState::kWaiting && is_granted))
          sum += process.paused[d] + wanted_extra(process, d);
        else if (state == LeaseState::kInUse)
          sum += wanted_extra(process, d) - process.extra[d];
      }
      ASSERT_LE(sum, kLeaseCapacity) << "bytes of device " << d << " were granted twice at " << now_;
    }
  }
  uint64_t wanted_extra(const Process &process, uint32_t d) const {
    return process.member == nullptr ? 0 : extra_[d][&process - processes_.data()];
  }
  // Memory that became free since the arbiter asked for the last answers does not count.
  void check_denial(uint32_t i) {
    if (processes_[i].member->state() != LeaseState::kWaiting) return;
    ++checked_denials;
    if (faults.forged != 0) return;
    const uint64_t tolerance = faults.any() && now_ < faults_until + 2000 ? 1500 : 50;
    const uint64_t since = processes_[i].possible_since;
    ASSERT_FALSE(since != kLeaseNever && since + tolerance <= now_)
        << "process " << i << " was denied at " << now_ << " what could be met since " << since;
  }

  // --- A member's thread ---
  void hear_command(uint32_t i, LeaseCommand command, uint64_t link) {
    Process &process = processes_[i];
    if (process.link != link) return;
    if (!command.header.is(ServeKind::kLeaseCommand) || command.devices > kLeaseDevices) return cut(i);
    ASSERT_TRUE(faults.forged != 0 || std::memchr(command.text, 0, sizeof command.text) != nullptr);
    command.asked.name[sizeof command.asked.name - 1] = command.text[sizeof command.text - 1] = 0;
    if (process.is_busy())
      return at(process.busy_until, i, [this, i, command, link] { hear_command(i, command, link); });
    process.member->receive(command, now_);
    run_member(i);
  }
  void run_member(uint32_t i) {
    Process &process = processes_[i];
    LeaseMember &member = *process.member;
    hear(i);
    if (process.is_busy()) return;
    for (;;) {
      const LeaseMember::Next next = member.next(now_);
      switch (next.act) {
        case LeaseMember::Next::Act::kReport: {
          member.begin_report();
          std::array<LeaseMeasure, 2> measures = {};
          for (uint32_t d = 0; d < devices_; ++d) {
            measures[d].is_used = true;
            measures[d].device.bytes[0] = static_cast<uint8_t>(1 + d);
            measures[d].free = free_of(d);
            measures[d].held = process.pages[d] + process.extra[d];
            measures[d].floor = process.floor[d];
            measures[d].offered = process.pages[d];
            measures[d].paused = process.paused[d];
          }
          if (now_ < faults_until && strikes(faults.slow)) {
            process.is_measuring = true;
            process.busy_until = now_ + 1 + chance(faults.slow_ms);
            return at(process.busy_until, i, [this, i, measures] {
              processes_[i].is_measuring = false;
              if (processes_[i].link != 0) report(i, measures);
              run_member(i);
            });
          }
          report(i, measures);
          if (process.link == 0) return;
          continue;
        }
        case LeaseMember::Next::Act::kGive:
          give(i);
          return;
        case LeaseMember::Next::Act::kAsk:
          member.begin_ask();
          if (process.returns_when_asked) at(now_ + 1 + chance(50), i, [this, i] { return_memory(i); });
          continue;
        case LeaseMember::Next::Act::kWait:
          break;
      }
      const uint64_t timer = ++process.timer;
      if (next.until != kLeaseNever)
        at(next.until, i, [this, i, timer] {
          if (processes_[i].timer == timer) run_member(i);
        });
      return;
    }
  }
  void report(uint32_t i, const std::array<LeaseMeasure, 2> &measures) {
    LeaseReport report;
    processes_[i].member->report(measures.data(), devices_, now_, &report);
    may_forge(&report);
    send(i, kServer, [this, i, report] {
      if (!arbiter_) return;
      Process &sender = processes_[i];
      if (sender.entry == nullptr) sender.entry = arbiter_->add(static_cast<int32_t>(i), &sender);
      const bool is_valid = arbiter_->receive(sender.entry, report, now_);
      ASSERT_TRUE(is_valid || faults.forged != 0);
      if (!is_valid) cut(i);
      run_arbiter();
    });
  }
  void give(uint32_t i) {
    Process &process = processes_[i];
    ASSERT_NE(process.member->state(), LeaseState::kInUse) << "memory in use would be paused";
    ASSERT_NE(process.member->state(), LeaseState::kTaking) << "memory in use would be paused";
    ASSERT_TRUE(faults.forged != 0 || now_ >= process.granted_at + process.residency) << "thrashing";
    const LeaseCommand order = process.member->begin_give();
    process.is_pausing = true;
    ++gives;
    process.busy_until = now_ + 1 + chance(60);
    if (now_ < faults_until && strikes(faults.deaf)) {
      process.busy_until = now_ + LeaseArbiter::kPatienceMs / 2 + chance(2 * LeaseArbiter::kPatienceMs);
      ++deaf_gives;
    }
    if (now_ < faults_until && strikes(faults.arbiter_killed))
      at(now_ + chance(process.busy_until - now_), kNobody, [this, i, number = arbiters] {
        if (!arbiter_ || arbiters != number || !processes_[i].is_pausing) return;
        ++killed_in_pauses;
        end_arbiter();
      });
    at(process.busy_until, i, [this, i, order] {
      Process &self = processes_[i];
      ASSERT_TRUE(self.member->state() == LeaseState::kIdle || self.member->state() == LeaseState::kWaiting);
      const bool refuses = faults.any() && chance(10) == 0;
      for (uint32_t k = 0; k < order.devices && !refuses; ++k) {
        const uint32_t d = order.rows[k].device.bytes[0] - 1u;
        if (d >= devices_) continue;      // a forged one
        self.paused[d] += self.pages[d];  // a tag goes as a whole
        self.pages[d] = 0;
      }
      self.is_pausing = false;
      self.member->gave();
      run_member(i);
    });
  }

  // --- The program ---
  void ask_for_memory(uint32_t i) {
    Process &process = processes_[i];
    if (now_ >= until_) return;
    if (process.is_pausing) return at(process.busy_until + 1, i, [this, i] { ask_for_memory(i); });
    uint64_t extra[kLeaseDevices] = {};
    for (uint32_t d = 0; d < devices_; ++d) {
      extra[d] = has_extras && chance(3) == 0 ? chance(300) : 0;
      extra_[d][i] = extra[d];
    }
    process.asked_at = now_;
    process.deadline = now_ + process.timeout;
    process.member->begin(extra, now_);
    const uint64_t request = process.member->request();
    at(process.deadline, i, [this, i, request] {
      Process &self = processes_[i];
      if (self.member->request() != request || self.member->state() != LeaseState::kWaiting) return;
      ++self.timeouts;
      end_request(i);
      self.member->end(now_);
      run_member(i);
    });
    run_member(i);
  }
  void end_request(uint32_t i) {
    Process &process = processes_[i];
    process.deadline = kLeaseNever;
    for (uint32_t d = 0; d < devices_; ++d) extra_[d][i] = 0;
    at(now_ + process.rest_ms, i, [this, i] { ask_for_memory(i); });
  }
  // The thread that waits for its request.
  void hear(uint32_t i) {
    Process &process = processes_[i];
    if (process.is_resuming || process.deadline == kLeaseNever) return;
    if (process.member->answer() == LeaseAnswer::kDenied) {
      ++process.denials;
      EXPECT_TRUE(faults.forged != 0 || process.member->text()[0] != 0);
      end_request(i);
      return;
    }
    if (process.member->answer() != LeaseAnswer::kGranted) return;
    ASSERT_EQ(process.member->state(), LeaseState::kTaking);
    process.is_resuming = true;
    process.granted_at = now_;
    at(now_ + 1 + chance(60), i, [this, i] { resume(i); });
  }
  void resume(uint32_t i) {
    Process &process = processes_[i];
    process.is_resuming = false;
    ASSERT_EQ(process.member->state(), LeaseState::kTaking);
    bool is_enough = true;
    for (uint32_t d = 0; d < devices_; ++d) is_enough = is_enough && process.paused[d] <= free_of(d);
    if (!is_enough) {
      ++process.shorts;
      if (!faults.outsider && !somebody_lost_a_promise()) FAIL() << "a grant of process " << i << " was too small";
      process.member->came_short();
      if (now_ >= process.deadline) {
        ++process.timeouts;
        end_request(i);
        process.member->end(now_);
      }
      return run_member(i);
    }
    for (uint32_t d = 0; d < devices_; ++d) {
      process.pages[d] += process.paused[d];
      process.paused[d] = 0;
    }
    if (process.link == 0 && now_ >= process.cut_since + LeaseArbiter::kGraceMs) mark_late(process);
    if (process.may_have_lost_its_promise) broken_until_ = now_ + 2000;
    process.member->took(now_);
    ++process.grants;
    process.longest_wait = std::max(process.longest_wait, now_ - process.asked_at);
    process.deadline = kLeaseNever;
    at(now_ + chance(process.use_ms), i, [this, i] { use(i); });
    const uint64_t request = process.member->request();
    at(now_ + process.use_ms + (process.returns_when_asked ? chance(1000) : 0), i, [this, i, request] {
      if (processes_[i].member->request() == request) return_memory(i);
    });
    run_member(i);
  }
  bool somebody_lost_a_promise() const {
    if (faults.forged != 0 || now_ < broken_until_) return true;
    for (const Process &process : processes_)
      if (process.may_have_lost_its_promise) return true;
    return false;
  }
  // It allocates the granted bytes beyond its tags.
  void use(uint32_t i) {
    Process &process = processes_[i];
    if (process.member->state() != LeaseState::kInUse) return;
    for (uint32_t d = 0; d < devices_; ++d) {
      const uint64_t wanted = extra_[d][i] - process.extra[d];
      if (wanted > free_of(d)) {
        if (!faults.outsider && !somebody_lost_a_promise())
          FAIL() << "process " << i << " did not have what it was granted";
        continue;
      }
      // A late process takes free memory that others may have been granted since.
      if (wanted != 0 && process.may_have_lost_its_promise) broken_until_ = now_ + 2000;
      process.extra[d] += wanted;
    }
  }
  void return_memory(uint32_t i) {
    Process &process = processes_[i];
    if (process.member->state() != LeaseState::kInUse) return;
    for (uint32_t d = 0; d < devices_; ++d) {
      // Sometimes the tag grows by what was allocated, else it is freed.
      if (chance(4) == 0 && process.pages[d] + process.extra[d] < 700) process.pages[d] += process.extra[d];
      process.extra[d] = 0;
    }
    process.member->end(now_);
    process.may_have_lost_its_promise = false;
    end_request(i);
    run_member(i);
  }
  void take_from_outside() {
    for (uint32_t d = 0; d < devices_; ++d) {
      outsider_[d] = 0;
      if (now_ < faults_until) outsider_[d] = chance(free_of(d) / 2 + 1);
    }
    if (now_ < until_) at(now_ + 1 + chance(300), kNobody, [this] { take_from_outside(); });
  }

  std::mt19937_64 random_;
  const uint32_t devices_;
  std::vector<Process> processes_;
  std::priority_queue<Item> events_;
  uint64_t now_ = 1000, last_ = 0, until_ = 0;
  uint64_t broken_until_ = 0;
  uint64_t outsider_[2] = {};
  uint64_t extra_[2][8] = {};  // of the request of a process
  std::unique_ptr<LeaseArbiter> arbiter_;
  uint64_t server_stopped_until_ = 0, arbiter_timer_ = 0, links_ = 0;
};

// Nobody asks for more than its tags: a member that fits beside the floors of others at any time was granted them.
void check_service(LeaseSimulation &simulation, uint64_t milliseconds) {
  simulation.has_extras = false;
  for (uint32_t i = 0; i < simulation.size(); ++i) simulation[i].grants = simulation[i].denials = 0;
  simulation.run(simulation.now() + milliseconds);
  for (uint32_t i = 0; i < simulation.size(); ++i) {
    if (simulation[i].is_dead) continue;
    EXPECT_EQ(simulation[i].timeouts, 0u) << i;
    EXPECT_TRUE(simulation[i].grants != 0 || (simulation[i].denials != 0 && !simulation.always_fits(i))) << i;
  }
}

struct LeaseFaultCase {
  const char *name;
  uint64_t seeds;
  LeaseFaults faults;
  bool all_are_served = false;  // the faults only delay, and every request waits long enough
  bool needs_shorts = false;
};
class LeaseFaultTest : public ::testing::TestWithParam<LeaseFaultCase> {};

// After the faults are over, every process that lives is served again. Without a fault everything is granted that can
// be met, at once or after others returned.
TEST_P(LeaseFaultTest, IsSurvived) {
  const LeaseFaultCase &test = GetParam();
  const uint64_t seeds = test.seeds / kFewer;
  uint64_t grants = 0, arbiters = 0, shorts = 0, denials = 0, gives = 0, deaf_gives = 0, killed_in_pauses = 0;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    LeaseSimulation simulation(seed, test.faults.any() ? 2 + seed % 5 : 1 + seed % 6, 1 + seed % 2);
    simulation.faults = test.faults;
    simulation.faults_until = 12'000;
    for (uint32_t i = 0; i < simulation.size(); ++i)
      simulation[i].timeout = test.all_are_served ? 60'000 : 500 + simulation.chance(4000);
    simulation.run(12'000);
    for (uint32_t i = 0; i < simulation.size(); ++i) {
      grants += simulation[i].grants;
      shorts += simulation[i].shorts;
      EXPECT_TRUE(!test.all_are_served || simulation[i].timeouts == 0) << i;
      simulation[i].timeouts = 0;
      simulation[i].timeout = 60'000;
    }
    if (HasFailure()) return;
    check_service(simulation, 10'000);
    gives += simulation.gives;
    deaf_gives += simulation.deaf_gives;
    killed_in_pauses += simulation.killed_in_pauses;
    denials += simulation.checked_denials;
    arbiters += simulation.arbiters;
    if (HasFailure()) return;
  }
  // The faults came, and most requests were granted all the same.
  EXPECT_GT(grants, seeds * 5);
  EXPECT_GT(gives, seeds * 4);
  EXPECT_GT(denials, seeds / 100);
  EXPECT_GE(arbiters, test.faults.killed == 0 ? 0 : seeds + 1);
  EXPECT_TRUE(test.faults.any() || (arbiters == seeds && shorts == 0));
  EXPECT_GE(deaf_gives, test.faults.deaf == 0 ? 0 : 20u / kFewer + 1);
  EXPECT_GE(killed_in_pauses, test.faults.arbiter_killed == 0 ? 0 : 20u / kFewer + 1);
  EXPECT_GE(shorts, !test.needs_shorts ? 0 : 10u / kFewer + 1);
}
INSTANTIATE_TEST_SUITE_P(
    Each, LeaseFaultTest,
    ::testing::Values(LeaseFaultCase{"None", 400, {}, true},
                      LeaseFaultCase{"Messages", 300, {.lost = 50, .doubled = 50, .delayed = 50}, true},
                      LeaseFaultCase{"CutConnections", 300, {.cut = 20}, true},
                      LeaseFaultCase{"DeathsAndStops", 500, {.killed = 1, .stopped = 4}},
                      LeaseFaultCase{"SlowMeasures", 600, {.slow = 300}, true},
                      LeaseFaultCase{"AMemberThatIsDeafWhileItGives", 200, {.deaf = 30}, true},
                      LeaseFaultCase{"ADeathOfTheArbiterDuringAPause", 200, {.deaf = 10, .arbiter_killed = 50}},
                      LeaseFaultCase{"AProcessWithoutALease", 200, {.outsider = true}, false, true},
                      LeaseFaultCase{"ForgedMessages", 300, {.forged = 30}},
                      LeaseFaultCase{"EverythingAtOnce",
                                     400,
                                     {.lost = 20,
                                      .doubled = 20,
                                      .delayed = 20,
                                      .cut = 20,
                                      .killed = 1,
                                      .stopped = 2,
                                      .slow = 50,
                                      .deaf = 50,
                                      .arbiter_killed = 50,
                                      .outsider = true}}),
    [](const auto &test) { return test.param.name; });

// One process beside two others that always want the memory, without floors and residency.
struct LeaseOrderCase {
  const char *name;
  int32_t priority;  // of the others; its own is 0
  uint64_t bytes, others_bytes, use_ms, others_use_ms, until;
  bool return_when_asked;
  uint64_t grants, others_grants, longest_wait;  // more than so many, less than that
};
class LeaseOrderTest : public ::testing::TestWithParam<LeaseOrderCase> {};

TEST_P(LeaseOrderTest, NobodyStarves) {
  const LeaseOrderCase &test = GetParam();
  for (uint64_t seed = 1; seed <= 20 / kFewer; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    LeaseSimulation simulation(seed, 3, 1);
    simulation.has_extras = false;
    for (uint32_t i = 0; i < 3; ++i) {
      LeaseSimulation::Process &process = simulation[i];
      process.priority = i == 0 ? 0 : test.priority;
      process.member = std::make_unique<LeaseMember>(100 + i, ("p" + std::to_string(i)).c_str(), process.priority, 0);
      process.residency = process.floor[0] = 0;
      process.paused[0] = i == 0 ? test.bytes : test.others_bytes;
      process.use_ms = i == 0 ? test.use_ms : test.others_use_ms;
      process.rest_ms = 1;
      process.timeout = 80'000;
      process.returns_when_asked = test.return_when_asked;
    }
    simulation.run(test.until);
    EXPECT_GT(simulation[0].grants, test.grants);
    EXPECT_GT(simulation[1].grants, test.others_grants);
    EXPECT_LT(simulation[0].longest_wait, test.longest_wait);
    if (HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Each, LeaseOrderTest,
                         ::testing::Values(LeaseOrderCase{"ALowPriority", 5, 600, 600, 50, 50, 100'000, true, 1, 20,
                                                          LeaseArbiter::kOldMs + 5000},
                                           LeaseOrderCase{"ALargeRequest", 0, 900, 300, 10, 200, 60'000, false, 50, 20,
                                                          2000}),
                         [](const auto &test) { return test.param.name; });

}  // namespace
}  // namespace gmm::test
