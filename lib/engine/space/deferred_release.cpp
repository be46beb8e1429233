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

void DeferredRelease::try_once(Backend &backend, const Entry &entry) {
  MessageGuard message_guard;
  if (give_back(backend, entry).ok()) return;
  log_.write(LogLevel::kWarning, "The driver refused to take memory back; gmm will try again: %s", last_message());
  LockGuard guard(mutex_);
  if (!entries_.push_back(entry))
    log_.write(LogLevel::kError,
               "There is no host memory to remember that; the memory is lost until the process ends.");
}

void DeferredRelease::unmap(Backend &backend, void *base, uint64_t size) {
  Entry entry;
  entry.allocation.base = base;
  entry.allocation.size = size;
  try_once(backend, entry);
}

void DeferredRelease::release(Backend &backend, PhysicalHandle handle) {
  Entry entry;
  entry.what = What::kHandle;
  entry.handle = handle;
  try_once(backend, entry);
}

void DeferredRelease::unreserve(Backend &backend, void *base, uint64_t size) {
  Entry entry;
  entry.what = What::kAddresses;
  entry.allocation.base = base;
  entry.allocation.size = size;
  try_once(backend, entry);
}

void DeferredRelease::deallocate(Backend &backend, const Allocation &allocation) {
  Entry entry;
  entry.what = What::kAllocation;
  entry.allocation = allocation;
  try_once(backend, entry);
}

void DeferredRelease::unpin_pages(Backend &backend, void *base, uint64_t size) {
  Entry entry;
  entry.what = What::kPinnedPages;
  entry.allocation.base = base;
  entry.allocation.size = size;
  try_once(backend, entry);
}

void DeferredRelease::retry(Backend &backend) {
  LockGuard guard(mutex_);
  MessageGuard message_guard;
  for (What what : {What::kMapping, What::kHandle, What::kAddresses, What::kAllocation, What::kPinnedPages})
    for (uint64_t i = entries_.size(); i-- > 0;)
      if (entries_[i].what == what && give_back(backend, entries_[i]).ok()) entries_.erase_unordered(i);
}

}  // namespace gmm
