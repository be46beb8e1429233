// SPDX-License-Identifier: Apache-2.0
#include "base/lock.h"

#if defined(GMM_LOCK_CHECKS)
#include <execinfo.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "base/process_mutex.h"
#endif

namespace gmm {

constinit thread_local ThreadLocks t_locks = {};

#if defined(GMM_LOCK_CHECKS)
namespace {

struct RankInfo {
  const char *name;
  LockKind kind;
};
constexpr RankInfo kRankInfos[] = {
#define GMM_LOCK_RANK(enumerator, name, kind, held_for) {name, LockKind::kind},
    GMM_LOCK_RANKS(GMM_LOCK_RANK)
#undef GMM_LOCK_RANK
};
const RankInfo &rank_info(LockRank rank) { return kRankInfos[static_cast<uint8_t>(rank)]; }
unsigned rank_number(LockRank rank) { return static_cast<unsigned>(rank) + 1; }

constexpr int kStackFrames = 16;
struct HeldLock {
  const void *lock;
  LockRank rank;
  bool over_waits;
  uint32_t generation;  // of the process
  uint32_t aside;       // LocksAside that hide it
  int frame_count;
  void *frames[kStackFrames];
};

// A pause holds the locks of all heaps that it names. Further ones are not checked.
constexpr uint32_t kMaxHeld = 64;
struct HeldLocks {
  uint32_t count;
  uint32_t left_out;
  HeldLock each[kMaxHeld];
};
constinit thread_local HeldLocks t_held = {};

// A forked child gives up the locks that its thread held in the parent, but need not respect them: a lock of the
// process is free, and those of a context say FORKED.
bool is_hidden(const HeldLock &held) { return held.aside != 0 || held.generation != process_generation(); }

void put_locks_aside(uint32_t change) {
  for (uint32_t i = 0; i < t_held.count; ++i) t_held.each[i].aside += change;
}

// Prints the message, this stack and that of each lock held, and aborts.
[[noreturn, gnu::format(printf, 1, 2)]] void abort_with_stacks(const char *format, ...) {
  std::fprintf(stderr, "gmm lock check: ");
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, " lib/engine/LOCKS.md has the rules.\nThis thread is here:\n");
  std::fflush(stderr);
  void *frames[kStackFrames];
  backtrace_symbols_fd(frames, backtrace(frames, kStackFrames), fileno(stderr));
  for (uint32_t i = 0; i < t_held.count; ++i) {
    const HeldLock &held = t_held.each[i];
    std::fprintf(stderr, "It took \"%s\" (rank %u, %s) here:\n", rank_info(held.rank).name, rank_number(held.rank),
                 held.over_waits ? "held over waits" : "held briefly");
    std::fflush(stderr);
    backtrace_symbols_fd(held.frames, held.frame_count, fileno(stderr));
  }
  std::abort();
}

}  // namespace

bool is_operation(LockRank rank) { return rank_info(rank).kind == LockKind::kOperation; }

void check_lock_order(const void *lock, LockRank rank, bool may_wait) {
  for (uint32_t i = 0; i < t_held.count; ++i) {
    const HeldLock &held = t_held.each[i];
    if (is_hidden(held)) continue;
    if (held.lock == lock)
      abort_with_stacks("The thread takes the lock \"%s\" (rank %u) that it holds.", rank_info(rank).name,
                        rank_number(rank));
    // A transition locks its heaps in the order of their addresses.
    const bool ordered = held.rank < rank || (held.rank == rank && held.over_waits && held.lock < lock);
    if (!ordered)
      abort_with_stacks("The thread takes the lock \"%s\" (rank %u) while it holds \"%s\" (rank %u).",
                        rank_info(rank).name, rank_number(rank), rank_info(held.rank).name, rank_number(held.rank));
    if (may_wait && !held.over_waits)
      abort_with_stacks(
          "The thread takes the lock \"%s\" (rank %u), whose holder may be waiting, while it holds \"%s\" (rank %u), "
          "which others need.",
          rank_info(rank).name, rank_number(rank), rank_info(held.rank).name, rank_number(held.rank));
  }
}

void note_locked(const void *lock, LockRank rank, bool over_waits) {
  if (t_held.count == kMaxHeld) {
    ++t_held.left_out;
    return;
  }
  HeldLock &held = t_held.each[t_held.count++];
  held.lock = lock;
  held.rank = rank;
  held.over_waits = over_waits;
  held.generation = process_generation();
  held.aside = 0;
  held.frame_count = backtrace(held.frames, kStackFrames);
}

void note_unlocked(const void *lock) {
  for (uint32_t i = t_held.count; i-- > 0;) {
    if (t_held.each[i].lock != lock) continue;
    for (; i + 1 < t_held.count; ++i) t_held.each[i] = t_held.each[i + 1];
    --t_held.count;
    return;
  }
  if (t_held.left_out == 0) abort_with_stacks("The thread gives up the lock %p, which it does not hold.", lock);
  --t_held.left_out;
}

void check_may_wait(const char *what, const void *except) {
  for (uint32_t i = 0; i < t_held.count; ++i) {
    const HeldLock &held = t_held.each[i];
    if (held.lock == except || held.over_waits || is_hidden(held)) continue;
    abort_with_stacks("The thread waits for %s while it holds \"%s\" (rank %u), which others need.", what,
                      rank_info(held.rank).name, rank_number(held.rank));
  }
}

void check_may_call_program(ProgramCall call) {
  constexpr const char *kNames[] = {"log", "out-of-memory", "progress", "write", "watch", "ask", "frames"};
  for (uint32_t i = 0; i < t_held.count; ++i) {
    const HeldLock &held = t_held.each[i];
    if ((call == ProgramCall::kProgress && held.over_waits) || is_hidden(held)) continue;
    if (call == ProgramCall::kWatch && held.rank == LockRank::kPauser) continue;
    abort_with_stacks("The thread calls the program's %s function while it holds \"%s\" (rank %u).",
                      kNames[static_cast<uint32_t>(call)], rank_info(held.rank).name, rank_number(held.rank));
  }
}
#else
namespace {
void put_locks_aside(uint32_t) {}
}  // namespace
#endif

LocksAside::LocksAside() : held_(t_locks.held) {
  put_locks_aside(1);
  t_locks.held = 0;
}

LocksAside::~LocksAside() {
  put_locks_aside(-1u);
  t_locks.held = held_;
}

}  // namespace gmm
