// SPDX-License-Identifier: Apache-2.0
// gmm as an allocator of PyTorch's own kind: a CUDAAllocator, which answers everything that PyTorch asks of its own.
//
// A tensor is a block of gmm. Only the private pool of a CUDA graph or of a torch.cuda.MemPool divides segments of gmm
// itself (pools.hpp). The ledger holds the live blocks of both (ledger.hpp).
//
// The interface differs between the versions of PyTorch. A function stands here in each form that any of them has,
// without `override`: where the base class lacks the form, it is a function that nobody calls.
#ifndef GMM_TORCH_ALLOCATOR_HPP
#define GMM_TORCH_ALLOCATOR_HPP

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

#include "ledger.hpp"
#include "memory.hpp"

#define GMM_TORCH_VERSION (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

namespace gmm_torch {

// NOLINTNEXTLINE: a name lies in one of these namespaces, depending on the version
using namespace c10::cuda::CUDACachingAllocator;
using namespace c10::CachingDeviceAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using MempoolId = c10::cuda::MempoolId_t;
using Context = std::shared_ptr<c10::GatheredContext>;

constexpr int32_t kMostDevices = 64;
constexpr std::string_view kMagic = "gmm\1";  // begins the handles of memory of gmm

inline CUDAAllocator *theirs = nullptr;  // PyTorch's own
inline bool on_cuda = true;              // false: a test without a driver

inline std::string format_bytes(uint64_t bytes) {
  const int unit = bytes < 1 << 20 ? 0 : bytes < 1 << 30 ? 1 : 2;
  char text[64];
  snprintf(text, sizeof text, "%.2f %ciB", static_cast<double>(bytes >> 10 * unit) / 1024, "KMG"[unit]);
  return text;
}

inline DeviceIndex current_device() {
  DeviceIndex device = 0;
  if (on_cuda) C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

inline void check(gmm_result result, const char *what) { TORCH_CHECK(result >= 0, "gmm: ", what, ": ", reason()); }

inline uint64_t address_of(const void *memory) { return reinterpret_cast<uintptr_t>(memory); }
inline cudaStream_t as_cuda(gmm_stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
inline gmm_stream as_gmm(cudaStream_t stream) { return reinterpret_cast<gmm_stream>(stream); }

inline gmm_scope_desc scope_of(gmm_device device) {
  gmm_scope_desc scope = sized<gmm_scope_desc>();
  scope.flags = GMM_SCOPE_DEVICE;
  scope.device = device;
  return scope;
}

// The extents and reserved bytes of a device's heaps. Page-locked memory and CPU tensors are counted for the device
// too, but do not lie on it.
inline gmm_stats_info reserved_of(gmm_device device) {
  gmm_stats_info out = sized<gmm_stats_info>();
  gmm_scope_desc scope = scope_of(device);
  gmm_stats_info all = sized<gmm_stats_info>();
  (void)gmm_stats_query(context(), &scope, &all);
  const auto add = [&](uint64_t sign) {
    gmm_stats_info stats = sized<gmm_stats_info>();
    if (gmm_stats_query(context(), &scope, &stats) < 0) return;  // the device lacks the kind
    out.reserved_bytes += sign * stats.reserved_bytes;
    out.peak_reserved_bytes += sign * stats.peak_reserved_bytes;
    out.extents += sign * stats.extents;
  };
  scope.flags |= GMM_SCOPE_KIND;
  for (const gmm_kind kind : {GMM_KIND_DEVICE, GMM_KIND_VMM, GMM_KIND_MANAGED}) {
    scope.kind = kind;
    add(1);
  }
  scope.flags |= GMM_SCOPE_TAG;
  scope.tag = host->tag();
  if (scope.tag != 0) add(UINT64_MAX);  // minus 1
  // The kinds may have had their peaks at different moments.
  out.peak_reserved_bytes = std::min(out.peak_reserved_bytes, all.peak_reserved_bytes);
  return out;
}

// The extents of a device's heaps that have memory now, by address: nothing of them is paused.
inline gmm_result extents_of(gmm_device device, std::map<uint64_t, uint64_t> *out) {
  const gmm_scope_desc scope = scope_of(device);
  gmm_snapshot *snapshot = nullptr;
  gmm_result result = gmm_snapshot_create(context(), &scope, &snapshot);
  if (result < 0) return result;
  gmm_snapshot_info info = sized<gmm_snapshot_info>();
  result = gmm_snapshot_query(snapshot, &info);
  for (uint64_t i = 0; result >= 0 && i < info.extent_count; ++i) {
    gmm_extent_info extent = sized<gmm_extent_info>();
    result = gmm_snapshot_query_extent(snapshot, i, &extent);
    const bool is_host = extent.kind == GMM_KIND_HOST || (host->tag() != 0 && extent.tag == host->tag());
    if (result >= 0 && extent.state == GMM_STATE_ACTIVE && !is_host)
      out->emplace(address_of(extent.address), extent.size);
  }
  complain(gmm_snapshot_destroy(snapshot), "snapshot");
  return result;
}

struct Device final : Backing {
  explicit Device(DeviceIndex number) : index(number), pools(number, *this) {}

  DeviceIndex index;
  Counters stats;
  Pools pools;
  std::atomic<double> fraction{1.0};
  Ring<TraceEntry> history;

  void observe() { stats.observe(reserved_of(index)); }

  // Gives the memory of pools without users back to gmm.
  void collect(PoolId only = {});

  void *take(uint64_t size, const std::shared_ptr<void> &source, gmm_stream stream) override;
  void freed(const PoolBlock &block) override;
};

void raw_deleter_function(void *memory);

struct State final : AllocatorState {
  State(PoolId from, std::vector<PoolPart> at_once) : id(from), parts(std::move(at_once)) {}
  PoolId id;
  std::vector<PoolPart> parts;
};

class Allocator final : public CUDAAllocator {
 public:
  Allocator() = default;

  void open(int32_t count) {
    for (int32_t i = 0; i < count && i < kMostDevices; ++i)
      if (devices_[i] == nullptr) devices_[i] = std::make_unique<Device>(static_cast<DeviceIndex>(i));
    count_ = std::max(count_, std::min(count, kMostDevices));
  }

  // Allocation and free.

  void *allocate_block(int32_t number, size_t size, gmm_stream stream) {
    Device &device = device_of(number);
    const Context context = gather(RecordContext::STATE);
    Live live{nullptr, size, stream, nullptr, nullptr, {}, number};
    const gmm_result result = attempt(device, size, stream, &live);
    if (C10_UNLIKELY(result < 0)) recover(device, size, stream, result, &live);
    const uint64_t bytes = live.bytes();
    if (context != nullptr) live.context = new Context(context);
    ledger_.insert(live);
    device.stats.change<&Stat::increase>(bytes, size);
    record(device, TraceEntry::ALLOC, address_of(live.memory), bytes, stream, live.pool, context);
    report(live.memory, static_cast<int64_t>(bytes), device);
    if (const auto *interpreter = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(interpreter != nullptr))
      (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, address_of(live.memory));
    return live.memory;
  }

  void free_block(void *memory) {
    if (memory == nullptr || context_for_free() == nullptr) return;
    Live live;
    if (C10_UNLIKELY(!ledger_.take(memory, &live))) {
      theirs->raw_delete(memory);  // from before gmm, else an error
      return;
    }
    if (const auto *interpreter = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(interpreter != nullptr))
      (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, address_of(memory));
    Device &device = device_of(live.device);
    const uint64_t bytes = live.bytes();
    Context context;
    if (C10_UNLIKELY(live.context != nullptr)) {
      context = std::move(*static_cast<Context *>(live.context));
      delete static_cast<Context *>(live.context);
    }
    if (C10_UNLIKELY(recording())) {
      if (context_level_.load(std::memory_order_relaxed) >= static_cast<int>(RecordContext::ALL))
        context = gather(RecordContext::ALL);
      record(device, TraceEntry::FREE_REQUESTED, address_of(memory), bytes, live.stream, live.pool, context);
    }
    bool done = true;
    if (live.block != nullptr)
      done = device.pools.free(live.block);
    else
      gmm_torch::release(memory, live.stream);
    device.stats.change<&Stat::decrease>(bytes, live.requested, true, done);
    if (done) record(device, TraceEntry::FREE_COMPLETED, address_of(memory), bytes, live.stream, live.pool, context);
    report(memory, -static_cast<int64_t>(bytes), device);
  }

  DataPtr allocate(size_t size) override {
    constexpr size_t kExabyte = 1152921504606846976ull;
    TORCH_CHECK_WITH(OutOfMemoryError, size < kExabyte, "CUDA out of memory. Tried to allocate more than 1EB memory.");
    const DeviceIndex device = current_device();
    void *memory = nullptr;
    if (size != 0) memory = allocate_block(device, size, as_gmm(c10::cuda::getCurrentCUDAStream(device)));
    return {memory, memory, &raw_deleter_function, c10::Device(c10::DeviceType::CUDA, device)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &raw_deleter_function; }

  void *raw_alloc(size_t size) override {
    return raw_alloc_with_stream(size, c10::cuda::getCurrentCUDAStream(current_device()));
  }

  void *raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
    return size == 0 ? nullptr : allocate_block(current_device(), size, as_gmm(stream));
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
    gmm_device_info info = sized<gmm_device_info>();
    check(gmm_device_query(context(), device, &info), "set_per_process_memory_fraction");
    const gmm_scope_desc scope = scope_of(device);  // managed memory counts wherever its pages are
    const auto limit = static_cast<uint64_t>(fraction * static_cast<double>(info.total_memory));
    check(gmm_limit_set(context(), &scope, fraction >= 1.0 ? GMM_NO_LIMIT : limit), "set_per_process_memory_fraction");
    device_of(device).fraction = fraction;
  }

#if GMM_TORCH_VERSION >= 210
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex /*device*/) override { return {}; }
#endif

  void emptyCache() { emptyCache(MempoolId{0, 0}); }
  void emptyCache(MempoolId id) {
    if (context_for_free() == nullptr) return;
    for (int32_t i = 0; i < count_; ++i) {
      devices_[i]->observe();
      devices_[i]->collect(id);
    }
    if (id != PoolId{}) return;
    host->collect(false);
    check(gmm_trim(context(), nullptr, nullptr), "empty_cache");
    hints.forget();
    for (int32_t i = 0; i < count_; ++i) devices_[i]->observe();
  }

  void cacheInfo(DeviceIndex number, size_t *largest) override {
    gmm_device_info info = sized<gmm_device_info>();
    check(gmm_device_query(context(), number, &info), "cacheInfo");
    size_t most = std::max<size_t>(*largest, info.free_memory);
    for (const PoolPart &each : device_of(number).pools.parts())
      if (!each.part.active) most = std::max<size_t>(most, each.part.size);
    *largest = most;
  }

  void *getBaseAllocation(void *memory, size_t *size) override {
    gmm_pointer_info info = sized<gmm_pointer_info>();
    if (gmm_query(context(), memory, &info) < 0 || info.state == GMM_STATE_UNKNOWN)
      return theirs->getBaseAllocation(memory, size);
    if (size != nullptr) *size = info.allocation_size;
    return info.allocation_base;
  }

  // A stream uses the memory until its free. GMM_UNCHANGED: it is not gmm's.
  gmm_result note_use(void *memory, gmm_device device, gmm_stream stream) {
    Live live;
    if (!ledger_.look(memory, &live) || live.block == nullptr) return gmm_torch::record(memory, device, stream);
    device_of(live.device).pools.record(live.block, stream);
    return GMM_OK;
  }

  void recordStream(const DataPtr &data, c10::cuda::CUDAStream stream) override {
    if (data.get() == nullptr) return;
    check(note_use(data.get(), stream.device_index(), as_gmm(stream.stream())), "record_stream");
  }
  void recordStream(const DataPtr &data, c10::Stream stream) { recordStream(data, c10::cuda::CUDAStream(stream)); }

  // Statistics.

  DeviceStats getDeviceStats(DeviceIndex number) override {
    Device &device = device_of(number);
    device.observe();
    DeviceStats out = device.stats.read();
    out.num_device_alloc = out.segment[kAggregate].allocated;
    out.num_device_free = out.segment[kAggregate].freed;
    out.max_split_size = -1;
    return out;
  }

  void resetAccumulatedStats(DeviceIndex number) override {
    device_of(number).observe();
    device_of(number).stats.reset_accumulated();
  }

  void resetPeakStats(DeviceIndex number) override {
    device_of(number).observe();
    device_of(number).stats.each([](Stat &stat) { stat.reset_peak(); });
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
    for (int32_t i = 0; i < count_; ++i) devices_[i]->history.begin(most, !enabled || clear);
    history_on_ = enabled;
    update_recording();
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
  // gmm rejects no allocation before the device is full.
  void attachOomRejectionObserver(std::function<void(int64_t, size_t, size_t, size_t)>) {}

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
      device.pools.configure(id, [&](Pool &one) { one.source = {active->allocator(), [](void *) {}}; });
#endif
    const auto wants = [filter = std::move(filter)](gmm_stream stream) { return filter(as_cuda(stream)); };
    TORCH_CHECK(device.pools.begin(id, wants), "beginAllocateToPool: already recording to mempool_id");
  }

  void endAllocateToPool(DeviceIndex number, MempoolId id) override {
    TORCH_CHECK(device_of(number).pools.end(id), "endAllocatePool: not currently recording to mempool_id");
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
      device_of(number).pools.configure(id, [&](Pool &pool) { pool.source = std::move(source); });
  }
  void setUseOnOOM(DeviceIndex number, MempoolId id) { setUseOnOOM(number, id, true); }
  void setUseOnOOM(DeviceIndex number, MempoolId id, bool on) {
    device_of(number).pools.configure(id, [&](Pool &pool) { pool.use_on_oom = on; });
  }
  void setNoSplit(DeviceIndex number, MempoolId id) {
    device_of(number).pools.configure(id, [](Pool &pool) { pool.no_split = true; });
  }

  bool checkPoolLiveAllocations(DeviceIndex number, MempoolId id, const std::unordered_set<void *> &expected) override {
    size_t live = 0, found = 0;
    for (const PoolPart &each : device_of(number).pools.parts(id)) {
      live += each.part.allocated;
      found += each.part.allocated && expected.count(reinterpret_cast<void *>(each.part.address)) != 0;
    }
    return live == expected.size() && found == live;
  }

  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex number, MempoolId id) override {
    return std::make_shared<State>(id, device_of(number).pools.parts(id));
  }

  CheckpointDelta setCheckpointPoolState(DeviceIndex number, std::shared_ptr<AllocatorState> state) override {
    const auto mine = std::dynamic_pointer_cast<State>(state);
    TORCH_CHECK(mine != nullptr, "the checkpoint is another allocator's");
    Device &device = device_of(number);
    CheckpointDelta delta;
    std::vector<void *> freed;
    std::vector<PoolBlock *> made;
    TORCH_CHECK(device.pools.restore(mine->id, mine->parts, &freed, &made),
                "gmm: the pool's memory of the checkpoint is gone, or a stream still uses a block of it");
    for (void *memory : freed) {
      Live live;
      if (ledger_.take(memory, &live)) {
        device.stats.change<&Stat::decrease>(rounded(live.requested), live.requested);
        delete static_cast<Context *>(live.context);
      }
      delta.ptrs_freed.push_back(memory);
    }
    for (PoolBlock *block : made) {
      void *memory = reinterpret_cast<void *>(block->address);
      ledger_.insert({memory, block->requested, block->stream, block, nullptr, mine->id, number});
      device.stats.change<&Stat::increase>(block->size, block->requested);
      delta.dataptrs_allocd.emplace_back(memory, memory, &raw_deleter_function,
                                         c10::Device(c10::DeviceType::CUDA, number));
    }
    return delta;
  }

  // Other processes.

  ShareableHandle shareIpcHandle(void *memory) override {
    gmm_ipc_handle handle;
    check(gmm_ipc_export(context(), memory, &handle), "sharing of memory with another process");
    ShareableHandle out{};
    out.offset = 0;  // the handle is that of the address
    out.handle.assign(kMagic).append(reinterpret_cast<const char *>(&handle), sizeof handle);
    return out;
  }

  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    gmm_ipc_handle ours;
    if (handle.size() != kMagic.size() + sizeof ours || handle.compare(0, kMagic.size(), kMagic) != 0)
      return theirs->getIpcDevPtr(std::move(handle));  // of a process with PyTorch's own allocator
    memcpy(&ours, handle.data() + kMagic.size(), sizeof ours);
    gmm_ipc_import_desc desc = sized<gmm_ipc_import_desc>();
    desc.device = current_device();
    void *memory = nullptr;
    check(gmm_ipc_import(context(), &ours, &desc, &memory), "opening of another process's memory");
    return std::shared_ptr<void>(memory, [](void *opened) {
      if (gmm_context *from = context_for_free(); from != nullptr) (void)gmm_ipc_close(from, opened);
    });
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

  // An entry of the history and for the trackers.
  void record(Device &device, TraceEntry::Action action, uint64_t address, uint64_t size, gmm_stream stream,
              PoolId pool, const Context &context) {
    if (C10_LIKELY(!recording())) return;
    const bool keep = context_level_.load(std::memory_order_relaxed) >= static_cast<int>(RecordContext::ALLOC);
    const Context kept = keep ? context : nullptr;
    const c10::approx_time_t now = c10::getApproximateTime();
#if GMM_TORCH_VERSION >= 208
    TraceEntry entry(action, device.index, address, size, as_cuda(stream), pool, now, kept);
#else
    (void)pool;
    TraceEntry entry(action, device.index, address, size, as_cuda(stream), now, kept);
#endif
    if (tracked_)
      for (const AllocatorTraceTracker &tracker : copy_of(trackers_)) tracker(entry);
    if (history_on_ && (skipped_.load(std::memory_order_relaxed) >> action & 1) == 0)
      device.history.add(std::move(entry));
  }

 private:
  Device &device_of(int32_t number) {
    TORCH_CHECK(0 <= number && number < count_, "Allocator not initialized for device ", number,
                ": did you call init?");
    return *devices_[number];
  }

  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  void update_recording() { recording_ = history_on_ || tracked_; }

  Context gather(RecordContext level) {
    if (C10_LIKELY(context_level_.load(std::memory_order_relaxed) < static_cast<int>(level))) return nullptr;
    const CreateContextFn recorder = recorder_.load();
    return recorder == nullptr ? nullptr : recorder();
  }

  static void report(void *memory, int64_t bytes, Device &device) {
    if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
    device.observe();
    const DeviceStats counters = device.stats.read();
    c10::reportMemoryUsageToProfiler(memory, bytes, static_cast<size_t>(counters.allocated_bytes[kAggregate].current),
                                     static_cast<size_t>(counters.reserved_bytes[kAggregate].current),
                                     c10::Device(c10::DeviceType::CUDA, device.index));
  }

  static void adopt(PoolBlock *block, Live *live) {
    live->block = block;
    live->memory = block == nullptr ? nullptr : reinterpret_cast<void *>(block->address);
  }

  // Asks the pool that is under way, else gmm.
  static gmm_result attempt(Device &device, size_t size, gmm_stream stream, Live *live) {
    if (!device.pools.find(stream, &live->pool))
      return gmm_torch::allocate(current_kind(), GMM_TAG_CURRENT, 0, size, device.index, stream, &live->memory);
    adopt(device.pools.allocate(live->pool, size, stream), live);
    return live->memory != nullptr ? GMM_OK : GMM_ERROR_OUT_OF_MEMORY;
  }

  template <class Observer>
  std::vector<Observer> copy_of(const std::vector<Observer> &observers) {
    const std::lock_guard<std::mutex> guard(observers_mutex_);
    return observers;
  }

  // After a failure: frees the memory that PyTorch and its pools can spare, and tries again. Throws if that fails too.
  void recover(Device &device, size_t size, gmm_stream stream, gmm_result result, Live *live) {
    std::string why = (live->pool == PoolId{} ? "" : "a segment of a private pool: ") + std::string(reason());
    const bool is_short = result == GMM_ERROR_OUT_OF_MEMORY || result == GMM_ERROR_OUT_OF_HOST_MEMORY ||
                          result == GMM_ERROR_LIMIT_EXCEEDED || result == GMM_ERROR_SIZE_OVERFLOW;
    TORCH_CHECK(is_short, "gmm: allocation: ", why);
    device.stats.count(&DeviceStats::num_alloc_retries);
    for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
      c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    host->collect(true);
    device.collect();
    if (attempt(device, size, stream, live) >= 0) return;
    if (live->pool == PoolId{}) {
      why = reason();
      adopt(device.pools.borrow(size, stream, &live->pool), live);
    }
    if (live->memory != nullptr) return;
    device.stats.count(&DeviceStats::num_ooms);
    gmm_device_info info = sized<gmm_device_info>();
    (void)gmm_device_query(context(), device.index, &info);
    record(device, TraceEntry::OOM, info.free_memory, size, stream, live->pool, gather(RecordContext::ALLOC));
    const auto allocated = device.stats.read().allocated_bytes[kAggregate].current;
    for (const OutOfMemoryObserver &observer : copy_of(oom_observers_))
      observer(device.index, rounded(size), info.total_memory, info.free_memory);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", format_bytes(size), ". GPU ",
                     static_cast<int>(device.index), " has a total capacity of ", format_bytes(info.total_memory),
                     " of which ", format_bytes(info.free_memory), " is free. gmm holds ",
                     format_bytes(reserved_of(device.index).reserved_bytes), ", and tensors take ",
                     format_bytes(static_cast<uint64_t>(allocated)), " of it. gmm: ", why);
  }

