// SPDX-License-Identifier: Apache-2.0
// Each call of the system, and each request of host memory, fails once in each operation on the host backend: the
// operation ends with a clear error or succeeds, a retry succeeds, and nothing is lost. tests/api/kth_failure.c does so
// with the calls of the driver. The library calls the functions below in place of the C library's.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "../support/ends.h"
#include "../support/gmm_test.h"

static atomic_long fails_at;  // the k-th call from now; 0 or less: none
static int failure = ENOMEM;
static const char *_Atomic failed_call;

static bool spares_munmap;

static bool fails(const char *name) {
  if (spares_munmap && strcmp(name, "munmap") == 0) return false;
  if (atomic_load(&fails_at) <= 0 || atomic_fetch_sub(&fails_at, 1) != 1) return false;
  atomic_store(&failed_call, name);
  errno = failure;
  return true;
}

#define CALL(type, name, result, parameters, arguments)          \
  type name parameters {                                         \
    static type(*real) parameters;                               \
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, #name); \
    return fails(#name) ? (result) : real arguments;             \
  }
CALL(void *, mmap, MAP_FAILED, (void *at, size_t size, int access, int flags, int fd, off_t offset),
     (at, size, access, flags, fd, offset))
CALL(int, munmap, -1, (void *at, size_t size), (at, size))
CALL(int, mprotect, -1, (void *at, size_t size, int access), (at, size, access))
CALL(int, madvise, -1, (void *at, size_t size, int advice), (at, size, advice))
CALL(int, mlock, -1, (const void *at, size_t size), (at, size))
CALL(int, munlock, -1, (const void *at, size_t size), (at, size))
CALL(int, memfd_create, -1, (const char *name, unsigned flags), (name, flags))
CALL(int, ftruncate, -1, (int fd, off_t size), (fd, size))
CALL(int, fallocate, -1, (int fd, int mode, off_t offset, off_t size), (fd, mode, offset, size))
CALL(ssize_t, pread, -1, (int fd, void *to, size_t size, off_t offset), (fd, to, size, offset))
CALL(ssize_t, pwrite, -1, (int fd, const void *from, size_t size, off_t offset), (fd, from, size, offset))
CALL(int, fchmod, -1, (int fd, mode_t mode), (fd, mode))
CALL(int, flock, -1, (int fd, int operation), (fd, operation))
CALL(int, mkdir, -1, (const char *path, mode_t mode), (path, mode))
CALL(int, unlinkat, -1, (int folder, const char *path, int flags), (folder, path, flags))
CALL(int, socket, -1, (int domain, int type, int protocol), (domain, type, protocol))
CALL(int, bind, -1, (int fd, const struct sockaddr *at, socklen_t size), (fd, at, size))
CALL(int, listen, -1, (int fd, int backlog), (fd, backlog))
CALL(int, connect, -1, (int fd, const struct sockaddr *at, socklen_t size), (fd, at, size))
CALL(int, accept4, -1, (int fd, struct sockaddr *of, socklen_t *size, int flags), (fd, of, size, flags))
CALL(int, getsockopt, -1, (int fd, int level, int name, void *to, socklen_t *size), (fd, level, name, to, size))
CALL(ssize_t, sendmsg, -1, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
CALL(ssize_t, recvmsg, -1, (int fd, struct msghdr *message, int flags), (fd, message, flags))
CALL(ssize_t, recv, -1, (int fd, void *to, size_t size, int flags), (fd, to, size, flags))
CALL(int, poll, -1, (struct pollfd * fds, nfds_t count, int timeout), (fds, count, timeout))
CALL(int, epoll_create1, -1, (int flags), (flags))
CALL(int, epoll_ctl, -1, (int fd, int what, int of, struct epoll_event *event), (fd, what, of, event))
CALL(int, eventfd, -1, (unsigned value, int flags), (value, flags))
CALL(int, inotify_init1, -1, (int flags), (flags))
CALL(ssize_t, getrandom, -1, (void *to, size_t size, unsigned flags), (to, size, flags))
CALL(int, pthread_create, EAGAIN,
     (pthread_t * thread, const pthread_attr_t *attributes, void *(*start)(void *), void *user),
     (thread, attributes, start, user))

// Those whose last argument may be missing.
#define OPTIONAL(name, type, first, second)                      \
  int name(type first, int second, ...) {                        \
    static int (*real)(type, int, ...);                          \
    va_list list;                                                \
    va_start(list, second);                                      \
    const long last = va_arg(list, long);                        \
    va_end(list);                                                \
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, #name); \
    return fails(#name) ? -1 : real(first, second, last);        \
  }
OPTIONAL(open, const char *, path, flags)
OPTIONAL(fcntl, int, fd, what)

static void *allocate(void *user, uint64_t size, uint64_t alignment) {
  (void)user;
  return fails("the host allocator") ? NULL : aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
static void deallocate(void *user, void *memory, uint64_t size) {
  (void)user;
  (void)size;
  free(memory);
}

// --- The operations --------------------------------------------------------------------------------------------------
enum { SIZE = 5 * 1024 * 1024 };
static gmm_context *one, *other;  // the second imports from the first
static void *memory;
static gmm_event *events[2];
static gmm_tag tag;

static gmm_result open_one(gmm_context **out) {
  const gmm_context_desc desc = {.struct_size = sizeof desc,
                                 .backend = GMM_BACKEND_HOST,
                                 .host_devices = 2,
                                 .host_allocator = {allocate, deallocate, NULL}};
  return gmm_context_create(&desc, out);
}
static void open_both(void) {
  MUST(open_one(&one));
  MUST(open_one(&other));
}
static void close_both(void) {
  if (one != NULL) OK(gmm_context_release(one));
  if (other != NULL) OK(gmm_context_release(other));
  one = other = NULL;
}
static gmm_kind kind_of;  // and the flags, of the operation
static uint32_t flags;
static gmm_result take(void) {
  const gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = kind_of, .tag = tag, .flags = flags};
  return gmm_alloc(one, SIZE, &desc, &memory);
}
static void give(void) { OK(gmm_free(one, memory, GMM_STREAM_DEFAULT)); }

static gmm_result open_only(void) { return open_one(&one); }
static void begin_kept(gmm_contents contents) {
  const gmm_tag_desc desc = {.struct_size = sizeof desc, .contents = contents};
  open_both();
  MUST(gmm_tag_create(one, "kept", &desc, &tag));
  MUST(take());
  memset(memory, 7, SIZE);
}
static void begin_host(void) { begin_kept(GMM_CONTENTS_HOST); }
static void begin_file(void) { begin_kept(GMM_CONTENTS_FILE); }
static void begin_paused(void) {
  begin_host();
  MUST(gmm_pause(one, NULL, NULL));
}
static gmm_result pause_all(void) { return gmm_pause(one, NULL, NULL); }
static gmm_result resume_all(void) { return gmm_resume(one, NULL, NULL); }
static void end_kept(void) {
  const gmm_result result = resume_all();
  CHECK(result == GMM_OK || result == GMM_UNCHANGED);
  for (unsigned i = 0; i < SIZE; i += 4096) CHECK_EQUAL(((char *)memory)[i], 7);
  give();
  tag = GMM_TAG_DEFAULT;
  close_both();
}

static void begin_memory(void) {
  open_both();
  MUST(take());
}
static void end_memory(void) {
  give();
  close_both();
}
static gmm_result share(void) {
  const gmm_ipc_import_desc desc = {.struct_size = sizeof desc, .timeout_ms = 300};
  gmm_ipc_handle handle;
  void *imported = NULL;
  gmm_result result = gmm_ipc_export(one, memory, &handle);
  if (result == GMM_OK) result = gmm_ipc_import(other, &handle, &desc, &imported);
  if (result == GMM_OK && (result = gmm_ipc_close(other, imported)) != GMM_OK) OK(gmm_ipc_close(other, imported));
  return result;
}
static gmm_result share_event(void) {
  const gmm_event_desc desc = {.struct_size = sizeof desc, .flags = GMM_EVENT_SHARED};
  const gmm_ipc_import_desc within = {.struct_size = sizeof within, .timeout_ms = 300};
  gmm_ipc_handle handle;
  gmm_result result = gmm_event_create(one, &desc, &events[0]);
  if (result != GMM_OK) return result;
  result = gmm_event_export(events[0], &handle);
  if (result == GMM_OK) result = gmm_event_import(other, &handle, &within, &events[1]);
  if (result == GMM_OK) OK(gmm_event_destroy(events[1]));
  OK(gmm_event_destroy(events[0]));
  return result;
}
static gmm_result share_descriptor(void) {
  gmm_ipc_fd_info info = {.struct_size = sizeof info};
  void *imported = NULL;
  gmm_result result = gmm_ipc_export_fd(one, memory, GMM_FD_FILE, &info);
  if (result != GMM_OK) return result;
  const gmm_ipc_fd_desc desc = {.struct_size = sizeof desc, .type = info.type, .size = info.size};
  result = gmm_ipc_import_fd(other, info.fd, &desc, &imported);
  close(info.fd);
  if (result == GMM_OK && (result = gmm_ipc_close(other, imported)) != GMM_OK) OK(gmm_ipc_close(other, imported));
  return result;
}
static gmm_result pin(void) {
  static char pages[3 * 4096];
  gmm_result result = gmm_pin(one, pages, sizeof pages, NULL, NULL);
  if (result == GMM_OK && (result = gmm_unpin(one, pages)) != GMM_OK) OK(gmm_unpin(one, pages));
  return result;
}
static char trace_file[64];
static gmm_result trace(void) {
  gmm_result result = gmm_trace_begin(one, trace_file, NULL);
  if (result == GMM_OK) result = gmm_trace_end(one);
  return result;
}

static const struct operation {
  const char *name;
  void (*begin)(void);
  gmm_result (*run)(void);
  void (*undo)(void);  // of a success
  void (*end)(void);
  gmm_kind kind;       // of the memory
  uint32_t flags;      // of its allocation
  bool spares_munmap;  // a mapping that the system keeps is lost
} operations[] = {
    {"a context", NULL, open_only, NULL, close_both, 0, 0, false},
    {"device memory", open_both, take, give, close_both, GMM_KIND_DEVICE, 0, false},
    {"VMM memory", open_both, take, give, close_both, GMM_KIND_VMM, 0, false},
    {"memory for communication", open_both, take, give, close_both, GMM_KIND_VMM, GMM_ALLOC_COMM, false},
    {"host memory", open_both, take, give, close_both, GMM_KIND_HOST, 0, false},
    {"managed memory", open_both, take, give, close_both, GMM_KIND_MANAGED, 0, false},
    {"a pause to host memory", begin_host, pause_all, NULL, end_kept, GMM_KIND_VMM, 0, false},
    {"a pause to a file", begin_file, pause_all, NULL, end_kept, GMM_KIND_VMM, 0, false},
    {"a resume", begin_paused, resume_all, NULL, end_kept, GMM_KIND_VMM, 0, false},
    {"an import of VMM memory", begin_memory, share, NULL, end_memory, GMM_KIND_VMM, 0, false},
    {"an import of device memory", begin_memory, share, NULL, end_memory, GMM_KIND_DEVICE, 0, false},
    {"an import of an event", open_both, share_event, NULL, close_both, 0, 0, true},
    {"an import of a descriptor", begin_memory, share_descriptor, NULL, end_memory, GMM_KIND_VMM, 0, false},
    {"a pin", open_both, pin, NULL, close_both, 0, 0, false},
    {"a trace", open_both, trace, NULL, close_both, 0, 0, false},
};
static const struct operation *op;

static void each_call_fails(void) {
  for (long k = 1; k < 2000 && atomic_load(&check_state.failures) == 0; ++k) {
    if (op->begin != NULL) op->begin();
    atomic_store(&failed_call, NULL);
    atomic_store(&fails_at, k);
    gmm_result result = op->run();
    atomic_store(&fails_at, 0);
    const char *call = atomic_load(&failed_call);
    CHECK_MESSAGE(result >= 0 || (call != NULL && gmm_last_error_message()[0] != 0), "call %ld, %s: %s", k, call,
                  gmm_last_error_message());
    if (result < 0) {
      result = op->run();
      CHECK_MESSAGE(result >= 0, "again after call %ld, %s: %s", k, call, gmm_last_error_message());
    }
    if (op->undo != NULL && result >= 0) op->undo();
    op->end();
    if (call == NULL) break;
  }
}

int main(void) {
  static const int failures[] = {ENOMEM, EINTR, EMFILE};
  ends_begin();
  snprintf(trace_file, sizeof trace_file, "/tmp/gmm-kth-system-call-%d.trace", (int)getpid());
  for (size_t i = 0; i < sizeof failures / sizeof *failures; ++i) {
    failure = failures[i];
    for (size_t k = 0; k < sizeof operations / sizeof *operations; ++k) {
      op = &operations[k];
      spares_munmap = op->spares_munmap;
      kind_of = op->kind;
      flags = op->flags;
      check_label("(%s, %s)", op->name, strerror(failure));
      RUN(each_call_fails);
    }
  }
  unlink(trace_file);
  check_label("%s", "");
  return finish_clean();
}
