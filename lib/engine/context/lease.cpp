// SPDX-License-Identifier: Apache-2.0
#include "engine/context/lease.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

using namespace gmm;

namespace {

// The calling thread is inside a lease's `asked`.
constinit thread_local bool t_is_asked = false;

constexpr uint64_t kReapAgainMs = 20;
constexpr uint64_t kAgainMs = 20;                         // between tries to measure
constexpr uint64_t kMostShortMs = 500;                    // between tries to resume
constexpr uint64_t kMostWaitMs = 60'000, kCancelMs = 20;  // between looks at the time, and at a ticket

}  // namespace

// --- Beginning and end -----------------------------------------------------------------------------------------------

gmm_lease::gmm_lease(Context &of, const gmm_lease_desc &checked, uint64_t identity)
    : context(of),
      desc_(checked),
      identity_(identity),
      member_(identity, checked.name, checked.priority,
              checked.residency_ms == 0 ? kLeastResidency : checked.residency_ms),
      offers_(of.core().allocator) {
  std::snprintf(name_, sizeof name_, "%s", checked.name);
}

gmm_lease::~gmm_lease() {
  for (const Offer &offer : offers_) end_offer(offer);
  poller_.close();
}

Status gmm_lease::create(Context &context, const gmm_lease_desc &desc, gmm_lease **out) {
  uint64_t identity = 0;
  GMM_TRY(random_bytes(&identity, sizeof identity));
  gmm_lease *lease = context.core().allocator.create<gmm_lease>(context, desc, identity | 1);
  if (lease == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for a lease.");
  const Status status = lease->begin();
  if (!status.ok()) {
    context.core().allocator.destroy(lease);
    return status;
  }
  context.retain();
  *out = lease;
  return Status();
}

Status gmm_lease::begin() {
  GMM_TRY(link_.open(context.ipc().policy()));
  if (const int error = poller_.open(); error != 0) return system_failure(error, "gmm_lease_create(): epoll");
  const int error = start_thread(&thread_, ThreadSignals::kNone, thread_entry<gmm_lease, &gmm_lease::run>, this);
  return error == 0 ? Status() : system_failure(error, "gmm_lease_create(): pthread_create");
}

Status gmm_lease::destroy(gmm_lease *lease) {
  {
    LockGuard guard(lease->mutex_);
    const bool has_ticket = lease->tickets != 0;
    if (lease->is_requesting_ || has_ticket)
      return fail(GMM_ERROR_BUSY, "gmm_lease_destroy(): %s of the lease \"%s\"; %s.",
                  has_ticket ? "there is a ticket" : "a thread is in a request", lease->name_,
                  has_ticket ? "destroy it first" : "wait for its end");
    lease->is_requesting_ = true;  // no request begins any more
  }
  lease->stopping_.store(true, std::memory_order_release);
  lease->wake();
  join_thread(lease->thread_);
  lease->magic = 0;
  Context &context = lease->context;
  context.core().allocator.destroy(lease);
  context.release();
  return Status();
}

Status gmm_lease::check_other_thread(const char *function) {
  if (!t_is_asked) return Status();
  return fail(GMM_ERROR_BUSY, "%s: the call comes from the callback of a lease; call it after the callback returned.",
              function);
}

// --- The program's calls ---------------------------------------------------------------------------------------------

Status gmm_lease::offer(gmm_tag tag, uint32_t cost) {
  LockGuard guard(mutex_);
  if (member_.is_giving() || member_.state() == LeaseState::kTaking)
    return fail(GMM_ERROR_BUSY, "gmm_lease_offer(): tags of the lease \"%s\" are being paused or resumed; try again.",
                name_);
  uint64_t at = 0;
  while (at < offers_.size() && offers_[at].tag != tag) ++at;
  if (cost == GMM_LEASE_WITHDRAW) {
    if (at < offers_.size()) {
      end_offer(offers_[at]);
      offers_.erase(at);
    }
  } else if (at < offers_.size()) {
    offers_[at].cost = cost;
  } else {
    if (!offers_.reserve(offers_.size() + 1))
      return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "gmm_lease_offer(): no host memory for an offer.");
    Tag *const offered = context.tags().get(tag);
    if (offered == nullptr) return TagTable::unknown(tag);
    uint64_t nobody = 0;
    if (!offered->offered_by.compare_exchange_strong(nobody, identity_))
      return fail(GMM_ERROR_OFFERED,
                  "gmm_lease_offer(): another lease of this context offers the tag \"%s\"; withdraw it there first.",
                  offered->name);
    offers_.push_back_reserved(Offer{tag, cost});
  }
  // The cheapest first.
  std::sort(offers_.begin(), offers_.end(),
            [](const Offer &a, const Offer &b) { return a.cost != b.cost ? a.cost < b.cost : a.tag < b.tag; });
  member_.set_cost(offers_.empty() ? 0 : offers_[0].cost);
  member_.touch();
  wake();
  return Status();
}

