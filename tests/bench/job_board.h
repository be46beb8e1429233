// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of `gmm-bench job` share with the program that started them: what is asked of them, an
// exchange of registers, a barrier, and what each rank measured. Who waits sleeps in the kernel, on the one word that
// it waits for.
#ifndef GMM_BENCH_JOB_BOARD_H
#define GMM_BENCH_JOB_BOARD_H

#include <gmm/job.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace gmm_bench {

inline constexpr uint32_t kMostRanks = 64;

// Set once: 0 until it has a value. `key` is empty where no register is.
struct JobRegister {
  std::atomic<uint32_t> is_set;
  char key[124];
  char value[GMM_EXCHANGE_VALUE];
};

// Calls of the exchange.
struct JobMessages {
  uint64_t sets, gets, erases, sleeps;  // sleeps: gets that found no value and waited for it
  JobMessages operator-(const JobMessages &other) const {
    return {sets - other.sets, gets - other.gets, erases - other.erases, sleeps - other.sleeps};
  }
};

// One operation of one rank. Nanoseconds of the system's clock.
struct JobSample {
  uint64_t released;  // the barrier let all ranks go
  uint64_t begin, end;
  uint64_t calls;  // into the driver or system
  JobMessages messages;
};

enum JobOperation : uint32_t { kAlonePause, kAloneResume, kJobPause, kJobResume, kJobOperations };

struct JobRank {
  alignas(64) std::atomic<uint32_t> steps;  // barriers that it reached
  JobMessages messages;
  char failure[1024];  // why it ends; written before its exit
};

struct JobBoard {
  // Set before any rank starts.
  uint32_t ranks, rounds, blocks, backend;
  int32_t device, starter;  // starter: the process that made this
  uint64_t size, host_memory, timeout_ms;

  JobRank rank[kMostRanks];
  // The barrier.
  alignas(64) std::atomic<uint32_t> arrived;
  std::atomic<uint32_t> opened;  // how often
  std::atomic<uint64_t> released;
  // The exchange. Registers of two operations live at a time.
  pthread_mutex_t mutex;
  JobRegister registers[2 * 3 * (kMostRanks + 1)];

  JobSample samples[];  // rounds, then ranks, then operations

  static size_t bytes_for(uint32_t ranks, uint32_t rounds) {
    return sizeof(JobBoard) + sizeof(JobSample) * ranks * rounds * kJobOperations;
  }
  JobSample &sample(uint32_t round, uint32_t of_rank, JobOperation operation) {
    return samples[(static_cast<size_t>(round) * ranks + of_rank) * kJobOperations + operation];
  }
};

// Of zeroes.
bool start_board(JobBoard *board);

// Returns when all ranks are there; false after the time, with the number of one that is missing. `released`: the
// moment at which all were there.
bool reach_barrier(JobBoard *board, uint32_t rank, uint64_t *released, uint32_t *missing);

// What one rank gives to gmm_job_create().
struct JobExchange {
  JobBoard *board = nullptr;
  uint32_t rank = 0;
  gmm_exchange functions();
};

}  // namespace gmm_bench
#endif
