// SPDX-License-Identifier: Apache-2.0
// IPC: memory and events that several processes use.
//
// The objects of the module, one a file:
//   exports.h    IpcExports: which block a handle names, how many importers hold it, and the check of its token
//   imports.h    IpcImports: the mappings of other processes' memory; mapping.h: one of them
//   events.h     IpcEvents: events of this process and of others, and the check of their tokens
//   kept.h       IpcKept: memory that is published at the server, or attached; keep_messages.h: the messages
//   serve_link.h ServeLink: the way to that server, also for leases
//   semaphores.h Semaphore: a semaphore of another API, which streams use as an event
//   descriptor.h file descriptors of memory, which leave the process without a count, and the checks of others'
//   broker.h     IpcBroker: the exporter's thread, which checks and answers requests; peer_server.h: its connections
//   client.h     the importer's request, the checks of the exporter and its answer, and the connection that counts it
//   protocol.h   the messages between broker and client; handle.h: the bytes of a handle, and the checks of its fields
//   control_messages.h what `gmm ps` and the commands with --pid ask, which context/ carries out
//   policy.h     which users may share, and the check of a peer, also for leases; directory.h: the sockets' directory
// SECURITY.md says who is trusted with what.
//
// The mechanism. A handle names an exporter's socket, an export and a token; it holds no memory.
//
//   importer                                     exporter's broker
//   connect to the socket, check its user   ->   check the importer's user
//   request: id, token, wish                ->   grant: compare the token, count the importer
//   map the extents                         <-   reply: size, generation, a descriptor of each extent
//   ... use the memory ...
//   close the connection, or end            ->   count one importer less
//   state REVOKED                           <-   one byte and the end: a forced pause revoked the memory
//   state of the peer: gone                 <-   the end alone: the exporter ended, or does not need the event any more
//
// The open connection is the sign that both processes live: when one ends, the system closes it. Peer::state() also
// looks at the exporter's process (pidfd), since a forked child of it may hold the socket.
//
// After a revocation the importer's gmm_query() says REVOKED, and other calls with the memory fail with IPC_REVOKED.
// Its mapping of the old pages stays until it closes the import.
//
// Invariants
// - An id is never used again in a context. Exports and events take theirs from one sequence.
// - Extent::importers is the number of live connections that were granted an export over the extent, and of imports
//   of this context itself (Extent::own_imports). Each grant() and import_own() that counts is followed by exactly one
//   importer_gone().
// - An extent with importers does not return to the driver. A block that was exported and is freed is not used again
//   while its extents have importers (Heap).
// - A block of memory that is mapped already is imported only after the exporter said that the block lives.
//
// Locks, in their order
// - A heap, then IpcExports, then the lock of the broker's connections. The broker's thread waits for no operation that
//   has a heap.
// - IpcEvents, then the lock of the broker's connections.
// - IpcImports. No thread waits for another process or a device while it holds it.
// - IpcKept holds its brief lock beside sockets only.
// - IpcBroker (start, stop and the making of its socket) and IpcSettings: the caller holds no other lock of the module.
//   IpcBroker::stop() waits for its thread, which takes the locks of IpcExports and IpcEvents.
//
// Callers: lib/api for every gmm_ipc_* function and gmm_ipc_import_fd(), context/ for queries, for the revocation after
// a forced pause, and at the end of a context. The module calls heap/ and space/ only.
//
// Limits
// - MANAGED memory has no IPC.
// - The driver opens no legacy handle in the process that made it, not even for another context.
// - A shared block lies over at most kIpcMaxExtents extents.
// - Only memory of GMM_ALLOC_COMM has fabric handles. An importer on another machine is neither counted nor revoked.
// - CUDA does not define what happens to a queued wait for an event whose maker is killed.
#ifndef GMM_ENGINE_IPC_IPC_H
#define GMM_ENGINE_IPC_IPC_H

#include <gmm/ipc.h>

#include <atomic>

#include "engine/ipc/broker.h"
#include "engine/ipc/events.h"
#include "engine/ipc/exports.h"
#include "engine/ipc/imports.h"
#include "engine/ipc/kept.h"
#include "engine/ipc/policy.h"

namespace gmm {

// All IPC of a context. The functions here are those that concern more than one table.
class Ipc : NoCopy {
 private:  // before the tables, which use them
  Core &core_;
  IpcSettings settings_;
  IpcBroker broker_;
  std::atomic<uint64_t> next_id_{1};

 public:
  Ipc(Core &core, HeapSet &heaps, const ControlTaker &control);
  ~Ipc() { clear(); }

  // BUSY after the first export or import.
  Status configure(const IpcPolicy &policy);
  // Other processes may ask for control from now on.
  Status listen();
  // The policy, which does not change from now on: for leases, whose processes are held to it as well.
  const IpcPolicy &policy() {
    settings_.freeze();
    return settings_.policy();
  }
  // Maps another process's memory, or returns the original memory for a handle of this context.
  Status import_block(const gmm_ipc_handle &bytes, Device device, uint64_t timeout_ms, void **out);
  // Closes one import.
  Status close(void *memory);
  // Stops the broker, and ends all events and imports.
  void clear();

  IpcExports exports;
  IpcImports imports;
  IpcEvents events;
  IpcKept kept;

 private:
  static Status resolve(void *self, uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out);
  static void importer_gone(void *self, uint64_t id);
};

}  // namespace gmm
#endif
