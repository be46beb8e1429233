/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stream.h
 * Streams, events, and the copies, fills and calls that gmm queues on them.
 *
 * A program on CUDA passes its own streams everywhere and needs no function here that makes one. On the host backend a
 * stream is a worker thread and comes from gmm_stream_create().
 *
 * SYCL takes both. A stream of gmm is a SYCL queue that runs in order. A queue of the program in gmm's SYCL context is
 * a stream too: gmm's own work on it runs in order, even if the queue has no order itself. Work that the program puts
 * on a SYCL queue itself does not wait for an earlier gmm_stream_call(), nor for gmm's work that waits for such a call.
 *
 * Graph capture (CUDA). An allocation on a stream that is captured joins the capture, whichever thread allocates and
 * whichever the capture mode is.
 *   - Block: the graph and ordinary work may use it. Its address stays as long as the graph lives.
 *   - Nodes: ::GMM_ALLOC_ZERO and gmm_fill() become nodes of the graph, and so does gmm_copy() between page-locked or
 *     device memory.
 *   - Memory: the capture gets memory of its own, which no other work is given. A block that is freed in the capture
 *     may return in the same capture on the same stream, because the graph keeps that order. Streams that joined the
 *     capture by an event do not exchange memory.
 *   - Life: the memory stays, even if its blocks are freed or gmm_trim() runs, until the graph and every executable
 *     graph made from it are destroyed and their launches are done. A capture that fails counts as a destroyed graph.
 *   - Return: after that, memory without a live block returns to the driver at the next gmm_trim(), gmm_stats_query(),
 *     gmm_snapshot_create(), growth of a heap or allocation in a capture. Live blocks stay usable.
 *   - Usage: statistics count the memory for its kind, device and tag, and limits apply.
 *   - Pause: gmm_pause() keeps the addresses; resume before the graph is launched. Memory of blocks that only the graph
 *     uses is paused without its contents: a graph writes such blocks before it reads them.
 *   - End: gmm_context_release() and gmm_reset() end the blocks. The program must not launch the context's graphs after
 *     that, and may destroy them then.
 *
 * Rules for a program that captures:
 *   - A block from outside of the capture must not be freed while a graph uses it, not even on the captured stream.
 *   - gmm refuses an allocation in a capture that has failed with CAPTURING.
 *   - Calls of gmm do not end a capture, with one exception: those that wait for a device or stream.
 *     These are gmm_stream_synchronize(), gmm_pause(), gmm_reset(), gmm_heap_destroy() and gmm_move() of VMM memory.
 *     They must not run during a capture, and they fail with CAPTURING if they see one.
 *   - gmm_trim() leaves out memory that was freed on a captured stream.
 *   - Each allocation on a stream other than the default one costs a driver call, which asks whether the stream is
 *     captured. ::GMM_CONTEXT_NO_CAPTURE saves that call.
 */
#ifndef GMM_STREAM_H
#define GMM_STREAM_H

#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The options of gmm_stream_create(). */
typedef struct gmm_stream_desc {
  uint32_t struct_size;
  uint32_t flags; /**< must be 0 */
  gmm_device device;
  /** As in CUDA: 0 is the default, and a lower number goes first. Backends without priorities ignore it. */
  int32_t priority;
} gmm_stream_desc;

/**
 * Creates a stream on a device.
 *
 * On CUDA the stream is non-blocking: it does not synchronize with the legacy default stream.
 *
 * @param desc  NULL: device 0, the default priority.
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_DEVICE, DRIVER, SYSTEM, FORKED.
 * Ownership: the caller destroys the stream with gmm_stream_destroy().
 */
GMM_NODISCARD GMM_API gmm_result gmm_stream_create(gmm_context *context, const gmm_stream_desc *desc,
                                                   gmm_stream *out) GMM_NOEXCEPT;

