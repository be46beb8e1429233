// SPDX-License-Identifier: Apache-2.0
// gmm-bench job: what it adds to the pauses of several processes that they happen as one.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "commands.h"
#include "job_board.h"
#include "job_rank.h"

namespace gmm_bench {
namespace {

constexpr uint32_t kJobRanks = 8, kJobRounds = 61;
constexpr uint64_t kJobSize = uint64_t{2} << 20, kJobTimeout = 60'000;

bool job_fails(const std::string &text) { return std::fprintf(stderr, "gmm-bench: %s\n", text.c_str()), false; }

// The processes. None outlives this object.
class JobProcesses {
 public:
  explicit JobProcesses(JobBoard *board) : board_(board) {}
  ~JobProcesses() {
    for (Process &each : processes_) {
      if (each.pid > 0) kill(each.pid, SIGKILL);
      if (each.pid > 0) waitpid(each.pid, nullptr, 0);
      if (each.ends >= 0) ::close(each.ends);
    }
  }
  JobProcesses(const JobProcesses &) = delete;
  JobProcesses &operator=(const JobProcesses &) = delete;

  bool start(int board_fd) {
    processes_.resize(board_->ranks);
    for (uint32_t i = 0; i < board_->ranks; ++i) {
      // Its other end is closed when the rank ends, whatever ends it.
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) return job_fails(std::string("pipe: ") + std::strerror(errno));
      const std::string words[] = {std::to_string(board_fd), std::to_string(i)};
      processes_[i].ends = ends[0];
      processes_[i].pid = fork();
      if (processes_[i].pid == 0) {
        fcntl(ends[1], F_SETFD, 0);
        fcntl(board_fd, F_SETFD, 0);
        execl("/proc/self/exe", "gmm-bench", kJobRankWord, words[0].c_str(), words[1].c_str(), nullptr);
        _exit(127);
      }
      ::close(ends[1]);
      if (processes_[i].pid < 0) return job_fails(std::string("fork: ") + std::strerror(errno));
    }
    return true;
  }

