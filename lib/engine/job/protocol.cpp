// SPDX-License-Identifier: Apache-2.0
#include "engine/job/protocol.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gmm {
namespace {

bool is_yes(const char *value) { return std::strncmp(value, "yes", 3) == 0; }

// Registers of the rounds: of each rank, and what all learn.
constexpr const char *kMemberNames[] = {"in", "ready", "end"};
constexpr const char *kAnswerNames[] = {"go", "decision", "result"};

// An exchange carries ASCII text of one line.
void make_plain(char *text) {
  for (; *text != 0; ++text)
    if (*text < ' ' || *text > '~') *text = '?';
}

}  // namespace

JobProtocol::JobProtocol(const char *name, uint32_t rank, uint32_t ranks, uint64_t identity, bool erases)
    : name_(name), rank_(rank), ranks_(ranks), identity_(identity), erases_(erases) {}

void JobProtocol::begin(const char *asked, uint64_t now, uint64_t timeout_ms) {
  std::snprintf(asked_, sizeof asked_, "%s", asked);
  make_plain(asked_);
  ++epoch_;
  round_ = kIn;
  order_ = JobOrder::kNone;
  has_voted_ = is_local_over_ = false;
  local_ = JobLocal{};
  outcome_ = JobOutcome{};
  set_times(now, timeout_ms);
  state_ = State::kAgree;
}

void JobProtocol::set_times(uint64_t now, uint64_t timeout_ms) {
  deadline_ = now + timeout_ms;
  vote_wait_ = now + timeout_ms / 4 * 3;
  end_wait_ = now + timeout_ms / 16 * 15;
}

void JobProtocol::go_on(uint64_t now, uint64_t timeout_ms) {
  set_times(now, timeout_ms);
  outcome_ = JobOutcome{};
  refuse(rank_, GMM_ERROR_NOT_READY, "could not reach the exchange and was in doubt");
}

void JobProtocol::set_key(const char *register_name) {
  std::snprintf(key_, sizeof key_, "%s/%llu/%s", name_, static_cast<unsigned long long>(epoch_), register_name);
}

void JobProtocol::set_member_key(uint32_t rank) {
  char name[32];
  std::snprintf(name, sizeof name, "%s/%u", kMemberNames[round_], rank);
  set_key(name);
}

void JobProtocol::set_answer_key() { set_key(kAnswerNames[round_]); }

bool JobProtocol::erase_next() {
  const uint32_t count = rank_ == 0 ? 6 : 3;
  if (at_ == count) {
    at_ = 0;
    ++oldest_;
  }
  if (!erases_ || oldest_ == epoch_) {
    oldest_ = epoch_;
    return false;
  }
  const unsigned long long epoch = oldest_;
  if (at_ < 3)
    std::snprintf(key_, sizeof key_, "%s/%llu/%s/%u", name_, epoch, kMemberNames[at_], rank_);
  else
    std::snprintf(key_, sizeof key_, "%s/%llu/%s", name_, epoch, kAnswerNames[at_ - 3]);
  ++at_;
  return true;
}

JobProtocol::Step JobProtocol::next(uint64_t now) {
  now_ = now;
  Step step;
  step.key = key_;
  step.value = value_;
  if (state_ == State::kErase && !erase_next()) state_ = State::kCopy;
  if (state_ == State::kCopy && is_local_over_) publish();  // a rank that has nothing to do
  switch (state_) {
    case State::kAgree:
      step.act = Act::kLocal;
      step.until = vote_wait_;
      break;
    case State::kPublish:
      set_member_key(rank_);
      step.act = Act::kSet;
      step.until = wait_until();
      break;
    case State::kCollect:
      set_member_key(at_);
      step.act = Act::kGet;
      step.until = std::min(wait_until(), now + kCollectSlice);
      break;
    case State::kMissing:
      set_member_key(at_);
      step.act = Act::kGet;
      step.until = now;
      break;
    case State::kPeek:
    case State::kGlance:
      set_answer_key();
      step.act = Act::kGet;
      step.until = now;
      break;
    case State::kAwait:
      set_answer_key();
      step.act = Act::kGet;
      step.until = wait_until();
      break;
    case State::kPropose:
      set_answer_key();
      step.act = Act::kSet;
      step.until = deadline_;
      break;
    case State::kErase:
      step.act = Act::kErase;
      break;
    case State::kGo:
      step.act = Act::kOrder;
      step.order = JobOrder::kGo;
      state_ = State::kErase;
      break;
    case State::kCopy:
      step.act = Act::kLocal;
      step.until = std::min(vote_wait_, now + kCopySlice);
      break;
    case State::kFollow:
      step.act = Act::kOrder;
      step.order = order_;
      state_ = State::kCarry;
      break;
    case State::kCarry:
      step.act = Act::kLocal;
      step.until = UINT64_MAX;
      break;
    case State::kIdle:
    case State::kDone:
      break;
  }
  return step;
}

