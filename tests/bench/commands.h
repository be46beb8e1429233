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
ExitCode run_pause(const Run &run);  // has subjects of its own
ExitCode run_ipc(const Run &run);    // likewise

// Opens each subject for each of the kinds. A kind that a subject cannot do is told on stderr; false when that leaves
// nothing of gmm that was asked for.
bool open_instances(const Run &run, const std::vector<uint32_t> &kinds, Workers *workers, uint32_t threads,
                    std::deque<Instance> *out);

// Says why; true for a peer, whose rows are left out then, false for gmm.
bool give_up(const Instance &instance);

Row row_of(const Run &run, const Instance &instance);

// Fills `over` of gmm's rows: the row's time over each peer's in a row that `comparable` takes; of several kinds of one
// peer the row's own first.
void compare(std::vector<Row> *rows, const std::function<bool(const Row &, const Row &)> &comparable);

// All names of `over`, in the order of first use.
std::vector<std::string> compared(const std::vector<Row> &rows);
std::string over_text(const Row &row, const std::string &name);

void print_head(const Run &run);

}  // namespace gmm_bench
#endif
