// SPDX-License-Identifier: Apache-2.0
// A growing array that reports a lack of memory instead of throwing.
#ifndef GMM_BASE_VECTOR_H
#define GMM_BASE_VECTOR_H

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/host_allocator.h"

namespace gmm {

// For types that may be copied as bytes. It is not thread-safe.
template <typename T>
class Vector {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= HostAllocator::kMaxAlignment);

 public:
  explicit Vector(const HostAllocator &allocator = HostAllocator()) : allocator_(allocator) {}
  ~Vector() { allocator_.deallocate(data_, capacity_ * sizeof(T)); }
  Vector(const Vector &) = delete;
  Vector &operator=(const Vector &) = delete;
  Vector(Vector &&other) noexcept : allocator_(other.allocator_) { swap(other); }
  Vector &operator=(Vector &&other) noexcept {
    swap(other);
    return *this;
  }

  void swap(Vector &other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  // False: there is no memory, and the contents are unchanged.
  [[nodiscard]] bool reserve(uint64_t capacity) {
    if (capacity <= capacity_) return true;
    uint64_t grown = capacity_ < 8 ? 8 : capacity_ * 2;
    if (grown < capacity) grown = capacity;
    T *data = static_cast<T *>(allocator_.allocate(grown * sizeof(T), alignof(T)));
    if (data == nullptr) return false;
    if (size_ != 0) std::memcpy(static_cast<void *>(data), data_, size_ * sizeof(T));
    allocator_.deallocate(data_, capacity_ * sizeof(T));
    data_ = data;
    capacity_ = grown;
    return true;
  }
  [[nodiscard]] bool push_back(const T &value) {
    T copy = value;
    if (!reserve(size_ + 1)) return false;
    data_[size_++] = copy;
    return true;
  }
  // The caller has called reserve().
  void push_back_reserved(const T &value) { data_[size_++] = value; }
  T pop_back() { return data_[--size_]; }
  void clear() { size_ = 0; }
  void truncate(uint64_t size) { size_ = size; }
  // Does not keep the order.
  void erase_unordered(uint64_t index) { data_[index] = data_[--size_]; }
  void erase(uint64_t index) {
    std::memmove(static_cast<void *>(data_ + index), data_ + index + 1, (size_ - index - 1) * sizeof(T));
    --size_;
  }
  [[nodiscard]] bool insert(uint64_t index, const T &value) {
    T copy = value;
    if (!reserve(size_ + 1)) return false;
    std::memmove(static_cast<void *>(data_ + index + 1), data_ + index, (size_ - index) * sizeof(T));
    data_[index] = copy;
    ++size_;
    return true;
  }

  T *data() { return data_; }
  const T *data() const { return data_; }
  uint64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T &operator[](uint64_t index) { return data_[index]; }
  const T &operator[](uint64_t index) const { return data_[index]; }
  T &back() { return data_[size_ - 1]; }
  T *begin() { return data_; }
  T *end() { return data_ + size_; }
  const T *begin() const { return data_; }
  const T *end() const { return data_ + size_; }

 private:
  HostAllocator allocator_;
  T *data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t capacity_ = 0;
};

}  // namespace gmm
#endif
