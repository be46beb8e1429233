// SPDX-License-Identifier: Apache-2.0
// For the build of tests/portability alone: every function of lib/base that knows the operating system, and the makers
// of the backends. Each only fails. A port writes these functions.
#include <cerrno>
#include <cstdlib>

#include "backend/cuda/cuda_backend.h"
#include "backend/host/host_backend.h"
#include "backend/sycl/sycl_backend.h"
#include "base/barrier.h"
#include "base/disk_file.h"
#include "base/environment_check.h"
#include "base/local_socket.h"
#include "base/os_memory.h"
#include "base/peer.h"
#include "base/process.h"
#include "base/process_generation.h"
#include "base/spawn.h"
#include "base/thread.h"
#include "base/trace_file.h"
#include "base/trusted_variable.h"

namespace gmm {
namespace {
constexpr Status kRefused{GMM_ERROR_NOT_SUPPORTED};
}  // namespace

void prepare_barriers() {}
bool expedited_barriers() { return false; }
void pass_barrier() {}
void wait_until_left(const std::atomic<uint32_t> &) {}

void check_environment(const Log &) {}
const char *trusted_variable(const char *) { return nullptr; }

PeerState Peer::state() const { return PeerState::kGone; }
int32_t open_process(int32_t, bool *) { return -1; }

int32_t process_number() { return 1; }
uint32_t current_user() { return 0; }
uint32_t usable_processors() { return 1; }
int process_start_time(int32_t, uint64_t *) { return ENOSYS; }
uint64_t pid_namespace() { return 0; }
bool machine_boot(char *, uint64_t) { return false; }
Status random_bytes(void *, uint64_t) { return kRefused; }
uint64_t monotonic_ms() { return 0; }
uint64_t monotonic_us() { return 0; }
const char *system_error_text(int, char *, unsigned long) { return "an error"; }

uint32_t process_generation() { return 1; }
void wait_while(const std::atomic<uint32_t> &, uint32_t) {}
void wake_all(const std::atomic<uint32_t> &) {}

int start_thread(Thread *, ThreadSignals, void *(*)(void *), void *, uint64_t) { return ENOSYS; }
void join_thread(Thread) {}
bool is_calling_thread(Thread) { return false; }
void detach_calling_thread() {}
void name_thread(const char *) {}
void yield_thread() {}
void sleep_us(uint64_t) {}
int32_t thread_number() { return 1; }
bool thread_runs(int32_t) { return true; }
bool create_thread_key(ThreadKey *, void (*)(void *)) { return false; }
bool set_thread_key(ThreadKey, void *) { return false; }
void delete_thread_key(ThreadKey) {}

Status TraceFile::open(const char *) { return kRefused; }
uint64_t counter_hertz() { return 0; }
void *TraceFile::add_block(uint64_t) { return nullptr; }
bool TraceFile::end_block(void *, uint64_t) { return false; }
Status TraceFile::close() { return kRefused; }

Status cuda_backend_create(const HostAllocator &, const Log &, Backend **) { return kRefused; }
bool cuda_is_expected() { return false; }
Status host_backend_create(const HostAllocator &, const Log &, const HostBackendOptions &, Backend **) {
  return kRefused;
}
Status sycl_backend_create(const HostAllocator &, const Log &, Backend **) { return kRefused; }

namespace os {

Status memory_file_create(const char *, uint64_t, int32_t *) { return kRefused; }
Status memory_file_check(int32_t, uint64_t) { return kRefused; }
Status memory_file_size(int32_t, uint64_t *) { return kRefused; }
Status duplicate(int32_t, int32_t *) { return kRefused; }
Status close_file(int32_t) { return kRefused; }
int file_facts(int32_t, FileFacts *) { return ENOSYS; }
int seal_against_shrinking(int32_t) { return ENOSYS; }
Status reserve(uint64_t, uint64_t, void **) { return kRefused; }
Status reserve_at(void *, uint64_t) { return kRefused; }
Status map_file_at(void *, uint64_t, int32_t, Access) { return kRefused; }
Status map_file(uint64_t, uint64_t, int32_t, Access, void **) { return kRefused; }
Status map_anonymous(uint64_t, uint64_t, void **) { return kRefused; }
Status set_access(void *, uint64_t, Access) { return kRefused; }
Status unmap(void *, uint64_t) { return kRefused; }
void discard(void *, uint64_t) {}
void *map_sparse(uint64_t) { return nullptr; }
void *map_page_of_process() { return nullptr; }
Status lock_pages(void *, uint64_t) { return kRefused; }
Status unlock_pages(void *, uint64_t) { return kRefused; }
Status advise_pages(void *, uint64_t, int32_t) { return kRefused; }
void prefer_huge_pages(void *, uint64_t) {}
void keep_from_children(void *, uint64_t) {}
void prefer_node(void *, uint64_t, int32_t) {}
void drop_pages(void *, uint64_t) {}
int touch_pages(void *, uint64_t) { return ENOSYS; }
Status populate_pages(void *, uint64_t) { return kRefused; }
Status memory_info(MemoryInfo *, const char *) { return kRefused; }
Status check_available(uint64_t, gmm_result) { return kRefused; }
uint64_t page_size() { return 4096; }

int check_folder(const char *) { return ENOSYS; }
const char *temporary_folder() { return ""; }
int make_unnamed_file(const char *, const char *, int32_t *) { return ENOSYS; }
int make_named_file(const char *, const char *, char *, int32_t *) { return ENOSYS; }
void delete_orphaned_files(const char *, const char *) {}
int delete_file(const char *) { return ENOSYS; }
int reserve_blocks(int32_t, uint64_t, uint64_t) { return ENOSYS; }
int sync_file(int32_t) { return ENOSYS; }
int write_file(int32_t, uint64_t, const char *, uint64_t) { return ENOSYS; }
int read_file(int32_t, uint64_t, char *, uint64_t) { return ENOSYS; }

bool runtime_socket_folder(char *, uint64_t) { return false; }
bool common_socket_folder(char *, uint64_t) { return false; }
int make_socket_folder(const char *, bool) { return ENOSYS; }
int open_socket_folder(const char *, bool, int32_t *, FolderFacts *) { return ENOSYS; }
void for_each_name(int32_t, uint32_t, void (*)(void *, const char *), void *) {}
int remove_name(int32_t, const char *) { return ENOSYS; }
int identify_name(int32_t, const char *, NameIdentity *) { return ENOSYS; }
int lock_folder(int32_t) { return ENOSYS; }
int start_command(const char *const *, int32_t *) { return ENOSYS; }
bool has_program_ended(int32_t) { return true; }
int take_listener(int32_t) { return ENOSYS; }
int make_socket(int32_t *) { return ENOSYS; }
int connect_socket(int32_t, int32_t, const char *) { return ENOSYS; }
bool nobody_listens(int32_t, const char *) { return false; }
int accept_socket(int32_t, int32_t *) { return ENOSYS; }
int peer_of_socket(int32_t, int32_t *, uint32_t *) { return ENOSYS; }
void close_socket(int32_t) {}
void end_connection(int32_t) {}
int64_t send_bytes(int32_t, const void *, uint64_t, const int32_t *, uint32_t) { return -ENOSYS; }
int64_t receive_bytes(int32_t, void *, uint64_t) { return -ENOSYS; }
int64_t receive_with_descriptors(int32_t, void *, uint64_t, ReceivedDescriptors *) { return -ENOSYS; }
int wait_until_readable(int32_t, uint64_t) { return ENOSYS; }

int SocketPoller::open(const char **) { return ENOSYS; }
void SocketPoller::close() {}
int SocketPoller::add(int32_t, void *) { return ENOSYS; }
int SocketPoller::want(int32_t, void *, bool) { return ENOSYS; }
void SocketPoller::remove(int32_t) {}
void SocketPoller::wake() {}
uint32_t SocketPoller::wait(int64_t, void **, bool *) { return 0; }
int SocketPoller::listen(int32_t, const char *, const char *, bool, int32_t *, NameIdentity *, const char **) {
  return ENOSYS;
}

}  // namespace os
}  // namespace gmm
