// SPDX-License-Identifier: Apache-2.0
// gmm serve: the server of the machine, and a look at it.
#include <gmm/gmm.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/process.h"
#include "cli/serve/server.h"
#include "engine/ipc/directory.h"

extern "C" {
#include "cli/cli.h"
}

namespace {

using namespace gmm;

constexpr uint64_t kStatusMs = 5000;

struct Options {
  IpcPolicy policy;
  int is_on_demand = 0, wants_status = 0;
};

int read_user(const char *word, void *to) {
  IpcPolicy *policy = static_cast<IpcPolicy *>(to);
  char *end = nullptr;
  const unsigned long long user = std::strtoull(word, &end, 10);
  if (*word < '0' || *word > '9' || *end != 0 || user > UINT32_MAX || policy->user_count == IpcPolicy::kMaxUsers)
    return 0;
  policy->users[policy->user_count++] = static_cast<uint32_t>(user);
  return 1;
}

int read_folder(const char *word, void *to) {
  IpcPolicy *policy = static_cast<IpcPolicy *>(to);
  const int length = std::snprintf(policy->directory, sizeof policy->directory, "%s", word);
  return word[0] == '/' && static_cast<uint64_t>(length) < sizeof policy->directory;
}

// The socket that systemd gave, as sd_listen_fds(3) has it; -1: none.
int socket_of_systemd() {
  const char *process = std::getenv("LISTEN_PID"), *count = std::getenv("LISTEN_FDS");
  if (process == nullptr || count == nullptr || std::atoi(process) != process_number() || std::strcmp(count, "1") != 0)
    return -1;
  return 3;
}

// Goes on as a child of nobody, without the descriptors that the program of the first client left open. False: this is
// the process that its starter waits for.
bool leave_starter() {
  const long most = sysconf(_SC_OPEN_MAX);
  for (int fd = 3; fd < (most < 0 || most > 65536 ? 65536 : most); ++fd) close(fd);
  if (fork() > 0) return false;
  return chdir("/") == 0;
}

// A member takes two descriptors.
void allow_many_descriptors() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int serve(const Options &options) {
  const int listener = socket_of_systemd();
  if (listener >= 0 && os::take_listener(listener) != 0) {
    std::fprintf(stderr, "gmm serve: descriptor %d is no socket that listens\n", listener);
    return EXIT_FAILED;
  }
  if (listener < 0 && options.is_on_demand != 0 && !leave_starter()) return EXIT_GOOD;
  allow_many_descriptors();
  int folder = -1;
  char path[kIpcPathSize];
  Status status = ipc_directory_open_own(&folder, path, options.policy);
  if (status.ok()) {
    Server server(folder, options.policy, options.is_on_demand != 0);
    status = server.open(listener);
    if (status.ok()) server.run();
  }
  if (folder >= 0) os::close_socket(folder);
  if (!status.ok()) std::fprintf(stderr, "gmm serve: %s: %s\n", gmm_result_name(status.code()), last_message());
  return status.ok() ? EXIT_GOOD : EXIT_FAILED;
}

void print_entry(const gmm_lease_entry_info &entry) {
  static constexpr const char *kStates[] = {"idle", "waiting", "in use"};
  std::printf("%-20s process %-8" PRId32 " priority %-4" PRId32 " %-8s %10.3f s", entry.name, entry.process,
              entry.priority, entry.state <= GMM_LEASE_IN_USE ? kStates[entry.state] : "other",
              static_cast<double>(entry.since_ms) / 1000);
  const struct {
    const char *name;
    uint64_t bytes;
  } fields[] = {{"held", entry.held_bytes},       {"offered", entry.offered_bytes}, {"wanted", entry.wanted_bytes},
                {"granted", entry.granted_bytes}, {"floor", entry.floor_bytes},     {"free", entry.free_bytes}};
  constexpr uint8_t kNone[sizeof entry.uuid] = {};
  if (std::memcmp(entry.uuid, kNone, sizeof kNone) != 0) {
    std::printf("  device ");
    for (int i = 0; i < 4; ++i) std::printf("%02x", entry.uuid[i]);
    for (const auto &field : fields)
      std::printf("  %s %.1f MiB", field.name, static_cast<double>(field.bytes) / 1048576);
  }
  std::printf("\n");
}

void print_published(const gmm_published_info &entry) {
  std::printf("%-20s process %-8" PRId32 " published, generation %" PRIu64 ", %.1f MiB, %" PRIu32 " readers\n",
              entry.name, entry.process, entry.generation, static_cast<double>(entry.size) / 1048576, entry.readers);
}

int print_status(const Options &options) {
  gmm_context_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.backend = GMM_BACKEND_HOST;  // no driver is needed
  gmm_context *context = nullptr;
  gmm_result result = gmm_context_create(&desc, &context);
  gmm_ipc_desc ipc = {};
  ipc.struct_size = sizeof ipc;
  if (options.policy.directory[0] != 0) ipc.directory = options.policy.directory;
  ipc.users = options.policy.users;
  ipc.user_count = options.policy.user_count;
  if (result >= 0) result = gmm_ipc_configure(context, &ipc);
  for (uint64_t i = 0; result == GMM_OK; ++i) {
    gmm_lease_entry_info entry = {};
    entry.struct_size = sizeof entry;
    result = gmm_lease_list(context, i, kStatusMs, &entry);
    if (i == 0 && result >= 0)
      std::printf("server %" PRIu64 ", process %" PRId32 ", leases by device: %" PRIu64 "\n", entry.server,
                  entry.server_process, entry.entry_count);
    if (result == GMM_OK) print_entry(entry);
  }
  if (result >= 0) result = GMM_OK;
  for (uint64_t i = 0; result == GMM_OK; ++i) {
    gmm_published_info entry = {};
    entry.struct_size = sizeof entry;
    result = gmm_published_list(context, i, kStatusMs, &entry);
    if (result == GMM_OK) print_published(entry);
  }
  if (result < 0) report("serve", result);
  gmm_context_release(context);
  return result < 0 || std::fflush(stdout) != 0 ? EXIT_FAILED : EXIT_GOOD;
}

}  // namespace

int command_serve(int count, char **words, const char *usage) {
  Options options;
  const option known[] = {{"--folder", read_folder, &options.policy},
                          {"--on-demand", nullptr, &options.is_on_demand},
                          {"--status", nullptr, &options.wants_status},
                          {"--user", read_user, &options.policy},
                          {nullptr, nullptr, nullptr}};
  for (int i = 0, taken = 0; i < count; i += taken) {
    if (std::strcmp(words[i], "--help") == 0 || std::strcmp(words[i], "-h") == 0) return std::fputs(usage, stdout), 0;
    taken = read_option("gmm serve", known, count - i, words + i);
    if (taken == 0) std::fprintf(stderr, "gmm serve: there is nothing to do with '%s'\n", words[i]);
    if (taken <= 0) return EXIT_USAGE;
  }
  return options.wants_status != 0 ? print_status(options) : serve(options);
}