void gmm_lease::end_offer(const Offer &offer) {
  if (Tag *const tag = context.tags().get(offer.tag)) tag->offered_by.store(0);
}

// The cheapest first. The end of a tag has ended its offer. False: no host memory.
bool gmm_lease::copy_tags(Vector<gmm_tag> *out) {
  LockGuard guard(mutex_);
  for (uint64_t i = offers_.size(); i-- != 0;)
    if (context.tags().get(offers_[i].tag) == nullptr) offers_.erase(i);
  member_.set_cost(offers_.empty() ? 0 : offers_[0].cost);
  if (!out->reserve(offers_.size())) return false;
  for (const Offer &offer : offers_) out->push_back_reserved(offer.tag);
  return true;
}

Status gmm_lease::resume_offers(TicketState *ticket, uint64_t *bytes) {
  Vector<gmm_tag> tags(context.core().allocator);
  if (!copy_tags(&tags))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "gmm_lease_request(): no host memory for the list of tags.");
  if (tags.empty()) return Status();  // a request without tags would mean all
  PauseRequest request;
  request.tags = tags.data();
  request.count = static_cast<uint32_t>(tags.size());
  request.ticket = ticket;
  return context.resume(request, bytes);
}

Status gmm_lease::no_grant(const Patience &patience) {
  if (patience.is_cancelled())
    return fail(GMM_ERROR_CANCELLED, "The request of the lease \"%s\" was cancelled.", name_);
  char why[sizeof LeaseCommand::text + kIpcPathSize];
  if (counts_.server != 0)
    std::snprintf(why, sizeof why, "%s", member_.text()[0] != 0 ? member_.text() : "The server has not said why.");
  else
    std::snprintf(why, sizeof why, "No server answers in %s%s. Start one by the command `gmm serve`.", link_.folder(),
                  StartFailureText(start_error_).text);
  return fail(GMM_ERROR_NOT_READY, "gmm_lease_request(): the lease \"%s\" had no grant in %" PRIu64 " ms. %s", name_,
              patience.timeout_ms, why);
}

Status gmm_lease::request(const LeaseAmounts &amounts, uint64_t timeout_ms, TicketState *ticket, uint64_t *bytes) {
  const Patience patience{deadline_after(timeout_ms), timeout_ms, ticket};
  LockGuard guard(mutex_);
  if (is_requesting_ || member_.state() != LeaseState::kIdle)
    return fail(GMM_ERROR_BUSY, "gmm_lease_request(): the lease \"%s\" %s; return it first.", name_,
                member_.state() == LeaseState::kInUse ? "is in use" : "waits for another request");
  is_requesting_ = true;
  const uint64_t began = monotonic_ns();
  Status status = wait_until(patience, [&] { return !member_.is_giving(); }) ? Status() : no_grant(patience);
  if (status.ok()) {
    member_.begin(amounts.bytes, monotonic_ms());
    wake();
    status = take_grant(patience, bytes);
  }
  if (status.ok()) {
    member_.took(monotonic_ms());
    ++counts_.grants;
  } else if (member_.state() != LeaseState::kIdle) {
    member_.end(monotonic_ms());
  }
  is_requesting_ = false;
  context.metrics().lease_waits.add_since(began);
  wake();
  return status;
}

