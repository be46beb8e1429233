// SPDX-License-Identifier: Apache-2.0
// The keeper of published memory: names, generations, the claims to publish, and the readers.
//
// It holds the descriptors of each publication, and maps nothing. It knows no clock, no thread and no socket: its owner
// gives it the time, requests and ends of connections, and sends its messages.
//
// Invariants.
// - A name has at most one publication, and at most one client has its claim.
// - A publication has the descriptors of all its extents from its first moment.
// - A publication has a greater generation than all before, also of former servers.
// - After a predecessor nobody gets a claim, and nothing new is published, before its clients have had time to return.
//
// Locks: none. One thread uses it.
// Callers: server.cpp.
#ifndef GMM_CLI_SERVE_KEEPER_H
#define GMM_CLI_SERVE_KEEPER_H

#include "base/vector.h"
#include "engine/ipc/keep_messages.h"

namespace gmm {

class Keeper : NoCopy {
 public:
  static constexpr uint64_t kGraceMs = 500;  // clients of a predecessor return in this time

  struct Publication {
    char name[kKeptNameSize] = {};
    KeptMemory memory;
    os::Descriptors fds;
  };
  enum class Role : uint8_t { kNone, kClaims, kPublishes, kReads };
  // A connection. Its request waits until it can be answered.
  struct Client {
    int32_t process = 0;
    void *user = nullptr;
    Role role = Role::kNone;
    Publication *of = nullptr;  // of kPublishes and kReads; NULL: it was withdrawn
    bool asks = false;
    KeepRequest request;             // the last one, whose name and client have the claim of kClaims
    Publication *brought = nullptr;  // by the request
    bool must_learn_of_end = false, is_revoked = false;
  };
  struct Message {
    Client *to = nullptr;
    bool is_revocation = false;  // in place of the answer
    KeepAnswer answer;
    const os::Descriptors *along = nullptr;  // until the next call
  };

  // `number`: of the server. Generations begin behind it.
  Keeper(uint64_t number, bool has_predecessor, uint64_t now)
      : generation_(number), decides_from_(has_predecessor ? now + kGraceMs : now) {}
  ~Keeper();

  // Valid until remove(). NULL: there is no memory.
  Client *add(int32_t process, void *user);
  void remove(Client *client);
  // Takes the descriptors. False: it is no request, or there is no memory; the connection must be cut.
  bool receive(Client *client, const KeepRequest &request, os::Descriptors *fds);
  // The next message to send. It counts as sent. False: there is none.
  bool next(uint64_t now, Message *out);
  // When to call next() again without a reason; UINT64_MAX: never.
  uint64_t wakes_at(uint64_t now) const;
  // Nothing is kept.
  bool empty() const { return publications_.empty(); }

 private:
  Publication *find(const char *name) const;
  bool is_claimed_by_others(const Client &client) const;
  bool try_answer(Client *client, uint64_t now, Message *out);
  bool restore(Client *client, Publication *known);
  void publish(Client *client, Publication *made, Role role);
  void join(Client *client, Publication *known, Role role);
  void withdraw(Publication *known, const Client *by, bool is_revoked);
  void list(uint64_t index, Message *out) const;

  const HostAllocator allocator_;
  uint64_t generation_;  // the greatest
  const uint64_t decides_from_;
  Vector<Publication *> publications_;
  Vector<Client *> clients_;
};

}  // namespace gmm
#endif
