// SPDX-License-Identifier: Apache-2.0
// Whom the arbiter chooses. The members here only report; simulation_test.cpp has real ones.
#include "engine/lease/arbiter.h"

#include <gtest/gtest.h>

#include <map>

namespace gmm::test {
namespace {

class LeaseArbiterTest : public ::testing::Test {
 protected:
  struct Peer {
    uint32_t slot = 0;
    LeaseReport report;
    LeaseOrder order;
    bool answers = true;
  };

  // An idle member that offers all that it holds.
  Peer &add(int32_t priority, uint64_t offered, uint64_t idle_ms, uint32_t cost = 0) {
    Peer &peer = peers_[static_cast<uint32_t>(peers_.size())];
    peer.slot = arbiter_.add(1, now_);
    peer.report.identity = peers_.size();
    peer.report.priority = priority;
    peer.report.cost = cost;
    peer.report.state_ms = idle_ms;
    peer.report.grant_ms = UINT64_MAX;
    peer.report.devices = 1;
    peer.report.name[0] = static_cast<char>('a' + peers_.size() - 1);
    peer.report.rows[0].device.bytes[0] = 1;
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
    ASSERT_TRUE(arbiter_.receive(peer.slot, peer.report, now_));
  }
  void give(Peer &peer) {
    free_ += peer.report.rows[0].offered;
    peer.report.rows[0].held = peer.report.rows[0].offered = 0;
    peer.report.gave = peer.order.give;
    say(peer);
  }
  // Lets time pass. Members answer rounds, and do nothing else.
  void pass(uint64_t milliseconds) {
    for (const uint64_t end = now_ + milliseconds; now_ <= end; ++now_) {
      arbiter_.step(now_);
      uint32_t slot = 0;
      LeaseOrder order;
      while (arbiter_.next_order(now_, &slot, &order))
        for (auto &[number, peer] : peers_)
          if (peer.slot == slot && peer.answers) peer.order = order;
      for (auto &[number, peer] : peers_)
        if (peer.answers && peer.order.round > peer.report.round) {
          peer.report.round = peer.order.round;
          peer.report.state_ms += peer.report.state == LeaseState::kWaiting ? 0 : 1;
          say(peer);
        }
    }
  }
  static bool is_told(const Peer &peer) { return peer.order.give > peer.report.gave; }
  static bool is_granted(const Peer &peer) { return peer.order.granted_request != 0; }

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
  EXPECT_EQ(large.order.rows[0].give, 700u);
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
    // It refuses, and the next one is told.
    next->report.gave = next->order.give;
    say(*next);
  }
  EXPECT_FALSE(is_granted(waiting));
}

TEST_F(LeaseArbiterTest, WhoDoesNotAnswerIsPassedOverAfterAWhile) {
  Peer &stopped = add(0, 500, 90'000), &other = add(0, 500, 1000), &waiting = add(0, 0, 0);
  want(waiting, 500);
  pass(50);
  ASSERT_TRUE(is_told(stopped));
  stopped.answers = false;
  pass(LeaseArbiter::kPatienceMs / 2);
  EXPECT_FALSE(is_told(other));
  pass(LeaseArbiter::kPatienceMs);
  ASSERT_TRUE(is_told(other));
  give(other);
  pass(50);
  EXPECT_TRUE(is_granted(waiting));
}

TEST_F(LeaseArbiterTest, NobodyGivesUpAnythingForWhatIsNotEnough) {
  Peer &idle = add(0, 300, 90'000), &user = add(0, 500, 0), &waiting = add(0, 0, 0);
  user.report.state = LeaseState::kInUse;
  say(user);
  want(waiting, 700);
  pass(100);
  EXPECT_FALSE(is_told(idle));
  EXPECT_EQ(user.order.ask, 1u);
  EXPECT_NE(std::string(waiting.order.text).find("\"b\""), std::string::npos) << waiting.order.text;
  user.report.state = LeaseState::kIdle;
  say(user);
  pass(50);
  EXPECT_TRUE(is_told(idle));
  EXPECT_TRUE(is_told(user));
}

TEST_F(LeaseArbiterTest, ReportsThatAreNoneAreRefused) {
  Peer &peer = add(0, 0, 0);
  for (int what = 0; what < 6; ++what) {
    LeaseReport report = peer.report;
    report.number += 1;
    if (what == 0) report.magic ^= 1;
    if (what == 1) report.version += 1;
    if (what == 2) report.devices = kLeaseDevices + 1;
    if (what == 3) report.state = static_cast<LeaseState>(4);
    if (what == 4) std::memset(report.name, 'x', sizeof report.name);
    if (what == 5) report.name[0] = '"';
    EXPECT_FALSE(arbiter_.receive(peer.slot, report, now_)) << what;
  }
}

}  // namespace
}  // namespace gmm::test
