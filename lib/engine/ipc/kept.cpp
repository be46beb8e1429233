// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/kept.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/os_memory.h"
#include "base/process.h"

namespace gmm {
namespace {

constexpr uint64_t kTryAgainMs = 20;   // to connect, while a server starts
constexpr uint64_t kSliceMs = 60'000;  // of one wait

Status no_entry() { return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for published memory."); }

}  // namespace

// --- Entries ---------------------------------------------------------------------------------------------------------

Status IpcKept::start() {
  settings_.freeze();
  LockGuard guard(link_mutex_);
  if (!is_open_) {
    GMM_TRY(random_bytes(&identity_, sizeof identity_));
    GMM_TRY(link_.open(settings_.policy()));
    is_open_ = true;
  }
  if (runs_) return Status();
  int error = poller_.open();
  if (error == 0) error = start_thread(&thread_, ThreadSignals::kNone, thread_entry<IpcKept, &IpcKept::run>, this);
  runs_ = error == 0;
  if (!runs_) poller_.close();
  return runs_ ? Status() : system_failure(error, "the thread for published memory");
}

// In use until look_at() or remove().
Status IpcKept::add(KeepVerb verb, const char *name, Entry **out) {
  GMM_TRY(start());
  Entry *entry = core_.allocator.create<Entry>();
  if (entry == nullptr) return no_entry();
  entry->request.verb = verb;
  entry->request.client = identity_;
  std::snprintf(entry->request.name, sizeof entry->request.name, "%s", name);
  LockGuard guard(mutex_);
  if (!entries_.push_back(entry)) {
    core_.allocator.destroy(entry);
    return no_entry();
  }
  *out = entry;
  return Status();
}

// The thread looks at it from now on. With mutex_ held, as the functions below.
void IpcKept::look_at(Entry *entry) {
  // A socket that cannot be watched counts as cut: the thread makes another one.
  if (!entry->is_over && !entry->is_cut && poller_.add(entry->socket, entry) != 0) entry->is_cut = true;
  if (entry->import.open()) poller_.add(entry->import.peer.connection, entry);
  entry->is_in_use = false;
  changed_.notify_all();
  if (entry->is_cut) poller_.wake();
}

void IpcKept::ignore(Entry *entry) {
  entry->is_in_use = true;
  poller_.remove(entry->socket);
  if (entry->import.open()) poller_.remove(entry->import.peer.connection);
}

// The socket of a reader is its mapping's.
void IpcKept::remove(Entry *entry) {
  if (entry->mapped == nullptr && entry->socket >= 0) os::end_connection(entry->socket);
  entries_.erase_unordered(
      static_cast<uint64_t>(std::find(entries_.begin(), entries_.end(), entry) - entries_.begin()));
  core_.allocator.destroy(entry);
  changed_.notify_all();
}

// One that nobody uses; waits for it.
IpcKept::Entry *IpcKept::find(KeepVerb verb, const char *name) {
  for (;;) {
    Entry **found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry *each) {
      return each->is(verb) && std::strcmp(each->request.name, name) == 0;
    });
    if (found == entries_.end()) return nullptr;
    if (!(*found)->is_in_use) return *found;
    changed_.wait_for(mutex_, kSliceMs);
  }
}

// --- The server ------------------------------------------------------------------------------------------------------

int IpcKept::connect(bool may_start, int32_t *out) {
  PeerUser unused;
  LockGuard guard(link_mutex_);
  const int error = link_.connect(may_start, out, &unused);
  if (!link_.reap_starter()) poller_.wake();
  return error;
}

