// SPDX-License-Identifier: Apache-2.0
// The parts of PyTorch that only C++ reaches: its allocator of CPU tensors, storages over memory that several devices
// share, and its out-of-memory error. gmm/_torch/compiler.py compiles this file against the headers of the installed
// PyTorch at the first use.
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>

#include "guarded.hpp"
#include "native.h"

namespace {

const gmm_torch_native *lib = nullptr;
c10::Allocator *theirs = nullptr;

void host_deleter(void *memory) {
  c10::profiledCPUMemoryReporter().Delete(memory);
  lib->host_free(memory);
}

void *host_alloc(size_t size) {
  void *memory = lib->host_alloc(size);
  if (memory != nullptr) c10::profiledCPUMemoryReporter().New(memory, size);
  return memory;
}

[[noreturn]] void throw_memory(const char *message) { throw c10::OutOfMemoryError({__func__, "gmm", 0}, message); }

// No raw_deleter(): while nothing is managed, the memory is the original allocator's, with that one's deleter.
struct HostAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    if (size == 0 || !lib->managed()) return theirs->allocate(size);
    void *memory = host_alloc(size);
    if (memory == nullptr) {
      if (!lib->managed()) return theirs->allocate(size);  // a fork came between
      throw_memory(
          (std::string("gmm: ") + std::to_string(size) + " bytes of managed memory for a CPU tensor: " + lib->reason())
              .c_str());
    }
    return {memory, memory, &host_deleter, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void *destination, const void *source, size_t count) const override {
    default_copy_data(destination, source, count);
  }
};

// The memory of storages on several devices. The last of them frees it.
struct Shared {
  explicit Shared(c10::DataPtr &&data) : real(std::move(data)) {}
  c10::DataPtr real;
  std::atomic<int64_t> users{1};
};

void shared_deleter(void *context) {
  auto *shared = static_cast<Shared *>(context);
  if (shared->users.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared;
}

Shared *shared_of(const c10::StorageImpl &storage) {
  const c10::DataPtr &data = storage.data_ptr();
  return data.get_deleter() == &shared_deleter ? static_cast<Shared *>(data.get_context()) : nullptr;
}

// A block that the package allocates for a CUDA storage.
struct Block {
  void *memory, *stream;
};

void block_deleter(void *context) {
  auto *block = static_cast<Block *>(context);
  lib->release(block->memory, block->stream);
  delete block;
}

c10::StorageImpl &storage_at(uintptr_t address) { return *reinterpret_cast<c10::StorageImpl *>(address); }

}  // namespace

extern "C" {

// The allocator stays for the life of the process. While nothing is managed, it calls the original one.
int32_t gmm_torch_extension_start(const gmm_torch_native *functions) {
  return guarded([&] {
    lib = functions;
    if (theirs != nullptr) return;
    theirs = c10::GetCPUAllocator();
    static HostAllocator ours;
    c10::SetCPUAllocator(&ours, /*priority=*/255);
    TORCH_CHECK(c10::GetCPUAllocator() == &ours, "another allocator of CPU tensors has a higher priority");
  });
}

const char *gmm_torch_extension_error(void) { return last_error().c_str(); }

// Puts new memory into an empty storage. device: below 0: the host. kind: 0: ordinary host memory.
int32_t gmm_torch_extension_assign(uintptr_t storage, uint64_t size, int32_t device, uint32_t kind, void *stream) {
  return guarded([&] {
    c10::StorageImpl &target = storage_at(storage);
    c10::DataPtr data;
    if (device < 0 && kind == 0) {
      data = (theirs != nullptr ? theirs : c10::GetCPUAllocator())->allocate(size);
    } else if (device < 0) {
      void *memory = host_alloc(size);
      if (memory == nullptr) throw_memory(lib->reason());
      data = {memory, memory, &host_deleter, c10::Device(c10::DeviceType::CPU)};
    } else {
      void *memory = lib->block(size, device, stream, kind);
      if (memory == nullptr) throw_memory(lib->reason());
      data = {memory, new Block{memory, stream}, &block_deleter,
              c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device))};
    }
    target.set_data_ptr_noswap(std::move(data));
    target.set_nbytes(size);
  });
}

// The number that all storages over one memory share; 0: the storage is not shareable.
uintptr_t gmm_torch_extension_shared(uintptr_t storage) {
  return reinterpret_cast<uintptr_t>(shared_of(storage_at(storage)));
}

// Makes the memory of a storage shareable. Its address stays.
int32_t gmm_torch_extension_share(uintptr_t storage) {
  return guarded([&] {
    c10::StorageImpl &source = storage_at(storage);
    if (shared_of(source) != nullptr) return;
    void *memory = source.mutable_data();  // copies a lazy copy first
    const c10::Device device = source.device();
    auto *shared = new Shared(std::move(source._mutable_data_ptr_no_checks()));
    source.set_data_ptr_noswap(c10::DataPtr(memory, shared, &shared_deleter, device));
  });
}

// Puts an empty storage over the memory of a shareable one. device: below 0: the host.
int32_t gmm_torch_extension_join(uintptr_t storage, uintptr_t source, int32_t device) {
  return guarded([&] {
    c10::StorageImpl &target = storage_at(storage);
    c10::StorageImpl &owner = storage_at(source);
    Shared *shared = shared_of(owner);
    TORCH_CHECK(shared != nullptr, "the storage is not shared");
    shared->users.fetch_add(1, std::memory_order_relaxed);
    const c10::Device where = device < 0 ? c10::Device(c10::DeviceType::CPU)
                                         : c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
    target.set_data_ptr_noswap(c10::DataPtr(owner.mutable_data(), shared, &shared_deleter, where));
    target.set_nbytes(owner.nbytes());
    target.set_resizable(false);  // resizing would separate it from the others
  });
}

// The number of storages that share the memory; 0: it is not shareable.
int64_t gmm_torch_extension_users(uintptr_t storage) {
  Shared *shared = shared_of(storage_at(storage));
  return shared == nullptr ? 0 : shared->users.load(std::memory_order_acquire);
}

// Makes a write into either tensor count for both in autograd's checks, as detach() does.
void gmm_torch_extension_share_version(uintptr_t tensor, uintptr_t source) {
  reinterpret_cast<c10::TensorImpl *>(tensor)->set_version_counter(
      reinterpret_cast<c10::TensorImpl *>(source)->version_counter());
}

}  // extern "C"
