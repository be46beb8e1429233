// SPDX-License-Identifier: Apache-2.0
// Memory for PyTorch, of gmm's default context: the kind of new tensors, managed memory with RFC-0023's hints, CPU
// tensors in it, and the streams that use a block. The file compiles without PyTorch's headers.
#ifndef GMM_TORCH_MEMORY_HPP
#define GMM_TORCH_MEMORY_HPP

#include <gmm/gmm.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gmm_torch {

inline std::atomic<gmm_context *> attached{nullptr};
inline std::atomic<bool> is_ending{false};  // the interpreter: the driver may be gone, and the process frees all
inline bool is_forked = false;  // memory of the parent is still about, which no context of this process knows

// NULL in a child after fork(), which every function of gmm refuses.
inline gmm_context *context() { return attached.load(std::memory_order_acquire); }

inline gmm_context *context_for_free() { return is_ending.load(std::memory_order_relaxed) ? nullptr : context(); }

// The reason of this thread's last failure.
inline const char *reason() {
  return context() == nullptr ? "the process was forked from one that uses gmm; start it by spawn"
                              : gmm_last_error_message();
}

// Writes a failure to stderr where nothing may be raised. A child after fork() is silent about its parent's memory.
inline void complain(gmm_result result, const char *what, const void *memory = nullptr) {
  if (result >= 0 || result == GMM_ERROR_FORKED || (is_forked && result == GMM_ERROR_UNKNOWN_POINTER)) return;
  fprintf(stderr, "gmm: %s(%p): %s: %s\n", what, memory, gmm_result_name(result), gmm_last_error_message());
}

// A struct of gmm with its size.
template <class Struct>
Struct sized() {
  Struct made{};
  made.struct_size = sizeof made;
  return made;
}

inline std::atomic<gmm_kind> cuda_kind{GMM_KIND_VMM};
inline std::atomic<bool> is_managed{false};  // of all new tensors, on the host too

inline gmm_kind current_kind() {
  return is_managed.load(std::memory_order_relaxed) ? gmm_kind{GMM_KIND_MANAGED}
                                                    : cuda_kind.load(std::memory_order_relaxed);
}

// RFC-0023's hints. The preferred location of a CUDA tensor's new memory is its device. That of a CPU tensor's is the
// host, and the device has a mapping of it.
class Hints {
 public:
  // Hints for a new block. host: of a CPU tensor.
  void advise_new(void *memory, gmm_device device, bool host) {
    gmm_pointer_info info = sized<gmm_pointer_info>();
    if (gmm_query(context(), memory, &info) < 0) return;
    const uint64_t page = page_of(memory), mark = page << 2 | (host ? 2 : 0) | 1;
    if (info.size < kPage && mark_of(page).load(std::memory_order_relaxed) == mark) return;
    complain(advise(memory, info.size, device, host), "advice", memory);
    mark_of(page).store(mark, std::memory_order_relaxed);
  }

  // Makes `location` the preferred location of a range and queues the migration. A move to the host leaves `device` its
  // mapping. GMM_UNCHANGED: the memory is another library's, or the device cannot share pages.
  gmm_result move(void *memory, uint64_t size, gmm_device location, gmm_device device, gmm_stream stream) {
    gmm_pointer_info info = sized<gmm_pointer_info>();
    gmm_result result = gmm_query(context(), memory, &info);
    if (result < 0) return result;
    if (info.state == GMM_STATE_UNKNOWN || info.kind != GMM_KIND_MANAGED) return GMM_UNCHANGED;
    const uint64_t pages = info.size / kPage + 2;
    for (uint64_t i = 0; i < pages && i < kKnown; ++i)
      mark_of(page_of(info.base) + i).store(0, std::memory_order_relaxed);
    result = advise(memory, size, device, location == GMM_DEVICE_HOST);
    return result < 0 ? result : optional(gmm_prefetch(context(), memory, size, location, stream));
  }

