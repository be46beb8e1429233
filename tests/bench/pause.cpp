// SPDX-License-Identifier: Apache-2.0
// The memory of many blocks is given back to the driver, and taken again at the same addresses.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "commands.h"
#include "raw_cuda.h"

namespace gmm_bench {
namespace {

constexpr const char *kContents[] = {"drop", "host", "host", "host", "file"};
constexpr const char *kArena[] = {"none", "warm", "cold", "pageable", "none"};
constexpr uint32_t kPauseSamples[] = {11, 5, 3, 3, 2};
constexpr double kEnough = 6e9;  // ns: a peer that took so long in all gets no further sample from a new state
constexpr const char *kOperations[] = {"pause", "resume"};

uint32_t mode_of(const Options &options) {
  if (options.contents == GMM_CONTENTS_FILE) return GMM_BENCH_PAUSE_FILE;
  if (options.contents == GMM_CONTENTS_DROP) return GMM_BENCH_PAUSE_DROP;
  return options.cold ? GMM_BENCH_PAUSE_COLD : options.pageable ? GMM_BENCH_PAUSE_PAGEABLE : GMM_BENCH_PAUSE_WARM;
}

bool is_own(const gmm_bench_pause_subject &subject) { return &subject == gmm_pause_subject(); }

struct Measured {
  std::vector<double> samples;
  double first = NAN;
  uint64_t calls = 0, first_calls = 0;  // of the last one, and of the first
  bool calls_known = true;
};

// A subject with its memory.
class Pauser {
 public:
  Pauser(const gmm_bench_pause_subject &subject, const gmm_bench_pause_options &options, uint32_t rest_ms)
      : subject_(subject), options_(options), rest_(rest_ms) {}
  ~Pauser() { close(); }
  Pauser(const Pauser &) = delete;
  Pauser &operator=(const Pauser &) = delete;

  const gmm_bench_pause_subject &subject() const { return subject_; }
  const Measured &measured(uint32_t operation) const { return measured_[operation]; }
  bool touched() const { return touched_; }
  std::string error() const { return std::string(subject_.name) + ": " + error_; }
  bool gone = false;

  bool open() {
    state_ = subject_.make();
    if (!state_->open(options_)) {
      error_ = state_->error();
      return close(), false;
    }
    touched_ = state_->block(0) != nullptr;
    return true;
  }
  void close() {
    if (state_ != nullptr) state_->close();
    state_ = nullptr;
  }

  // Random contents, where any are kept.
  bool fill() {
    if (options_.mode == GMM_BENCH_PAUSE_DROP || !touched_) return true;
    std::vector<char> random(std::min(options_.size, uint64_t{32} << 20));
    fill_random(random.data(), random.size());
    for (uint64_t i = 0; i < options_.blocks; ++i)
      for (uint64_t at = 0; at < options_.size; at += random.size()) {
        char *to = static_cast<char *>(state_->block(i)) + at;
        const uint64_t size = std::min<uint64_t>(random.size(), options_.size - at);
        if (!options_.cuda)
          std::memcpy(to, random.data(), size);
        else if (!raw_cuda().copy_in(reinterpret_cast<CUdeviceptr>(to), random.data(), size) || !raw_cuda().wait())
          return error_ = raw_cuda().error, false;
      }
    return true;
  }

  enum class Take { kNothing, kFirst, kSample };
  // operation: 0 pause, 1 resume.
  bool run(uint32_t operation, Take take) {
    std::this_thread::sleep_for(rest_);
    const uint64_t calls = state_->calls();
    const uint64_t begin = now();
    const bool done = operation == 0 ? state_->pause() : state_->resume();
    const double time = static_cast<double>(now() - begin);
    if (!done) return error_ = std::string(kOperations[operation]) + ": " + state_->error(), false;
    const uint64_t after = state_->calls();
    if (take == Take::kNothing) return true;
    Measured &out = measured_[operation];
    out.calls_known = known(calls) && known(after);
    out.calls = after - calls;
    if (take == Take::kSample) out.samples.push_back(time);
    if (!std::isfinite(out.first)) {
      out.first = time;
      out.first_calls = out.calls;
    }
    return true;
  }
  double time() const {
    double sum = 0;
    for (const Measured &measured : measured_)
      for (const double sample : measured.samples) sum += sample;
    return sum;
  }