  // Until all have ended well; false when one does not, or when none goes on.
  bool wait() {
    uint32_t left = board_->ranks;
    uint64_t steps = 0;
    // Within this time a rank has given up by itself: an operation and a barrier each have the board's time.
    const auto limit = static_cast<int>(std::min<uint64_t>(3 * board_->timeout_ms + 10'000, INT32_MAX));
    while (left != 0) {
      std::vector<pollfd> ends;
      for (const Process &each : processes_) ends.push_back({each.pid > 0 ? each.ends : -1, POLLIN, 0});
      const int ready = poll(ends.data(), ends.size(), limit);
      if (ready < 0 && errno == EINTR) continue;
      if (ready < 0) return job_fails(std::string("poll: ") + std::strerror(errno));
      if (ready == 0) {
        uint64_t reached = 0;
        for (uint32_t i = 0; i < board_->ranks; ++i) reached += board_->rank[i].steps.load(std::memory_order_relaxed);
        if (reached == steps) return job_fails("job: no rank goes on");
        steps = reached;
      }
      for (uint32_t i = 0; i < board_->ranks; ++i) {
        if (ends[i].revents == 0) continue;
        if (!end(i)) return false;
        --left;
      }
    }
    return true;
  }

 private:
  struct Process {
    pid_t pid = -1;
    int ends = -1;
  };

  bool end(uint32_t rank) {
    int status = 0;
    if (waitpid(processes_[rank].pid, &status, 0) != processes_[rank].pid)
      return job_fails(std::string("waitpid: ") + std::strerror(errno));
    processes_[rank].pid = -1;
    const std::string name = "job: rank " + std::to_string(rank);
    if (WIFSIGNALED(status))
      return job_fails(name + " was ended by signal " + std::to_string(WTERMSIG(status)) + " (" +
                       strsignal(WTERMSIG(status)) + ")");
    if (WEXITSTATUS(status) == 0) return true;
    const char *failure = board_->rank[rank].failure;
    return job_fails(name + (failure[0] != 0 ? std::string(": ") + failure
                                             : " ended with exit code " + std::to_string(WEXITSTATUS(status))));
  }

  JobBoard *const board_;
  std::vector<Process> processes_;
};

// Of the slowest rank, from the moment at which all were let go. A rank that gets a processor late is late in both.
double slowest_rank(JobBoard *board, uint32_t round, JobOperation operation) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < board->ranks; ++i) {
    const JobSample &sample = board->sample(round, i, operation);
    most = std::max(most, sample.end - sample.released);
  }
  return static_cast<double>(most);
}

Row row_of_job(const Run &run, JobBoard *board, JobOperation operation) {
  const bool is_job = operation == kJobPause || operation == kJobResume;
  Row row;
  row.bench = "job";
  row.subject = is_job ? "gmm" : "alone";
  row.backend = run.platform.backend_name;
  row.device = run.platform.device_name;
  row.kind = GMM_KIND_VMM;
  row.size = board->size;
  row.words.emplace_back("operation", operation == kAlonePause || operation == kJobPause ? "pause" : "resume");
  row.numbers.emplace_back("ranks", board->ranks);
  row.numbers.emplace_back("blocks", board->blocks);
  row.numbers.emplace_back("bytes", static_cast<double>(board->blocks * board->size));
  row.numbers.emplace_back("samples", board->rounds);
  uint64_t calls = 0;
  for (uint32_t i = 0; i < board->ranks; ++i) calls += board->sample(board->rounds - 1, i, operation).calls;
  row.handles = calls;
  for (uint32_t round = 0; round < board->rounds; ++round) row.samples.push_back(slowest_rank(board, round, operation));
  row.ns = median(row.samples);
  row.numbers.emplace_back("least_ns", *std::min_element(row.samples.begin(), row.samples.end()));
  if (!is_job) return row;
  std::vector<double> added, sets, gets, erases, sleeps;
  const JobOperation alone = operation == kJobPause ? kAlonePause : kAloneResume;
  for (uint32_t round = 0; round < board->rounds; ++round) {
    added.push_back(row.samples[round] - slowest_rank(board, round, alone));
    JobMessages all = {};
    for (uint32_t i = 0; i < board->ranks; ++i) {
      const JobMessages &own = board->sample(round, i, operation).messages;
      all = {all.sets + own.sets, all.gets + own.gets, all.erases + own.erases, all.sleeps + own.sleeps};
    }
    sets.push_back(static_cast<double>(all.sets));
    gets.push_back(static_cast<double>(all.gets));
    erases.push_back(static_cast<double>(all.erases));
    sleeps.push_back(static_cast<double>(all.sleeps));
  }
  row.numbers.emplace_back("added_ns", median(added));
  row.numbers.emplace_back("messages", median(sets) + median(gets) + median(erases));
  row.numbers.emplace_back("sets", median(sets));
  row.numbers.emplace_back("gets", median(gets));
  row.numbers.emplace_back("erases", median(erases));
  row.numbers.emplace_back("sleeps", median(sleeps));
  return row;
}

double job_number(const Row &row, const char *name) {
  for (const auto &[other, value] : row.numbers)
    if (other == name) return value;
  return 0;
}

void print_job(const Run &run, std::vector<Row> rows) {
  compare(&rows, [](const Row &a, const Row &b) { return a.words[0].second == b.words[0].second; });
  if (run.options.json) {
    for (const Row &row : rows) print_json(row);
    return;
  }
  print_head(run);
  std::printf("%.0f ranks, each with %.0f blocks of %s; the slowest rank's time\n", job_number(rows[0], "ranks"),
              job_number(rows[0], "blocks"), size_text(*rows[0].size).c_str());
  Table table(2);
  table.add({"subject", "operation", "time", "least", "added", "of alone", "messages", "sleeps"});
  for (const Row &row : rows) {
    std::vector<std::string> line = {row.subject, row.words[0].second, time_text(*row.ns),
                                     time_text(job_number(row, "least_ns"))};
    if (row.subject == "gmm") {
      const double added = job_number(row, "added_ns");
      line.push_back((added < 0 ? "-" : "") + time_text(added < 0 ? -added : added));
      line.push_back(over_text(row, "alone"));
      line.push_back(decimals(job_number(row, "messages"), 0));
      line.push_back(decimals(job_number(row, "sleeps"), 0));
    }
    table.add(std::move(line));
  }
  table.print();
}

bool measure_job(const Run &run, JobBoard *board, int fd) {
  board->backend = run.platform.backend;
  board->device = run.options.device;
  board->starter = getpid();
  board->blocks = run.options.blocks;
  board->size = run.options.sizes.empty() ? kJobSize : run.options.sizes[0];
  board->host_memory = run.options.host_memory;
  board->timeout_ms = run.options.timeout_ms != 0 ? run.options.timeout_ms : kJobTimeout;
  if (!start_board(board)) return job_fails("job: the ranks' memory cannot be made");
  {
    JobProcesses ranks(board);
    if (!ranks.start(fd) || !ranks.wait()) return false;
  }
  std::vector<Row> rows;
  for (const JobOperation operation : {kJobPause, kAlonePause, kJobResume, kAloneResume})
    rows.push_back(row_of_job(run, board, operation));
  print_job(run, std::move(rows));
  return true;
}

}  // namespace

ExitCode run_job(const Run &run) {
  const uint32_t ranks = run.options.ranks != 0 ? run.options.ranks : kJobRanks;
  const uint32_t rounds = run.options.samples != 0 ? run.options.samples : kJobRounds;
  const size_t bytes = JobBoard::bytes_for(ranks, rounds);
  const int fd = memfd_create("gmm-bench job", MFD_CLOEXEC);
  void *memory = fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0
                     ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                     : MAP_FAILED;
  if (memory == MAP_FAILED) return job_fails(std::string("job: ") + std::strerror(errno)), kFailed;
  auto *board = static_cast<JobBoard *>(memory);
  board->ranks = ranks;
  board->rounds = rounds;
  const bool good = measure_job(run, board, fd);
  munmap(memory, bytes);
  close(fd);
  return good ? kGood : kFailed;
}

}  // namespace gmm_bench
