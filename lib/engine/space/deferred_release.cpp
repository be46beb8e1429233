// SPDX-License-Identifier: Apache-2.0
#include "engine/space/deferred_release.h"

#include "base/os_memory.h"

namespace gmm {

Status DeferredRelease::give_back(Backend &backend, const Entry &entry) {
  switch (entry.what) {
    case What::kMapping:
      return backend.unmap(entry.allocation.base, entry.allocation.size);
    case What::kHandle:
      return backend.release(entry.handle);
    case What::kAddresses:
      return backend.unreserve(entry.allocation.base, entry.allocation.size);
    case What::kAllocation:
      return backend.deallocate(entry.allocation);
    case What::kPinnedPages:
      GMM_TRY(backend.unpin(entry.allocation.base, entry.allocation.size));
      os::discard(entry.allocation.base, entry.allocation.size);
      return Status();
  }
  return Status();
}

void DeferredRelease::keep(const Entry &entry) {
  if (!entries_.push_back(entry))
    log_.write(LogLevel::kError,
               "There is no host memory to remember that; the memory is lost until the process ends.");
  else if (entry.what == What::kMapping)
    mappings_.fetch_add(1, std::memory_order_relaxed);
}

void DeferredRelease::try_once(Backend &backend, const Entry &entry) {
  MessageGuard message_guard;
  if (give_back(backend, entry).ok()) return;
  log_.write(LogLevel::kWarning, "The driver refused to take memory back; gmm will try again: %s", last_message());
  LockGuard guard(mutex_);
  keep(entry);
}

DeferredRelease::Entry *DeferredRelease::mapping_in(const void *base, uint64_t size) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(base);
  for (Entry &entry : entries_) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(entry.allocation.base);
    if (entry.what == What::kMapping && at < begin + size && begin < at + entry.allocation.size) return &entry;
  }
  return nullptr;
}

void DeferredRelease::remove(Entry *entry) {
  if (entry->what == What::kMapping) mappings_.fetch_sub(1, std::memory_order_relaxed);
  entries_.erase_unordered(static_cast<uint64_t>(entry - entries_.data()));
}

Status DeferredRelease::end_mappings_there(Backend &backend, const void *base, uint64_t size) {
  LockGuard guard(mutex_);
  while (Entry *entry = mapping_in(base, size)) {
    GMM_TRY(give_back(backend, *entry));
    remove(entry);
  }
  return Status();
}

void DeferredRelease::unreserve(Backend &backend, void *base, uint64_t size) {
  const Entry entry = of_range(What::kAddresses, base, size);
  if (mappings_.load(std::memory_order_relaxed) != 0) {
    LockGuard guard(mutex_);
    if (mapping_in(base, size) != nullptr) return keep(entry);
  }
  try_once(backend, entry);
}

void DeferredRelease::retry(Backend &backend) {
  LockGuard guard(mutex_);
  MessageGuard message_guard;
  for (What what : {What::kMapping, What::kHandle, What::kAddresses, What::kAllocation, What::kPinnedPages})
    for (uint64_t i = entries_.size(); i-- > 0;) {
      Entry &entry = entries_[i];
      if (entry.what != what) continue;
      if (what == What::kAddresses && mapping_in(entry.allocation.base, entry.allocation.size) != nullptr) continue;
      if (give_back(backend, entry).ok()) remove(&entry);
    }
}

}  // namespace gmm
