/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file lease.h
 * Leases: processes share the memory of a GPU, one after the other.
 *
 * Each process makes a lease and offers tags. It requests its memory before it works, and returns it afterwards. The
 * server of the machine, the command `gmm serve`, decides the order. It allocates nothing on a GPU. The first
 * lease starts it, unless it was started by hand or by systemd, and it ends when nobody needs it. When it dies, every
 * lease keeps its memory, and another server learns the state from the leases. A process without a lease is not
 * affected.
 *
 * | state | the lease | its offered tags |
 * | --- | --- | --- |
 * | ::GMM_LEASE_IDLE | has asked for nothing, or has returned | gmm pauses them when others want the memory |
 * | ::GMM_LEASE_WAITING | waits in gmm_lease_request() | as idle |
 * | ::GMM_LEASE_IN_USE | has its memory until gmm_lease_return() | gmm never pauses them |
 *
 * The tag's settings decide about the contents in a pause. The addresses stay. So a program may use the memory of
 * offered tags only while its lease is in use.
 */
#ifndef GMM_LEASE_H
#define GMM_LEASE_H

#include <gmm/pause.h>
#include <gmm/stats.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A process's share in the memory of its devices. A lease keeps its context alive. */
typedef struct gmm_lease gmm_lease;

/** A request of another lease, for memory of a lease that is in use. */
typedef struct gmm_lease_ask {
  uint32_t struct_size; /**< the library's */
  int32_t priority;     /**< of the lease that waits */
  uint64_t bytes;       /**< bytes that it wants on all devices; others may have a part of them */
  uint64_t waiting_ms;  /**< milliseconds since its request */
  int32_t process;      /**< of the lease that waits; 0: not known here */
  uint32_t reserved;    /**< 0 */
  char name[64];        /**< of the lease that waits */
} gmm_lease_ask;

/**
 * Reports that others want memory of a lease that is in use. The program answers with gmm_lease_return() when it can.
 *
 * The lease's thread calls it, without a lock. It is called when a lease begins to wait, and again every second while
 * one waits. A lease of a lower priority is not announced before it has waited for 30 s.
 *
 * It must return soon, as the thread has other work. It may call gmm, also gmm_lease_return(). Inside,
 * gmm_lease_request(), gmm_lease_destroy(), and gmm_ticket_wait() and gmm_ticket_destroy() of tickets of leases are
 * BUSY.
 * It must return 0; other values are reserved.
 */
typedef int32_t (*gmm_lease_ask_fn)(void *user, const gmm_lease_ask *ask);

/** A gmm_lease_ask_fn, with the pointer that it gets. */
typedef struct gmm_lease_ask_callback {
  gmm_lease_ask_fn fn; /**< may be NULL */
  void *user;
} gmm_lease_ask_callback;

/** The settings of gmm_lease_create(). */
typedef struct gmm_lease_desc {
  uint32_t struct_size;
  uint32_t flags; /**< must be 0 */
  /** For messages and `gmm serve --status`: 1 to 63 letters, digits, '.', '-' and '_', no '.' first. */
  const char *name;
  int32_t priority; /**< the highest is served first; the lowest gives up memory first */
  uint32_t reserved;
  /**
   * Bytes of each device that the context uses: the server leaves so much to it, also while it is idle. 0: none.
   *
   * Memory that the context holds counts. More than a device has means all of that device: no other lease gets any.
   */
  uint64_t floor_bytes;
  /**
   * Milliseconds after a grant in which the offered tags stay, also after gmm_lease_return().
   *
   * 0: as long as the resume took, at least 100. So processes that take the memory from each other copy for at most
   * half of their time.
   */
  uint64_t residency_ms;
  gmm_lease_ask_callback asked;
} gmm_lease_desc;

/**
 * Makes a lease of this process.
 *
 * The call does not wait. A thread of the lease connects to the server, whose socket lies in the directory of
 * gmm_ipc_configure(); that call also names the other users who take part. If no server is there, the thread starts the
 * command `gmm`: the one beside the library, else the one on PATH. The program then gets SIGCHLD, as its child ends
 * at once.
 *
 * @param desc  must not be NULL.
 * @param[out] out  the lease, which is idle.
 * Errors: NULL_ARGUMENT (desc, name), INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_VALUE (a name, residency_ms over
 * 3,600,000), OUT_OF_HOST_MEMORY, SYSTEM (no thread, no directory), FORKED.
 * Ownership: gmm copies desc. `asked.user` must live until gmm_lease_destroy(), which the caller calls.
 */
