// SPDX-License-Identifier: Apache-2.0
// Operations of jobs in a simulation: a virtual clock, an exchange that loses, delays and doubles what it is asked, and
// ranks that die or stop at any step. A seed decides everything.
#include "engine/job/protocol.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

namespace gmm::test {
namespace {

using End = JobOutcome::End;
using Event = JobLocal::Event;

constexpr uint64_t kTimeout = 1600, kNever = UINT64_MAX, kLatency = 4;

// What happens to an attempt at the exchange, in percent. The rest arrives.
struct Faults {
  uint32_t request_lost = 0, reply_lost = 0, delayed = 0, doubled = 0;
  bool any() const { return request_lost + reply_lost + delayed + doubled != 0; }
};

class Simulation {
 public:
  enum class Memory { kBefore, kPrepared, kAfter };
  struct Rank {
    std::unique_ptr<JobProtocol> protocol;
    // The transition of the rank.
    Memory memory = Memory::kBefore;
    bool is_over = false, is_cancelled = false, has_nothing = false, has_begun = false;
    JobLocal told;  // what it said last
    std::queue<JobLocal> to_tell;
    uint64_t agree_ms = 1, copy_ms = 1, carry_ms = 1;
    gmm_result fails_to_agree = GMM_OK, fails_to_copy = GMM_OK, fails_to_carry = GMM_OK;
    // The rank.
    uint64_t begins_at = 0, deadline = 0, ended_at = 0;
    uint64_t dies_at_step = kNever, stops_at_step = kNever, stops_for = 0, stopped_until = 0, steps = 0;
    uint64_t unreachable_from = kNever;
    bool is_dead = false, has_ended = false, waits_local = false, was_stopped = false;
    uint64_t wait = 0;  // number of the wait that an answer ends
    std::string asked = "pause tags 1234";
  };

  Simulation(uint64_t seed, uint32_t ranks) : random_(seed), ranks_(ranks) {
    for (uint32_t i = 0; i < ranks; ++i) {
      ranks_[i].protocol = std::make_unique<JobProtocol>("job", i, ranks, 1000 + i, true);
      ranks_[i].begins_at = chance(200);
      ranks_[i].agree_ms = chance(50);
      ranks_[i].copy_ms = chance(300);
      ranks_[i].carry_ms = chance(50);
    }
  }

  Rank &operator[](uint32_t index) { return ranks_[index]; }
  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  uint64_t chance(uint64_t below) { return below == 0 ? 0 : random_() % below; }
  uint64_t now() const { return now_; }
  const std::map<std::string, std::string> &registers() const { return registers_; }

  void start() {
    for (uint32_t i = 0; i < size(); ++i) {
      Rank &rank = ranks_[i];
      rank.memory = Memory::kBefore;
      rank.is_over = rank.is_cancelled = rank.has_begun = rank.has_ended = rank.waits_local = false;
      rank.to_tell = {};
      rank.told = {};
      rank.steps = 0;
      at(now_ + rank.begins_at, i, [this, i] {
        ranks_[i].deadline = now_ + kTimeout;
        ranks_[i].protocol->begin(ranks_[i].asked.c_str(), now_, kTimeout);
        transition_agrees(i);
        advance(i);
      });
    }
  }
  void go_on(uint32_t index) {
    ranks_[index].has_ended = false;
    at(now_ + 1, index, [this, index] {
      ranks_[index].deadline = now_ + kTimeout;
      ranks_[index].protocol->go_on(now_, kTimeout);
      advance(index);
    });
  }
  void run() {
    while (!events_.empty()) {
      const Item item = events_.top();
      events_.pop();
      now_ = item.time;
      if (item.rank < size()) {
        Rank &rank = ranks_[item.rank];
        if (rank.is_dead) continue;
        if (rank.stopped_until > now_) {
          events_.push(Item{rank.stopped_until, ++last_, item.rank, item.fn});
          continue;
        }
      }
      (*item.fn)();
    }
  }

  Faults faults;

 private:
  struct Item {
    uint64_t time, number;
    uint32_t rank;  // whose event; size(): the exchange's
    std::shared_ptr<std::function<void()>> fn;
    bool operator<(const Item &other) const { return time != other.time ? time > other.time : number > other.number; }
  };
  void at(uint64_t time, uint32_t rank, std::function<void()> fn) {
    events_.push(Item{time, ++last_, rank, std::make_shared<std::function<void()>>(std::move(fn))});
  }

