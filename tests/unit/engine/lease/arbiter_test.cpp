// SPDX-License-Identifier: Apache-2.0
// The choices of the arbiter. The members here only report. simulation_test.cpp has real ones, and shows that slow,
// stopped and busy members hold up nobody.
#include "cli/serve/arbiter.h"

#include <gtest/gtest.h>

#include <map>

#include "engine/lease/member.h"

namespace gmm::test {
namespace {

class LeaseArbiterTest : public ::testing::Test {
 protected:
  struct Peer {
    LeaseArbiter::Member *member = nullptr;
    LeaseReport report;
    LeaseCommand command;
    bool answers = true;
  };

  // An idle member that offers all that it holds.
  Peer &add(int32_t priority, uint64_t offered, uint64_t idle_ms, uint32_t cost = 0, uint8_t device = 1) {
    Peer &peer = peers_[static_cast<uint32_t>(peers_.size())];
    peer.member = arbiter_.add(1, &peer);
    peer.report.identity = peers_.size();
    peer.report.priority = priority;
    peer.report.cost = cost;
    peer.report.state_ms = idle_ms;
    peer.report.grant_ms = UINT64_MAX;
    peer.report.devices = 1;
    peer.report.name[0] = static_cast<char>('a' + (peers_.size() - 1) % 26);
    peer.report.rows[0].device.bytes[0] = device;
    peer.report.rows[0].held = peer.report.rows[0].offered = offered;
    say(peer);
    return peer;
  }
  void want(Peer &peer, uint64_t bytes) {
    peer.report.state = LeaseState::kWaiting;
    peer.report.state_ms = 0;
    peer.report.request = peer.report.attempt = 1;
    peer.report.rows[0].wanted = bytes;
    say(peer);
  }
  void say(Peer &peer) {
    ++peer.report.number;
    peer.report.rows[0].free = free_;
    ASSERT_TRUE(arbiter_.receive(peer.member, peer.report, now_));
  }
  void give(Peer &peer) {
    free_ += peer.report.rows[0].offered;
    peer.report.rows[0].held = peer.report.rows[0].offered = 0;
    peer.report.gave = peer.command.give;
    say(peer);
  }
  // Lets time pass. Members answer rounds, and do nothing else.
  void pass(uint64_t milliseconds) {
    for (const uint64_t end = now_ + milliseconds; now_ <= end; ++now_) {
      arbiter_.step(now_);
      LeaseCommand command;
      while (const LeaseArbiter::Member *member = arbiter_.next_command(now_, &command))
        if (Peer &peer = *static_cast<Peer *>(member->user); peer.answers) peer.command = command;
      for (auto &[number, peer] : peers_) {
        if (!peer.answers || peer.command.round <= peer.report.round) continue;
        peer.report.round = peer.command.round;
        peer.report.state_ms += peer.report.state == LeaseState::kWaiting ? 0 : 1;
        say(peer);
      }
    }
  }
  static bool is_told(const Peer &peer) { return peer.command.give > peer.report.gave; }
  static bool is_granted(const Peer &peer) { return peer.command.answer == LeaseAnswer::kGranted; }

