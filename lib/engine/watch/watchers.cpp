// SPDX-License-Identifier: Apache-2.0
#include "engine/watch/watchers.h"

#include <cinttypes>
#include <cstdio>

#include "base/process.h"
#include "engine/limits/limits.h"

namespace gmm {
namespace {

// Of the calling thread, where it is a watcher's: the watcher, and the event of the call that it is inside.
constinit thread_local const gmm_watcher *t_watcher = nullptr;
constinit thread_local uint32_t t_event = 0;

const char *event_name(uint32_t event) {
  switch (event) {
    case GMM_WATCH_PREPARE:
      return "PREPARE";
    case GMM_WATCH_LOSING:
      return "LOSING";
    case GMM_WATCH_RESTORED:
      return "RESTORED";
    case GMM_WATCH_FAILED:
      return "FAILED";
    default:
      return "BUDGET";
  }
}

bool comes_before(const gmm_watcher &one, const gmm_watcher &other) {
  return one.desc.order != other.desc.order ? one.desc.order < other.desc.order : one.number < other.number;
}

// What a message calls a watcher.
class Shown {
 public:
  explicit Shown(const gmm_watcher &watcher) {
    if (watcher.name[0] != 0)
      std::snprintf(text, sizeof text, "the watcher \"%s\"", watcher.name);
    else
      std::snprintf(text, sizeof text, "the watcher %p", static_cast<const void *>(&watcher));
  }
  char text[gmm_watcher::kNameSize + 32];
};

Status refuse(const char *function) {
  return fail(GMM_ERROR_BUSY,
              "%s: the call comes from the callback of a watcher, for which an operation waits; call it after the "
              "callback has returned.",
              function);
}

}  // namespace

Status Watchers::check_outside(const char *function) {
  return t_event == 0 || t_event == GMM_WATCH_BUDGET ? Status() : refuse(function);
}

Status Watchers::check_other_thread(const char *function) { return t_watcher == nullptr ? Status() : refuse(function); }

// --- The list --------------------------------------------------------------------------------------------------------

void Watchers::insert(gmm_watcher *watcher) {
  // The list has no insertion in the middle: what comes later goes behind.
  List<gmm_watcher, Watchers> before;
  while (gmm_watcher *first = list_.front()) {
    if (!comes_before(*first, *watcher)) break;
    before.push_back(list_.pop_front());
  }
  before.push_back(watcher);
  while (gmm_watcher *rest = list_.pop_front()) before.push_back(rest);
  while (gmm_watcher *each = before.pop_front()) list_.push_back(each);
}

Status Watchers::add(Context *context, const gmm_watch_desc &desc, gmm_watcher **out) {
  gmm_watcher *watcher = core_.allocator.create<gmm_watcher>();
  if (watcher == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for a watcher.");
  watcher->context = context;
  watcher->owner = this;
  watcher->desc = desc;
  watcher->target.tag = desc.tag;
  watcher->target.range = ByteRange{reinterpret_cast<uintptr_t>(desc.address), desc.size};
  if (desc.name != nullptr) std::snprintf(watcher->name, sizeof watcher->name, "%s", desc.name);
  watcher->desc.name = nullptr;
  const int error = start_thread(&watcher->thread, ThreadSignals::kNone, thread_main, watcher);
  if (error != 0) {
    core_.allocator.destroy(watcher);
    return fail_native(GMM_ERROR_SYSTEM, error, "The thread of a watcher could not be started; raise the limit.");
  }
  LockGuard guard(mutex_);
  watcher->number = ++last_number_;
  insert(watcher);
  count_.fetch_add(1, std::memory_order_release);
  *out = watcher;
  return Status();
}

// It is in no list any more.
void Watchers::end(gmm_watcher *watcher) {
  join_thread(watcher->thread);
  watcher->magic = 0;
  leave(watcher);
}

Status Watchers::destroy(gmm_watcher *watcher) {
  GMM_TRY(check_other_thread("gmm_watcher_destroy"));
  {
    LockGuard guard(mutex_);
    List<gmm_watcher, Watchers>::remove(watcher);
    count_.fetch_sub(1, std::memory_order_release);
    watcher->is_ending = true;
    watcher->wake.notify_all();
  }
  end(watcher);
  return Status();
}

void Watchers::clear() {
  for (;;) {
    gmm_watcher *watcher = nullptr;
    {
      LockGuard guard(mutex_);
      watcher = list_.pop_front();
      if (watcher == nullptr) break;
      watcher->is_ending = true;
      watcher->wake.notify_all();
    }
    end(watcher);
  }
  count_.store(0, std::memory_order_release);
}

gmm_watcher *Watchers::next(gmm_watcher *after, bool ascending) {
  gmm_watcher *found = nullptr;
  {
    LockGuard guard(mutex_);
    for (gmm_watcher *each = list_.front(); each != nullptr; each = list_.next(each)) {
      if (ascending && (after == nullptr || comes_before(*after, *each))) {
        found = each;
        break;
      }
      if (!ascending && (after == nullptr || comes_before(*each, *after))) found = each;
    }
    if (found != nullptr) ++found->references;
  }
  if (after != nullptr) leave(after);
  return found;
}

void Watchers::leave(gmm_watcher *watcher) {
  bool is_last = false;
  {
    LockGuard guard(mutex_);
    is_last = --watcher->references == 0;
  }
  if (is_last) core_.allocator.destroy(watcher);
}

// --- The thread of a watcher -----------------------------------------------------------------------------------------

void *Watchers::thread_main(void *self) {
  name_thread("gmm watcher");
  gmm_watcher *watcher = static_cast<gmm_watcher *>(self);
  t_watcher = watcher;
  forbid_allocations();
  watcher->owner->run(*watcher);
  return nullptr;
}

// With mutex_.
bool Watchers::take(gmm_watcher &watcher, gmm_watcher::Ask *out) {
  gmm_watcher::Ask &from = watcher.queued.event != 0 ? watcher.queued : watcher.asked;
  if (from.event == 0) return false;
  *out = from;
  from.event = 0;
  return true;
}

// Without mutex_.
void Watchers::call(gmm_watcher &watcher, const gmm_watcher::Ask &ask, uint64_t budget) {
  gmm_watch_info info = {};
  info.struct_size = sizeof info;
  info.event = ask.event;
  info.device = watcher.desc.device;
  info.cause = ask.cause;
  info.budget_bytes = budget;
  info.remaining_ms = milliseconds_until(ask.deadline);
  if (ask.event != GMM_WATCH_BUDGET) {
    info.tag = watcher.target.tag;
    info.address = const_cast<void *>(watcher.desc.address);
    info.size = watcher.desc.size;
  }
  if (ask.event != GMM_WATCH_BUDGET && watcher.target.is_range()) {
    const Extent *extent = core_.page_map.find_extent(watcher.desc.address);
    const Region *region = extent == nullptr ? nullptr : extent->region.load(std::memory_order_acquire);
    const HeapVisit visit(heaps_, region == nullptr ? nullptr : region->heap.load(std::memory_order_relaxed));
    if (visit.heap != nullptr) {
      info.generation = region->generation.load(std::memory_order_relaxed);
      info.tag = visit.heap->options().tag;
      info.device = visit.heap->options().device.ordinal;
    }
  }
  check_may_call_program(ProgramCall::kWatch);
  t_event = ask.event;
  const int32_t answer = watcher.desc.callback.fn(watcher.desc.callback.user, &info);
  t_event = 0;
  LockGuard guard(mutex_);
  watcher.is_running = false;
  if (ask.id != 0) {
    watcher.answered = ask.id;
    watcher.answer = answer;
  }
  watcher.done.notify_all();
}

// Without mutex_. Each fall counts once.
bool Watchers::budget_fell(gmm_watcher &watcher, bool *was_below, uint64_t *budget) {
  MessageGuard message_guard;
  const Device device{watcher.desc.device};
  gmm_device_info info = {};
  if (!describe_device(*core_.backend, held_, held_on_[device.ordinal], device, &info).ok()) return false;
  *budget = info.budget_bytes;
  const bool is_below = *budget < watcher.desc.budget_bytes;
  const bool fell = is_below && !*was_below;
  *was_below = is_below;
  return fell;
}

void Watchers::run(gmm_watcher &watcher) {
  const bool looks = (watcher.desc.events & GMM_WATCH_BUDGET) != 0;
  bool was_below = false;
  for (;;) {
    gmm_watcher::Ask ask;
    uint64_t budget = 0;
    bool has_ask = false;
    {
      LockGuard guard(mutex_);
      const auto has_cause = [&] { return watcher.is_ending || watcher.queued.event != 0 || watcher.asked.event != 0; };
      if (looks && !has_cause())
        watcher.wake.wait_for(mutex_, kBudgetPeriod);
      else
        while (!has_cause()) watcher.wake.wait(mutex_);
      if (watcher.is_ending) {
        watcher.done.notify_all();
        return;
      }
      has_ask = take(watcher, &ask);
      watcher.is_running = has_ask;
    }
    if (!has_ask && looks && budget_fell(watcher, &was_below, &budget)) {
      ask.event = GMM_WATCH_BUDGET;
      has_ask = true;
    }
    if (has_ask) call(watcher, ask, budget);
  }
}

// --- The calls of an operation ---------------------------------------------------------------------------------------

Watchers::Outcome Watchers::ask(gmm_watcher &watcher, uint32_t event, gmm_result cause, int32_t *answer) {
  const bool may_withdraw = event == GMM_WATCH_PREPARE || event == GMM_WATCH_LOSING;
  const bool is_own = t_watcher == &watcher;  // a callback for BUDGET pauses memory that it watches
  *answer = 0;
  if (is_own && may_withdraw) return Outcome::kOwnCall;
  LockGuard guard(mutex_);
  const uint64_t start = monotonic_ms();
  gmm_watcher::Ask &place = may_withdraw ? watcher.asked : watcher.queued;
  const uint64_t id = ++watcher.last_id;
  place = gmm_watcher::Ask{event, cause, id, is_own ? 0 : start + watcher.desc.timeout_ms};
  watcher.wake.notify_all();
  // It follows the call that the thread is inside: the caller's own, or one that was late already.
  if (is_own || (!may_withdraw && watcher.is_running)) return Outcome::kAnswered;
  while (watcher.answered != id) {
    if (watcher.is_ending && !watcher.is_running) return Outcome::kAnswered;
    const uint64_t past = monotonic_ms() - start;
    if (past >= watcher.desc.timeout_ms) {
      if (may_withdraw && place.id == id) place.event = 0;
      return Outcome::kLate;
    }
    watcher.done.wait_for(mutex_, watcher.desc.timeout_ms - past);
  }
  *answer = watcher.answer;
  return Outcome::kAnswered;
}

void WatchCalls::mark(gmm_watcher &watcher, WatchMark value) {
  LockGuard guard(watchers_.mutex_);
  watcher.mark = value;
  has_marked_ = has_marked_ || value != WatchMark::kNone;
}

WatchMark WatchCalls::marked(const gmm_watcher &watcher) {
  LockGuard guard(watchers_.mutex_);
  return watcher.mark;
}

Status WatchCalls::ask(gmm_watcher &watcher, uint32_t event) {
  if ((watcher.desc.events & event) == 0) return Status();
  int32_t answer = 0;
  switch (watchers_.ask(watcher, event, GMM_OK, &answer)) {
    case Watchers::Outcome::kAnswered:
      break;
    case Watchers::Outcome::kOwnCall:
      return fail(GMM_ERROR_BUSY, "%s: the call comes from %s, which watches this memory; call it on another thread.",
                  operation_, Shown(watcher).text);
    case Watchers::Outcome::kLate:
      return fail(GMM_ERROR_BUSY,
                  "%s: %s did not answer to %s within %" PRIu64
                  " ms; everything is as before. Try again, or give it a longer timeout_ms.",
                  operation_, Shown(watcher).text, event_name(event), watcher.desc.timeout_ms);
  }
  if (answer == 0 || event != GMM_WATCH_PREPARE) return Status();
  mark(watcher, WatchMark::kNone);
  return fail(GMM_ERROR_BUSY, "%s: %s refused with %d; everything is as before. Try again when it lets the memory go.",
              operation_, Shown(watcher).text, answer);
}

Status WatchCalls::prepare() {
  Status status;
  if (!has_marked_) return status;
  gmm_watcher *watcher = nullptr;
  while ((watcher = watchers_.next(watcher, true)) != nullptr && status.ok()) {
    if (marked(*watcher) != WatchMark::kSelected) continue;
    mark(*watcher, WatchMark::kReached);
    status = ask(*watcher, GMM_WATCH_PREPARE);
  }
  if (watcher != nullptr) watchers_.leave(watcher);
  return status;
}

Status WatchCalls::losing() {
  Status status;
  if (!has_marked_) return status;
  gmm_watcher *watcher = nullptr;
  while ((watcher = watchers_.next(watcher, true)) != nullptr && status.ok())
    if (marked(*watcher) == WatchMark::kReached) status = ask(*watcher, GMM_WATCH_LOSING);
  if (watcher != nullptr) watchers_.leave(watcher);
  return status;
}

void WatchCalls::reach_all() {
  if (!has_marked_) return;
  gmm_watcher *watcher = nullptr;
  while ((watcher = watchers_.next(watcher, true)) != nullptr)
    if (marked(*watcher) == WatchMark::kSelected) mark(*watcher, WatchMark::kReached);
}

void WatchCalls::end(const Status &status, bool restores) {
  if (!has_marked_) return;
  MessageGuard message_guard;  // the operation's message stays
  const bool failed = status.code() != GMM_OK;
  const uint32_t event = failed ? GMM_WATCH_FAILED : GMM_WATCH_RESTORED;
  gmm_watcher *watcher = nullptr;
  while ((watcher = watchers_.next(watcher, false)) != nullptr) {
    const WatchMark was = marked(*watcher);
    if (was == WatchMark::kNone) continue;
    mark(*watcher, WatchMark::kNone);
    if (was != WatchMark::kReached || (!failed && !restores) || (watcher->desc.events & event) == 0) continue;
    int32_t answer = 0;
    if (watchers_.ask(*watcher, event, status.code(), &answer) == Watchers::Outcome::kLate)
      watchers_.core_.log.write(LogLevel::kWarning, "%s goes on: %s did not answer to %s within %" PRIu64 " ms.",
                                operation_, Shown(*watcher).text, event_name(event), watcher->desc.timeout_ms);
  }
  has_marked_ = false;
}

void WatchCalls::forget() { end(Status(), false); }

}  // namespace gmm
