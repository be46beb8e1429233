/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a CallbackMemoryResource of RMM's Python package call gmm, and not Python. gmm/rmm.py compiles this file
 * where librmm's headers are installed.
 *
 * RMM's Python class owns a C++ object with two std::function. This file puts another such object into its place, whose
 * functions are C++. The class then owns gmm's resource as it owned its own: whatever RMM copies of it holds gmm's
 * context, and no copy refers to Python.
 *
 * The fields' places are those of RMM's .pxd files. The sizes of the Python types and the two callables behind the
 * object are checked, as Cython checks them, before anything is written.
 */
#include <gmm/gmm.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <new>
#include <optional>
#include <rmm/error.hpp>
#include <rmm/mr/callback_memory_resource.hpp>
#include <rmm/version_config.hpp>
#include <stdexcept>
#include <utility>

extern "C" { /* Python's, which is in every process of RMM's package */
int Py_IsInitialized(void);
int PyGILState_Check(void);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *state);
}

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

/* Ends a reference to a context. The end of a context may wait for a thread that wants Python's lock. At the
 * interpreter's end the context stays: the process's end frees it. */
void release(gmm_context *context) {
  if (!Py_IsInitialized()) return;
  void *state = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  gmm_context_release(context);
  if (state != nullptr) PyEval_RestoreThread(state);
}

template <typename Stream>
gmm_stream handle_of(Stream stream) {
  if constexpr (requires { stream.value(); })
    return reinterpret_cast<gmm_stream>(stream.value()); /* rmm::cuda_stream_view */
  else
    return reinterpret_cast<gmm_stream>(stream.get()); /* cuda::stream_ref */
}

/* Both functions share the reference to their context, and every copy that RMM makes of them. */
std::unique_ptr<Callback> make_callbacks(const std::shared_ptr<gmm_context> &owner, const gmm_alloc_desc &options) {
  const auto allocate = [owner, options](std::size_t size, auto stream, void *) -> void * {
    if (size == 0) return nullptr;
    void *memory = nullptr;
    gmm_alloc_desc desc = options;
    desc.stream = handle_of(stream);
    const gmm_result result = gmm_alloc(owner.get(), size, &desc, &memory);
    if (result >= 0) return memory;
    if (result == GMM_ERROR_OUT_OF_MEMORY || result == GMM_ERROR_LIMIT_EXCEEDED ||
        result == GMM_ERROR_OUT_OF_HOST_MEMORY || result == GMM_ERROR_SIZE_OVERFLOW)
      throw rmm::out_of_memory(gmm_last_error_message());
    throw std::runtime_error(gmm_last_error_message());
  };
  const auto deallocate = [owner](void *memory, std::size_t, auto stream, void *) {
    if (memory == nullptr) return;
    const gmm_result result = gmm_free(owner.get(), memory, handle_of(stream));
    if (result < 0 && result != GMM_ERROR_FORKED) /* in a forked child the memory is the parent's */
      fprintf(stderr, "gmm.rmm could not free the memory at %p: %s\n", memory, gmm_last_error_message());
  };
  return std::make_unique<Callback>(allocate, deallocate);
}

}  // namespace

/**
 * Replaces the object of a CallbackMemoryResource that was just made and that nobody has used.
 * at: the size of a plain Python object. size: of a CallbackMemoryResource. allocate, deallocate: its arguments.
 * The others are the context and the options of allocations. Returns NULL, or why not.
 */
extern "C" const char *gmm_rmm_replace(void *resource, std::size_t at, std::size_t size, const void *allocate,
                                       const void *deallocate, gmm_context *context, gmm_kind kind, gmm_device device,
                                       gmm_tag tag) {
  if (size != at + sizeof(Fields)) return "RMM's CallbackMemoryResource has other fields than its headers say";
  auto *fields = reinterpret_cast<Fields *>(static_cast<char *>(resource) + at);
  if (fields->allocate != allocate || fields->deallocate != deallocate)
    return "RMM's CallbackMemoryResource has its callables in another place than its headers say";
  try {
    const gmm_alloc_desc options{.struct_size = sizeof options, .kind = kind, .device = device, .tag = tag};
    if (gmm_context_retain(context) < 0) return "the context is closed";
    fields->take(make_callbacks({context, release}, options));
  } catch (const std::bad_alloc &) {
    return "memory ran out";
  }
  return nullptr;
}
