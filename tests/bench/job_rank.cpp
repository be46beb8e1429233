// SPDX-License-Identifier: Apache-2.0
#include "job_rank.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "clock.h"
#include "ipc_process.h"
#include "job_board.h"

namespace gmm_bench {
namespace {

constexpr uint32_t kJobWarmRounds = 3;  // the first pause makes the arena

class JobRankProcess {
 public:
  JobRankProcess(JobBoard *board, uint32_t number) : board_(board), number_(number) {}

  bool run() {
    if (!open()) return false;
    for (uint32_t round = 0; round < kJobWarmRounds + board_->rounds; ++round) {
      for (uint32_t operation = 0; operation < kJobOperations; ++operation) {
        JobSample sample = {};
        if (!operate(static_cast<JobOperation>(operation), &sample)) return false;
        if (round >= kJobWarmRounds)
          board_->sample(round - kJobWarmRounds, number_, static_cast<JobOperation>(operation)) = sample;
      }
      if ((round == 0 || round + 1 == kJobWarmRounds + board_->rounds) && !has_contents()) return false;
    }
    return meet(nullptr) && close();
  }

 private:
  // False, with the reason on the board.
  [[gnu::format(printf, 2, 3)]] bool fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(board_->rank[number_].failure, sizeof board_->rank[number_].failure, format, arguments);
    va_end(arguments);
    return false;
  }
  bool good(gmm_result result, const char *what) {
    if (result == GMM_OK) return true;
    return fail("%s: %s: %s", what, gmm_result_name(result), result < 0 ? gmm_last_error_message() : "nothing changed");
  }

  bool open() {
    std::string error;
    if (!open_context(static_cast<gmm_backend>(board_->backend), board_->host_memory, &context_, &error))
      return fail("gmm_context_create: %s", error.c_str());
    bytes_ = board_->blocks * board_->size;
    // Not what the host can spare at the moment, as ranks share it.
    gmm_backup_desc backup = {};
    backup.struct_size = sizeof backup;
    backup.arena_limit = 2 * bytes_;
    gmm_tag_desc kept = {};
    kept.struct_size = sizeof kept;
    kept.contents = GMM_CONTENTS_HOST;
    if (!good(gmm_backup_configure(context_, &backup), "gmm_backup_configure") ||
        !good(gmm_tag_create(context_, "bench", &kept, &tag_), "gmm_tag_create"))
      return false;
    gmm_alloc_desc desc = block_of(GMM_KIND_VMM, board_->device, 0);
    desc.tag = tag_;
    for (uint32_t i = 0; i < board_->blocks; ++i)
      if (!good(gmm_alloc(context_, board_->size, &desc, &blocks_.emplace_back()), "gmm_alloc") ||
          !good(gmm_fill(context_, blocks_[i], mark(i), board_->size, GMM_STREAM_DEFAULT), "gmm_fill"))
        return false;
    exchange_ = {board_, number_};
    gmm_job_desc job = {};
    job.struct_size = sizeof job;
    job.name = "bench";
    job.rank = number_;
    job.ranks = board_->ranks;
    job.timeout_ms = board_->timeout_ms;
    job.exchange = exchange_.functions();
    return good(gmm_stream_synchronize(context_, GMM_STREAM_DEFAULT), "gmm_stream_synchronize") &&
           good(gmm_job_create(context_, &job, &job_), "gmm_job_create");
  }
  bool close() {
    if (!good(gmm_job_destroy(job_), "gmm_job_destroy")) return false;
    for (void *block : blocks_)
      if (!good(gmm_free(context_, block, GMM_STREAM_DEFAULT), "gmm_free")) return false;
    return good(gmm_context_release(context_), "gmm_context_release");
  }

