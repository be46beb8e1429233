// SPDX-License-Identifier: Apache-2.0
// Leases of real processes that share a device: each dies or stops at each step of a handover, and so does the server.
// Nobody waits past its time, nobody's contents are lost, and after a death those who live go on.
#include "../support/second_process.h"
#include "lease_support.h"

enum { PROCESSES = 3, SHORT_MS = 250, LONG_MS = 30000 };
enum { NO_STEP = 0, AT_ASKED = 256, AT_FORK = 512 };  // and GMM_WATCH_*

// --- A member's process ----------------------------------------------------------------------------------------------

typedef struct order {
  char what[8];
  uint64_t argument, timeout_ms;
} order;
typedef struct answer {
  gmm_result result;
  uint32_t state;
  uint64_t value, server;
  int32_t server_process, reserved;
  char message[512];
} answer;

static struct {
  gmm_lease *lease;
  gmm_tag tag;
  void *block;
  uint32_t seed;
  atomic_uint step;  // at which `signal` comes
  int signal;
  bool returns;
} self;

static void strike(uint32_t step) {
  uint32_t expected = step;
  if (atomic_compare_exchange_strong(&self.step, &expected, NO_STEP)) raise(self.signal);
}
static int32_t watch(void *user, const gmm_watch_info *info) {
  (void)user;
  strike(info->event);
  return 0;
}
static int32_t hear(void *user, const gmm_lease_ask *ask) {
  (void)user, (void)ask;
  strike(AT_ASKED);
  if (self.returns) gmm_lease_return(self.lease);
  return 0;
}
static bool is_intact(void) {
  const int before = atomic_load(&check_state.failures);
  CHECK_PATTERN(self.block, PART, self.seed);
  return atomic_load(&check_state.failures) == before;
}
// Turns as fast as they come, for so many milliseconds. The contents are compared in each.
static gmm_result take_turns(uint64_t milliseconds, uint64_t *turns) {
  const double end = now_s() + (double)milliseconds / 1000;
  while (now_s() < end) {
    const gmm_result result = request_of(self.lease, 0, SHORT_MS);
    if (result == GMM_ERROR_NOT_READY) continue;
    if (result != GMM_OK) return result;
    if (!is_intact()) return GMM_ERROR_CORRUPT;
    ++*turns;
    sleep_ms((long)(self.seed + *turns) % 7);
    gmm_lease_return(self.lease);
  }
  return GMM_OK;
}

static void carry_out(const order *next, answer *reply) {
  if (strcmp(next->what, "ask") == 0) {
    reply->result = request_of(self.lease, next->argument, next->timeout_ms);
  } else if (strcmp(next->what, "fill") == 0) {
    self.block = FILLED_TAG(PART, self.tag, self.seed);
  } else if (strcmp(next->what, "look") == 0) {
    reply->value = is_intact();
  } else if (strcmp(next->what, "return") == 0) {
    reply->result = gmm_lease_return(self.lease);
  } else if (strcmp(next->what, "turns") == 0) {
    reply->result = take_turns(next->argument, &reply->value);
  } else if (strcmp(next->what, "strike") == 0) {
    self.signal = (int)next->timeout_ms;
    atomic_store(&self.step, (unsigned)next->argument);
  } else if (strcmp(next->what, "returns") == 0) {
    self.returns = true;
  } else if (strcmp(next->what, "fork") == 0) {
    // A child that knows nothing of the lease, and has all its descriptors.
    const pid_t child = fork();
    if (child == 0) {
      close(0);
      close(SECOND_OUT);
      sleep_ms(2 * LONG_MS);  // longer than a request waits; the test ends it
      _exit(0);
    }
    reply->value = (uint64_t)child;
  }
}
// NAME
static int run_member(char **words) {
  gmm_watcher *watcher = NULL;
  context = open_context(2);
  read_device((gmm_device)(device_count() - 1));
  kind = GMM_KIND_VMM;
  self.tag = make_tag("weights", GMM_CONTENTS_HOST);
  self.seed = (uint32_t)getpid();
  MUST(gmm_lease_create(context, DESC(lease_desc, .name = words[0], .residency_ms = 1, .asked = {hear, NULL}),
                        &self.lease));
  OK(gmm_lease_offer(self.lease, self.tag, 1));
  MUST(gmm_watch(context,
                 DESC(watch_desc, .events = GMM_WATCH_PREPARE | GMM_WATCH_LOSING | GMM_WATCH_RESTORED, .tag = self.tag,
                      .callback = {watch, NULL}),
                 &watcher));
  for (order next; receive_bytes(0, &next, sizeof next) && strcmp(next.what, "end") != 0;) {
    answer reply = {0};
    carry_out(&next, &reply);
    if (reply.result < 0) snprintf(reply.message, sizeof reply.message, "%s", gmm_last_error_message());
    gmm_lease_info info = {.struct_size = sizeof info};
    OK(gmm_lease_query(self.lease, &info));
    reply.state = info.state;
    reply.server = info.server;
    reply.server_process = info.server_process;
    REQUIRE(send_bytes(SECOND_OUT, &reply, sizeof reply));
  }
  OK(gmm_watcher_destroy(watcher));
  OK(gmm_lease_destroy(self.lease));
  OK(gmm_context_release(context));
  return 0;
}

