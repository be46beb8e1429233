// SPDX-License-Identifier: Apache-2.0
#include "engine/watch/watchers.h"

#include <cstdio>
#include <utility>

#include "base/thread_record.h"
#include "engine/limits/limits.h"

namespace gmm {
namespace {

// The event of the callback that the calling thread is inside; 0: none.
constinit thread_local uint32_t t_event = 0;

bool comes_before(const gmm_watcher &one, const gmm_watcher &other) {
  return one.desc.order != other.desc.order ? one.desc.order < other.desc.order : one.number < other.number;
}

Status refuse(const char *function) {
  return fail(GMM_ERROR_BUSY,
              "%s: the call comes from the callback of a watcher; call it after the callback has returned.", function);
}

}  // namespace

Status Watchers::check_no_operation(const char *function) {
  return t_event == 0 || t_event == GMM_WATCH_BUDGET ? Status() : refuse(function);
}

Status Watchers::check_outside(const char *function) { return t_event == 0 ? Status() : refuse(function); }

// --- The list --------------------------------------------------------------------------------------------------------

void Watchers::insert(gmm_watcher *watcher) {
  // The list has no insertion in the middle, so those that come later move behind.
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
  LockGuard guard(mutex_);
  if ((desc.events & GMM_WATCH_BUDGET) != 0) {
    if (!has_thread_) {
      const int error = start_thread(&thread_, ThreadSignals::kNone, thread_main, this);
      if (error != 0) {
        core_.allocator.destroy(watcher);
        return fail_native(GMM_ERROR_SYSTEM, error,
                           "gmm_watch: the thread that looks at budgets could not be started; raise the limit.");
      }
      has_thread_ = true;
    }
    ++budgets_;
    wake_.notify_all();
  }
  watcher->number = ++last_number_;
  insert(watcher);
  count_.fetch_add(1, std::memory_order_release);
  *out = watcher;
  return Status();
}

// It is in no list any more. With mutex_.
void Watchers::end(gmm_watcher *watcher) {
  count_.fetch_sub(1, std::memory_order_release);
  if ((watcher->desc.events & GMM_WATCH_BUDGET) != 0) --budgets_;
  watcher->is_ending = true;
  while (watcher->running != 0) watcher->returned.wait(mutex_);
  watcher->magic = 0;
}

Status Watchers::destroy(gmm_watcher *watcher) {
  GMM_TRY(check_outside("gmm_watcher_destroy"));
  {
    LockGuard guard(mutex_);
    List<gmm_watcher, Watchers>::remove(watcher);
    end(watcher);
  }
  leave(watcher);
  return Status();
}

void Watchers::clear() {
  {
    LockGuard guard(mutex_);
    is_ending_ = true;
    wake_.notify_all();
  }
  if (has_thread_) join_thread(thread_);
  for (;;) {
    gmm_watcher *watcher = nullptr;
    {
      LockGuard guard(mutex_);
      watcher = list_.pop_front();
      if (watcher == nullptr) return;
      end(watcher);
    }
    leave(watcher);
  }
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

// --- The calls of the program ----------------------------------------------------------------------------------------

int32_t Watchers::call(gmm_watcher &watcher, uint32_t event, gmm_result cause, uint64_t budget) {
  {
    LockGuard guard(mutex_);
    if (watcher.is_ending) return 0;
    ++watcher.running;
  }
  gmm_watch_info info = {};
  info.struct_size = sizeof info;
  info.event = event;
  info.device = watcher.desc.device;
  info.cause = cause;
  info.budget_bytes = budget;
  if (event != GMM_WATCH_BUDGET) {
    info.tag = watcher.target.tag;
    info.address = const_cast<void *>(watcher.desc.address);
    info.size = watcher.desc.size;
  }
  if (event != GMM_WATCH_BUDGET && watcher.target.is_range()) {
    const Region *region = region_of(core_.page_map.find_extent(watcher.desc.address));
    const HeapVisit visit(heaps_, heap_of(region));
    if (visit.heap != nullptr) {
      info.generation = region->generation.load(std::memory_order_relaxed);
      info.tag = visit.heap->options().tag;
      info.device = visit.heap->options().device.ordinal;
    }
  }
  check_may_call_program(ProgramCall::kWatch);
  int32_t answer = 0;
  {
    const LocksAside locks_aside;
    const AllocationBan allocation_ban;
    const uint32_t outer = std::exchange(t_event, event);  // BUDGET, whose callback may pause
    answer = watcher.desc.callback.fn(watcher.desc.callback.user, &info);
    t_event = outer;
  }
  LockGuard guard(mutex_);
  if (--watcher.running == 0) watcher.returned.notify_all();
  return answer;
}

void *Watchers::thread_main(void *self) {
  name_thread("gmm-budgets");
  static_cast<Watchers *>(self)->look_at_budgets();
  return nullptr;
}

// Each fall counts once.
bool Watchers::budget_fell(gmm_watcher &watcher, uint64_t *budget) {
  MessageGuard message_guard;
  const Device device{watcher.desc.device};
  gmm_device_info info = {};
  if (!describe_device(*core_.backend, held_, held_on_[device.ordinal], device, &info).ok()) return false;
  *budget = info.budget_bytes;
  const bool was_below = std::exchange(watcher.was_below, *budget < watcher.desc.budget_bytes);
  return watcher.was_below && !was_below;
}

void Watchers::look_at_budgets() {
  for (;;) {
    gmm_watcher *watcher = nullptr;
    uint64_t budget = 0;
    while ((watcher = next(watcher, true)) != nullptr)
      if ((watcher->desc.events & GMM_WATCH_BUDGET) != 0 && budget_fell(*watcher, &budget))
        call(*watcher, GMM_WATCH_BUDGET, GMM_OK, budget);
    LockGuard guard(mutex_);
    if (!is_ending_) wake_.wait_for(mutex_, kBudgetPeriod);
    while (!is_ending_ && budgets_ == 0) wake_.wait(mutex_);
    if (is_ending_) return;
  }
}

// --- The calls of an operation ---------------------------------------------------------------------------------------

void WatchCalls::mark(gmm_watcher &watcher, WatchMark value) {
  LockGuard guard(watchers_.mutex_);
  watcher.mark = value;
  has_marked_ = has_marked_ || value != WatchMark::kNone;
}

WatchMark WatchCalls::marked(const gmm_watcher &watcher) {
  LockGuard guard(watchers_.mutex_);
  return watcher.mark;
}

Status WatchCalls::prepare() {
  if (!has_marked_) return Status();
  gmm_watcher *watcher = nullptr;
  while ((watcher = watchers_.next(watcher, true)) != nullptr) {
    if (marked(*watcher) != WatchMark::kSelected) continue;
    mark(*watcher, WatchMark::kReached);
    if ((watcher->desc.events & GMM_WATCH_PREPARE) == 0) continue;
    const int32_t answer = watchers_.call(*watcher, GMM_WATCH_PREPARE, GMM_OK, 0);
    if (answer == 0) continue;
    mark(*watcher, WatchMark::kNone);
    char text[gmm_watcher::kNameSize + 2];
    std::snprintf(text, sizeof text, watcher->name[0] != 0 ? "\"%s\"" : "%s%p", watcher->name,
                  static_cast<const void *>(watcher));
    watchers_.leave(watcher);
    return fail(GMM_ERROR_BUSY,
                "%s: the watcher %s refused with %d; everything is as before. Try again when it lets the memory go.",
                operation_, text, answer);
  }
  return Status();
}

void WatchCalls::losing() {
  if (!has_marked_) return;
  gmm_watcher *watcher = nullptr;
  while ((watcher = watchers_.next(watcher, true)) != nullptr)
    if (marked(*watcher) == WatchMark::kReached && (watcher->desc.events & GMM_WATCH_LOSING) != 0)
      watchers_.call(*watcher, GMM_WATCH_LOSING, GMM_OK, 0);
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
    watchers_.call(*watcher, event, status.code(), 0);
  }
  has_marked_ = false;
}

void WatchCalls::forget() { end(Status(), false); }

}  // namespace gmm
