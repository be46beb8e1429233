// SPDX-License-Identifier: Apache-2.0
// Sharing (ipc.h) with processes of other pid namespaces and of other users; by descriptors, and by the driver's own
// handle.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "ipc_support.h"

#define SIZE 100000
#define NOBODY 65534
#define NO_NAMESPACE 77

// MODE KIND DEVICE: "namespace": as the first process of a pid namespace of its own; "user FOLDER OTHER": as nobody,
// which shares with OTHER in FOLDER. Then it follows commands.
static int take_part(int count, char **words, int out);
// A sanitizer's search for leaks needs a process that it can start beside this one, and there is none to be had between
// pid namespaces.
static void leave(int code) {
  fflush(NULL);
  _exit(code);
}
static int second_main(int count, char **words) {
  kind = (gmm_kind)atoi(words[1]);
  const int out = dup(1);
  dup2(2, 1);
  if (strcmp(words[0], "namespace") == 0) {
    if (unshare(CLONE_NEWPID) != 0) return NO_NAMESPACE;
    pid_t child = fork();
    if (child < 0) return NO_NAMESPACE;
    if (child != 0) {
      int status = 0;
      if (waitpid(child, &status, 0) != child) return 78;
      leave(WIFEXITED(status) ? WEXITSTATUS(status) : 79);
    }
    // As a container has it: drivers look for themselves under /proc.
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("proc", "/proc", "proc", 0, NULL) != 0)
      leave(NO_NAMESPACE);
    if (!send_bytes(out, "y", 1)) leave(76);
    leave(take_part(count, words, out));
  }
  return take_part(count, words, out);
}
static int take_part(int count, char **words, int out) {
  context = open_context(2);
  read_device(atoi(words[2]));
  if (count > 3) {
    if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0) return 80;
    uint32_t other = (uint32_t)atoi(words[4]);
    gmm_ipc_desc config = {.struct_size = sizeof config, .directory = words[3], .users = &other, .user_count = 1};
    if (gmm_ipc_configure(context, &config) != GMM_OK) return 81;
  }
  return run_other(out);
}

static second_process start(const char *mode, const char *folder, uint32_t other) {
  char k[8], d[8], o[16];
  snprintf(k, sizeof k, "%u", kind);
  snprintf(d, sizeof d, "%d", device);
  snprintf(o, sizeof o, "%u", other);
  second_process process;
  REQUIRE(second_start(&process, (const char *const[]){mode, k, d, folder, o}, folder == NULL ? 3 : 5));
  return process;
}

// It imports the block, writes to it, and imports it again.
static void share_with(second_process *other, const gmm_ipc_handle *handle, const void *block) {
  CHECK_EQUAL(other_imports(other, handle, SIZE, 5), GMM_OK);
  OTHER(other, .act = OTHER_WRITES, .size = SIZE, .seed = 6);
  CHECK_PATTERN(block, SIZE, 6);
  CHECK_EQUAL(other_imports(other, handle, SIZE, 6), GMM_OK);
  CHECK_EQUAL(OTHER(other, .act = OTHER_CLOSES).result, GMM_OK);
  CHECK_EQUAL(OTHER(other, .act = OTHER_CLOSES).result, GMM_OK);
}

static bool shares_descriptors(void) { return (device_info.capabilities & GMM_DEVICE_CAN_EXPORT_FD) != 0; }

// Two containers that share the directory: the importer's number is 1 there, and the exporter has none.
static void another_pid_namespace_imports(void) {
  if (geteuid() != 0) SKIP("needs root for a pid namespace");
  if (kind == GMM_KIND_DEVICE && !on_host_backend()) SKIP("the driver decides about its own handles");
  if (kind != GMM_KIND_DEVICE && !shares_descriptors()) SKIP("the device shares no descriptors");
  gmm_ipc_handle handle;
  void *block = shared_block(SIZE, 5, &handle);
  second_process other = start("namespace", NULL, 0);
  char is_there = 0;
  if (receive_bytes(other.from, &is_there, 1)) {
    share_with(&other, &handle, block);
    end_other(&other);
  } else {
    CHECK_EQUAL(second_wait(&other), NO_NAMESPACE);
  }
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  if (!is_there) SKIP("no pid namespaces here");
}

