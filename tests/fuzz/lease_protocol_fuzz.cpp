// SPDX-License-Identifier: Apache-2.0
// Any reports to the arbiter of leases, and any commands to a member. A virtual clock: nothing here waits.
//
// The arbiter must stay sound, and must serve an honest member once the others are gone. A member must never give up
// memory that is in use, and take a grant only while it waits.
//
// An input is a list of steps of two bytes: what happens, and to whom or for how long. Some read further bytes.
#include <cstdlib>
#include <cstring>

#include "cli/serve/arbiter.h"
#include "engine/lease/member.h"
#include "standalone.h"

namespace {

using namespace gmm;

constexpr uint64_t kFree = 1000;
constexpr uint32_t kOthers = 6;

void require(bool holds) {
  if (!holds) std::abort();
}

struct Input {
  const uint8_t *data;
  size_t size;
  uint8_t byte() {
    if (size == 0) return 0;
    --size;
    return *data++;
  }
  // Any size of number.
  uint64_t number() {
    const uint8_t low = byte();
    return static_cast<uint64_t>(low) << byte() % 64;
  }
  // Some bytes of an object become others.
  void change(void *object, size_t bytes) {
    for (uint8_t times = byte() % 8; times != 0; --times) {
      const size_t at = (byte() * size_t{256} + byte()) % bytes;
      static_cast<uint8_t *>(object)[at] = byte();
    }
  }
};

// A process with a member, its memory, and what its program does.
struct Process {
  LeaseMember member{7, "honest", 0, 1};
  LeaseMeasure measure;
  Process() {
    measure.is_used = true;
    measure.device.bytes[0] = 1;
    measure.free = kFree;
    measure.offered = measure.held = 300;
  }
  void run(uint64_t now, LeaseReport *report, bool *has_report) {
    using Act = LeaseMember::Next::Act;
    for (int rounds = 0;; ++rounds) {
      require(rounds < 16);  // it comes to rest
      const LeaseMember::Next next = member.next(now);
      if (next.act == Act::kWait) return;
      if (next.act == Act::kReport) {
        member.begin_report();
        member.report(&measure, 1, now, report);
        *has_report = true;
      } else if (next.act == Act::kAsk) {
        require(member.state() == LeaseState::kInUse);
        member.begin_ask();
      } else {
        require(member.state() == LeaseState::kIdle || member.state() == LeaseState::kWaiting);
        require(member.begin_give().devices <= kLeaseDevices);
        measure.paused += measure.offered;
        measure.free += measure.offered;
        measure.offered = measure.held = 0;
        member.gave();
      }
    }
  }
  void act(uint8_t what, uint64_t now) {
    uint64_t extra[kLeaseDevices] = {what};
    const LeaseState state = member.state();
    if (state == LeaseState::kIdle && !member.is_giving()) {
      member.begin(extra, now);
    } else if (state == LeaseState::kInUse) {
      member.return_all(now);
    } else if (state == LeaseState::kWaiting) {
      member.give_up(now);
    } else if (what % 2 != 0) {
      member.came_short();
    } else {
      measure.free -= measure.paused < measure.free ? measure.paused : measure.free;
      measure.offered = measure.held = measure.held + measure.paused;
      measure.paused = 0;
      member.took(now);
    }
  }
};

struct World {
  uint64_t now = 1'000'000;
  LeaseArbiter arbiter;
  Process honest;
  LeaseArbiter::Member *honest_member;
  LeaseArbiter::Member *members[kOthers] = {};
  LeaseReport reports[kOthers];
  LeaseCommand commands[kOthers], last;

