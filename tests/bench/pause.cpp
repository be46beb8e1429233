// SPDX-License-Identifier: Apache-2.0
// What it costs to give the memory of many blocks back to the driver and to get it again at the same addresses.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>

#include "clock.h"
#include "commands.h"
#include "pause_command.h"

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

bool is_own(const gmm_bench_pause_subject &subject) {
  return &subject == gmm_pause_subject() || &subject == gmm_prepared_subject();
}

struct Measured {
  std::vector<double> samples;
  double first = NAN;
  uint64_t calls = 0, first_calls = 0;  // of the last one, and of the first
  bool calls_known = true;
};

// A subject with its memory.
class Pauser {
 public:
  Pauser(const gmm_bench_pause_subject &subject, const gmm_bench_pause_options &options, Contents *contents,
         uint32_t rest_ms)
      : subject_(subject), options_(options), contents_(contents), rest_(rest_ms) {}
  ~Pauser() { close(); }
  Pauser(const Pauser &) = delete;
  Pauser &operator=(const Pauser &) = delete;

  const gmm_bench_pause_subject &subject() const { return subject_; }
  const Measured &measured(uint32_t operation) const { return measured_[operation]; }
  const std::string &setting() const { return setting_; }
  bool touched() const { return touched_; }
  std::string error() const { return std::string(subject_.name) + ": " + error_; }
  bool gone = false;

  bool open() {
    char text[512] = "";
    if (subject_.open(&options_, &state_, text, sizeof text) == 0) {
      state_ = nullptr;
      error_ = text;
      return false;
    }
    touched_ = subject_.block(state_, 0) != nullptr;
    return true;
  }
  void close() {
    if (state_ != nullptr) subject_.close(state_);
    state_ = nullptr;
  }

  bool fill(uint64_t generation) {
    return each([&](char *block, uint64_t i) { return contents_->fill(block, i, options_.size, generation); });
  }
  bool check(uint64_t generation) {
    return each([&](char *block, uint64_t i) { return contents_->check(block, i, options_.size, generation); });
  }

