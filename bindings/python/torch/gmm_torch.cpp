// SPDX-License-Identifier: Apache-2.0
// gmm under PyTorch, and the functions that gmm/_torch/library.py calls by ctypes. That module compiles this file
// against the headers of the installed PyTorch at the first use, and links it with the package's libgmm. All memory is
// that of gmm.context(), so statistics, tags and pauses of Python see the tensors.
//
// GMM_TORCH_CUDA: PyTorch is built for CUDA.
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <sys/types.h>

#include <array>
#include <exception>
#include <memory>
#include <string>

#include "memory.hpp"
#ifdef GMM_TORCH_CUDA
#include "allocator.hpp"
#endif

namespace gmm_torch {

// ---- Failures, towards PyTorch and towards ctypes ----------------------------------------------------------------

std::string &last_error() {
  thread_local std::string text;
  return text;
}

// Runs the work. Returns 0, or -1 when it threw: no exception may reach ctypes, and the thread keeps the reason.
template <class Work>
int32_t guarded(Work work) {
  try {
    work();
    return 0;
  } catch (const c10::Error &error) {
    last_error() = error.what_without_backtrace();
  } catch (const std::exception &error) {
    last_error() = error.what();
  }
  return -1;
}

// ---- CPU tensors --------------------------------------------------------------------------------------------------

inline c10::Allocator *cpu_allocator = nullptr;  // PyTorch's own

void host_deleter(void *memory) {
  c10::profiledCPUMemoryReporter().Delete(memory);
  host->free(memory);
}

c10::DataPtr host_data(size_t size) {
  void *memory = host->allocate(size);
  if (memory == nullptr) return {};
  c10::profiledCPUMemoryReporter().New(memory, size);
  return {memory, memory, &host_deleter, c10::Device(c10::DeviceType::CPU)};
}

// No raw_deleter(): while nothing is managed, the memory is the original allocator's, with that one's deleter.
struct HostAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    if (size == 0 || !is_managed) return cpu_allocator->allocate(size);
    c10::DataPtr data = host_data(size);
    if (!data && !is_managed) return cpu_allocator->allocate(size);  // a fork came between
    TORCH_CHECK_WITH(OutOfMemoryError, data, "gmm: ", size, " bytes of managed memory for a CPU tensor: ", reason());
    return data;
  }

  void copy_data(void *destination, const void *source, size_t count) const override {
    default_copy_data(destination, source, count);
  }
};

// ---- Storages over memory that several devices share --------------------------------------------------------------

// The last of the storages frees the memory.
using Shared = std::shared_ptr<c10::DataPtr>;

void shared_deleter(void *context) { delete static_cast<Shared *>(context); }

Shared *shared_of(const c10::StorageImpl &storage) { return storage.data_ptr().cast_context<Shared>(&shared_deleter); }

c10::Device device_of(int32_t number) {
  return {number < 0 ? c10::DeviceType::CPU : c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(number)};
}

c10::DataPtr new_data(uint64_t size, int32_t device, gmm_kind kind, gmm_stream stream) {
  if (device < 0 && kind == 0) return (cpu_allocator ? cpu_allocator : c10::GetCPUAllocator())->allocate(size);
  if (device < 0) {
    c10::DataPtr data = host_data(size);
    TORCH_CHECK_WITH(OutOfMemoryError, data, reason());
    return data;
  }
  void *memory = nullptr;
  const gmm_result result = allocate(kind, GMM_TAG_CURRENT, 0, size, device, stream, &memory);
  TORCH_CHECK_WITH(OutOfMemoryError, result >= 0, reason());
  const auto free_block = [stream](void *block) { release(block, stream); };
  return c10::InefficientStdFunctionContext::makeDataPtr(memory, free_block, device_of(device));
}

// ---- Pools with a tag ---------------------------------------------------------------------------------------------

// The functions of a pluggable allocator get no argument of their own, so each pair of a tag and a kind has its own
// function: a slot.
constexpr size_t kSlots = 64;

struct {
  gmm_tag tag;
  gmm_kind kind;
} slots[kSlots];
size_t slot_count = 0;

template <size_t slot>
void *slot_alloc(ssize_t size, int device, gmm_stream stream) {
  void *memory = nullptr;
  if (size > 0) (void)allocate(slots[slot].kind, slots[slot].tag, 0, size_t(size), device, stream, &memory);
  return memory;  // after NULL PyTorch empties its cache and tries again
}

}  // namespace gmm_torch

using namespace gmm_torch;  // NOLINT: for the functions below

