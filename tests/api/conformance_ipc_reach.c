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

// A sanitizer's search for leaks needs a process that it can start beside this one, and there is none to be had between
// pid namespaces.
static void leave(int code) {
  fflush(NULL);
  _exit(code);
}
// Goes on as the first process of a pid namespace of its own, with /proc, where drivers look for themselves.
static int enter_namespace(void) {
  if (unshare(CLONE_NEWPID) != 0) return NO_NAMESPACE;
  const pid_t child = fork();
  if (child < 0) return NO_NAMESPACE;
  if (child != 0) {
    int status = 0;
    if (waitpid(child, &status, 0) != child) return 78;
    leave(WIFEXITED(status) ? WEXITSTATUS(status) : 79);
  }
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
      mount("proc", "/proc", "proc", 0, NULL) != 0)
    leave(NO_NAMESPACE);
  return send_bytes(SECOND_OUT, "y", 1) ? 0 : 76;
}
// For another user: FOLDER. It becomes nobody, and shares with root in the folder.
static int second_main(char **words) {
  const bool is_user = words[0] != NULL;
  const int code = is_user ? 0 : enter_namespace();
  if (code != 0) return code;
  context = open_context(2);
  read_device(device);
  if (is_user) {
    if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0) return 80;
    const uint32_t root = 0;
    MUST(gmm_ipc_configure(context, DESC(ipc_desc, .directory = words[0], .users = &root, .user_count = 1)));
  }
  const int ended = run_other();
  if (!is_user) leave(check_state.failures > 0 ? 92 : ended);
  return ended;
}

static second_process start(const char *folder) {
  second_process process;
  REQUIRE(second_start(&process, &folder, folder == NULL ? 0 : 1));
  return process;
}

// It imports the block, writes to it, and imports it again.
static void share_with(second_process *other, const gmm_ipc_handle *handle, const void *block) {
  CHECK_EQUAL(other_imports(other, handle, SIZE, 5), GMM_OK);
  OTHER(other, .act = OTHER_WRITES, .size = SIZE, .seed = 6);
  CHECK_PATTERN(block, SIZE, 6);
  CHECK_EQUAL(other_imports(other, handle, SIZE, 6), GMM_OK);
  OTHER_OK(other, .act = OTHER_CLOSES);
  OTHER_OK(other, .act = OTHER_CLOSES);
}

static bool shares_descriptors(void) { return (device_info.capabilities & GMM_DEVICE_CAN_EXPORT_FD) != 0; }

// Two containers that share the directory: the importer's number is 1 there, and the exporter has none.
CASE_OF_KINDS(another_pid_namespace_imports, SHAREABLE) {
  if (geteuid() != 0) SKIP("needs root for a pid namespace");
  if (kind == GMM_KIND_DEVICE && !on_host_backend()) SKIP("the driver decides about its own handles");
  if (kind != GMM_KIND_DEVICE && !shares_descriptors()) SKIP("the device shares no descriptors");
  gmm_ipc_handle handle;
  void *block = shared_block(SIZE, 5, &handle);
  second_process other = start(NULL);
  char is_there = 0;
  if (receive_bytes(other.from, &is_there, 1)) {
    share_with(&other, &handle, block);
    end_other(&other);
  } else {
    CHECK_EQUAL(second_wait(&other), NO_NAMESPACE);
  }
  FREE(block);
  if (!is_there) SKIP("no pid namespaces here");
}

// Two containers with one file of a card: their first processes have one number, and the bytes of both count.
VMM_CASE(a_card_counts_processes_of_other_pid_namespaces) {
  if (geteuid() != 0) SKIP("needs root for a pid namespace");
  if (!on_host_backend()) SKIP("only the host backend has cards of files");
  char path[] = "/tmp/gmm-card-XXXXXX", is_there = 'y';
  const int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  setenv("GMM_HOST_CARD", path, 1);
  gmm_context *card = OPEN(.host_devices = 2, .host_memory = 512 * MIB);
  second_process others[2];
  for (int i = 0; i < 2; ++i) {
    others[i] = start(NULL);
    if (!receive_bytes(others[i].from, &is_there, 1)) is_there = 0;
    if (is_there == 'y') OTHER_OK(&others[i], .act = OTHER_MAKES, .size = 64 * MIB, .seed = 1);
  }
  gmm_device_info info = {.struct_size = sizeof info};
  OK(gmm_device_query(card, device, &info));
  const bool has_namespaces = is_there == 'y';
  if (has_namespaces) CHECK_EQUAL(info.total_memory - info.free_memory, 128 * MIB);
  for (int i = 0; i < 2; ++i) {
    if (has_namespaces)
      end_other(&others[i]);
    else
      CHECK_EQUAL(second_wait(&others[i]), NO_NAMESPACE);
  }
  OK(gmm_context_release(card));
  unsetenv("GMM_HOST_CARD");
  close(fd);
  unlink(path);
  if (!has_namespaces) SKIP("no pid namespaces here");
}

