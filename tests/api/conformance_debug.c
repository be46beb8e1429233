// SPDX-License-Identifier: Apache-2.0
// GMM_DEBUG: mistakes with blocks are found from what gmm says.
#define _GNU_SOURCE
#include <sys/uio.h>

#include "../support/cuda_graph.h"

static char said[4096];
static void note(void *user, uint32_t level, const char *message) {
  (void)user;
  if (level <= 2) snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", message);
}

static bool cpu_reaches(void) {
  return on_host_backend() || kind == GMM_KIND_HOST ||
         (kind == GMM_KIND_MANAGED && (device_info.capabilities & GMM_DEVICE_CAN_CONCURRENT_MANAGED) != 0);
}

// Copies a byte of memory, as the program's own kernels use it. False: one of the addresses has no memory.
static bool copies(void *to, const void *from) {
  if (on_host_backend())
    return process_vm_readv(getpid(), &(struct iovec){to, 1}, 1, &(struct iovec){(void *)from, 1}, 1, 0) == 1;
  if (cpu_reaches()) {
    *(uint8_t *)to = *(const uint8_t *)from;
    return true;
  }
  enter_device();
  const bool copied = cuda.cuMemcpy((CUdeviceptr)to, (CUdeviceptr)from, 1) == 0;
  exit_device();
  return copied;
}
static void write_byte(void *address, uint8_t value) { CHECK(copies(address, &value)); }
static uint8_t read_byte(const void *address) {
  uint8_t value = 0;
  CHECK(copies(&value, address));
  return value;
}
static bool says(const char *words) { return strstr(said, words) != NULL; }
static void check_quiet(void) {
  CHECK(gmm_trim(context, NULL, NULL) >= 0);
  CHECK_EQUAL(said[0], '\0');
}

// The case's context anew, under these words.
static void debug(const char *words) {
  if (CHECK_SANITIZED) SKIP("a sanitizer reports the planted mistakes itself");
  if (!cpu_reaches() && (backend_id() != GMM_BACKEND_CUDA || !find_cuda()))
    SKIP("nothing writes past a block of this backend");
  OK(gmm_context_release(context));
  setenv("GMM_DEBUG", words, 1);
  said[0] = '\0';
  context = OPEN(.host_devices = 2, .log = {note, NULL});
  unsetenv("GMM_DEBUG");
}

CASE_OF_KINDS(an_overrun_is_found, ALL_KINDS) {
  debug("redzone");
  static const uint64_t sizes[] = {1, 256, 1000, 5 * MIB, 80 * MIB};
  for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    unsigned char *block = ALLOC_TAG(sizes[i], make_tag("layer", GMM_CONTENTS_HOST));
    OK(gmm_fill(context, block, 7, sizes[i], GMM_STREAM_DEFAULT));
    OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
    CHECK_EQUAL(query(block).size, sizes[i]);
    OK(gmm_name(context, block, "weights"));
    write_byte(block + sizes[i] + 3, 7);
    said[0] = '\0';
    if (cpu_reaches()) {
      RESULT(gmm_free(context, block, GMM_STREAM_DEFAULT), GMM_ERROR_CORRUPT);
      CHECK(says(gmm_last_error_message()));
      CHECK_EQUAL(state_of(block), GMM_STATE_ACTIVE);
      write_byte(block + sizes[i] + 3, 0xfb);
    }
    FREE(block);
    CHECK(gmm_trim(context, NULL, NULL) >= 0);
    char words[200];
    snprintf(words, sizeof words,
             "past the end of block %p weights of %llu bytes of %s memory of device %d with tag "
             "\"layer\": byte %llu is the first wrong one",
             (void *)block, (unsigned long long)sizes[i], kind_name(kind), (int)device,
             (unsigned long long)sizes[i] + 3);
    CHECK_MESSAGE(says(words), "'%s' lacks '%s'", said, words);
  }
}