  // --- the transition of a rank ---
  void tell(uint32_t index, JobLocal event) {
    ranks_[index].to_tell.push(event);
    if (ranks_[index].waits_local) hear(index);
  }
  void hear(uint32_t index) {
    Rank &rank = ranks_[index];
    const JobLocal event = rank.to_tell.front();
    rank.to_tell.pop();
    rank.waits_local = false;
    rank.told = event;
    ++rank.wait;
    rank.protocol->local(event);
    advance(index);
  }
  void end(uint32_t index, gmm_result code, const char *message) {
    ranks_[index].is_over = true;
    tell(index, JobLocal{Event::kEnded, code, code < 0 ? 0u : 10u, message});
  }
  void transition_agrees(uint32_t index) {
    at(now_ + ranks_[index].agree_ms, index, [this, index] {
      Rank &rank = ranks_[index];
      if (rank.is_over) return;
      if (rank.has_nothing) {
        rank.is_over = true;
        tell(index, JobLocal{Event::kEnded, GMM_UNCHANGED, 0, ""});
      } else if (rank.is_cancelled || rank.fails_to_agree != GMM_OK) {
        end(index, rank.is_cancelled ? GMM_ERROR_CANCELLED : rank.fails_to_agree, "A watcher refuses.\n");
      } else {
        tell(index, JobLocal{Event::kAgreed, GMM_OK, 0, ""});
      }
    });
  }
  void order(uint32_t index, JobOrder order) {
    Rank &rank = ranks_[index];
    switch (order) {
      case JobOrder::kGo:
        rank.has_begun = true;
        at(now_ + rank.copy_ms, index, [this, index] {
          Rank &self = ranks_[index];
          if (self.is_over) return;
          if (self.is_cancelled || self.fails_to_copy != GMM_OK)
            return end(index, self.is_cancelled ? GMM_ERROR_CANCELLED : self.fails_to_copy,
                       "No room for the contents.");
          self.memory = Memory::kPrepared;
          tell(index, JobLocal{Event::kKept, GMM_OK, 10, ""});
        });
        break;
      case JobOrder::kCommit:
        EXPECT_EQ(rank.memory, Memory::kPrepared) << "contents would be lost";
        at(now_ + rank.carry_ms, index, [this, index] {
          Rank &self = ranks_[index];
          if (self.fails_to_carry == GMM_OK) self.memory = Memory::kAfter;
          end(index, self.fails_to_carry, "The driver refuses.");
        });
        break;
      case JobOrder::kAbort:
        rank.is_cancelled = true;
        if (rank.memory == Memory::kPrepared || rank.told.event == Event::kAgreed)
          at(now_ + rank.carry_ms, index, [this, index] {
            if (ranks_[index].is_over) return;
            ranks_[index].memory = Memory::kBefore;
            end(index, GMM_ERROR_CANCELLED, "Voted down.");
          });
        break;
      case JobOrder::kNone:
        ADD_FAILURE() << "no order";
    }
  }

  // --- the exchange ---
  void apply(const std::string &key, const std::string &value) { registers_.emplace(key, value); }
  void attempt(uint32_t index, uint64_t wait, bool sets, const std::string &key, const std::string &value,
               uint64_t until) {
    Rank &rank = ranks_[index];
    if (rank.wait != wait) return;
    const uint64_t fate = chance(100), there = 1 + chance(kLatency - 1), back = 1 + chance(kLatency - 1);
    uint64_t bound = 0;
    const auto falls = [&](uint32_t percent) {
      const bool hit = fate >= bound && fate < bound + percent;
      bound += percent;
      return hit;
    };
    const uint32_t nobody = size();
    const auto applies = [this, sets, key, value] {
      if (sets) apply(key, value);
    };
    const bool is_lost = falls(faults.request_lost), is_unanswered = falls(faults.reply_lost);
    const bool is_delayed = falls(faults.delayed), is_doubled = falls(faults.doubled);
    const bool is_cut = now_ >= rank.unreachable_from;
    if (is_cut || is_lost) {
    } else if (is_unanswered) {
      at(now_ + there, nobody, applies);
    } else if (is_delayed) {
      at(now_ + there + chance(2 * kTimeout), nobody, applies);
    } else {
      if (is_doubled) at(now_ + there + chance(kTimeout), nobody, applies);
      at(now_ + there, nobody, [=, this] {
        applies();
        const auto found = registers_.find(key);
        if (found == registers_.end()) return;
        const std::string stands = found->second;
        at(now_ + back, index, [=, this] {
          if (ranks_[index].wait != wait) return;
          ++ranks_[index].wait;
          ranks_[index].protocol->answered(stands.c_str());
          advance(index);
        });
      });
    }
    if (now_ + 12 < until) at(now_ + 12, index, [=, this] { attempt(index, wait, sets, key, value, until); });
  }

