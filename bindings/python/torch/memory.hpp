// SPDX-License-Identifier: Apache-2.0
// Memory for PyTorch: the kind of new tensors, managed memory with RFC-0023's hints, and CPU tensors in it.
#ifndef GMM_TORCH_MEMORY_HPP
#define GMM_TORCH_MEMORY_HPP

#include <mutex>
#include <unordered_map>
#include <utility>

#include "uses.hpp"

namespace gmm_torch {

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
    Block block{memory, {}};
    if (noted_count_.load(std::memory_order_acquire) != 0) {
      const std::lock_guard<std::mutex> guard(mutex_);
      if (const auto at = noted_.find(memory); at != noted_.end()) {
        block.uses = std::move(at->second);
        noted_.erase(at);
        noted_count_.store(noted_.size(), std::memory_order_release);
      }
    }
    if (block.uses.empty() || block.uses.have_passed(false)) {
      release(memory, GMM_STREAM_DEFAULT);
      return;
    }
    const std::lock_guard<std::mutex> guard(mutex_);
    waiting_.push_back(std::move(block));
    waiting_count_.fetch_add(1, std::memory_order_relaxed);
  }

  // Frees the blocks that streams have finished with; `wait`: waits for them. Returns the number of blocks.
  uint64_t collect(bool wait) {
    if (context() == nullptr || waiting_count_.load(std::memory_order_relaxed) == 0) return 0;
    std::vector<Block> taken, busy;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      taken.swap(waiting_);
    }
    for (Block &block : taken) {
      if (block.uses.have_passed(wait))
        release(block.memory, GMM_STREAM_DEFAULT);
      else
        busy.push_back(std::move(block));
    }
    const uint64_t freed = taken.size() - busy.size();
    const std::lock_guard<std::mutex> guard(mutex_);
    for (Block &block : busy) waiting_.push_back(std::move(block));
    waiting_count_.fetch_sub(freed, std::memory_order_relaxed);
    return freed;
  }

  // A stream uses a block of this heap until the block's free.
  void note(void *block, gmm_device device, gmm_stream stream) {
    const std::lock_guard<std::mutex> guard(mutex_);
    noted_[block].add(device, stream);
    noted_count_.store(noted_.size(), std::memory_order_release);
  }

 private:
  struct Block {
    void *memory;
    Uses uses;
  };

  std::mutex mutex_, start_mutex_;
  std::unordered_map<void *, Uses> noted_;  // live blocks
  std::vector<Block> waiting_;              // freed ones
  std::atomic<uint64_t> noted_count_{0}, waiting_count_{0};
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
