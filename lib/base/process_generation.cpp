// SPDX-License-Identifier: Apache-2.0
#include "base/process_generation.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gmm {
namespace {

// The page in here reads as zero in a forked child (MADV_WIPEONFORK). It is memory of the library's own, so that an
// unloaded library leaves no mapping. Pages have at most 64 KiB; the first whole page of the array is used.
constexpr uint32_t kMostPage = 65536;
constinit unsigned char g_pages[2 * kMostPage] = {};
constinit std::atomic<std::atomic<uint32_t> *> g_word{nullptr};
constinit std::atomic<uint32_t> g_generations{0};

std::atomic<uint32_t> *find_word() {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t start = (reinterpret_cast<uintptr_t>(g_pages) + page - 1) & ~(page - 1);
  auto *word = reinterpret_cast<std::atomic<uint32_t> *>(start);
  // Without it no context can be made either, as its gate word (engine/space/core.h) needs such a page too.
  madvise(word, page, MADV_WIPEONFORK);
  g_word.store(word, std::memory_order_release);
  return word;
}

}  // namespace

uint32_t process_generation() {
  std::atomic<uint32_t> *word = g_word.load(std::memory_order_acquire);
  if (word == nullptr) word = find_word();
  uint32_t known = word->load(std::memory_order_relaxed);
  if (__builtin_expect(known != 0, 1)) return known;
  const uint32_t next = g_generations.fetch_add(1, std::memory_order_relaxed) + 1;
  return word->compare_exchange_strong(known, next, std::memory_order_relaxed) ? next : known;
}

void wait_while(const std::atomic<uint32_t> &word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(const std::atomic<uint32_t> &word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace gmm
