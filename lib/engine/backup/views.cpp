// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/views.h"

namespace gmm {

char *BackupViews::find(uintptr_t base, bool *is_stale) {
  LockGuard guard(mutex_);
  for (const View &view : views_) {
    if (view.block.base != base) continue;
    *is_stale = view.is_stale;
    return view.memory;
  }
  return nullptr;
}

void BackupViews::renew(uintptr_t base) {
  LockGuard guard(mutex_);
  for (View &view : views_)
    if (view.block.base == base) view.is_stale = false;
}

bool BackupViews::make_stale(ByteRange range) {
  LockGuard guard(mutex_);
  bool any = false;
  for (View &view : views_) {
    if (view.block.base >= range.end() || view.block.end() <= range.base) continue;
    view.is_stale = true;
    any = true;
  }
  return any;
}

bool BackupViews::add(ByteRange block, char *memory) {
  LockGuard guard(mutex_);
  return views_.push_back(View{block, memory, false});
}

void BackupViews::end(ByteRange range) {
  LockGuard guard(mutex_);
  for (uint64_t i = views_.size(); i-- > 0;) {
    const View view = views_[i];
    if (view.block.base >= range.end() || view.block.end() <= range.base) continue;
    allocator_.deallocate(view.memory, view.block.size);
    views_.erase_unordered(i);
  }
}

}  // namespace gmm