  // The segments of the private pools, and the heaps' memory around them, in pieces without gaps. only: the segments of
  // one pool; {0, 0}: all.
  void add_segments(Device &device, PoolId only, std::vector<SegmentInfo> *out) {
    std::map<uint64_t, Part> taken;  // gmm's own blocks and the pools' segments
    const std::vector<PoolPart> all = device.pools.parts();
    for (auto at = all.begin(); at != all.end();) {
      const auto &[pool, segment, first] = *at;
      std::vector<Part> parts;
      for (; at != all.end() && at->segment.address == segment.address; ++at) parts.push_back(at->part);
      taken[segment.address] = {segment.address, segment.size};
      if (only != PoolId{} && only != pool) continue;
      SegmentInfo info = make_segment(device, segment.address, segment.size, parts);
      info.stream = as_cuda(segment.stream);
      info.is_large = !segment.small;
      info.owner_private_pool_id = pool;
      out->push_back(std::move(info));
    }
    if (only != PoolId{}) return;
    std::map<uint64_t, uint64_t> extents;
    check(extents_of(device.index, &extents), "memory_snapshot");
    ledger_.each([&](const Live &block) {
      if (block.device != device.index || block.block != nullptr) return;
      const uint64_t address = address_of(block.memory);
      taken[address] = {address, rounded(block.requested), block.requested, true, true, block.stream};
    });
    each_piece(extents, taken, [&](uint64_t address, uint64_t size, const std::vector<Part> &parts) {
      out->push_back(make_segment(device, address, size, parts));
    });
  }

