// SPDX-License-Identifier: Apache-2.0
// The source of bookkeeping memory: the context's callbacks, or malloc.
#ifndef GMM_BASE_HOST_ALLOCATOR_H
#define GMM_BASE_HOST_ALLOCATOR_H

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "base/no_copy.h"
#include "base/system_heap.h"

namespace gmm {

// Placement new of the standard header needs no runtime library. The library uses no other new, so the static library
// links into a C program.
class HostAllocator {
 public:
  using AllocateFn = void *(*)(void *user, uint64_t size, uint64_t alignment);
  using DeallocateFn = void (*)(void *user, void *memory, uint64_t size);

  // The largest alignment that callbacks promise. No object asks for more.
  static constexpr uint64_t kMaxAlignment = 64;

  constexpr HostAllocator() = default;
  constexpr HostAllocator(AllocateFn allocate, DeallocateFn deallocate, void *user)
      : allocate_(allocate), deallocate_(deallocate), user_(user) {}

  // Whether the program counts the memory.
  bool has_callbacks() const { return allocate_ != nullptr; }

  // NULL: there is no memory. `alignment` is a power of two up to kMaxAlignment.
  void *allocate(uint64_t size, uint64_t alignment = 16) const {
    if (allocate_ != nullptr) return allocate_(user_, size, alignment);
    return system_allocate(size, alignment);
  }
  void deallocate(void *memory, uint64_t size) const {
    if (memory == nullptr) return;
    if (deallocate_ != nullptr) return deallocate_(user_, memory, size);
    system_free(memory);
  }

  // NULL: there is no memory.
  template <typename T, typename... Args>
  T *create(Args &&...args) const {
    static_assert(alignof(T) <= kMaxAlignment);
    void *memory = allocate(sizeof(T), alignof(T));
    return memory == nullptr ? nullptr : ::new (memory) T(std::forward<Args>(args)...);
  }
  template <typename T>
  void destroy(T *object) const {
    if (object == nullptr) return;
    const HostAllocator self = *this;  // it may be a part of the object
    object->~T();
    self.deallocate(object, sizeof(T));
  }

 private:
  AllocateFn allocate_ = nullptr;
  DeallocateFn deallocate_ = nullptr;
  void *user_ = nullptr;
};

}  // namespace gmm
#endif