// --- The test --------------------------------------------------------------------------------------------------------

static second_process processes[PROCESSES];
static bool lives[PROCESSES];

static void start(uint32_t i) {
  char name[16];
  snprintf(name, sizeof name, "process%u", i);
  REQUIRE(second_start(&processes[i], (const char *const[]){name}, 1));
  lives[i] = true;
}
static void tell(uint32_t i, const char *what, uint64_t argument, uint64_t timeout_ms) {
  order next = {.argument = argument, .timeout_ms = timeout_ms};
  snprintf(next.what, sizeof next.what, "%s", what);
  send_bytes(processes[i].to, &next, sizeof next);
}
static answer hear_from(uint32_t i) {
  answer reply = {.result = GMM_ERROR_IPC_PEER_GONE};
  if (!receive_bytes(processes[i].from, &reply, sizeof reply)) reply.result = GMM_ERROR_IPC_PEER_GONE;
  return reply;
}
static answer ask(uint32_t i, const char *what, uint64_t argument, uint64_t timeout_ms) {
  tell(i, what, argument, timeout_ms);
  return hear_from(i);
}
// The result of a call of process i, with its message.
#define GIVES(i, expected, ...)                                                                         \
  do {                                                                                                  \
    const answer gives_a = ask(i, __VA_ARGS__);                                                         \
    CHECK_MESSAGE(gives_a.result == (expected), "process %u, line %d: %s: %s", (unsigned)(i), __LINE__, \
                  gmm_result_name(gives_a.result), gives_a.message);                                    \
  } while (0)

#define CHECK_REPLY(condition, reply) \
  CHECK_MESSAGE(condition, "line %d: %s: %s", __LINE__, gmm_result_name((reply).result), (reply).message)

