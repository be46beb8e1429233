/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stats.h
 * Limits, counters, snapshots, traces, and the return of free memory to the driver.
 */
#ifndef GMM_STATS_H
#define GMM_STATS_H

#include <gmm/context.h>
#include <gmm/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The part of a context that a limit or a count concerns: one device or all, one tag or all, one kind or all.
 *
 * NULL in place of a scope means the whole context, as a scope without flags does.
 */
typedef struct gmm_scope_desc {
  uint32_t struct_size;
  uint32_t flags; /**< GMM_SCOPE_*: which of the fields below apply; the others must be 0; 0: the whole context */
  gmm_device device;
  gmm_tag tag;
  gmm_kind kind;
  uint32_t reserved;
} gmm_scope_desc;

enum { GMM_SCOPE_DEVICE = 1u << 0, GMM_SCOPE_TAG = 1u << 1, GMM_SCOPE_KIND = 1u << 2 };

#define GMM_NO_LIMIT UINT64_MAX

/**
 * Limits the bytes that the context, a device, a tag, or a tag on a device may hold from the driver, over all kinds.
 *
 * A limit below the bytes that are held now only stops growth. An allocation must fit into every limit that it falls
 * under.
 *
 * @param scope  NULL: the whole context.
 * @param bytes  ::GMM_NO_LIMIT removes the limit.
 * Errors: INVALID_FLAGS (the scope has GMM_SCOPE_KIND), INVALID_DESCRIPTOR, INVALID_DEVICE, INVALID_TAG,
 * OUT_OF_HOST_MEMORY, FORKED.
 */
GMM_API gmm_result gmm_limit_set(gmm_context *context, const gmm_scope_desc *scope, uint64_t bytes) GMM_NOEXCEPT;

/** The failing allocation of an out-of-memory handler. struct_size is the library's. */
typedef struct gmm_oom_info {
  uint32_t struct_size;
  gmm_device device;
  gmm_kind kind;
  gmm_tag tag;
  uint64_t requested_bytes; /**< bytes of the allocation */
  uint64_t reserved_bytes;  /**< bytes that the context holds on the device */
  uint32_t attempt;         /**< 1 at the first call for this allocation */
  gmm_result cause;         /**< OUT_OF_MEMORY, OUT_OF_HOST_MEMORY or LIMIT_EXCEEDED */
} gmm_oom_info;

/**
 * An out-of-memory handler: returns 1 to try again, or 0 to let the allocation fail.
 *
 * It runs on the allocating thread without a lock held. It may free, pause and trim through gmm. It must not allocate
 * from the same context.
 */
typedef int32_t (*gmm_oom_fn)(void *user, const gmm_oom_info *info);

/**
 * Sets the handler that an allocation asks if a trim did not make enough memory free.
 *
 * gmm asks the handler at most 100 times for one allocation.
 *
 * @param fn  NULL: no handler.
 * Errors: NULL_ARGUMENT (context), BUSY (the call comes from inside the handler), FORKED.
 * Threads: the call returns when no thread is inside the earlier handler. That handler's `user` may go then.
 */
GMM_API gmm_result gmm_context_set_oom_handler(gmm_context *context, gmm_oom_fn fn, void *user) GMM_NOEXCEPT;

/** The answer of gmm_stats_query(). */
typedef struct gmm_stats_info {
  uint32_t struct_size;
  uint32_t live_tags;  /**< tags that have memory in the scope */
  uint64_t live_bytes; /**< bytes requested and not freed */
  uint64_t live_blocks;
  uint64_t peak_live_bytes; /**< highest live_bytes at any growth of a heap or call of gmm_stats_query() */
  uint64_t cached_bytes;    /**< bytes that are free and held for later allocations */
  uint64_t reserved_bytes;  /**< bytes held from the driver */
  uint64_t peak_reserved_bytes;
  uint64_t paused_bytes;   /**< bytes of addresses without memory */
  uint64_t pinned_bytes;   /**< the caller's own memory; only of the whole context */
  uint64_t imported_bytes; /**< other processes' memory; only of the whole context */
  uint64_t allocations;    /**< calls that succeeded */
  uint64_t frees;
  uint64_t failures;      /**< allocations that failed because memory or a limit was short */
  uint64_t extents;       /**< driver allocations held */
  uint64_t backend_calls; /**< driver and system calls that allocate, map, unmap or free; only of the whole context */
  uint64_t limit_bytes;   /**< of gmm_limit_set() for exactly this scope; ::GMM_NO_LIMIT: none */
  uint64_t foreign_bytes; /**< VMM memory that gmm gave up and others hold: see gmm_tag_info */
} gmm_stats_info;

