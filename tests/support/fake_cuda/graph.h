// SPDX-License-Identifier: Apache-2.0
// The work that a capture records, and the objects that a graph keeps alive.
#ifndef FAKE_CUDA_GRAPH_H
#define FAKE_CUDA_GRAPH_H

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "state.h"

namespace fake {

// A thing of the program's whose destructor runs on a thread of the driver's, a while after the last reference went.
struct UserObject {
  CUhostFn fn;
  void *user;
  UserObject(CUhostFn its_fn, void *its_user);
  ~UserObject();  // on any thread, with or without the lock of State
};
using References = std::map<CUuserObject, std::vector<std::shared_ptr<UserObject>>>;
uint64_t live_user_objects();  // whose destructor has not returned yet

// The pieces of work in the order of their capture, which fits every dependency among them. An executable graph is a
// copy: both hold references, and so does each launch until it is done.
struct Graph {
  std::vector<std::function<CUresult()>> work;
  References objects;
};

// The handle of a graph, made at its first use; of a graph that is still being captured too.
CUgraph handle_of(const std::shared_ptr<Graph> &graph);
// Drops the reference of the handle; other holders of the graph keep it. False for a handle that is none.
bool drop_graph(CUgraph graph);
uint64_t live_graphs();  // and executable ones

}  // namespace fake
#endif
