// SPDX-License-Identifier: Apache-2.0
// pin.h: the caller's own memory.
#include <sys/mman.h>

#include "../support/gmm_test.h"

#define PAGE ((uint64_t)4096)
#define PAGES 64
static uint8_t *own;

// Anew for each case.
static void open_own(void) {
  if ((device_info.capabilities & GMM_DEVICE_CAN_PIN) == 0) SKIP("the device cannot pin");
  if (own != NULL) munmap(own, PAGES * PAGE);
  own = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(own != MAP_FAILED);
  memset(own, 1, PAGES * PAGE);
}

static uint64_t locked_kib(void) {
  char line[256];
  unsigned long long kib = 0;
  FILE *file = fopen("/proc/self/status", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL)
    if (sscanf(line, "VmLck: %llu", &kib) == 1) break;
  if (file != NULL) fclose(file);
  return kib;
}

CASE(pinned_memory_is_reached_by_the_device) {
  open_own();
  gmm_pin_desc desc = {.struct_size = sizeof desc, .device = device};
  void *seen = NULL;
  uint64_t locked = locked_kib();
  MUST(gmm_pin(context, own + 100, 10 * PAGE, &desc, &seen));
  CHECK(seen != NULL);
  if (on_host_backend() && !CHECK_SANITIZED)
    CHECK_MESSAGE(locked_kib() >= locked + 40, "mlock shows in VmLck: %llu KiB before, %llu after",
                  (unsigned long long)locked, (unsigned long long)locked_kib());
  gmm_pointer_info info = query(own + 5000);
  CHECK(info.state == GMM_STATE_PINNED && info.base == own + 100 && info.size == 10 * PAGE);
  CHECK(info.tag == 0 && info.usm == GMM_USM_HOST);
  CHECK((info.flags & GMM_POINTER_HOST_ACCESSIBLE) != 0 && (info.flags & GMM_POINTER_DEVICE_ACCESSIBLE) != 0);
  CHECK((uint8_t *)info.device_pointer == (uint8_t *)seen + 4900);
  CHECK(stats().pinned_bytes >= 10 * PAGE);
  void *block = ALLOC(10 * PAGE);
  fill_pattern(own + 100, 10 * PAGE, 6);
  OK(gmm_copy(context, block, own + 100, 10 * PAGE, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  CHECK_PATTERN(block, 10 * PAGE, 6);
  OK(gmm_unpin(context, own + 100));
  CHECK_EQUAL(query(own + 5000).state, GMM_STATE_UNKNOWN);
  CHECK_EQUAL(stats().pinned_bytes, 0);
  if (on_host_backend() && !CHECK_SANITIZED) CHECK_EQUAL(locked_kib(), locked);
  CHECK_MESSAGE(pattern_length(own + 100, 10 * PAGE, 6) == 10 * PAGE, "the memory is not as it was");
}

CASE(pins_nest) {
  open_own();
  OK(gmm_pin(context, own, 8 * PAGE, NULL, NULL));
  OK(gmm_pin(context, own, 8 * PAGE, NULL, NULL));             // the same range
  OK(gmm_pin(context, own + PAGE, 2 * PAGE + 5, NULL, NULL));  // a part of it
  OK(gmm_pin(context, own + 3, 1, NULL, NULL));
  OK(gmm_unpin(context, own));
  CHECK_EQUAL(query(own + 7 * PAGE).state, GMM_STATE_PINNED);
  OK(gmm_unpin(context, own + 3));
  RESULT(gmm_unpin(context, own + 3), GMM_ERROR_NOT_PINNED);
  OK(gmm_unpin(context, own));  // the outer ones go first
  CHECK_EQUAL(query(own + PAGE).state, GMM_STATE_PINNED);
  CHECK_EQUAL(query(own + 7 * PAGE).state, GMM_STATE_UNKNOWN);
  RESULT(gmm_unpin(context, own), GMM_ERROR_NOT_PINNED);
  OK(gmm_unpin(context, own + PAGE));
  CHECK_EQUAL(query(own + PAGE).state, GMM_STATE_UNKNOWN);
}

CASE(overlaps_are_refused) {
  open_own();
  OK(gmm_pin(context, own + 4 * PAGE, 8 * PAGE, NULL, NULL));
  gmm_stats_info before = stats();
  RESULT(gmm_pin(context, own + 8 * PAGE, 8 * PAGE, NULL, NULL), GMM_ERROR_OVERLAP);
  CHECK(strlen(gmm_last_error_message()) > 20);
  RESULT(gmm_pin(context, own, 8 * PAGE, NULL, NULL), GMM_ERROR_OVERLAP);
  RESULT(gmm_pin(context, own, 32 * PAGE, NULL, NULL), GMM_ERROR_OVERLAP);
  RESULT(gmm_pin(context, own + 12 * PAGE - 1, 2, NULL, NULL), GMM_ERROR_OVERLAP);
  gmm_stats_info after = stats();
  CHECK(memcmp(&before, &after, sizeof before) == 0);
  OK(gmm_pin(context, own + 12 * PAGE, PAGE, NULL, NULL));  // next to it
  OK(gmm_unpin(context, own + 12 * PAGE));
  OK(gmm_unpin(context, own + 4 * PAGE));
}

CASE(ranges_may_share_a_page) {
  open_own();
  OK(gmm_pin(context, own, PAGE + 100, NULL, NULL));
  OK(gmm_pin(context, own + PAGE + 100, 200, NULL, NULL));
  OK(gmm_pin(context, own + PAGE + 300, 3 * PAGE, NULL, NULL));
  CHECK(query(own + PAGE + 99).base == own);
  CHECK(query(own + PAGE + 100).base == own + PAGE + 100);
  OK(gmm_unpin(context, own));
  CHECK_EQUAL(query(own + PAGE + 150).state, GMM_STATE_PINNED);
  CHECK_EQUAL(query(own + PAGE + 50).state, GMM_STATE_UNKNOWN);
  OK(gmm_unpin(context, own + PAGE + 300));
  CHECK_EQUAL(query(own + PAGE + 150).state, GMM_STATE_PINNED);
  OK(gmm_pin(context, own, PAGE + 100, NULL, NULL));
  OK(gmm_unpin(context, own + PAGE + 100));
  OK(gmm_unpin(context, own));
}

CASE(bad_pins_are_refused) {
  open_own();
  const gmm_pin_desc desc = {.struct_size = sizeof desc, .device = device};
  munmap(own + 32 * PAGE, 4 * PAGE);  // a hole
  const uint64_t locked = locked_kib();
  if (!CHECK_SANITIZED || !on_host_backend()) {
    gmm_result result = gmm_pin(context, own + 30 * PAGE, 8 * PAGE, NULL, NULL);
    CHECK_MESSAGE(result == GMM_ERROR_SYSTEM || result == GMM_ERROR_DRIVER, "memory with a hole: %s",
                  gmm_result_name(result));
    CHECK(gmm_last_native_code() != 0);
    if (on_host_backend()) CHECK_EQUAL(locked_kib(), locked);  // nor are the pages in front of the hole locked
  }
  CHECK_EQUAL(stats().pinned_bytes, 0);
  OK(gmm_pin(context, own, PAGE, &desc, NULL));
  RESULT(gmm_unpin(context, own + 1), GMM_ERROR_NOT_PINNED);
  RESULT(gmm_free(context, own, GMM_STREAM_DEFAULT), GMM_ERROR_INVALID_KIND);
  OK(gmm_unpin(context, own));
}

CASE(releasing_the_context_unpins) {
  open_own();
  gmm_context *other = open_context(1);
  uint64_t locked = locked_kib();
  OK(gmm_pin(other, own, 8 * PAGE, NULL, NULL));
  OK(gmm_context_release(other));
  CHECK_EQUAL(locked_kib(), locked);
  OK(gmm_pin(context, own, 8 * PAGE, NULL, NULL));
  OK(gmm_unpin(context, own));
}

int main(void) { return run_cases(); }
