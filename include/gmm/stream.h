/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stream.h
 * Streams, events and the little work that gmm itself queues on them.
 *
 * A program on CUDA passes its own streams everywhere and needs none of the makers here; on the host backend
 * streams are worker threads and come from gmm_stream_create(). On SYCL both do: streams of gmm are SYCL queues that run in order, and the
 * program's queues of gmm's SYCL context are streams, which run gmm's work in order also where the queue itself has no order. What a program
 * puts on a SYCL queue itself does not wait for a gmm_stream_call() before it, nor for work of gmm that waits for such a call.
 *
 * Graph capture (CUDA). An allocation on a stream that is being captured, by whichever thread and in whichever capture mode, joins the capture:
 *   - Its block is good for the graph and for ordinary work; its address stays as long as the graph lives. GMM_ALLOC_ZERO and gmm_fill()
 *     become nodes of the graph, and so does gmm_copy() between page-locked or device memory.
 *   - Its memory belongs to the capture: memory from before is not used for it, and nobody else is given it. A block that is freed in the
 *     capture may come back in the same capture on the same stream, as the graph keeps that order. Streams that joined the capture (by
 *     an event) do not exchange memory.
 *   - The memory stays until the graph and every executable graph that was made from it are destroyed and their launches are done, also
 *     when its blocks are freed, and through gmm_trim(). A capture that fails counts as a graph that is destroyed. After that what no live block is in goes back to
 *     the driver: with gmm_trim(), gmm_stats(), gmm_snapshot(), the growth of a heap or the next allocation in a capture. Live blocks stay good.
 *   - Statistics count it for its kind, device and tag, and limits hold. gmm_pause() keeps its addresses; resume before the graph is launched.
 *     It gives back the memory of blocks that only the graph uses without their contents: a graph writes them before it reads them.
 *   - gmm_context_release() and gmm_reset() end the blocks: launch none of the context's graphs afterwards; the graphs may be destroyed then.
 * A block from outside of the capture must not be freed while a graph uses it, not even on the stream that is captured.
 * An allocation in a capture that has failed is refused with CAPTURING. What gmm asks the driver does not end a capture, but calls that wait for a
 * device or stream (gmm_stream_synchronize, gmm_pause, gmm_reset, gmm_heap_destroy, gmm_move of VMM memory) must not run meanwhile: the ones that see the
 * capture refuse with CAPTURING. gmm_trim() leaves out what was freed on a captured stream.
 * The question whether a stream is captured costs a driver call at each allocation on a stream other than the default one:
 * GMM_CONTEXT_NO_CAPTURE does without.
 */
#ifndef GMM_STREAM_H
#define GMM_STREAM_H

#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Makes a stream on a device (non-blocking in CUDA's words). Destroy it with gmm_stream_destroy().
 * Errors: NULL_ARGUMENT, INVALID_DEVICE, DRIVER, SYSTEM, FORKED. Since: 0.1
 */
GMM_NODISCARD GMM_API gmm_result gmm_stream_create(gmm_context *context, gmm_device device,
                                                   gmm_stream *out) GMM_NOEXCEPT;

/** Waits for the stream's work, then ends it. Blocks freed on it stay good. Errors: INVALID_HANDLE, DRIVER, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_stream_destroy(gmm_context *context, gmm_stream stream) GMM_NOEXCEPT;

/**
 * Says that a stream which gmm did not make is about to be destroyed: call it before cuStreamDestroy or cudaStreamDestroy on a
 * stream that was used to alloc or free. Waits for the stream's work. Errors: INVALID_HANDLE, DRIVER, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_stream_forget(gmm_context *context, gmm_stream stream) GMM_NOEXCEPT;

/**
 * Blocks the caller until everything queued on the stream so far is done; a default stream means that of every device. Errors: INVALID_HANDLE, CAPTURING, DRIVER, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_stream_synchronize(gmm_context *context, gmm_stream stream) GMM_NOEXCEPT;

/**
 * Queues a call of `fn(user)` on the stream. It runs on a thread of the backend and must not call gmm or the driver. On CUDA the
 * calls of all streams run on one thread: a call must not wait for the call of another stream. A default stream is device 0's here.
 * Errors: NULL_ARGUMENT, INVALID_HANDLE, DRIVER, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_stream_call(gmm_context *context, gmm_stream stream, void (*fn)(void *user),
                                   void *user) GMM_NOEXCEPT;

/**
 * Queues a copy of `size` bytes between any two addresses: of gmm, of the driver, or ordinary host memory.
 * Ordinary host memory must stay until the stream got there. Ranges must not overlap. Zero bytes do nothing.
 * Errors: NULL_ARGUMENT, INVALID_SIZE (reaches past the block), PAUSED, INVALID_HANDLE, DRIVER, FORKED; NOT_SUPPORTED between VMM
 * memory of two GPUs when neither heap names the other's device in peer_devices. Since: 0.1
 */
GMM_API gmm_result gmm_copy(gmm_context *context, void *destination, const void *source, uint64_t size,
                            gmm_stream stream) GMM_NOEXCEPT;

/** Queues a fill of `size` bytes with one byte value. Errors: as gmm_copy(), INVALID_VALUE (value above 255). Since: 0.1 */
GMM_API gmm_result gmm_fill(gmm_context *context, void *destination, uint32_t value, uint64_t size,
                            gmm_stream stream) GMM_NOEXCEPT;

/**
 * Says that `stream` uses the block too: after its gmm_free() the block is not given out again, on any stream, before what `stream`
 * had queued at the time of the free (PyTorch's record_stream). `memory` may be interior.
 * Errors: UNKNOWN_POINTER, ALREADY_FREED, INVALID_HANDLE, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_record_use(gmm_context *context, const void *memory, gmm_stream stream) GMM_NOEXCEPT;

/** Makes an event: a point in a stream's order. Errors: NULL_ARGUMENT, INVALID_DEVICE, DRIVER, FORKED. Since: 0.1 */
GMM_NODISCARD GMM_API gmm_result gmm_event_create(gmm_context *context, gmm_device device,
                                                  gmm_event **out) GMM_NOEXCEPT;

/** Ends an event; work that waits for it still may. NULL is allowed. Errors: FORKED. Since: 0.1 */
GMM_API gmm_result gmm_event_destroy(gmm_context *context, gmm_event *event) GMM_NOEXCEPT;

/** Sets the event to what is queued on the stream so far. Errors: NULL_ARGUMENT, INVALID_HANDLE, DRIVER, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_event_record(gmm_context *context, gmm_event *event, gmm_stream stream) GMM_NOEXCEPT;

/** Makes the stream's further work wait for the event; does not block the caller. Errors: as gmm_event_record(). Since: 0.1 */
GMM_API gmm_result gmm_stream_wait_event(gmm_context *context, gmm_stream stream, gmm_event *event) GMM_NOEXCEPT;

/** Blocks the caller until the event has passed. An event never recorded has passed. Errors: NULL_ARGUMENT, DRIVER, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_event_synchronize(gmm_context *context, gmm_event *event) GMM_NOEXCEPT;

/** Writes 1 when the event has passed, else 0. Errors: NULL_ARGUMENT, DRIVER, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_event_query(gmm_context *context, gmm_event *event, uint32_t *out) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
