// SPDX-License-Identifier: Apache-2.0
// The ranks of `gmm-bench job`: the program started again.
#ifndef GMM_BENCH_JOB_RANK_H
#define GMM_BENCH_JOB_RANK_H

namespace gmm_bench {

inline constexpr const char *kJobRankWord = "--job-rank";

// In a rank: the descriptor of its board and its number are its arguments. The exit code.
int run_job_rank(int argc, char **argv);

}  // namespace gmm_bench
#endif