// Sends the request over a new connection, and waits for the answer. *socket is open after a success only. NOT_READY:
// no server answers in time.
Status IpcKept::ask(const KeepRequest &request, bool may_start, uint64_t deadline, int32_t *socket,
                    const os::Descriptors *along, KeepAnswer *out, os::Descriptors *fds) {
  check_may_wait("the server");
  bool has_asked = false;
  for (;;) {
    const int error = connect(may_start, socket);
    if (error == EACCES)
      return fail(GMM_ERROR_IPC_REFUSED, "The server in %s runs as a user that was not named.", link_.folder());
    if (error == EMFILE || error == ENFILE) return system_failure(error, "a connection to the server");
    if (error == 0) {
      int64_t got = os::send_bytes(*socket, &request, sizeof request, along);
      has_asked = true;
      // A server that ends here leaves the request to the next one.
      while (got == static_cast<int64_t>(sizeof request) && milliseconds_until(deadline) != 0) {
        os::wait_until_readable(*socket, std::min(milliseconds_until(deadline), kSliceMs));
        got = os::receive_with_descriptors(*socket, out, sizeof *out, fds);
        if (got == sizeof *out && out->header.is(ServeKind::kKeepAnswer)) return Status();
        if (got != -EAGAIN) break;
        got = sizeof request;
      }
      os::close_socket(std::exchange(*socket, -1));
    }
    if (!may_start || milliseconds_until(deadline) == 0) break;
    sleep_us(1000 * std::min(kTryAgainMs, milliseconds_until(deadline)));
  }
  LockGuard guard(link_mutex_);
  if (has_asked) return fail(GMM_ERROR_NOT_READY, "the server in %s gave no answer in time", link_.folder());
  return fail(GMM_ERROR_NOT_READY, "no server answers in %s%s; start one by the command `gmm serve`", link_.folder(),
              StartFailureText(link_.start_error()).text);
}

// A request whose connection ends with the answer.
Status IpcKept::ask_once(KeepRequest *request, bool may_start, uint64_t timeout_ms, KeepAnswer *out) {
  GMM_TRY(start());
  request->client = identity_;
  int32_t socket = -1;
  os::Descriptors unused;
  GMM_TRY(ask(*request, may_start, deadline_after(timeout_ms), &socket, nullptr, out, &unused));
  os::end_connection(socket);
  return Status();
}

// --- Publications ----------------------------------------------------------------------------------------------------

Status IpcKept::publish(const void *memory, const char *name, uint64_t timeout_ms) {
  Block block;
  GMM_TRY(find_block(core_, memory, "gmm_publish", &block));
  const HeapOptions &options = block.heap->options();
  if (options.kind != Kind::kVmm)
    return fail(GMM_ERROR_INVALID_KIND, "gmm_publish(%p): this is %s memory; publish VMM memory.", memory,
                kind_name(options.kind));
  Entry *entry = nullptr;
  GMM_TRY(add(KeepVerb::kPublish, name, &entry));
  std::memcpy(entry->request.memory.device.bytes, core_.traits(options.device).uuid, sizeof(LeaseUuid));
  const Status status = publish(entry, memory, deadline_after(timeout_ms));
  LockGuard guard(mutex_);
  if (status.ok())
    look_at(entry);
  else
    remove(entry);
  if (Entry *claim = status.ok() ? find(KeepVerb::kRestoreClaim, name) : nullptr) {
    ignore(claim);
    remove(claim);
  }
  return status.ok() ? status : prefix(status, "gmm_publish(\"%s\"): ", name);
}

