/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a CallbackMemoryResource of RMM's Python package call gmm, and not Python. gmm/_rmm/compiled.py compiles this
 * file where librmm's headers are installed.
 *
 * RMM's Python class owns a C++ object with two std::function. This file puts another such object into its place, whose
 * functions are C++. The class then owns gmm's resource as it owned its own: whatever RMM copies of it holds gmm's
 * context, and no copy refers to Python.
 *
 * The fields' places are those of RMM's .pxd files. The sizes of the Python types and the two callables behind the
 * object are checked, as Cython checks them, before anything is written.
 */
#include <rmm/version_config.hpp>

#if __has_include(<rmm/mr/device/callback_memory_resource.hpp>)
#include <rmm/mr/device/callback_memory_resource.hpp>
#else
#include <rmm/mr/callback_memory_resource.hpp>
#endif
#if __has_include(<rmm/error.hpp>)
#include <rmm/error.hpp>
#else
#include <rmm/detail/error.hpp>
#endif

#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "resource.h"

namespace {

using Callback = rmm::mr::callback_memory_resource;

#if RMM_VERSION_MAJOR > 26 || (RMM_VERSION_MAJOR == 26 && RMM_VERSION_MINOR >= 6)
struct Reference { /* cython_device_async_resource_ref */
  std::optional<rmm::device_async_resource_ref> value;
};
struct Fields {
  void *functions; /* of Cython */
  std::optional<Reference> reference;
  std::unique_ptr<Callback> object;
  void *allocate, *deallocate;

  void take(std::unique_ptr<Callback> made) {
    reference.reset(); /* it refers to the object that goes */
    object = std::move(made);
    reference = Reference{rmm::device_async_resource_ref(*object)};
  }
};
#else
struct Fields {
  void *functions;
  std::shared_ptr<rmm::mr::device_memory_resource> object;
  void *allocate, *deallocate;

  void take(std::unique_ptr<Callback> made) { object = std::move(made); }
};
#endif

/* Shared by both functions and by every copy that RMM makes of them. */
using Owner = std::shared_ptr<gmm_python_resource>;

template <typename Stream>
void *handle_of(Stream stream) {
  if constexpr (requires { stream.value(); })
    return static_cast<void *>(stream.value()); /* rmm::cuda_stream_view */
  else
    return static_cast<void *>(stream.get()); /* cuda::stream_ref */
}

auto allocate_with(Owner owner) {
  return [owner = std::move(owner)](std::size_t size, auto stream, void *) -> void * {
    if (size == 0) return nullptr;
    void *memory = nullptr;
    char reason[GMM_PYTHON_RESOURCE_REASON];
    switch (owner->allocate(owner.get(), size, handle_of(stream), &memory, reason)) {
      case GMM_RESOURCE_OK:
        return memory;
      case GMM_RESOURCE_NO_MEMORY:
        throw rmm::out_of_memory(reason);
      default:
        throw std::runtime_error(reason);
    }
  };
}

auto deallocate_with(Owner owner) {
  return [owner = std::move(owner)](void *memory, std::size_t, auto stream, void *) {
    if (memory != nullptr) owner->deallocate(owner.get(), memory, handle_of(stream));
  };
}

}  // namespace

/**
 * Replaces the object of a CallbackMemoryResource that was just made and that nobody has used.
 * at: the size of a plain Python object. size: of a CallbackMemoryResource. allocate, deallocate: what it was made of.
 * Returns NULL, or why not.
 */
extern "C" const char *gmm_rmm_replace(void *resource, std::size_t at, std::size_t size, const void *allocate,
                                       const void *deallocate, gmm_python_resource *native) {
  if (size != at + sizeof(Fields)) return "RMM's CallbackMemoryResource has other fields than its headers say";
  auto *fields = reinterpret_cast<Fields *>(static_cast<char *>(resource) + at);
  if (fields->allocate != allocate || fields->deallocate != deallocate)
    return "RMM's CallbackMemoryResource has its callables in another place than its headers say";
  try {
    native->retain(native);
    const Owner owner(native, [](gmm_python_resource *last) { last->release(last); });
    fields->take(std::make_unique<Callback>(allocate_with(owner), deallocate_with(owner)));
  } catch (const std::exception &) {
    return "memory ran out";
  }
  return nullptr;
}