/**
 * Adds up the counters of a scope.
 *
 * Each thread has its own counters, and the call sums them up within microseconds. An allocation that runs at the same
 * time may be counted or not. A heap takes its counters along when gmm_heap_destroy() or gmm_tag_destroy() ends it.
 *
 * @param scope  NULL: the whole context.
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, INVALID_DEVICE, INVALID_TAG, INVALID_KIND, INVALID_FLAGS, FORKED.
 */
GMM_API gmm_result gmm_stats_query(gmm_context *context, const gmm_scope_desc *scope, gmm_stats_info *out) GMM_NOEXCEPT;

/** Receives a piece of text: returns 0 to continue, or any other value to stop. It may call gmm. */
typedef int32_t (*gmm_write_fn)(void *user, const char *text, uint64_t size);

/**
 * Writes the metrics of the context as Prometheus text.
 *
 * Gauges and counters of the heaps have the labels `device`, `UUID`, `kind` and `tag`. UUID is that of DCGM's metrics,
 * so `gmm_reserved_bytes` joins `DCGM_FI_DEV_FB_USED`. They count as gmm_stats_query() does. Histograms tell how long
 * pauses, resumes and requests of leases took, in seconds. A held pause or resume counts with the wait for its
 * decision. Every metric has a line of help in the text.
 *
 * GMM_METRICS=folder in the environment writes the text of each context to a file of its own, `gmm-metrics-*.prom`, at
 * its creation and then every 5 s: the folder of node_exporter's textfile collector. Each file is written under another
 * name and then renamed. The file goes when the context ends; that of a process that was killed goes when the next
 * process writes there. A folder that cannot be written costs one line of the log.
 *
 * @param fn  receives the text piece by piece, on the calling thread.
 * Errors: NULL_ARGUMENT, IO (`fn` stopped), OUT_OF_HOST_MEMORY, FORKED.
 */
GMM_API gmm_result gmm_metrics_write(gmm_context *context, gmm_write_fn fn, void *user) GMM_NOEXCEPT;

/** The answer of gmm_snapshot_query(). */
typedef struct gmm_snapshot_info {
  uint32_t struct_size;
  gmm_backend backend;
  uint64_t heap_count;
  uint64_t extent_count; /**< driver allocations, which gmm_snapshot_query_extent() counts from 0 */
  uint64_t block_count;  /**< live blocks, which gmm_snapshot_query_block() counts from 0 */
  uint64_t live_bytes;   /**< bytes requested */
} gmm_snapshot_info;

/** The answer of gmm_snapshot_query_block(). */
typedef struct gmm_block_info {
  uint32_t struct_size;
  gmm_kind kind;
  gmm_device device;
  gmm_tag tag;
  gmm_state state; /**< ACTIVE or PAUSED at the time of the snapshot */
  uint32_t flags;  /**< 0 */
  void *address;
  uint64_t size;          /**< bytes requested */
  uint64_t reserved_size; /**< bytes that the block takes, rounding included */
  gmm_heap *heap;         /**< of gmm_heap_create(), which may have been destroyed since; NULL: gmm_alloc() */
  char name[64];          /**< of gmm_name(); empty: none */
} gmm_block_info;

/** The answer of gmm_snapshot_query_extent(). */
typedef struct gmm_extent_info {
  uint32_t struct_size;
  gmm_kind kind;
  gmm_device device; /**< of its heap */
  gmm_tag tag;
  gmm_device location; /**< of its memory: gmm_move() changes it */
  gmm_state state;     /**< ACTIVE, or PAUSED: addresses without memory */
  uint32_t importers;  /**< mappings of other processes */
  uint32_t flags;      /**< 0 */
  void *address;
  uint64_t size;
  gmm_heap *heap; /**< as gmm_block_info::heap */
} gmm_extent_info;