Status IpcKept::publish(Entry *entry, const void *memory, uint64_t deadline) {
  gmm_ipc_handle bytes;
  GMM_TRY(exports_.export_block(memory, &bytes));
  GMM_TRY(ipc_handle_decode(bytes, &entry->handle));
  // The descriptors here, so that a failure of the driver is this call's. The import has their generation.
  IpcGrant granted;
  IpcAnswer counted;
  granted.wants_fds = true;
  granted.counts = false;
  GMM_TRY(exports_.grant(entry->handle.allocation, entry->handle.token, &granted));
  GMM_TRY(ipc_connect(entry->handle, IpcWant::kCount, milliseconds_until(deadline), &entry->import, &counted,
                      settings_.policy()));
  const IpcReply &reply = granted.reply;
  KeptMemory &kept = entry->request.memory;
  kept.base = reinterpret_cast<uint64_t>(memory) - entry->handle.offset;
  kept.size = reply.allocation_size;
  kept.block_offset = entry->handle.block_offset;
  kept.block_size = entry->handle.block_size;
  kept.backend = core_.backend->id();
  kept.extents = reply.extents;
  std::copy_n(reply.sizes, reply.extents, kept.sizes);
  entry->fds.take(&granted.fds);
  KeepAnswer answer;
  os::Descriptors unused;
  GMM_TRY(ask(entry->request, true, deadline, &entry->socket, &entry->fds, &answer, &unused));
  if (answer.result == GMM_ERROR_BUSY)
    return fail(GMM_ERROR_BUSY,
                "the name is published, or another process has its claim; call gmm_unpublish() first, or gmm_attach()");
  if (answer.result != GMM_OK)
    return fail(answer.result < 0 ? answer.result : GMM_ERROR_IPC_REFUSED,
                "the server cannot keep the memory; it may have as many descriptors open as it may (ulimit -n)");
  kept = answer.memory;
  entry->request.verb = KeepVerb::kRestorePublisher;
  return Status();
}

Status IpcKept::unpublish(const char *name, uint64_t timeout_ms) {
  KeepRequest request;
  request.verb = KeepVerb::kUnpublish;
  std::snprintf(request.name, sizeof request.name, "%s", name);
  Entry *claim = nullptr, *publication = nullptr;
  {
    LockGuard guard(mutex_);
    if ((claim = find(KeepVerb::kRestoreClaim, name)) != nullptr) ignore(claim);
    if ((publication = find(KeepVerb::kRestorePublisher, name)) != nullptr) ignore(publication);
  }
  KeepAnswer answer;
  const Status status = prefix(ask_once(&request, true, timeout_ms, &answer), "gmm_unpublish(\"%s\"): ", name);
  const IpcHandle handle = publication == nullptr ? IpcHandle() : publication->handle;
  {
    LockGuard guard(mutex_);
    for (Entry *each : {claim, publication})
      if (each != nullptr) status.ok() ? remove(each) : look_at(each);
  }
  if (!status.ok()) return status;
  // The broker sees the end of the publication before it answers this: a pause that follows is not BUSY.
  IpcConnection brief;
  IpcAnswer unused;
  MessageGuard message;
  if (publication != nullptr)
    ipc_connect(handle, IpcWant::kCheck, timeout_ms, &brief, &unused, settings_.policy()).ignore();
  return Status(claim != nullptr ? GMM_OK : answer.result);
}

// --- Readers ---------------------------------------------------------------------------------------------------------

Status IpcKept::attach(const char *name, const gmm_attach_desc &desc, void **out) {
  const bool claims = (desc.flags & GMM_ATTACH_OR_CLAIM) != 0;
  Entry *entry = nullptr;
  GMM_TRY(add(claims ? KeepVerb::kClaim : KeepVerb::kAttach, name, &entry));
  entry->request.index = desc.generation;
  KeepAnswer answer;
  Status status =
      ask(entry->request, true, deadline_after(desc.timeout_ms), &entry->socket, nullptr, &answer, &entry->fds);
  if (status.code() == GMM_ERROR_NOT_READY)
    status = prefix(status, "nothing was published by that name in %" PRIu64 " ms: ", desc.timeout_ms);
  if (status.ok() && claims && answer.result == GMM_UNCHANGED) {
    entry->request.verb = KeepVerb::kRestoreClaim;
    *out = nullptr;
    status = unchanged("gmm_attach: nothing is published by that name; this context has the claim to publish it.");
  } else if (status.ok()) {
    status = map(entry, answer, desc.flags, out);
  }
  LockGuard guard(mutex_);
  if (status.ok())
    look_at(entry);
  else
    remove(entry);
  return status.ok() ? status : prefix(status, "gmm_attach(\"%s\"): ", name);
}

