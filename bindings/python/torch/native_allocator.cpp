// SPDX-License-Identifier: Apache-2.0
// gmm as an allocator of PyTorch's own kind: a CUDAAllocator, which answers everything that PyTorch asks of its own.
// gmm/_torch/compiler.py compiles this file against the headers of the installed PyTorch at the first use.
//
// A tensor is a block of gmm, which libgmm_torch.so.1 allocates (native.h). Only while a thread allocates to a private
// pool, as a CUDA graph or torch.cuda.MemPool has it, does the pool divide segments of gmm itself (native_pools.hpp).
// The ledger holds the live blocks of both (native_ledger.hpp).
//
// The interface differs between the versions of PyTorch. A function stands here in each form that any of them has,
// without `override`: where the base class lacks the form, it is a function that nobody calls.
#include <c10/core/Allocator.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <array>
#include <functional>
#include <limits>
#include <string>
#include <unordered_set>

#include "guarded.hpp"
#include "native.h"
#include "native_ledger.hpp"

#define GMM_TORCH_VERSION (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

namespace {

// NOLINTNEXTLINE: a name lies in one of these namespaces, depending on the version
using namespace c10::cuda::CUDACachingAllocator;
using namespace c10::CachingDeviceAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using MempoolId = c10::cuda::MempoolId_t;
using Context = std::shared_ptr<c10::GatheredContext>;
using Rejection = std::function<void(int64_t, size_t, size_t, size_t)>;
using gmm_torch::DeviceStats;
using gmm_torch::Live;
using gmm_torch::Part;
using gmm_torch::PoolBlock;
using gmm_torch::PoolId;
using gmm_torch::Stream;

constexpr int32_t kOutOfMemory = -20, kOutOfHostMemory = -21, kLimitExceeded = -22, kSizeOverflow = -3;
constexpr int32_t kMostDevices = 64;
constexpr char kMagic[] = "gmm\1";
constexpr size_t kMagicSize = 4;

const gmm_torch_native *lib = nullptr;
CUDAAllocator *theirs = nullptr;  // PyTorch's own
bool on_cuda = true;              // false: a test without a driver

std::string format_bytes(uint64_t bytes) {
  double amount = static_cast<double>(bytes) / 1024;
  const char *unit = "KiB";
  for (const char *larger : {"MiB", "GiB"}) {
    if (amount < 1024) break;
    amount /= 1024;
    unit = larger;
  }
  char text[64];
  snprintf(text, sizeof text, "%.2f %s", amount, unit);
  return text;
}

DeviceIndex current_device() {
  DeviceIndex device = 0;
  if (on_cuda) C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

void check(int32_t result, const char *what) { TORCH_CHECK(result >= 0, "gmm: ", what, ": ", lib->reason()); }

// ---- what differs between the versions ----------------------------------------------------------------------------

TraceEntry make_entry(TraceEntry::Action action, DeviceIndex device, uint64_t address, uint64_t size, Stream stream,
                      PoolId pool, c10::approx_time_t time, const Context &context, const std::string &compile,
                      const std::string &user) {
  const auto at = static_cast<size_t>(address);
  const auto bytes = static_cast<size_t>(size);
  const auto on = static_cast<cudaStream_t>(stream);
  (void)compile;
  (void)user;
  (void)pool;
#if GMM_TORCH_VERSION >= 210
  return TraceEntry(action, device, at, bytes, on, pool, time, context, compile, user);
#elif GMM_TORCH_VERSION >= 208
  return TraceEntry(action, device, at, bytes, on, pool, time, context, compile);
#else
  return TraceEntry(action, device, at, bytes, on, time, context);
#endif
}

// ---- a device -----------------------------------------------------------------------------------------------------

// While no private pool is under way, a device's allocations only read `count`.
struct Underway {
  struct Entry {
    PoolId id;
    std::function<bool(cudaStream_t)> filter;
  };
  std::atomic<uint32_t> count{0};
  mutable std::mutex mutex;
  std::vector<Entry> entries;

  // The pool that an allocation on a stream of this thread goes to: the one that was begun first, as in PyTorch.
  bool find(cudaStream_t stream, PoolId *out) const {
    if (count.load(std::memory_order_acquire) == 0) return false;
    const std::lock_guard<std::mutex> guard(mutex);
    for (const Entry &entry : entries) {
      if (!entry.filter(stream)) continue;
      *out = entry.id;
      return true;
    }
    return false;
  }

  bool any() const { return count.load(std::memory_order_acquire) != 0; }
};

void quiesce(DeviceIndex device) {
  if (!on_cuda) return;
  const c10::cuda::CUDAGuard guard(device);
  c10::cuda::device_synchronize();
}

struct Device final : gmm_torch::Backing {
  explicit Device(DeviceIndex number) : index(number), pools(*this) {}

  DeviceIndex index;
  gmm_torch::Counters stats;
  gmm_torch::Pools pools;
  Underway underway;
  std::atomic<double> fraction{1.0};
  gmm_torch::Ring<TraceEntry> history;
  gmm_torch::Looked looked;

  void observe() {
    gmm_torch_memory memory;
    if (lib->memory(index, &memory) >= 0) stats.observe(memory.reserved, memory.peak_reserved, memory.extents);
  }

  // Gives the memory of pools without users back to gmm. True: there was some.
  bool collect(PoolId only = {}) {
    if (underway.any() || !lib->usable()) return false;  // a capture forbids the wait
    const auto idle = pools.collect(only);
    if (idle.empty()) return false;
    quiesce(index);
    pools.give(idle);
    return true;
  }

  void *take(uint64_t size, const std::shared_ptr<void> &source, Stream stream) override;
  void give(void *memory, uint64_t size, const std::shared_ptr<void> &source) override;
  void *event(Stream stream) override {
    void *made = nullptr;
    if (lib->event(index, stream, &made) >= 0) return made;
    quiesce(index);
    return nullptr;
  }
  bool passed(void *event, bool wait) override { return lib->passed(event, wait) != 0; }
  void forget(void *event) override { lib->forget(event); }
  void freed(const PoolBlock &block) override;
};

void raw_deleter_function(void *memory);

// ---- the allocator ------------------------------------------------------------------------------------------------

struct State final : AllocatorState {
  explicit State(gmm_torch::PoolState from) : blocks(std::move(from)) {}
  gmm_torch::PoolState blocks;
};

struct Note {
  DeviceIndex device;
  c10::approx_time_t time;
  std::vector<std::pair<std::string, std::string>> words;
};

std::vector<std::string> &compile_contexts() {
  thread_local std::vector<std::string> stack;
  return stack;
}

class Allocator final : public CUDAAllocator {
 public:
  Allocator() = default;

  void open(int32_t count) {
    for (int32_t i = 0; i < count && i < kMostDevices; ++i)
      if (devices_[i] == nullptr) devices_[i] = std::make_unique<Device>(static_cast<DeviceIndex>(i));
    count_ = std::max(count_, std::min(count, kMostDevices));
  }

  // Allocation and free.

  void *allocate_block(int32_t number, size_t size, cudaStream_t stream) {
    Device &device = device_of(number);
    const Context context = gather(RecordContext::STATE);
    Live live;
    live.requested = size;
    live.stream = stream;
    live.device = number;
    uint64_t bytes = gmm_torch::rounded(size);
    const int32_t result = attempt(device, size, stream, &live);
    if (C10_UNLIKELY(result < 0)) recover(device, size, stream, result, &live);
    if (live.block != nullptr) bytes = live.block->size;
    if (context != nullptr) live.context = new Context(context);
    ledger_.insert(live);
    device.stats.allocate(bytes, size);
    record(device, TraceEntry::ALLOC, address_of(live.memory), bytes, stream, live.pool, context);
    report(live.memory, static_cast<int64_t>(bytes), device);
    if (const auto *interpreter = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(interpreter != nullptr))
      (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, address_of(live.memory));
    return live.memory;
  }

  void free_block(void *memory) {
    if (memory == nullptr || !lib->usable()) return;
    Live live;
    if (C10_UNLIKELY(!ledger_.take(memory, &live))) {
      theirs->raw_delete(memory);  // from before gmm, else an error
      return;
    }
    if (const auto *interpreter = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(interpreter != nullptr))
      (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, address_of(memory));
    Device &device = device_of(live.device);
    uint64_t bytes = gmm_torch::rounded(live.requested);
    bool done = true;
    Context context;
    if (C10_UNLIKELY(live.context != nullptr)) {
      context = std::move(*static_cast<Context *>(live.context));
      delete static_cast<Context *>(live.context);
    }
    if (C10_UNLIKELY(recording())) {
      if (context_level_.load(std::memory_order_relaxed) >= static_cast<int>(RecordContext::ALL))
        context = gather(RecordContext::ALL);
      const uint64_t size = live.block != nullptr ? live.block->size : bytes;
      record(device, TraceEntry::FREE_REQUESTED, address_of(memory), size, live.stream, live.pool, context);
    }
    if (live.block != nullptr) {
      bytes = live.block->size;
      done = device.pools.free(live.block, device.underway.any());
    } else {
      lib->release(memory, live.stream);
    }
    device.stats.release(bytes, live.requested, !done);
    if (done) record(device, TraceEntry::FREE_COMPLETED, address_of(memory), bytes, live.stream, live.pool, context);
    report(memory, -static_cast<int64_t>(bytes), device);
  }

  DataPtr allocate(size_t size) override {
    constexpr size_t kExabyte = 1152921504606846976ull;
    TORCH_CHECK_WITH(OutOfMemoryError, size < kExabyte, "CUDA out of memory. Tried to allocate more than 1EB memory.");
    const DeviceIndex device = current_device();
    void *memory = nullptr;
    if (size != 0) memory = allocate_block(device, size, c10::cuda::getCurrentCUDAStream(device));
    return {memory, memory, &raw_deleter_function, c10::Device(c10::DeviceType::CUDA, device)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &raw_deleter_function; }

  void *raw_alloc(size_t size) override {
    return raw_alloc_with_stream(size, c10::cuda::getCurrentCUDAStream(current_device()));
  }

  // From PyTorch 2.15 on: a block at an address that the caller chooses.
  DataPtr allocateWithAddress(size_t size, void *address) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "gmm: a block of ", size, " bytes at ", address,
                                " was asked for; gmm's heaps choose the addresses of blocks: call allocate()");
  }

  void *raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
    return size == 0 ? nullptr : allocate_block(current_device(), size, stream);
  }