// With contents, which nobody uses.
static void join(uint32_t i) {
  start(i);
  GIVES(i, GMM_OK, "ask", PART, LONG_MS);
  GIVES(i, GMM_OK, "fill", 0, 0);
  GIVES(i, GMM_OK, "return", 0, 0);
}
// A process that has the device looks at its contents and returns.
static void look_and_return(uint32_t i) {
  CHECK_EQUAL(ask(i, "look", 0, 0).value, 1);
  GIVES(i, GMM_OK, "return", 0, 0);
}
static bool has_changed(uint32_t i, int how) {
  siginfo_t info = {0};
  return waitid(P_PID, (id_t)processes[i].pid, &info, how | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

// The last process's contents are active.
static void start_all(void) {
  for (uint32_t i = 0; i < PROCESSES; ++i) join(i);
}
static void end_all(void) {
  for (uint32_t i = PROCESSES; i-- != 0;) {
    if (!lives[i]) continue;
    tell(i, "end", 0, 0);
    SOON(has_changed(i, WEXITED));
    if (!has_changed(i, WEXITED)) kill(processes[i].pid, SIGKILL);
    const int code = second_wait(&processes[i]);
    CHECK_MESSAGE(code == 0, "process %u ended with %d", i, code);
    lives[i] = false;
  }
}
// Of the server; 0: process 0 has no connection to one now.
static pid_t server(void) { return (pid_t)ask(0, "query", 0, 0).server_process; }
static void bury(uint32_t i) {
  if (lives[i]) second_kill(&processes[i]);
  lives[i] = false;
}
// Everybody who lives gets its turn, with its contents.
static void all_go_on(void) {
  for (uint32_t i = 0; i < PROCESSES; ++i) {
    if (!lives[i]) continue;
    GIVES(i, GMM_OK, "ask", 0, LONG_MS);
    look_and_return(i);
  }
}

// Process `holder` has the device, and `asker` wants it. `struck`, which is one of them or the third, meets the signal
// at the step.
static void hand_over(uint32_t asker, uint32_t holder, bool in_use, uint32_t struck, uint32_t step, int number) {
  start_all();
  GIVES(holder, GMM_OK, "ask", 0, LONG_MS);
  GIVES(holder, GMM_OK, in_use ? "returns" : "return", 0, 0);
  const uint32_t third = PROCESSES - asker - holder;
  if (step == NO_STEP)
    kill(processes[struck].pid, number);
  else
    GIVES(struck, GMM_OK, "strike", step, (uint64_t)number);
  const double began = now_s();
  if (struck == asker) {
    tell(asker, "ask", 0, LONG_MS);
  } else {
    // The others get an answer in time. On a slow machine the first request may end before the step comes.
    answer reply;
    do {
      reply = ask(asker, "ask", 0, number == SIGSTOP ? 2 * SHORT_MS : LONG_MS);
    } while (reply.result == GMM_ERROR_NOT_READY && !has_changed(struck, WSTOPPED) && now_s() - began < SOON_S);
    CHECK_REPLY(reply.result == GMM_OK || (number == SIGSTOP && reply.result == GMM_ERROR_NOT_READY), reply);
    CHECK(now_s() - began < SOON_S);
    if (reply.result == GMM_OK) look_and_return(asker);
  }
  if (number == SIGKILL) {
    // It died by itself: its step came.
    SOON(has_changed(struck, WEXITED));
    bury(struck);
  } else {
    if (struck == asker) {
      // It stopped with a grant. The others are told in time.
      SOON(has_changed(struck, WSTOPPED));
      const answer reply = ask(third, "ask", 0, 2 * SHORT_MS);
      CHECK_MESSAGE(reply.result == GMM_ERROR_NOT_READY, "%s", gmm_result_name(reply.result));
      CHECK(reply.message[0] != 0);
    }
    kill(processes[struck].pid, SIGCONT);
    if (struck == asker) {
      const answer reply = hear_from(asker);
      CHECK_REPLY(reply.result == GMM_OK, reply);
      GIVES(asker, GMM_OK, "return", 0, 0);
    }
    // It may get the call of `asked` only now.
    if (in_use && ask(holder, "query", 0, 0).state == GMM_LEASE_IN_USE) ask(holder, "return", 0, 0);
  }
  all_go_on();
  end_all();
}

// Process 0 asks for the memory of process 1.
static void each_is_struck_at_each_step(void) {
  for (unsigned stops = 0; stops < 2; ++stops) {
    const int number = stops ? SIGSTOP : SIGKILL;
    hand_over(0, 1, false, 1, GMM_WATCH_PREPARE, number);
    hand_over(0, 1, false, 1, GMM_WATCH_LOSING, number);
    hand_over(0, 1, true, 1, AT_ASKED, number);
    hand_over(0, 1, false, 0, GMM_WATCH_RESTORED, number);
    hand_over(0, 1, false, 1, NO_STEP, number);
  }
}

// The holder stops at a step of giving up its memory, the server dies or stops, and the holder goes on.
static void the_server_dies_or_stops_while_another_one_gives(void) {
  static const uint32_t steps[] = {GMM_WATCH_PREPARE, GMM_WATCH_LOSING};
  for (uint32_t s = 0; s < 4; ++s) {
    const bool dies = s < 2;
    start_all();
    GIVES(2, GMM_OK, "ask", 0, LONG_MS);
    GIVES(2, GMM_OK, "return", 0, 0);
    GIVES(2, GMM_OK, "strike", steps[s % 2], SIGSTOP);
    const pid_t first = server();
    tell(1, "ask", 0, LONG_MS);
    SOON(has_changed(2, WSTOPPED));
    kill(first, dies ? SIGKILL : SIGSTOP);
    sleep_ms(SHORT_MS);  // another one may be there, and knows nothing of the command
    kill(processes[2].pid, SIGCONT);
    if (!dies) {
      sleep_ms(SHORT_MS);
      kill(first, SIGCONT);
    }
    const answer reply = hear_from(1);
    CHECK_REPLY(reply.result == GMM_OK, reply);
    look_and_return(1);
    all_go_on();
    CHECK((server() == first) == !dies);
    end_all();
  }
}

// The members keep their memory, and a new server learns of it from their reports.
static void the_server_dies_while_one_uses(void) {
  start_all();
  GIVES(2, GMM_OK, "ask", 0, LONG_MS);
  const answer before = ask(2, "query", 0, 0);
  tell(1, "ask", 0, LONG_MS);
  sleep_ms(100);
  kill(before.server_process, SIGKILL);
  SOON(ask(2, "query", 0, 0).server > before.server);
  const answer late = ask(0, "ask", 0, 8 * SHORT_MS);  // the new server decides nothing for half a second
  CHECK_REPLY(late.result == GMM_ERROR_NOT_READY && strstr(late.message, "\"process2\"") != NULL, late);
  look_and_return(2);
  CHECK_EQUAL(hear_from(1).result, GMM_OK);
  GIVES(1, GMM_OK, "return", 0, 0);
  all_go_on();
  end_all();
}

static void a_waiting_process_dies(void) {
  start_all();
  GIVES(2, GMM_OK, "ask", 0, LONG_MS);
  tell(1, "ask", 0, LONG_MS);
  sleep_ms(100);
  bury(1);
  GIVES(2, GMM_OK, "return", 0, 0);
  all_go_on();
  end_all();
}

static void a_forked_child_keeps_no_claims(void) {
  for (uint32_t dies = 0; dies < PROCESSES; dies += 2) {
    start_all();
    GIVES(dies, GMM_OK, "ask", 0, LONG_MS);
    const pid_t child = (pid_t)ask(dies, "fork", 0, 0).value;
    bury(dies);
    all_go_on();
    kill(child, SIGKILL);
    end_all();
  }
}

static void processes_come_and_go(void) {
  start_all();
  uint64_t turns = 0;
  pid_t last_server = server();
  srand(7);
  for (uint32_t round = 0; round < 12; ++round) {
    for (uint32_t i = 0; i < PROCESSES; ++i) tell(i, "turns", 400, 0);
    sleep_ms(rand() % 300);
    const uint32_t struck = (uint32_t)rand() % PROCESSES;
    if (rand() % 3 == 0 && last_server > 0) kill(last_server, SIGKILL);
    const bool dies = rand() % 2 == 0;
    kill(processes[struck].pid, dies ? SIGKILL : SIGSTOP);
    if (dies) bury(struck);
    sleep_ms(rand() % 200);
    if (!dies) kill(processes[struck].pid, SIGCONT);
    for (uint32_t i = 0; i < PROCESSES; ++i) {
      if (!lives[i]) continue;
      const answer reply = hear_from(i);
      CHECK_MESSAGE(reply.result == GMM_OK, "process %u: %s: %s", i, gmm_result_name(reply.result), reply.message);
      turns += reply.value;
    }
    if (lives[0]) last_server = server();
    if (!lives[struck]) join(struck);
  }
  CHECK(turns != 0);
  all_go_on();
  end_all();
}

int main(int argc, char **argv) {
  if (argc > 2) return run_cases_or(run_member, argc, argv);
  make_card();
  context = open_context(2);
  read_device(0);
  const bool is_small = device_info.total_memory == CARD;
  gmm_context_release(context);
  if (!is_small) {
    remove_card();
    printf("1..0 # SKIP a real device has room for all\n");
    return 0;
  }
  signal(SIGPIPE, SIG_IGN);
  RUN(each_is_struck_at_each_step);
  RUN(the_server_dies_or_stops_while_another_one_gives);
  RUN(the_server_dies_while_one_uses);
  RUN(a_waiting_process_dies);
  RUN(a_forked_child_keeps_no_claims);
  RUN(processes_come_and_go);
  for (uint32_t i = 0; i < PROCESSES; ++i) bury(i);
  remove_card();
  return check_finish();
}
