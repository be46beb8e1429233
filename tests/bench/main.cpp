// SPDX-License-Identifier: Apache-2.0
// gmm-bench: gmm beside other allocators, in one process and one run.
#include <cstdio>
#include <string>

#include "commands.h"

int main(int argc, char **argv) {
  using namespace gmm_bench;
  Options options;
  if (const ExitCode code = parse(argc, argv, &options); code != kGood) return code == kHelp ? kGood : code;
  if (options.command == "ipc") return run_ipc(options);
  Platform platform;
  if (!open_platform(options, &platform)) return kFailed;
  std::vector<const gmm_bench_subject *> subjects;
  if (options.command == "pause") return run_pause({options, platform, subjects});
  if (!find_subjects(options, platform, &subjects)) return kUsage;
  const Run run = {options, platform, subjects};
  if (options.command == "pair") return run_pair(run);
  if (options.command == "mixed") return run_mixed(run);
  if (options.command == "latency") return run_latency(run);
  return run_replay(run);
}