  SegmentInfo make_segment(const Device &device, uint64_t address, uint64_t size, const std::vector<Part> &parts) {
    SegmentInfo info;
    info.device = device.index;
    info.address = address;
    info.total_size = size;
    info.is_large = size > kSmallSegment;
    for (const Part &part : parts) {
      BlockInfo block;
      block.size = part.size;
      block.requested_size = part.requested;
      block.allocated = part.allocated;
      block.active = part.active;
      if (part.allocated) {
        block.context_when_allocated = getContextForPointer(reinterpret_cast<const void *>(part.address));
        info.allocated_size += part.size;
        info.requested_size += part.requested;
        if (info.stream == nullptr) info.stream = as_cuda(part.stream);
      }
      if (part.active) info.active_size += part.size;
      info.blocks.push_back(std::move(block));
    }
    return info;
  }

  std::array<std::unique_ptr<Device>, kMostDevices> devices_;
  int32_t count_ = 0;
  std::atomic<bool> initialized_{false}, enabled_{true};
  Ledger ledger_;
  std::atomic<bool> recording_{false}, history_on_{false}, tracked_{false};
  std::atomic<int> context_level_{static_cast<int>(RecordContext::NEVER)};
  std::atomic<uint32_t> skipped_{0};
  std::atomic<CreateContextFn> recorder_{nullptr};
  c10::ApproximateClockToUnixTimeConverter clock_;
  std::mutex observers_mutex_;
  std::vector<OutOfMemoryObserver> oom_observers_;
  std::vector<AllocatorTraceTracker> trackers_;
};

