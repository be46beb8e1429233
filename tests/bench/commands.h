// SPDX-License-Identifier: Apache-2.0
#ifndef GMM_BENCH_COMMANDS_H
#define GMM_BENCH_COMMANDS_H

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "options.h"
#include "rows.h"
#include "subjects.h"
#include "workers.h"

namespace gmm_bench {

struct Run {
  const Options &options;
  const Platform &platform;
  const std::vector<const gmm_bench_subject *> &subjects;
};

ExitCode run_pair(const Run &run);
ExitCode run_mixed(const Run &run);
ExitCode run_latency(const Run &run);
ExitCode run_replay(const Run &run);
ExitCode run_pause(const Run &run);        // has subjects of its own
ExitCode run_ipc(const Options &options);  // has two processes, of which each opens the platform

// Opens each subject for each of the kinds. A warning on stderr names a kind that a subject lacks. False when nothing
// of gmm is left, though it was asked for.
bool open_instances(const Run &run, const std::vector<uint32_t> &kinds, Workers *workers, uint32_t threads,
                    std::deque<Instance> *out);

// Prints the error of an instance. True for a peer, whose rows are then left out; false for gmm.
bool give_up(const Instance &instance);

Row row_of(const Run &run, const std::string &subject, uint32_t kind);

// The kinds of --kind, or else the usual ones that the backend has.
std::vector<uint32_t> kinds_or(const Run &run, std::vector<uint32_t> usual);

// Fills `over` of gmm's rows: the row's time over each peer's in a row that `comparable` takes; of several kinds of one
// peer the row's own first.
void compare(std::vector<Row> *rows, const std::function<bool(const Row &, const Row &)> &comparable);

// Prints JSON with --json, else the title and a table, which begins with the backend in its first call.
void print_rows(const Run &run, const std::string &title, const std::vector<Row> &rows);

}  // namespace gmm_bench
#endif