  uint8_t mark(uint32_t block) const { return static_cast<uint8_t>(1 + number_ * 16 + block); }
  bool has_contents() {
    std::vector<uint8_t> seen(board_->size);
    for (uint32_t i = 0; i < board_->blocks; ++i) {
      if (!good(gmm_copy(context_, seen.data(), blocks_[i], seen.size(), GMM_STREAM_DEFAULT), "gmm_copy") ||
          !good(gmm_stream_synchronize(context_, GMM_STREAM_DEFAULT), "gmm_stream_synchronize"))
        return false;
      for (size_t at = 0; at < seen.size(); ++at)
        if (seen[at] != mark(i))
          return fail("the contents of block %u are wrong after the resume, from byte %zu on", i, at);
    }
    return true;
  }

  bool meet(uint64_t *released) {
    uint64_t moment = 0;
    uint32_t missing = 0;
    if (!reach_barrier(board_, number_, &moment, &missing))
      return fail("rank %u did not come to the next operation in %llu ms", missing,
                  static_cast<unsigned long long>(board_->timeout_ms));
    if (released != nullptr) *released = moment;
    return true;
  }

  bool calls(uint64_t *out) {
    gmm_stats_info statistics = {};
    statistics.struct_size = sizeof statistics;
    if (!good(gmm_stats_query(context_, nullptr, &statistics), "gmm_stats_query")) return false;
    *out = statistics.backend_calls;
    return true;
  }

  // All ranks have ended the operation before.
  bool operate(JobOperation operation, JobSample *sample) {
    gmm_pause_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.tags = &tag_;
    desc.tag_count = 1;
    gmm_job_info info = {};
    info.struct_size = sizeof info;
    uint64_t changed = 0, before = 0, after = 0;
    const JobMessages messages = board_->rank[number_].messages;
    if (!calls(&before) || !meet(&sample->released)) return false;
    sample->begin = now();
    gmm_result result = GMM_OK;
    const char *what = "";
    switch (operation) {
      case kAlonePause:
        result = gmm_pause(context_, &desc, &changed);
        what = "gmm_pause";
        break;
      case kAloneResume:
        result = gmm_resume(context_, &desc, &changed);
        what = "gmm_resume";
        break;
      case kJobPause:
        result = gmm_job_pause(job_, &desc, &info);
        what = "gmm_job_pause";
        break;
      default:
        result = gmm_job_resume(job_, &desc, &info);
        what = "gmm_job_resume";
        break;
    }
    sample->end = now();
    if (!good(result, what) || !calls(&after)) return false;
    sample->calls = after - before;
    sample->messages = board_->rank[number_].messages - messages;
    if (operation == kJobPause || operation == kJobResume) {
      if (info.failed_rank >= 0)
        return fail("%s: rank %d failed: %s", what, info.failed_rank, gmm_result_name(info.cause));
      changed = info.bytes;
    }
    // More than the blocks: what the heap holds beside them goes too.
    return changed >= bytes_ || fail("%s: %llu bytes changed, of %llu", what, static_cast<unsigned long long>(changed),
                                     static_cast<unsigned long long>(bytes_));
  }

  JobBoard *const board_;
  const uint32_t number_;
  gmm_context *context_ = nullptr;
  gmm_tag tag_ = 0;
  std::vector<void *> blocks_;
  uint64_t bytes_ = 0;
  JobExchange exchange_;
  gmm_job *job_ = nullptr;
};

}  // namespace

int run_job_rank(int argc, char **argv) {
  if (argc != 4) return 100;
  const int fd = std::atoi(argv[2]);
  const auto number = static_cast<uint32_t>(std::atoi(argv[3]));
  struct stat file = {};
  if (fstat(fd, &file) != 0) return 101;
  void *memory = mmap(nullptr, static_cast<size_t>(file.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return 102;
  auto *board = static_cast<JobBoard *>(memory);
  // No rank outlives the command, also where the command is killed.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != board->starter) return 103;
  if (!JobRankProcess(board, number).run()) _exit(1);  // what it holds goes with it
  return 0;
}

}  // namespace gmm_bench