// It is never destroyed: tensors live until the process ends.
inline Allocator &ours() {
  static auto *allocator = new Allocator;
  return *allocator;
}

inline void raw_deleter_function(void *memory) { ours().free_block(memory); }

// A segment of gmm is a driver allocation of its own, so that no queued work uses its memory. A stream that is captured
// does not matter.
inline void *Device::take(uint64_t size, const std::shared_ptr<void> &source, gmm_stream stream) {
  void *memory = nullptr;
  if (source != nullptr)
    memory = static_cast<CUDAAllocator *>(source.get())->raw_alloc(size);
  else
    (void)gmm_torch::allocate(current_kind(), GMM_TAG_CURRENT, GMM_ALLOC_DEDICATED, size, index, GMM_STREAM_DEFAULT,
                              &memory);
  if (memory != nullptr) ours().record(*this, TraceEntry::SEGMENT_ALLOC, address_of(memory), size, stream, {}, nullptr);
  return memory;
}

inline void Device::collect(PoolId only) {
  if (context_for_free() == nullptr) return;
  const auto idle = pools.collect(only);
  if (idle.empty()) return;
  if (on_cuda) {
    const c10::cuda::CUDAGuard guard(index);
    c10::cuda::device_synchronize();
  }
  for (const auto &[memory, size, source] : idle) {
    ours().record(*this, TraceEntry::SEGMENT_FREE, address_of(memory), size, nullptr, {}, nullptr);
    if (source != nullptr)
      static_cast<CUDAAllocator *>(source.get())->raw_delete(memory);
    else
      release(memory, GMM_STREAM_DEFAULT);
  }
}