  // After a trim: other memory may get these addresses next.
  void forget() {
    for (auto &mark : known_) mark.store(0, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kKnown = 4096;
  static constexpr uint64_t kPage = 1 << 16;

  static uint64_t page_of(const void *memory) { return reinterpret_cast<uintptr_t>(memory) / kPage; }
  std::atomic<uint64_t> &mark_of(uint64_t page) { return known_[(page ^ (page >> 12)) % kKnown]; }

  // A device that cannot share pages has no hints. The memory works without.
  static gmm_result optional(gmm_result result) { return result == GMM_ERROR_NOT_SUPPORTED ? GMM_UNCHANGED : result; }

  static gmm_result advise(void *memory, uint64_t size, gmm_device device, bool host) {
    const gmm_result result = optional(
        gmm_advise(context(), memory, size, GMM_ADVISE_SET_PREFERRED_LOCATION, host ? GMM_DEVICE_HOST : device));
    if (result < 0) return result;
    return optional(
        gmm_advise(context(), memory, size, host ? GMM_ADVISE_SET_ACCESSED_BY : GMM_ADVISE_UNSET_ACCESSED_BY, device));
  }

  // The pages that have their hints. A small block shares its pages, of at most 64 KiB, and needs no others. A move
  // takes the marks away, so that the next block there gets its hints again. A lost entry only repeats a hint.
  std::atomic<uint64_t> known_[kKnown] = {};
};

inline Hints hints;

// Of CUDA memory. NULL in `out` after a failure.
inline gmm_result allocate(gmm_kind kind, gmm_tag tag, uint32_t flags, uint64_t size, gmm_device device,
                           gmm_stream stream, void **out) {
  gmm_alloc_desc desc = sized<gmm_alloc_desc>();
  desc.kind = kind;
  desc.device = device;
  desc.tag = tag;
  desc.stream = stream;
  desc.flags = flags;
  *out = nullptr;
  const gmm_result result = gmm_alloc(context(), size, &desc, out);
  if (result >= 0 && kind == GMM_KIND_MANAGED) hints.advise_new(*out, device, false);
  return result;
}

inline void release(void *memory, gmm_stream stream) {
  gmm_context *from = context_for_free();
  if (memory != nullptr && from != nullptr) complain(gmm_free(from, memory, stream), "free", memory);
}

// The streams that use a block when it is freed. An event on each tells when the block is idle.
class Uses {
 public:
  bool empty() const { return uses_.empty(); }

  void add(gmm_device device, gmm_stream stream) {
    for (const Use &use : uses_)
      if (use.device == device && use.stream == stream) return;
    uses_.push_back({device, stream});
  }

  // Whether every stream has finished the work that was queued at the first call. wait: waits for them.
  bool have_passed(bool wait) {
    std::erase_if(uses_, [&](Use &use) { return has_passed(&use, wait); });
    return uses_.empty();
  }

 private:
  struct Use {
    gmm_device device = 0;
    gmm_stream stream = nullptr;
    gmm_event *event = nullptr;  // NULL: it is not recorded yet
  };

  static void end_event(Use *use) {
    if (use->event != nullptr) complain(gmm_event_destroy(use->event), "event");
    use->event = nullptr;
  }

  static bool record(Use *use) {
    gmm_event_desc desc = sized<gmm_event_desc>();
    desc.device = use->device;
    if (gmm_event_create(context(), &desc, &use->event) >= 0 && gmm_event_record(use->event, 0, use->stream) >= 0)
      return true;
    end_event(use);
    return false;
  }

  // A stream in capture can neither record its event now nor be waited for; a later call tries again.
  static bool has_passed(Use *use, bool wait) {
    if (use->event == nullptr && !record(use))  // of a stream of another device, say: only a wait helps
      return gmm_stream_synchronize(context(), use->stream) >= 0;
    uint64_t passed = 0;
    gmm_result result = wait ? gmm_event_synchronize(use->event, 0, GMM_FOREVER) : GMM_OK;
    if (result >= 0) result = gmm_event_query(use->event, &passed);
    if (result >= 0 && passed == 0) return false;
    end_event(use);  // after a failure too: an event of a capture has no answer until it is recorded again
    return result >= 0;
  }

  std::vector<Use> uses_;
};

// CPU tensors in managed memory, which have a heap of their own. A block of the CUDA tensors' heap is ready in the
// order of a stream, but the host is on no stream: here a block is free only when it is idle. For gmm all of these
// blocks are on one stream. No call of gmm is made under the mutex, because a callback could wait for a lock of the
// language whose holder waits for the mutex.
class HostMemory {
 public:
  // The tag of the heap; 0: not started.
  gmm_tag tag() const { return tag_.load(std::memory_order_relaxed); }

  // device: it has a mapping of each new block.
  gmm_result start(gmm_device device) {
    accessed_by_.store(device, std::memory_order_relaxed);
    const std::lock_guard<std::mutex> guard(start_mutex_);  // no callback of gmm takes it
    if (heap_.load(std::memory_order_relaxed) != nullptr) return GMM_UNCHANGED;
    gmm_heap_desc desc = sized<gmm_heap_desc>();
    desc.kind = GMM_KIND_MANAGED;
    desc.device = device;
    gmm_heap *opened = nullptr;
    gmm_result result = gmm_tag_create(context(), "torch-cpu", nullptr, &desc.tag);
    if (result >= 0) result = gmm_heap_create(context(), &desc, &opened);
    if (result < 0) return result;
    tag_.store(desc.tag, std::memory_order_relaxed);
    heap_.store(opened, std::memory_order_release);
    return result;
  }

  // NULL: reason() tells why.
  void *allocate(uint64_t size) {
    gmm_heap *from = heap_.load(std::memory_order_acquire);
    if (context() == nullptr || from == nullptr) return nullptr;
    collect(false);
    void *memory = nullptr;
    gmm_result result = gmm_heap_alloc(from, size, 0, 0, GMM_STREAM_DEFAULT, &memory);
    if (result < 0 && result != GMM_ERROR_FORKED && collect(true) != 0)
      result = gmm_heap_alloc(from, size, 0, 0, GMM_STREAM_DEFAULT, &memory);
    if (result < 0) return nullptr;
    hints.advise_new(memory, accessed_by_.load(std::memory_order_relaxed), true);
    return memory;
  }

  void free(void *memory) {
    if (memory == nullptr || context_for_free() == nullptr) return;  // in a child after fork() it is the parent's
    if (used_count_.load(std::memory_order_acquire) != 0) {
      std::unique_lock<std::mutex> guard(mutex_);
      if (Noted::node_type block = noted_.extract(memory)) {
        waiting_.push_back(std::move(block));
        guard.unlock();
        collect(false);
        return;
      }
    }
    release(memory, GMM_STREAM_DEFAULT);
  }

  // Frees the blocks that streams have finished with; `wait`: waits for them. Returns the number of blocks.
  uint64_t collect(bool wait) {
    if (context() == nullptr || used_count_.load(std::memory_order_relaxed) == 0) return 0;
    std::vector<Noted::node_type> taken;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      taken.swap(waiting_);
    }
    const auto idle = std::partition(taken.begin(), taken.end(),
                                     [&](Noted::node_type &block) { return !block.mapped().have_passed(wait); });
    for (auto at = idle; at != taken.end(); ++at) release(at->key(), GMM_STREAM_DEFAULT);
    const auto freed = static_cast<uint64_t>(taken.end() - idle);
    const std::lock_guard<std::mutex> guard(mutex_);
    std::move(taken.begin(), idle, std::back_inserter(waiting_));
    used_count_.fetch_sub(freed, std::memory_order_relaxed);
    return freed;
  }

  // A stream uses a block of this heap until the block's free.
  void note(void *block, gmm_device device, gmm_stream stream) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto [at, is_new] = noted_.try_emplace(block);
    at->second.add(device, stream);
    used_count_.fetch_add(is_new, std::memory_order_release);
  }

 private:
  using Noted = std::unordered_map<void *, Uses>;

  std::mutex mutex_, start_mutex_;
  Noted noted_;                            // live blocks
  std::vector<Noted::node_type> waiting_;  // freed ones
  std::atomic<uint64_t> used_count_{0};    // of both
  std::atomic<gmm_heap *> heap_{nullptr};
  std::atomic<gmm_tag> tag_{0};
  std::atomic<gmm_device> accessed_by_{0};
};

// After fork() another one: the old one's memory is the parent's, and a thread that is gone may have held a lock.
inline HostMemory *host = new HostMemory;

// A stream uses the memory, of any heap, until its free. GMM_UNCHANGED: it is not gmm's.
inline gmm_result record(void *memory, gmm_device device, gmm_stream stream) {
  gmm_pointer_info info = sized<gmm_pointer_info>();
  const gmm_result result = gmm_query(context(), memory, &info);
  if (result < 0) return result;
  if (info.state == GMM_STATE_UNKNOWN) return GMM_UNCHANGED;
  if (host->tag() == 0 || info.tag != host->tag()) return gmm_record_use(context(), memory, stream);
  host->note(info.base, device, stream);
  return GMM_OK;
}

}  // namespace gmm_torch

#endif