/**
 * Copies the state of a scope's heaps: every extent and live block.
 *
 * Each heap is copied at one moment, and its allocations wait for that. Different heaps are copied one after the other.
 *
 * @param scope  NULL: the whole context.
 * Errors: as gmm_stats_query(), OUT_OF_HOST_MEMORY.
 * Ownership: the caller destroys the snapshot with gmm_snapshot_destroy(). A snapshot keeps its context alive.
 */
GMM_NODISCARD GMM_API gmm_result gmm_snapshot_create(gmm_context *context, const gmm_scope_desc *scope,
                                                     gmm_snapshot **out) GMM_NOEXCEPT;

/**
 * Describes a snapshot: the numbers of its heaps, extents and blocks.
 *
 * Errors: NULL_ARGUMENT, INVALID_HANDLE, INVALID_DESCRIPTOR, FORKED.
 */
GMM_API gmm_result gmm_snapshot_query(gmm_snapshot *snapshot, gmm_snapshot_info *out) GMM_NOEXCEPT;

/**
 * Describes a block of a snapshot.
 *
 * @param index  from 0; below gmm_snapshot_info::block_count.
 * Errors: as gmm_snapshot_query(), INVALID_VALUE (index).
 */
GMM_API gmm_result gmm_snapshot_query_block(gmm_snapshot *snapshot, uint64_t index, gmm_block_info *out) GMM_NOEXCEPT;

/**
 * Describes an extent of a snapshot.
 *
 * @param index  from 0; below gmm_snapshot_info::extent_count.
 * Errors: as gmm_snapshot_query_block().
 */
GMM_API gmm_result gmm_snapshot_query_extent(gmm_snapshot *snapshot, uint64_t index, gmm_extent_info *out) GMM_NOEXCEPT;

/**
 * Writes a snapshot as a JSON object that describes every heap, extent and live block.
 *
 * The object's "format" is "gmm-snapshot" and its "version" is 1. lib/engine/trace/FORMAT.md describes its fields.
 *
 * @param fn  receives the text piece by piece, on the calling thread.
 * Errors: NULL_ARGUMENT, INVALID_HANDLE, IO (`fn` stopped), FORKED.
 */
GMM_API gmm_result gmm_snapshot_write(gmm_snapshot *snapshot, gmm_write_fn fn, void *user) GMM_NOEXCEPT;

/**
 * Destroys a snapshot.
 *
 * @param snapshot  NULL is allowed and does nothing.
 * Errors: INVALID_HANDLE, FORKED.
 * Threads: no other thread may use the snapshot during the call.
 */
GMM_API gmm_result gmm_snapshot_destroy(gmm_snapshot *snapshot) GMM_NOEXCEPT;

/**
 * Functions that hear of each block, for the memory view of a profiler. Each may be NULL.
 *
 * They run on the calling thread, with no lock of gmm held, and must not call gmm. `block` is valid until they return,
 * and its `heap` is NULL. gmm_reset() ends blocks without a call. If other threads allocate or free while the trace
 * begins, an allocation may come twice and a free not at all.
 */
typedef struct gmm_block_listener {
  /** After an allocation, before the program has the block. Blocks that live when the trace begins come first. */
  void (*allocated)(void *user, const gmm_block_info *block, gmm_stream stream);
  /** Before a free, so no other thread has the address yet. If the free then fails, `allocated` follows. */
  void (*freed)(void *user, const gmm_block_info *block, gmm_stream stream);
  void *user; /**< passed to both */
} gmm_block_listener;

/**
 * Describes a trace for gmm_trace_begin().
 *
 * With `stack_bytes` = n, of n allocated bytes one allocation has its stack, and each allocation of 2n bytes has one.
 */
typedef struct gmm_trace_desc {
  uint32_t struct_size;
  uint32_t flags;       /**< must be 0 */
  uint64_t stack_bytes; /**< 524288 (512 KiB) is usual; 1: every allocation has a stack; 0: none has */
  gmm_block_listener blocks;
} gmm_trace_desc;

