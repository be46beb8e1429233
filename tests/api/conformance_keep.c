// SPDX-License-Identifier: Apache-2.0
// keep.h: memory outlives its process. Publishers, readers and the server die.
#include "../support/second_process.h"
#define CARD_MIB 64  // killed processes may still hold their blocks
#include "lease_support.h"

enum { SHORT_MS = 200, LONG_MS = 30000, SEED = 11, CHURNERS = 3 };
static const uint64_t SIZE = 5 * MIB - 1000;

#define WITHIN(milliseconds, ...) DESC(attach_desc, .timeout_ms = (milliseconds), __VA_ARGS__)

static void need_descriptors(void) {
  if ((device_info.capabilities & GMM_DEVICE_CAN_EXPORT_FD) == 0) SKIP("the device has no descriptors of memory");
}
static char *publish_block(const char *name) {
  char *block = FILLED_ALONE(SIZE, GMM_TAG_CURRENT, SEED);
  MUST(gmm_publish(context, block, name, NULL));
  return block;
}
static char *attach_as(gmm_context *of, const char *name, uint32_t flags) {
  void *memory = NULL;
  MUST(gmm_attach(of, name, WITHIN(LONG_MS, .flags = flags), &memory));
  return memory;
}
// All zero: nothing is published, or no server runs.
static gmm_published_info entry_of(uint64_t index) {
  gmm_published_info entry = {.struct_size = sizeof entry};
  (void)!gmm_published_list(context, index, LONG_MS, &entry);
  return entry;
}
static int32_t server_process(void) {
  gmm_lease_entry_info entry = {.struct_size = sizeof entry};
  return gmm_lease_list(context, 0, LONG_MS, &entry) < 0 ? 0 : entry.server_process;
}
static void kill_server(void) {
  const int32_t process = server_process();
  REQUIRE(process > 0);
  kill(process, SIGKILL);
  SOON(server_process() != process);
}
static bool is_readable(const char *name) {
  void *memory = NULL;
  if (gmm_attach(context, name, WITHIN(LONG_MS, .flags = GMM_ATTACH_READ_ONLY), &memory) != GMM_OK) return false;
  CHECK_PATTERN(memory, SIZE, SEED);
  OK(gmm_detach(context, memory));
  return true;
}
static void unpublish_soon(const char *name) {
  gmm_result result = GMM_ERROR_NOT_READY;
  SOON((result = gmm_unpublish(context, name)) >= 0);
  CHECK(result >= 0);
}

// --- The second process: publishes and waits, attaches and waits, or does both again and again -----------------------

static int run_second(char **words) {
  context = open_context(2);
  read_device(device);
  kind = GMM_KIND_VMM;
  char byte = 'r';
  if (strcmp(words[0], "publish") == 0) publish_block(words[1]);
  if (strcmp(words[0], "attach") == 0) CHECK_PATTERN(attach_as(context, words[1], GMM_ATTACH_READ_ONLY), SIZE, SEED);
  while (strcmp(words[0], "churn") == 0) {
    void *memory = NULL;
    const gmm_result result =
        gmm_attach(context, words[1], WITHIN(LONG_MS, .flags = GMM_ATTACH_READ_ONLY | GMM_ATTACH_OR_CLAIM), &memory);
    REQUIRE(result >= 0);
    if (result == GMM_UNCHANGED) {
      publish_block(words[1]);
    } else {
      CHECK_PATTERN(memory, SIZE, SEED);
      OK(gmm_detach(context, memory));
    }
    if (atomic_load(&check_state.failures) != 0 || !send_bytes(SECOND_OUT, &byte, 1)) return 90;
  }
  REQUIRE(send_bytes(SECOND_OUT, &byte, 1));
  if (read(0, &byte, 1) < 0) return 91;
  return gmm_context_release(context) == GMM_OK ? 0 : 92;
}
static second_process start(const char *what, const char *name) {
  second_process process;
  char byte = 0;
  REQUIRE(second_start(&process, (const char *const[]){what, name}, 2));
  REQUIRE(receive_bytes(process.from, &byte, 1));
  return process;
}

// --- Cases -----------------------------------------------------------------------------------------------------------

