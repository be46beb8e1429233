// SPDX-License-Identifier: Apache-2.0
#include "backend/host/host_shared_event.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <ctime>

#include "backend/backend.h"
#include "base/os_memory.h"

namespace gmm {
namespace {

constexpr long kLookAtMakerNs = 20000000;

long futex(const std::atomic<uint32_t> *word, int operation, uint32_t value, const timespec *timeout) {
  return ::syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

}  // namespace

Status HostSharedEvent::create(const HostAllocator &allocator, HostSharedEvent **out) {
  HostSharedEvent *event = allocator.create<HostSharedEvent>(allocator, false);
  if (event == nullptr) return no_memory_for("Creating an event");
  void *base = nullptr;
  Status status = os::memory_file_create("gmm-event", kPageSize, &event->fd_);
  // Otherwise an importer of another user could open the page again for writing.
  if (status.ok() && ::fchmod(event->fd_, 0600) != 0)
    status =
        fail_native(GMM_ERROR_SYSTEM, errno, "Creating an event: the system refused to close its page to other users.");
  if (status.ok()) status = os::map_file(kPageSize, os::page_size(), event->fd_, 0, os::Access::kReadWrite, &base);
  return event->opened(status, base, out);  // the page is all zero
}

Status HostSharedEvent::open(const HostAllocator &allocator, int32_t fd, const Peer &maker, HostSharedEvent **out) {
  GMM_TRY(os::memory_file_check(fd, kPageSize));
  HostSharedEvent *event = allocator.create<HostSharedEvent>(allocator, true);
  if (event == nullptr) return no_memory_for("Opening an event");
  void *base = nullptr;
  Status status = os::map_file(kPageSize, os::page_size(), fd, 0, os::Access::kRead, &base);
  if (status.ok() && maker.connection >= 0) status = os::duplicate(maker.connection, &event->maker_.connection);
  if (status.ok() && maker.process >= 0) status = os::duplicate(maker.process, &event->maker_.process);
  return event->opened(status, base, out);
}

Status HostSharedEvent::opened(Status status, void *page, HostSharedEvent **out) {
  page_ = static_cast<Page *>(page);
  *out = this;
  if (!status.ok()) release();
  return status;
}

void HostSharedEvent::release() {
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  MessageGuard message_guard;
  // The system cannot refuse to unmap and close a page that this object alone mapped.
  if (page_ != nullptr) os::unmap(page_, kPageSize).ignore();
  for (int32_t fd : {fd_, maker_.connection, maker_.process})
    if (fd >= 0) os::close_file(fd).ignore();
  const HostAllocator allocator = allocator_;
  allocator.destroy(this);
}

Status HostSharedEvent::begin(uint64_t *number) {
  const uint64_t next = recorded_ + 1;
  if (next > kSlots && passed_[next % kSlots].load(std::memory_order_acquire) != next - kSlots)
    return fail(GMM_ERROR_BUSY,
                "Recording an event for other processes: %u of its records have not passed yet; wait for some of them.",
                static_cast<unsigned>(kSlots));
  *number = next;
  return Status();
}

void HostSharedEvent::publish(uint64_t number) {
  recorded_ = number;
  page_->recorded.store(number, std::memory_order_release);
}

void HostSharedEvent::pass(uint64_t number) {
  passed_[number % kSlots].store(number, std::memory_order_release);
  page_->slots[number % kSlots].store(number, std::memory_order_release);
  page_->progress.fetch_add(1, std::memory_order_release);
  futex(&page_->progress, FUTEX_WAKE, INT_MAX, nullptr);
}

Status HostSharedEvent::export_fd(int32_t *fd) const {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd_);
  *fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (*fd >= 0) return Status();
  const int error = errno;
  return fail_native(GMM_ERROR_SYSTEM, error,
                     "Exporting an event: its page cannot be opened: %s; raise the limit of open files (ulimit -n).",
                     ErrorText(error).text);
}

uint64_t HostSharedEvent::recorded() const { return page_->recorded.load(std::memory_order_acquire); }

// A later number in the slot means that this record has passed, because the slot is used again only after that.
bool HostSharedEvent::passed(uint64_t number) const {
  return number == 0 || page_->slots[number % kSlots].load(std::memory_order_acquire) >= number;
}

bool HostSharedEvent::wait(uint64_t number) const {
  const timespec timeout = {0, kLookAtMakerNs};
  for (;;) {
    const uint32_t seen = page_->progress.load(std::memory_order_acquire);
    if (passed(number)) return true;
    if (maker_.state() != PeerState::kAlive) return passed(number);
    futex(&page_->progress, FUTEX_WAIT, seen, &timeout);
  }
}

}  // namespace gmm