/**
 * Starts a trace: a record of the context's operations in a file.
 *
 * The trace records every allocation (address, size, alignment, stream, heap), free and gmm_record_use() with its
 * thread and time. It also records every pause, resume, trim, compaction, reset, heap and end of a thread, and the
 * names of tags and blocks. GMM_TRACE=file in the environment traces each context from its creation to its end. gmm
 * replaces `%p` in that name by the process id. The second context of a process writes `file.2`, the third `file.3`.
 *
 * A trace begins with the blocks that are live, so one that ends at once is a snapshot. Those of a tag that is being
 * paused or resumed at that moment are left out.
 *
 * The file is binary and little-endian and starts with "gmmtrace" and a version (1). lib/engine/trace/FORMAT.md
 * describes it. The command `gmm replay` runs a trace, and `gmm trace` prints it as text.
 *
 * Each thread collects 64 KiB before it writes. A program that is killed loses the last events of each thread; the file
 * stays readable. A child of fork() writes nothing. gmm counts the events that it could not write, and gmm_trace_end()
 * reports them. A failed write raises neither SIGXFSZ nor SIGPIPE in the program.
 *
 * With `desc->stack_bytes` the trace has the call stacks of allocations and of calls that failed. `gmm trace` finds
 * their functions and lines when it reads the file, by the build-ids of the program and its libraries.
 * GMM_TRACE_STACKS=bytes does so for GMM_TRACE. A live block keeps its stack after the trace, too. Snapshots, later
 * traces and the report of a lack of memory name it. GMM_DEBUG=stacks does so for each block, without a trace.
 *
 * @param path  the file, which is created or replaced; NULL: none, and desc has stacks or functions.
 * @param desc  NULL: no stacks.
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, INVALID_FLAGS, BUSY (the context records already, or another trace writes
 * the file), IO, OUT_OF_HOST_MEMORY, FORKED.
 */
GMM_API gmm_result gmm_trace_begin(gmm_context *context, const char *path, const gmm_trace_desc *desc) GMM_NOEXCEPT;

/**
 * Ends the trace and writes all recorded events of every thread to its file.
 *
 * Errors: UNBALANCED (no trace runs), IO (the file lacks events; the message says how many and why), FORKED.
 * Threads: the call waits for frees and functions of gmm_block_listener that other threads are inside of.
 */
GMM_API gmm_result gmm_trace_end(gmm_context *context) GMM_NOEXCEPT;

/** Adds a frame to a stack: the names of a function and of its file as UTF-8, and the line. They are copied. */
typedef void (*gmm_frame_fn)(void *to, const char *name, const char *file, uint32_t line);

/**
 * A function that names what an interpreter runs on the calling thread: it calls `add(to, ...)` for each frame, the
 * innermost first. Any thread that allocates or frees calls it, with no lock of gmm. It must not call gmm, nor wait for
 * a lock that its thread's callers may hold.
 */
typedef void (*gmm_frames_fn)(gmm_frame_fn add, void *to);

/**
 * Sets the function that adds an interpreter's frames to the stacks of all traces of the process. The Python package
 * sets one.
 *
 * @param fn  stays usable until another one is set and no thread is inside it; NULL: none.
 */
GMM_API gmm_result gmm_trace_set_frames(gmm_frames_fn fn) GMM_NOEXCEPT;

/**
 * Returns free memory to the driver.
 *
 * The call empties the thread caches, those of idle threads too, and then returns whole free extents. It gives up the
 * addresses and backups of memory that was freed while it was paused. Without a scope it also returns the page-locked
 * host memory of backups that holds no contents.
 *
 * @param scope  NULL: the whole context.
 * @param[out] bytes  bytes that returned to the driver; may be NULL.
 * Results: UNCHANGED (inside gmm_defer_begin(): the trim runs at the matching gmm_defer_end()).
 * Errors: as gmm_stats_query(), DRIVER.
 * Streams: the call waits for the work that may still use the free memory.
 */
GMM_API gmm_result gmm_trim(gmm_context *context, const gmm_scope_desc *scope, uint64_t *bytes) GMM_NOEXCEPT;

/** Further work of gmm_compact(). */
enum {
  GMM_COMPACT_LIVE = 1u << 0 /**< moves live blocks to other pages, too: no thread may use memory or allocate then */
};

/** The options of gmm_compact(). */
typedef struct gmm_compact_desc {
  uint32_t struct_size;
  uint32_t flags;     /**< GMM_COMPACT_* */
  gmm_heap *heap;     /**< only this heap, if it is in the scope; NULL: all VMM heaps of the scope */
  uint64_t max_bytes; /**< bytes that the call may move and return to the driver, together; 0: no bound */
  uint64_t max_us;    /**< microseconds after which it begins nothing more; 0: no bound */
} gmm_compact_desc;

