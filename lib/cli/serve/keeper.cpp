// SPDX-License-Identifier: Apache-2.0
#include "cli/serve/keeper.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

namespace gmm {

Keeper::~Keeper() {
  while (!clients_.empty()) remove(clients_.back());
  for (Publication *each : publications_) allocator_.destroy(each);
}

// --- Clients ---------------------------------------------------------------------------------------------------------

Keeper::Client *Keeper::add(int32_t process, void *user) {
  if (!clients_.reserve(clients_.size() + 1)) return nullptr;
  Client *client = allocator_.create<Client>();
  if (client == nullptr) return nullptr;
  client->process = process;
  client->user = user;
  clients_.push_back_reserved(client);
  return client;
}

void Keeper::remove(Client *client) {
  if (client->role == Role::kReads && client->of != nullptr) --client->of->memory.readers;
  allocator_.destroy(client->brought);
  clients_.erase_unordered(
      static_cast<uint64_t>(std::find(clients_.begin(), clients_.end(), client) - clients_.begin()));
  allocator_.destroy(client);
}

bool Keeper::receive(Client *client, const KeepRequest &request, os::Descriptors *fds) {
  const bool is_known = request.header.is(ServeKind::kKeepRequest) && request.verb >= KeepVerb::kList &&
                        request.verb <= KeepVerb::kRestoreReader && request.reserved == 0 &&
                        (request.verb == KeepVerb::kList || is_kept_name(request.name));
  const bool may_ask = !client->asks && (client->role == Role::kNone ||
                                         (client->role == Role::kPublishes && request.verb == KeepVerb::kRevoke));
  if (!is_known || !may_ask) return false;
  // At once, as the connection ends behind it.
  if (request.verb == KeepVerb::kRevoke && client->of != nullptr) withdraw(client->of, client, true);
  if (request.verb == KeepVerb::kRevoke) return true;
  if (request.brings_memory()) {
    if (!request.memory.is_valid() || (fds->count != request.memory.extents && !fds->any_lost)) return false;
    if (!publications_.reserve(publications_.size() + clients_.size())) return false;  // one for each client
    client->brought = allocator_.create<Publication>();
    if (client->brought == nullptr) return false;
    std::memcpy(client->brought->name, request.name, sizeof request.name);
    client->brought->memory = request.memory;
    client->brought->fds.any_lost = fds->any_lost;
    client->brought->fds.take(fds);
  }
  client->request = request;
  client->asks = true;
  return true;
}

// --- Names -----------------------------------------------------------------------------------------------------------

Keeper::Publication *Keeper::find(const char *name) const {
  for (Publication *each : publications_)
    if (std::strcmp(each->name, name) == 0) return each;
  return nullptr;
}

// A publication uses the claim of its own context.
bool Keeper::is_claimed_by_others(const Client &client) const {
  const bool has_own = client.request.verb == KeepVerb::kPublish;
  return std::any_of(clients_.begin(), clients_.end(), [&](const Client *each) {
    return each->role == Role::kClaims && each != &client &&
           !(has_own && each->request.client == client.request.client) &&
           std::strcmp(each->request.name, client.request.name) == 0;
  });
}

void Keeper::join(Client *client, Publication *known, Role role) {
  client->role = role;
  client->of = known;
  if (role == Role::kReads) ++known->memory.readers;
}

void Keeper::publish(Client *client, Publication *made, Role role) {
  generation_ = std::max(generation_, made->memory.generation);
  made->memory.readers = 0;
  publications_.push_back_reserved(made);
  join(client, made, role);
}

void Keeper::withdraw(Publication *known, const Client *by, bool is_revoked) {
  for (Client *each : clients_) {
    if (each->of != known) continue;
    each->is_revoked = is_revoked && each->role == Role::kReads;
    each->must_learn_of_end = each != by;
    each->of = nullptr;
  }
  publications_.erase_unordered(
      static_cast<uint64_t>(std::find(publications_.begin(), publications_.end(), known) - publications_.begin()));
  allocator_.destroy(known);
}

// --- Answers ---------------------------------------------------------------------------------------------------------

uint64_t Keeper::wakes_at(uint64_t now) const {
  const bool any_asks = std::any_of(clients_.begin(), clients_.end(), [](const Client *each) { return each->asks; });
  return any_asks && now < decides_from_ ? decides_from_ : UINT64_MAX;
}

bool Keeper::next(uint64_t now, Message *out) {
  for (Client *client : clients_) {
    out->answer = KeepAnswer();
    out->along = nullptr;
    out->is_revocation = false;
    out->to = client;
    if (client->must_learn_of_end) {
      client->must_learn_of_end = false;
      out->is_revocation = client->is_revoked;
      out->answer.result = GMM_ERROR_IPC_PEER_GONE;
      return true;
    }
    if (client->asks && try_answer(client, now, out)) {
      client->asks = false;
      allocator_.destroy(std::exchange(client->brought, nullptr));
      return true;
    }
  }
  return false;
}

// False: the name is over.
bool Keeper::restore(Client *client, Publication *known) {
  const KeepVerb verb = client->request.verb;
  if (verb == KeepVerb::kRestoreClaim) {
    if (known != nullptr || is_claimed_by_others(*client)) return false;
    client->role = Role::kClaims;
    return true;
  }
  const Role role = verb == KeepVerb::kRestoreReader ? Role::kReads : Role::kPublishes;
  if (known == nullptr)
    publish(client, std::exchange(client->brought, nullptr), role);
  else if (known->memory.generation == client->request.memory.generation)
    join(client, known, role);
  return client->of != nullptr;
}

// False: the request waits.
bool Keeper::try_answer(Client *client, uint64_t now, Message *out) {
  const KeepRequest &request = client->request;
  KeepAnswer &answer = out->answer;
  Publication *const known = find(request.name);
  // A predecessor's client may bring the name.
  if (known == nullptr && now < decides_from_ && request.verb <= KeepVerb::kUnpublish &&
      request.verb != KeepVerb::kList)
    return false;
  if (client->brought != nullptr && client->brought->fds.any_lost) {
    answer.result = GMM_ERROR_SYSTEM;
    return true;
  }
  switch (request.verb) {
    case KeepVerb::kList:
      list(request.index, out);
      return true;
    case KeepVerb::kAttach:
    case KeepVerb::kClaim:
      if (known == nullptr) {
        if (request.verb == KeepVerb::kAttach || is_claimed_by_others(*client)) return false;
        client->role = Role::kClaims;
        answer.result = GMM_UNCHANGED;
      } else if (request.index != 0 && request.index != known->memory.generation) {
        answer.result = GMM_ERROR_IPC_PEER_GONE;
      } else {
        join(client, known, Role::kReads);
        answer.memory = known->memory;
        out->along = &known->fds;
      }
      return true;
    case KeepVerb::kPublish:
      if (known != nullptr || is_claimed_by_others(*client)) {
        answer.result = GMM_ERROR_BUSY;
        return true;
      }
      client->brought->memory.generation = generation_ + 1;
      client->brought->memory.process = client->process;
      publish(client, std::exchange(client->brought, nullptr), Role::kPublishes);
      answer.memory = client->of->memory;
      return true;
    case KeepVerb::kUnpublish:
      if (known == nullptr) answer.result = GMM_UNCHANGED;
      if (known != nullptr) withdraw(known, client, false);
      return true;
    case KeepVerb::kRevoke:
    case KeepVerb::kRestoreClaim:
    case KeepVerb::kRestorePublisher:
    case KeepVerb::kRestoreReader:
      if (!restore(client, known)) answer.result = GMM_ERROR_IPC_PEER_GONE;
      return true;
  }
  return true;
}

void Keeper::list(uint64_t index, Message *out) const {
  out->answer.count = publications_.size();
  if (index >= publications_.size()) {
    out->answer.result = GMM_UNCHANGED;
    return;
  }
  out->answer.memory = publications_[index]->memory;
  std::memcpy(out->answer.name, publications_[index]->name, sizeof out->answer.name);
}

}  // namespace gmm