// More frees than looks at them find place. Neither a trim nor the end of the stream is needed, and that loses none.
CASE_OF_KINDS(an_overrun_in_the_order_of_a_stream_is_found, ALL_KINDS) {
  debug("redzone");
  if (cpu_reaches()) SKIP("the free says so");
  const gmm_stream stream = open_stream();
  for (unsigned i = 0; i < 5000; ++i) FREE_ON(stream, ALLOC_STREAM(300, stream));
  unsigned char *blocks[] = {ALLOC_STREAM(300, stream), ALLOC_STREAM(1000, stream)};
  OK(gmm_stream_synchronize(context, stream));
  CHECK_EQUAL(said[0], '\0');
  write_byte(blocks[0] + 300, 1);
  write_byte(blocks[1] + 1063, 1);
  FREE_ON(stream, blocks[0]);
  SOON((FREE_ON(stream, ALLOC_STREAM(300, stream)), says("byte 300 is the first wrong one")));
  FREE_ON(stream, blocks[1]);
  close_streams();
  CHECK(says("byte 1063 is the first wrong one"));
}

CASE_OF_KINDS(work_of_a_stream_damages_no_red_zone, ALL_KINDS) {
  debug("redzone,poison");
  const gmm_stream stream = open_stream();
  gate held;
  gate_close(&held, stream, GATE_S);
  void *first = ALLOC_STREAM(1000, stream);
  OK(gmm_fill(context, first, 1, 1000, stream));
  FREE_ON(stream, first);
  void *second = ALLOC_STREAM(970, stream);
  CHECK(second == first);
  FREE(ALLOC_STREAM(1000, stream));  // on another stream
  held.open = 1;
  OK(gmm_stream_synchronize(context, stream));
  FREE_ON(stream, second);
  check_quiet();
}

