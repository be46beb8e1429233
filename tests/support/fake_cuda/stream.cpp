// SPDX-License-Identifier: Apache-2.0
// The worker threads, the default streams and the calls that make and wait for streams.
#include "stream.h"

#include <cstdio>
#include <cstdlib>

using namespace fake;

namespace {

thread_local bool is_worker = false;

struct Streams {
  std::map<CUstream, std::shared_ptr<Stream>> created;
  std::map<std::pair<Context *, std::thread::id>, std::shared_ptr<Stream>> per_thread;
  std::multimap<Context *, std::thread> ending;  // threads of closed streams
};
Streams &streams() { return forever<Streams>(); }

std::shared_ptr<Stream> make_stream(Context *context, unsigned flags) {
  auto stream = std::make_shared<Stream>();
  stream->context = context;
  stream->flags = flags;
  return stream;
}

template <class F>
void for_each_stream(Context *context, F each) {
  for (auto &[handle, stream] : streams().created)
    if (!context || stream->context == context) each(stream);
  for (auto &[key, stream] : streams().per_thread)
    if (!context || key.first == context) each(stream);
  for (Context &one : state().contexts)
    if (one.legacy && (!context || &one == context)) each(one.legacy);
}

void work(std::shared_ptr<Stream> stream) {
  is_worker = true;
  if (is_hip()) pthread_setname_np(pthread_self(), "fake driver");  // as in graph.cpp: its contexts never end
  State &s = state();
  std::unique_lock<std::mutex> lock(s.mutex);
  for (;;) {
    s.changed.wait(lock, [&] { return stream->closed || !stream->queue.empty(); });
    if (stream->queue.empty()) return;
    Work next = std::move(stream->queue.front());
    s.changed.wait(lock, [&] {
      for (auto &marker : next.after)
        if (!marker->done) return false;
      return true;
    });
    bool broken = stream->context->error != CUDA_SUCCESS;
    lock.unlock();
    CUresult result = broken ? CUDA_SUCCESS : next.run();
    next.run = nullptr;  // its objects go without the lock
    lock.lock();
    if (result) stream->context->error = result;
    stream->queue.pop_front();
    next.marker->done = true;
    next.marker->when = std::chrono::steady_clock::now();
    s.changed.notify_all();
  }
}

}  // namespace

namespace fake {

bool on_stream_worker() { return is_worker; }
void forbid_the_driver() { is_worker = true; }

// A real driver does not look at handles.
static CUresult unknown_stream(CUstream handle) {
  if (!state().configuration.blind) return CUDA_ERROR_INVALID_HANDLE;
  fprintf(stderr, "fake CUDA: stream %p was destroyed, or never was one\n", static_cast<void *>(handle));
  abort();
}

CUresult find_stream(CUstream handle, Context *context, std::shared_ptr<Stream> *out) {
  if (!handle || handle == CU_STREAM_LEGACY) {
    if (!context->legacy) {
      context->legacy = make_stream(context, 0);
      context->legacy->legacy = true;
    }
    *out = context->legacy;
    return CUDA_SUCCESS;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    auto &mine = streams().per_thread[{context, std::this_thread::get_id()}];
    if (!mine) mine = make_stream(context, 0);
    *out = mine;
    return CUDA_SUCCESS;
  }
  auto it = streams().created.find(handle);
  if (it == streams().created.end()) return unknown_stream(handle);
  *out = it->second;
  return it->second->context->error;
}

CUresult enqueue(const std::shared_ptr<Stream> &stream, std::function<CUresult()> run,
                 std::vector<std::shared_ptr<Marker>> after, std::shared_ptr<Marker> *marker) {
  if (stream->capture) {
    stream->joined = false;
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    stream->capture->graph->work.push_back(std::move(run));
    return CUDA_SUCCESS;
  }
  if (CUresult implicit = refuse_implicit(stream)) return implicit;
  // The legacy stream and the blocking streams of a context wait for each other.
  if (stream->legacy) {
    for_each_stream(stream->context, [&](auto &other) {
      if (other != stream && !(other->flags & CU_STREAM_NON_BLOCKING) && !other->idle()) after.push_back(other->last);
    });
  } else if (!(stream->flags & CU_STREAM_NON_BLOCKING)) {
    auto &legacy = stream->context->legacy;
    if (legacy && !legacy->idle()) after.push_back(legacy->last);
  }
  stream->last = std::make_shared<Marker>();
  stream->queue.push_back({std::move(run), std::move(after), stream->last});
  if (marker) *marker = stream->last;
  if (!stream->worker.joinable()) stream->worker = std::thread(work, stream);
  state().changed.notify_all();
  return CUDA_SUCCESS;
}

void wait_for(const std::shared_ptr<Marker> &marker, std::unique_lock<std::mutex> &lock) {
  if (!marker) return;
  auto kept = marker;
  state().changed.wait(lock, [&] { return kept->done; });
}

static std::vector<std::shared_ptr<Marker>> pending(Context *context) {
  std::vector<std::shared_ptr<Marker>> all;
  for_each_stream(context, [&](auto &stream) {
    if (!stream->idle()) all.push_back(stream->last);
  });
  return all;
}

void wait_for_context(Context *context, std::unique_lock<std::mutex> &lock) {
  for (auto &marker : pending(context)) wait_for(marker, lock);
}

static void close_stream(Stream *stream) {
  stream->closed = true;  // its thread ends after the queued work
  if (stream->worker.joinable()) streams().ending.emplace(stream->context, std::move(stream->worker));
  state().changed.notify_all();
}

std::shared_ptr<Marker> mark_context(Context *context) {
  auto all = pending(context);
  if (all.empty()) return nullptr;
  auto collector = make_stream(context, CU_STREAM_NON_BLOCKING);
  std::shared_ptr<Marker> marker;
  enqueue(
      collector, [] { return CUDA_SUCCESS; }, std::move(all), &marker);
  close_stream(collector.get());
  return marker;
}

void release_context_streams(Context *context) {
  State &s = state();
  for (auto it = streams().created.begin(); it != streams().created.end();) {
    if (it->second->context != context) {
      ++it;
      continue;
    }
    close_stream(it->second.get());
    s.dropped++;
    it = streams().created.erase(it);
  }
  std::erase_if(streams().per_thread, [&](auto &entry) {
    if (entry.first.first != context) return false;
    close_stream(entry.second.get());
    return true;
  });
  if (context->legacy) close_stream(context->legacy.get());
  context->legacy = nullptr;
}

void join_closed_streams(Context *context, std::unique_lock<std::mutex> &lock) {
  std::vector<std::thread> ending;
  auto [first, last] = streams().ending.equal_range(context);
  for (auto it = first; it != last; ++it) ending.push_back(std::move(it->second));
  streams().ending.erase(first, last);
  lock.unlock();
  for (std::thread &thread : ending) thread.join();
  lock.lock();
}

uint64_t created_streams() { return streams().created.size(); }

CUresult refuse_implicit(const std::shared_ptr<Stream> &stream, bool spoil) {
  if (!stream->legacy) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for_each_stream(stream->context, [&](auto &other) {
    if (!other->capture || (other->flags & CU_STREAM_NON_BLOCKING)) return;
    if (spoil) other->capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  });
  return result;
}

void for_captures(const std::function<void(Capture &)> &each) {
  for_each_stream(nullptr, [&](auto &stream) {
    if (stream->capture && stream->capture->origin == stream.get()) each(*stream->capture);
  });
}

// The streams that take part in a capture.
std::vector<std::shared_ptr<Stream>> streams_in(const Capture *capture) {
  std::vector<std::shared_ptr<Stream>> all;
  for_each_stream(nullptr, [&](auto &stream) {
    if (stream->capture.get() == capture) all.push_back(stream);
  });
  return all;
}

}  // namespace fake

