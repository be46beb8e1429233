// SPDX-License-Identifier: Apache-2.0
// residency.h: hints, prefetch and moves keep the address and the contents.
#include "../support/gmm_test.h"

#define ONLY(k) (1u << (k))
#define SIZE (3 * MIB + 4096)

static void need_moving_pages(void) {
  if ((device_info.capabilities & GMM_DEVICE_CAN_CONCURRENT_MANAGED) == 0)
    SKIP("the device has no concurrent managed access");
}

CASE_OF_KINDS(every_advice_is_taken, ONLY(GMM_KIND_MANAGED)) {
  need_moving_pages();
  char *block = FILLED(SIZE, 1);
  for (gmm_advice advice = GMM_ADVISE_SET_READ_MOSTLY; advice <= GMM_ADVISE_UNSET_ACCESSED_BY; ++advice) {
    OK(gmm_advise(context, block, 0, advice, device));
    OK(gmm_advise(context, block + MIB, MIB, advice, device));
    if (advice > GMM_ADVISE_UNSET_READ_MOSTLY)
      OK(gmm_advise(context, block, SIZE, advice, GMM_DEVICE_HOST));
    else
      OK(gmm_advise(context, block, SIZE, advice, 4711));  // the location is not looked at
  }
  CHECK_PATTERN(block, SIZE, 1);
}

CASE_OF_KINDS(prefetch_keeps_contents, ONLY(GMM_KIND_MANAGED)) {
  need_moving_pages();
  gmm_stream stream = open_stream();
  char *block = ALLOC_STREAM(SIZE, stream);
  write_pattern(block, SIZE, 2, stream);
  OK(gmm_prefetch(context, block, 0, device, stream));
  OK(gmm_prefetch(context, block, SIZE, GMM_DEVICE_HOST, stream));
  OK(gmm_prefetch(context, block + 5000, 10000, device, stream));
  OK(gmm_stream_synchronize(context, stream));
  CHECK_PATTERN(block, SIZE, 2);
  CHECK(query(block).base == block);
  static gate hold;
  gate_close(&hold, stream, GATE_S);
  OK(gmm_prefetch(context, block, 0, GMM_DEVICE_HOST, stream));
  CHECK_MESSAGE(atomic_load(&hold.passed) == 0, "the prefetch waited for the stream");
  atomic_store(&hold.open, 1);
  OK(gmm_stream_synchronize(context, stream));
  CHECK_PATTERN(block, SIZE, 2);
}

CASE_OF_KINDS(moved_memory_keeps_address_and_contents, ONLY(GMM_KIND_MANAGED) | ONLY(GMM_KIND_VMM)) {
  char *block = FILLED_ALONE(SIZE, GMM_TAG_CURRENT, 3);
  gmm_device places[20] = {GMM_DEVICE_HOST};
  unsigned count = 1;
  for (uint32_t d = 0; d < device_count() && d < 16; ++d) places[count++] = (gmm_device)d;
  places[count++] = GMM_DEVICE_HOST;
  places[count++] = device;
  unsigned moved = 0;
  for (unsigned i = 0; i < count; ++i) {
    gmm_result result = gmm_move(context, block + (i % 2) * 5000, places[i], NULL);
    CHECK_MESSAGE(result == GMM_OK || result == GMM_UNCHANGED || result == GMM_ERROR_NOT_SUPPORTED,
                  "move to %d: %s: %s", places[i], gmm_result_name(result), gmm_last_error_message());
    moved += result == GMM_OK;
    CHECK_PATTERN(block, SIZE, 3);
    const gmm_pointer_info info = query(block + 70);
    CHECK(info.base == block && info.size == SIZE && info.state == GMM_STATE_ACTIVE && info.kind == kind);
  }
  RESULT(gmm_move(context, block, -2000, NULL), GMM_ERROR_INVALID_DEVICE);
  write_pattern(block, SIZE, 4, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(block, SIZE, 4);
  FREE(block);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  NOTHING_STAYS();
  if (moved == 0) SKIP("the device supports no move of %s memory", kind_name(kind));
}

CASE_OF_KINDS(moves_to_a_node_of_the_host, ONLY(GMM_KIND_MANAGED) | ONLY(GMM_KIND_VMM)) {
  char *block = FILLED_ALONE(SIZE, GMM_TAG_CURRENT, 3);
  if (kind != GMM_KIND_VMM || (device_info.capabilities & GMM_DEVICE_CAN_HOST_NUMA) == 0) {
    RESULT(gmm_move(context, block, GMM_DEVICE_NUMA(0), NULL), GMM_ERROR_NOT_SUPPORTED);
    CHECK_MESSAGE(message_has("NUMA node 0"), "%s", gmm_last_error_message());
  } else {
    MUST(gmm_move(context, block, GMM_DEVICE_NUMA(0), NULL));
    CHECK_EQUAL(gmm_move(context, block, GMM_DEVICE_NUMA(0), NULL), GMM_UNCHANGED);
    CHECK_PATTERN(block, SIZE, 3);
    CHECK((query(block).flags & GMM_POINTER_HOST_ACCESSIBLE) != 0);
    // A node that is not there leaves the block where it was.
    RESULT(gmm_move(context, block, GMM_DEVICE_NUMA(1000), NULL), GMM_ERROR_INVALID_DEVICE);
    CHECK_PATTERN(block, SIZE, 3);
    MUST(gmm_move(context, block, device, NULL));
  }
  CHECK_PATTERN(block, SIZE, 3);
  RESULT(gmm_move(context, block, GMM_DEVICE_NUMA(1024), NULL), GMM_ERROR_INVALID_DEVICE);
}

CASE_OF_KINDS(moves_are_in_the_order_of_the_stream, ONLY(GMM_KIND_MANAGED) | ONLY(GMM_KIND_VMM)) {
  gmm_stream stream = open_stream();
  void *block = alloc_here(__LINE__, SIZE, GMM_TAG_CURRENT, stream, GMM_ALLOC_DEDICATED);
  OK(gmm_fill(context, block, 1, SIZE, stream));
  OK(gmm_stream_synchronize(context, stream));
  static gate hold;
  gate_close(&hold, stream, 0.3);
  OK(gmm_fill(context, block, 9, SIZE, stream));
  gmm_move_desc move = {.struct_size = sizeof move, .stream = stream};
  gmm_result result = gmm_move(context, block, GMM_DEVICE_HOST, &move);
  if (result == GMM_OK) CHECK_EQUAL(atomic_load(&hold.passed), 1);  // a move to the host waits
  OK(gmm_stream_synchronize(context, stream));
  if (result == GMM_OK) {
    move.flags = GMM_MOVE_NON_BLOCKING;
    OK(gmm_move(context, block, device, &move));
    OK(gmm_move(context, block, GMM_DEVICE_HOST, &move));
    OK(gmm_stream_synchronize(context, stream));
  }
  CHECK(is_filled(block, SIZE, 9, stream));
  if (result == GMM_ERROR_NOT_SUPPORTED) SKIP("%s", gmm_last_error_message());
  CHECK_EQUAL(result, GMM_OK);
}

int main(void) { return run_cases(); }
