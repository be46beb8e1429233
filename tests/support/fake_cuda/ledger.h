/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process of the fake driver shows to others: one file in the folder that FAKE_CUDA_LEDGER names, under the
 * number of the process. The fake NVML reads these files, and the calls of the checkpoint change them.
 */
#ifndef FAKE_CUDA_LEDGER_H
#define FAKE_CUDA_LEDGER_H

#include <stdint.h>

enum { FAKE_LEDGER_MAGIC = 0x6c656467, FAKE_LEDGER_DEVICES = 16 };
/* CUprocessState. */
enum { FAKE_PROCESS_RUNNING = 0, FAKE_PROCESS_LOCKED = 1, FAKE_PROCESS_CHECKPOINTED = 2, FAKE_PROCESS_FAILED = 3 };

/* Changed and read by __atomic_*, or by std::atomic of the same layout. */
typedef struct fake_ledger_page {
  uint32_t magic;
  int32_t devices;
  uint64_t memory; /* of each device */
  int32_t state;   /* FAKE_PROCESS_* */
  int32_t stuck;   /* a restore failed: no later one succeeds (cuda-checkpoint#44) */
  uint64_t used[FAKE_LEDGER_DEVICES];
  uint32_t contexts[FAKE_LEDGER_DEVICES]; /* 1: the process has a context there */
} fake_ledger_page;

/* Bytes that a context takes of its device, for the fake NVML and a restore. It is no part of what a process allocates,
 * so cuMemGetInfo() leaves it out. */
#define FAKE_LEDGER_CONTEXT_BYTES (UINT64_C(256) << 20)

#endif