extern "C" {

const char *gmm_torch_error(void) { return last_error().c_str(); }

// Sets the context. GMM_ERROR_BUSY when it has another one already.
gmm_result gmm_torch_attach(gmm_context *wanted) {
  if (context() != nullptr) return context() == wanted ? GMM_UNCHANGED : GMM_ERROR_BUSY;
  const gmm_result result = gmm_context_retain(wanted);  // tensors may outlive its owner
  if (result >= 0) attached.store(wanted, std::memory_order_release);
  return result;
}

// In a child after fork(): the context and all memory are the parent's.
void gmm_torch_forget(void) {
  is_managed = false;
  attached.store(nullptr, std::memory_order_release);
  is_forked = true;
  slot_count = 0;  // the tags are the parent's
  host = new HostMemory;
  hints.forget();
}

// At the interpreter's end: later frees do nothing.
void gmm_torch_end(void) { is_ending = true; }

// The kind of new CUDA tensors, and whether they are managed instead.
void gmm_torch_set_kind(gmm_kind kind) { cuda_kind = kind; }
void gmm_torch_set_managed(int32_t managed) { is_managed = managed != 0; }

// The function that allocates memory of a tag and kind for a pluggable allocator under a torch.cuda.MemPool. That
// allocator's other function is gmm_torch_dealloc(). NULL: 64 pairs have one already. One thread at a time.
void *gmm_torch_slot(gmm_tag tag, gmm_kind kind) {
  static constexpr auto kFunctions = []<size_t... number>(std::index_sequence<number...>) {
    return std::array{&slot_alloc<number>...};
  }
  (std::make_index_sequence<kSlots>{});
  size_t slot = 0;
  while (slot < slot_count && (slots[slot].tag != tag || slots[slot].kind != kind)) ++slot;
  if (slot == kSlots) return nullptr;
  if (slot == slot_count) slots[slot_count++] = {tag, kind};
  return reinterpret_cast<void *>(kFunctions[slot]);
}

void gmm_torch_dealloc(void *memory, ssize_t, int, gmm_stream stream) { release(memory, stream); }

gmm_result gmm_torch_host_start(gmm_device device) { return host->start(device); }
uint64_t gmm_torch_host_collect(int32_t wait) { return host->collect(wait != 0); }
gmm_result gmm_torch_record(void *memory, gmm_device device, gmm_stream stream) {
#ifdef GMM_TORCH_CUDA
  return ours().note_use(memory, device, stream);
#else
  return record(memory, device, stream);
#endif
}
gmm_result gmm_torch_move(void *memory, uint64_t size, gmm_device location, gmm_device device, gmm_stream stream) {
  return hints.move(memory, size, location, device, stream);
}

// The allocator of CPU tensors stays for the life of the process. While nothing is managed, it calls the original one.
int32_t gmm_torch_take_cpu_tensors(void) {
  return guarded([&] {
    if (cpu_allocator != nullptr) return;
    cpu_allocator = c10::GetCPUAllocator();
    static HostAllocator allocator;
    c10::SetCPUAllocator(&allocator, /*priority=*/255);
    TORCH_CHECK(c10::GetCPUAllocator() == &allocator, "another allocator of CPU tensors has a higher priority");
  });
}

// Puts new memory into an empty storage. device: below 0: the host. kind: 0: ordinary host memory.
int32_t gmm_torch_assign(c10::StorageImpl *storage, uint64_t size, int32_t device, gmm_kind kind, gmm_stream stream) {
  return guarded([&] {
    storage->set_data_ptr_noswap(new_data(size, device, kind, stream));
    storage->set_nbytes(size);
  });
}

// Puts an empty storage over the memory of another one, which becomes shareable and keeps its address. device: below 0:
// the host.
int32_t gmm_torch_join(c10::StorageImpl *storage, c10::StorageImpl *owner, int32_t device) {
  return guarded([&] {
    void *memory = owner->mutable_data();  // copies a lazy copy first
    if (shared_of(*owner) == nullptr) {
      const c10::Device home = owner->device();
      auto *shared = new Shared(std::make_shared<c10::DataPtr>(std::move(owner->_mutable_data_ptr_no_checks())));
      owner->set_data_ptr_noswap(c10::DataPtr(memory, shared, &shared_deleter, home));
    }
    storage->set_data_ptr_noswap(
        c10::DataPtr(memory, new Shared(*shared_of(*owner)), &shared_deleter, device_of(device)));
    storage->set_nbytes(owner->nbytes());
    storage->set_resizable(false);  // resizing would separate it from the others
  });
}

// The number of storages that share the memory; 0: it is not shareable.
int64_t gmm_torch_users(c10::StorageImpl *storage) {
  const Shared *shared = shared_of(*storage);
  return shared == nullptr ? 0 : shared->use_count();
}

// Makes a write into either tensor count for both in autograd's checks, as detach() does.
void gmm_torch_share_version(c10::TensorImpl *tensor, c10::TensorImpl *source) {
  tensor->set_version_counter(source->version_counter());
}

#ifdef GMM_TORCH_CUDA
int32_t gmm_torch_install(int32_t device_count, int32_t cuda) {
  return guarded([&] { install_allocator(device_count, cuda != 0); });
}
#endif

}  // extern "C"