  enum class Take { kNothing, kFirst, kSample };
  // operation: 0 pause, 1 resume.
  bool run(uint32_t operation, Take take) {
    std::this_thread::sleep_for(rest_);
    const uint64_t calls = subject_.calls(state_);
    const uint64_t begin = now();
    const int32_t done = operation == 0 ? subject_.pause(state_) : subject_.resume(state_);
    const double time = static_cast<double>(now() - begin);
    if (done == 0) return error_ = std::string(kOperations[operation]) + ": " + subject_.error(state_), false;
    const uint64_t after = subject_.calls(state_);
    if (operation == 0 && setting_.empty()) setting_ = subject_.setting(state_);
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
  template <typename Fn>
  bool each(Fn fn) {
    if (contents_ == nullptr || !touched_) return true;
    for (uint64_t i = 0; i < options_.blocks; ++i)
      if (!fn(static_cast<char *>(subject_.block(state_, i)), i)) return error_ = contents_->error(), false;
    return true;
  }

  const gmm_bench_pause_subject &subject_;
  const gmm_bench_pause_options &options_;
  Contents *contents_;
  const std::chrono::milliseconds rest_;
  gmm_bench_pause_state *state_ = nullptr;
  Measured measured_[2];
  std::string setting_, error_;
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
      const uint64_t generation = sample % 100 + 1;
      if (pauser.open() && pauser.fill(generation) && pauser.run(0, Take::kSample) && pauser.run(1, Take::kSample) &&
          (sample != 0 || pauser.check(generation)))
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
    if (!(pauser.open() && pauser.fill(1) && pauser.run(0, Take::kFirst) && pauser.run(1, Take::kFirst) &&
          pauser.check(1) && (!parked || pauser.run(0, Take::kNothing))) &&
        !leave_out(&pauser))
      return false;
  const uint32_t first = parked ? 1 : 0;
  for (uint32_t sample = 0; sample < samples; ++sample) {
    const bool last = sample + 1 == samples;
    for (Pauser &pauser : *pausers)
      if (!pauser.gone &&
          !((!last || pauser.fill(2)) && pauser.run(first, Take::kSample) && pauser.run(1 - first, Take::kSample) &&
            (!last || pauser.check(2))) &&
          !leave_out(&pauser))
        return false;
  }
  return true;
}

std::vector<Row> make_rows(const Run &run, const gmm_bench_pause_options &options, const Pausers &pausers) {
  std::vector<Row> rows;
  const double bytes = static_cast<double>(options.blocks) * static_cast<double>(options.size);
  for (const Pauser &pauser : pausers) {
    if (pauser.gone || pauser.measured(0).samples.empty() || pauser.measured(1).samples.empty()) continue;
    for (uint32_t operation = 0; operation < 2; ++operation) {
      const Measured &measured = pauser.measured(operation);
      Row row;
      row.bench = run.options.command;
      row.subject = pauser.subject().name;
      row.backend = run.platform.backend_name;
      row.device = run.platform.device_name;
      row.kind = pauser.touched() ? GMM_BENCH_VMM : GMM_BENCH_SYSTEM;
      row.size = options.size;
      row.samples = measured.samples;
      row.ns = median(measured.samples);
      if (options.mode != GMM_BENCH_PAUSE_DROP) row.gbps = bytes / *row.ns;
      if (measured.calls_known) row.handles = measured.calls;
      row.words = {{"operation", kOperations[operation]},
                   {"contents", kContents[options.mode]},
                   {"arena", kArena[options.mode]},
                   {"setting", pauser.setting()}};
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

void print_pause_rows(const std::vector<Row> &rows) {
  Table table(2);
  const std::vector<std::string> names = compared(rows);
  std::vector<std::string> head = {"subject", "operation", "time", "first", "least", "GB/s", "calls", "first calls"};
  for (const std::string &name : names) head.push_back("over " + name);
  table.add(head);
  for (const Row &row : rows) {
    std::vector<std::string> line = {row.subject,
                                     row.words[0].second,
                                     time_text(*row.ns),
                                     time_text(row.numbers[2].second),
                                     time_text(row.numbers[4].second),
                                     row.gbps ? decimals(*row.gbps, 2) : "-",
                                     row.handles ? std::to_string(*row.handles) : "-",
                                     decimals(row.numbers[3].second, 0)};
    for (const std::string &name : names) line.push_back(over_text(row, name));
    table.add(line);
  }
  table.print();
  for (size_t i = 0; i < rows.size(); i += 2)
    if (!rows[i].words[3].second.empty())
      std::printf("%s: %s\n", rows[i].subject.c_str(), rows[i].words[3].second.c_str());
}

// Those of the mode, that --subject names. False after saying that it names one that does not exist.
bool choose(const Run &run, uint32_t mode, std::vector<const gmm_bench_pause_subject *> *out) {
  std::vector<const gmm_bench_pause_subject *> all = {gmm_pause_subject(), gmm_prepared_subject()};
  for (const auto *subject : pause_baselines()) all.push_back(subject);
  find_pause_peers(run.options, run.platform, &all);
  std::erase_if(all, [&](auto *subject) { return subject->needs_cuda != 0 && !run.platform.cuda(); });
  for (const std::string &name : run.options.names) {
    if (std::any_of(all.begin(), all.end(), [&](auto *subject) { return name == subject->name; })) continue;
    std::string names;
    for (auto *subject : all) names += std::string(names.empty() ? "" : ", ") + subject->name;
    std::fprintf(stderr, "gmm-bench: there is no subject '%s'; there are: %s\n", name.c_str(), names.c_str());
    return false;
  }
  for (const auto *subject : all)
    if ((subject->modes >> mode & 1) != 0 &&
        (run.options.names.empty() ||
         std::find(run.options.names.begin(), run.options.names.end(), subject->name) != run.options.names.end()))
      out->push_back(subject);
  return true;
}

ExitCode print_all(const Run &run, const gmm_bench_pause_options &options, const Pausers &pausers) {
  const std::vector<Row> rows = make_rows(run, options, pausers);
  if (rows.empty()) return std::fprintf(stderr, "gmm-bench: no subject is left\n"), kFailed;
  print_head(run);
  if (run.options.json) {
    for (const Row &row : rows) print_json(row);
    return kGood;
  }
  const bool host = options.mode != GMM_BENCH_PAUSE_DROP && options.mode != GMM_BENCH_PAUSE_FILE;
  std::printf("%lu blocks of %s, contents: %s%s%s\n\n", static_cast<unsigned long>(options.blocks),
              size_text(options.size).c_str(), kContents[options.mode], host ? ", " : "",
              host ? kArena[options.mode] : "");
  print_pause_rows(rows);
  return kGood;
}

// torch_memory_saver ends the process when one of its calls fails. What was measured until then is printed
// nevertheless.
struct {
  const Run *run;
  const gmm_bench_pause_options *options;
  const Pausers *pausers;
} whole;

void print_what_is_there() {
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
  const bool keeps = mode != GMM_BENCH_PAUSE_DROP;
  std::vector<const gmm_bench_pause_subject *> subjects;
  if (!choose(run, mode, &subjects)) return kUsage;
  const std::string directory = directory_of(run.options);
  const gmm_bench_pause_options options = {
      sizeof options,     mode,
      run.options.device, run.platform.cuda() ? 1u : 0u,
      run.options.blocks, run.options.sizes.empty() ? uint64_t{2} << 20 : run.options.sizes[0],
      directory.c_str()};
  set_pause_backend(run.platform.backend, run.options.host_memory);

  // The device's context is current on this thread from here on, for peers too.
  std::string error;
  Raw *raw = open_raw(run.platform.cuda(), run.options.device, &error);
  Contents contents;
  if (raw != nullptr && keeps && !contents.open(raw)) error = contents.error();
  if (!error.empty()) return std::fprintf(stderr, "gmm-bench: %s\n", error.c_str()), kFailed;
  Pausers pausers;
  for (const auto *subject : subjects)
    pausers.emplace_back(*subject, options, keeps ? &contents : nullptr, run.options.rest_ms);
  whole = {&run, &options, &pausers};
  std::atexit(print_what_is_there);
  const uint32_t samples = run.options.samples != 0 ? run.options.samples : kPauseSamples[mode];
  if (!(mode == GMM_BENCH_PAUSE_COLD ? measure_cold(samples, &pausers) : measure_turns(samples, !keeps, &pausers)))
    return whole.run = nullptr, kFailed;
  whole.run = nullptr;
  return print_all(run, options, pausers);
}

}  // namespace gmm_bench