void JobProtocol::publish() {
  const unsigned long long bytes = local_.bytes;
  if (round_ == kIn)
    std::snprintf(value_, sizeof value_, "%016llx %s", static_cast<unsigned long long>(identity_), asked_);
  else if (round_ == kReady)
    std::snprintf(value_, sizeof value_, "%llu", bytes);
  else
    std::snprintf(value_, sizeof value_, "%d %llu %s", local_.code, bytes, local_.code < 0 ? local_.message : "");
  make_plain(value_);
  has_voted_ = has_voted_ || round_ == kReady;
  state_ = State::kPublish;
}

void JobProtocol::refuse(uint32_t rank, gmm_result code, const char *text) {
  std::snprintf(value_, sizeof value_, "no %u %d %s", rank, code, text);
  make_plain(value_);
  state_ = State::kPropose;
}

void JobProtocol::local(const JobLocal &event) {
  using Event = JobLocal::Event;
  const bool has_ended = event.event == Event::kEnded;
  if (event.event != Event::kNone) local_ = event;
  is_local_over_ = is_local_over_ || has_ended;
  if (state_ == State::kCarry) {
    if (!has_ended) return;
    if (order_ != JobOrder::kCommit) return finish(JobOutcome::End::kAborted);
    round_ = kEnd;
    return publish();
  }
  if (has_ended && event.code < 0) return refuse(rank_, event.code, event.message);
  if (state_ == State::kAgree) {
    if (event.event == Event::kNone)
      refuse(rank_, GMM_ERROR_NOT_READY, "was not ready to begin in time");
    else
      publish();
  } else if (event.event == Event::kKept || has_ended) {
    publish();
  } else if (now_ + kCopySlice >= vote_wait_) {
    refuse(rank_, GMM_ERROR_NOT_READY, "did not keep its contents, or hold its pages, in time");
  } else {
    state_ = State::kGlance;
  }
}

void JobProtocol::answered(const char *value) {
  switch (state_) {
    case State::kPublish:
      return after_publish(value);
    case State::kCollect:
      return after_collect(value);
    case State::kMissing:
      return after_missing(value);
    case State::kPeek:
    case State::kGlance:
      if (value != nullptr) return after_answer(value);
      state_ = state_ == State::kPeek ? State::kCollect : State::kCopy;
      return;
    case State::kAwait:
      if (value != nullptr) return after_answer(value);
      at_ = 0;
      state_ = State::kMissing;
      return;
    case State::kPropose:
      return value != nullptr ? after_answer(value) : no_answer();
    default:
      return;
  }
}

void JobProtocol::after_publish(const char *value) {
  if (value == nullptr) {
    if (round_ == kEnd) return no_answer();
    return refuse(rank_, GMM_ERROR_NOT_READY, "could not reach the exchange");
  }
  if (round_ == kIn && std::strcmp(value, value_) != 0) {
    // The other process has the place. It may go on with the job.
    outcome_.rank = static_cast<int32_t>(rank_);
    outcome_.cause = GMM_ERROR_INVALID_VALUE;
    std::snprintf(outcome_.text, sizeof outcome_.text,
                  "finds another process in its place; give each rank its own number, and each job a new name");
    return follow(JobOrder::kAbort);
  }
  if (rank_ != 0) {
    state_ = State::kAwait;
    return;
  }
  total_ = local_.bytes;
  failed_ = -1;
  if (round_ == kEnd && local_.code < 0) {
    failed_ = 0;
    outcome_.cause = local_.code;
    std::snprintf(outcome_.text, sizeof outcome_.text, "%s", local_.message);
  }
  collect(1);
}