/**
 * Destroys a stream of gmm_stream_create() after its work.
 *
 * Blocks that were freed on the stream stay usable for later allocations. gmm_free() may still name the stream.
 * gmm_record_use() and gmm_stream_destroy() refuse it with INVALID_HANDLE. All this ends when gmm_stream_create() gives
 * the handle out again. When the driver gives it to a stream that the program makes itself, gmm_alloc(),
 * gmm_stream_synchronize() or gmm_stream_forget() for that stream shows that it lives.
 *
 * Errors: INVALID_HANDLE (a default stream too), DRIVER, FORKED.
 * Streams: the call waits for the stream's work.
 */
GMM_API gmm_result gmm_stream_destroy(gmm_context *context, gmm_stream stream) GMM_NOEXCEPT;

/**
 * Prepares for the end of a stream which gmm did not create.
 *
 * Call it before cuStreamDestroy or cudaStreamDestroy on a stream that allocated or freed. No function may name the
 * stream after that: the driver gives handles out again, so gmm cannot tell a destroyed stream of the program from a
 * new one.
 *
 * Errors: INVALID_HANDLE, DRIVER, FORKED.
 * Streams: the call waits for the stream's work.
 */
GMM_API gmm_result gmm_stream_forget(gmm_context *context, gmm_stream stream) GMM_NOEXCEPT;

/**
 * Waits for the end of all work that is queued on a stream.
 *
 * A default stream means the default streams of every device.
 *
 * Errors: INVALID_HANDLE, CAPTURING, DRIVER, FORKED.
 */
GMM_API gmm_result gmm_stream_synchronize(gmm_context *context, gmm_stream stream) GMM_NOEXCEPT;

/**
 * Queues a call of `fn(user)` on a stream.
 *
 * The call runs on a thread of the backend, and it must call neither gmm nor the driver. On CUDA the calls of all
 * streams run on one thread, so a call must not wait for the call of another stream.
 *
 * @param stream  a default stream means that of device 0.
 * Errors: NULL_ARGUMENT, INVALID_HANDLE, DRIVER, FORKED.
 */
GMM_API gmm_result gmm_stream_call(gmm_context *context, gmm_stream stream, void (*fn)(void *user),
                                   void *user) GMM_NOEXCEPT;

/**
 * Queues a copy of `size` bytes between any two addresses.
 *
 * An address may be of gmm, of the driver, or of ordinary host memory. The ranges must not overlap.
 *
 * @param size  bytes; 0 does nothing.
 * Errors: NULL_ARGUMENT, INVALID_SIZE (the range reaches past its block), ALREADY_FREED, PAUSED, IPC_REVOKED,
 * INVALID_HANDLE, DRIVER, FORKED, NOT_SUPPORTED (VMM memory of two GPUs, and neither heap names the other's device in
 * peer_devices).
 * Streams: the copy runs in the order of `stream`.
 * Ownership: ordinary host memory must stay until the stream has done the copy.
 */
GMM_API gmm_result gmm_copy(gmm_context *context, void *destination, const void *source, uint64_t size,
                            gmm_stream stream) GMM_NOEXCEPT;

/**
 * Queues a fill of `size` bytes with one byte value.
 *
 * @param value  0 to 255.
 * @param size  bytes; 0 does nothing.
 * Errors: as gmm_copy(), INVALID_VALUE (the value is above 255).
 * Streams: the fill runs in the order of `stream`.
 */
GMM_API gmm_result gmm_fill(gmm_context *context, void *destination, uint32_t value, uint64_t size,
                            gmm_stream stream) GMM_NOEXCEPT;

/**
 * Records that a further stream uses a block.
 *
 * After its gmm_free() gmm does not give the block out again, on any stream, before the work that `stream` had queued
 * at the time of the free. PyTorch calls this record_stream.
 *
 * @param memory  any address inside the block.
 * Errors: UNKNOWN_POINTER, ALREADY_FREED, INVALID_HANDLE, OUT_OF_HOST_MEMORY, FORKED.
 */
