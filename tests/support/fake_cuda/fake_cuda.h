// SPDX-License-Identifier: Apache-2.0
// Requests of a test to the fake driver. The functions are exported by the fake libcuda.so.1: find them with dlsym,
// and take their absence as the sign that the driver in this process is a real one.
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The numbers of objects that the process holds now.
typedef struct fake_cuda_live {
  uint64_t allocations;    // cuMemAlloc, cuMemAllocManaged, cuMemAllocAsync, cuMemHostAlloc
  uint64_t reservations;   // cuMemAddressReserve
  uint64_t handles;        // cuMemCreate, imports: references that wait for cuMemRelease
  uint64_t mappings;       // cuMemMap
  uint64_t registrations;  // cuMemHostRegister
  uint64_t streams;        // cuStreamCreate; default streams do not count
  uint64_t events;         // cuEventCreate
  uint64_t imports;  // of `handles` those that were imported, memory opened by cuIpcOpenMemHandle, external memory
                     // and external semaphores
  uint64_t context_references;  // cuDevicePrimaryCtxRetain
  uint64_t device_bytes;        // device memory in use, as cuMemGetInfo counts it, over all devices
  uint64_t host_bytes;          // cuMemHostAlloc, registered memory and host-located physical memory
  uint64_t managed_bytes;       // cuMemAllocManaged
  uint64_t dropped;             // things that a context took along when its last reference went
  uint64_t graphs;              // graphs, those that are being captured, and executable graphs
  uint64_t user_objects;        // cuUserObjectCreate, until the destructor has returned
} fake_cuda_live_t;

// How often an entry was called, failures included. "cuMemAlloc" and "cuMemAlloc_v2" mean the same. NULL: all that
// fake_cuda_fail(NULL, ...) counts. An unknown entry gives UINT64_MAX.
uint64_t fake_cuda_count(const char *entry);
void fake_cuda_reset_counts(void);

// The kth call from now on (1 is the next) of that entry fails once, with that CUresult and without effect. NULL: the
// kth call of any entry but the names of errors, the bookkeeping of the current context and the look-up of entries. kth
// 0 takes back earlier requests for the entry (NULL: all). Returns 0, or -1 for an unknown entry.
int fake_cuda_fail(const char *entry, uint64_t kth, int error);

// Of all failures that were asked for, how many have happened since the last fake_cuda_reset_counts.
uint64_t fake_cuda_failures(void);

// Calls so far that fake_cuda_fail(NULL, ...) counts; not touched by fake_cuda_reset_counts.
uint64_t fake_cuda_calls_until_now(void);

void fake_cuda_live(struct fake_cuda_live *out);

#ifdef __cplusplus
}
#endif
#endif
