// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of the interface. They open the backend that GMM_BACKEND names, walk over its devices and kinds,
// and move bytes to and from memory that the CPU may be unable to read.
#ifndef GMM_TESTS_GMM_TEST_H
#define GMM_TESTS_GMM_TEST_H

#include <gmm/gmm.h>
#include <pthread.h>
#include <time.h>

#include "check.h"
#include "ends.h"

#define KIB ((uint64_t)1024)
#define MIB ((uint64_t)1024 * 1024)

// Checks that a call came to a result. The message is shown when it did not.
#define RESULT(call, expected)                                                                         \
  do {                                                                                                 \
    gmm_result check_r = (call);                                                                       \
    if (check_r != (expected))                                                                         \
      check_failed(__FILE__, __LINE__, "%s gave %s, expected %s: %s", #call, gmm_result_name(check_r), \
                   gmm_result_name(expected), check_r < 0 ? gmm_last_error_message() : "");            \
  } while (0)
#define OK(call) RESULT(call, GMM_OK)
// Checks that a call gave GMM_OK. The case ends when it did not.
#define MUST(call)                                                                                                   \
  do {                                                                                                               \
    gmm_result check_r = (call);                                                                                     \
    if (check_r != GMM_OK) {                                                                                         \
      check_failed(__FILE__, __LINE__, "%s gave %s: %s", #call, gmm_result_name(check_r), gmm_last_error_message()); \
      longjmp(check_state.leave, 1);                                                                                 \
    }                                                                                                                \
  } while (0)

extern gmm_context *context;  // of the case that runs
extern gmm_device device;     // that the case uses
extern gmm_kind kind;
extern gmm_device_info device_info;

const char *kind_name(gmm_kind k);
bool on_host_backend(void);
bool on_gpu_backend(void);  // NVIDIA's or AMD's
gmm_backend backend_id(void);
gmm_context *open_context(uint32_t host_devices);
// The address of a struct of the interface with these fields: DESC(alloc_desc, .kind = kind) is a gmm_alloc_desc.
#define DESC(type, ...) (&(gmm_##type){.struct_size = sizeof(gmm_##type), __VA_ARGS__})
// A context of the descriptor with these fields. The case ends on failure.
#define OPEN(...) open_of(DESC(context_desc, __VA_ARGS__))
gmm_context *open_of(const gmm_context_desc *desc);
void read_device(gmm_device d);
// Opens the case's context again, with host devices of this size.
void reopen_with(uint64_t host_memory);

uint32_t device_count(void);
bool has_kind(gmm_kind k);

// Runs a case in a fresh context on device 0. The end of a case destroys the streams of open_stream() and frees the
// blocks that it left. No block, import or pin may stay then.
void run_plain(const char *name, void (*function)(void));

// Runs a case in a fresh context for each device and each kind in `kinds` (bits). A kind that the device lacks is a
// skip. The host backend's devices differ in nothing but their number: the second one runs VMM, whose blocks name a
// device.
void run_kinds(const char *name, void (*function)(void), gmm_kind_mask kinds);
// Makes a snapshot of the whole context, writes it and destroys it.
gmm_result write_snapshot(gmm_context *of, gmm_write_fn fn, void *user);
// A gmm_write_fn: `user` is a char *, NULL at first, to which malloc() gives the text.
int32_t append_text(void *user, const char *piece, uint64_t size);
// The text of a snapshot of the case's context, from malloc().
char *snapshot_text(void);
// A scope of those fields that the flags name.
gmm_scope_desc scope_of(uint32_t flags, gmm_device d, gmm_tag tag, gmm_kind k);
// Descriptors of streams and events of one device.
#define STREAM_ON(d) DESC(stream_desc, .device = (d))
#define EVENT_ON(d) DESC(event_desc, .device = (d))
#define SHARED_EVENT_ON(d) DESC(event_desc, .flags = GMM_EVENT_SHARED, .device = (d))
#define ALL_KINDS 0x1eu
#define PLAIN(function) run_plain(#function, function)
#define KINDS(function, kinds) run_kinds(#function, function, kinds)
// Begins the definition of a case for run_cases(): run once, for each kind of a mask, or for VMM alone.
#define CASE(function) CASE_OF_KINDS(function, 0)
#define VMM_CASE(function) CASE_OF_KINDS(function, 1u << GMM_KIND_VMM)
#define CASE_OF_KINDS(function, kinds)                                                                      \
  static void function(void);                                                                               \
  __attribute__((constructor)) static void add_##function(void) { add_case(#function, function, (kinds)); } \
  static void function(void)
void add_case(const char *name, void (*function)(void), gmm_kind_mask kinds);
// Runs the cases of the program in the order of their definitions, then finish_clean().
int run_cases(void);

gmm_alloc_desc alloc_desc(void);
// The address of a descriptor of the case's kind and device with further fields.
#define HERE(...) DESC(alloc_desc, .kind = kind, .device = device, __VA_ARGS__)

// Allocates of the case's kind and device. A failure ends the case; in another thread it is noted, and NULL.
#define ALLOC(size) alloc_here(__LINE__, size, GMM_TAG_CURRENT, GMM_STREAM_DEFAULT, 0)
#define ALLOC_TAG(size, tag) alloc_here(__LINE__, size, tag, GMM_STREAM_DEFAULT, 0)
#define ALLOC_STREAM(size, stream) alloc_here(__LINE__, size, GMM_TAG_CURRENT, stream, 0)
#define ALLOC_FLAGS(size, flags) alloc_here(__LINE__, size, GMM_TAG_CURRENT, GMM_STREAM_DEFAULT, flags)
void *alloc_here(int line, uint64_t size, gmm_tag tag, gmm_stream stream, uint32_t flags);
// A block with the pattern of a seed.
#define FILLED(size, seed) filled_here(__LINE__, size, GMM_TAG_CURRENT, 0, seed)
#define FILLED_TAG(size, tag, seed) filled_here(__LINE__, size, tag, 0, seed)
#define FILLED_ALONE(size, tag, seed) filled_here(__LINE__, size, tag, GMM_ALLOC_DEDICATED, seed)
void *filled_here(int line, uint64_t size, gmm_tag tag, uint32_t flags, uint32_t seed);
// Allocates of the case's kind and device.
gmm_result try_alloc(uint64_t size, gmm_tag tag, void **out);
// Frees blocks on the default stream.
#define FREE(...) FREE_ON(GMM_STREAM_DEFAULT, __VA_ARGS__)
#define FREE_ALL(blocks, count) free_here(__LINE__, GMM_STREAM_DEFAULT, blocks, count)
// Frees blocks on another stream.
#define FREE_ON(stream, ...) \
  free_here(__LINE__, stream, (void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))
void free_here(int line, gmm_stream stream, void *const *blocks, uint64_t count);
// A heap of the case's kind and device, with further fields of gmm_heap_desc; a block of it. The case ends on failure.
#define HEAP(...) open_heap(DESC(heap_desc, .kind = kind, .device = device, __VA_ARGS__))
gmm_heap *open_heap(const gmm_heap_desc *desc);
void *take_of(gmm_heap *heap, uint64_t size);
// A stream of the case's context, on its device or another one. The case ends on failure.
gmm_stream open_stream(void);
gmm_stream open_stream_on(gmm_device d);
// Destroys those that were opened and that the case has not destroyed itself.
void close_streams(void);
// The limit of a scope on the case's device.
void set_limit(uint32_t flags, gmm_tag tag, uint64_t bytes);
// Trims, and checks that the context holds nothing.
#define NOTHING_STAYS()                        \
  do {                                         \
    CHECK_EQUAL(stats().live_blocks, 0);       \
    CHECK(gmm_trim(context, NULL, NULL) >= 0); \
    CHECK_EQUAL(stats().reserved_bytes, 0);    \
  } while (0)
// Runs a function in threads, each with its number from 0, and waits for them.
void run_threads(unsigned count, void *(*fn)(void *number));
// Starts a thread. The case ends on failure.
pthread_t start_thread(void *(*fn)(void *argument), void *argument);
// Runs a function in a forked child, which ends by _exit(); the status of waitpid().
int in_child(int (*fn)(void *argument), void *argument);
// Checks the result of a call that leaves its output `bytes` alone.
#define LEAVES_BYTES(call, expected) \
  do {                               \
    uint64_t bytes = 77;             \
    RESULT(call, expected);          \
    CHECK_EQUAL(bytes, 77);          \
  } while (0)
// Runs a function in one thread and waits for it. A failure to start the thread is noted.
void run_thread(void *(*fn)(void *argument), void *argument);
gmm_pointer_info query(const void *address);
gmm_state state_of(const void *address);
gmm_stats_info stats_of(uint32_t flags, gmm_device d, gmm_tag tag, gmm_kind k);
gmm_stats_info stats(void);
gmm_backup_info backup_info(void);
gmm_context_info context_info(void);
gmm_ticket_info ticket_info(gmm_ticket *ticket);
gmm_tag_info tag_info(gmm_tag tag);
gmm_tag make_tag(const char *name, gmm_contents contents);
gmm_tag make_tag_of(const char *name, gmm_contents contents, uint32_t flags);
// The descriptor of a pause or resume of one tag; a pause and a resume of it.
gmm_pause_desc one_tag(const gmm_tag *tag);
gmm_result pause_of(gmm_tag tag);
gmm_result resume_of(gmm_tag tag);
// Waits for a ticket's operation, checks its result and destroys the ticket.
#define ENDS_WITH(ticket, expected)                               \
  do {                                                            \
    RESULT(gmm_ticket_wait(ticket, GMM_FOREVER, NULL), expected); \
    OK(gmm_ticket_destroy(ticket));                               \
  } while (0)
// Callbacks that do nothing, and answer that all is well.
void ignore_call(void *user);
int32_t ignore_text(void *user, const char *text, uint64_t size);
int32_t ignore_watch(void *user, const gmm_watch_info *info);
int32_t ignore_oom(void *user, const gmm_oom_info *info);
int32_t ignore_value(void *user, uint64_t value);
// Whether the message of the last error has these words.
bool message_has(const char *words);

// The pattern of a seed: different in every place and for every seed.
static inline uint8_t pattern_at(uint64_t i, uint32_t seed) {
  return (uint8_t)((i * 31 + i / 4096 + seed * 7919u + (seed >> 3)) & 255);
}

// For memory that the processor reaches: fills it with the pattern; how many bytes at its start have the pattern.
void fill_pattern(void *memory, uint64_t size, uint32_t seed);
uint64_t pattern_length(const void *memory, uint64_t size, uint32_t seed);

void write_pattern(void *memory, uint64_t size, uint32_t seed, gmm_stream stream);

// Checks that memory holds the pattern, and shows the first byte that differs.
#define CHECK_PATTERN(memory, size, seed) check_pattern(__LINE__, memory, size, seed, GMM_STREAM_DEFAULT)
bool check_pattern(int line, const void *memory, uint64_t size, uint32_t seed, gmm_stream stream);
// Whether each byte has the value, read by the stream.
bool is_filled(const void *memory, uint64_t size, uint8_t value, gmm_stream stream);
void sleep_ms(long ms);
double now_s(void);

// Waits for an effect of another thread or process, and checks that it came. How fast is not checked: a busy machine
// takes its time.
enum { SOON_S = 60 };
#define SOON(condition)                                                                                    \
  do {                                                                                                     \
    bool soon_so = false;                                                                                  \
    for (double soon_end = now_s() + SOON_S; !(soon_so = (condition)) && now_s() < soon_end;) sleep_ms(1); \
    CHECK_MESSAGE(soon_so, "not even after %d s: %s", SOON_S, #condition);                                 \
  } while (0)

uint64_t free_device_bytes(void);

// Work that holds a stream until it is opened, and opens itself after a while: for a call that has to wait for it, or,
// after GATE_S, so that a mistake fails instead of hanging.
enum { GATE_S = 60 };
typedef struct gate {
  atomic_int open, entered, passed;
  double seconds;
} gate;
void gate_close(gate *g, gmm_stream stream, double seconds);

#endif
