// SPDX-License-Identifier: Apache-2.0
#include "backend/host/host_stream_table.h"

namespace gmm {
namespace {

constexpr uint32_t kHandleShift = 4;  // keeps handles distinct from the three special values

gmm_stream handle_of(uint64_t id) { return reinterpret_cast<gmm_stream>(id << kHandleShift); }

Status no_such_stream(gmm_stream handle) {
  return fail(GMM_ERROR_INVALID_HANDLE,
              "Stream %p is not a stream of this context, or was destroyed; pass a live one, or a special value.",
              static_cast<void *>(handle));
}

}  // namespace

Status HostStreamTable::add(Device device, bool created, HostStream **out) {
  if (!streams_.reserve(streams_.size() + 1)) return no_memory_for("Creating a stream");
  HostStream *stream = HostStream::create(allocator_, log_, device, last_id_ + 1);
  if (stream == nullptr) return no_memory_for("Creating a stream");
  ++last_id_;
  streams_.push_back_reserved(Entry{stream, created});
  *out = stream;
  return Status();
}

uint64_t HostStreamTable::find(gmm_stream handle) const {
  uint64_t low = 0, high = streams_.size();
  const uint64_t value = reinterpret_cast<uintptr_t>(handle);
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if ((streams_[middle].stream->id << kHandleShift) < value)
      low = middle + 1;
    else
      high = middle;
  }
  const bool found = low < streams_.size() && streams_[low].created && handle_of(streams_[low].stream->id) == handle;
  return found ? low : streams_.size();
}

Status HostStreamTable::create(Device device, gmm_stream *out) {
  LockGuard lock(mutex_);
  HostStream *stream = nullptr;
  GMM_TRY(add(device, true, &stream));
  *out = handle_of(stream->id);
  return Status();
}

Status HostStreamTable::acquire(Device device, gmm_stream handle, HostStream **out) {
  LockGuard lock(mutex_);
  if (handle == GMM_STREAM_DEFAULT || handle == GMM_STREAM_LEGACY) return acquire_default(device, out);
  if (handle == GMM_STREAM_PER_THREAD) return acquire_of_thread(device, out);
  const uint64_t index = find(handle);
  if (index == streams_.size()) return no_such_stream(handle);
  *out = streams_[index].stream;
  (*out)->retain();
  return Status();
}

Status HostStreamTable::acquire_default(Device device, HostStream **out) {
  HostStream *&stream = defaults_[device.ordinal];
  if (stream == nullptr) GMM_TRY(add(device, false, &stream));
  stream->retain();
  *out = stream;
  return Status();
}

Status HostStreamTable::acquire_of_thread(Device device, HostStream **out) {
  HostStream *stream = by_thread_.find(device);
  if (stream == nullptr) {
    if (!by_thread_.reserve()) return no_memory_for("Creating a stream");
    GMM_TRY(add(device, false, &stream));
    by_thread_.add_reserved(device, stream);
  }
  stream->retain();
  *out = stream;
  return Status();
}

Status HostStreamTable::remove(gmm_stream handle, HostStream **out) {
  LockGuard lock(mutex_);
  const uint64_t index = find(handle);
  if (index == streams_.size()) return no_such_stream(handle);
  HostStream *stream = streams_[index].stream;
  if (stream->is_own_thread())
    return fail(
        GMM_ERROR_BUSY,
        "Destroying a stream in a call that runs on it: the wait would never end; destroy it on another thread.");
  streams_.erase(index);
  *out = stream;
  return Status();
}

HostStream *HostStreamTable::next(Device device, uint64_t after) {
  LockGuard lock(mutex_);
  for (const Entry &entry : streams_) {
    if (entry.stream->id <= after || entry.stream->device != device) continue;
    entry.stream->retain();
    return entry.stream;
  }
  return nullptr;
}

void HostStreamTable::close() {
  // The order does not matter: a wait names work that is queued already, and each thread finishes its queue before it
  // ends.
  for (const Entry &entry : streams_) {
    entry.stream->close();
    entry.stream->release();
  }
  streams_.clear();
  by_thread_.clear();
}

}  // namespace gmm
