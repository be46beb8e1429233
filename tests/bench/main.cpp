// SPDX-License-Identifier: Apache-2.0
// gmm-bench: gmm beside other allocators, in one process and one run.
#include <cstdio>
#include <cstring>
#include <string>

#include "commands.h"
#include "ipc_process.h"

namespace {

constexpr char kUsageText[] =
    "gmm-bench: gmm beside other allocators, in one process and one run\n"
    "\n"
    "  gmm-bench pair                  one alloc and free: over sizes, kinds, threads, from thread to thread\n"
    "  gmm-bench mixed                 live blocks of 512 B to 8 MiB, replaced at random\n"
    "  gmm-bench latency               the same, each operation timed by itself: percentiles and the worst\n"
    "  gmm-bench replay TRACE...       recorded allocations, of files or all files of a folder\n"
    "  gmm-bench pause                 the memory of many blocks given back to the driver, and taken again\n"
    "  gmm-bench ipc                   sharing with another process; raw: the driver's or system's calls, by hand\n"
    "\n"
    "  --backend auto|host|cuda|sycl   default: GMM_BACKEND, else cuda where a device answers, else host\n"
    "  --device N                      default: 0\n"
    "  --kind device,vmm,host,managed  default: pair all, mixed and latency vmm and device, replay vmm; device without "
    "vmm\n"
    "  --subject NAME,...              only these; default: all that are there\n"
    "  --peers DIR                     where gmm_bench_*.so are; default: beside this program\n"
    "  --samples N                     how many; the median is printed. Default: pair 41, mixed 60, replay 5 warm "
    "passes, latency 7\n"
    "  --host-memory GIB               host backend: how much its device pretends to have; default: 256\n"
    "  --json                          one object a row\n"
    "pair:\n"
    "  --size N,...                    bytes, or with K, M, G; default: 512,1K,64K,1M,4M,64M\n"
    "  --threads N,...                 several have a stream each; default: 1, on the default stream\n"
    "  --share                         also: one thread allocates, another frees on the allocating thread's stream\n"
    "  --cross                         also: the same, freed on the freeing thread's stream\n"
    "  --sample-us N                   length of a sample; default: 500, with several threads 2000\n"
    "  --iterations N                  pairs a sample, instead of a length\n"
    "mixed, latency:\n"
    "  --blocks N                      live blocks; default: 256\n"
    "  --sizes log|uniform             how sizes are spread; default: log\n"
    "  --iterations N                  replacements a sample; default: 1024. latency: operations a pass; default: "
    "1000000\n"
    "  --seed N                        default: 1\n"
    "  --reserve PERCENT               latency: what the reserved heaps hold, of the most that is live; default: 150\n"
    "pause:\n"
    "  --blocks N, --size S            default: 1000 of 2M\n"
    "  --contents drop|host|file       what becomes of them; default: drop\n"
    "  --cold                          host: each sample is the first pause of a new context; default: of one that has "
    "paused before\n"
    "  --pageable                      host: in memory that is not page-locked\n"
    "  --rest MS                       between a pause and a resume, not timed: a driver may clear released memory "
    "with its copy "
    "engines\n"
    "                                  meanwhile; default: 0\n"
    "  --directory DIR                 for files; default: GMM_BACKUP_DIR, or /tmp\n"
    "ipc:\n"
    "  --iterations N                  cycles of export, import and close; default: 10000\n"
    "  --blocks N                      importing processes in turn; default: 1000\n"
    "  --threads N                     importing processes at once; default: 64\n";

bool asks_for_help(int argc, char **argv) {
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], "--help") == 0 || std::strcmp(argv[i], "-h") == 0) return true;
  return false;
}

}  // namespace

int main(int argc, char **argv) {
  using namespace gmm_bench;
  if (argc > 1 && std::strcmp(argv[1], "--ipc-second") == 0) return run_second_process(argc, argv);
  if (asks_for_help(argc, argv)) return std::fputs(kUsageText, stdout), kGood;
  Options options;
  if (const ExitCode code = parse(argc, argv, &options); code != kGood) return code;
  Platform platform;
  if (!open_platform(options, &platform)) return kFailed;
  std::vector<const gmm_bench_subject *> subjects;
  if (options.command == "pause") return run_pause({options, platform, subjects});
  if (options.command == "ipc") return run_ipc({options, platform, subjects});
  if (!find_subjects(options, platform, &subjects)) return kUsage;
  const Run run = {options, platform, subjects};
  if (options.command == "pair") return run_pair(run);
  if (options.command == "mixed") return run_mixed(run);
  if (options.command == "latency") return run_latency(run);
  return run_replay(run);
}
