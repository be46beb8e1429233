// SPDX-License-Identifier: Apache-2.0
// GMM_CONTEXT_STRICT_HOST of context.h: the CPU faults on DEVICE and VMM memory of the host backend, and everything
// that gmm does with that memory works. Other backends ignore the flag.
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "../support/gmm_test.h"

enum { DEVICE_KINDS = 1u << GMM_KIND_DEVICE | 1u << GMM_KIND_VMM };

static gmm_context *open_strict(uint32_t devices) {
  return OPEN(.flags = GMM_CONTEXT_STRICT_HOST, .host_devices = devices, .host_memory = 512 * MIB);
}
// Opens the context of a case in place of the one that is not strict.
static void be_strict(void) {
  if (!on_host_backend()) SKIP("only the host backend is strict");
  OK(gmm_context_release(context));
  context = open_strict(2);
}

static volatile uint8_t seen;

static bool child_writes;
static int access_byte(void *byte) {
  const struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  signal(SIGSEGV, SIG_DFL);
  signal(SIGBUS, SIG_DFL);
  if (child_writes)
    *(volatile uint8_t *)byte = 1;
  else
    seen = *(volatile uint8_t *)byte;
  return 0;
}
// The signal that ends a child that reads or writes a byte; 0: none.
static int signal_of(uint8_t *byte, bool writes) {
  child_writes = writes;
  const int status = in_child(access_byte, byte);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}
static void check_access(uint8_t *memory, uint64_t size, bool allowed) {
  const uint64_t places[] = {0, size / 2, size - 1};
  for (unsigned i = 0; i < 3; ++i)
    for (unsigned writes = 0; writes < 2; ++writes) {
      const int number = signal_of(memory + places[i], writes != 0);
      CHECK_MESSAGE(number == (allowed ? 0 : SIGSEGV), "%s of byte %llu of %s memory: signal %d",
                    writes != 0 ? "a write" : "a read", (unsigned long long)places[i], kind_name(kind), number);
    }
  CHECK_EQUAL((query(memory).flags & GMM_POINTER_HOST_ACCESSIBLE) != 0, allowed);
}

CASE_OF_KINDS(the_cpu_faults_where_a_gpu_would, ALL_KINDS) {
  be_strict();
  const bool allowed = kind == GMM_KIND_HOST || kind == GMM_KIND_MANAGED;
  CHECK_EQUAL(context_info().flags, GMM_CONTEXT_STRICT_HOST);
  uint8_t *small = ALLOC(5000), *large = ALLOC(5 * MIB), *alone = ALLOC_FLAGS(3 * MIB, GMM_ALLOC_DEDICATED);
  check_access(small, 5000, allowed);
  check_access(large, 5 * MIB, allowed);
  check_access(alone, 3 * MIB, allowed);
  FREE(small, large, alone);
  NOTHING_STAYS();
}

CASE(the_environment_makes_it_strict) {
  if (!on_host_backend()) SKIP("only the host backend is strict");
  kind = GMM_KIND_DEVICE;
  uint8_t *block = ALLOC(5000);
  check_access(block, 5000, true);
  FREE(block);
  OK(gmm_context_release(context));
  setenv("GMM_STRICT_HOST", "1", 1);
  context = open_context(1);
  unsetenv("GMM_STRICT_HOST");
  block = ALLOC(5000);
  check_access(block, 5000, false);
}

// It stands for a kernel, and has the address for devices.
static void add_one(void *user) {
  uint8_t *bytes = user;
  for (unsigned i = 0; i < 100; ++i) ++bytes[i];
}
CASE_OF_KINDS(functions_of_a_stream_use_the_address_of_devices, ALL_KINDS) {
  be_strict();
  const gmm_stream stream = open_stream();
  uint8_t *block = ALLOC(5000), bytes[2];
  OK(gmm_fill(context, block, 6, 5000, stream));
  uint8_t *inside = query(block + 1000).device_pointer;
  CHECK((inside != block + 1000) == (kind == GMM_KIND_DEVICE || kind == GMM_KIND_VMM));
  CHECK(query(block).device_pointer == inside - 1000);
  OK(gmm_stream_call(context, stream, add_one, inside));
  OK(gmm_copy(context, bytes, block + 1099, 2, stream));
  OK(gmm_stream_synchronize(context, stream));
  CHECK(bytes[0] == 7 && bytes[1] == 6);
}