// A context of its own, as the directory is set before the first export.
static void named_users_share(void) {
  if (geteuid() != 0) SKIP("needs root to become another user");
  if (!on_host_backend()) SKIP("another user may not open the driver of this checkout");
  char folder[] = "/tmp/gmm-users-XXXXXX";
  REQUIRE(mkdtemp(folder) != NULL && chmod(folder, 0711) == 0);
  for (uint32_t named = 0; named < 2; ++named) {
    gmm_context *usual = context;
    context = open_context(2);
    const uint32_t users[] = {named != 0 ? NOBODY : 4242};
    gmm_ipc_desc config = {.struct_size = sizeof config, .directory = folder, .users = users, .user_count = 1};
    OK(gmm_ipc_configure(context, &config));
    gmm_ipc_handle handle;
    void *block = shared_block(SIZE, 5, &handle);
    RESULT(gmm_ipc_configure(context, &config), GMM_ERROR_BUSY);
    second_process other = start("user", folder, 0);
    if (named != 0)
      share_with(&other, &handle, block);
    else
      CHECK_EQUAL(other_imports(&other, &handle, SIZE, 5), GMM_ERROR_IPC_REFUSED);
    end_other(&other);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
    OK(gmm_context_release(context));
    context = usual;
  }
  CHECK(rmdir(folder) == 0);
}

