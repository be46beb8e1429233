// SPDX-License-Identifier: Apache-2.0
// Starting and stopping; what is said to importers is in ipc_broker_loop.cpp.
#include "engine/ipc/broker.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <new>

#include "base/bytes.h"
#include "base/process.h"
#include "base/thread.h"
#include "engine/ipc/directory.h"

namespace gmm {
namespace {

// Several contexts of a process, each with a broker.
std::atomic<uint32_t> g_serial{1};

Status system_failure(int error, const char *what) {
  char text[128];
  return fail_native(GMM_ERROR_SYSTEM, error, "start of the thread that answers importers: %s: %s", what,
                     system_error_text(error, text, sizeof text));
}

void close_one(int *fd) {
  const int old = *fd;
  *fd = -1;
  if (old >= 0) ::close(old);
}

}  // namespace

bool ipc_token_equal(const uint8_t a[kIpcTokenSize], const uint8_t b[kIpcTokenSize]) {
  return equal_constant_time(a, b, kIpcTokenSize);
}

Status IpcBroker::start(IpcEndpoint *out) {
  if (forked())
    return fail(GMM_ERROR_FORKED,
                "start of the thread that answers importers: the context belongs to process %d; make one of your own "
                "after fork",
                owner_pid_.load(std::memory_order_relaxed));
  LockGuard guard(mutex_);
  if (!running_) {
    const Status status = start_locked();
    if (!status.ok()) {
      MessageGuard message;
      close_files();
      return status;
    }
  }
  *out = endpoint_;
  return Status();
}

Status IpcBroker::start_locked() {
  GMM_TRY(open_socket());
  slots_ = static_cast<Slot *>(allocator_.allocate(sizeof(Slot) * kSlots, alignof(Slot)));
  free_ = static_cast<Slot **>(allocator_.allocate(sizeof(Slot *) * kSlots, alignof(Slot *)));
  if (slots_ == nullptr || free_ == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY,
                "start of the thread that answers importers: no host memory for %u connections", kSlots);
  for (uint32_t i = 0; i < kSlots; ++i) ::new (static_cast<void *>(slots_ + i)) Slot;
  // The first slot is taken first.
  for (free_count_ = 0; free_count_ < kSlots; ++free_count_) free_[free_count_] = slots_ + (kSlots - 1 - free_count_);
  pending_ = idle_ = 0;
  listen_again_ = complaints_since_ = 0;
  complaints_ = 0;
  stopping_.store(false, std::memory_order_relaxed);

  const int error = start_thread(&thread_, nullptr, ThreadSignals::kNone, thread_main, this);
  if (error != 0) return system_failure(error, "pthread_create");
  running_ = true;
  return Status();
}

Status IpcBroker::open_socket() {
  char path[kIpcPathSize];
  GMM_TRY(ipc_directory_open_own(&directory_, path, &fell_through_, policy_));

  const int32_t pid = ::getpid();
  endpoint_.pid = static_cast<uint32_t>(pid);
  endpoint_.pid_namespace = pid_namespace();
  if (const int error = process_start_time(pid, &endpoint_.start_time); error != 0) {
    char text[128];
    return fail_native(GMM_ERROR_SYSTEM, error,
                       "start of the thread that answers importers: /proc/%d/stat: %s; IPC needs /proc", pid,
                       system_error_text(error, text, sizeof text));
  }

  listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener_ < 0) return system_failure(errno, "socket");
  char name[kIpcNameSize];
  // Another copy of the library in this process counts from 1 too.
  for (int attempt = 0;; ++attempt) {
    endpoint_.serial = g_serial.fetch_add(1, std::memory_order_relaxed);
    ipc_socket_name(endpoint_, name);
    sockaddr_un address;
    ipc_socket_address(directory_, name, &address);
    if (::bind(listener_, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0) break;
    if (errno != EADDRINUSE || attempt == 1000) {
      char text[128];
      const int error = errno;
      return fail_native(GMM_ERROR_SYSTEM, error, "start of the thread that answers importers: bind of %s/%s: %s", path,
                         name, system_error_text(error, text, sizeof text));
    }
  }
  // From here on the file exists; close_files() removes it.
  owner_pid_.store(pid, std::memory_order_relaxed);
  if (::fchmodat(directory_, name, policy_.user_count == 0 ? 0600 : 0666, 0) != 0)
    return system_failure(errno, "chmod of the socket");
  if (::listen(listener_, 128) != 0) return system_failure(errno, "listen");

  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) return system_failure(errno, "eventfd");
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) return system_failure(errno, "epoll_create1");
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = &wake_;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) != 0) return system_failure(errno, "epoll_ctl");
  event.data.ptr = &listener_;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, listener_, &event) != 0) return system_failure(errno, "epoll_ctl");
  return Status();
}

void IpcBroker::close_files() {
  if (directory_ >= 0 && owner_pid_.load(std::memory_order_relaxed) == ::getpid()) {
    char name[kIpcNameSize];
    ipc_socket_name(endpoint_, name);
    ::unlinkat(directory_, name, 0);
  }
  // First, so that revoke() writes to no descriptor that is closed.
  Slot *slots;
  {
    LockGuard guard(slot_mutex_);
    slots = slots_;
    slots_ = nullptr;
  }
  allocator_.deallocate(slots, sizeof(Slot) * kSlots);
  allocator_.deallocate(free_, sizeof(Slot *) * kSlots);
  free_ = nullptr;
  close_one(&listener_);
  close_one(&epoll_);
  close_one(&wake_);
  close_one(&directory_);
  owner_pid_.store(0, std::memory_order_relaxed);
}

void IpcBroker::stop() {
  // In a child the mutex may be held by a thread that does not exist, and the thread's descriptors may have been
  // given out anew: leave all as it is.
  if (forked()) return;
  LockGuard guard(mutex_);
  if (!running_) return;
  // First of all, so that a late importer sees at once that nobody is there.
  char name[kIpcNameSize];
  ipc_socket_name(endpoint_, name);
  ::unlinkat(directory_, name, 0);
  stopping_.store(true, std::memory_order_release);
  wake();
  pthread_join(thread_, nullptr);
  running_ = false;
  close_files();
}

void IpcBroker::revoke(uint64_t allocation, uint64_t mask, bool tell) {
  if (forked()) return;
  LockGuard guard(slot_mutex_);
  if (slots_ == nullptr) return;
  bool any = false;
  for (uint32_t i = 0; i < kSlots; ++i) {
    if (!slots_[i].has_allocation || (slots_[i].allocation & mask) != allocation) continue;
    slots_[i].revoked = any = true;
    slots_[i].tell = tell;
  }
  if (!any) return;
  any_revoked_.store(true, std::memory_order_release);
  wake();
}

bool IpcBroker::forked() const {
  const int32_t owner = owner_pid_.load(std::memory_order_relaxed);
  return owner != 0 && owner != ::getpid();
}

void IpcBroker::wake() {
  const uint64_t one = 1;
  // Can only fail when the counter is full, and then the thread wakes anyway.
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

}  // namespace gmm
