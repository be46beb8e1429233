// SPDX-License-Identifier: Apache-2.0
// The states of one rank in an operation of a job. README.md has the protocol.
//
// What the room owns: which register a rank sets or reads next, what it tells its own transition, and how the operation
// ended. It knows no clock, no thread and no memory: who runs it gives it the time and carries out its steps. So a test
// runs thousands of operations with faults.
//
// Invariants.
// - kCommit is ordered only after `decision` was read as "yes".
// - After the rank tried to set `ready`, kAbort is ordered only after `decision` was read as "no", or by the end of the
//   job.
// - Each kSet and kGet has a time; none lies behind the deadline. kLocal may wait for ever, once the rank has an order.
//
// Locks: none. One thread at a time uses it.
// Callers: context/job.cpp.
#ifndef GMM_ENGINE_JOB_PROTOCOL_H
#define GMM_ENGINE_JOB_PROTOCOL_H

#include <gmm/job.h>

#include <cstdint>

namespace gmm {

// What the transition of this rank is told.
enum class JobOrder : uint8_t {
  kNone,
  kGo,      // all agree: prepare
  kCommit,  // go forward
  kAbort    // undo
};

// What the transition of this rank tells.
struct JobLocal {
  enum class Event : uint8_t {
    kNone,    // not yet
    kAgreed,  // nothing has changed
    kKept,    // it can go both ways
    kEnded    // with `code`
  } event = Event::kNone;
  gmm_result code = GMM_OK;
  uint64_t bytes = 0;
  const char *message = "";  // of a failure
};

// How an operation ended on this rank.
struct JobOutcome {
  enum class End : uint8_t { kCommitted, kAborted, kInDoubt } end = End::kAborted;
  int32_t rank = -1;          // which rank failed; -1: none
  gmm_result cause = GMM_OK;  // why
  uint64_t job_bytes = 0;     // of all ranks; after a commit
  char text[GMM_EXCHANGE_VALUE] = {};
};

class JobProtocol {
 public:
  enum class Act : uint8_t {
    kSet,    // register `key` to `value`; answered() with what stands, until `until`
    kGet,    // answered() with what stands, until `until`; at least one look
    kErase,  // register `key`; needs no answer
    kLocal,  // local() with what the transition tells, until `until`
    kOrder,  // tell the transition `order`
    kEnd     // outcome() is complete
  };
  struct Step {
    Act act = Act::kEnd;
    const char *key = "", *value = "";
    uint64_t until = 0;
    JobOrder order = JobOrder::kNone;
  };
  static constexpr uint64_t kKeySize = 128, kAskedSize = 128;
  // Rank 0 looks for a "no" so often while it collects, and any rank while it copies. Milliseconds.
  static constexpr uint64_t kCollectSlice = 50, kCopySlice = 200;

  // `name` has at most 63 bytes. `identity` tells processes with one rank apart.
  JobProtocol(const char *name, uint32_t rank, uint32_t ranks, uint64_t identity, bool erases);
  JobProtocol(const JobProtocol &) = delete;
  JobProtocol &operator=(const JobProtocol &) = delete;

  // The next epoch begins. `asked` says what is asked for, without a line break; all ranks must ask the same.
  void begin(const char *asked, uint64_t now, uint64_t timeout_ms);
  // Goes on with an operation that is in doubt.
  void go_on(uint64_t now, uint64_t timeout_ms);
  // Each step is carried out before the next is asked for. The step is valid until then.
  Step next(uint64_t now);
  // To kSet and kGet. NULL: there was no answer in time, or no value.
  void answered(const char *value);
  void local(const JobLocal &event);

  uint64_t epoch() const { return epoch_; }
  bool is_in_doubt() const { return state_ == State::kDone && outcome_.end == JobOutcome::End::kInDoubt; }
  const JobOutcome &outcome() const { return outcome_; }

 private:
  enum class State : uint8_t {
    kIdle,
    kAgree,    // waits for the transition's consent
    kPublish,  // sets its own register of the round
    kCollect,  // rank 0: reads those of the others
    kPeek,     // rank 0: a look at the round's answer meanwhile
    kAwait,    // other ranks: read the round's answer
    kMissing,  // the time is over: who is missing?
    kPropose,  // sets the round's answer
    kGo,       // orders kGo
    kErase,    // registers of operations before, while the transition copies
    kCopy,     // waits for the transition
    kGlance,   // a look at the decision meanwhile
    kFollow,   // orders what was decided
    kCarry,    // waits for the end of the transition
    kDone
  };
  enum Round : uint8_t { kIn, kReady, kEnd };

  uint64_t wait_until() const { return round_ == kEnd ? end_wait_ : vote_wait_; }
  void set_times(uint64_t now, uint64_t timeout_ms);
  void set_key(const char *register_name);
  void set_member_key(uint32_t rank);
  void set_answer_key();
  void refuse(uint32_t rank, gmm_result code, const char *text);  // proposes "no"
  void publish();
  void collect(uint32_t rank);
  void after_publish(const char *value);
  void after_collect(const char *value);
  void after_missing(const char *value);
  void after_answer(const char *value);  // of the round
  void no_answer();
  void follow(JobOrder order);
  void finish(JobOutcome::End end);
  bool erase_next();
  void read_refusal(const char *value);

  const char *const name_;
  const uint32_t rank_, ranks_;
  const uint64_t identity_;
  const bool erases_;
  State state_ = State::kIdle;
  Round round_ = kIn;
  JobOrder order_ = JobOrder::kNone;
  uint64_t epoch_ = 0, oldest_ = 1;  // the oldest epoch whose registers are not erased
  uint64_t now_ = 0, vote_wait_ = 0, end_wait_ = 0, deadline_ = 0;
  uint32_t at_ = 0;         // the rank whose register is read; of kErase: the register
  bool has_voted_ = false;  // `ready` may stand
  bool is_local_over_ = false;
  JobLocal local_;
  uint64_t total_ = 0;   // of the round
  int32_t failed_ = -1;  // of round kEnd: the first rank that failed
  JobOutcome outcome_;
  char asked_[kAskedSize] = {};
  char key_[kKeySize] = {};
  char value_[GMM_EXCHANGE_VALUE] = {};
};

}  // namespace gmm
#endif
