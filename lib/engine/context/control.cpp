// SPDX-License-Identifier: Apache-2.0
#include "engine/context/control.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/disk_file.h"
#include "base/environment.h"
#include "base/os_memory.h"
#include "engine/context/context.h"
#include "engine/pause/heap_transition.h"

namespace gmm {
namespace {

Status no_memory() { return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the answer."); }

int32_t append(void *text, const char *piece, uint64_t size) {
  auto &all = *static_cast<Vector<char> *>(text);
  if (!all.reserve(all.size() + size)) return 1;
  for (uint64_t i = 0; i < size; ++i) all.push_back_reserved(piece[i]);
  return 0;
}

}  // namespace

struct Control::Work {
  Work(Context &of, const ControlRequest &what, int32_t connection)
      : context(of), request(what), socket(connection), text(of.core().allocator) {}
  void run();
  Status carry_out();
  Status list_heaps();
  Status write_snapshot();
  Status trace();
  Status change_tag(bool is_pause);
  Status put_text_in_file();

  Context &context;
  const ControlRequest request;
  const int32_t socket;
  TicketState state;
  Thread thread;
  Vector<char> text;      // of the answer
  os::Descriptors files;  // of the reply
  uint64_t bytes = 0;
};

Status Control::Work::list_heaps() {
  const auto add = [&](Heap &heap) -> Status {
    const HeapOptions &options = heap.options();
    const Tag &tag = *context.tags().get(options.tag);
    const HeapTotals totals = heap.totals();
    ControlHeap row;
    std::memcpy(row.tag, tag.name, sizeof row.tag);
    std::memcpy(row.uuid, context.core().traits(options.device).uuid, sizeof row.uuid);
    row.kind = static_cast<uint32_t>(options.kind);
    row.live_bytes = totals.live_bytes;
    row.reserved_bytes = totals.held;
    row.paused_bytes = totals.paused;
    row.kept_bytes = kept_bytes(heap);
    row.allocations = totals.allocations;
    row.limit_bytes = std::min(tag.held.limit(), tag.held_on[options.device.ordinal].limit());
    row.pauses = tag.pauses.load(std::memory_order_relaxed);
    return append(&text, reinterpret_cast<const char *>(&row), sizeof row) == 0 ? Status() : no_memory();
  };
  GMM_TRY(context.heaps().for_each(add, false));
  return put_text_in_file();
}

Status Control::Work::write_snapshot() {
  Snapshot snapshot(context.core().allocator);
  GMM_TRY(snapshot.take(context.core(), context.heaps(), context.tags(), gmm_scope_desc()));
  GMM_TRY(snapshot.add_devices(*context.core().backend));
  if (!snapshot.write(append, &text).ok()) return no_memory();
  return put_text_in_file();
}

Status Control::Work::put_text_in_file() {
  GMM_TRY(os::memory_file_create("gmm-answer", text.size(), &files.each[0]));
  files.count = 1;
  const int error = os::write_file(files.each[0], 0, text.data(), text.size());
  return error == 0 ? Status() : fail_native(GMM_ERROR_IO, error, "The answer: %s", ErrorText(error).text);
}

// A trace may be long, so its file lies on a disk. It has no name, so the asker's death leaves none.
Status Control::Work::trace() {
  const char *folder = environment_text(Variable::kBackupDir);
  if (folder == nullptr) folder = os::temporary_folder();
  if (const int error = os::make_unnamed_file(folder, "gmm-trace-", &files.each[0]); error != 0)
    return fail_native(GMM_ERROR_IO, error, "A file for the trace in %.200s: %s", folder, ErrorText(error).text);
  files.count = 1;
  char path[40];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", files.each[0]);
  GMM_TRY(context.begin_trace(path, gmm_trace_desc()));
  state.hold(request.milliseconds).ignore();  // nobody commits it: it returns at the time, or when it is cancelled
  return context.trace().end();
}

Status Control::Work::change_tag(bool is_pause) {
  gmm_tag tag = 0;
  GMM_TRY(context.tags().find(request.tag, &tag));
  PauseRequest change;
  change.tags = &tag;
  change.count = 1;
  change.ticket = &state;
  return is_pause ? context.pause(change, &bytes) : context.resume(change, &bytes);
}

Status Control::Work::carry_out() {
  switch (request.verb) {
    case ControlVerb::kState:
      return list_heaps();
    case ControlVerb::kSnapshot:
      return write_snapshot();
    case ControlVerb::kTrace:
      return trace();
    case ControlVerb::kPause:
    case ControlVerb::kResume:
      return change_tag(request.verb == ControlVerb::kPause);
  }
  return fail(GMM_ERROR_NOT_SUPPORTED, "This gmm does not know the request; use one release on both sides.");
}

void Control::Work::run() {
  name_thread("gmm-control");
  const Status status = carry_out();
  ControlReply reply;
  reply.result = status.code();
  if (!status.ok()) {
    std::snprintf(reply.message, sizeof reply.message, "%s", last_message());
    files.close();
  }
  reply.files = static_cast<uint16_t>(files.count);
  reply.bytes = bytes;
  os::send_bytes(socket, &reply, sizeof reply, &files);  // the asker may have gone
  files.close();
  os::end_connection(socket);
  state.end();
}

void Control::end(Work **work) {
  join_thread((*work)->thread);
  context_.core().allocator.destroy(*work);
  *work = nullptr;
}

Status Control::take(void *self, int32_t socket, const ControlRequest &request) {
  Control &control = *static_cast<Control *>(self);
  if (!control.is_allowed_)
    return fail(GMM_ERROR_IPC_REFUSED, "GMM_CONTROL=1 or GMM_CONTEXT_CONTROL allows others to ask, and is not set");
  if (request.milliseconds > ControlRequest::kMostMilliseconds)
    return fail(GMM_ERROR_IPC_REFUSED, "a trace of more than an hour was asked for");
  return control.begin(socket, request);
}

Status Control::begin(int32_t socket, const ControlRequest &request) {
  LockGuard guard(mutex_);
  for (Work *&work : works_)
    if (work != nullptr && work->state.now() == GMM_TICKET_DONE) end(&work);
  Work **place = std::find(works_, works_ + kMost, nullptr);
  if (is_stopped_ || place == works_ + kMost) return Status(GMM_ERROR_BUSY);
  Work *work = context_.core().allocator.create<Work>(context_, request, socket);
  if (work == nullptr) return Status(GMM_ERROR_BUSY);
  if (start_thread(&work->thread, ThreadSignals::kNone, thread_entry<Work, &Work::run>, work) != 0) {
    context_.core().allocator.destroy(work);
    return Status(GMM_ERROR_BUSY);
  }
  *place = work;
  return Status();
}

void Control::stop() {
  LockGuard guard(mutex_);
  is_stopped_ = true;
  for (Work *work : works_)
    if (work != nullptr) work->state.cancel();
  for (Work *&work : works_)
    if (work != nullptr) end(&work);
}

}  // namespace gmm
