// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

namespace gmm {
namespace {

// A write past RLIMIT_FSIZE, or into a pipe without a reader, sends a signal to the thread. Its default action ends the
// program, which a trace must not do.
class NoSignals {
 public:
  NoSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGXFSZ);
    sigaddset(&set_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals &) = delete;
  NoSignals &operator=(const NoSignals &) = delete;
  // Consumes the signal of the failed write.
  void take() const {
    const timespec none = {};
    sigtimedwait(&set_, nullptr, &none);
  }

 private:
  sigset_t set_, before_;
};

}  // namespace

Status TraceFile::open(const char *path) {
  LockGuard guard(mutex_);
  char text[96];
  // Without O_NONBLOCK a FIFO waits here for a reader. Later it may make the program wait for a slow one.
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
  if (fd < 0 && errno == ENXIO)
    return fail_native(GMM_ERROR_IO, ENXIO, "gmm_trace_begin(\"%.200s\"): nobody reads the FIFO; open it first.", path);
  struct stat about = {};
  // The lock belongs to the open file. A forked child shares that file but does not open it again, so the child's own
  // trace counts as another one here.
  bool good = fd >= 0 && fcntl(fd, F_SETFL, 0) == 0 && fstat(fd, &about) == 0;
  if (good && S_ISREG(about.st_mode)) {
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
                       system_error_text(error, text, sizeof text));
  }
  fd_ = fd;
  error_ = 0;
  is_unwritable_ = false;
  size_ = 0;
  return Status();
}

bool TraceFile::write_all(const char *bytes, uint64_t size) {
  const NoSignals quiet;
  while (size != 0) {
    const ssize_t put = ::write(fd_, bytes, size);
    if (put > 0) {
      bytes += put;
      size -= static_cast<uint64_t>(put);
      continue;
    }
    if (put < 0 && errno == EINTR) continue;
    const int error = put == 0 ? ENOSPC : errno;
    if (error == EFBIG || error == EPIPE) quiet.take();
    if (error_ == 0) error_ = error;
    return false;
  }
  return true;
}

bool TraceFile::write(const void *bytes, uint64_t size) {
  LockGuard guard(mutex_);
  if (fd_ < 0 || is_unwritable_) return false;
  if (write_all(static_cast<const char *>(bytes), size)) {
    size_ += size;
    return true;
  }
  // A reader could not find the chunks behind a torn piece.
  const off_t whole = static_cast<off_t>(size_);
  is_unwritable_ = ftruncate(fd_, whole) != 0 || lseek(fd_, whole, SEEK_SET) != whole;
  return false;
}

Status TraceFile::close() {
  LockGuard guard(mutex_);
  const int fd = fd_;
  fd_ = -1;
  // A forked child holds the open file too, and with it the lock.
  flock(fd, LOCK_UN);
  if (::close(fd) == 0) return Status();
  const int error = errno;
  char text[96];
  return fail_native(GMM_ERROR_IO, error,
                     "gmm_trace_end(): the file of the trace cannot be closed: %s; the trace is incomplete.",
                     system_error_text(error, text, sizeof text));
}

}  // namespace gmm