CASE(paused_memory_faults) {
  be_strict();
  kind = GMM_KIND_VMM;
  uint8_t *block = ALLOC(9 * MIB);
  for (unsigned round = 0; round < 2; ++round) {
    OK(gmm_pause(context, NULL, NULL));
    CHECK_EQUAL(signal_of(block, false), SIGSEGV);
    OK(gmm_resume(context, NULL, NULL));
    check_access(block, 9 * MIB, false);
  }
}

CASE(pages_on_the_host_are_the_hosts) {
  be_strict();
  kind = GMM_KIND_VMM;
  uint8_t *block = FILLED_ALONE(2 * MIB, GMM_TAG_CURRENT, 3);
  OK(gmm_move(context, block, GMM_DEVICE_HOST, NULL));
  CHECK_PATTERN(block, 2 * MIB, 3);
  check_access(block, 2 * MIB, true);
  write_pattern(block, 2 * MIB, 3, GMM_STREAM_DEFAULT);  // the child wrote some bytes
  CHECK_PATTERN(block, 2 * MIB, 3);
  CHECK_EQUAL(block[77], pattern_at(77, 3));
  block[77] = 200;
  OK(gmm_move(context, block, device, NULL));
  check_access(block, 2 * MIB, false);
  uint8_t byte = 0;
  OK(gmm_copy(context, &byte, block + 77, 1, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  CHECK_EQUAL(byte, 200);
}

// Of which the other may be strict or not, and the copy is queued in either.
CASE_OF_KINDS(two_contexts_copy_to_each_other, DEVICE_KINDS) {
  be_strict();
  for (unsigned strict = 0; strict < 2; ++strict) {
    gmm_context *other =
        OPEN(.backend = GMM_BACKEND_HOST, .host_memory = 64 * MIB, .flags = strict != 0 ? GMM_CONTEXT_STRICT_HOST : 0);
    gmm_context *const queued_in[] = {context, other};
    void *here = ALLOC(3 * MIB), *there = NULL;
    MUST(gmm_alloc(other, 3 * MIB, DESC(alloc_desc, .kind = kind), &there));
    for (unsigned i = 0; i < 2; ++i) {
      write_pattern(here, 3 * MIB, 40 + i, GMM_STREAM_DEFAULT);
      OK(gmm_copy(queued_in[i], there, here, 3 * MIB, GMM_STREAM_DEFAULT));
      OK(gmm_stream_synchronize(queued_in[i], GMM_STREAM_DEFAULT));
      OK(gmm_fill(context, here, 0, 3 * MIB, GMM_STREAM_DEFAULT));
      OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
      OK(gmm_copy(queued_in[i], here, there, 3 * MIB, GMM_STREAM_DEFAULT));
      OK(gmm_stream_synchronize(queued_in[i], GMM_STREAM_DEFAULT));
      CHECK_PATTERN(here, 3 * MIB, 40 + i);
    }
    OK(gmm_context_release(other));
    FREE(here);
  }
}

// Its mapping is another one, as in another process. The context's own import is the block itself.
CASE_OF_KINDS(an_importer_faults_too, DEVICE_KINDS | 1u << GMM_KIND_HOST) {
  enum { SHARED = 3 * 1024 * 1024 };
  be_strict();
  gmm_context *const of_block = context;
  gmm_ipc_handle handle;
  void *block = FILLED(SHARED, 5), *imported = NULL;
  MUST(gmm_ipc_export(context, block, &handle));
  for (unsigned at_home = 0; at_home < 2; ++at_home) {
    if (!at_home) context = open_strict(1);
    MUST(gmm_ipc_import(context, &handle, DESC(ipc_import_desc, .device = at_home ? device : 0), &imported));
    CHECK_EQUAL(imported == block, at_home != 0);
    CHECK_PATTERN(imported, SHARED, 5 + at_home);
    check_access(imported, SHARED, kind == GMM_KIND_HOST);
    write_pattern(imported, SHARED, 6, GMM_STREAM_DEFAULT);
    OK(gmm_ipc_close(context, imported));
    if (!at_home) OK(gmm_context_release(context));
    context = of_block;
    CHECK_PATTERN(block, SHARED, 6);
  }
}

int main(void) { return run_cases(); }
