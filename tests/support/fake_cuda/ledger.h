/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger, by which processes of the fake driver see each other: the file that FAKE_CUDA_LEDGER names. They
 * share the memory of their devices. The fake NVML reads it, and the calls of the checkpoint change it.
 */
#ifndef FAKE_CUDA_LEDGER_H
#define FAKE_CUDA_LEDGER_H

#include "../../../lib/backend/gpu/driver_api.h"

enum { FAKE_LEDGER_PROCESSES = 64, FAKE_LEDGER_DEVICES = 16 };

/* Changed and read by __atomic_*, or by std::atomic of the same layout. */
typedef struct fake_ledger_process {
  int32_t pid;   /* 0: nobody's. The entry of an ended process counts nothing, and another one takes it. */
  int32_t state; /* CUprocessState */
  int32_t stuck; /* a restore failed: no later one succeeds (cuda-checkpoint#44) */
  int32_t reserved;
  uint64_t used[FAKE_LEDGER_DEVICES];
  uint32_t contexts[FAKE_LEDGER_DEVICES]; /* 1: the process has a context there */
} fake_ledger_process;

typedef struct fake_ledger {
  fake_ledger_process processes[FAKE_LEDGER_PROCESSES];
} fake_ledger;

/* Bytes that a context takes of its device, for the fake NVML and a restore. It is no part of what a process allocates,
 * so cuMemGetInfo() leaves it out. */
#define FAKE_LEDGER_CONTEXT_BYTES (UINT64_C(256) << 20)

#endif