  explicit World(bool has_predecessor) : arbiter(1, has_predecessor, now) {
    honest_member = arbiter.add(1, &last);
    honest.member.connected();
    pump();
  }
  // Until nobody has anything to say.
  void pump() {
    for (int rounds = 0;; ++rounds) {
      require(rounds < 64);
      LeaseReport report;
      bool has_report = false, has_command = false;
      honest.run(now, &report, &has_report);
      if (has_report) require(arbiter.receive(honest_member, report, now));
      arbiter.step(now);
      LeaseCommand command;
      for (uint32_t sent = 0; LeaseArbiter::Member *member = arbiter.next_command(now, &command); ++sent) {
        require(sent <= kOthers && command.devices <= kLeaseDevices);
        require(std::memchr(command.text, 0, sizeof command.text) != nullptr);
        require(std::memchr(command.ask_name, 0, sizeof command.ask_name) != nullptr);
        *static_cast<LeaseCommand *>(member->user) = command;
        if (member != honest_member) continue;
        honest.member.receive(command, now);
        has_command = true;
      }
      if (!has_report && !has_command) return;
    }
  }
  void remove(uint32_t i) {
    if (members[i] != nullptr) arbiter.remove(members[i], now);
    members[i] = nullptr;
  }
  void report(uint32_t i, Input &input) {
    if (members[i] == nullptr) {
      members[i] = arbiter.add(2, &commands[i]);
      require(members[i] != nullptr);
      reports[i] = LeaseReport{};
      commands[i] = LeaseCommand{};
    }
    LeaseReport &next = reports[i];
    ++next.number;
    next.identity = 100 + i;
    next.request = next.attempt = 1 + input.byte() % 4;
    next.round = commands[i].round;
    next.gave = input.byte() % 2 != 0 ? commands[i].give : next.gave;
    next.state = static_cast<LeaseState>(input.byte() % 4);
    next.state_ms = input.number();
    next.priority = static_cast<int8_t>(input.byte());
    next.devices = 1 + input.byte() % 3;
    std::memcpy(next.name, "other", 6);
    for (uint32_t d = 0; d < next.devices; ++d) {
      LeaseRow &row = next.rows[d];
      row.device.bytes[0] = static_cast<uint8_t>(1 + d + input.byte() % 16);
      for (uint64_t *field : {&row.free, &row.held, &row.floor, &row.offered, &row.wanted, &row.granted})
        *field = input.number();
    }
    LeaseReport sent = next;
    input.change(&sent, sizeof sent);
    if (!arbiter.receive(members[i], sent, now)) remove(i);
  }
};

// A member whose server says anything.
void deceive(Process &victim, const LeaseCommand &from, Input &input, uint64_t now) {
  LeaseCommand command = from;
  command.number = victim.member.command().number + 1;
  command.answer = static_cast<LeaseAnswer>(input.byte() % 3);
  command.request = victim.member.request();
  command.attempt = 1 + input.byte() % 3;
  command.give = input.number();
  command.ask = input.number();
  command.devices = input.byte() % (kLeaseDevices + 1);
  input.change(&command, sizeof command);
  if (!command.header.is(ServeKind::kLeaseCommand) || command.devices > kLeaseDevices) {
    victim.member.disconnected();
    return victim.member.connected();
  }
  command.ask_name[sizeof command.ask_name - 1] = command.text[sizeof command.text - 1] = 0;
  const LeaseState before = victim.member.state();
  victim.member.receive(command, now);
  require(victim.member.state() == before || before == LeaseState::kWaiting);
  LeaseReport report;
  bool has_report = false;
  victim.run(now, &report, &has_report);
  require(!has_report || report.devices == 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Input input{data, size};
  World *const world = new World(input.byte() % 2 != 0);
  Process victim;
  victim.member.connected();
  while (input.size >= 2) {
    const uint8_t what = input.byte(), whom = input.byte();
    if (what % 8 < 3) {
      world->report(whom % kOthers, input);
    } else if (what % 8 == 3) {
      world->remove(whom % kOthers);
    } else if (what % 8 == 4) {
      world->now += whom * uint64_t{8};
    } else if (what % 8 == 5) {
      world->honest.act(whom, world->now);
    } else if (what % 8 == 6) {
      victim.act(whom, world->now);
    } else {
      deceive(victim, world->last, input, world->now);
    }
    world->pump();
  }
  // The others are gone. In a second or two the honest one has what is free.
  for (uint32_t i = 0; i < kOthers; ++i) world->remove(i);
  Process &honest = world->honest;
  if (honest.member.state() == LeaseState::kTaking) honest.act(0, world->now);
  if (honest.member.state() == LeaseState::kWaiting) honest.act(0, world->now);
  if (honest.member.state() == LeaseState::kInUse) honest.act(0, world->now);
  world->pump();
  honest.measure.free = kFree + honest.measure.paused;
  honest.act(0, world->now);
  for (int i = 0; honest.member.state() != LeaseState::kTaking; ++i) {
    require(i < 1000 && honest.member.state() == LeaseState::kWaiting);
    world->now += 20;
    world->pump();
  }
  delete world;
  return 0;
}
