// SPDX-License-Identifier: Apache-2.0
// The host backend: every kind of memory without a GPU, for use in production.
//
// Owns: the streams (HostStreamTable) and the account of the memory that each device has given. The engine owns the
// memory.
//
// How each kind is made: kDevice and kHost memory are a memory file each, so that another process can map them; kHost
// memory is page-locked where the system allows it. VMM memory is a memory file too, and a mapping is an mmap() over
// reserved addresses. kManaged memory is ordinary pages. Streams are threads that run their work in order.
//
// A strict backend maps kDevice and VMM memory twice. The program's view is without access, and the backend works on
// the other one (host_views.h). VMM memory that was moved to the host is the program's, too.
//
// Its objects: HostBackend, in host_backend.cpp, carries out each operation of backend.h. HostStream, with its table
// and events, HostSharedEvent and HostViews have a pair of files each.
//
// Locks: the backend has none of its own, since the account is atomic. Their order: the table of streams, an event, a
// stream. The lock of HostViews stands alone.
#ifndef GMM_BACKEND_HOST_HOST_BACKEND_H
#define GMM_BACKEND_HOST_HOST_BACKEND_H

#include "backend/backend.h"

namespace gmm {

struct HostBackendOptions {
  uint64_t memory = 0;         // bytes that each device shows; 0: the machine's memory
  uint32_t devices = 0;        // number of devices; 0: one
  bool is_strict = false;      // the CPU faults on kDevice and VMM memory
  const char *card = nullptr;  // the file of memory that processes share (host_card.h); NULL: the memory is this one's
};

Status host_backend_create(const HostAllocator &allocator, const Log &log, const HostBackendOptions &options,
                           Backend **out);

}  // namespace gmm
#endif
