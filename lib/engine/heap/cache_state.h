// SPDX-License-Identifier: Apache-2.0
// What the files of the thread caches share.
#ifndef GMM_ENGINE_HEAP_CACHE_STATE_H
#define GMM_ENGINE_HEAP_CACHE_STATE_H

#include "base/barrier.h"
#include "base/vector.h"
#include "engine/heap/thread_cache.h"

namespace gmm {

// Everything in the cache goes to the heap. By the owner inside enter(), or by a revoker, who passes a list: blocks that the
// owner's per-thread stream freed go there, as far as there is host memory, or stay, when the list is NULL.
void empty_cache(HeapCache &cache, bool owner, Vector<CacheEntry> *per_thread);
// By another thread, with caches_mutex held: revoke some caches, pass one barrier, then empty each of them, which waits for its
// owner to leave the fast path.
void revoke(HeapCache &cache);
void empty_revoked(HeapCache &cache, Vector<CacheEntry> *per_thread);
// Its counters go to the heap's, its memory to the system; with caches_mutex held.
void end_cache(HeapCache &cache);

}  // namespace gmm
#endif