// Waits for the grant, then takes it. One that turns out too small is asked for again: the request keeps its age. With
// the lock, as wait_until().
Status gmm_lease::take_grant(const Patience &patience, uint64_t *bytes) {
  for (uint64_t again_ms = kAgainMs;; again_ms = std::min(2 * again_ms, kMostShortMs)) {
    if (!wait_until(patience, [&] { return member_.answer() != LeaseAnswer::kNone; })) return no_grant(patience);
    if (member_.answer() == LeaseAnswer::kDenied)
      return fail(GMM_ERROR_OUT_OF_MEMORY, "gmm_lease_request() of the lease \"%s\": %s", name_, member_.text());
    const uint64_t began = monotonic_ms();
    Status status;
    {
      Unlocked unlocked(mutex_);
      status = resume_offers(patience.ticket, bytes);
      // The granted bytes stay promised during this wait.
      if (status.code() == GMM_ERROR_OUT_OF_MEMORY)
        sleep_us(1000 * std::min(again_ms, milliseconds_until(patience.deadline)));
    }
    if (status.ok() && desc_.residency_ms == 0)
      member_.set_residency(std::max(kLeastResidency, monotonic_ms() - began));
    if (status.code() != GMM_ERROR_OUT_OF_MEMORY)
      return status.ok() ? Status() : status;  // OK also if nothing was missing
    ++counts_.shorts;
    if (patience.is_over())
      return prefix(Status(GMM_ERROR_NOT_READY),
                    "gmm_lease_request(): the grant of the lease \"%s\" was too small, and its time is over: ", name_);
    member_.came_short();
    wake();
  }
}

// Until fn() is true. False: the time is over, or the ticket is cancelled.
template <typename Fn>
bool gmm_lease::wait_until(const Patience &patience, Fn fn) {
  const uint64_t slice = patience.ticket != nullptr ? kCancelMs : kMostWaitMs;
  for (; !fn(); changed_.wait_for(mutex_, std::min(milliseconds_until(patience.deadline), slice)))
    if (patience.is_over()) return false;
  return true;
}

Status gmm_lease::return_all() {
  {
    LockGuard guard(mutex_);
    if (member_.state() != LeaseState::kInUse) return Status(GMM_UNCHANGED);
    member_.end(monotonic_ms());
  }
  wake();
  return Status();
}

void gmm_lease::query(gmm_lease_info *out) {
  Vector<gmm_tag> tags(context.core().allocator);
  if (!copy_tags(&tags)) tags.clear();  // without host memory it tells no bytes
  const Bytes bytes = bytes_of(tags.data(), tags.size());
  LockGuard guard(mutex_);
  *out = counts_;
  out->state = public_state(member_.state());
  for (uint32_t d = 0; d < kMaxDevices; ++d) {
    out->active_bytes += bytes.active[d];
    out->paused_bytes += bytes.paused[d];
  }
}

// --- Measures --------------------------------------------------------------------------------------------------------

gmm_lease::Bytes gmm_lease::bytes_of(const gmm_tag *tags, uint64_t count) {
  Bytes bytes;
  const auto add = [&](Heap &heap) -> Status {
    const HeapOptions &options = heap.options();
    if (options.kind != Kind::kVmm || std::find(tags, tags + count, options.tag) == tags + count) return Status();
    const HeapTotals totals = heap.totals();
    bytes.active[options.device.ordinal] += totals.held;
    bytes.paused[options.device.ordinal] += totals.paused;
    return Status();
  };
  if (count != 0) context.heaps().for_each(add, false).ignore();
  return bytes;
}

// Of devices that this context uses: to ask another one would start it.
bool gmm_lease::measure(LeaseMeasure out[kLeaseDevices]) {
  static_assert(kLeaseDevices == kMaxDevices);
  Vector<gmm_tag> tags(context.core().allocator);
  if (!copy_tags(&tags)) return false;
  const Bytes bytes = bytes_of(tags.data(), tags.size());
  for (uint32_t d = 0; d < context.device_count(); ++d) {
    LeaseMeasure &row = out[d];
    row.held = context.held_on(Device{static_cast<int32_t>(d)});
    row.offered = bytes.active[d];
    row.paused = bytes.paused[d];
    {
      LockGuard guard(mutex_);
      is_used_[d] = is_used_[d] || row.held != 0 || row.paused != 0 || member_.wants_extra(d);
    }
    if (!is_used_[d]) continue;
    // A device without an answer has nothing free. Before its first answer its name is unknown, and there is no report.
    gmm_device_info info = {};
    const bool is_told = context.core().backend->device_info(Device{static_cast<int32_t>(d)}, &info).ok();
    if (is_told) std::memcpy(uuids_[d].bytes, info.uuid, sizeof uuids_[d].bytes);
    if (is_told) totals_[d] = info.total_memory;
    if (uuids_[d] == LeaseUuid{}) return false;
    row.is_used = true;
    row.free = is_told ? info.free_memory : 0;
    row.floor = std::min(desc_.floor_bytes, totals_[d]);
    row.device = uuids_[d];
  }
  return true;
}