GMM_API gmm_result gmm_record_use(gmm_context *context, const void *memory, gmm_stream stream) GMM_NOEXCEPT;

enum {
  /**
   * Other processes can wait for the event: gmm_event_export() (ipc.h).
   *
   * A producer records it behind its writes, and a consumer's stream waits for it on the device. In all other respects
   * it is an event like any other.
   */
  GMM_EVENT_SHARED = 1u << 0
};

/** The options of gmm_event_create(). */
typedef struct gmm_event_desc {
  uint32_t struct_size;
  uint32_t flags; /**< GMM_EVENT_* */
  gmm_device device;
  uint32_t reserved;
} gmm_event_desc;

/**
 * Creates an event: a point in the order of a stream.
 *
 * @param desc  NULL: device 0, no flags.
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_DEVICE, NOT_SUPPORTED (::GMM_EVENT_SHARED),
 * OUT_OF_HOST_MEMORY, DRIVER, SYSTEM, FORKED.
 * Ownership: the caller destroys the event with gmm_event_destroy(), which closes a shared event for all importers.
 */
GMM_NODISCARD GMM_API gmm_result gmm_event_create(gmm_context *context, const gmm_event_desc *desc,
                                                  gmm_event **out) GMM_NOEXCEPT;

/**
 * Destroys an event.
 *
 * Work that already waits for the event still waits for it.
 *
 * @param event  NULL is allowed and does nothing.
 * Errors: INVALID_HANDLE, CAPTURING (a semaphore that was used), DRIVER, FORKED.
 * Streams: the call does not wait, with one exception: see gmm_event_import_semaphore().
 */
GMM_API gmm_result gmm_event_destroy(gmm_event *event) GMM_NOEXCEPT;

/**
 * Records an event: it now stands for the work that is queued on the stream so far.
 *
 * A semaphore of gmm_event_import_semaphore() is signalled with the value.
 *
 * @param value  0. Semaphores that count take others.
 * Errors: NULL_ARGUMENT, INVALID_VALUE (value), INVALID_HANDLE (an imported event too), NOT_SUPPORTED (a semaphore that
 * is waited for only), OUT_OF_HOST_MEMORY, DRIVER, FORKED.
 */
GMM_API gmm_result gmm_event_record(gmm_event *event, uint64_t value, gmm_stream stream) GMM_NOEXCEPT;

/**
 * Makes the further work of a stream wait for an event.
 *
 * @param value  as for gmm_event_record().
 * Errors: as gmm_event_record(), but an imported event is allowed, and one of another context is not; IPC_PEER_GONE
 * (the event's maker died); NOT_SUPPORTED (a semaphore that is signalled only).
 * Streams: the stream waits; the caller does not.
 */
GMM_API gmm_result gmm_stream_wait_event(gmm_context *context, gmm_stream stream, gmm_event *event,
                                         uint64_t value) GMM_NOEXCEPT;

/**
 * Waits until an event has passed.
 *
 * An event that was never recorded has passed.
 *
 * @param value  as for gmm_event_record().
 * @param timeout_ms  milliseconds; 0 does not wait; ::GMM_FOREVER waits without a limit.
 * Errors: NOT_READY (the timeout passed first), NULL_ARGUMENT, INVALID_VALUE (value), INVALID_HANDLE, IPC_PEER_GONE
 * (the event's maker died), NOT_SUPPORTED (a semaphore), DRIVER, FORKED.
 */
GMM_API gmm_result gmm_event_synchronize(gmm_event *event, uint64_t value, uint64_t timeout_ms) GMM_NOEXCEPT;

/**
 * Returns whether an event has passed.
 *
 * @param[out] out  1 if the event has passed, else 0.
 * Errors: NULL_ARGUMENT, INVALID_HANDLE, IPC_PEER_GONE (the event's maker died), NOT_SUPPORTED (a semaphore), DRIVER,
 * FORKED.
 */
GMM_API gmm_result gmm_event_query(gmm_event *event, uint64_t *out) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
