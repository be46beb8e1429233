// SPDX-License-Identifier: Apache-2.0
// Streams: each has a thread that does its work in order, later than the call that asked for it.
// The lock of State::mutex is held for everything here but a stream's work itself.
#ifndef FAKE_CUDA_STREAM_H
#define FAKE_CUDA_STREAM_H

#include <chrono>
#include <deque>
#include <functional>
#include <thread>

#include "graph.h"
#include "state.h"

namespace fake {

// The end of one piece of work.
struct Marker {
  bool done = false;
  std::chrono::steady_clock::time_point when;
};

struct Work {
  std::function<CUresult()> run;
  std::vector<std::shared_ptr<Marker>> after;  // beside the earlier work of the stream
  std::shared_ptr<Marker> marker;
};

struct Capture {
  uint64_t id;
  CUstreamCaptureMode mode;
  std::thread::id thread;
  Stream *origin;
  std::shared_ptr<Graph> graph;  // null when the capture has ended
  bool invalidated = false;
};

struct Stream {
  Context *context;
  unsigned flags;
  bool legacy = false;
  bool closed = false;
  std::thread worker;  // started with the first work
  std::deque<Work> queue;
  std::shared_ptr<Marker> last;  // null when nothing was ever queued
  std::shared_ptr<Capture> capture;
  bool joined = false;  // to the origin again, by an event
  bool idle() const { return !last || last->done; }
};

struct SharedPage;  // of an event between processes

struct Event {
  Context *context;
  unsigned flags;
  std::shared_ptr<Marker> marker;    // of the last record; null: never recorded
  std::shared_ptr<Capture> capture;  // set when the last record was captured
  std::weak_ptr<Stream> recorded_in;
  std::shared_ptr<SharedPage> page;  // made for other processes, or made by one
  bool imported = false;
};

// The stream that a handle means for the calling thread: a created one, or a default one of `context`.
CUresult find_stream(CUstream handle, Context *context, std::shared_ptr<Stream> *out);
// Queues work, or records it when the stream captures. `marker` may be null.
CUresult enqueue(const std::shared_ptr<Stream> &stream, std::function<CUresult()> run,
                 std::vector<std::shared_ptr<Marker>> after = {}, std::shared_ptr<Marker> *marker = nullptr);
void wait_for(const std::shared_ptr<Marker> &marker, std::unique_lock<std::mutex> &lock);
void wait_for_context(Context *context, std::unique_lock<std::mutex> &lock);
// A marker behind all that the context's streams have queued; null when they are idle.
std::shared_ptr<Marker> mark_context(Context *context);
void release_context_streams(Context *context);
// Waits until the threads of the context's closed streams are gone, without the lock.
void join_closed_streams(Context *context, std::unique_lock<std::mutex> &lock);
void release_context_events(Context *context);
std::shared_ptr<Event> find_event(CUevent handle);
CUevent add_event(std::shared_ptr<Event> event);

// Of an event between processes: only the process that made it records it.
std::shared_ptr<SharedPage> make_page();
uint64_t next_record(SharedPage &page);               // its number, counted from 1
void pass_record(SharedPage &page, uint64_t number);  // on a stream's thread
uint64_t last_record(const SharedPage &page);
bool has_passed(const SharedPage &page, uint64_t number);
// Without the lock of the state. Ends also when the maker has ended.
void wait_for_record(const SharedPage &page, uint64_t number);
// By the program, and not destroyed yet.
uint64_t created_streams();
uint64_t created_events();

// The error of a call that capture forbids to the calling thread, on any device. The call spoils the capture.
CUresult refuse_during_capture();
// Waiting for a whole context is wrong while one of its streams captures, whatever the mode.
CUresult refuse_capturing_context(Context *context);
// Work on the legacy stream would wait for blocking streams, which must not capture.
CUresult refuse_implicit(const std::shared_ptr<Stream> &stream, bool spoil = true);

// The calling thread does a stream's work: it may not call the driver.
bool on_stream_worker();
// From here on the calling thread may not.
void forbid_the_driver();

}  // namespace fake
#endif
