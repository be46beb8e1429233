// SPDX-License-Identifier: Apache-2.0
// Graphs, executable graphs, and user objects.
#include "graph.h"

#include <deque>

#include "stream.h"

using namespace fake;

namespace {

struct Counted {
  CUhostFn fn;
  void *user;
  unsigned references;
};

// With a lock of their own: a reference may go where State's lock is held, and where it is not.
struct Objects {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<CUuserObject, Counted> live;
  std::deque<Counted> ending;
  uint64_t running = 0;
  uint64_t next = 1;
  bool has_thread = false;
};
Objects &objects() {
  static auto *all = new Objects;
  return *all;
}

// One thread for all destructors; the driver promises no moment for them.
void run_destructors() {
  forbid_the_driver();
  pthread_setname_np(pthread_self(), "fake driver");  // a test that counts threads knows it by that
  Objects &o = objects();
  std::unique_lock<std::mutex> lock(o.mutex);
  for (;;) {
    o.changed.wait(lock, [&] { return !o.ending.empty(); });
    const Counted next = o.ending.front();
    o.ending.pop_front();
    lock.unlock();
    if (state().configuration.delay_us)
      std::this_thread::sleep_for(std::chrono::microseconds(state().configuration.delay_us));
    next.fn(next.user);
    lock.lock();
    --o.running;
  }
}

struct Graphs {
  std::map<CUgraph, std::shared_ptr<Graph>> graphs;
  std::map<CUgraphExec, std::shared_ptr<Graph>> executables;
  uint64_t next = 1;
};
Graphs &all_graphs() {
  static auto *all = new Graphs;
  return *all;
}

Graph *find_graph(CUgraph handle) {
  auto it = all_graphs().graphs.find(handle);
  return it == all_graphs().graphs.end() ? nullptr : it->second.get();
}

}  // namespace

namespace fake {

UserObject::UserObject(CUhostFn fn, void *user, unsigned references) {
  Objects &o = objects();
  std::lock_guard<std::mutex> guard(o.mutex);
  handle_ = reinterpret_cast<CUuserObject>(o.next++ << 4);
  o.live[handle_] = {fn, user, references};
  ++o.running;
}

bool UserObject::retain(CUuserObject object, unsigned count) {
  std::lock_guard<std::mutex> guard(objects().mutex);
  auto it = objects().live.find(object);
  if (it == objects().live.end()) return false;
  it->second.references += count;
  return true;
}

bool UserObject::release(CUuserObject object, unsigned count) {
  Objects &o = objects();
  std::lock_guard<std::mutex> guard(o.mutex);
  auto it = o.live.find(object);
  if (it == o.live.end() || it->second.references < count) return false;
  if ((it->second.references -= count) != 0) return true;
  o.ending.push_back(it->second);
  o.live.erase(it);
  if (!o.has_thread) std::thread(run_destructors).detach();
  o.has_thread = true;
  o.changed.notify_all();
  return true;
}

uint64_t UserObject::live() {
  std::lock_guard<std::mutex> guard(objects().mutex);
  return objects().running;
}

Graph::Graph(const Graph &other) : work(other.work), objects(other.objects) {
  for (auto &[object, count] : objects) UserObject::retain(object, count);
}

Graph::~Graph() {
  for (auto &[object, count] : objects) UserObject::release(object, count);
}

CUgraph handle_of(const std::shared_ptr<Graph> &graph) {
  Graphs &all = all_graphs();
  for (auto &[handle, known] : all.graphs)
    if (known == graph) return handle;
  CUgraph handle = reinterpret_cast<CUgraph>(all.next++ << 4);
  all.graphs[handle] = graph;
  return handle;
}

bool drop_graph(CUgraph graph) { return all_graphs().graphs.erase(graph) != 0; }
uint64_t live_graphs() { return all_graphs().graphs.size() + all_graphs().executables.size(); }

}  // namespace fake

extern "C" {

CUresult cuGraphDestroy(CUgraph graph) {
  FAKE_CUDA_ENTER(cuGraphDestroy);
  return drop_graph(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph handle, unsigned long long flags) {
  FAKE_CUDA_ENTER(cuGraphInstantiateWithFlags);
  Graph *graph = find_graph(handle);
  if (!out || !graph || flags) return CUDA_ERROR_INVALID_VALUE;
  FAKE_CUDA_CONTEXT(context);
  if (CUresult unsafe = refuse_during_capture(nullptr)) return unsafe;  // it allocates
  *out = reinterpret_cast<CUgraphExec>(all_graphs().next++ << 4);
  all_graphs().executables[*out] = std::make_shared<Graph>(*graph);
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  FAKE_CUDA_ENTER(cuGraphExecDestroy);
  return all_graphs().executables.erase(executable) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream handle) {
  FAKE_CUDA_ENTER(cuGraphLaunch);
  auto it = all_graphs().executables.find(executable);
  if (it == all_graphs().executables.end()) return CUDA_ERROR_INVALID_VALUE;
  FAKE_CUDA_CONTEXT(context);
  FAKE_CUDA_STREAM(stream, handle);
  // A launch that is captured would be a child graph.
  if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
  return enqueue(stream, [graph = it->second] {
    for (auto &piece : graph->work)
      if (CUresult wrong = piece()) return wrong;
    return CUDA_SUCCESS;
  });
}

CUresult cuUserObjectCreate(CUuserObject *out, void *user, CUhostFn destroy, unsigned int references,
                            unsigned int flags) {
  FAKE_CUDA_ENTER(cuUserObjectCreate, !out || !destroy || references == 0 || references > INT32_MAX ||
                                          flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  *out = UserObject(destroy, user, references).handle();
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  FAKE_CUDA_ENTER(cuUserObjectRetain);
  return count != 0 && UserObject::retain(object, count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  FAKE_CUDA_ENTER(cuUserObjectRelease);
  return count != 0 && UserObject::release(object, count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned int count, unsigned int flags) {
  FAKE_CUDA_ENTER(cuGraphRetainUserObject);
  Graph *graph = find_graph(handle);
  if (!graph || count == 0 || (flags & ~static_cast<unsigned>(CU_GRAPH_USER_OBJECT_MOVE)))
    return CUDA_ERROR_INVALID_VALUE;
  if (!(flags & CU_GRAPH_USER_OBJECT_MOVE) && !UserObject::retain(object, count)) return CUDA_ERROR_INVALID_VALUE;
  graph->objects[object] += count;
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject object, unsigned int count) {
  FAKE_CUDA_ENTER(cuGraphReleaseUserObject);
  Graph *graph = find_graph(handle);
  if (!graph || graph->objects[object] < count || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if ((graph->objects[object] -= count) == 0) graph->objects.erase(object);
  return UserObject::release(object, count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
