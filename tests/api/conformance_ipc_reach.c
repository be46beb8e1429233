// SPDX-License-Identifier: Apache-2.0
// Who can share with whom (ipc.h): processes of other pid namespaces, processes of other users. Also in which form:
// descriptors, the driver's own handle.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "../support/gmm_test.h"
#include "../support/second_process.h"

#define SIZE 100000
#define NOBODY 65534

static gmm_ipc_import_desc import_desc(void) {
  return (gmm_ipc_import_desc){.struct_size = sizeof(gmm_ipc_import_desc), .device = device};
}

// MODE KIND DEVICE: "namespace": as the first process of a pid namespace of its own; "user FOLDER OTHER": as nobody,
// who shares with OTHER in FOLDER.
static int take_part(int count, char **words, int out);
// A sanitizer's search for leaks needs a process that it can start beside this one, and there is none to be had between
// pid namespaces.
static void leave(int code) {
  fflush(NULL);
  _exit(code);
}
static int second_main(int count, char **words) {
  kind = (gmm_kind)atoi(words[1]);
  const int out = dup(1);  // what is printed goes elsewhere
  dup2(2, 1);
  if (strcmp(words[0], "namespace") == 0) {
    if (unshare(CLONE_NEWPID) != 0) return 77;
    pid_t child = fork();
    if (child < 0) return 77;
    if (child != 0) {
      int status = 0;
      if (waitpid(child, &status, 0) != child) return 78;
      leave(WIFEXITED(status) ? WEXITSTATUS(status) : 79);
    }
    // As a container has it: drivers look for themselves under /proc.
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("proc", "/proc", "proc", 0, NULL) != 0)
      leave(77);
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
  gmm_ipc_handle handle;
  if (!receive_bytes(0, &handle, sizeof handle)) return 10;
  gmm_ipc_import_desc desc = import_desc();
  desc.timeout_ms = 60000;
  void *memory = NULL;
  gmm_result result = gmm_ipc_import(context, &handle, &desc, &memory);
  if (count > 3 && strcmp(words[0], "refused") == 0) return result == GMM_ERROR_IPC_REFUSED ? 0 : 11;
  if (result != GMM_OK) {
    fprintf(stderr, "# second process: %s: %s\n", gmm_result_name(result), gmm_last_error_message());
    return 12;
  }
  if (!check_pattern(__LINE__, memory, SIZE, 5, GMM_STREAM_DEFAULT)) return 13;
  write_pattern(memory, SIZE, 6, GMM_STREAM_DEFAULT);
  void *again = NULL;
  if (gmm_ipc_import(context, &handle, &desc, &again) != GMM_OK || again != memory) return 14;
  if (!send_bytes(out, "i", 1)) return 15;
  char go = 0;
  if (read(0, &go, 1) == 1 && go == 'k') {  // the exporter dies, or goes on
    if (gmm_ipc_close(context, memory) != GMM_OK || gmm_ipc_close(context, again) != GMM_OK) return 16;
  }
  return gmm_context_release(context) == GMM_OK ? 0 : 17;
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

static bool shares_descriptors(void) { return (device_info.capabilities & GMM_DEVICE_CAN_EXPORT_FD) != 0; }

static void *shared_block(gmm_context *of, gmm_ipc_handle *handle) {
  (void)of;
  void *block = ALLOC(SIZE);
  REQUIRE(block != NULL);
  write_pattern(block, SIZE, 5, GMM_STREAM_DEFAULT);
  MUST(gmm_ipc_export(context, block, handle));
  return block;
}

// What two containers see that share the directory: the importer's number is 1 there, and the exporter has none.
static void another_pid_namespace_imports(void) {
  if (geteuid() != 0) SKIP("needs root for a pid namespace");
  if (kind == GMM_KIND_DEVICE && !on_host_backend()) SKIP("the driver decides about its own handles");
  if (kind != GMM_KIND_DEVICE && !shares_descriptors()) SKIP("the device shares no descriptors");
  gmm_ipc_handle handle;
  void *block = shared_block(context, &handle);
  second_process second = start("namespace", NULL, 0);
  char told = 0;
  CHECK(send_bytes(second.to, &handle, sizeof handle));
  bool there = receive_bytes(second.from, &told, 1);
  if (there) {
    CHECK_PATTERN(block, SIZE, 6);
    CHECK(send_bytes(second.to, "k", 1));
  }
  int code = second_wait(&second);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  if (code == 77) SKIP("no pid namespaces here");
  CHECK_EQUAL(code, 0);
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
    void *block = shared_block(context, &handle);
    RESULT(gmm_ipc_configure(context, &config), GMM_ERROR_BUSY);
    second_process second = start(named != 0 ? "user" : "refused", folder, 0);
    char told = 0;
    CHECK(send_bytes(second.to, &handle, sizeof handle));
    if (named != 0) {
      CHECK(receive_bytes(second.from, &told, 1));
      CHECK_PATTERN(block, SIZE, 6);
      CHECK(send_bytes(second.to, "k", 1));
    }
    CHECK_EQUAL(second_wait(&second), 0);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
    OK(gmm_context_release(context));
    context = usual;
  }
  CHECK(rmdir(folder) == 0);
}

