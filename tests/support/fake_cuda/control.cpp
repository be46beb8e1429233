// SPDX-License-Identifier: Apache-2.0
// Counting calls, failing the kth of them, and the checks of every call.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "fake_cuda.h"
#include "state.h"
#include "stream.h"

namespace fake {
namespace {

struct Row {
  const char *name, *symbol;
  bool in_any;  // fake_cuda_fail(NULL, ...) counts it
};

// The names of errors, the look-up of entries, and the bookkeeping of contexts.
constexpr Entry kBookkeeping[] = {
    Entry::cuGetErrorName,      Entry::cuGetErrorString,   Entry::cuGetProcAddress, Entry::cuGetProcAddress_v2,
    Entry::cuCtxCreate_v2,      Entry::cuCtxDestroy_v2,    Entry::cuCtxGetCurrent,  Entry::cuCtxSetCurrent,
    Entry::cuCtxPushCurrent_v2, Entry::cuCtxPopCurrent_v2, Entry::cuCtxGetDevice,   Entry::cuCtxGetId,
};
constexpr bool is_bookkeeping(Entry entry) { return std::ranges::find(kBookkeeping, entry) != std::end(kBookkeeping); }

constexpr Row kRows[] = {
#define X(name, suffix, version, parameters) {#name, #name #suffix, !is_bookkeeping(Entry::name##suffix)},
    FAKE_CUDA_ENTRIES(X)
#undef X
};
constexpr int kCount = static_cast<int>(Entry::count);

struct Failure {
  std::string name;  // empty: any
  uint64_t remaining;
  CUresult error;
};

std::atomic<uint64_t> counts[kCount];
std::atomic<uint64_t> calls_until_now{0}, failures_happened{0};
std::atomic<bool> any_armed{false};
std::mutex failures_mutex;
std::vector<Failure> &failures() { return forever<std::vector<Failure>>(); }

// "cuMemAlloc_v2" -> "cuMemAlloc". Empty when there is no such entry.
std::string name_of(const char *entry) {
  for (const Row &row : kRows)
    if (!strcmp(entry, row.name) || !strcmp(entry, row.symbol)) return row.name;
  return {};
}

// FAKE_CUDA_FAIL=entry:kth:error,... asks for failures in a process that a test only starts.
void read_failures() {
  const char *text = getenv("FAKE_CUDA_FAIL");
  while (text && *text) {
    char entry[64];
    unsigned long long kth;
    int error, length = 0;
    if (sscanf(text, "%63[^:]:%llu:%d%n", entry, &kth, &error, &length) != 3 || fake_cuda_fail(entry, kth, error))
      crash("FAKE_CUDA_FAIL is not entry:kth:error");
    text += length + (text[length] == ',');
  }
}

CUresult failure_due(const Row &row) {
  std::lock_guard<std::mutex> guard(failures_mutex);
  CUresult result = CUDA_SUCCESS;
  auto &all = failures();
  for (auto it = all.begin(); it != all.end();) {
    bool mine = it->name.empty() ? row.in_any : it->name == row.name;
    if (mine && --it->remaining == 0) {
      result = it->error;
      ++failures_happened;
      it = all.erase(it);
    } else {
      ++it;
    }
  }
  if (all.empty()) any_armed = false;
  return result;
}

}  // namespace

std::atomic<int> initialized_by{0};

CUresult enter(Entry entry) {
  // Before any lock: the child of a fork may hold copies of locked ones.
  int owner = initialized_by.load();
  if (owner != 0 && owner != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  static const bool is_read = (read_failures(), true);
  (void)is_read;
  const Row &row = kRows[static_cast<int>(entry)];
  ++counts[static_cast<int>(entry)];
  if (row.in_any) ++calls_until_now;
  if (const char *hangs = getenv("FAKE_CUDA_HANG"); hangs && !strcmp(hangs, row.name)) pause();
  if (any_armed)
    if (CUresult error = failure_due(row)) {
      if (error == static_cast<CUresult>(-SIGSEGV)) crash("a test asked for it");
      return error;
    }
  bool free_to_call = entry == Entry::cuInit || entry == Entry::cuDriverGetVersion || entry == Entry::cuGetErrorName ||
                      entry == Entry::cuGetErrorString || entry == Entry::cuGetProcAddress_v2;
  if (owner == 0 && !free_to_call) return CUDA_ERROR_NOT_INITIALIZED;
  const bool is_checkpoint = entry >= Entry::cuCheckpointProcessGetState && entry <= Entry::cuCheckpointProcessUnlock;
  if (!is_checkpoint && !free_to_call) wait_while_locked();
  return on_stream_worker() && !free_to_call ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

}  // namespace fake

using namespace fake;

extern "C" {

uint64_t fake_cuda_count(const char *entry) {
  uint64_t sum = 0;
  std::string name = entry ? name_of(entry) : std::string();
  if (entry && name.empty()) return UINT64_MAX;
  for (int i = 0; i < kCount; i++)
    if (entry ? name == kRows[i].name : kRows[i].in_any) sum += counts[i];
  return sum;
}

void fake_cuda_reset_counts(void) {
  for (auto &count : counts) count = 0;
  failures_happened = 0;
}

int fake_cuda_fail(const char *entry, uint64_t kth, int error) {
  std::string name = entry ? name_of(entry) : std::string();
  if (entry && name.empty()) return -1;
  std::lock_guard<std::mutex> guard(failures_mutex);
  auto &all = failures();
  if (kth == 0) {
    if (!entry) all.clear();
    std::erase_if(all, [&](const Failure &failure) { return failure.name == name; });
  } else {
    all.push_back({name, kth, static_cast<CUresult>(error)});
  }
  any_armed = !all.empty();
  return 0;
}

uint64_t fake_cuda_failures(void) { return failures_happened; }
uint64_t fake_cuda_calls_until_now(void) { return calls_until_now; }

void fake_cuda_live(struct fake_cuda_live *out) {
  *out = {};
  settle_exported();
  State &s = state();
  std::lock_guard<std::mutex> guard(s.mutex);
  for (auto &[base, region] : s.regions) {
    if (region.kind == Kind::registered)
      out->registrations++;
    else if (region.kind == Kind::imported)
      out->imports++;
    else
      out->allocations++;
    if (region.kind == Kind::managed) out->managed_bytes += region.size;
  }
  for (auto &[value, handle] : s.handles) {
    out->handles += handle.references;
    if (handle.imported) out->imports += handle.references;
  }
  out->imports += live_externals() + live_semaphores();
  out->reservations = s.reservations.size();
  out->mappings = s.mappings.size();
  for (Context &context : s.contexts) out->context_references += context.references;
  for (int i = 0; i < kMaxDevices; i++) out->device_bytes += s.used[i];
  out->host_bytes = s.host_bytes;
  out->dropped = s.dropped;
  out->streams = created_streams();
  out->events = created_events();
  out->graphs = live_graphs();
  out->user_objects = live_user_objects();
}

}  // extern "C"