void JobProtocol::collect(uint32_t rank) {
  at_ = rank;
  state_ = State::kCollect;
  if (at_ != ranks_) return;
  if (failed_ >= 0) {
    char text[GMM_EXCHANGE_VALUE];
    std::snprintf(text, sizeof text, "%s", outcome_.text);
    return refuse(static_cast<uint32_t>(failed_), outcome_.cause, text);
  }
  std::snprintf(value_, sizeof value_, "yes %llu", static_cast<unsigned long long>(total_));
  state_ = State::kPropose;
}

void JobProtocol::after_collect(const char *value) {
  if (value == nullptr) {
    state_ = State::kPeek;
    if (now_ + kCollectSlice < wait_until()) return;
    return refuse(at_, GMM_ERROR_NOT_READY,
                  round_ == kEnd ? "did not say in time that it is done" : "did not answer in time");
  }
  char *rest = nullptr;
  if (round_ == kIn) {
    const char *asked = std::strchr(value, ' ');
    if (asked == nullptr || std::strcmp(asked + 1, asked_) != 0) {
      char text[GMM_EXCHANGE_VALUE];
      std::snprintf(text, sizeof text, "asks for \"%.150s\", and rank 0 for \"%s\"", asked == nullptr ? "" : asked + 1,
                    asked_);
      return refuse(at_, GMM_ERROR_INVALID_VALUE, text);
    }
  } else if (round_ == kReady) {
    total_ += std::strtoull(value, nullptr, 10);
  } else {
    const long code = std::strtol(value, &rest, 10);
    total_ += std::strtoull(rest, &rest, 10);
    if (code < 0 && failed_ < 0) {
      failed_ = static_cast<int32_t>(at_);
      outcome_.cause = static_cast<gmm_result>(code);
      std::snprintf(outcome_.text, sizeof outcome_.text, "%s", *rest == ' ' ? rest + 1 : rest);
    }
  }
  collect(at_ + 1);
}

void JobProtocol::after_missing(const char *value) {
  if (value == nullptr && at_ != rank_) return refuse(at_, GMM_ERROR_NOT_READY, "did not answer in time");
  if (++at_ == ranks_) refuse(0, GMM_ERROR_NOT_READY, "did not decide in time");
}

void JobProtocol::read_refusal(const char *value) {
  char *rest = nullptr;
  outcome_.rank = static_cast<int32_t>(std::strtol(value + 2, &rest, 10));
  outcome_.cause = static_cast<gmm_result>(std::strtol(rest, &rest, 10));
  if (outcome_.cause >= 0) outcome_.cause = GMM_ERROR_INVALID_VALUE;  // no rank wrote that
  char text[GMM_EXCHANGE_VALUE];
  std::snprintf(text, sizeof text, "%s", *rest == ' ' ? rest + 1 : rest);
  std::memcpy(outcome_.text, text, sizeof text);
}

void JobProtocol::after_answer(const char *value) {
  const bool yes = is_yes(value);
  outcome_.rank = -1;
  outcome_.cause = GMM_OK;
  outcome_.text[0] = 0;
  if (!yes) read_refusal(value);
  if (yes && round_ != kIn) outcome_.job_bytes = std::strtoull(value + 3, nullptr, 10);
  if (round_ == kEnd) return finish(JobOutcome::End::kCommitted);
  if (!yes) return follow(JobOrder::kAbort);
  if (round_ == kReady) return follow(JobOrder::kCommit);
  round_ = kReady;
  at_ = 0;
  state_ = is_local_over_ ? State::kErase : State::kGo;
}

// The round's answer could not be learnt.
void JobProtocol::no_answer() {
  outcome_.rank = static_cast<int32_t>(rank_);
  outcome_.cause = GMM_ERROR_NOT_READY;
  std::snprintf(outcome_.text, sizeof outcome_.text, "could not reach the exchange");
  if (round_ == kEnd) return finish(JobOutcome::End::kCommitted);
  if (round_ == kReady && has_voted_) return finish(JobOutcome::End::kInDoubt);
  follow(JobOrder::kAbort);
}

void JobProtocol::follow(JobOrder order) {
  order_ = order;
  state_ = State::kFollow;
  if (!is_local_over_) return;
  if (order != JobOrder::kCommit) return finish(JobOutcome::End::kAborted);
  round_ = kEnd;
  publish();
}

void JobProtocol::finish(JobOutcome::End end) {
  outcome_.end = end;
  state_ = State::kDone;
}

}  // namespace gmm
