// SPDX-License-Identifier: Apache-2.0
#include "backend/host/host_views.h"

#include <atomic>

#include "base/process_mutex.h"

namespace gmm {
namespace {

// The tables of all contexts that have views.
constinit ProcessMutex g_views_mutex{LockRank::kHostViewsList};
constinit HostViews *g_first_views = nullptr;
constinit std::atomic<uint32_t> g_views_count{0};

// A child of fork() has none of its parent's contexts.
void reset_views() {
  g_first_views = nullptr;
  g_views_count.store(0, std::memory_order_relaxed);
}

}  // namespace

HostViews::~HostViews() {
  if (!is_listed_.load(std::memory_order_relaxed)) return;
  const ProcessGuard guard(g_views_mutex, reset_views);
  for (HostViews **link = &g_first_views; *link != nullptr; link = &(*link)->next_)
    if (*link == this) {
      *link = next_;
      g_views_count.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
}

Status HostViews::reserve(uint64_t size, uint64_t alignment, void **out) {
  LockGuard guard(mutex_);
  if (!ranges_.reserve(ranges_.size() + 1) || !table_.reserve(ranges_.size() + 1))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY,
                "The host has no memory to note the views of device memory; free memory.");
  void *base = nullptr;
  GMM_TRY(os::reserve(2 * size, alignment, &base));
  insert(reinterpret_cast<uintptr_t>(base), size);
  if (!is_listed_.load(std::memory_order_relaxed)) {
    const ProcessGuard list_guard(g_views_mutex, reset_views);
    next_ = g_first_views;
    g_first_views = this;
    is_listed_.store(true, std::memory_order_relaxed);
    g_views_count.fetch_add(1, std::memory_order_relaxed);
  }
  *out = base;
  return Status();
}

// The table and the list have room.
void HostViews::insert(uintptr_t base, uint64_t size) {
  uint64_t place = 0;
  while (place < ranges_.size() && ranges_[place].base < base) ++place;
  (void)ranges_.insert(place, Range{base, size, size});
  table_.set(ranges_.data(), ranges_.size());
}

Status HostViews::unreserve(void *base, uint64_t size) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(base);
  LockGuard guard(mutex_);
  for (uint64_t i = 0; i < ranges_.size(); ++i)
    if (ranges_[i].base == at) {
      ranges_.erase(i);
      break;
    }
  // The table forgets the addresses first. As soon as they are unmapped, another thread of the program may get them
  // from malloc(), and its copies must not be redirected.
  table_.set(ranges_.data(), ranges_.size());
  const Status status = os::unmap(base, 2 * size);
  if (!status.ok()) insert(at, size);
  return status;
}

Status HostViews::map(void *base, uint64_t size, int32_t fd, uint64_t offset) {
  GMM_TRY(os::map_file_at(own(base), size, fd, offset, os::Access::kReadWrite));
  Status status = os::map_file_at(base, size, fd, offset, os::Access::kNone);
  if (!status.ok()) {
    MessageGuard message_guard;
    os::reserve_at(own(base), size).ignore();  // the caller gets the first failure
  }
  return status;
}

// When the second step fails, the program finds no difference, and the whole can be done again.
Status HostViews::unmap(void *base, uint64_t size) {
  GMM_TRY(os::reserve_at(base, size));
  return os::reserve_at(own(base), size);
}

bool HostViews::find(const void *address, void **out) const {
  Range range;
  const uint64_t at = reinterpret_cast<uintptr_t>(address);
  if (!table_.find(at, &range)) return false;
  *out = reinterpret_cast<void *>(at + range.value);
  return true;
}

void *HostViews::own(const void *address) const {
  void *found = const_cast<void *>(address);
  if (find(address, &found)) return found;
  const uint32_t own_tables = is_listed_.load(std::memory_order_relaxed) ? 1 : 0;
  if (g_views_count.load(std::memory_order_relaxed) == own_tables) return found;
  const ProcessGuard guard(g_views_mutex, reset_views);
  for (const HostViews *each = g_first_views; each != nullptr && !each->find(address, &found);) each = each->next_;
  return found;
}

}  // namespace gmm