  // --- a rank ---
  void advance(uint32_t index) {
    Rank &rank = ranks_[index];
    for (;;) {
      if (rank.steps == rank.dies_at_step) {
        rank.is_dead = true;
        return;
      }
      if (rank.steps == rank.stops_at_step) {
        rank.was_stopped = true;
        rank.stopped_until = now_ + rank.stops_for;
        ++rank.steps;
        at(rank.stopped_until, index, [this, index] { advance(index); });
        return;
      }
      ++rank.steps;
      const JobProtocol::Step step = rank.protocol->next(now_);
      switch (step.act) {
        case JobProtocol::Act::kEnd:
          rank.has_ended = true;
          rank.ended_at = now_;
          return;
        case JobProtocol::Act::kOrder:
          order(index, step.order);
          continue;
        case JobProtocol::Act::kErase:
          EXPECT_TRUE(rank.has_begun || rank.is_over) << "the copies wait for an erase";
          registers_.erase(step.key);
          continue;
        case JobProtocol::Act::kLocal: {
          if (!rank.to_tell.empty()) {
            const JobLocal event = rank.to_tell.front();
            rank.to_tell.pop();
            rank.told = event;
            rank.protocol->local(event);
            continue;
          }
          rank.waits_local = true;
          const uint64_t wait = ++rank.wait;
          if (step.until == kNever) return;
          at(std::max(step.until, now_), index, [this, index, wait] {
            Rank &self = ranks_[index];
            if (self.wait != wait || !self.waits_local) return;
            self.waits_local = false;
            ++self.wait;
            self.protocol->local(JobLocal{});
            advance(index);
          });
          return;
        }
        case JobProtocol::Act::kSet:
        case JobProtocol::Act::kGet: {
          const uint64_t wait = ++rank.wait;
          // A look waits for its answer.
          const uint64_t until = std::max(step.until, now_ + 2 * kLatency);
          EXPECT_LE(step.until, std::max(rank.deadline, now_));
          at(until, index, [this, index, wait] {
            if (ranks_[index].wait != wait) return;
            ++ranks_[index].wait;
            ranks_[index].protocol->answered(nullptr);
            advance(index);
          });
          attempt(index, wait, step.act == JobProtocol::Act::kSet, step.key, step.value, step.until);
          return;
        }
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<Rank> ranks_;
  std::map<std::string, std::string> registers_;
  std::priority_queue<Item> events_;
  uint64_t now_ = 0, last_ = 0;
};

// No operation has a rank that committed and one that undid; nobody waits past its deadline; memory follows the end.
void check(Simulation &run, uint64_t seed) {
  bool committed = false, aborted = false;
  for (uint32_t i = 0; i < run.size(); ++i) {
    Simulation::Rank &rank = run[i];
    if (rank.is_dead) continue;
    ASSERT_TRUE(rank.has_ended) << "seed " << seed << ": rank " << i << " waits for ever";
    if (!rank.was_stopped) {
      EXPECT_LE(rank.ended_at, rank.deadline + 2 * kLatency + rank.carry_ms + rank.copy_ms)
          << "seed " << seed << ": rank " << i;
    }
    const JobOutcome &outcome = rank.protocol->outcome();
    committed = committed || outcome.end == End::kCommitted;
    aborted = aborted || outcome.end == End::kAborted;
    if (outcome.end == End::kCommitted && !rank.has_nothing && rank.fails_to_carry == GMM_OK) {
      EXPECT_EQ(rank.memory, Simulation::Memory::kAfter) << "seed " << seed;
    }
    if (outcome.end == End::kAborted) {
      EXPECT_NE(rank.memory, Simulation::Memory::kAfter) << "seed " << seed;
      EXPECT_GE(outcome.rank, 0) << "seed " << seed;
      EXPECT_LT(outcome.cause, 0) << "seed " << seed;
    }
    if (outcome.end == End::kInDoubt) {
      EXPECT_EQ(rank.memory, Simulation::Memory::kPrepared) << "seed " << seed;
    }
  }
  ASSERT_FALSE(committed && aborted) << "seed " << seed << ": half a job";
}

constexpr uint64_t kSeeds = 1000;

TEST(JobProtocol, WithoutAFaultAllRanksCommit) {
  for (uint64_t seed = 0; seed < kSeeds / 10; ++seed) {
    Simulation run(seed, 1 + seed % 6);
    for (uint32_t i = 0; i < run.size(); ++i) run[i].has_nothing = run.chance(4) == 0;
    for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
      uint64_t bytes = 0;
      run.start();
      run.run();
      check(run, seed);
      for (uint32_t i = 0; i < run.size(); ++i) {
        const JobOutcome &outcome = run[i].protocol->outcome();
        bytes += run[i].has_nothing ? 0 : 10;
        ASSERT_EQ(outcome.end, End::kCommitted) << "seed " << seed << ": " << outcome.text;
        EXPECT_EQ(outcome.rank, -1);
        EXPECT_EQ(run[i].protocol->epoch(), epoch);
      }
      for (uint32_t i = 0; i < run.size(); ++i) EXPECT_EQ(run[i].protocol->outcome().job_bytes, bytes);
    }
    // What is left is the last operation's.
    EXPECT_EQ(run.registers().size(), 3u * run.size() + 3u) << "seed " << seed;
  }
}

// The exchange loses, delays and doubles. Whoever is in doubt finds out when it is asked again.
TEST(JobProtocol, AnExchangeWithFaultsMakesNoHalfJob) {
  uint64_t commits = 0, aborts = 0, doubts = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Simulation run(seed, 2 + seed % 4);
    const uint32_t most = seed % 3 == 0 ? 5 : seed % 3 == 1 ? 15 : 24;
    run.faults = Faults{static_cast<uint32_t>(run.chance(most)), static_cast<uint32_t>(run.chance(most)),
                        static_cast<uint32_t>(run.chance(most)), static_cast<uint32_t>(run.chance(most))};
    for (uint32_t i = 0; i < run.size(); ++i) {
      if (run.chance(8) == 0) run[i].fails_to_agree = GMM_ERROR_BUSY;
      if (run.chance(8) == 0) run[i].fails_to_copy = GMM_ERROR_OUT_OF_HOST_MEMORY;
      if (run.chance(8) == 0) run[i].fails_to_carry = GMM_ERROR_DRIVER;
      if (run.chance(6) == 0) run[i].unreachable_from = run.chance(kTimeout);
    }
    run.start();
    run.run();
    ASSERT_NO_FATAL_FAILURE(check(run, seed));
    for (uint32_t round = 0; round < 2; ++round) {  // the first time perhaps in vain
      for (uint32_t i = 0; i < run.size(); ++i) {
        const End end = run[i].protocol->outcome().end;
        if (round == 0) (end == End::kCommitted ? commits : end == End::kAborted ? aborts : doubts) += 1;
        if (round == 1) run[i].unreachable_from = kNever;
        if (round == 1) run.faults = Faults{};
        if (end == End::kInDoubt) run.go_on(i);
      }
      run.run();
      ASSERT_NO_FATAL_FAILURE(check(run, seed));
    }
    for (uint32_t i = 0; i < run.size(); ++i) ASSERT_NE(run[i].protocol->outcome().end, End::kInDoubt);
  }
  EXPECT_GT(commits, kSeeds / 10);
  EXPECT_GT(aborts, kSeeds / 10);
  EXPECT_GT(doubts, 10u);
}

// One rank dies at each of its steps. The others come to one end, which names it.
TEST(JobProtocol, ARankThatDiesAtAnyStepIsNamed) {
  for (uint32_t ranks = 2; ranks <= 5; ++ranks)
    for (uint32_t dying = 0; dying < ranks; ++dying)
      for (uint64_t step = 0, has_died = 1; has_died != 0; ++step) {
        const uint64_t seed = ranks * 1000 + dying * 100 + step;
        Simulation run(seed, ranks);
        run[dying].dies_at_step = step;
        run.start();
        run.run();
        has_died = run[dying].is_dead ? 1 : 0;
        ASSERT_NO_FATAL_FAILURE(check(run, seed));
        for (uint32_t i = 0; i < ranks && has_died != 0; ++i) {
          if (i == dying) continue;
          const JobOutcome &outcome = run[i].protocol->outcome();
          ASSERT_NE(outcome.end, End::kInDoubt) << "seed " << seed;
          if (outcome.rank == -1) continue;  // it had told that it was done
          EXPECT_EQ(outcome.rank, static_cast<int32_t>(dying)) << "seed " << seed << " step " << step;
          EXPECT_EQ(outcome.cause, GMM_ERROR_NOT_READY) << "seed " << seed;
        }
      }
}

// One rank stops at a step, for less than the time of the operation or for more, and goes on. The next operation of all
// of them is whole again.
TEST(JobProtocol, ARankThatStopsFollowsTheOthers) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Simulation run(seed, 2 + seed % 4);
    Simulation::Rank &stopping = run[static_cast<uint32_t>(run.chance(run.size()))];
    stopping.stops_at_step = run.chance(20);
    stopping.stops_for = 1 + run.chance(3 * kTimeout);
    run.start();
    run.run();
    ASSERT_NO_FATAL_FAILURE(check(run, seed));
    for (uint32_t i = 0; i < run.size(); ++i) {
      ASSERT_NE(run[i].protocol->outcome().end, End::kInDoubt);
      run[i].stops_at_step = kNever;
      run[i].was_stopped = false;
    }
    run.start();
    run.run();
    ASSERT_NO_FATAL_FAILURE(check(run, seed));
    for (uint32_t i = 0; i < run.size(); ++i)
      ASSERT_EQ(run[i].protocol->outcome().end, End::kCommitted) << "seed " << seed << run[i].protocol->outcome().text;
  }
}

TEST(JobProtocol, ARefusalReachesAllWithItsRankAndReason) {
  for (uint32_t ranks = 1; ranks <= 4; ++ranks)
    for (uint32_t refusing = 0; refusing < ranks; ++refusing)
      for (bool agrees : {false, true}) {
        Simulation run(7, ranks);
        (agrees ? run[refusing].fails_to_copy : run[refusing].fails_to_agree) = GMM_ERROR_BUSY;
        run.start();
        run.run();
        for (uint32_t i = 0; i < ranks; ++i) {
          const JobOutcome &outcome = run[i].protocol->outcome();
          EXPECT_EQ(outcome.end, End::kAborted);
          EXPECT_EQ(outcome.rank, static_cast<int32_t>(refusing));
          EXPECT_EQ(outcome.cause, GMM_ERROR_BUSY);
          EXPECT_STREQ(outcome.text, agrees ? "No room for the contents." : "A watcher refuses.?");
          // Long before the end of the time.
          EXPECT_LT(run[i].ended_at, kTimeout / 2);
        }
      }
}

TEST(JobProtocol, RanksThatAskForDifferentThingsAreTold) {
  for (uint32_t other = 0; other < 3; ++other) {
    Simulation run(9, 3);
    run[other].asked = "resume tags 99";
    run.start();
    run.run();
    for (uint32_t i = 0; i < 3; ++i) {
      const JobOutcome &outcome = run[i].protocol->outcome();
      EXPECT_EQ(outcome.end, End::kAborted);
      EXPECT_EQ(outcome.cause, GMM_ERROR_INVALID_VALUE);
      EXPECT_EQ(outcome.rank, other == 0 ? 1 : static_cast<int32_t>(other));
      EXPECT_NE(std::string(outcome.text).find("resume tags 99"), std::string::npos) << outcome.text;
    }
  }
}

// After the decision a rank fails. The others have committed, and are told.
TEST(JobProtocol, AFailureAfterTheDecisionIsTold) {
  for (uint32_t failing = 0; failing < 3; ++failing) {
    Simulation run(11, 3);
    run[failing].fails_to_carry = GMM_ERROR_DRIVER;
    run.start();
    run.run();
    for (uint32_t i = 0; i < 3; ++i) {
      const JobOutcome &outcome = run[i].protocol->outcome();
      EXPECT_EQ(outcome.end, End::kCommitted);
      EXPECT_EQ(outcome.rank, static_cast<int32_t>(failing));
      EXPECT_EQ(outcome.cause, GMM_ERROR_DRIVER);
      EXPECT_STREQ(outcome.text, "The driver refuses.");
    }
  }
}

}  // namespace
}  // namespace gmm::test