inline void Device::freed(const PoolBlock &block) {
  stats.change<&Stat::decrease>(block.size, 0, false);
  ours().record(*this, TraceEntry::FREE_COMPLETED, block.address, block.size, block.stream, block.segment->pool->id,
                nullptr);
}

// Makes gmm PyTorch's allocator. PyTorch's own may have been initialized, but must hold no memory.
inline void install_allocator(int32_t device_count, bool cuda) {
  CUDAAllocator *current = c10::cuda::CUDACachingAllocator::allocator.load();
  if (current == &ours()) return;
  on_cuda = cuda;
  ours().open(device_count);
  if (current->initialized()) {
    c10::cuda::CUDACachingAllocator::emptyCache();
    for (int32_t i = 0; i < device_count; ++i) {
      const int64_t held =
          current->getDeviceStats(static_cast<DeviceIndex>(i)).reserved_bytes[size_t{kAggregate}].current;
      TORCH_CHECK(held == 0, "PyTorch's own allocator holds ", format_bytes(static_cast<uint64_t>(held)),
                  " of CUDA device ", i, " for tensors that exist already; move gmm.torch.use() above the line that ",
                  "makes the first CUDA tensor, or use gmm.torch.pool()");
    }
    ours().init(device_count);
  }
  theirs = current;
  c10::SetAllocator(c10::DeviceType::CUDA, &ours(), /*priority=*/255);
  c10::cuda::CUDACachingAllocator::allocator.store(&ours());
}

}  // namespace gmm_torch

#endif
