/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file keep.h
 * Memory that outlives its process: a process publishes it under a name, and others attach it.
 *
 * The server of the machine, the command `gmm serve`, keeps the descriptors of published memory. It has no context and
 * maps nothing. So the memory stays when its publisher ends, also by SIGKILL, until gmm_unpublish() and the end of the
 * last reader. When the server ends, the processes that published or attached the memory give it to the next server.
 * The memory is lost when no server and no such process is left.
 *
 * A name has 1 to 63 bytes of UTF-8. The processes are those of one user, or of users that gmm_ipc_configure() names;
 * its directory has the server's socket. If no server is there, gmm starts one, as gmm_lease_create() says.
 */
#ifndef GMM_KEEP_H
#define GMM_KEEP_H

#include <gmm/context.h>
#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The options of gmm_publish(). */
typedef struct gmm_publish_desc {
  uint32_t struct_size;
  uint32_t flags;      /**< must be 0 */
  uint64_t timeout_ms; /**< milliseconds to wait for the server; 0: 5,000; GMM_FOREVER: without a limit */
} gmm_publish_desc;

/**
 * Publishes a VMM block: others attach it by the name from now on.
 *
 * The name appears when the server has all of the block. A process that ends before leaves nothing. The first call of a
 * context that publishes or attaches starts one thread.
 *
 * Published memory counts as imported. gmm_free() leaves its pages to those who attach it. gmm_pause() of its tag is
 * BUSY; with ::GMM_PAUSE_FORCE it withdraws the name, and memory that others attached becomes ::GMM_STATE_REVOKED.
 * After the resume the program publishes again.
 *
 * @param memory  any address in a block of VMM memory over at most 192 driver allocations. ::GMM_ALLOC_DEDICATED gives
 * a block one of its own, and with it a descriptor of its own.
 * @param desc  NULL: 5,000 ms.
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_VALUE (name), UNKNOWN_POINTER, ALREADY_FREED,
 * INVALID_KIND (not VMM), PAUSED, NOT_SUPPORTED (as gmm_ipc_export()), BUSY (the name is published, or another process
 * has its claim), NOT_READY (no server answers in this time), OUT_OF_HOST_MEMORY, DRIVER, SYSTEM, FORKED.
 * Streams: the call neither queues work nor waits for any. The program orders the contents before it publishes.
 */
GMM_API gmm_result gmm_publish(gmm_context *context, const void *memory, const char *name,
                               const gmm_publish_desc *desc) GMM_NOEXCEPT;

/**
 * Withdraws a name. Any process may do so. Memory that is attached stays until gmm_detach().
 *
 * It also ends a claim of this context on the name (::GMM_ATTACH_OR_CLAIM).
 *
 * Results: UNCHANGED (nothing is published by that name).
 * Errors: NULL_ARGUMENT, INVALID_VALUE (name), NOT_READY (no server answers in 5,000 ms), OUT_OF_HOST_MEMORY, SYSTEM,
 * FORKED.
 */
GMM_API gmm_result gmm_unpublish(gmm_context *context, const char *name) GMM_NOEXCEPT;

/** Flags of gmm_attach_desc. */
enum {
  GMM_ATTACH_READ_ONLY = 1u << 0, /**< this process cannot write to the memory */
  /** The memory gets the address that it has in its publisher. OVERLAP: something lies there. */
  GMM_ATTACH_SAME_ADDRESS = 1u << 1,
  /**
   * Where nothing is published by the name, the caller gets the claim to publish it, and the call returns UNCHANGED.
   *
   * One caller has the claim, until its context publishes, calls gmm_unpublish() or ends. Others wait for it.
   */
  GMM_ATTACH_OR_CLAIM = 1u << 2
};

/** The options of gmm_attach(). */
typedef struct gmm_attach_desc {
  uint32_t struct_size;
  uint32_t flags;      /**< GMM_ATTACH_* bits */
  uint64_t generation; /**< of gmm_published_info: no other one is attached; 0: any */
  uint64_t timeout_ms; /**< milliseconds to wait for the name; 0: 5,000; GMM_FOREVER: without a limit */
} gmm_attach_desc;

/**
 * Maps published memory on the device that it lies on. Waits until the name is published.
 *
 * Each call makes a mapping of its own, also in the publisher. gmm_query() describes it as imported memory.
 * ::GMM_POINTER_PEER_GONE says that no server knows of it at the moment.
 *
 * @param desc  NULL: any address, to read and write, 5,000 ms.
 * @param[out] out  the start of the block; NULL with the result UNCHANGED.
 * Results: UNCHANGED (::GMM_ATTACH_OR_CLAIM: the caller has the claim).
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_VALUE (name), NOT_READY (nothing was published by
 * the name in this time, or no server answers), IPC_PEER_GONE (the generation is over), OVERLAP (the address),
 * NOT_SUPPORTED (this context has another backend, or not the device), IPC_REFUSED (the server's answer makes no
 * sense), OUT_OF_HOST_MEMORY, DRIVER, SYSTEM, FORKED.
 * Streams: the publisher's work that fills the memory has ended, if the publisher waited for it.
 * Ownership: the caller ends it with gmm_detach() or gmm_ipc_close(), not with gmm_free().
 */
GMM_NODISCARD GMM_API gmm_result gmm_attach(gmm_context *context, const char *name, const gmm_attach_desc *desc,
                                            void **out) GMM_NOEXCEPT;

/**
 * Unmaps memory of one gmm_attach().
 *
 * @param memory  any address in the attached block.
 * Errors: NULL_ARGUMENT, UNKNOWN_POINTER (nothing is attached there), DRIVER, SYSTEM, FORKED.
 * Streams: gmm unmaps the memory after the work that is queued on the device.
 */
GMM_API gmm_result gmm_detach(gmm_context *context, void *memory) GMM_NOEXCEPT;

/** Memory that is published. */
typedef struct gmm_published_info {
  uint32_t struct_size;
  gmm_backend backend;  /**< of the publisher */
  uint64_t entry_count; /**< names that are published now */
  uint64_t generation;  /**< each publication has a greater one than all before */
  uint64_t size;        /**< bytes of the block */
  void *address;        /**< of the block, in the publisher */
  int32_t process;      /**< of the publisher, which may have ended; 0: not known here */
  uint32_t readers;     /**< attached mappings */
  uint8_t uuid[16];     /**< of the device */
  char name[64];
} gmm_published_info;

/**
 * Describes published memory, one name after the other. The list may change between two calls.
 *
 * @param context  its gmm_ipc_configure() names the directory and the users.
 * @param index  from 0.
 * @param timeout_ms  for the answer.
 * Results: UNCHANGED (there is no such entry; `entry_count` is set).
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, NOT_READY (no server runs, or none answers in this time), SYSTEM, FORKED.
 */
GMM_API gmm_result gmm_published_list(gmm_context *context, uint64_t index, uint64_t timeout_ms,
                                      gmm_published_info *out) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