// The block of the default stream has no red zone then, and the graph holds none of the work.
CASE_OF_KINDS(a_capture_is_left_alone, ALL_KINDS) {
  debug("redzone,poison,quarantine");
  if (backend_id() != GMM_BACKEND_CUDA || !find_cuda()) SKIP("this backend captures nothing");
  enter_device();
  CUstream stream = NULL;
  CU(cuda.cuStreamCreateWithPriority(&stream, 0, 0));  // one that the default stream waits for
  begin_capture((gmm_stream)stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  FREE(ALLOC(1000));
  FREE_ON((gmm_stream)stream, ALLOC_STREAM(1000, (gmm_stream)stream));
  captured graph = end_capture((gmm_stream)stream);
  CHECK(graph.executable != NULL);
  launch(&graph, (gmm_stream)stream);
  destroy_graph(&graph);
  OK(gmm_stream_forget(context, (gmm_stream)stream));
  CU(cuda.cuStreamDestroy_v2(stream));
  check_quiet();
  exit_device();
}

CASE_OF_KINDS(a_write_after_the_free_is_found, ALL_KINDS) {
  debug("poison,quarantine");
  const gmm_tag tag = make_tag("cache", GMM_CONTENTS_HOST);
  unsigned char *block = ALLOC_TAG(1000, tag), *large = ALLOC_TAG(3 * MIB, tag);
  FREE(block, large);
  CHECK(read_byte(block) == 0xdb && read_byte(block + 999) == 0xdb && read_byte(large) == 0xdb);
  write_byte(block + 5, 1);
  write_byte(large + 3 * MIB - 1, 1);
  CHECK(gmm_trim(context, NULL, NULL) >= 0);
  CHECK(says("after its free to block") && says("\"cache\": byte 5 is") && says("byte 3145727 is the first wrong one"));
}

CASE_OF_KINDS(a_block_in_quarantine_cannot_be_freed_again, ALL_KINDS) {
  debug("quarantine");
  void *block = ALLOC(1000), *again = NULL;
  FREE(block);
  for (unsigned i = 0; i < 100; ++i) {
    CHECK((again = ALLOC(1000)) != block);
    FREE(again);
  }
  RESULT(gmm_free(context, block, GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
  CHECK_EQUAL(stats().live_blocks, 0);
  // It never makes memory short, and holds 64 MiB at most.
  set_limit(GMM_SCOPE_DEVICE, 0, 40 * MIB);
  for (unsigned i = 0; i < 10; ++i) FREE(ALLOC(30 * MIB));
  set_limit(GMM_SCOPE_DEVICE, 0, GMM_NO_LIMIT);
  for (unsigned i = 0; i < 20; ++i) FREE(ALLOC(10 * MIB));
  CHECK(stats().reserved_bytes <= 90 * MIB);
  NOTHING_STAYS();
}

VMM_CASE(a_pause_keeps_the_checks) {
  debug("redzone,poison,quarantine");
  static const gmm_contents contents[] = {GMM_CONTENTS_HOST, GMM_CONTENTS_DROP};
  for (unsigned i = 0; i < 2; ++i) {
    const gmm_tag tag = make_tag(i == 0 ? "kept" : "dropped", contents[i]);
    void *blocks[] = {ALLOC_TAG(1000, tag), ALLOC_TAG(3 * MIB, tag), ALLOC_TAG(1000, tag)};
    FREE(ALLOC_TAG(1000, tag));
    OK(pause_of(tag));
    RESULT(gmm_fill(context, blocks[0], 0, 10, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
    CHECK(message_has(i == 0 ? "\"kept\"" : "\"dropped\""));
    FREE(blocks[1]);
    OK(resume_of(tag));
    FREE(blocks[0], blocks[2]);
  }
  FREE(ALLOC(1000));
  OK(gmm_reset(context));
  CHECK(said[0] == '\0');
}

VMM_CASE(a_guarded_block_ends_at_unmapped_addresses) {
  debug("guard,redzone");
  uint8_t *blocks[3] = {ALLOC(2 * MIB - 64), ALLOC(5000), ALLOC_FLAGS(7 * MIB, GMM_ALLOC_ZERO)}, byte = 0;
  for (unsigned i = 0; i < 3; ++i) {
    const gmm_pointer_info info = query(blocks[i]);
    CHECK(info.allocation_base == blocks[i] && copies(&byte, blocks[i] + info.allocation_size - 1));
    // A real driver takes such an address for ordinary memory of the host, and the copy would end the program.
    if (on_host_or_fake_driver()) CHECK(!copies(&byte, blocks[i] + info.allocation_size));
  }
  OK(pause_of(GMM_TAG_DEFAULT));
  OK(resume_of(GMM_TAG_DEFAULT));
  FREE_ALL((void **)blocks, 3);
  NOTHING_STAYS();
}

CASE_OF_KINDS(reports_name_the_calls, ALL_KINDS) {
  debug("redzone,poison,quarantine,stacks");
  unsigned char *past = ALLOC(1000), *late = ALLOC(2000);
  FREE(late);
  write_byte(past + 1000, 1);
  write_byte(late + 1999, 1);
  if (cpu_reaches()) {
    RESULT(gmm_free(context, past, GMM_STREAM_DEFAULT), GMM_ERROR_CORRUPT);
    write_byte(past + 1000, 0xfb);
  }
  FREE(past);
  CHECK(gmm_trim(context, NULL, NULL) >= 0);
  for (const char *at = said, *end; *at != '\0'; at = end + 1) {
    end = strchr(at, '\n');
    const char *allocated = strstr(at, " Allocated at conformance_debug+0x");
    const char *freed = allocated == NULL ? NULL : strstr(allocated, "; freed at conformance_debug+0x");
    CHECK_MESSAGE(freed != NULL && freed < end, "%s", at);
  }
  CHECK(says("past the end of") && says("after its free to"));
}

VMM_CASE(use_of_paused_memory_names_the_pauser) {
  debug("stacks");
  const gmm_tag tag = make_tag("layer", GMM_CONTENTS_HOST);
  void *block = ALLOC_TAG(1000, tag);
  OK(pause_of(tag));
  RESULT(gmm_fill(context, block, 0, 1000, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
  char words[100];
  snprintf(words, sizeof words, "is paused by thread %d at conformance_debug+0x", (int)getpid());
  CHECK_MESSAGE(message_has(words) && message_has("\"layer\""), "%s", gmm_last_error_message());
  OK(resume_of(tag));
  FREE(block);
}

int main(void) { return run_cases(); }
