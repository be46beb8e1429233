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
  char text[96];
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
                       system_error_text(error, text, sizeof text));
  }
  fd_ = fd;
  is_regular_ = S_ISREG(about.st_mode);
  error_ = 0;
  is_unwritable_ = false;
  size_ = 0;
  return Status();
}

bool TraceFile::write_all(const char *bytes, uint64_t size) {
  check_may_wait("a file");
  const NoSignals quiet;
  uint64_t at = size_;
  while (size != 0) {
    const ssize_t put = is_regular_ ? ::pwrite(fd_, bytes, size, static_cast<off_t>(at)) : ::write(fd_, bytes, size);
    if (put > 0) {
      at += static_cast<uint64_t>(put);
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
  return cut_back();
}

// A reader could not find the chunks behind a torn piece. Always false.
bool TraceFile::cut_back() {
  is_unwritable_ = ftruncate(fd_, static_cast<off_t>(size_)) != 0;
  return false;
}

uint64_t TraceFile::first_chunk(uint64_t header_size) const {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return is_regular_ ? (header_size + page - 1) / page * page : header_size;
}

bool TraceFile::write_header(const void *bytes, uint64_t size) {
  if (!write(bytes, size)) return false;
  LockGuard guard(mutex_);
  const uint64_t first = first_chunk(size);
  if (first == size) return true;
  const NoSignals quiet;
  if (ftruncate(fd_, static_cast<off_t>(first)) != 0) {
    error_ = errno;
    if (error_ == EFBIG) quiet.take();
    return false;
  }
  size_ = first;
  return true;
}

void *TraceFile::add_chunk(const void *header, uint64_t header_size, uint64_t size) {
  LockGuard guard(mutex_);
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (fd_ < 0 || is_unwritable_ || !is_regular_ || size_ % page != 0) return nullptr;
  const off_t start = static_cast<off_t>(size_);
  const NoSignals quiet;
  // The header comes first: a file that ends behind it has a chunk that was cut. Its room is taken from the disk before
  // it is mapped, as a write to a page without room would end the program.
  const bool good = ::pwrite(fd_, header, header_size, start) == static_cast<ssize_t>(header_size) &&
                    fallocate(fd_, 0, start, static_cast<off_t>(size)) == 0;
  if (!good && errno == EFBIG) quiet.take();
  void *chunk = good ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, start) : MAP_FAILED;
  if (chunk == MAP_FAILED) {
    cut_back();
    return nullptr;
  }
  size_ += size;
  return chunk;
}

void TraceFile::end_chunk(void *chunk, uint64_t size) { munmap(chunk, size); }

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
