// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/range_allocator.h"

namespace gmm {

uint64_t BackupRoom::after(uint64_t offset) const {
  uint64_t low = 0, high = runs_.size();
  while (low < high) {
    const uint64_t middle = (low + high) / 2;
    if (runs_[middle].offset > offset)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// Takes a stretch out of a run. There is place for the second run that may come of it.
bool BackupRoom::cut(uint64_t index, uint64_t offset, uint64_t size) {
  Run &run = runs_[index];
  const Run rest{offset + size, run.end() - (offset + size)};
  run.size = offset - run.offset;
  free_ -= size;
  if (run.size == 0) {
    if (rest.size != 0)
      run = rest;
    else
      runs_.erase(index);
    return true;
  }
  return rest.size == 0 || runs_.insert(index + 1, rest);
}

// There is place for the run that may come of it.
void BackupRoom::join(uint64_t offset, uint64_t size) {
  free_ += size;
  const uint64_t next = after(offset);
  const bool before = next != 0 && runs_[next - 1].end() == offset;
  const bool behind = next != runs_.size() && runs_[next].offset == offset + size;
  if (before && behind) {
    runs_[next - 1].size += size + runs_[next].size;
    runs_.erase(next);
  } else if (before) {
    runs_[next - 1].size += size;
  } else if (behind) {
    runs_[next].offset = offset;
    runs_[next].size += size;
  } else {
    (void)runs_.insert(next, Run{offset, size});  // place was reserved
  }
}

bool BackupRoom::add(uint64_t offset, uint64_t size) {
  if (!runs_.reserve(runs_.size() + stretches_ + 1)) return false;
  join(offset, size);
  return true;
}

bool BackupRoom::take(uint64_t size, uint64_t hint, uint64_t *offset) {
  if (!runs_.reserve(runs_.size() + stretches_ + 2)) return false;
  uint64_t index = runs_.size();
  if (const uint64_t next = after(hint); next != 0 && runs_[next - 1].end() >= hint + size) {
    index = next - 1;
    *offset = hint;
  } else {
    for (uint64_t i = 0; i < runs_.size(); ++i) {
      if (runs_[i].size < size) continue;
      index = i;
      *offset = runs_[i].offset;
      break;
    }
  }
  if (index == runs_.size() || !cut(index, *offset, size)) return false;
  ++stretches_;
  taken_ += size;
  return true;
}

void BackupRoom::give(uint64_t offset, uint64_t size) {
  --stretches_;
  taken_ -= size;
  join(offset, size);
}

bool BackupRoom::is_free(uint64_t offset, uint64_t size) const {
  const uint64_t next = after(offset);
  return next != 0 && runs_[next - 1].end() >= offset + size;
}

bool BackupRoom::remove(uint64_t offset, uint64_t size) {
  if (!runs_.reserve(runs_.size() + stretches_ + 1)) return false;
  return cut(after(offset) - 1, offset, size);
}

void BackupRoom::clear() {
  runs_.clear();
  stretches_ = free_ = taken_ = 0;
}

}  // namespace gmm
