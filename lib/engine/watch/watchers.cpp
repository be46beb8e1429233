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
      const int error =
          start_thread(&thread_, ThreadSignals::kNone, thread_entry<Watchers, &Watchers::look_at_budgets>, this);
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
  list_.push_back(watcher);
  count_.fetch_add(1, std::memory_order_release);
  *out = watcher;
  return Status();
}

// It is in no list any more. With mutex_.
void Watchers::end(gmm_watcher *watcher) {
  count_.fetch_sub(1, std::memory_order_release);
  if ((watcher->desc.events & GMM_WATCH_BUDGET) != 0) --budgets_;
  watcher->is_ending = true;
  while (watcher->users != 0) watcher->unused.wait(mutex_);
  watcher->magic = 0;
  core_.allocator.destroy(watcher);
}

Status Watchers::destroy(gmm_watcher *watcher) {
  GMM_TRY(check_outside("gmm_watcher_destroy"));
  LockGuard guard(mutex_);
  List<gmm_watcher, Watchers>::remove(watcher);
  end(watcher);
  return Status();
}

void Watchers::clear() {
  {
    LockGuard guard(mutex_);
    is_ending_ = true;
    wake_.notify_all();
  }
  if (has_thread_) join_thread(thread_);
  LockGuard guard(mutex_);
  while (gmm_watcher *watcher = list_.pop_front()) end(watcher);
}

gmm_watcher *Watchers::next(gmm_watcher *after, bool ascending) {
  const auto precedes = [&](const gmm_watcher &one, const gmm_watcher &other) {
    return ascending ? comes_before(one, other) : comes_before(other, one);
  };
  LockGuard guard(mutex_);
  gmm_watcher *found = nullptr;
  for (gmm_watcher *each = list_.front(); each != nullptr; each = list_.next(each))
    if ((after == nullptr || precedes(*after, *each)) && (found == nullptr || precedes(*each, *found))) found = each;
  if (found != nullptr) ++found->users;
  if (after != nullptr && --after->users == 0) after->unused.notify_all();
  return found;
}

void Watchers::leave(gmm_watcher *watcher) {
  LockGuard guard(mutex_);
  if (--watcher->users == 0) watcher->unused.notify_all();
}

// --- The calls of the program ----------------------------------------------------------------------------------------

int32_t Watchers::call(gmm_watcher &watcher, uint32_t event, gmm_result cause, uint64_t budget) {
  {
    LockGuard guard(mutex_);
    if (watcher.is_ending) return 0;
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
  return answer;
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
  name_thread("gmm-budgets");
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

template <typename Fn>
void WatchCalls::for_selected(bool ascending, Fn fn) {
  gmm_watcher *watcher = nullptr;
  while (has_selected_ && (watcher = watchers_.next(watcher, ascending)) != nullptr)
    if (watcher->selected_by.load(std::memory_order_relaxed) == this && !fn(*watcher)) return watchers_.leave(watcher);
}

Status WatchCalls::prepare() {
  Status status;
  for_selected(true, [&](gmm_watcher &watcher) {
    watcher.is_reached = true;
    if ((watcher.desc.events & GMM_WATCH_PREPARE) == 0) return true;
    const int32_t answer = watchers_.call(watcher, GMM_WATCH_PREPARE, GMM_OK, 0);
    if (answer == 0) return true;
    watcher.is_reached = false;
    char text[gmm_watcher::kNameSize + 2];
    std::snprintf(text, sizeof text, watcher.name[0] != 0 ? "\"%s\"" : "%s%p", watcher.name,
                  static_cast<const void *>(&watcher));
    status = fail(GMM_ERROR_BUSY,
                  "%s: the watcher %s refused with %d; everything is as before. Try again when it lets the memory go.",
                  operation_, text, answer);
    return false;
  });
  return status;
}

void WatchCalls::losing() {
  for_selected(true, [&](gmm_watcher &watcher) {
    if (watcher.is_reached && (watcher.desc.events & GMM_WATCH_LOSING) != 0)
      watchers_.call(watcher, GMM_WATCH_LOSING, GMM_OK, 0);
    return true;
  });
}

void WatchCalls::reach_all() {
  for_selected(true, [](gmm_watcher &watcher) { return watcher.is_reached = true; });
}

void WatchCalls::end(const Status &status, bool restores) {
  if (!has_selected_) return;
  MessageGuard message_guard;  // the operation's message stays
  const bool failed = status.code() != GMM_OK;
  const uint32_t event = failed ? GMM_WATCH_FAILED : GMM_WATCH_RESTORED;
  for_selected(false, [&](gmm_watcher &watcher) {
    const bool hears = watcher.is_reached && (failed || restores) && (watcher.desc.events & event) != 0;
    watcher.is_reached = false;
    watcher.selected_by.store(nullptr, std::memory_order_relaxed);
    if (hears) watchers_.call(watcher, event, status.code(), 0);
    return true;
  });
  has_selected_ = false;
}

}  // namespace gmm
