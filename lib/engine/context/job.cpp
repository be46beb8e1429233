// SPDX-License-Identifier: Apache-2.0
#include "engine/context/job.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/hash_table.h"
#include "base/process.h"
#include "base/thread.h"
#include "engine/context/transition.h"

using namespace gmm;

namespace {

// Names of tags, as ranks may have other numbers for them. The order does not matter.
uint64_t sum_of_names(Context &context, const PauseRequest &request) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < request.count; ++i) sum += hash_of_text(context.tags.get(request.tags[i])->name);
  return sum;
}

}  // namespace

gmm_job::gmm_job(Context &of, const gmm_job_desc &checked, uint64_t identity)
    : context(of),
      desc_(checked),
      protocol_(name_, checked.rank, checked.ranks, identity, checked.exchange.erase != nullptr),
      tags_(of.core.allocator) {
  std::snprintf(name_, sizeof name_, "%s", checked.name);
  last_.failed_rank = -1;
}

Status gmm_job::create(Context &context, const gmm_job_desc &desc, gmm_job **out) {
  uint64_t identity = 0;
  GMM_TRY(random_bytes(&identity, sizeof identity));
  gmm_job *job = context.core.allocator.create<gmm_job>(context, desc, identity);
  if (job == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for a job.");
  context.retain();
  *out = job;
  return Status();
}

Status gmm_job::destroy(gmm_job *job) {
  {
    LockGuard guard(job->mutex_);
    if (job->is_running_)
      return fail(GMM_ERROR_BUSY, "gmm_job_destroy(): a thread is in an operation of the job \"%s\"; wait for its end.",
                  job->name_);
    job->is_running_ = true;
  }
  if (job->has_thread_) {
    job->context.core.log.write(LogLevel::kWarning,
                                "gmm_job_destroy(): epoch %" PRIu64
                                " of the job \"%s\" was in doubt and is undone on rank %u.",
                                job->protocol_.epoch(), job->name_, job->desc_.rank);
    job->order(JobOrder::kAbort);
    join_thread(job->thread_);
  }
  job->magic = 0;
  Context &context = job->context;
  context.core.allocator.destroy(job);
  context.release();
  return Status();
}

// --- The thread of the transition -----------------------------------------------------------------------------------

void *gmm_job::thread_main(void *self) {
  name_thread("gmm job");
  gmm_job &job = *static_cast<gmm_job *>(self);
  const auto carry_out = [&](uint64_t *bytes) {
    return job.is_pause_ ? pause(job.context, job.request_, bytes) : resume(job.context, job.request_, bytes);
  };
  uint64_t bytes = 0;
  Status status = carry_out(&bytes);
  bool is_decided = false;
  {
    LockGuard guard(job.mutex_);
    is_decided = job.decided_ == JobOrder::kCommit;
  }
  if (!status.ok() && is_decided) {  // there is only forward
    job.request_.vote = nullptr;
    job.request_.ticket = nullptr;
    job.request_.progress = {};
    status = carry_out(&bytes);
  }
  LockGuard guard(job.mutex_);
  job.code_ = status.code();
  job.native_ = status.ok() ? 0 : last_native();
  job.bytes_ = bytes;
  std::snprintf(job.message_, sizeof job.message_, "%s", status.ok() ? "" : last_message());
  job.told_ = Event::kEnded;
  job.is_heard_ = false;
  job.changed_.notify_all();
  return nullptr;
}

// Tells where the transition is, and waits for what comes next.
Status gmm_job::wait_order(Event event, uint64_t bytes) {
  LockGuard guard(mutex_);
  const auto has_order = [&] { return decided_ != JobOrder::kNone || (event == Event::kAgreed && has_go_); };
  if (!has_order()) {
    told_ = event;
    bytes_ = bytes;
    is_heard_ = false;
    changed_.notify_all();
    while (!has_order()) changed_.wait(mutex_);
  }
  return decided_ == JobOrder::kAbort ? fail(GMM_ERROR_CANCELLED, "The job ended the operation; all is as before.")
                                      : Status();
}

Status gmm_job::vote_begin(void *self) { return static_cast<gmm_job *>(self)->wait_order(Event::kAgreed, 0); }

Status gmm_job::vote_decide(void *self, uint64_t bytes, bool *was_used) {
  gmm_job &job = *static_cast<gmm_job *>(self);
  const Status status = job.wait_order(Event::kKept, bytes);
  LockGuard guard(job.mutex_);
  *was_used = job.was_in_doubt_;
  return status;
}

// --- The thread of the caller ----------------------------------------------------------------------------------------

void gmm_job::order(JobOrder what) {
  LockGuard guard(mutex_);
  if (what == JobOrder::kGo)
    has_go_ = true;
  else
    decided_ = what;
  if (what == JobOrder::kAbort) ticket_.cancelled.store(1, std::memory_order_relaxed);
  changed_.notify_all();
}

JobLocal gmm_job::wait_local(uint64_t until) {
  constexpr uint64_t kSlice = 60'000;
  LockGuard guard(mutex_);
  while (is_heard_) {
    const uint64_t now = monotonic_ms();
    if (now >= until) return JobLocal{};
    changed_.wait_for(mutex_, std::min(until - now, kSlice));
  }
  is_heard_ = true;
  return JobLocal{told_, told_ == Event::kEnded ? code_ : GMM_OK, bytes_, message_};
}

// A failure or an early answer is asked again until the time is over. A proposal of a rank that was stopped comes late
// and still gets one try.
void gmm_job::ask(const JobProtocol::Step &step) {
  constexpr uint64_t kLastTry = 50, kShortest = 200, kLongest = 4000;
  const bool sets = step.act == JobProtocol::Act::kSet;
  const gmm_exchange &exchange = desc_.exchange;
  char answer[GMM_EXCHANGE_VALUE] = {};
  uint64_t pause_us = kShortest;
  for (;;) {
    uint64_t now = monotonic_ms();
    const uint64_t left = step.until > now ? step.until - now : 0;
    check_may_call_program(ProgramCall::kExchange);
    const gmm_result result = sets ? exchange.set(exchange.user, step.key, step.value, answer, std::max(left, kLastTry))
                                   : exchange.get(exchange.user, step.key, answer, left);
    answer[sizeof answer - 1] = 0;
    if (result == GMM_OK) return protocol_.answered(answer);
    now = monotonic_ms();
    if (now >= step.until || result == GMM_ERROR_CANCELLED) return protocol_.answered(nullptr);
    sleep_us(std::min(pause_us, (step.until - now) * 1000));
    pause_us = std::min(pause_us * 2, kLongest);
  }
}

void gmm_job::run_protocol() {
  for (;;) {
    const JobProtocol::Step step = protocol_.next(monotonic_ms());
    switch (step.act) {
      case JobProtocol::Act::kSet:
      case JobProtocol::Act::kGet:
        ask(step);
        break;
      case JobProtocol::Act::kErase:
        check_may_call_program(ProgramCall::kExchange);
        desc_.exchange.erase(desc_.exchange.user, step.key);
        break;
      case JobProtocol::Act::kLocal:
        protocol_.local(wait_local(step.until));
        break;
      case JobProtocol::Act::kOrder:
        order(step.order);
        break;
      case JobProtocol::Act::kEnd:
        return;
    }
  }
}

Status gmm_job::begin(const PauseRequest &request) {
  tags_.clear();
  if (!tags_.reserve(request.count)) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for %s.", function());
  for (uint32_t i = 0; i < request.count; ++i) tags_.push_back_reserved(request.tags[i]);
  request_ = request;
  request_.tags = tags_.data();
  request_.ticket = &ticket_;
  request_.vote = &vote_;
  ticket_.cancelled.store(0, std::memory_order_relaxed);
  told_ = Event::kNone;
  is_heard_ = true;
  has_go_ = was_in_doubt_ = false;
  native_ = 0;
  decided_ = JobOrder::kNone;
  code_ = GMM_OK;
  bytes_ = 0;
  message_[0] = 0;
  const int error = start_thread(&thread_, ThreadSignals::kNone, thread_main, this);
  if (error != 0) return fail_native(GMM_ERROR_SYSTEM, error, "No thread could be had for %s.", function());
  has_thread_ = true;
  return Status();
}

Status gmm_job::run(bool is_pause, const PauseRequest &request, Status wrong) {
  {
    LockGuard guard(mutex_);
    if (is_running_)
      return fail(GMM_ERROR_BUSY, "The job \"%s\" is in an operation of another thread; wait for its end.", name_);
    if (has_thread_ && !wrong.ok()) return wrong;  // in doubt: that operation is not over
    if (has_thread_ && is_pause_ != is_pause)
      return fail(GMM_ERROR_BUSY, "Epoch %" PRIu64 " of the job \"%s\" is in doubt; call %s again first.",
                  protocol_.epoch(), name_, function());
    is_running_ = true;
    last_.state = GMM_JOB_RUNNING;
  }
  Status status;
  if (has_thread_) {
    {
      LockGuard guard(mutex_);
      was_in_doubt_ = true;
    }
    protocol_.go_on(monotonic_ms(), desc_.timeout_ms);
  } else {
    is_pause_ = is_pause;
    status = wrong.ok() ? begin(request) : wrong;
    char asked[JobProtocol::kAskedSize];
    std::snprintf(asked, sizeof asked, "%s of %u tags (%016" PRIx64 "), flags 0x%x, %u ranks",
                  is_pause ? "pause" : "resume", request.count, sum_of_names(context, request), request.flags,
                  desc_.ranks);
    // Without a thread the epoch is used up all the same: calls are paired by their number.
    protocol_.begin(asked, monotonic_ms(), desc_.timeout_ms);
    if (!status.ok()) {
      LockGuard guard(mutex_);
      code_ = status.code();
      native_ = wrong.ok() ? last_native() : 0;
      std::snprintf(message_, sizeof message_, "%s", last_message());
      told_ = Event::kEnded;
      is_heard_ = false;
    }
  }
  run_protocol();
  const bool is_in_doubt = protocol_.is_in_doubt();
  if (has_thread_ && !is_in_doubt) {
    join_thread(thread_);
    has_thread_ = false;
  }
  status = result();
  const JobOutcome &outcome = protocol_.outcome();
  LockGuard guard(mutex_);
  last_.state = is_in_doubt                                  ? GMM_JOB_IN_DOUBT
                : outcome.end == JobOutcome::End::kCommitted ? GMM_JOB_COMMITTED
                                                             : GMM_JOB_ABORTED;
  last_.epoch = protocol_.epoch();
  last_.failed_rank = outcome.rank;
  last_.cause = outcome.cause;
  last_.bytes = last_.state == GMM_JOB_COMMITTED && code_ >= 0 ? bytes_ : 0;
  last_.job_bytes = last_.state == GMM_JOB_COMMITTED ? outcome.job_bytes : 0;
  is_running_ = false;
  return status;
}

Status gmm_job::result() {
  const JobOutcome &outcome = protocol_.outcome();
  switch (outcome.end) {
    case JobOutcome::End::kCommitted:
      if (code_ >= 0) return Status();
      return fail_native(code_, native_, "%s, epoch %" PRIu64 ": all ranks decided to go on, but rank %u failed: %s",
                         function(), protocol_.epoch(), desc_.rank, message_);
    case JobOutcome::End::kInDoubt:
      return fail(GMM_ERROR_NOT_READY,
                  "%s, epoch %" PRIu64 ": rank %u agreed and could not reach the exchange in %" PRIu64
                  " ms to learn the decision; its memory is as before. Call it again.",
                  function(), protocol_.epoch(), desc_.rank, desc_.timeout_ms);
    case JobOutcome::End::kAborted:
      break;
  }
  const bool is_own = outcome.rank == static_cast<int32_t>(desc_.rank) && code_ == outcome.cause;
  const bool refuses = outcome.cause != GMM_ERROR_NOT_READY && outcome.cause != GMM_ERROR_INVALID_VALUE;
  return fail_native(outcome.cause, is_own ? native_ : 0,
                     "%s, epoch %" PRIu64 ": all ranks are as before, as rank %d %s%s", function(), protocol_.epoch(),
                     outcome.rank, refuses ? "refuses: " : "", outcome.text);
}

gmm_job_info gmm_job::query() {
  LockGuard guard(mutex_);
  return last_;
}