VMM_CASE(memory_outlives_a_killed_publisher) {
  need_descriptors();
  second_process publisher = start("publish", "weights");
  const gmm_published_info entry = entry_of(0);
  CHECK_EQUAL(entry.process, publisher.pid);
  second_kill(&publisher);
  char *memory = attach_as(context, "weights", GMM_ATTACH_READ_ONLY | GMM_ATTACH_SAME_ADDRESS);
  CHECK(memory == entry.address);
  CHECK_PATTERN(memory, SIZE, SEED);
  const gmm_pointer_info info = query(memory + 100);
  CHECK(info.state == GMM_STATE_IMPORTED && info.base == memory && info.size == SIZE && info.device == device);
  CHECK((info.flags & GMM_POINTER_READ_ONLY) != 0 && (info.flags & GMM_POINTER_PEER_GONE) == 0);
  CHECK_EQUAL(entry_of(0).readers, 1);
  RESULT(gmm_fill(context, memory, 1, 10, GMM_STREAM_DEFAULT), GMM_ERROR_INVALID_VALUE);
  CHECK(message_has("GMM_ATTACH_READ_ONLY"));
  OK(gmm_detach(context, memory));
  SOON(entry_of(0).readers == 0);
  OK(gmm_unpublish(context, "weights"));
  RESULT(gmm_unpublish(context, "weights"), GMM_UNCHANGED);
  void *none = &none;
  RESULT(gmm_attach(context, "weights", WITHIN(SHORT_MS), &none), GMM_ERROR_NOT_READY);
  CHECK(none == NULL && message_has("200 ms"));
}