GMM_API gmm_result gmm_lease_create(gmm_context *context, const gmm_lease_desc *desc, gmm_lease **out) GMM_NOEXCEPT;

/** The cost by which gmm_lease_offer() ends an offer. */
#define GMM_LEASE_WITHDRAW UINT32_MAX

/**
 * Offers a tag: gmm pauses its VMM memory for others while the lease is not in use, and resumes it by the next request.
 *
 * Offer before the first request. The server counts on no memory that a lease in use holds and does not offer, and
 * denies requests that would need it.
 *
 * The lease pauses as gmm_pause() does: it fails if a watcher refuses or an importer holds a block. Then the server
 * takes other memory or tries again later.
 *
 * @param cost  the cost to bring a byte back, relative to other tags; the lowest is paused first. ::GMM_LEASE_WITHDRAW
 * ends an offer. The tag then stays as it is. The end of a tag ends its offer.
 * Errors: INVALID_HANDLE, INVALID_TAG, OFFERED (another lease of the context offers the tag), BUSY (gmm pauses or
 * resumes for this lease: try again), OUT_OF_HOST_MEMORY, FORKED.
 */
GMM_API gmm_result gmm_lease_offer(gmm_lease *lease, gmm_tag tag, uint32_t cost) GMM_NOEXCEPT;

/** Bytes of a device. */
typedef struct gmm_lease_amount {
  gmm_device device;
  uint32_t reserved; /**< must be 0 */
  uint64_t bytes;
} gmm_lease_amount;

/** The settings of gmm_lease_request(). */
typedef struct gmm_lease_request_desc {
  uint32_t struct_size;
  uint32_t flags; /**< must be 0 */
  /** Bytes that the program will allocate beyond the paused memory of the offered tags: one amount for a device. */
  const gmm_lease_amount *amounts;
  uint32_t amount_count;
  uint32_t reserved;
  uint64_t timeout_ms; /**< milliseconds, at most 86,400,000; 0: 60,000 */
} gmm_lease_request_desc;

/**
 * Waits for the grant of a lease's memory, and resumes its offered tags. The lease is in use until gmm_lease_return().
 *
 * The server grants the memory on all devices, or none. It counts the free memory that this process's driver measures,
 * without the memory that others were granted and have not taken yet, and without the part of their floors that they do
 * not hold. The rest comes from leases that are not in use. If that is not enough, the server asks those in use
 * (gmm_lease_desc.asked).
 *
 * Requests are served by priority, and by their age among equal ones. A request that has waited for 30 s comes before
 * all younger ones. A younger request overtakes an older one only if it wants nothing, or if its lease neither
 * wants nor offers memory of the older one's devices.
 *
 * If the grant turns out too small, because a process without a lease took memory, the tags stay paused with their
 * contents and the request goes on.
 *
 * `amounts` are kept free for this lease until it allocates them or returns. A new server, after the death of the old
 * one, waits half a second for the leases in use, and denies nothing for 5 s. A process that was stopped for longer
 * than half a second may find the amounts gone: its allocation then fails with OUT_OF_MEMORY.
 *
 * @param desc  NULL: the paused memory of the offered tags, and 60 s.
 * @param[out] ticket  NULL: the call waits. Else it returns at once, and the ticket's success is the grant.
 * gmm_ticket_cancel() ends the request. The caller destroys the ticket before the lease.
 * Results: OK also if nothing was missing.
 * Errors: OUT_OF_MEMORY (free memory and the offers of others can never meet it; the message names the holders),
 * NOT_READY (the time is over; the message names the holders, or says that no server runs and how to start one),
 * BUSY (the lease is in use or waits already, or the caller is a lease's `asked` or a watcher), CANCELLED
 * (gmm_ticket_cancel()), INVALID_HANDLE, INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_DEVICE, INVALID_VALUE (time, two
 * amounts for a device), NULL_ARGUMENT (amounts), and those of gmm_resume() except OUT_OF_MEMORY. After an error the
 * lease is idle.
 * Threads: any. The call or a thread of the ticket resumes.
 */