  void raw_delete(void *memory) override { free_block(memory); }

  void copy_data(void *destination, const void *source, std::size_t count) const override {
    C10_CUDA_CHECK(cudaMemcpy(destination, source, count, cudaMemcpyDeviceToDevice));
  }

  // Life and limits.

  void init(int count) override {
    open(count);
    initialized_ = true;
  }
  bool initialized() override { return initialized_; }
  void enable(bool value) { enabled_ = value; }
  bool isEnabled() const { return enabled_; }
  std::string name() override { return "gmm"; }

  double getMemoryFraction(DeviceIndex device) { return device_of(device).fraction; }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
    check(lib->fraction(fraction, device), "set_per_process_memory_fraction");
    device_of(device).fraction = fraction;
  }

#if GMM_TORCH_VERSION >= 210
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex /*device*/) override { return {}; }
#endif

  void emptyCache() { emptyCache(MempoolId{0, 0}); }
  void emptyCache(MempoolId id) {
    if (!lib->usable()) return;
    for (int32_t i = 0; i < count_; ++i) {
      devices_[i]->observe();
      devices_[i]->collect(id);
    }
    if (id == PoolId{}) {
      check(lib->trim(), "empty_cache");
      for (int32_t i = 0; i < count_; ++i) devices_[i]->observe();
    }
  }

  void cacheInfo(DeviceIndex number, size_t *largest) override {
    uint64_t free_bytes = 0, total = 0;
    check(lib->capacity(number, &free_bytes, &total), "cacheInfo");
    size_t most = std::max<size_t>(*largest, free_bytes);
    device_of(number).pools.each_segment(
        [&](const gmm_torch::Pool &, const gmm_torch::Segment &, const std::vector<Part> &parts) {
          for (const Part &part : parts)
            if (!part.active) most = std::max<size_t>(most, part.size);
        });
    *largest = most;
  }

  void *getBaseAllocation(void *memory, size_t *size) override {
    void *base = nullptr;
    uint64_t bytes = 0;
    int32_t device = 0;
    if (lib->base(memory, &base, &bytes, &device) < 0) return theirs->getBaseAllocation(memory, size);
    if (size != nullptr) *size = bytes;
    return base;
  }

  void recordStream(const DataPtr &data, c10::cuda::CUDAStream stream) override {
    if (data.get() == nullptr) return;
    Live live;
    if (ledger_.look(data.get(), &live) && live.block != nullptr) {
      device_of(live.device).pools.record(live.block, stream.stream());
      return;
    }
    check(lib->record(data.get(), stream.device_index(), stream.stream()), "record_stream");
  }
  void recordStream(const DataPtr &data, c10::Stream stream) { recordStream(data, c10::cuda::CUDAStream(stream)); }

  // Statistics.

  DeviceStats getDeviceStats(DeviceIndex number) override {
    Device &device = device_of(number);
    observe(device);
    DeviceStats out = device.stats.read();
    out.num_device_alloc = out.segment[gmm_torch::kAggregate].allocated;
    out.num_device_free = out.segment[gmm_torch::kAggregate].freed;
    out.max_split_size = -1;
    count_pools(device, out, 0);
    return out;
  }

  void resetAccumulatedStats(DeviceIndex number) override {
    observe(device_of(number));
    device_of(number).stats.reset_accumulated();
  }

  void resetPeakStats(DeviceIndex number) override {
    observe(device_of(number));
    device_of(number).stats.reset_peaks();
  }

  // Snapshots and history.

  SnapshotInfo snapshot() { return snapshot(MempoolId{0, 0}, true); }
  SnapshotInfo snapshot(MempoolId id) { return snapshot(id, true); }
  SnapshotInfo snapshot(MempoolId id, bool include_traces) {
    SnapshotInfo out{};
    const auto to_nanoseconds = clock_.makeConverter();
    const auto to_microseconds = [&](c10::approx_time_t time) { return to_nanoseconds(time) / 1000; };
    for (int32_t i = 0; i < count_; ++i) {
      add_segments(*devices_[i], id, &out.segments);
      std::vector<TraceEntry> entries;
      if (include_traces) {
        record(*devices_[i], TraceEntry::SNAPSHOT, 0, 0, nullptr, {}, nullptr);
        entries = devices_[i]->history.read();
        for (TraceEntry &entry : entries) entry.time_.t_ = to_microseconds(entry.time_.approx_t_);
      }
      out.device_traces.push_back(std::move(entries));
    }
    if (include_traces) {
      for (const Note &note : notes_.read()) {
        AnnotationEntry entry(note.device, note.time);
        entry.time_.t_ = to_microseconds(note.time);
        for (const auto &[key, value] : note.words) entry.recordUserMetadata(key, value);
        out.external_annotations.push_back(std::move(entry));
      }
    }
    out.config_metadata.max_split_size = std::numeric_limits<size_t>::max();
    out.config_metadata.pinned_num_register_threads = 1;
    return out;
  }

  bool isHistoryEnabled() override { return history_on_; }

  void recordHistory(bool enabled, CreateContextFn recorder, size_t most, RecordContext when) {
    recordHistory(enabled, recorder, most, when, false, {});
  }
  void recordHistory(bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear) {
    recordHistory(enabled, recorder, most, when, clear, {});
  }
  void recordHistory(bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear,
                     const std::vector<std::string> &skipped) {
    TORCH_CHECK(when == RecordContext::NEVER || recorder);
    recorder_ = enabled ? recorder : nullptr;
    context_level_ = enabled ? static_cast<int>(when) : static_cast<int>(RecordContext::NEVER);
    uint32_t skip = 0;
    static constexpr const char *kActions[] = {"alloc",         "free_requested", "free_completed",
                                               "segment_alloc", "segment_free",   "segment_map",
                                               "segment_unmap", "snapshot",       "oom"};
    for (const std::string &name : skipped)
      for (uint32_t i = 0; i < std::size(kActions); ++i)
        if (name == kActions[i]) skip |= 1u << i;
    skipped_ = skip;
    for (int32_t i = 0; i < count_; ++i) {
      devices_[i]->history.resize(most);
      if (!enabled || clear) devices_[i]->history.clear();
    }
    notes_.resize(most);
    if (!enabled || clear) notes_.clear();
    history_on_ = enabled;
    update_recording();
  }

  void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &words) override {
    if (history_on_) notes_.add({current_device(), c10::getApproximateTime(), words});
  }

  void pushCompileContext(std::string &words) { compile_contexts().push_back(words); }
  void popCompileContext() {
    if (!compile_contexts().empty()) compile_contexts().pop_back();
  }

  bool supportsUserMetadata() { return true; }
  void setUserMetadata(const std::string &words) { user_metadata() = words; }
  std::string getUserMetadata() { return user_metadata(); }
  void annotateMemory(const void *memory, const std::string &words) {
#if GMM_TORCH_VERSION >= 214
    Live live;
    if (!recording() || !ledger_.look(memory, &live)) return;
    std::string mine = words;
    mine.swap(user_metadata());
    record(device_of(live.device), TraceEntry::ANNOTATE, address_of(memory), gmm_torch::rounded(live.requested),
           live.stream, live.pool, nullptr);
    mine.swap(user_metadata());
#else
    (void)memory;
    (void)words;
#endif
  }

  Context getContextForPointer(const void *memory) {
    Live live;
    if (!ledger_.look(memory, &live) || live.context == nullptr) return nullptr;
    return *static_cast<Context *>(live.context);
  }

  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
    const std::lock_guard<std::mutex> guard(observers_mutex_);
    oom_observers_.push_back(std::move(observer));
  }
  void attachOomRejectionObserver(Rejection) {}  // gmm rejects no allocation before the device is full

  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    const std::lock_guard<std::mutex> guard(observers_mutex_);
    trackers_.push_back(std::move(tracker));
    tracked_ = true;
    update_recording();
  }

  // Pools.

  void beginAllocateToPool(DeviceIndex number, MempoolId id, std::function<bool(cudaStream_t)> filter) override {
    Device &device = device_of(number);
    device.pools.retain(id);
#if GMM_TORCH_VERSION < 208
    if (c10::cuda::MemPool *active = c10::cuda::MemPoolContext::getActiveMemPool();
        active != nullptr && active->id() == id && active->allocator() != nullptr)
      device.pools.configure(id, [&](gmm_torch::Pool &one) { one.source = {active->allocator(), [](void *) {}}; });
#endif
    const std::lock_guard<std::mutex> guard(device.underway.mutex);
    for (const Underway::Entry &entry : device.underway.entries)
      TORCH_CHECK(entry.id != id, "beginAllocateToPool: already recording to mempool_id");
    device.underway.entries.push_back({id, std::move(filter)});
    device.underway.count.fetch_add(1, std::memory_order_release);
  }

  void endAllocateToPool(DeviceIndex number, MempoolId id) override {
    Device &device = device_of(number);
    const std::lock_guard<std::mutex> guard(device.underway.mutex);
    auto &entries = device.underway.entries;
    for (auto at = entries.begin(); at != entries.end(); ++at) {
      if (at->id != id) continue;
      entries.erase(at);
      device.underway.count.fetch_sub(1, std::memory_order_release);
      return;
    }
    TORCH_CHECK(false, "endAllocatePool: not currently recording to mempool_id");
  }

  void releasePool(DeviceIndex number, MempoolId id) override { device_of(number).pools.release(id); }
  int getPoolUseCount(DeviceIndex number, MempoolId id) { return static_cast<int>(device_of(number).pools.uses(id)); }
  void ensureExistsAndIncrefPool(DeviceIndex number, MempoolId id) { device_of(number).pools.retain(id); }
  void createOrIncrefPool(DeviceIndex number, MempoolId id, CUDAAllocator *source) {
    createOrIncrefPool(number, id, std::shared_ptr<CUDAAllocator>(source, [](CUDAAllocator *) {}));
  }
  void createOrIncrefPool(DeviceIndex number, MempoolId id, std::shared_ptr<CUDAAllocator> source) {
    device_of(number).pools.retain(id);
    if (source != nullptr && source.get() != this)
      device_of(number).pools.configure(id, [&](gmm_torch::Pool &pool) { pool.source = std::move(source); });
  }
  void setUseOnOOM(DeviceIndex number, MempoolId id) { setUseOnOOM(number, id, true); }
  void setUseOnOOM(DeviceIndex number, MempoolId id, bool on) {
    device_of(number).pools.configure(id, [&](gmm_torch::Pool &pool) { pool.use_on_oom = on; });
  }
  void setNoSplit(DeviceIndex number, MempoolId id) {
    device_of(number).pools.configure(id, [](gmm_torch::Pool &pool) { pool.no_split = true; });
  }

  bool checkPoolLiveAllocations(DeviceIndex number, MempoolId id, const std::unordered_set<void *> &expected) override {
    Device &device = device_of(number);
    TORCH_CHECK(device.pools.has(id), "Could not find pool of id");
    const std::vector<void *> live = device.pools.live(id);
    if (live.size() != expected.size()) return false;
    for (void *memory : live)
      if (expected.count(memory) == 0) return false;
    return true;
  }

  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex number, MempoolId id) override {
    return std::make_shared<State>(device_of(number).pools.checkpoint(id));
  }

  CheckpointDelta setCheckpointPoolState(DeviceIndex number, std::shared_ptr<AllocatorState> state) override {
    const auto mine = std::dynamic_pointer_cast<State>(state);
    TORCH_CHECK(mine != nullptr, "the checkpoint is another allocator's");
    Device &device = device_of(number);
    CheckpointDelta delta;
    std::vector<void *> freed;
    std::vector<PoolBlock *> made;
    TORCH_CHECK(device.pools.restore(mine->blocks, &freed, &made),
                "gmm: the pool's memory of the checkpoint is gone, or a stream still uses a block of it");
    for (void *memory : freed) {
      Live live;
      if (ledger_.take(memory, &live)) {
        device.stats.release(gmm_torch::rounded(live.requested), live.requested, false);
        delete static_cast<Context *>(live.context);
      }
      delta.ptrs_freed.push_back(memory);
    }
    for (PoolBlock *block : made) {
      Live live;
      live.memory = reinterpret_cast<void *>(block->address);
      live.requested = block->requested;
      live.stream = block->stream;
      live.block = block;
      live.pool = mine->blocks.id;
      live.device = number;
      ledger_.insert(live);
      device.stats.allocate(block->size, block->requested);
      delta.dataptrs_allocd.emplace_back(live.memory, live.memory, &raw_deleter_function,
                                         c10::Device(c10::DeviceType::CUDA, number));
    }
    return delta;
  }

  // Other processes.

  ShareableHandle shareIpcHandle(void *memory) override {
    uint8_t handle[GMM_TORCH_HANDLE];
    check(lib->share(memory, handle), "sharing of memory with another process");
    ShareableHandle out{};
    out.offset = 0;  // the handle is that of the address
    out.handle.assign(kMagic, kMagicSize);
    out.handle.append(reinterpret_cast<const char *>(handle), sizeof handle);
    return out;
  }

  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    if (handle.size() != kMagicSize + GMM_TORCH_HANDLE || handle.compare(0, kMagicSize, kMagic, kMagicSize) != 0)
      return theirs->getIpcDevPtr(std::move(handle));  // of a process with PyTorch's own allocator
    void *memory = nullptr;
    check(lib->open(reinterpret_cast<const uint8_t *>(handle.data()) + kMagicSize, current_device(), &memory),
          "opening of another process's memory");
    return std::shared_ptr<void>(memory, [](void *opened) { (void)lib->close(opened); });
  }

  // Other devices.

  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override {
    const c10::cuda::CUDAGuard guard(device);
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled)
      (void)cudaGetLastError();
    else
      C10_CUDA_CHECK(error);
  }

  // Only cudaMemcpyPeerAsync copies mapped memory between devices that have no mapping of each other's.
  cudaError_t memcpyAsync(void *destination, int to, const void *source, int from, size_t count, cudaStream_t stream,
                          bool /*p2p_enabled*/) override {
    if (to == from) return cudaMemcpyAsync(destination, source, count, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(destination, to, source, from, count, stream);
  }

  // The callback of a pool's block that streams have finished with.
  void completed(Device &device, const PoolBlock &block) {
    device.stats.deactivate(block.size);
    record(device, TraceEntry::FREE_COMPLETED, block.address, block.size, block.stream, block.segment->pool->id,
           nullptr);
  }

  void record_segment(Device &device, bool made, const void *memory, uint64_t size, Stream stream) {
    record(device, made ? TraceEntry::SEGMENT_ALLOC : TraceEntry::SEGMENT_FREE, address_of(memory), size, stream, {},
           nullptr);
  }

 private:
  static uint64_t address_of(const void *memory) { return reinterpret_cast<uintptr_t>(memory); }

  static std::string &user_metadata() {
    thread_local std::string words;
    return words;
  }

  Device &device_of(int32_t number) {
    TORCH_CHECK(0 <= number && number < count_, "Allocator not initialized for device ", number,
                ": did you call init?");
    return *devices_[number];
  }

  // The memory of private pools, where the version asks for it. Their peaks are the present numbers.
  template <class Stats>
  static auto count_pools(Device &device, Stats &out, int /*preferred*/)
      -> decltype(out.reserved_bytes_by_private_pools, void()) {
    device.pools.each_segment(
        [&](const gmm_torch::Pool &pool, const gmm_torch::Segment &segment, const std::vector<Part> &) {
          auto &stats = out.reserved_bytes_by_private_pools[pool.id];
          stats[gmm_torch::kAggregate].increase(segment.size);
          stats[segment.small ? gmm_torch::kSmall : gmm_torch::kLarge].increase(segment.size);
        });
  }
  template <class Stats>
  static void count_pools(Device &, Stats &, long /*otherwise*/) {}

  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  void update_recording() { recording_ = history_on_ || tracked_; }

  Context gather(RecordContext level) {
    if (C10_LIKELY(context_level_.load(std::memory_order_relaxed) < static_cast<int>(level))) return nullptr;
    const CreateContextFn recorder = recorder_.load();
    return recorder == nullptr ? nullptr : recorder();
  }

  void record(Device &device, TraceEntry::Action action, uint64_t address, uint64_t size, Stream stream, PoolId pool,
              const Context &context) {
    if (C10_LIKELY(!recording())) return;
    const bool keep = context_level_.load(std::memory_order_relaxed) >= static_cast<int>(RecordContext::ALLOC);
    const std::string compile = compile_contexts().empty() ? std::string("N/A") : compile_contexts().back();
    TraceEntry entry = make_entry(action, device.index, address, size, stream, pool, c10::getApproximateTime(),
                                  keep ? context : nullptr, compile, user_metadata());
    if (tracked_)
      for (const AllocatorTraceTracker &tracker : copy_of(trackers_)) tracker(entry);
    if (history_on_ && (skipped_.load(std::memory_order_relaxed) >> action & 1) == 0)
      device.history.add(std::move(entry));
  }

  static void report(void *memory, int64_t bytes, Device &device) {
    if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
    device.observe();
    const DeviceStats counters = device.stats.read();
    c10::reportMemoryUsageToProfiler(memory, bytes,
                                     static_cast<size_t>(counters.allocated_bytes[gmm_torch::kAggregate].current),
                                     static_cast<size_t>(counters.reserved_bytes[gmm_torch::kAggregate].current),
                                     c10::Device(c10::DeviceType::CUDA, device.index));
  }

  static void adopt(PoolBlock *block, Live *live) {
    live->block = block;
    live->memory = block == nullptr ? nullptr : reinterpret_cast<void *>(block->address);
  }

  // Asks the pool that is under way, else gmm. Returns a gmm_result.
  static int32_t attempt(Device &device, size_t size, cudaStream_t stream, Live *live) {
    if (!device.underway.find(stream, &live->pool)) return lib->allocate(size, device.index, stream, &live->memory);
    adopt(device.pools.allocate(live->pool, size, stream, device.underway.any()), live);
    return live->memory != nullptr ? 0 : kOutOfMemory;
  }

  template <class Observer>
  std::vector<Observer> copy_of(const std::vector<Observer> &observers) {
    const std::lock_guard<std::mutex> guard(observers_mutex_);
    return observers;
  }

  // After a failure: what PyTorch and its pools can spare, then once more. Throws where that does not help.
  void recover(Device &device, size_t size, cudaStream_t stream, int32_t result, Live *live) {
    std::string reason = (live->pool == PoolId{} ? "" : "a segment of a private pool: ") + std::string(lib->reason());
    const bool memory =
        result == kOutOfMemory || result == kOutOfHostMemory || result == kLimitExceeded || result == kSizeOverflow;
    TORCH_CHECK(memory, "gmm: allocation: ", reason);
    device.stats.count_retry();
    for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
      c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    lib->collect(1);
    device.collect();
    if (attempt(device, size, stream, live) >= 0) return;
    if (live->pool == PoolId{}) {
      reason = lib->reason();
      adopt(device.pools.borrow(size, stream, &live->pool), live);
    }
    if (live->memory != nullptr) return;
    device.stats.count_oom();
    gmm_torch_memory now{};
    uint64_t free_bytes = 0, total = 0;
    (void)lib->memory(device.index, &now);
    (void)lib->capacity(device.index, &free_bytes, &total);
    record(device, TraceEntry::OOM, free_bytes, size, stream, live->pool, gather(RecordContext::ALLOC));
    const auto allocated = device.stats.read().allocated_bytes[gmm_torch::kAggregate].current;
    for (const OutOfMemoryObserver &observer : copy_of(oom_observers_))
      observer(device.index, gmm_torch::rounded(size), total, free_bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", format_bytes(size), ". GPU ",
                     static_cast<int>(device.index), " has a total capacity of ", format_bytes(total), " of which ",
                     format_bytes(free_bytes), " is free. gmm holds ", format_bytes(now.reserved),
                     ", and tensors take ", format_bytes(static_cast<uint64_t>(allocated)), " of it. gmm: ", reason);
  }

  // Segments: those of the private pools, and the heaps' memory around them, in pieces without gaps.
  void add_segments(Device &device, PoolId only, std::vector<SegmentInfo> *out) {
    std::vector<gmm_torch::Range> pooled;
    const auto context_at = [this](uint64_t address) {
      return getContextForPointer(reinterpret_cast<const void *>(address));
    };
    device.pools.each_segment(
        [&](const gmm_torch::Pool &pool, const gmm_torch::Segment &segment, const std::vector<Part> &parts) {
          pooled.push_back({segment.address, segment.size});
          if (only != PoolId{} && only != pool.id) return;
          SegmentInfo info = make_segment(device, {segment.address, segment.size}, parts, context_at);
          info.stream = static_cast<decltype(info.stream)>(segment.stream);
          info.is_large = !segment.small;
          info.owner_private_pool_id = pool.id;
          out->push_back(std::move(info));
        });
    if (only != PoolId{}) return;
    const std::vector<Part> live = live_parts(device);
    std::vector<gmm_torch::Range> ranges;
    check(extents_of(device, &ranges), "memory_snapshot");
    for (const gmm_torch::Range &range : gmm_torch::without(gmm_torch::joined(std::move(ranges)), pooled)) {
      const std::vector<Part> parts = gmm_torch::parts_of(range, live);
      out->push_back(make_segment(device, range, parts, context_at));
    }
  }

  static int32_t extents_of(const Device &device, std::vector<gmm_torch::Range> *out) {
    return lib->extents(
        device.index,
        [](void *user, uint64_t address, uint64_t size) {
          static_cast<std::vector<gmm_torch::Range> *>(user)->push_back({address, size});
        },
        out);
  }

  // gmm's own blocks in the order of their addresses.
  std::vector<Part> live_parts(const Device &device) const {
    std::vector<Part> live;
    ledger_.each([&](const Live &block) {
      if (block.device != device.index || block.block != nullptr) return;
      Part part;
      part.address = address_of(block.memory);
      part.size = gmm_torch::rounded(block.requested);
      part.requested = block.requested;
      part.allocated = part.active = true;
      part.stream = block.stream;
      live.push_back(part);
    });
    std::sort(live.begin(), live.end(), [](const Part &a, const Part &b) { return a.address < b.address; });
    return live;
  }

  // Statistics that are read now and then. The free memory between blocks is counted here, because an allocation must
  // not pay for it: once for each state of the blocks. The extents are asked for after calls of the driver only.
  void observe(Device &device) {
    device.observe();
    const std::lock_guard<std::mutex> guard(device.looked.mutex);
    const uint64_t blocks = device.stats.changes(), extents = lib->changes();
    if (blocks == device.looked.blocks && extents == device.looked.extents) return;
    if (extents != device.looked.extents) {
      std::vector<gmm_torch::Range> ranges;
      if (extents_of(device, &ranges) < 0) return;
      device.looked.ranges = gmm_torch::joined(std::move(ranges));
    }
    gmm_torch::Inactive now;
    std::vector<gmm_torch::Range> pooled;
    device.pools.each_segment(
        [&](const gmm_torch::Pool &, const gmm_torch::Segment &segment, const std::vector<Part> &parts) {
          pooled.push_back({segment.address, segment.size});
          gmm_torch::add_inactive(parts, &now);
        });
    const std::vector<Part> live = live_parts(device);
    for (const gmm_torch::Range &range : gmm_torch::without(device.looked.ranges, pooled))
      gmm_torch::add_inactive(gmm_torch::parts_of(range, live), &now);
    device.stats.observe_inactive(now);
    device.looked.blocks = blocks;
    device.looked.extents = extents;
  }

  template <class ContextAt>
  static SegmentInfo make_segment(const Device &device, const gmm_torch::Range &range, const std::vector<Part> &parts,
                                  ContextAt context_at) {
    SegmentInfo info;
    info.device = device.index;
    info.address = range.address;
    info.total_size = range.size;
    info.is_large = range.size > gmm_torch::kSmallSegment;
    for (const Part &part : parts) {
      BlockInfo block;
      block.size = part.size;
      block.requested_size = part.requested;
      block.allocated = part.allocated;
      block.active = part.active;
      if (part.allocated) {
        block.context_when_allocated = context_at(part.address);
        info.allocated_size += part.size;
        info.requested_size += part.requested;
        if (info.stream == nullptr) info.stream = static_cast<decltype(info.stream)>(part.stream);
      }
      if (part.active) info.active_size += part.size;
      info.blocks.push_back(std::move(block));
    }
    return info;
  }

  std::array<std::unique_ptr<Device>, kMostDevices> devices_;
  int32_t count_ = 0;
  std::atomic<bool> initialized_{false}, enabled_{true};
  gmm_torch::Ledger ledger_;
  std::atomic<bool> recording_{false}, history_on_{false}, tracked_{false};
  std::atomic<int> context_level_{static_cast<int>(RecordContext::NEVER)};
  std::atomic<uint32_t> skipped_{0};
  std::atomic<CreateContextFn> recorder_{nullptr};
  gmm_torch::Ring<Note> notes_;
  c10::ApproximateClockToUnixTimeConverter clock_;
  std::mutex observers_mutex_;
  std::vector<OutOfMemoryObserver> oom_observers_;
  std::vector<AllocatorTraceTracker> trackers_;
};

