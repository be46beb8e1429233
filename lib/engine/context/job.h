// SPDX-License-Identifier: Apache-2.0
// One rank of a job (engine/job/README.md has the protocol).
//
// What it owns: the operation under way. A thread of the library carries out the pause or resume and holds the claim of
// its tags. At its votes it waits for orders. The thread that called runs the protocol: it alone calls the exchange,
// and it holds no lock meanwhile. In doubt the caller returns, and the other thread goes on waiting.
//
// Lock: `mutex` is brief. It guards what the two threads tell each other.
// Callers: api/job.cpp.
#ifndef GMM_ENGINE_CONTEXT_JOB_H
#define GMM_ENGINE_CONTEXT_JOB_H

#include <gmm/job.h>

#include "base/thread.h"
#include "engine/context/context.h"
#include "engine/job/protocol.h"

struct gmm_job {
  static constexpr uint64_t kMagic = 0x676d6d2d6a6f6221;
  static constexpr uint64_t kNameSize = 64, kDefaultTimeout = 60'000, kMaxTimeout = 86'400'000;
  // `desc` is checked.
  gmm_job(gmm::Context &of, const gmm_job_desc &checked, uint64_t identity);

  // A job keeps its context.
  static gmm::Status create(gmm::Context &context, const gmm_job_desc &desc, gmm_job **out);
  static gmm::Status destroy(gmm_job *job);
  // The request is checked and its tags are the caller's. `wrong`: the failure of that check, which ends the operation
  // on all ranks, as calls are paired by their number.
  gmm::Status run(bool is_pause, const gmm::PauseRequest &request, gmm::Status wrong);
  gmm_job_info query();

  uint64_t magic = kMagic;
  gmm::Context &context;

 private:
  using Event = gmm::JobLocal::Event;
  static void *thread_main(void *self);
  static gmm::Status vote_begin(void *self);
  static gmm::Status vote_decide(void *self, uint64_t bytes, bool *was_used);
  gmm::Status begin(const gmm::PauseRequest &request);
  void run_protocol();
  void ask(const gmm::JobProtocol::Step &step);
  gmm::JobLocal wait_local(uint64_t until);
  void order(gmm::JobOrder what);
  gmm::Status wait_order(Event event, uint64_t bytes);
  gmm::Status result();
  const char *function() const { return is_pause_ ? "gmm_job_pause()" : "gmm_job_resume()"; }

  const gmm_job_desc desc_;  // its name is name_
  char name_[kNameSize] = {};
  gmm::JobProtocol protocol_;
  // Of the operation.
  bool is_pause_ = false, has_thread_ = false;
  gmm::Vector<gmm_tag> tags_;
  gmm::PauseRequest request_;
  gmm::TicketState ticket_;
  const gmm::TransitionVote vote_{this, vote_begin, vote_decide};
  gmm::Thread thread_;

  gmm::Mutex mutex_{gmm::LockRank::kJob};
  gmm::Condition changed_;
  // Guarded by mutex_.
  bool is_running_ = false;
  Event told_ = Event::kNone;                     // by the thread of the transition, last
  bool is_heard_ = true;                          // the protocol knows
  bool was_in_doubt_ = false;                     // the caller returned and may have used the memory
  bool has_go_ = false;                           // ordered
  gmm::JobOrder decided_ = gmm::JobOrder::kNone;  // ordered
  gmm_result code_ = GMM_OK;                      // of the transition, when it has ended
  int32_t native_ = 0;
  uint64_t bytes_ = 0;
  char message_[GMM_EXCHANGE_VALUE] = {};
  gmm_job_info last_ = {};
};

#endif