GMM_API gmm_result gmm_lease_request(gmm_lease *lease, const gmm_lease_request_desc *desc,
                                     gmm_ticket **ticket) GMM_NOEXCEPT;

/**
 * Ends the use of a lease's memory. The memory stays where it is until others want it.
 *
 * The call does not wait. From now on the program must not use the memory of offered tags: the lease's thread may
 * pause it at any time. Work that is queued on streams still ends, as gmm_pause() waits for the devices.
 *
 * Results: UNCHANGED (the lease is not in use).
 * Errors: INVALID_HANDLE, FORKED.
 */
GMM_API gmm_result gmm_lease_return(gmm_lease *lease) GMM_NOEXCEPT;

/** The state of a lease. */
typedef uint32_t gmm_lease_state;
enum { GMM_LEASE_IDLE = 0, GMM_LEASE_WAITING = 1, GMM_LEASE_IN_USE = 2 };

/** The answer of gmm_lease_query(). */
typedef struct gmm_lease_info {
  uint32_t struct_size;
  gmm_lease_state state;
  uint64_t server;        /**< number of the server, which a later one exceeds; 0: none answers now */
  int32_t server_process; /**< 0: none, or not known here */
  uint32_t reserved;
  uint64_t grants;        /**< requests that succeeded */
  uint64_t shorts;        /**< grants that were too small when the memory was taken */
  uint64_t asked;         /**< calls of gmm_lease_desc.asked */
  uint64_t evictions;     /**< pauses for others that succeeded */
  uint64_t evicted_bytes; /**< bytes that these returned to the devices */
  uint64_t active_bytes;  /**< of the offered tags, on all devices */
  uint64_t paused_bytes;  /**< of the offered tags, on all devices */
} gmm_lease_info;

/**
 * Describes a lease without waiting.
 *
 * Errors: INVALID_HANDLE, NULL_ARGUMENT, INVALID_DESCRIPTOR, FORKED.
 */
GMM_API gmm_result gmm_lease_query(gmm_lease *lease, gmm_lease_info *out) GMM_NOEXCEPT;

/**
 * Ends a lease. Its memory stays as it is, active or paused, and is the context's alone.
 *
 * The call waits for a pause for others that is under way, and for a call of `asked`. So the caller must not hold a
 * lock that `asked` takes.
 *
 * @param lease  NULL is allowed and does nothing.
 * Errors: INVALID_HANDLE, BUSY (a request waits, a ticket of the lease lives, or the caller is a lease's `asked` or a
 * watcher), FORKED.
 */
GMM_API gmm_result gmm_lease_destroy(gmm_lease *lease) GMM_NOEXCEPT;

/* --- The server --------------------------------------------------------------------------------------------- */

/** A lease of the machine, and one of its devices. */
typedef struct gmm_lease_entry_info {
  uint32_t struct_size;
  gmm_lease_state state;
  uint64_t server;        /**< as gmm_lease_info::server */
  int32_t server_process; /**< 0: not known here */
  int32_t process;        /**< of the lease; 0: not known here */
  uint64_t entry_count;   /**< entries of all leases now */
  int32_t priority;
  uint32_t reserved;
  uint64_t since_ms;      /**< milliseconds in this state */
  uint8_t uuid[16];       /**< of the device; zero: the lease has no memory of a device yet */
  uint64_t free_bytes;    /**< of the device, by the measure of the lease's process */
  uint64_t held_bytes;    /**< by its context */
  uint64_t floor_bytes;   /**< left to it */
  uint64_t offered_bytes; /**< others may have */
  uint64_t wanted_bytes;  /**< by its request */
  uint64_t granted_bytes; /**< and not allocated yet */
  char name[64];
} gmm_lease_entry_info;

/**
 * Describes the leases of the machine, one by one: each has an entry for each device that it uses, and one if it uses
 * none. The list may change between two calls.
 *
 * @param context  its gmm_ipc_configure() names the directory and the users.
 * @param index  from 0.
 * @param timeout_ms  for the answer.
 * Results: UNCHANGED (there is no such entry; the fields of the server and `entry_count` are set).
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, NOT_READY (no server runs, or none answers in this time), SYSTEM, FORKED.
 */
GMM_API gmm_result gmm_lease_list(gmm_context *context, uint64_t index, uint64_t timeout_ms,
                                  gmm_lease_entry_info *out) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
