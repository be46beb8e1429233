// SPDX-License-Identifier: Apache-2.0
// Graphs, executable graphs, and user objects.
#include "graph.h"

#include <deque>

#include "stream.h"

using namespace fake;

namespace {

// With a lock of its own: the last reference may go where State's lock is held, and where it is not.
struct Ending {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<CUhostFn, void *>> calls;
  uint64_t live = 0;
  bool has_thread = false;
};
Ending &ending() { return forever<Ending>(); }

// One thread for all destructors; the driver promises no moment for them.
void run_destructors() {
  forbid_the_driver();
  pthread_setname_np(pthread_self(), "fake driver");  // a test that counts threads knows it by that
  Ending &all = ending();
  std::unique_lock<std::mutex> lock(all.mutex);
  for (;;) {
    all.changed.wait(lock, [&] { return !all.calls.empty(); });
    const auto [fn, user] = all.calls.front();
    all.calls.pop_front();
    lock.unlock();
    fn(user);
    lock.lock();
    --all.live;
  }
}

References &of_program() { return forever<References>(); }

// Moves references, or copies them.
bool pass_on(References &from, References *to, CUuserObject object, unsigned count, bool moves) {
  auto it = from.find(object);
  if (count == 0 || it == from.end() || (moves && it->second.size() < count)) return false;
  const auto passed = it->second.front();
  if (to) (*to)[object].insert((*to)[object].end(), count, passed);
  if (!moves) return true;
  it->second.resize(it->second.size() - count);
  if (it->second.empty()) from.erase(it);
  return true;
}

struct Graphs {
  std::map<CUgraph, std::shared_ptr<Graph>> graphs;
  std::map<CUgraphExec, std::shared_ptr<Graph>> executables;
  uint64_t next = 1;
};
Graphs &all_graphs() { return forever<Graphs>(); }

Graph *find_graph(CUgraph handle) {
  auto it = all_graphs().graphs.find(handle);
  return it == all_graphs().graphs.end() ? nullptr : it->second.get();
}

}  // namespace

namespace fake {

UserObject::UserObject(CUhostFn its_fn, void *its_user) : fn(its_fn), user(its_user) {
  std::lock_guard<std::mutex> guard(ending().mutex);
  ++ending().live;
}

UserObject::~UserObject() {
  Ending &all = ending();
  std::lock_guard<std::mutex> guard(all.mutex);
  all.calls.emplace_back(fn, user);
  if (!all.has_thread) std::thread(run_destructors).detach();
  all.has_thread = true;
  all.changed.notify_all();
}

uint64_t live_user_objects() {
  std::lock_guard<std::mutex> guard(ending().mutex);
  return ending().live;
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
  if (CUresult unsafe = refuse_during_capture()) return unsafe;  // it allocates
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
  const auto object = std::make_shared<UserObject>(destroy, user);
  *out = reinterpret_cast<CUuserObject>(object.get());
  of_program()[*out].assign(references, object);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  FAKE_CUDA_ENTER(cuUserObjectRelease);
  return pass_on(of_program(), nullptr, object, count, true) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned int count, unsigned int flags) {
  FAKE_CUDA_ENTER(cuGraphRetainUserObject, flags & ~static_cast<unsigned>(CU_GRAPH_USER_OBJECT_MOVE));
  Graph *graph = find_graph(handle);
  const bool moves = (flags & CU_GRAPH_USER_OBJECT_MOVE) != 0;
  const bool done = graph && pass_on(of_program(), &graph->objects, object, count, moves);
  return done ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
