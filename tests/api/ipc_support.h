// SPDX-License-Identifier: Apache-2.0
// A second process that shares memory and an event, and obeys one command after another.
#ifndef GMM_TESTS_IPC_SUPPORT_H
#define GMM_TESTS_IPC_SUPPORT_H

#include "../support/gmm_test.h"
#include "../support/second_process.h"

#define SHAREABLE ((1u << GMM_KIND_DEVICE) | (1u << GMM_KIND_VMM) | (1u << GMM_KIND_HOST))
#define WITH_FILES ((1u << GMM_KIND_VMM) | (1u << GMM_KIND_HOST))

#define IMPORT_WITHIN(milliseconds) DESC(ipc_import_desc, .device = device, .timeout_ms = (milliseconds))
__attribute__((unused)) static gmm_result import(const gmm_ipc_handle *handle, uint64_t timeout_ms, void **out) {
  return gmm_ipc_import(context, handle, IMPORT_WITHIN(timeout_ms), out);
}
__attribute__((unused)) static gmm_event *import_event(const gmm_ipc_handle *handle) {
  gmm_event *event = NULL;
  MUST(gmm_event_import(context, handle, IMPORT_WITHIN(60000), &event));
  return event;
}

// A block says by which routes it can be shared.
__attribute__((unused)) static bool can_share(void) {
  void *block = ALLOC(1000);
  bool can = query(block).ipc_routes != 0;
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  return can;
}
#define NEEDS_SHARING()                                                           \
  do {                                                                            \
    if (!can_share()) SKIP("the device cannot share %s memory", kind_name(kind)); \
  } while (0)

__attribute__((unused)) static void *shared_block(uint64_t size, uint32_t seed, gmm_ipc_handle *handle) {
  void *block = FILLED(size, seed);
  MUST(gmm_ipc_export(context, block, handle));
  return block;
}
// Importers may close their memory a moment before the exporter learns of it.
#define NOTHING_STAYS_SOON() SOON(gmm_trim(context, NULL, NULL) >= 0 && stats().reserved_bytes == 0)
__attribute__((unused)) static gmm_result pause_soon(const gmm_pause_desc *desc) {
  gmm_result result = GMM_ERROR_BUSY;
  SOON((result = gmm_pause(context, desc, NULL)) != GMM_ERROR_BUSY);
  return result;
}

typedef enum other_act {
  OTHER_MAKES = 1,  // allocates, writes the pattern, exports: the answer has the handle
  OTHER_FREES,      // and returns the memory to the driver
  OTHER_IMPORTS,    // and checks the pattern
  OTHER_CLOSES,
  OTHER_WRITES,
  OTHER_CHECKS,
  OTHER_COPIES,  // from the memory
  OTHER_FILLS,
  OTHER_QUERIES,  // value: the state
  OTHER_COUNTS,   // value: the imported bytes
  OTHER_MAKES_EVENT,
  OTHER_QUEUES,  // work on the memory that fills it with `seed` after OTHER_LETS_GO, and the event behind it
  OTHER_LETS_GO,
  OTHER_DESTROYS_EVENT,
  OTHER_FORKS,  // value: a child that has all its descriptors and ends with its input
  OTHER_ENDS
} other_act;
typedef struct other_order {
  other_act act;
  uint32_t slot, seed;  // the slot of the memory
  uint64_t size, timeout_ms;
  gmm_ipc_handle handle;
} other_order;
typedef struct other_answer {
  gmm_result result;
  uint32_t failures;
  uint64_t value;
  gmm_ipc_handle handle;
  void *memory;
} other_answer;