// A context of its own, as the directory is set before the first export.
CASE_OF_KINDS(named_users_share, WITH_FILES) {
  if (geteuid() != 0) SKIP("needs root to become another user");
  if (!on_host_backend()) SKIP("another user may not open the driver of this checkout");
  char folder[] = "/tmp/gmm-users-XXXXXX";
  REQUIRE(mkdtemp(folder) != NULL && chmod(folder, 0711) == 0);
  for (uint32_t named = 0; named < 2; ++named) {
    gmm_context *usual = context;
    context = open_context(2);
    const uint32_t users[] = {named != 0 ? NOBODY : 4242};
    const gmm_ipc_desc config = {.struct_size = sizeof config, .directory = folder, .users = users, .user_count = 1};
    OK(gmm_ipc_configure(context, &config));
    gmm_ipc_handle handle;
    void *block = shared_block(SIZE, 5, &handle);
    RESULT(gmm_ipc_configure(context, &config), GMM_ERROR_BUSY);
    second_process other = start(folder);
    if (named != 0)
      share_with(&other, &handle, block);
    else
      CHECK_EQUAL(other_imports(&other, &handle, SIZE, 5), GMM_ERROR_IPC_REFUSED);
    end_other(&other);
    FREE(block);
    OK(gmm_context_release(context));
    context = usual;
  }
  CHECK(rmdir(folder) == 0);
}

// A block over several driver allocations has no one descriptor; a dedicated one always has.
CASE_OF_KINDS(a_descriptor_carries_the_memory, WITH_FILES) {
  if (!shares_descriptors()) SKIP("the device exports no descriptors");
  char *before = ALLOC(5000), *block = ALLOC_FLAGS(SIZE, GMM_ALLOC_DEDICATED);
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
  FREE(block);
  FREE(before);
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

// Each heap has memory of its own, and so has each page of a block that is born paused. Memory that the program asks to
// export has a file whatever else there is.
CASE_OF_KINDS(much_memory_needs_few_descriptors, WITH_FILES) {
  enum { HEAPS = 100 };
  if (!shares_descriptors()) SKIP("the device exports no descriptors");
  gmm_heap *heaps[HEAPS];
  void *blocks[HEAPS];
  const uint64_t before = each_descriptor(NULL, NULL);
  for (int i = 0; i < HEAPS; ++i) {
    MUST(gmm_heap_create(context, DESC(heap_desc, .kind = kind, .device = device), &heaps[i]));
    MUST(gmm_heap_alloc(heaps[i], 4096, 0, 0, GMM_STREAM_DEFAULT, &blocks[i]));
  }
  if (kind == GMM_KIND_VMM) {
    char *paused = ALLOC_FLAGS(2 * HEAPS * 2 * MIB, GMM_ALLOC_PAUSED);
    for (int i = 0; i < HEAPS; ++i) OK(gmm_resume_range(context, paused + 2 * i * 2 * MIB, 1, NULL));
    FREE(paused);
  }
  const bool is_file = on_host_backend() || kind == GMM_KIND_HOST;
  if (is_file) CHECK(each_descriptor(NULL, NULL) - before < 64);  // the fake driver has many
  gmm_ipc_handle handle;
  gmm_ipc_fd_info file = {.struct_size = sizeof file};
  RESULT(gmm_ipc_export(context, blocks[HEAPS - 1], &handle), is_file ? GMM_ERROR_NOT_SUPPORTED : GMM_OK);
  if (is_file) {
    RESULT(gmm_ipc_export_fd(context, blocks[HEAPS - 1], GMM_FD_DEFAULT, &file), GMM_ERROR_NOT_SUPPORTED);
    CHECK(message_has("GMM_HEAP_EXPORTABLE"));
  }
  void *block = ALLOC_FLAGS(4096, GMM_ALLOC_DEDICATED);
  OK(gmm_ipc_export(context, block, &handle));
  OK(gmm_ipc_export_fd(context, block, GMM_FD_DEFAULT, &file));
  CHECK(close(file.fd) == 0);
  FREE(block);
  for (int i = 0; i < HEAPS; ++i) {
    FREE(blocks[i]);
    OK(gmm_heap_destroy(heaps[i]));
  }
}

CASE_OF_KINDS(a_file_of_another_maker_is_imported, 1u << GMM_KIND_HOST) {
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
CASE_OF_KINDS(the_routes_are_those_of_the_query, (1u << GMM_KIND_DEVICE) | (1u << GMM_KIND_VMM)) {
  const gmm_fd_type types[] = {GMM_FD_DEFAULT, GMM_FD_DMA_BUF};
  const uint32_t bits[] = {GMM_IPC_ROUTE_FD, GMM_IPC_ROUTE_DMA_BUF};
  char *block = ALLOC_FLAGS(SIZE, GMM_ALLOC_DEDICATED);
  const gmm_pointer_info info = query(block);
  const uint32_t can = device_info.capabilities;
  if (kind == GMM_KIND_DEVICE && (can & GMM_DEVICE_CAN_LEGACY_IPC) != 0)
    CHECK((info.ipc_routes & GMM_IPC_ROUTE_LEGACY) != 0);
  if (kind == GMM_KIND_VMM && (can & GMM_DEVICE_CAN_EXPORT_FD) != 0) CHECK((info.ipc_routes & GMM_IPC_ROUTE_FD) != 0);
  if ((can & GMM_DEVICE_CAN_DMA_BUF) != 0) CHECK((info.ipc_routes & GMM_IPC_ROUTE_DMA_BUF) != 0);
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
}

int main(int count, char **words) { return run_cases_or(second_main, count, words); }