/** The result of gmm_compact(). */
typedef struct gmm_compact_info {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t moved_bytes;    /**< bytes of free memory that was mapped side by side, and of live memory that was copied */
  uint64_t released_bytes; /**< bytes that returned to the driver */
  uint64_t largest_free;   /**< bytes of the largest free run in any heap that the call looked at */
} gmm_compact_info;

/**
 * Moves the free memory of VMM heaps side by side and returns the rest to the driver, within a budget.
 *
 * No address of a live block changes. Without a flag no byte is copied, and every block may be used during the call. A
 * heap keeps the bytes of its gmm_heap_reserve():
 * - Whole free extents above the reserve return to the driver, those of small free runs first.
 * - Whole free extents of the reserve are mapped side by side. A large block then fits without a call of the driver.
 *
 * ::GMM_COMPACT_LIVE then takes the extents above the reserve that hold live blocks and are free for half or more. The
 * blocks' parts of 2 MiB are copied to new pages, which are mapped at the same addresses. The old extent returns to the
 * driver. Until the call returns, no thread, stream, device or process may use blocks of the heaps or allocate there.
 * The call needs as much further device memory as it copies of one extent, and no limit counts that. Extents of
 * exported blocks stay, and so do those whose contents a read-only tag keeps. A descriptor of
 * gmm_ipc_export_fd() names the old pages after it, as after gmm_move().
 *
 * The call empties the thread caches of the heaps first. These stay as they are: memory that queued work may still use,
 * that importers hold or that gmm_move() put elsewhere, free parts of extents with live blocks, heaps in
 * a graph capture, a pause, a resume or a move, and extents of ::GMM_HEAP_EXPORTABLE heaps, which are only returned.
 *
 * An extent is moved or returned whole. So with a budget of bytes below its size it stays, and the call may pass
 * max_us by the time of one extent. A move under a bound never makes the largest free run smaller: that run moves last,
 * only without a bound of time, and only where the bytes allow all of it. A program with frames may call at each of
 * them. UNCHANGED says that nothing is left to do within the bound.
 *
 * @param scope  NULL: the whole context.
 * @param desc  NULL: all VMM heaps of the scope, without a bound.
 * Results: UNCHANGED (nothing was moved or returned; always so inside gmm_defer_begin()). `out` is filled then too.
 * Errors: as gmm_stats_query(), INVALID_FLAGS, INVALID_HANDLE (heap), INVALID_KIND (a heap of another kind than VMM),
 * OUT_OF_MEMORY, OUT_OF_HOST_MEMORY, DRIVER; with GMM_COMPACT_LIVE BUSY (a watcher of gmm_watch() refuses).
 * Work before the failure is not undone.
 * Streams: the call waits for none, and queues nothing but events. With GMM_COMPACT_LIVE it waits for the devices.
 * Threads: any. Without a flag, allocations from a heap wait for at most 32 MiB of moves or returns at a time, or for
 * one extent.
 * Ownership: no other thread may destroy desc->heap during the call.
 */
GMM_API gmm_result gmm_compact(gmm_context *context, const gmm_scope_desc *scope, const gmm_compact_desc *desc,
                               gmm_compact_info *out) GMM_NOEXCEPT;

/**
 * Frees every allocation of the context, live blocks included.
 *
 * Addresses from before the call are invalid after it. Heaps, tags, limits, pins and imports stay.
 *
 * Errors: BUSY (importers hold memory), CAPTURING, DRIVER, FORKED.
 * Streams: the call waits for the devices.
 * Threads: no other thread may be inside a call on the context.
 */
GMM_API gmm_result gmm_reset(gmm_context *context) GMM_NOEXCEPT;

/**
 * Puts off trims and the return of memory to the driver until the matching gmm_defer_end().
 *
 * Pairs nest, and they apply to the whole context. An allocation that would fail otherwise still trims.
 *
 * Errors: NULL_ARGUMENT (context), FORKED.
 */
GMM_API gmm_result gmm_defer_begin(gmm_context *context) GMM_NOEXCEPT;

/**
 * Ends one gmm_defer_begin(); the last one does the work that was put off.
 *
 * Errors: UNBALANCED, FORKED.
 */
GMM_API gmm_result gmm_defer_end(gmm_context *context) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