// A block over several driver allocations has no one descriptor; a dedicated one always has.
static void a_descriptor_carries_the_memory(void) {
  if (!shares_descriptors()) SKIP("the device exports no descriptors");
  char *before = ALLOC(5000), *block = ALLOC_FLAGS(SIZE, GMM_ALLOC_DEDICATED);
  REQUIRE(before != NULL && block != NULL);
  write_pattern(block, SIZE, 5, GMM_STREAM_DEFAULT);
  const gmm_fd_type type = kind == GMM_KIND_VMM && !on_host_backend() ? GMM_FD_OPAQUE : GMM_FD_FILE;
  gmm_ipc_fd_info file = {.struct_size = sizeof file};
  MUST(gmm_ipc_export_fd(context, block + 1000, GMM_FD_DEFAULT, &file));
  gmm_pointer_info info = query(block);
  CHECK_EQUAL(file.type, type);
  CHECK_EQUAL(file.device, device);
  CHECK_EQUAL(file.size, info.allocation_size);
  CHECK_EQUAL(file.offset, (uint64_t)(block + 1000 - (char *)info.allocation_base));
  CHECK((fcntl(file.fd, F_GETFD) & FD_CLOEXEC) != 0);
  // It comes back as memory, each time at another address.
  const uint64_t at = file.offset - 1000;
  const gmm_ipc_fd_desc desc = {.struct_size = sizeof desc, .type = type, .size = file.size, .device = device};
  void *first = NULL, *second = NULL;
  MUST(gmm_ipc_import_fd(context, file.fd, &desc, &first));
  MUST(gmm_ipc_import_fd(context, file.fd, &desc, &second));
  CHECK(first != second);
  CHECK_PATTERN((char *)first + at, SIZE, 5);
  write_pattern((char *)second + at, SIZE, 6, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(block, SIZE, 6);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_free(context, before, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  OK(gmm_trim(context, NULL, NULL));
  CHECK(close(file.fd) == 0);                  // still ours
  CHECK_PATTERN((char *)first + at, SIZE, 6);  // the import keeps it
  info = query(first);
  CHECK_EQUAL(info.state, GMM_STATE_IMPORTED);
  CHECK_EQUAL(info.kind, type == GMM_FD_OPAQUE ? GMM_KIND_VMM : GMM_KIND_HOST);
  OK(gmm_ipc_close(context, first));
  OK(gmm_ipc_close(context, second));
  CHECK_EQUAL(stats().imported_bytes, 0);
}

static void a_file_of_another_maker_is_imported(void) {
  if (!shares_descriptors()) SKIP("the device imports no descriptors");
  int fd = memfd_create("other maker", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(fd >= 0 && ftruncate(fd, 12288) == 0);
  uint8_t *view = mmap(NULL, 12288, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  REQUIRE(view != MAP_FAILED);
  fill_pattern(view, 12288, 9);
  gmm_ipc_fd_desc desc = {.struct_size = sizeof desc, .size = 12288, .device = device};
  void *memory = NULL;
  MUST(gmm_ipc_import_fd(context, fd, &desc, &memory));
  CHECK(ftruncate(fd, 4096) != 0);  // sealed: nobody can cut it short under the mapping
  CHECK_PATTERN(memory, 12288, 9);
  OK(gmm_fill(context, memory, 3, 10, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  CHECK_EQUAL(view[9], 3);
  OK(gmm_ipc_close(context, memory));
  munmap(view, 12288);
  close(fd);
}

// The query says by which routes a block can be exported.
static void the_routes_are_those_of_the_query(void) {
  const gmm_fd_type types[] = {GMM_FD_DEFAULT, GMM_FD_DMA_BUF};
  const uint32_t bits[] = {GMM_IPC_ROUTE_FD, GMM_IPC_ROUTE_DMA_BUF};
  char *block = ALLOC_FLAGS(SIZE, GMM_ALLOC_DEDICATED);
  const gmm_pointer_info info = query(block);
  for (unsigned i = 0; i < 2; ++i) {
    gmm_ipc_fd_info file = {.struct_size = sizeof file, .fd = -7};
    const gmm_result result = gmm_ipc_export_fd(context, block, types[i], &file);
    if ((info.ipc_routes & bits[i]) != 0) {
      CHECK_MESSAGE(result == GMM_OK, "%s", gmm_last_error_message());
      CHECK(file.fd >= 0 && close(file.fd) == 0 && file.size >= SIZE);
      if (types[i] != GMM_FD_DEFAULT) CHECK_EQUAL(file.type, types[i]);
    } else {
      CHECK((result == GMM_ERROR_NOT_SUPPORTED || result == GMM_ERROR_INVALID_KIND) && file.fd == -7);
    }
  }
  gmm_ipc_legacy_info handle = {.struct_size = sizeof handle};
  const gmm_result result = gmm_ipc_export_legacy(context, block + 100, &handle);
  if ((info.ipc_routes & GMM_IPC_ROUTE_LEGACY) != 0) {
    CHECK_EQUAL(result, GMM_OK);
    CHECK(handle.offset >= 100 && handle.offset + SIZE - 100 <= handle.size);
    CHECK(block + 100 - handle.offset <= (char *)info.allocation_base);
    CHECK_EQUAL(handle.device, device);
  } else {
    CHECK_EQUAL(result, GMM_ERROR_NOT_SUPPORTED);
  }
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

int main(int count, char **words) {
  if (count >= 5 && strcmp(words[1], "--second") == 0) return second_main(count - 2, words + 2);
  signal(SIGPIPE, SIG_IGN);
  KINDS(another_pid_namespace_imports, SHAREABLE);
  KINDS(named_users_share, WITH_FILES);
  KINDS(a_descriptor_carries_the_memory, WITH_FILES);
  KINDS(a_file_of_another_maker_is_imported, 1u << GMM_KIND_HOST);
  KINDS(the_routes_are_those_of_the_query, (1u << GMM_KIND_DEVICE) | (1u << GMM_KIND_VMM));
  return finish_clean();
}