extern "C" {

// The host may not ask about a stream, or wait for it, where a capture is spoiled by that.
static CUresult refuse_question(const std::shared_ptr<Stream> &stream) {
  if (stream->capture) {
    stream->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (CUresult implicit = refuse_implicit(stream)) return implicit;
  return refuse_during_capture();
}

static CUresult add_stream(CUstream *out, Context *context, unsigned int flags) {
  auto stream = make_stream(context, flags);
  *out = reinterpret_cast<CUstream>(stream.get());
  streams().created[*out] = stream;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int) {
  FAKE_CUDA_IN_CONTEXT(cuStreamCreateWithPriority, !out || flags > 1);
  return add_stream(out, context, flags);
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags) {
  FAKE_CUDA_IN_CONTEXT(cuStreamCreate, !out || flags > 1);
  return add_stream(out, context, flags);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  FAKE_CUDA_IN_CONTEXT(cuStreamDestroy_v2);
  auto it = streams().created.find(handle);
  if (it == streams().created.end()) return unknown_stream(handle);
  if (it->second->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  auto stream = it->second;
  streams().created.erase(it);
  std::thread ending;
  if (stream->idle()) ending = std::move(stream->worker);  // else the context's end waits for it
  close_stream(stream.get());
  lock.unlock();
  if (ending.joinable()) ending.join();
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  FAKE_CUDA_ON_STREAM(cuStreamSynchronize, handle);
  if (CUresult refused = refuse_question(stream)) return refused;
  if (stream->legacy)  // its place in the order is behind every blocking stream
    if (CUresult wrong = enqueue(stream, [] { return CUDA_SUCCESS; })) return wrong;
  wait_for(stream->last, lock);
  return stream->context->error;
}

CUresult cuStreamQuery(CUstream handle) {
  FAKE_CUDA_ON_STREAM(cuStreamQuery, handle);
  if (CUresult refused = refuse_question(stream)) return refused;
  bool idle = stream->idle();
  if (stream->legacy)
    for_each_stream(stream->context, [&](auto &other) {
      if (!(other->flags & CU_STREAM_NON_BLOCKING) && !other->idle()) idle = false;
    });
  return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *out) {
  FAKE_CUDA_ENTER(cuStreamGetCtx, !out);
  auto it = streams().created.find(handle);
  if (it != streams().created.end()) {
    *out = reinterpret_cast<CUcontext>(it->second->context);
    return CUDA_SUCCESS;
  }
  if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) return unknown_stream(handle);
  FAKE_CUDA_CONTEXT(context);
  *out = reinterpret_cast<CUcontext>(context);
  return CUDA_SUCCESS;
}

// As an H200 answers.
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  FAKE_CUDA_ENTER(cuCtxGetStreamPriorityRange);
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn fn, void *user) {
  FAKE_CUDA_ON_STREAM(cuLaunchHostFunc, handle, !fn);
  return enqueue(stream, [fn, user] {
    fn(user);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