// --- The lease's thread ----------------------------------------------------------------------------------------------

void gmm_lease::run() {
  name_thread("gmm lease");
  using Act = LeaseMember::Next::Act;
  while (!stopping_.load(std::memory_order_acquire)) {
    if (socket_ < 0 && monotonic_ms() >= retry_at_ && !connect()) retry_later();
    LeaseMember::Next next;
    const LeaseCommand *giving = nullptr;
    {
      LockGuard guard(mutex_);
      next = member_.next(monotonic_ms());
      if (next.act == Act::kGive) giving = &member_.begin_give();
      if (next.act == Act::kReport) member_.begin_report();
    }
    switch (next.act) {
      case Act::kReport:
        send_report();
        break;
      case Act::kGive:
        give(*giving);
        break;
      case Act::kAsk:
        ask();
        break;
      case Act::kWait:
        if (socket_ < 0) next.until = std::min(next.until, retry_at_);
        if (!link_.reap_starter()) next.until = std::min(next.until, monotonic_ms() + kReapAgainMs);
        if (void *keys[os::SocketPoller::kMost]; poller_.wait_until(next.until, keys) != 0) receive();
        break;
    }
  }
  if (socket_ >= 0) disconnect();
}

void gmm_lease::retry_later() {
  retry_ms_ = std::min(retry_ms_ * 2, ServeLink::kMostRetryMs);
  retry_at_ = monotonic_ms() + retry_ms_;
}

bool gmm_lease::connect() {
  MessageGuard message_guard;
  PeerUser peer;
  const int error = link_.connect(true, &socket_, &peer);
  {
    LockGuard guard(mutex_);
    start_error_ = link_.start_error();
  }
  if (error != 0) return false;
  if (poller_.add(socket_, &socket_) != 0) {
    disconnect();
    return false;
  }
  has_command_ = false;
  LockGuard guard(mutex_);
  member_.connected();
  counts_.server_process = peer.process;
  return true;
}

void gmm_lease::disconnect() {
  poller_.remove(socket_);
  os::close_socket(socket_);
  socket_ = -1;
  // A server that cuts this member off without a word would do it again at once.
  if (has_command_)
    retry_at_ = 0;
  else
    retry_later();
  has_command_ = false;
  LockGuard guard(mutex_);
  member_.disconnected();
  counts_.server = 0;
  counts_.server_process = 0;
  changed_.notify_all();
}

void gmm_lease::receive() {
  while (socket_ >= 0) {
    LeaseCommand incoming;
    const int64_t got = os::receive_bytes(socket_, &incoming, sizeof incoming);
    if (got == -EAGAIN) return;
    if (got <= 0) return disconnect();
    if (got != sizeof incoming || !incoming.header.is(ServeKind::kLeaseCommand) || incoming.devices > kLeaseDevices) {
      context.core().log.write(LogLevel::kWarning, "lease: the server in %s is of another version", link_.folder());
      return disconnect();
    }
    has_command_ = true;
    retry_ms_ = 1;
    incoming.asked.name[sizeof incoming.asked.name - 1] = incoming.text[sizeof incoming.text - 1] = 0;
    LockGuard guard(mutex_);
    member_.receive(incoming, monotonic_ms());
    counts_.server = incoming.server;
    changed_.notify_all();
  }
}

void gmm_lease::send_report() {
  MessageGuard message_guard;
  LeaseMeasure measures[kLeaseDevices];
  if (!measure(measures)) {
    sleep_us(1000 * kAgainMs);
    LockGuard guard(mutex_);
    return member_.touch();  // the report stays due
  }
  LeaseReport report;
  {
    LockGuard guard(mutex_);
    member_.report(measures, context.device_count(), monotonic_ms(), &report);
  }
  const int64_t sent = os::send_bytes(socket_, &report, sizeof report);
  if (sent != static_cast<int64_t>(sizeof report) && sent != -EAGAIN) disconnect();
}

