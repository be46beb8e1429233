// SPDX-License-Identifier: Apache-2.0
#include "base/trace_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>

namespace gmm {
namespace {

// A write past RLIMIT_FSIZE, or into a pipe without a reader, sends a signal to the thread. Its default action ends the
// program, which a trace must not do.
class NoSignals : NoCopy {
 public:
  NoSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGXFSZ);
    sigaddset(&set_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  // Consumes the signal of the failed write.
  void take() const {
    const timespec none = {};
    sigtimedwait(&set_, nullptr, &none);
  }

 private:
  sigset_t set_, before_;
};

// A shared mapping needs a file that is open for reading too, and a FIFO must not be. Returns the file as it is, which
// is then only written, where the system does not allow that.
int open_to_map(int fd) {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const int both = ::open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);
  if (both < 0) return fd;
  ::close(fd);
  return both;
}

}  // namespace

Status TraceFile::open(const char *path) {
  LockGuard guard(mutex_);
  check_may_wait("a file");
  // Without O_NONBLOCK a FIFO waits here for a reader. Later it may make the program wait for a slow one.
  int fd = ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
  if (fd < 0 && errno == ENXIO)
    return fail_native(GMM_ERROR_IO, ENXIO, "gmm_trace_begin(\"%.200s\"): nobody reads the FIFO; open it first.", path);
  struct stat about = {};
  // The lock belongs to the open file. A forked child shares that file but does not open it again, so the child's own
  // trace counts as another one here.
  bool good = fd >= 0 && fcntl(fd, F_SETFL, 0) == 0 && fstat(fd, &about) == 0;
  if (good && S_ISREG(about.st_mode)) {
    fd = open_to_map(fd);
    good = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (!good && errno == EWOULDBLOCK) {
      ::close(fd);
      return fail(GMM_ERROR_BUSY, "gmm_trace_begin(\"%.200s\"): another trace writes this file; name another one.",
                  path);
    }
    good = good && ftruncate(fd, 0) == 0;
  }
  if (!good) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    return fail_native(GMM_ERROR_IO, error, "gmm_trace_begin(\"%.200s\"): the file cannot be opened: %s.", path,
                       ErrorText(error).text);
  }
  fd_ = fd;
  is_regular_ = S_ISREG(about.st_mode);
  error_ = 0;
  size_ = 0;
  return Status();
}

bool TraceFile::write_all(const char *bytes, uint64_t size) {
  check_may_wait("a file");
  const NoSignals quiet;
  while (size != 0) {
    const ssize_t put = ::write(fd_, bytes, size);
    if (put > 0) {
      bytes += put;
      size -= static_cast<uint64_t>(put);
      continue;
    }
    if (put < 0 && errno == EINTR) continue;
    error_ = put == 0 ? ENOSPC : errno;
    if (error_ == EPIPE) quiet.take();
    return false;
  }
  return true;
}

void *TraceFile::add_block(uint64_t size) {
  LockGuard guard(mutex_);
  if (fd_ < 0 || error_ != 0) return nullptr;
  if (!is_regular_) {
    void *block = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return block == MAP_FAILED ? nullptr : block;
  }
  const off_t start = static_cast<off_t>(size_);
  const NoSignals quiet;
  // The block is taken from the disk before it is mapped, as a write to a page without a place there would end the
  // program.
  const int error = posix_fallocate(fd_, start, static_cast<off_t>(size));
  void *block = MAP_FAILED;
  if (error == 0) block = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, start);
  if (block == MAP_FAILED) {
    error_ = error != 0 ? error : errno;
    if (error_ == EFBIG) quiet.take();
    [[maybe_unused]] const int result = ftruncate(fd_, start);  // a failure leaves zeros at the end
    return nullptr;
  }
  size_ += size;
  return block;
}

bool TraceFile::end_block(void *block, uint64_t size) {
  LockGuard guard(mutex_);
  if (is_regular_) return munmap(block, size) == 0;
  const bool good = fd_ >= 0 && error_ == 0 && write_all(static_cast<const char *>(block), size);
  return munmap(block, size) == 0 && good;
}

Status TraceFile::close() {
  LockGuard guard(mutex_);
  const int fd = fd_;
  fd_ = -1;
  // A forked child holds the open file too, and with it the lock.
  flock(fd, LOCK_UN);
  if (::close(fd) == 0) return Status();
  const int error = errno;
  return fail_native(GMM_ERROR_IO, error,
                     "gmm_trace_end(): the file of the trace cannot be closed: %s; the trace is incomplete.",
                     ErrorText(error).text);
}

}  // namespace gmm
