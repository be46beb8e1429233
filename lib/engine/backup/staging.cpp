// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/staging.h"

#include <cinttypes>

#include "base/os_memory.h"

namespace gmm {

Status StagingBuffer::open(Device device, uint64_t size) {
  if (data_ != nullptr) return Status();
  size = (size + os::kHugePage - 1) & ~(os::kHugePage - 1);
  void *memory = nullptr;
  GMM_TRY(os::map_anonymous(size, os::kHugePage, &memory));
  os::prefer_huge_pages(memory, size);
  os::keep_from_children(memory, size);  // a fork need not copy page-locked pages that the child never uses
  data_ = static_cast<char *>(memory);
  size_ = size;
  if (core_.backend->id() == GMM_BACKEND_HOST) {
    device_data_ = memory;
    return Status();
  }
  MessageGuard message_guard;
  is_pinned_ = core_.backend->pin(memory, size, 0, device, &device_data_).ok();
  if (!is_pinned_) {
    device_data_ = nullptr;
    core_.log.write(LogLevel::kWarning,
                    "A staging buffer of %" PRIu64 " bytes could not be page-locked; copies through it are slower: %s",
                    size, last_message());
  }
  return Status();
}

uint64_t StagingBuffer::close() {
  if (data_ == nullptr) return 0;
  const uint64_t size = size_;
  if (is_pinned_)
    core_.deferred_release.unpin_pages(*core_.backend, data_, size_);
  else
    os::discard(data_, size_);
  abandon();
  return size;
}

void StagingBuffer::abandon() {
  data_ = nullptr;
  device_data_ = nullptr;
  size_ = 0;
  is_pinned_ = false;
}

}  // namespace gmm