 private:
  const gmm_bench_pause_subject &subject_;
  const gmm_bench_pause_options &options_;
  const std::chrono::milliseconds rest_;
  std::unique_ptr<gmm_bench_pausing> state_;
  Measured measured_[2];
  std::string error_;
  bool touched_ = false;
};

using Take = Pauser::Take;
using Pausers = std::deque<Pauser>;

// Says why; false when it was gmm, which ends the run.
bool leave_out(Pauser *pauser) {
  const bool own = is_own(pauser->subject());
  std::fprintf(stderr, "gmm-bench: %s%s\n", own ? "" : "warning: left out: ", pauser->error().c_str());
  pauser->gone = true;
  pauser->close();
  return !own;
}

// Each sample is the first pause, and the first resume, of a new subject.
bool measure_cold(uint32_t samples, Pausers *pausers) {
  for (uint32_t sample = 0; sample < samples; ++sample)
    for (Pauser &pauser : *pausers) {
      if (pauser.gone || (sample != 0 && !is_own(pauser.subject()) && pauser.time() > kEnough)) continue;
      if (pauser.open() && pauser.fill() && pauser.run(0, Take::kSample) && pauser.run(1, Take::kSample))
        pauser.close();
      else if (!leave_out(&pauser))
        return false;
    }
  return true;
}

// The subjects stay and take turns. Where nothing is kept they are paused between their turns, so that all need the
// memory of one.
bool measure_turns(uint32_t samples, bool parked, Pausers *pausers) {
  for (Pauser &pauser : *pausers)
    if (!(pauser.open() && pauser.fill() && pauser.run(0, Take::kFirst) && pauser.run(1, Take::kFirst) &&
          (!parked || pauser.run(0, Take::kNothing))) &&
        !leave_out(&pauser))
      return false;
  const uint32_t first = parked ? 1 : 0;
  for (uint32_t sample = 0; sample < samples; ++sample)
    for (Pauser &pauser : *pausers)
      if (!pauser.gone && !(pauser.run(first, Take::kSample) && pauser.run(1 - first, Take::kSample)) &&
          !leave_out(&pauser))
        return false;
  return true;
}

std::vector<Row> make_rows(const Run &run, const gmm_bench_pause_options &options, const Pausers &pausers) {
  std::vector<Row> rows;
  const double bytes = static_cast<double>(options.blocks) * static_cast<double>(options.size);
  for (const Pauser &pauser : pausers) {
    if (pauser.gone || pauser.measured(0).samples.empty() || pauser.measured(1).samples.empty()) continue;
    for (uint32_t operation = 0; operation < 2; ++operation) {
      const Measured &measured = pauser.measured(operation);
      Row row = row_of(run, pauser.subject().name, pauser.touched() ? GMM_BENCH_VMM : GMM_BENCH_SYSTEM);
      row.size = options.size;
      row.samples = measured.samples;
      row.ns = median(measured.samples);
      if (options.mode != GMM_BENCH_PAUSE_DROP) row.gbps = bytes / *row.ns;
      if (measured.calls_known) row.handles = measured.calls;
      row.words = {{"operation", kOperations[operation]},
                   {"contents", kContents[options.mode]},
                   {"arena", kArena[options.mode]}};
      row.numbers = {{"blocks", static_cast<double>(options.blocks)},
                     {"bytes", bytes},
                     {"first_ns", measured.first},
                     {"first_handles", measured.calls_known ? static_cast<double>(measured.first_calls) : NAN},
                     {"least_ns", *std::min_element(measured.samples.begin(), measured.samples.end())},
                     {"samples", static_cast<double>(measured.samples.size())}};
      rows.push_back(row);
    }
  }
  compare(&rows, [](const Row &a, const Row &b) { return a.words[0] == b.words[0]; });
  return rows;
}

ExitCode print_all(const Run &run, const gmm_bench_pause_options &options, const Pausers &pausers) {
  const std::vector<Row> rows = make_rows(run, options, pausers);
  if (rows.empty()) return std::fprintf(stderr, "gmm-bench: no subject is left\n"), kFailed;
  print_rows(run, "", rows);
  return kGood;
}

// torch_memory_saver ends the process when one of its calls fails. The rows until then are printed nevertheless.
struct {
  const Run *run;
  const gmm_bench_pause_options *options;
  const Pausers *pausers;
} whole;

void print_rows_at_exit() {
  if (whole.run == nullptr) return;
  std::fprintf(stderr, "gmm-bench: a peer has ended the process\n");
  print_all(*whole.run, *whole.options, *whole.pausers);
}

std::string directory_of(const Options &options) {
  if (!options.directory.empty()) return options.directory;
  const char *given = std::getenv("GMM_BACKUP_DIR");
  return given != nullptr && *given != '\0' ? given : "/tmp";
}

}  // namespace

ExitCode run_pause(const Run &run) {
  const uint32_t mode = mode_of(run.options);
  std::vector<const gmm_bench_pause_subject *> subjects;
  if (!find_pause_subjects(run.options, run.platform, &subjects)) return kUsage;
  std::erase_if(subjects, [&](auto *subject) { return (subject->modes >> mode & 1) == 0; });
  const std::string directory = directory_of(run.options);
  const gmm_bench_pause_options options = {mode,
                                           run.options.device,
                                           run.platform.cuda(),
                                           run.options.blocks,
                                           run.options.sizes.empty() ? uint64_t{2} << 20 : run.options.sizes[0],
                                           directory.c_str()};
  // From here on the device's context is current on this thread, for peers too.
  if (run.platform.cuda() && !raw_cuda().open(run.options.device))
    return std::fprintf(stderr, "gmm-bench: %s\n", raw_cuda().error.c_str()), kFailed;
  Pausers pausers;
  for (const auto *subject : subjects) pausers.emplace_back(*subject, options, run.options.rest_ms);
  whole = {&run, &options, &pausers};
  std::atexit(print_rows_at_exit);
  const uint32_t samples = run.options.samples != 0 ? run.options.samples : kPauseSamples[mode];
  if (!(mode == GMM_BENCH_PAUSE_COLD ? measure_cold(samples, &pausers)
                                     : measure_turns(samples, mode == GMM_BENCH_PAUSE_DROP, &pausers)))
    return whole.run = nullptr, kFailed;
  whole.run = nullptr;
  return print_all(run, options, pausers);
}

}  // namespace gmm_bench
