// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/clock.h"

namespace gmm {

int32_t process_number() { return ::getpid(); }

uint32_t current_user() { return ::geteuid(); }

uint32_t usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  return count < 1 ? 1 : static_cast<uint32_t>(count);
}

int read_small_file(const char *path, char *text, uint64_t size) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  uint64_t length = 0;
  int error = 0;
  while (length + 1 < size) {
    const ssize_t got = ::read(fd, text + length, size - 1 - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    length += static_cast<uint64_t>(got);
  }
  ::close(fd);
  text[length] = '\0';
  return error != 0 ? error : length == 0 ? EIO : 0;
}

bool read_number(const char *path, uint64_t *out) {
  char text[64];
  if (read_small_file(path, text, sizeof text) != 0 || *text < '0' || *text > '9') return false;
  *out = std::strtoull(text, nullptr, 10);
  return true;
}

int process_start_time(int32_t pid, uint64_t *out) {
  char path[64];
  // This process goes by name: /proc may belong to another pid namespace, where the number is another process's.
  if (pid == ::getpid())
    std::snprintf(path, sizeof path, "/proc/self/stat");
  else
    std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  char text[1024];
  if (const int error = read_small_file(path, text, sizeof text); error != 0) return error == ENOENT ? ESRCH : error;
  // The second field is the program's name in parentheses and may hold anything, even ") 1 2 3".
  const char *at = std::strrchr(text, ')');
  if (at == nullptr || at[1] != ' ') return EIO;
  char state = 0;
  unsigned long long start = 0;
  // From the state, which is the third field, to the 22nd.
  const int read = std::sscanf(
      at + 2, "%c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &state, &start);
  if (state == 'Z' || state == 'X') return ESRCH;
  if (read != 2) return EIO;
  *out = start;
  return 0;
}

uint64_t pid_namespace() {
  char text[32];
  const ssize_t length = ::readlink("/proc/self", text, sizeof text - 1);
  if (length <= 0) return 0;
  text[length] = '\0';
  if (std::strtol(text, nullptr, 10) != ::getpid()) return 0;
  struct stat status;
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

bool machine_boot(char *text, uint64_t size) {
  return read_small_file("/proc/sys/kernel/random/boot_id", text, size) == 0;
}

Status random_bytes(void *out, uint64_t size) {
  auto *at = static_cast<uint8_t *>(out);
  while (size != 0) {
    const ssize_t got = ::getrandom(at, size, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      return fail_native(GMM_ERROR_SYSTEM, error, "Reading %llu random bytes: the system refused: %s.",
                         static_cast<unsigned long long>(size), ErrorText(error).text);
    }
    at += got;
    size -= static_cast<uint64_t>(got);
  }
  return Status();
}

uint64_t counter_hertz() {
#if defined(__x86_64__)
  static constinit std::atomic<uint64_t> known{0};
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0x80000007, &a, &b, &c, &d) == 0 || (d & 1u << 8) == 0) return 0;  // it stops or changes its speed
  if (known.load(std::memory_order_relaxed) != 0) return known.load(std::memory_order_relaxed);
  const uint64_t begin = monotonic_ns(), from = read_counter();
  const timespec two_ms = {0, 2000000};
  nanosleep(&two_ms, nullptr);
  const uint64_t passed = monotonic_ns() - begin, ticks = read_counter() - from;
  known.store(static_cast<uint64_t>(static_cast<double>(ticks) * 1e9 / static_cast<double>(passed)),
              std::memory_order_relaxed);
  return known.load(std::memory_order_relaxed);
#elif defined(__aarch64__)
  uint64_t hertz;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(hertz));
  return hertz;
#else
  return 0;
#endif
}

uint64_t monotonic_ms() { return monotonic_ns() / 1000000; }

uint64_t monotonic_us() { return monotonic_ns() / 1000; }

const char *system_error_text(int error, char *buffer, unsigned long size) {
#if defined(_GNU_SOURCE)
  return strerror_r(error, buffer, size);
#else
  return strerror_r(error, buffer, size) == 0 ? buffer : "unknown error";
#endif
}

}  // namespace gmm