// It is never destroyed: tensors live until the process ends.
Allocator &ours() {
  static auto *allocator = new Allocator;
  return *allocator;
}

void raw_deleter_function(void *memory) { ours().free_block(memory); }

void *Device::take(uint64_t size, const std::shared_ptr<void> &source, Stream stream) {
  void *memory = nullptr;
  if (source != nullptr) {
    memory = static_cast<CUDAAllocator *>(source.get())->raw_alloc(size);
  } else {
    if (lib->segment(size, index, &memory) < 0) memory = nullptr;
  }
  if (memory != nullptr) ours().record_segment(*this, true, memory, size, stream);
  return memory;
}

void Device::give(void *memory, uint64_t size, const std::shared_ptr<void> &source) {
  ours().record_segment(*this, false, memory, size, nullptr);
  if (source != nullptr)
    static_cast<CUDAAllocator *>(source.get())->raw_delete(memory);
  else
    lib->release(memory, nullptr);
}

void Device::freed(const PoolBlock &block) { ours().completed(*this, block); }

}  // namespace

extern "C" {

const char *gmm_torch_native_error(void) { return last_error().c_str(); }

// Makes gmm PyTorch's allocator. PyTorch's own may have been initialized, but must hold no memory.
int32_t gmm_torch_native_install(const gmm_torch_native *functions, int32_t device_count, int32_t cuda) {
  return guarded([&] {
    lib = functions;
    CUDAAllocator *current = c10::cuda::CUDACachingAllocator::allocator.load();
    if (current == &ours()) return;
    on_cuda = cuda != 0;
    ours().open(device_count);
    if (current->initialized()) {
      c10::cuda::CUDACachingAllocator::emptyCache();
      for (int32_t i = 0; i < device_count; ++i) {
        const int64_t held = current->getDeviceStats(static_cast<DeviceIndex>(i))
                                 .reserved_bytes[static_cast<size_t>(gmm_torch::kAggregate)]
                                 .current;
        TORCH_CHECK(held == 0, "PyTorch's own allocator holds ", format_bytes(static_cast<uint64_t>(held)),
                    " of CUDA device ", i, " for tensors that exist already");
      }
      ours().init(device_count);
    }
    theirs = current;
    c10::SetAllocator(c10::DeviceType::CUDA, &ours(), /*priority=*/255);
    c10::cuda::CUDACachingAllocator::allocator.store(&ours());
  });
}

// An allocation as PyTorch makes it, with the device and the stream given. For tests without a driver.
int32_t gmm_torch_native_malloc(uint64_t size, int32_t device, void *stream, void **out) {
  return guarded([&] { *out = ours().allocate_block(device, size, static_cast<cudaStream_t>(stream)); });
}

// A history without contexts, which only a driver's process can gather. For tests without a driver.
int32_t gmm_torch_native_record(int32_t enabled, uint64_t most) {
  return guarded([&] { ours().recordHistory(enabled != 0, nullptr, most, RecordContext::NEVER, false, {}); });
}

int32_t gmm_torch_native_free(void *memory) {
  return guarded([&] { ours().free_block(memory); });
}

}  // extern "C"
