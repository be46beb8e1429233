// SPDX-License-Identifier: Apache-2.0
// Any reports to the arbiter of leases, and any orders to a member. A virtual clock: nothing here waits.
//
// The arbiter must stay sound, and must serve an honest member once the others are gone. A member must never give up
// memory that is in use, and take a grant only while it waits.
//
// An input is a list of steps of two bytes: what happens, and to whom or for how long. Some read further bytes.
#include <cstdlib>
#include <cstring>

#include "engine/lease/arbiter.h"
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
    for (int turns = 0;; ++turns) {
      require(turns < 16);  // it comes to rest
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
  uint32_t honest_slot;
  uint32_t slots[kOthers];  // kMembers: there is none
  LeaseReport reports[kOthers];
  LeaseOrder orders[kOthers], last;

  explicit World(bool has_predecessor) : arbiter(1, has_predecessor, now) {
    honest_slot = arbiter.add(1, now);
    honest.member.connected();
    for (uint32_t &slot : slots) slot = LeaseArbiter::kMembers;
    pump();
  }
  // Until nobody has anything to say.
  void pump() {
    for (int rounds = 0;; ++rounds) {
      require(rounds < 64);
      LeaseReport report;
      bool has_report = false, has_order = false;
      honest.run(now, &report, &has_report);
      if (has_report) require(arbiter.receive(honest_slot, report, now));
      arbiter.step(now);
      uint32_t slot = 0;
      LeaseOrder order;
      for (uint32_t sent = 0; arbiter.next_order(now, &slot, &order); ++sent) {
        require(sent < LeaseArbiter::kMembers && order.devices <= kLeaseDevices);
        require(std::memchr(order.text, 0, sizeof order.text) != nullptr);
        require(std::memchr(order.ask_name, 0, sizeof order.ask_name) != nullptr);
        for (uint32_t i = 0; i < kOthers; ++i)
          if (slots[i] == slot) orders[i] = order;
        if (slot != honest_slot) continue;
        honest.member.receive(order, now);
        last = order;
        has_order = true;
      }
      if (!has_report && !has_order) return;
    }
  }
  void remove(uint32_t i) {
    if (slots[i] != LeaseArbiter::kMembers) arbiter.remove(slots[i], now);
    slots[i] = LeaseArbiter::kMembers;
  }
  void report(uint32_t i, Input &input) {
    if (slots[i] == LeaseArbiter::kMembers) {
      slots[i] = arbiter.add(2, now);
      require(slots[i] != LeaseArbiter::kMembers);
      reports[i] = LeaseReport{};
      orders[i] = LeaseOrder{};
    }
    LeaseReport &next = reports[i];
    ++next.number;
    next.identity = 100 + i;
    next.request = next.attempt = 1 + input.byte() % 4;
    next.round = orders[i].round;
    next.gave = input.byte() % 2 != 0 ? orders[i].give : next.gave;
    next.state = static_cast<LeaseState>(input.byte() % 4);
    next.state_ms = input.number();
    next.priority = static_cast<int8_t>(input.byte());
    next.devices = 1 + input.byte() % 3;
    std::memcpy(next.name, "other", 6);
    for (uint32_t d = 0; d < next.devices; ++d) {
      LeaseReport::Row &row = next.rows[d];
      row.device.bytes[0] = static_cast<uint8_t>(1 + d + input.byte() % 16);
      for (uint64_t *field : {&row.free, &row.held, &row.floor, &row.offered, &row.wanted, &row.granted})
        *field = input.number();
    }
    LeaseReport sent = next;
    input.change(&sent, sizeof sent);
    if (!arbiter.receive(slots[i], sent, now)) remove(i);
  }
};

// A member whose arbiter says anything.
void deceive(Process &victim, const LeaseOrder &from, Input &input, uint64_t now) {
  LeaseOrder order = from;
  order.number = victim.member.order().number + 1;
  order.granted_request = victim.member.request();
  order.granted_attempt = 1 + input.byte() % 3;
  order.give = input.number();
  order.ask = input.number();
  order.devices = input.byte() % (kLeaseDevices + 1);
  input.change(&order, sizeof order);
  if (order.magic != kLeaseOrderMagic || order.version != kLeaseVersion || order.devices > kLeaseDevices) {
    victim.member.disconnected();
    return victim.member.connected();
  }
  order.ask_name[sizeof order.ask_name - 1] = order.text[sizeof order.text - 1] = 0;
  const LeaseState before = victim.member.state();
  victim.member.receive(order, now);
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