static void a_descriptor_comes_back_as_memory(void) {
  if (!shares_descriptors()) SKIP("the device exports no descriptors");
  void *block = ALLOC_FLAGS(SIZE, GMM_ALLOC_DEDICATED);
  write_pattern(block, SIZE, 5, GMM_STREAM_DEFAULT);
  gmm_ipc_fd_info file = {.struct_size = sizeof file};
  MUST(gmm_ipc_export_fd(context, block, GMM_FD_DEFAULT, &file));
  const int32_t fd = file.fd;
  const uint64_t offset = file.offset, size = file.size;
  gmm_ipc_fd_desc desc = {.struct_size = sizeof desc, .size = size, .device = device};
  desc.type = kind == GMM_KIND_VMM && !on_host_backend() ? GMM_FD_OPAQUE : GMM_FD_FILE;
  void *first = NULL, *second = NULL;
  MUST(gmm_ipc_import_fd(context, fd, &desc, &first));
  MUST(gmm_ipc_import_fd(context, fd, &desc, &second));
  close(fd);
  CHECK(first != second);
  CHECK_PATTERN((char *)first + offset, SIZE, 5);
  write_pattern((char *)second + offset, SIZE, 6, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(block, SIZE, 6);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_trim(context, NULL, NULL));
  CHECK_PATTERN((char *)first + offset, SIZE, 6);  // the import keeps it
  gmm_pointer_info info = query(first);
  CHECK_EQUAL(info.state, GMM_STATE_IMPORTED);
  CHECK_EQUAL(info.kind, desc.type == GMM_FD_OPAQUE ? GMM_KIND_VMM : GMM_KIND_HOST);
  OK(gmm_ipc_close(context, first));
  OK(gmm_ipc_close(context, second));
  CHECK_EQUAL(stats().imported_bytes, 0);
}

static void a_foreign_file_is_imported(void) {
  if (!shares_descriptors()) SKIP("the device imports no descriptors");
  int fd = memfd_create("foreign", MFD_CLOEXEC | MFD_ALLOW_SEALING);
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

static void the_drivers_own_handle(void) {
  char *block = ALLOC(SIZE);
  gmm_ipc_legacy_info handle = {.struct_size = sizeof handle};
  gmm_result result = gmm_ipc_export_legacy(context, block + 100, &handle);
  const uint64_t offset = handle.offset, size = handle.size;
  if ((query(block).ipc_routes & GMM_IPC_ROUTE_LEGACY) == 0) {
    CHECK_EQUAL(result, GMM_ERROR_NOT_SUPPORTED);
  } else {
    CHECK_EQUAL(result, GMM_OK);
    CHECK(offset >= 100 && offset + SIZE - 100 <= size);
    CHECK(block + 100 - offset <= (char *)query(block).allocation_base);
    CHECK_EQUAL(handle.device, device);
  }
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void a_dma_buf_where_the_query_says_so(void) {
  void *block = ALLOC_FLAGS(SIZE, GMM_ALLOC_DEDICATED);
  bool has = (query(block).ipc_routes & GMM_IPC_ROUTE_DMA_BUF) != 0;
  gmm_ipc_fd_info file = {.struct_size = sizeof file};
  gmm_result result = gmm_ipc_export_fd(context, block, GMM_FD_DMA_BUF, &file);
  if (has) {
    CHECK_MESSAGE(result == GMM_OK, "%s", gmm_last_error_message());
    CHECK(file.fd >= 0 && close(file.fd) == 0 && file.size >= SIZE && file.type == GMM_FD_DMA_BUF);
  } else {
    CHECK(result == GMM_ERROR_NOT_SUPPORTED || result == GMM_ERROR_INVALID_KIND);
  }
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

int main(int count, char **words) {
  if (count >= 5 && strcmp(words[1], "--second") == 0) return second_main(count - 2, words + 2);
  signal(SIGPIPE, SIG_IGN);
  const gmm_kind_mask shareable = (1u << GMM_KIND_DEVICE) | (1u << GMM_KIND_VMM) | (1u << GMM_KIND_HOST);
  const gmm_kind_mask files = (1u << GMM_KIND_VMM) | (1u << GMM_KIND_HOST);
  KINDS(another_pid_namespace_imports, shareable);
  KINDS(named_users_share, files);
  KINDS(a_descriptor_comes_back_as_memory, files);
  KINDS(a_foreign_file_is_imported, 1u << GMM_KIND_HOST);
  KINDS(the_drivers_own_handle, 1u << GMM_KIND_DEVICE);
  KINDS(a_dma_buf_where_the_query_says_so, (1u << GMM_KIND_DEVICE) | (1u << GMM_KIND_VMM));
  return finish_clean();
}