  uint64_t now_ = 100'000, free_ = 0;
  std::map<uint32_t, Peer> peers_;
  LeaseArbiter arbiter_{1, false, 100'000};
};

TEST_F(LeaseArbiterTest, OnlyAsManyAsNeededGiveUp) {
  Peer &small = add(0, 100, 90'000), &large = add(0, 800, 1000), &waiting = add(0, 0, 0);
  want(waiting, 700);
  pass(50);
  EXPECT_TRUE(is_told(large));
  EXPECT_FALSE(is_told(small));
  EXPECT_EQ(large.command.rows[0].give, 700u);
  give(large);
  pass(50);
  EXPECT_TRUE(is_granted(waiting));
}

TEST_F(LeaseArbiterTest, LowPriorityThenLongIdleThenLowCostGoesFirst) {
  Peer &high = add(5, 500, 90'000), &fresh = add(0, 500, 1000), &dear = add(0, 500, 70'000, 9),
       &cheap = add(0, 500, 70'000, 2), &waiting = add(1, 0, 0);
  want(waiting, 500);
  for (Peer *next : {&cheap, &dear, &fresh, &high}) {
    pass(50);
    for (Peer *peer : {&high, &fresh, &dear, &cheap}) EXPECT_EQ(is_told(*peer), peer == next) << next->report.name;
    // It refuses, and the next one gets the command.
    next->report.gave = next->command.give;
    say(*next);
  }
  EXPECT_FALSE(is_granted(waiting));
}

// Somebody deleted the socket of the server before, so that only the members know of it.
TEST_F(LeaseArbiterTest, AMemberOfAnotherServerBeginsTheGrace) {
  Peer &waiting = add(0, 0, 0);
  free_ = 500;
  waiting.report.former = 9;
  want(waiting, 400);
  pass(LeaseArbiter::kGraceMs / 2);
  EXPECT_FALSE(is_granted(waiting));
  Peer &holder = peers_[100];  // its first report has the rest of a grant
  holder.member = arbiter_.add(2, &holder);
  holder.report = waiting.report;
  holder.report.identity = 100;
  holder.report.state = LeaseState::kInUse;
  holder.report.rows[0].granted = holder.report.rows[0].wanted = 300;
  say(holder);
  pass(LeaseArbiter::kGraceMs);
  EXPECT_FALSE(is_granted(waiting)) << "300 of them are kept";
  free_ = 700;
  pass(LeaseArbiter::kRoundMs + 100);
  EXPECT_TRUE(is_granted(waiting));
}

// 40 GB are copied in 40 s at the least rate.
TEST_F(LeaseArbiterTest, PatienceGrowsWithTheBytes) {
  constexpr uint64_t kGigabytes = 1'000'000'000;
  Peer &large = add(0, 40 * kGigabytes, 90'000), &other = add(0, 40 * kGigabytes, 1000), &waiting = add(0, 0, 0);
  want(waiting, 40 * kGigabytes);
  pass(50);
  ASSERT_TRUE(is_told(large));
  large.answers = false;
  pass(LeaseArbiter::kPatienceMs + 39'000);
  EXPECT_FALSE(is_told(other));
  pass(2000);
  EXPECT_TRUE(is_told(other));
}

// Two wait for the memory of one, each on another device. It is asked for one of them at a time.
TEST_F(LeaseArbiterTest, AMemberIsAskedOnceASecond) {
  Peer &user = add(0, 500, 0), &here = add(0, 0, 0), &there = add(0, 0, 0, 0, 2);
  user.report.state = LeaseState::kInUse;
  user.report.devices = 2;
  user.report.rows[1] = user.report.rows[0];
  user.report.rows[1].device.bytes[0] = 2;
  say(user);
  want(here, 400);
  want(there, 400);
  pass(500);
  EXPECT_EQ(user.command.ask, 1u);
  pass(1000);
  EXPECT_EQ(user.command.ask, 2u);
  // The request that it was asked for is over: it is asked for the other one at once.
  here.report.state = LeaseState::kIdle;
  say(here);
  pass(100);
  EXPECT_EQ(user.command.ask, 3u);
}

TEST_F(LeaseArbiterTest, AMemberGivesUpNothingUnlessThePlanIsFilled) {
  Peer &idle = add(0, 300, 90'000), &user = add(0, 500, 0), &waiting = add(0, 0, 0);
  user.report.state = LeaseState::kInUse;
  say(user);
  want(waiting, 700);
  pass(100);
  EXPECT_FALSE(is_told(idle));
  EXPECT_EQ(user.command.ask, 1u);
  EXPECT_NE(std::string(waiting.command.text).find("\"b\""), std::string::npos) << waiting.command.text;
  user.report.state = LeaseState::kIdle;
  say(user);
  pass(50);
  EXPECT_TRUE(is_told(idle));
  EXPECT_TRUE(is_told(user));
}

// The program's threads go on while the lease's thread measures.
TEST(LeaseMember, AChangeDuringAMeasureIsReportedAgain) {
  LeaseMember member(1, "one", 0, 0);
  const uint64_t none[kLeaseDevices] = {};
  const LeaseMeasure measure;
  LeaseReport report;
  member.connected();
  ASSERT_EQ(member.next(1).act, LeaseMember::Next::Act::kReport);
  member.begin_report();
  member.touch();
  member.report(&measure, 1, 1, &report);
  ASSERT_EQ(member.next(1).act, LeaseMember::Next::Act::kReport);
  member.begin_report();
  member.begin(none, 1);
  member.report(&measure, 1, 1, &report);
  ASSERT_EQ(member.next(1).act, LeaseMember::Next::Act::kReport);
  member.begin_report();
  member.report(&measure, 1, 1, &report);
  EXPECT_EQ(member.next(1).act, LeaseMember::Next::Act::kWait);
}

TEST_F(LeaseArbiterTest, InvalidReportsAreRefused) {
  Peer &peer = add(0, 0, 0);
  for (int what = 0; what < 7; ++what) {
    LeaseReport report = peer.report;
    report.number += 1;
    if (what == 0) report.header.magic ^= 1;
    if (what == 1) report.header.version += 1;
    if (what == 2) report.devices = kLeaseDevices + 1;
    if (what == 3) report.state = static_cast<LeaseState>(4);
    if (what == 4) std::memset(report.name, 'x', sizeof report.name);
    if (what == 5) report.name[0] = '"';
    if (what == 6) report.rows[report.devices++] = report.rows[0];
    EXPECT_FALSE(arbiter_.receive(peer.member, report, now_)) << what;
  }
}

}  // namespace
}  // namespace gmm::test