Status IpcKept::map(Entry *entry, const KeepAnswer &answer, uint32_t flags, void **out) {
  const os::Descriptors &fds = entry->fds;
  const KeptMemory &kept = answer.memory;
  if (answer.result == GMM_ERROR_IPC_PEER_GONE)
    return fail(GMM_ERROR_IPC_PEER_GONE, "generation %" PRIu64 " is over; gmm_published_list() has the present one",
                entry->request.index);
  if (fds.any_lost)
    return fail(GMM_ERROR_SYSTEM, "this process may open no more descriptors (ulimit -n); the memory has %u",
                kept.extents);
  bool is_whole = answer.result == GMM_OK && kept.is_valid() && fds.count == kept.extents;
  // An access to a mapping beyond the end of its file ends the process with SIGBUS.
  for (uint32_t i = 0; is_whole && i < fds.count; ++i) {
    os::FileFacts file;
    is_whole = os::file_facts(fds.each[i], &file) == 0 && (!file.is_file || file.size >= kept.sizes[i]);
  }
  if (!is_whole) return fail(GMM_ERROR_IPC_REFUSED, "the server's answer does not describe memory");
  Device device;
  const auto lies_on = [&](Device each) {
    return std::memcmp(core_.traits(each).uuid, kept.device.bytes, sizeof kept.device.bytes) == 0;
  };
  while (static_cast<uint32_t>(device.ordinal) < core_.backend->device_count() && !lies_on(device)) ++device.ordinal;
  if (kept.backend != core_.backend->id() || static_cast<uint32_t>(device.ordinal) == core_.backend->device_count())
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "the memory is another backend's, or lies on a device that this context does not have");
  Status status = imports_.attach(kept, fds.each, device, flags, std::exchange(entry->socket, -1), out);
  if (!status.ok()) return status;
  Range range;
  imports_.find(*out, &range);
  entry->socket = IpcImports::connection(range);
  entry->mapped = *out;
  entry->request.verb = KeepVerb::kRestoreReader;
  entry->request.memory = kept;
  return status;
}

Status IpcKept::detach(void *memory, bool *found) {
  const auto at = reinterpret_cast<uint64_t>(memory);
  const auto is_of = [&](const Entry *each) {
    return at - reinterpret_cast<uint64_t>(each->mapped) < each->request.memory.block_size && each->mapped != nullptr;
  };
  LockGuard guard(mutex_);
  Entry **place;
  while ((place = std::find_if(entries_.begin(), entries_.end(), is_of)) != entries_.end() && (*place)->is_in_use)
    changed_.wait_for(mutex_, kSliceMs);
  *found = place != entries_.end();
  if (!*found) return Status();
  Entry *const entry = *place;
  ignore(entry);
  Status status;
  {
    Unlocked unlocked(mutex_);
    bool is_mapped = false;
    status = imports_.close(memory, &is_mapped);
  }
  if (status.ok())
    remove(entry);
  else
    look_at(entry);
  return status;
}

Status IpcKept::list(uint64_t index, uint64_t timeout_ms, gmm_published_info *out) {
  KeepRequest request;
  request.index = index;
  KeepAnswer answer;
  GMM_TRY(prefix(ask_once(&request, false, timeout_ms, &answer), "gmm_published_list(): "));
  const KeptMemory &kept = answer.memory;
  out->entry_count = answer.count;
  if (answer.result != GMM_OK) return Status(GMM_UNCHANGED);
  out->backend = kept.backend;
  out->generation = kept.generation;
  out->size = kept.block_size;
  out->address = reinterpret_cast<void *>(kept.base + kept.block_offset);
  out->process = kept.process;
  out->readers = kept.readers;
  std::memcpy(out->uuid, kept.device.bytes, sizeof out->uuid);
  std::memcpy(out->name, answer.name, sizeof out->name);
  make_printable(out->name, sizeof out->name);
  return Status();
}