static int held_work[2];  // a pipe
static void wait_for_release(void *unused) {
  (void)unused;
  char byte = 0;
  if (read(held_work[0], &byte, 1) < 0) return;
}
static gmm_result carry_out(const other_order *order, other_answer *answer) {
  static char *slots[4];
  static gmm_stream stream;
  static gmm_event *event;
  char **memory = &slots[order->slot];
  uint8_t bytes[64];
  gmm_result result = GMM_OK;
  switch (order->act) {
    case OTHER_MAKES:
      *memory = FILLED(order->size, order->seed);
      result = gmm_ipc_export(context, *memory, &answer->handle);
      break;
    case OTHER_FREES:
      result = gmm_free(context, *memory, GMM_STREAM_DEFAULT);
      if (result == GMM_OK) result = gmm_stream_synchronize(context, GMM_STREAM_DEFAULT);
      if (result == GMM_OK) result = gmm_trim(context, NULL, NULL) < 0 ? GMM_ERROR_DRIVER : GMM_OK;
      break;
    case OTHER_IMPORTS: {
      void *imported = NULL;
      result = import(&order->handle, order->timeout_ms, &imported);
      if (result != GMM_OK) break;
      *memory = imported;
      const gmm_pointer_info info = query(*memory + order->size / 2);
      CHECK_EQUAL(info.state, GMM_STATE_IMPORTED);
      CHECK_EQUAL(info.kind, kind);
      CHECK_PATTERN(*memory, order->size, order->seed);
      break;
    }
    case OTHER_CLOSES:
      result = gmm_ipc_close(context, *memory);
      break;
    case OTHER_WRITES:
      write_pattern(*memory, order->size, order->seed, GMM_STREAM_DEFAULT);
      break;
    case OTHER_CHECKS:
      CHECK_PATTERN(*memory, order->size, order->seed);
      break;
    case OTHER_COPIES:
      result = gmm_copy(context, bytes, *memory, sizeof bytes, GMM_STREAM_DEFAULT);
      break;
    case OTHER_FILLS:
      result = gmm_fill(context, *memory, 1, sizeof bytes, GMM_STREAM_DEFAULT);
      break;
    case OTHER_QUERIES:
      answer->value = query(*memory).state;
      break;
    case OTHER_COUNTS:
      answer->value = stats().imported_bytes;
      break;
    case OTHER_MAKES_EVENT:
      CHECK(pipe(held_work) == 0);
      stream = open_stream();
      OK(gmm_event_create(context, SHARED_EVENT_ON(device), &event));
      result = gmm_event_export(event, &answer->handle);
      break;
    case OTHER_QUEUES:
      OK(gmm_stream_call(context, stream, wait_for_release, NULL));
      OK(gmm_fill(context, *memory, order->seed, order->size, stream));
      result = gmm_event_record(event, 0, stream);
      break;
    case OTHER_LETS_GO:
      CHECK(write(held_work[1], "g", 1) == 1);
      break;
    case OTHER_DESTROYS_EVENT:
      OK(gmm_stream_destroy(context, stream));
      result = gmm_event_destroy(event);
      break;
    case OTHER_FORKS: {
      const pid_t child = fork();
      if (child == 0) {
        sleep_ms(1000 * SOON_S);
        _exit(0);
      }
      answer->value = (uint64_t)child;
      break;
    }
    case OTHER_ENDS:
      break;
  }
  if (result < 0) fprintf(stderr, "# the other process: %s\n", gmm_last_error_message());
  answer->memory = *memory;
  return result;
}

// The context is open.
static int run_other(void) {
  for (other_order order; receive_bytes(0, &order, sizeof order) && order.act != OTHER_ENDS;) {
    other_answer answer = {0};
    answer.result = carry_out(&order, &answer);
    answer.failures = (uint32_t)atomic_load(&check_state.failures);
    if (!send_bytes(SECOND_OUT, &answer, sizeof answer)) return 90;
  }
  return gmm_context_release(context) == GMM_OK ? 0 : 91;
}
// For run_cases_or().
__attribute__((unused)) static int other_main(char **words) {
  (void)words;
  context = open_context(2);
  read_device(device);
  return run_other();
}

__attribute__((unused)) static second_process start_other(void) {
  second_process process;
  REQUIRE(second_start(&process, NULL, 0));
  return process;
}
static other_answer order_other(second_process *other, other_order order) {
  other_answer answer = {.result = GMM_ERROR_NOT_READY};
  CHECK(send_bytes(other->to, &order, sizeof order));
  CHECK(receive_bytes(other->from, &answer, sizeof answer));
  CHECK_EQUAL(answer.failures, 0);
  return answer;
}
#define OTHER(other, ...) order_other(other, (other_order){__VA_ARGS__})
// Checks that the other process succeeds.
#define OTHER_OK(other, ...) CHECK_EQUAL(OTHER(other, __VA_ARGS__).result, GMM_OK)
__attribute__((unused)) static gmm_ipc_handle other_makes(second_process *other, uint64_t size, uint32_t seed) {
  const other_answer answer = OTHER(other, .act = OTHER_MAKES, .size = size, .seed = seed);
  CHECK_EQUAL(answer.result, GMM_OK);
  return answer.handle;
}
__attribute__((unused)) static gmm_result other_imports(second_process *other, const gmm_ipc_handle *handle,
                                                        uint64_t size, uint32_t seed) {
  return OTHER(other, .act = OTHER_IMPORTS, .handle = *handle, .size = size, .seed = seed, .timeout_ms = 60000).result;
}
// It imports and closes again.
__attribute__((unused)) static gmm_result other_reads(second_process *other, const gmm_ipc_handle *handle,
                                                      uint64_t size, uint32_t seed, uint64_t timeout_ms) {
  const gmm_result result =
      OTHER(other, .act = OTHER_IMPORTS, .handle = *handle, .size = size, .seed = seed, .timeout_ms = timeout_ms)
          .result;
  return result == GMM_OK ? OTHER(other, .act = OTHER_CLOSES).result : result;
}
__attribute__((unused)) static void end_other(second_process *other) {
  const other_order order = {.act = OTHER_ENDS};
  CHECK(send_bytes(other->to, &order, sizeof order));
  CHECK_EQUAL(second_wait(other), 0);
}

#endif
