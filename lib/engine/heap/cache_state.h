// SPDX-License-Identifier: Apache-2.0
// What the files of the thread caches share.
#ifndef GMM_ENGINE_HEAP_CACHE_STATE_H
#define GMM_ENGINE_HEAP_CACHE_STATE_H

#include "engine/heap/thread_cache.h"

#if defined(__SANITIZE_THREAD__)
#define GMM_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GMM_THREAD_SANITIZER 1
#endif
#endif

namespace gmm {

#if defined(GMM_THREAD_SANITIZER)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// Variables of the initial-exec model are one load away; three words fit the room that the C library keeps for libraries
// opened late.
// NOLINTNEXTLINE(bugprone-dynamic-static-initializers): constinit says that it is not
__attribute__((tls_model("initial-exec"))) extern constinit thread_local ThreadState *t_state;
// The heap used last. A serial is never used again, so the cache of a heap that ended is never found.
// NOLINTNEXTLINE(bugprone-dynamic-static-initializers): constinit says that it is not
__attribute__((tls_model("initial-exec"))) extern constinit thread_local ThreadTableEntry t_last;

// What the calling thread has, made now; NULL without memory.
ThreadState *make_thread_state();
// Whether revokers make running threads pass a barrier, so that owners need none.
bool expedited_barriers();

// Everything in the cache goes to the heap. By the owner inside enter(), or by a revoker, who passes a list: blocks that the
// owner's per-thread stream freed go there, as far as there is host memory, or stay, when the list is NULL.
void empty_cache(HeapCache &cache, bool owner, Vector<CacheEntry> *per_thread);
// By another thread, with caches_mutex held: revoke some caches, pass one barrier, then empty each of them, which waits for its
// owner to leave the fast path.
void revoke(HeapCache &cache);
void pass_barrier();
void empty_revoked(HeapCache &cache, Vector<CacheEntry> *per_thread);
// Its counters go to the heap's, its memory to the system; with caches_mutex held.
void end_cache(HeapCache &cache);

}  // namespace gmm
#endif