// --- The thread ------------------------------------------------------------------------------------------------------

void IpcKept::run() {
  name_thread("gmm-keep");
  uint64_t until = UINT64_MAX, retry_at = 0;
  while (!stopping_.load(std::memory_order_acquire)) {
    void *keys[os::SocketPoller::kMost];
    const uint32_t count = poller_.wait_until(until, keys);
    {
      LockGuard guard(link_mutex_);
      until = link_.reap_starter() ? UINT64_MAX : monotonic_ms() + kTryAgainMs;
    }
    LockGuard guard(mutex_);
    for (uint32_t i = 0; i < count; ++i) {
      Entry *const *entry = std::find(entries_.begin(), entries_.end(), keys[i]);
      if (entry != entries_.end() && !(*entry)->is_in_use) look(*entry);
    }
    const auto is_cut = [](const Entry *each) { return each->is_cut && !each->is_in_use; };
    Entry **cut = std::find_if(entries_.begin(), entries_.end(), is_cut);
    if (cut == entries_.end()) continue;
    if (monotonic_ms() >= retry_at) {
      while (cut != entries_.end() && restore(*cut)) cut = std::find_if(entries_.begin(), entries_.end(), is_cut);
      // A server that cuts a connection off without a word would do it again at once.
      retry_at = monotonic_ms() + retry_ms_;
      retry_ms_ = std::min(retry_ms_ * 2, ServeLink::kMostRetryMs);
    }
    until = std::min(until, retry_at);
  }
}

// Something came over one of its connections.
void IpcKept::look(Entry *entry) {
  const bool is_revoked = entry->import.open() && entry->import.state() == PeerState::kRevoked;
  if (is_revoked) {
    KeepRequest request = entry->request;
    request.verb = KeepVerb::kRevoke;
    request.memory = KeptMemory();
    os::send_bytes(entry->socket, &request, sizeof request);  // a server that has gone has no readers
    ignore(entry);
    return remove(entry);
  }
  // The byte of a revocation stays: queries look at it.
  entry->is_over = Peer{entry->socket, -1}.state() == PeerState::kRevoked;
  KeepAnswer answer;
  while (!entry->is_over && !entry->is_cut) {
    const int64_t got = os::receive_bytes(entry->socket, &answer, sizeof answer);
    if (got == -EAGAIN) return;
    entry->is_cut = got <= 0;
    entry->is_over = got > 0 && (got != sizeof answer || answer.result < 0);
    if (got > 0) retry_ms_ = 1;
  }
  poller_.remove(entry->socket);
  if (!entry->is_over) return;
  if (entry->mapped != nullptr) return entry->fds.close();
  ignore(entry);
  remove(entry);
}

// Gives an entry to the server that there is now. False: there is none.
bool IpcKept::restore(Entry *entry) {
  int32_t made = -1;
  entry->is_in_use = true;
  {
    Unlocked unlocked(mutex_);
    MessageGuard message;
    if (connect(true, &made) != 0) made = -1;
  }
  if (made >= 0) {
    os::replace_socket(entry->socket, made);
    os::send_bytes(entry->socket, &entry->request, sizeof entry->request, &entry->fds);
    entry->is_cut = false;
  }
  look_at(entry);
  return made >= 0;
}

void IpcKept::clear() {
  LockGuard guard(link_mutex_);
  if (!runs_) return;
  stopping_.store(true, std::memory_order_release);
  poller_.wake();
  {
    Unlocked unlocked(link_mutex_);  // the thread may connect
    join_thread(thread_);
  }
  runs_ = false;
  LockGuard entries_guard(mutex_);
  while (!entries_.empty()) remove(entries_.back());
  poller_.close();
}

}  // namespace gmm
