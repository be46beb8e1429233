// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "pause_command.h"

namespace gmm_bench {
namespace {

constexpr uint64_t kPiece = uint64_t{32} << 20, kPage = 4096;

// Where two pieces of memory differ first; `size` when nowhere.
uint64_t difference(const char *a, const char *b, uint64_t size) {
  constexpr uint64_t kShare = uint64_t{1} << 20;
  const uint64_t shares = (size + kShare - 1) / kShare;
  std::atomic<uint64_t> next{0}, first{size};
  const auto work = [&] {
    for (uint64_t share; (share = next.fetch_add(1)) < shares;) {
      const uint64_t from = share * kShare, to = std::min(size, from + kShare);
      if (std::memcmp(a + from, b + from, to - from) == 0) continue;
      const uint64_t at = from + static_cast<uint64_t>(std::mismatch(a + from, a + to, b + from).first - (a + from));
      for (uint64_t known = first.load(); at < known && !first.compare_exchange_weak(known, at);) {
      }
    }
  };
  std::vector<std::thread> threads;
  const uint32_t count = std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
  for (uint32_t i = 1; i < count && i < shares; ++i) threads.emplace_back(work);
  work();
  for (std::thread &thread : threads) thread.join();
  return first.load();
}

}  // namespace

Contents::~Contents() {
  for (char *memory : {pattern_, got_}) {
    if (memory == nullptr) continue;
    if (locked_) raw_->unlock(memory, kPiece);
    free_touched(memory, kPiece);
  }
}

bool Contents::open(Raw *raw) {
  raw_ = raw;
  for (char **memory : {&pattern_, &got_}) {
    char *made = touched_memory(kPiece);
    if (made == nullptr) return error_ = "no host memory", false;
    *memory = made;
  }
  // Page-locked memory is faster, no more.
  locked_ = raw->lock(pattern_, kPiece);
  if (locked_ && !raw->lock(got_, kPiece)) locked_ = !raw->unlock(pattern_, kPiece);
  std::mt19937_64 random(1);
  for (uint64_t at = 0; at < kPiece; at += sizeof(uint64_t)) {
    const uint64_t word = random() | 1;
    std::memcpy(pattern_ + at, &word, sizeof word);
  }
  return true;
}

// The first word of each page says which page of which block it is, and the generation.
void Contents::stamp(uint64_t index, uint64_t piece, uint64_t generation) {
  for (uint64_t page = 0; page < kPiece / kPage; ++page) {
    const uint64_t word = (generation << 56) + (index << 32) + (piece * (kPiece / kPage) + page) * 2 + 1;
    std::memcpy(pattern_ + page * kPage, &word, sizeof word);
  }
}

bool Contents::fill(char *block, uint64_t index, uint64_t size, uint64_t generation) {
  for (uint64_t at = 0; at < size; at += kPiece) {
    stamp(index, at / kPiece, generation);
    if (!raw_->copy_in(block + at, pattern_, std::min(kPiece, size - at)) || !raw_->wait())
      return error_ = raw_->error(), false;
  }
  return true;
}

bool Contents::check(const char *block, uint64_t index, uint64_t size, uint64_t generation) {
  for (uint64_t at = 0; at < size; at += kPiece) {
    const uint64_t length = std::min(kPiece, size - at);
    stamp(index, at / kPiece, generation);
    if (!raw_->copy_out(got_, block + at, length) || !raw_->wait()) return error_ = raw_->error(), false;
    const uint64_t differs = difference(pattern_, got_, length);
    if (differs == length) continue;
    error_ = "the contents of block " + std::to_string(index) + " are wrong after the resume, from byte " +
             std::to_string(at + differs) + " on";
    return false;
  }
  return true;
}

}  // namespace gmm_bench