void gmm_lease::give(const LeaseCommand &command) {
  MessageGuard message_guard;
  uint64_t needed[kMaxDevices] = {};
  for (uint32_t i = 0; i < command.devices; ++i)
    for (uint32_t d = 0; d < context.device_count(); ++d)
      if (is_used_[d] && uuids_[d] == command.rows[i].device) needed[d] = command.rows[i].give;
  Vector<gmm_tag> offered(context.core().allocator), tags(context.core().allocator);
  const bool has_tags = copy_tags(&offered) && tags.reserve(offered.size());
  for (uint64_t i = 0; has_tags && i < offered.size(); ++i) {
    const Bytes bytes = bytes_of(&offered[i], 1);
    bool helps = false;
    for (uint32_t d = 0; d < context.device_count(); ++d) {
      helps = helps || (needed[d] != 0 && bytes.active[d] != 0);
      needed[d] -= std::min(needed[d], bytes.active[d]);
    }
    if (helps) tags.push_back_reserved(offered[i]);
  }
  // Together first, as several devices then copy at once. If one tag cannot go, the others may.
  const auto pause_tags = [&](const gmm_tag *first, uint64_t count) {
    PauseRequest request;
    request.tags = first;
    request.count = static_cast<uint32_t>(count);
    uint64_t bytes = 0;
    const Status status = context.pause(request, &bytes);
    if (!status.ok()) {
      context.core().log.write(LogLevel::kInfo, "lease: \"%s\" gives up nothing now: %s", name_, last_message());
      return false;
    }
    LockGuard guard(mutex_);
    counts_.evictions += status.code() == GMM_OK ? 1 : 0;
    counts_.evicted_bytes += bytes;
    return true;
  };
  if (!tags.empty() && !pause_tags(tags.data(), tags.size()) && tags.size() > 1)
    for (const gmm_tag &tag : tags) pause_tags(&tag, 1);
  LockGuard guard(mutex_);
  member_.gave();
  changed_.notify_all();
}

void gmm_lease::ask() {
  gmm_lease_ask ask;
  {
    LockGuard guard(mutex_);
    member_.begin_ask();
    ask = member_.command().asked;
    ask.struct_size = sizeof ask;
    if (desc_.asked.fn != nullptr) ++counts_.asked;
  }
  if (desc_.asked.fn == nullptr) return;
  check_may_call_program(ProgramCall::kAsk);
  t_is_asked = true;
  desc_.asked.fn(desc_.asked.user, &ask);
  t_is_asked = false;
}

// --- The list --------------------------------------------------------------------------------------------------------

Status gmm_lease::list(Context &context, uint64_t index, uint64_t timeout_ms, gmm_lease_entry_info *out) {
  int32_t socket = -1;
  ServeLink link;
  GMM_TRY(link.open(context.ipc().policy()));
  PeerUser peer;
  int error = link.connect(false, &socket, &peer);
  if (error != 0)
    return fail(GMM_ERROR_NOT_READY, "gmm_lease_list(): no server runs in %s: nobody has a lease.", link.folder());
  LeaseQuestion question;
  question.index = index;
  LeaseEntry entry;
  if (os::send_bytes(socket, &question, sizeof question) != static_cast<int64_t>(sizeof question)) error = EPIPE;
  if (error == 0) error = os::wait_until_readable(socket, timeout_ms);
  if (error == 0 && os::receive_bytes(socket, &entry, sizeof entry) != static_cast<int64_t>(sizeof entry))
    error = EPIPE;
  os::close_socket(socket);
  if (error != 0 || !entry.header.is(ServeKind::kLeaseEntry))
    return fail(GMM_ERROR_NOT_READY, "gmm_lease_list(): the server in %s gave no answer in %" PRIu64 " ms.",
                link.folder(), timeout_ms);
  entry.info.name[sizeof entry.info.name - 1] = 0;
  *out = entry.info;
  out->server_process = peer.process;
  if (index >= out->entry_count) return Status(GMM_UNCHANGED);
  return Status();
}