VMM_CASE(readers_share_the_memory) {
  need_descriptors();
  char *block = publish_block("shared");
  char *reader = attach_as(context, "shared", GMM_ATTACH_READ_ONLY), *writer = attach_as(context, "shared", 0);
  CHECK(reader != block && writer != block && reader != writer);
  write_pattern(writer, SIZE, 12, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(reader, SIZE, 12);
  CHECK_PATTERN(block, SIZE, 12);
  CHECK_EQUAL(entry_of(0).readers, 2);
  RESULT(gmm_publish(context, block, "shared", NULL), GMM_ERROR_BUSY);
  CHECK(message_has("gmm_unpublish()"));
  void *again = NULL;
  RESULT(gmm_attach(context, "shared", WITHIN(LONG_MS, .flags = GMM_ATTACH_SAME_ADDRESS), &again), GMM_ERROR_OVERLAP);
  RESULT(gmm_attach(context, "shared", WITHIN(LONG_MS, .generation = 1), &again), GMM_ERROR_IPC_PEER_GONE);
  MUST(gmm_attach(context, "shared", WITHIN(LONG_MS, .generation = entry_of(0).generation), &again));
  OK(gmm_detach(context, again));
  RESULT(gmm_detach(context, block), GMM_ERROR_UNKNOWN_POINTER);
  // A free leaves the pages to those who attach them, and the end of the name to those who have.
  FREE(block);
  CHECK_PATTERN(reader, SIZE, 12);
  OK(gmm_ipc_close(context, writer));  // by either name
  OK(gmm_unpublish(context, "shared"));
  CHECK_PATTERN(reader, SIZE, 12);
  CHECK_EQUAL(query(reader).state, GMM_STATE_IMPORTED);
  OK(gmm_detach(context, reader));
  SOON(gmm_trim(context, NULL, NULL) >= 0 && stats().reserved_bytes == 0);
}

VMM_CASE(one_has_the_claim) {
  need_descriptors();
  gmm_context *other = open_context(2);
  void *memory = &memory;
  RESULT(gmm_attach(context, "claimed", WITHIN(LONG_MS, .flags = GMM_ATTACH_OR_CLAIM), &memory), GMM_UNCHANGED);
  CHECK(memory == NULL);
  const gmm_attach_desc *claims = WITHIN(SHORT_MS, .flags = GMM_ATTACH_OR_CLAIM);
  RESULT(gmm_attach(other, "claimed", claims, &memory), GMM_ERROR_NOT_READY);
  OK(gmm_unpublish(context, "claimed"));
  RESULT(gmm_attach(other, "claimed", claims, &memory), GMM_UNCHANGED);
  char *block = FILLED_ALONE(SIZE, GMM_TAG_CURRENT, SEED);
  RESULT(gmm_publish(context, block, "claimed", NULL), GMM_ERROR_BUSY);
  kill_server();  // the claim is given to the next one
  RESULT(gmm_attach(context, "claimed", claims, &memory), GMM_ERROR_NOT_READY);
  OK(gmm_context_release(other));
  MUST(gmm_publish(context, block, "claimed", NULL));
  CHECK(is_readable("claimed"));
  OK(gmm_unpublish(context, "claimed"));
}

VMM_CASE(a_pause_is_busy_or_revokes) {
  need_descriptors();
  const gmm_tag tag = make_tag("kept", GMM_CONTENTS_HOST);
  char *block = FILLED_ALONE(SIZE, tag, SEED);
  MUST(gmm_publish(context, block, "paused", NULL));
  const uint64_t first = entry_of(0).generation;
  char *reader = attach_as(context, "paused", GMM_ATTACH_READ_ONLY);
  RESULT(pause_of(tag), GMM_ERROR_BUSY);
  gmm_pause_desc desc = one_tag(&tag);
  desc.flags = GMM_PAUSE_FORCE;
  OK(gmm_pause(context, &desc, NULL));
  SOON(query(reader).state == GMM_STATE_REVOKED);
  uint8_t bytes[8];
  RESULT(gmm_copy(context, bytes, reader, sizeof bytes, GMM_STREAM_DEFAULT), GMM_ERROR_IPC_REVOKED);
  CHECK_EQUAL(entry_of(0).entry_count, 0);
  OK(gmm_detach(context, reader));
  RESULT(gmm_publish(context, block, "paused", NULL), GMM_ERROR_PAUSED);
  OK(resume_of(tag));
  MUST(gmm_publish(context, block, "paused", NULL));
  CHECK(is_readable("paused") && entry_of(0).generation > first);
  OK(gmm_unpublish(context, "paused"));
  OK(pause_of(tag));  // at once
  OK(resume_of(tag));
}

VMM_CASE(the_memory_survives_the_server) {
  need_descriptors();
  second_process publisher = start("publish", "survivor"), reader = start("attach", "survivor");
  const uint64_t generation = entry_of(0).generation;
  kill_server();
  SOON(entry_of(0).entry_count == 1 && entry_of(0).readers == 1);
  CHECK(is_readable("survivor"));
  second_kill(&publisher);
  kill_server();
  SOON(entry_of(0).entry_count == 1 && entry_of(0).readers == 1);
  CHECK(is_readable("survivor"));
  CHECK_EQUAL(entry_of(0).generation, generation);
  second_kill(&reader);
  CHECK(is_readable("survivor"));
  // A withdrawn name does not come again with the memory that others still have.
  char *mine = attach_as(context, "survivor", 0);
  unpublish_soon("survivor");
  SOON((query(mine).flags & GMM_POINTER_PEER_GONE) == 0);
  kill_server();
  RESULT(gmm_attach(context, "survivor", WITHIN(4 * SHORT_MS), (void *[1]){0}), GMM_ERROR_NOT_READY);
  CHECK_PATTERN(mine, SIZE, SEED);
  OK(gmm_detach(context, mine));
}

// A deleted socket does not end a server that keeps memory.
VMM_CASE(a_deleted_socket_is_made_anew) {
  need_descriptors();
  second_process publisher = start("publish", "socket");
  second_kill(&publisher);
  const int32_t before = server_process();
  char path[96];
  snprintf(path, sizeof path, "%s/serve.sock", folder);
  REQUIRE(unlink(path) == 0);
  SOON(access(path, F_OK) == 0);
  CHECK_EQUAL(server_process(), before);
  CHECK(is_readable("socket"));
  unpublish_soon("socket");
}

// At any step: of a claim, a publication, an attachment, with or without the server.
VMM_CASE(deaths_at_any_step_lose_nothing) {
  need_descriptors();
  second_process all[CHURNERS];
  for (unsigned i = 0; i < CHURNERS; ++i) all[i] = start("churn", "churned");
  srand(5);
  uint64_t generation = entry_of(0).generation;
  for (unsigned round = 0; round < 20; ++round) {
    char bytes[256];
    for (unsigned i = 0; i < CHURNERS; ++i) CHECK(read(all[i].from, bytes, sizeof bytes) > 0);
    const unsigned struck = (unsigned)rand() % CHURNERS;
    if (round % 4 == 0) unpublish_soon("churned");
    sleep_ms(rand() % 20);
    second_kill(&all[struck]);
    if (round % 3 == 0) {
      // Somebody has it attached: it outlives the server.
      second_process reader = start("attach", "churned");
      const uint64_t kept = entry_of(0).generation;
      kill_server();
      SOON(entry_of(0).generation != 0);
      CHECK_EQUAL(entry_of(0).generation, kept);
      second_kill(&reader);
    }
    all[struck] = start("churn", "churned");
    CHECK(entry_of(0).generation >= generation);
    generation = entry_of(0).generation;
  }
  for (unsigned i = 0; i < CHURNERS; ++i) second_kill(&all[i]);
  CHECK(is_readable("churned"));
  unpublish_soon("churned");
}

int main(int count, char **words) {
  if (count > 1) return run_cases_or(run_second, count, words);
  signal(SIGPIPE, SIG_IGN);
  make_card();
  const int code = run_cases();
  remove_card();
  return code;
}
