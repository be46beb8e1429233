// SPDX-License-Identifier: Apache-2.0
// Memory that outlives its process: what this context publishes and attaches, and its claims of names.
//
// Each is an entry with a connection to the server (keep_messages.h), which counts it, and with the descriptors of the
// memory. One thread watches the connections. When the server has ended, it gives the entries to the next one.
//
// A publication is an import of the block by this context's own broker. So its pages count as imported as long as the
// entry lives: a pause is BUSY, and a forced one revokes the import. Then the thread withdraws the name.
//
// Invariants.
// - An entry that `is_in_use` is changed and removed by the thread that set this, and no poller looks at it.
// - The socket of a reader is its mapping's. The number stays when another server takes the place of the first.
//
// Locks: `link_mutex_` is an operation's: the start of the thread, and of a server. `mutex_` is brief, and guards the
// entries. No thread waits for the server, the broker or the driver with it.
// Callers: Ipc, and lib/api through it.
#ifndef GMM_ENGINE_IPC_KEPT_H
#define GMM_ENGINE_IPC_KEPT_H

#include <gmm/keep.h>

#include "base/thread.h"
#include "engine/ipc/exports.h"
#include "engine/ipc/imports.h"
#include "engine/ipc/keep_messages.h"
#include "engine/ipc/serve_link.h"

namespace gmm {

class IpcKept : NoCopy {
 public:
  IpcKept(Core &core, IpcSettings &settings, IpcExports &exports, IpcImports &imports)
      : core_(core), settings_(settings), exports_(exports), imports_(imports), entries_(core.allocator) {}

  // The names are checked, and times of 0 are replaced.
  Status publish(const void *memory, const char *name, uint64_t timeout_ms);
  Status unpublish(const char *name, uint64_t timeout_ms);
  Status attach(const char *name, const gmm_attach_desc &desc, void **out);
  // *found: the address lies in attached memory.
  Status detach(void *memory, bool *found);
  Status list(uint64_t index, uint64_t timeout_ms, gmm_published_info *out);
  // Ends the thread and all connections. Attached memory is the imports' to unmap.
  void clear();

 private:
  struct Entry {
    KeepRequest request;   // what gives it to another server
    os::Descriptors fds;   // of the memory
    IpcHandle handle;      // of a publication
    IpcConnection import;  // of a publication: revoked by a forced pause
    int32_t socket = -1;
    void *mapped = nullptr;  // the block of a reader
    bool is_in_use = true;
    bool is_cut = false;   // the server has ended
    bool is_over = false;  // of a reader: the name was withdrawn

    bool is(KeepVerb verb) const { return request.verb == verb; }
  };
  Status start();
  Status add(KeepVerb verb, const char *name, Entry **out);
  void look_at(Entry *entry);
  void ignore(Entry *entry);
  void remove(Entry *entry);
  Entry *find(KeepVerb verb, const char *name);
  Status ask(const KeepRequest &request, bool may_start, uint64_t deadline, int32_t *socket,
             const os::Descriptors *along, KeepAnswer *out, os::Descriptors *fds);
  Status ask_once(KeepRequest *request, bool may_start, uint64_t timeout_ms, KeepAnswer *out);
  int connect(bool may_start, int32_t *out);
  Status map(Entry *entry, const KeepAnswer &answer, uint32_t flags, void **out);
  Status publish(Entry *entry, const void *memory, uint64_t deadline);
  void run();
  void look(Entry *entry);
  bool restore(Entry *entry);

  Core &core_;
  IpcSettings &settings_;
  IpcExports &exports_;
  IpcImports &imports_;
  Mutex link_mutex_{LockRank::kKeptLink};
  // With link_mutex_ held.
  ServeLink link_;
  bool is_open_ = false, runs_ = false;
  uint64_t identity_ = 0;
  Thread thread_;
  os::SocketPoller poller_;
  std::atomic<bool> stopping_{false};
  uint64_t retry_ms_ = 1;  // the thread's own

  Mutex mutex_{LockRank::kKept};
  Condition changed_;  // an entry is not in use any more
  Vector<Entry *> entries_;
};

}  // namespace gmm
#endif
