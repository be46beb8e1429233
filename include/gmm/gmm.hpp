/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gmm.hpp
 * The interface in C++17: objects that clean up after themselves, over the C functions of gmm.h.
 *
 *     gmm::context context = gmm::context::create();
 *     gmm::tag weights = gmm::tag::create(context, "weights", {.contents = GMM_CONTENTS_HOST});
 *     gmm::buffer buffer = context.alloc(1 << 20, {.kind = GMM_KIND_VMM, .tag = weights});
 *     context.fill(buffer.data(), 7, buffer.size());
 *     weights.pause();
 *
 * The braces with names are C++20. In C++17 a program writes `gmm::tag_desc desc; desc.contents = ...;`.
 *
 * Names. gmm_<noun>_<verb>() is the function <verb> of the class gmm::<noun>, and gmm_<verb>() is a function of
 * gmm::context. A name of C that C++ reserves, or that has no noun of its own, is told by its comment. Flags, kinds and
 * infos are those of C: GMM_KIND_VMM, gmm_pointer_info. Descriptors have the fields of C, each with its default, and
 * without struct_size, flags that must be 0, and reserved fields.
 *
 * How to read a comment: it names the C function behind "C:". Units, results, errors, order with streams, and threads
 * are that function's, and a comment here says only what differs. All of these are since 1.0.
 *
 * Cost. Every function is inline and makes the one C call that its comment names. gmm::tag::create() makes two. The end
 * of a gmm::buffer is one call of gmm_free(). An object is as large as what the C function needs. It allocates nothing,
 * but for the function of a gmm::watcher.
 *
 * Ownership.
 *  - gmm::heap, gmm::stream, gmm::event, gmm::tag, gmm::ticket, gmm::snapshot, gmm::watcher, gmm::context and
 *    gmm::buffer own what they name, and so do the scopes: gmm::tag_scope, gmm::pinned, gmm::imported, gmm::trace,
 *    gmm::defer. They move and do not copy. One that was moved from, detached or made by default is empty, which
 *    `if (object)` tells.
 *  - gmm::heap_ref, gmm::context_ref and so on own nothing and copy like pointers. Functions take these, and an owner
 *    converts to its reference. A reference or a buffer keeps nothing alive: a context must outlive what comes from it,
 *    as a container outlives its iterators. Tickets and snapshots do keep their context.
 *  - A destructor cannot tell of a failure, for example that a heap still has live blocks. The named end of a class
 *    can: buffer.free(), heap.destroy(). After a failure the object still owns, with two exceptions: gmm::trace::end()
 *    and gmm::tag::destroy() tell which failures leave nothing to own. The named end of an empty object does nothing.
 *    detach() gives the ownership up, and `object = {}` does what the destructor does.
 *
 * Errors. There are two policies, and GMM_HPP_EXCEPTIONS chooses before the first include. Its default is 1 where the
 * compiler has exceptions, else 0.
 *  - 1: a function that returns `outcome<T>` returns T. A failure throws gmm::bad_alloc, which is a std::bad_alloc, for
 *    OUT_OF_MEMORY, OUT_OF_HOST_MEMORY and LIMIT_EXCEEDED. It throws gmm::exception, which is a std::exception, for all
 *    other results. What gives memory to containers throws gmm::bad_array_new_length, which is a std::bad_alloc too,
 *    for SIZE_OVERFLOW. Each of the three is a gmm::error.
 *  - 0: it returns gmm::result<T>, which holds T or a gmm::error, as std::expected<T, gmm::error> does.
 * A gmm::error has the code, the message and the driver's number of the failed call. What is only not ready yet is not
 * an error here: a wait with a time returns false, and a try form returns an empty buffer or false. GMM_UNCHANGED is
 * not an error either: the bytes of the outcome are 0.
 *
 * Files of both policies may be linked into one program. Their types differ by an inline namespace, so the linker does
 * not take one for the other.
 *
 * Threads. An object is like a pointer: two threads may use one through references, as C allows, and only one thread
 * may assign or end it. gmm::tag_scope belongs to its thread.
 *
 * Callbacks of the program run inside the library, so nothing may be thrown out of them. snapshot_ref::write() is the
 * exception.
 *
 * What a program may define before the first include:
 *
 * | macro | default | meaning |
 * | --- | --- | --- |
 * | GMM_HPP_EXCEPTIONS | 1 with exceptions | see above |
 * | GMM_HPP_PMR | 1 with <memory_resource> | gmm::memory_resource is there |
 * | GMM_HPP_UNHEARD(code) | nothing | what a destructor does with its failure, a gmm_result |
 * | GMM_HPP_FATAL(error) | prints, std::abort() | where nothing can be returned or thrown; it must not return |
 */
#ifndef GMM_GMM_HPP
#define GMM_GMM_HPP

#include <gmm/gmm.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#if __cplusplus < 201703L
#error "gmm/gmm.hpp needs C++17; gmm/gmm.h does with less"
#endif

#ifndef GMM_HPP_EXCEPTIONS
#ifdef __cpp_exceptions
#define GMM_HPP_EXCEPTIONS 1
#else
#define GMM_HPP_EXCEPTIONS 0
#endif
#endif
#ifndef GMM_HPP_PMR
#if __has_include(<memory_resource>)
#define GMM_HPP_PMR 1
#else
#define GMM_HPP_PMR 0
#endif
#endif
#ifndef GMM_HPP_UNHEARD
#define GMM_HPP_UNHEARD(code) static_cast<void>(code)
#endif
#ifndef GMM_HPP_FATAL
#define GMM_HPP_FATAL(error) (std::fprintf(stderr, "gmm: %s: %s\n", (error).name(), (error).message()), std::abort())
#endif

#if GMM_HPP_EXCEPTIONS
#include <exception>
#define GMM_HPP_POLICY throwing
#else
#define GMM_HPP_POLICY returning
#endif
#if GMM_HPP_PMR
#include <memory_resource>
#endif
#if __cplusplus >= 202002L && __has_include(<span>)
#include <span>
#endif

namespace gmm {
inline namespace GMM_HPP_POLICY {

/* --- Errors ------------------------------------------------------------------------------------------------ */

/**
 * A failed call: its result, its message and the driver's number.
 *
 * Ownership: an error has a copy of the message. Where the host has no memory for a copy, the message is the text of
 * the result.
 */
class error {
 public:
  /** No failure: the code is GMM_OK. */
  error() noexcept = default;
  /** A failure with a message of its own. */
  error(gmm_result code, const char *message) noexcept : code_(code), message_(copy_of(message)) {}
  /** Takes what the calling thread's last call left. C: gmm_last_error_message(), gmm_last_native_code(). */
  [[nodiscard]] static error last(gmm_result code) noexcept {
    error failure(code, gmm_last_error_message());
    failure.native_ = gmm_last_native_code();
    return failure;
  }

  error(const error &other) noexcept : code_(other.code_), native_(other.native_), message_(copy_of(other.message_)) {}
  error(error &&other) noexcept
      : code_(other.code_), native_(other.native_), message_(std::exchange(other.message_, nullptr)) {}
  error &operator=(error other) noexcept {
    std::swap(code_, other.code_);
    std::swap(native_, other.native_);
    std::swap(message_, other.message_);
    return *this;
  }
  ~error() { std::free(message_); }

  [[nodiscard]] gmm_result code() const noexcept { return code_; }
  /** What the call was asked, what stood in the way and what to do. */
  [[nodiscard]] const char *message() const noexcept { return message_ != nullptr ? message_ : text(); }
  /** The driver's (CUresult) or the system's (errno) number; 0 if gmm itself found the failure. */
  [[nodiscard]] int32_t native_code() const noexcept { return native_; }
  /** For example "GMM_ERROR_OUT_OF_MEMORY". C: gmm_result_name(). */
  [[nodiscard]] const char *name() const noexcept { return gmm_result_name(code_); }
  /** One sentence that explains the code. C: gmm_result_text(). */
  [[nodiscard]] const char *text() const noexcept { return gmm_result_text(code_); }

 private:
  static char *copy_of(const char *message) noexcept {
    if (message == nullptr) return nullptr;
    const std::size_t size = std::strlen(message) + 1;
    void *copy = std::malloc(size);
    return static_cast<char *>(copy != nullptr ? std::memcpy(copy, message, size) : nullptr);
  }

  gmm_result code_ = GMM_OK;
  int32_t native_ = 0;
  char *message_ = nullptr;
};

#if GMM_HPP_EXCEPTIONS
/** A failure for want of memory or of a limit, as containers expect it. */
class bad_alloc : public std::bad_alloc, public error {
 public:
  explicit bad_alloc(error failure) noexcept : error(std::move(failure)) {}
  [[nodiscard]] const char *what() const noexcept override { return message(); }
};

/** A container asks for more bytes than any memory has. It is a std::bad_array_new_length, and so a std::bad_alloc. */
class bad_array_new_length : public std::bad_array_new_length, public error {
 public:
  explicit bad_array_new_length(error failure) noexcept : error(std::move(failure)) {}
  [[nodiscard]] const char *what() const noexcept override { return message(); }
};

/** Any other failure. `catch (const gmm::error &)` takes all of them. */
class exception : public std::exception, public error {
 public:
  explicit exception(error failure) noexcept : error(std::move(failure)) {}
  [[nodiscard]] const char *what() const noexcept override { return message(); }
};
#endif

namespace detail {

/** Throws, or ends the program where exceptions are not to be. */
[[noreturn, gnu::cold, gnu::noinline]] inline void raise(error failure) {
#if GMM_HPP_EXCEPTIONS
  const gmm_result code = failure.code();
  if (code == GMM_ERROR_OUT_OF_MEMORY || code == GMM_ERROR_OUT_OF_HOST_MEMORY || code == GMM_ERROR_LIMIT_EXCEEDED)
    throw bad_alloc(std::move(failure));
  throw exception(std::move(failure));
#else
  GMM_HPP_FATAL(failure);
  std::abort();
#endif
}

[[noreturn, gnu::cold, gnu::noinline]] inline void raise(gmm_result code) { raise(error::last(code)); }

/** The same for a container, which expects a std::bad_alloc for a size beyond any memory. */
[[noreturn, gnu::cold, gnu::noinline]] inline void raise_to_container(error failure) {
#if GMM_HPP_EXCEPTIONS
  if (failure.code() == GMM_ERROR_SIZE_OVERFLOW) throw bad_array_new_length(std::move(failure));
#endif
  raise(std::move(failure));
}

}  // namespace detail

/**
 * A T, or the error that stood in its way: what std::expected<T, gmm::error> is in C++23. It moves and does not copy.
 *
 * value() of an error throws it. Without exceptions it ends the program by GMM_HPP_FATAL(). operator* does not look.
 */
template <class T>
class [[nodiscard]] result {
 public:
  using value_type = T;
  using error_type = gmm::error;

  template <class U = T,
            class = std::enable_if_t<std::is_constructible_v<T, U> && !std::is_same_v<std::decay_t<U>, result> &&
                                     !std::is_same_v<std::decay_t<U>, gmm::error>>>
  result(U &&value) noexcept(std::is_nothrow_constructible_v<T, U>) : value_(std::forward<U>(value)) {}
  /** The error's code must be below 0. */
  result(gmm::error failure) noexcept : error_(std::move(failure)) {}
  result(result &&other) noexcept : error_(std::move(other.error_)) {
    if (has_value()) ::new (static_cast<void *>(&value_)) T(std::move(other.value_));
  }
  result &operator=(result &&other) noexcept {
    if (this != &other) {
      this->~result();
      ::new (static_cast<void *>(this)) result(std::move(other));
    }
    return *this;
  }
  ~result() {
    if (has_value()) value_.~T();
  }

  [[nodiscard]] bool has_value() const noexcept { return error_.code() >= 0; }
  [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }
  [[nodiscard]] const gmm::error &error() const noexcept { return error_; }

  [[nodiscard]] T &operator*() &noexcept { return value_; }
  [[nodiscard]] const T &operator*() const &noexcept { return value_; }
  [[nodiscard]] T &&operator*() &&noexcept { return std::move(value_); }
  [[nodiscard]] const T &&operator*() const &&noexcept { return std::move(value_); }
  [[nodiscard]] T *operator->() noexcept { return &value_; }
  [[nodiscard]] const T *operator->() const noexcept { return &value_; }

  T &value() & {
    if (!has_value()) detail::raise(error_);
    return value_;
  }
  const T &value() const & {
    if (!has_value()) detail::raise(error_);
    return value_;
  }
  T &&value() && {
    if (!has_value()) detail::raise(std::move(error_));
    return std::move(value_);
  }
  const T &&value() const && {
    if (!has_value()) detail::raise(error_);
    return std::move(value_);
  }
  template <class U>
  [[nodiscard]] T value_or(U &&other) const & {
    return has_value() ? value_ : static_cast<T>(std::forward<U>(other));
  }
  template <class U>
  [[nodiscard]] T value_or(U &&other) && {
    return has_value() ? std::move(value_) : static_cast<T>(std::forward<U>(other));
  }

 private:
  gmm::error error_;
  union {
    T value_;
  };
};

/** Success, or the error that stood in its way. */
template <>
class [[nodiscard]] result<void> {
 public:
  using value_type = void;
  using error_type = gmm::error;

  result() noexcept = default;
  /** The error's code must be below 0. */
  result(gmm::error failure) noexcept : error_(std::move(failure)) {}

  [[nodiscard]] bool has_value() const noexcept { return error_.code() >= 0; }
  [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }
  [[nodiscard]] const gmm::error &error() const noexcept { return error_; }
  void value() const {
    if (!has_value()) detail::raise(error_);
  }

 private:
  gmm::error error_;
};

#if GMM_HPP_EXCEPTIONS
/** What a function returns that can fail: T, as failures are thrown. */
template <class T>
using outcome = T;
#else
/** What a function returns that can fail: a result<T>, as nothing is thrown. */
template <class T>
using outcome = result<T>;
#endif

namespace detail {

/** The outcome of a C call: T made of `arguments`, or the thread's error. */
template <class T, class... Arguments>
outcome<T> give(gmm_result code, Arguments &&...arguments) {
#if GMM_HPP_EXCEPTIONS
  if (code < 0) raise(code);
  return T(std::forward<Arguments>(arguments)...);
#else
  if (code < 0) return gmm::error::last(code);
  if constexpr (std::is_void_v<T>) {
    return {};
  } else {
    return T(std::forward<Arguments>(arguments)...);
  }
#endif
}

/** The same for a call that waits, where NOT_READY is no error. */
inline outcome<bool> give_ready(gmm_result code) {
  if (code == GMM_ERROR_NOT_READY) return false;
  return give<bool>(code, true);
}

/** Hands pieces of text to a function. */
template <class Function>
struct text_writer {
  Function *fn;
#if GMM_HPP_EXCEPTIONS
  std::exception_ptr thrown = nullptr;
#endif
  static int32_t piece(void *user, const char *text, uint64_t size) noexcept {
    text_writer *self = static_cast<text_writer *>(user);
#if GMM_HPP_EXCEPTIONS
    try {
      return (*self->fn)(std::string_view(text, size)) ? 0 : 1;
    } catch (...) {
      self->thrown = std::current_exception();
      return 1;
    }
#else
    return (*self->fn)(std::string_view(text, size)) ? 0 : 1;
#endif
  }
};

/** Asks for an info. */
template <class Info, class Call>
outcome<Info> ask(Call call) {
  Info info{};
  info.struct_size = sizeof info;
  const gmm_result code = call(&info);
  return give<Info>(code, info);
}

}  // namespace detail

/* --- Small types ------------------------------------------------------------------------------------------- */

/** The version of the loaded library, which may be newer than this header. C: gmm_version(). */
[[nodiscard]] inline uint32_t version() noexcept { return gmm_version(); }
/** The same as text. C: gmm_version_string(). */
[[nodiscard]] inline const char *version_string() noexcept { return gmm_version_string(); }

/** A device by its ordinal, from 0, or the host where a function takes a location. It is no number by accident. */
class device_id {
 public:
  constexpr device_id() noexcept = default;
  constexpr explicit device_id(gmm_device ordinal) noexcept : ordinal_(ordinal) {}
  [[nodiscard]] static constexpr device_id host() noexcept { return device_id(-1); }
  [[nodiscard]] constexpr gmm_device get() const noexcept { return ordinal_; }
  [[nodiscard]] friend constexpr bool operator==(device_id a, device_id b) noexcept { return a.get() == b.get(); }
  [[nodiscard]] friend constexpr bool operator!=(device_id a, device_id b) noexcept { return a.get() != b.get(); }

 private:
  gmm_device ordinal_ = 0;
};

/**
 * A time in whole milliseconds, which any std::chrono duration converts to.
 *
 * A part of a millisecond counts as one, a negative time as 0, and what is too long as forever.
 */
class milliseconds {
 public:
  constexpr milliseconds() noexcept = default;
  constexpr explicit milliseconds(uint64_t count) noexcept : count_(count) {}
  template <class Duration, class = typename Duration::rep, class Period = typename Duration::period>
  constexpr milliseconds(const Duration &duration) noexcept {
    const long double exact = static_cast<long double>(duration.count()) * 1000 * Period::num / Period::den;
    if (exact >= 18446744073709551615.0L) {
      count_ = UINT64_MAX;
    } else if (exact > 0) {
      count_ = static_cast<uint64_t>(exact);
      if (static_cast<long double>(count_) < exact) ++count_;
    }
  }
  /** GMM_FOREVER, and GMM_DECOMMIT_NEVER. */
  [[nodiscard]] static constexpr milliseconds forever() noexcept { return milliseconds(UINT64_MAX); }
  [[nodiscard]] constexpr uint64_t count() const noexcept { return count_; }

 private:
  uint64_t count_ = 0;
};

#ifdef __cpp_lib_span
/** Objects in a row: std::span in C++20, else a pointer with a size. */
template <class T>
using span = std::span<T>;
#else
/** Objects in a row: std::span in C++20, else a pointer with a size. */
template <class T>
class span {
 public:
  constexpr span() noexcept = default;
  constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
  [[nodiscard]] constexpr T *data() const noexcept { return data_; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] constexpr T *begin() const noexcept { return data_; }
  [[nodiscard]] constexpr T *end() const noexcept { return data_ + size_; }
  [[nodiscard]] constexpr T &operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  T *data_ = nullptr;
  std::size_t size_ = 0;
};
#endif

/** The driver's own stream: a CUstream, a cudaStream_t or a DPCTLSyclQueueRef. */
template <class Native>
[[nodiscard]] gmm_stream native_stream(Native *stream) noexcept {
  return reinterpret_cast<gmm_stream>(stream);
}

/** What a limit or a count is about: `gmm::scope().tag(weights).kind(GMM_KIND_VMM)`. Without a part: the context. */
class scope {
 public:
  constexpr scope &device(device_id device) noexcept {
    desc_.flags |= GMM_SCOPE_DEVICE;
    desc_.device = device.get();
    return *this;
  }
  constexpr scope &tag(gmm_tag tag) noexcept {
    desc_.flags |= GMM_SCOPE_TAG;
    desc_.tag = tag;
    return *this;
  }
  constexpr scope &kind(gmm_kind kind) noexcept {
    desc_.flags |= GMM_SCOPE_KIND;
    desc_.kind = kind;
    return *this;
  }
  [[nodiscard]] constexpr const gmm_scope_desc *get() const noexcept { return &desc_; }

 private:
  gmm_scope_desc desc_ = {sizeof(gmm_scope_desc), 0, 0, 0, 0, 0};
};

/* --- Descriptors ------------------------------------------------------------------------------------------- */
/* c() makes the descriptor of C. GCC warns of fields that are not named in braces, unless they have initialisers as
 * these have: so they are not those of C. */

/** What context::create() is asked for. C: gmm_context_desc. */
struct context_desc {
  gmm_backend backend = GMM_BACKEND_AUTO;
  uint32_t flags = 0; /**< GMM_CONTEXT_* */
  uint32_t host_devices = 0;
  gmm_log_callback log = {nullptr, nullptr};
  gmm_host_allocator host_allocator = {nullptr, nullptr, nullptr};
  uint64_t host_memory = 0;            /**< bytes */
  milliseconds decommit_after_ms = {}; /**< 0: GMM_DECOMMIT_AFTER_MS in the environment; forever: never */

  [[nodiscard]] gmm_context_desc c() const noexcept {
    return {sizeof(gmm_context_desc), backend, flags, host_devices, log, host_allocator, host_memory,
            decommit_after_ms.count()};
  }
};

/** What context_ref::alloc() is asked for. C: gmm_alloc_desc. */
struct alloc_desc {
  gmm_kind kind = GMM_KIND_UNSPECIFIED;
  device_id device = {};
  gmm_tag tag = 0; /**< 0: the thread's current tag */
  gmm_stream stream = nullptr;
  uint64_t alignment = 0; /**< bytes; 0: 256 */
  uint32_t flags = 0;     /**< GMM_ALLOC_* */

  [[nodiscard]] gmm_alloc_desc c() const noexcept {
    return {sizeof(gmm_alloc_desc), kind, device.get(), tag, stream, alignment, flags, 0};
  }
};

/** What heap::create() is asked for. C: gmm_heap_desc. */
struct heap_desc {
  gmm_kind kind = GMM_KIND_UNSPECIFIED;
  device_id device = {};
  gmm_tag tag = 0;             /**< 0: the thread's current tag */
  uint64_t minimum_extent = 0; /**< bytes; 0: 2 MiB, growing */
  uint64_t limit = 0;          /**< bytes; 0: no limit */
  uint64_t peer_devices = 0;   /**< bit d lets device d use the memory */
  uint32_t flags = 0;          /**< GMM_HEAP_* */

  [[nodiscard]] gmm_heap_desc c() const noexcept {
    return {sizeof(gmm_heap_desc), kind, device.get(), tag, minimum_extent, limit, peer_devices, flags, 0};
  }
};

/** What context::compact() is asked for. C: gmm_compact_desc. */
struct compact_desc {
  uint32_t flags = 0;       /**< GMM_COMPACT_* */
  gmm_heap *heap = nullptr; /**< only this heap; heap_ref::get() */
  uint64_t max_bytes = 0;   /**< 0: no bound */
  uint64_t max_us = 0;      /**< microseconds; 0: no bound */

  [[nodiscard]] gmm_compact_desc c() const noexcept {
    return {sizeof(gmm_compact_desc), flags, heap, max_bytes, max_us};
  }
};

/** What stream::create() is asked for. C: gmm_stream_desc. */
struct stream_desc {
  device_id device = {};
  int32_t priority = 0; /**< a lower number goes first */

  [[nodiscard]] gmm_stream_desc c() const noexcept { return {sizeof(gmm_stream_desc), 0, device.get(), priority}; }
};

/** What event::create() is asked for. C: gmm_event_desc. */
struct event_desc {
  uint32_t flags = 0; /**< GMM_EVENT_* */
  device_id device = {};

  [[nodiscard]] gmm_event_desc c() const noexcept { return {sizeof(gmm_event_desc), flags, device.get(), 0}; }
};

/** What event::import_semaphore() is asked for. C: gmm_semaphore_desc. */
struct semaphore_desc {
  gmm_semaphore_type type = 0; /**< GMM_SEMAPHORE_* */
  device_id device = {};
  int32_t fd = 0;
  gmm_semaphore_calls calls = {nullptr, nullptr, nullptr};

  [[nodiscard]] gmm_semaphore_desc c() const noexcept {
    return {sizeof(gmm_semaphore_desc), type, device.get(), fd, calls};
  }
};

/** What watcher::create() is asked for. C: gmm_watch_desc. */
struct watch_desc {
  uint32_t events = 0; /**< GMM_WATCH_* */
  gmm_tag tag = 0;
  device_id device = {}; /**< for GMM_WATCH_BUDGET */
  const void *address = nullptr;
  uint64_t size = 0; /**< 0: the tag */
  uint64_t budget_bytes = 0;
  uint64_t timeout_ms = 0; /**< 0: 10,000 */
  int32_t order = 0;
  const char *name = nullptr;
  gmm_watch_callback callback = {nullptr, nullptr}; /**< watcher::create() with a function sets it */

  [[nodiscard]] gmm_watch_desc c() const noexcept {
    return {sizeof(gmm_watch_desc),
            events,
            tag,
            device.get(),
            address,
            size,
            budget_bytes,
            timeout_ms,
            order,
            0,
            name,
            callback};
  }
};

/** What lease::create() is asked for. C: gmm_lease_desc. */
struct lease_desc {
  const char *name = nullptr;
  int32_t priority = 0;
  uint64_t floor_bytes = 0;
  uint64_t residency_ms = 0; /**< 0: as long as the resume took, at least 100 */
  gmm_lease_ask_callback asked = {nullptr, nullptr};

  [[nodiscard]] gmm_lease_desc c() const noexcept {
    return {sizeof(gmm_lease_desc), 0, name, priority, 0, floor_bytes, residency_ms, asked};
  }
};

/** What lease_ref::request() is asked for. C: gmm_lease_request_desc. */
struct lease_request_desc {
  const gmm_lease_amount *amounts = nullptr;
  uint32_t amount_count = 0;
  uint64_t timeout_ms = 0; /**< 0: 60,000 */

  [[nodiscard]] gmm_lease_request_desc c() const noexcept {
    return {sizeof(gmm_lease_request_desc), 0, amounts, amount_count, 0, timeout_ms};
  }
};

/** What context_ref::pin() is asked for. C: gmm_pin_desc. */
struct pin_desc {
  uint32_t flags = 0; /**< GMM_PIN_* */
  device_id device = {};

  [[nodiscard]] gmm_pin_desc c() const noexcept { return {sizeof(gmm_pin_desc), flags, device.get(), 0}; }
};

/** What context_ref::move() is asked for. C: gmm_move_desc. */
struct move_desc {
  uint32_t flags = 0; /**< GMM_MOVE_* */
  gmm_stream stream = nullptr;

  [[nodiscard]] gmm_move_desc c() const noexcept { return {sizeof(gmm_move_desc), flags, stream}; }
};

/** The settings of a tag. C: gmm_tag_desc. */
struct tag_desc {
  gmm_contents contents = GMM_CONTENTS_DROP;
  int32_t priority = 0;
  uint32_t flags = 0; /**< GMM_TAG_* */

  [[nodiscard]] gmm_tag_desc c() const noexcept { return {sizeof(gmm_tag_desc), contents, priority, flags}; }
};

/** What context_ref::pause() and resume() are asked for. C: gmm_pause_desc. */
struct pause_desc {
  uint32_t flags = 0; /**< GMM_PAUSE_* */
  const gmm_tag *tags = nullptr;
  uint32_t tag_count = 0; /**< 0: every tag */
  gmm_progress_callback progress = {nullptr, nullptr};
  uint64_t hold_ms = 0; /**< with GMM_PAUSE_HOLD; 0: 60,000 */

  [[nodiscard]] gmm_pause_desc c() const noexcept {
    return {sizeof(gmm_pause_desc), flags, tags, tag_count, 0, progress, hold_ms};
  }
};

/** The settings of backups. C: gmm_backup_desc. */
struct backup_desc {
  uint32_t flags = 0;          /**< GMM_BACKUP_* */
  uint64_t arena_limit = 0;    /**< bytes; 0: what the host can spare */
  uint64_t pageable_limit = 0; /**< bytes; 0: what the host can spare */
  const char *directory = nullptr;
  uint32_t threads = 0;

  [[nodiscard]] gmm_backup_desc c() const noexcept {
    return {sizeof(gmm_backup_desc), flags, arena_limit, pageable_limit, directory, threads, 0};
  }
};

/** Who may share with a context. C: gmm_ipc_desc. */
struct ipc_desc {
  const char *directory = nullptr;
  const uint32_t *users = nullptr;
  uint32_t user_count = 0;

  [[nodiscard]] gmm_ipc_desc c() const noexcept { return {sizeof(gmm_ipc_desc), 0, directory, users, user_count, 0}; }
};

/** What context_ref::ipc_import() is asked for. C: gmm_ipc_import_desc. */
struct ipc_import_desc {
  device_id device = {};
  milliseconds timeout_ms = {}; /**< 0: 5,000 ms */

  [[nodiscard]] gmm_ipc_import_desc c() const noexcept {
    return {sizeof(gmm_ipc_import_desc), 0, device.get(), 0, timeout_ms.count()};
  }
};

/** What context_ref::ipc_import_fd() is asked for. C: gmm_ipc_fd_desc. */
struct ipc_fd_desc {
  gmm_fd_type type = GMM_FD_DEFAULT;
  device_id device = {};
  uint64_t size = 0; /**< bytes of the allocation, which its maker tells */

  [[nodiscard]] gmm_ipc_fd_desc c() const noexcept { return {sizeof(gmm_ipc_fd_desc), 0, type, device.get(), size}; }
};

/* --- Owners ------------------------------------------------------------------------------------------------ */

/**
 * Owns what a reference names, and ends it in the destructor.
 *
 * A destructor that fails tries once more, as a driver may refuse one call, and gives a second failure to
 * GMM_HPP_UNHEARD(). An end() that fails and leaves nothing to end empties its reference: then nothing is tried again.
 */
template <class Ref>
class unique : public Ref {
 public:
  constexpr unique() noexcept = default;
  /** Takes over what a reference names. */
  constexpr explicit unique(const Ref &adopted) noexcept : Ref(adopted) {}
  unique(unique &&other) noexcept : Ref(other.detach()) {}
  unique &operator=(unique &&other) noexcept {
    if (this != &other) {
      end_unheard();
      named() = other.detach();
    }
    return *this;
  }
  ~unique() { end_unheard(); }

  /** Gives the ownership up: the caller ends what the reference names. */
  Ref detach() noexcept { return std::exchange(named(), Ref()); }

 protected:
  /** Ends what is owned and tells of a failure, after which it is owned still unless end() emptied the reference. */
  outcome<void> finish() {
    const gmm_result code = named() ? named().end() : static_cast<gmm_result>(GMM_OK);
    if (code >= 0) named() = Ref();
    return detail::give<void>(code);
  }

 private:
  void end_unheard() noexcept {
    if (!named()) return;
    gmm_result code = named().end();
    if (code < 0 && named()) code = named().end();
    if (code < 0) GMM_HPP_UNHEARD(code);
    named() = Ref();
  }
  Ref &named() noexcept { return *this; }
};

/**
 * Owns a block, and frees it on a stream at its end.
 *
 * Memory of kind HOST and MANAGED can be read and written by the CPU, that of other kinds by devices only. data() and
 * as() give the address in either case.
 */
class buffer {
 public:
  constexpr buffer() noexcept = default;
  /** Takes over a block of a context. */
  buffer(gmm_context *context, void *memory, uint64_t size, gmm_stream stream = nullptr) noexcept
      : context_(context), memory_(memory), size_(size), stream_(stream) {}
  buffer(buffer &&other) noexcept
      : context_(other.context_), memory_(other.memory_), size_(other.size_), stream_(other.stream_) {
    other.forget();
  }
  buffer &operator=(buffer &&other) noexcept {
    if (this != &other) {
      reset();
      context_ = other.context_;
      memory_ = other.memory_;
      size_ = other.size_;
      stream_ = other.stream_;
      other.forget();
    }
    return *this;
  }
  ~buffer() { reset(); }

  [[nodiscard]] explicit operator bool() const noexcept { return memory_ != nullptr; }
  [[nodiscard]] void *data() const noexcept { return memory_; }
  /** Bytes, as they were asked for. */
  [[nodiscard]] uint64_t size() const noexcept { return size_; }
  [[nodiscard]] gmm_context *context() const noexcept { return context_; }
  /** The stream of the block's end: at first that of its allocation. */
  [[nodiscard]] gmm_stream stream() const noexcept { return stream_; }
  void set_stream(gmm_stream stream) noexcept { stream_ = stream; }
  /** The block as objects of a type; a part of an object at the end is left out. */
  template <class T = std::byte>
  [[nodiscard]] gmm::span<T> as() const noexcept {
    return gmm::span<T>(static_cast<T *>(memory_), size_ / sizeof(T));
  }

  /** Frees the block in the order of a stream. An empty buffer has nothing to free. C: gmm_free(). */
  outcome<void> free(gmm_stream stream) {
    const gmm_result code = memory_ != nullptr ? gmm_free(context_, memory_, stream) : static_cast<gmm_result>(GMM_OK);
    if (code >= 0) forget();
    return detail::give<void>(code);
  }
  /** Frees the block in the order of its own stream. C: gmm_free(). */
  outcome<void> free() { return free(stream_); }
  /** Frees the block if the thread's cache takes it, and returns whether it did. C: gmm_try_free(). */
  [[nodiscard]] bool try_free() noexcept {
    if (memory_ != nullptr && gmm_try_free(context_, memory_, stream_) < 0) return false;
    forget();
    return true;
  }
  /** Gives the block up: the caller frees it. */
  void *detach() noexcept {
    void *memory = memory_;
    forget();
    return memory;
  }

 private:
  void reset() noexcept {
    if (memory_ == nullptr) return;
    const gmm_result code = gmm_free(context_, memory_, stream_);
    if (code < 0) GMM_HPP_UNHEARD(code);
    forget();
  }
  void forget() noexcept {
    memory_ = nullptr;
    size_ = 0;
  }

  gmm_context *context_ = nullptr;
  void *memory_ = nullptr;
  uint64_t size_ = 0;
  gmm_stream stream_ = nullptr;
};

/** What a gmm::pinned owns. */
class pinned_ref {
 public:
  constexpr pinned_ref() noexcept = default;
  pinned_ref(gmm_context *context, void *memory, void *device_pointer) noexcept
      : context_(context), memory_(memory), device_pointer_(device_pointer) {}
  [[nodiscard]] explicit operator bool() const noexcept { return memory_ != nullptr; }
  /** The program's own memory. */
  [[nodiscard]] void *data() const noexcept { return memory_; }
  /** The address by which the device reaches the memory. */
  [[nodiscard]] void *device_pointer() const noexcept { return device_pointer_; }

 protected:
  gmm_result end() noexcept { return gmm_unpin(context_, memory_); }
  friend class unique<pinned_ref>;

 private:
  gmm_context *context_ = nullptr;
  void *memory_ = nullptr, *device_pointer_ = nullptr;
};

/** The program's own memory, page-locked until the end of the object. context_ref::pin() makes one. */
class pinned : public unique<pinned_ref> {
 public:
  using unique::unique;
  /** C: gmm_unpin(). */
  outcome<void> unpin() { return finish(); }
};

/** What a gmm::imported owns. */
class imported_ref {
 public:
  constexpr imported_ref() noexcept = default;
  imported_ref(gmm_context *context, void *memory) noexcept : context_(context), memory_(memory) {}
  [[nodiscard]] explicit operator bool() const noexcept { return memory_ != nullptr; }
  /** The address for which the handle was made, or the start of a descriptor's allocation. */
  [[nodiscard]] void *data() const noexcept { return memory_; }

 protected:
  gmm_result end() noexcept { return gmm_ipc_close(context_, memory_); }
  friend class unique<imported_ref>;

 private:
  gmm_context *context_ = nullptr;
  void *memory_ = nullptr;
};

/** Another process's memory, until the end of the object. context_ref::ipc_import() and ipc_import_fd() make one. */
class imported : public unique<imported_ref> {
 public:
  using unique::unique;
  /** C: gmm_ipc_close(). */
  outcome<void> close() { return finish(); }
};

/** A pause or resume in the background. */
class ticket_ref {
 public:
  constexpr ticket_ref() noexcept = default;
  explicit ticket_ref(gmm_ticket *ticket) noexcept : ticket_(ticket) {}
  [[nodiscard]] explicit operator bool() const noexcept { return ticket_ != nullptr; }
  [[nodiscard]] gmm_ticket *get() const noexcept { return ticket_; }

  /** C: gmm_ticket_query(). */
  [[nodiscard]] outcome<gmm_ticket_info> query() const {
    return detail::ask<gmm_ticket_info>([this](gmm_ticket_info *out) { return gmm_ticket_query(ticket_, out); });
  }
  /**
   * Waits for the end, and returns the bytes that changed state. A failed operation is a failure of this call.
   *
   * C: gmm_ticket_wait().
   */
  outcome<uint64_t> wait() const {
    uint64_t bytes = 0;
    const gmm_result code = gmm_ticket_wait(ticket_, UINT64_MAX, &bytes);
    return detail::give<uint64_t>(code, bytes);
  }
  /** The same, with nothing if the time passes first. C: gmm_ticket_wait(). */
  [[nodiscard]] outcome<std::optional<uint64_t>> wait_for(milliseconds timeout) const {
    uint64_t bytes = 0;
    const gmm_result code = gmm_ticket_wait(ticket_, timeout.count(), &bytes);
    gmm_ticket_info info = {};
    info.struct_size = sizeof info;
    // A request of a lease may itself end with NOT_READY.
    if (code == GMM_ERROR_NOT_READY && gmm_ticket_query(ticket_, &info) == GMM_OK && info.state != GMM_TICKET_DONE)
      return std::optional<uint64_t>();
    return detail::give<std::optional<uint64_t>>(code, bytes);
  }
  /** Waits until an operation with GMM_PAUSE_HOLD is held. C: gmm_ticket_wait_held(). */
  outcome<void> wait_held() const {
    const gmm_result code = gmm_ticket_wait_held(ticket_, UINT64_MAX);
    return detail::give<void>(code);
  }
  /** Carries out what is held. C: gmm_ticket_commit(). */
  outcome<void> commit() const {
    const gmm_result code = gmm_ticket_commit(ticket_);
    return detail::give<void>(code);
  }
  /** C: gmm_ticket_cancel(). */
  outcome<void> cancel() const {
    const gmm_result code = gmm_ticket_cancel(ticket_);
    return detail::give<void>(code);
  }

 protected:
  gmm_result end() noexcept { return gmm_ticket_destroy(ticket_); }
  friend class unique<ticket_ref>;

 private:
  gmm_ticket *ticket_ = nullptr;
};

/** Owns a pause or resume in the background, and waits for it at its end. It keeps its context alive. */
class ticket : public unique<ticket_ref> {
 public:
  using unique::unique;
  /** Waits for the operation, whose result it leaves out. C: gmm_ticket_destroy(). */
  outcome<void> destroy() { return finish(); }
};

/* --- Contexts ---------------------------------------------------------------------------------------------- */

class context;

/** A context that somebody else owns: what a function takes, and what has the verbs. */
class context_ref {
 public:
  constexpr context_ref() noexcept = default;
  explicit context_ref(gmm_context *context) noexcept : context_(context) {}
  [[nodiscard]] explicit operator bool() const noexcept { return context_ != nullptr; }
  [[nodiscard]] gmm_context *get() const noexcept { return context_; }

  /** Adds an owner. C: gmm_context_retain(). */
  [[nodiscard]] inline outcome<context> retain() const;
  /** C: gmm_context_query(). */
  [[nodiscard]] outcome<gmm_context_info> query() const {
    return detail::ask<gmm_context_info>([this](gmm_context_info *out) { return gmm_context_query(context_, out); });
  }
  /** C: gmm_device_query(). */
  [[nodiscard]] outcome<gmm_device_info> device_query(device_id device) const {
    return detail::ask<gmm_device_info>(
        [this, device](gmm_device_info *out) { return gmm_device_query(context_, device.get(), out); });
  }
  /** Sets how long memory stays free before it returns to the driver; forever: never. C: gmm_context_set_decommit(). */
  outcome<void> set_decommit(milliseconds after) const {
    return done(gmm_context_set_decommit(context_, after.count()));
  }
  /** C: gmm_context_set_oom_handler(). */
  outcome<void> set_oom_handler(gmm_oom_fn fn, void *user) const {
    return done(gmm_context_set_oom_handler(context_, fn, user));
  }

  /* Memory. */

  /** Allocates a block of `size` bytes as a NULL descriptor says: DEVICE, device 0, default stream. C: gmm_alloc(). */
  [[nodiscard]] outcome<buffer> alloc(uint64_t size) const {
    void *memory = nullptr;
    const gmm_result code = gmm_alloc(context_, size, nullptr, &memory);
    return detail::give<buffer>(code, context_, memory, size);
  }
  /** Allocates a block of `size` bytes. It will be freed on desc.stream, unless that is changed. C: gmm_alloc(). */
  [[nodiscard]] outcome<buffer> alloc(uint64_t size, const alloc_desc &desc) const {
    const gmm_alloc_desc c = desc.c();
    void *memory = nullptr;
    const gmm_result code = gmm_alloc(context_, size, &c, &memory);
    return detail::give<buffer>(code, context_, memory, size, desc.stream);
  }
  /** Allocates a block if that needs no wait; else the buffer is empty. C: gmm_try_alloc(). */
  [[nodiscard]] buffer try_alloc(uint64_t size, const alloc_desc &desc = {}) const noexcept {
    const gmm_alloc_desc c = desc.c();
    void *memory = nullptr;
    if (gmm_try_alloc(context_, size, &c, &memory) < 0) return {};
    return buffer(context_, memory, size, desc.stream);
  }
  /** Frees a block that no buffer owns. C: gmm_free(). */
  outcome<void> free(void *memory, gmm_stream stream = nullptr) const {
    return done(gmm_free(context_, memory, stream));
  }
  /** Describes any address. C: gmm_query(). */
  [[nodiscard]] outcome<gmm_pointer_info> query(const void *address) const {
    return detail::ask<gmm_pointer_info>(
        [this, address](gmm_pointer_info *out) { return gmm_query(context_, address, out); });
  }
  /** Names a block; NULL takes the name away. C: gmm_name(). */
  outcome<void> name(const void *memory, const char *name) const { return done(gmm_name(context_, memory, name)); }
  /** Queues a copy. C: gmm_copy(). */
  outcome<void> copy(void *destination, const void *source, uint64_t size, gmm_stream stream = nullptr) const {
    return done(gmm_copy(context_, destination, source, size, stream));
  }
  /** Queues a fill with one byte value. C: gmm_fill(). */
  outcome<void> fill(void *destination, uint8_t value, uint64_t size, gmm_stream stream = nullptr) const {
    return done(gmm_fill(context_, destination, value, size, stream));
  }
  /** Records that a further stream uses a block. C: gmm_record_use(). */
  outcome<void> record_use(const void *memory, gmm_stream stream) const {
    return done(gmm_record_use(context_, memory, stream));
  }

  /** Page-locks the program's memory until the end of the object. C: gmm_pin(). */
  [[nodiscard]] outcome<pinned> pin(void *memory, uint64_t size, const pin_desc &desc = {}) const {
    const gmm_pin_desc c = desc.c();
    void *device_pointer = nullptr;
    const gmm_result code = gmm_pin(context_, memory, size, &c, &device_pointer);
    return detail::give<pinned>(code, pinned_ref(context_, memory, device_pointer));
  }
  /** Gives a hint about managed memory. C: gmm_advise(). */
  outcome<void> advise(void *memory, uint64_t size, gmm_advice advice, device_id location) const {
    return done(gmm_advise(context_, memory, size, advice, location.get()));
  }
  /** Queues the migration of managed memory. C: gmm_prefetch(). */
  outcome<void> prefetch(void *memory, uint64_t size, device_id location, gmm_stream stream = nullptr) const {
    return done(gmm_prefetch(context_, memory, size, location.get(), stream));
  }
  /** Moves a block, which keeps its address. Returns false if it was at the location already. C: gmm_move(). */
  outcome<bool> move(void *memory, device_id location, const move_desc &desc = {}) const {
    const gmm_move_desc c = desc.c();
    const gmm_result code = gmm_move(context_, memory, location.get(), &c);
    return detail::give<bool>(code, code != GMM_UNCHANGED);
  }

  /* Pause and resume, by default of every tag. gmm::tag_ref has the same for one tag. */

  /** Returns memory to the driver, and tells how many bytes. C: gmm_pause(). */
  outcome<uint64_t> pause(const pause_desc &desc = {}) const { return transition(gmm_pause, desc); }
  /** Takes memory from the driver again, and tells how many bytes. C: gmm_resume(). */
  outcome<uint64_t> resume(const pause_desc &desc = {}) const { return transition(gmm_resume, desc); }
  /** C: gmm_pause_async(). */
  [[nodiscard]] outcome<ticket> pause_async(const pause_desc &desc = {}) const {
    return transition_async(gmm_pause_async, desc);
  }
  /** C: gmm_resume_async(). */
  [[nodiscard]] outcome<ticket> resume_async(const pause_desc &desc = {}) const {
    return transition_async(gmm_resume_async, desc);
  }
  /** C: gmm_resume_range(). */
  outcome<uint64_t> resume_range(const void *address, uint64_t size) const {
    uint64_t bytes = 0;
    const gmm_result code = gmm_resume_range(context_, address, size, &bytes);
    return detail::give<uint64_t>(code, bytes);
  }
  /** Waits until others have resumed a range. C: gmm_resume_wait(). */
  outcome<void> resume_wait(const void *address, uint64_t size) const {
    return done(gmm_resume_wait(context_, address, size, UINT64_MAX));
  }
  /** The same, and returns false if the time passes first. C: gmm_resume_wait(). */
  [[nodiscard]] outcome<bool> resume_wait_for(const void *address, uint64_t size, milliseconds timeout) const {
    const gmm_result code = gmm_resume_wait(context_, address, size, timeout.count());
    return detail::give_ready(code);
  }

  /* Backups. */

  /** C: gmm_backup_configure(). */
  outcome<void> backup_configure(const backup_desc &desc) const {
    const gmm_backup_desc c = desc.c();
    return done(gmm_backup_configure(context_, &c));
  }
  /** C: gmm_backup_reserve(). */
  outcome<void> backup_reserve(device_id device, uint64_t bytes) const {
    return done(gmm_backup_reserve(context_, device.get(), bytes));
  }
  /** C: gmm_backup_query(). */
  [[nodiscard]] outcome<gmm_backup_info> backup_query() const {
    return detail::ask<gmm_backup_info>([this](gmm_backup_info *out) { return gmm_backup_query(context_, out); });
  }
  /** Copies kept contents to `out`, which has room for `size` bytes. C: gmm_backup_read(). */
  outcome<void> backup_read(const void *address, uint64_t size, void *out) const {
    return done(gmm_backup_read(context_, address, size, out));
  }
  /** Kept contents to read, which belong to gmm. C: gmm_backup_map(). */
  [[nodiscard]] outcome<const void *> backup_map(const void *address, uint64_t size) const {
    const void *contents = nullptr;
    const gmm_result code = gmm_backup_map(context_, address, size, &contents);
    return detail::give<const void *>(code, contents);
  }
  /** Drops kept contents, and tells how many bytes. C: gmm_backup_discard(). */
  outcome<uint64_t> backup_discard(const pause_desc &desc = {}) const { return transition(gmm_backup_discard, desc); }

  /* Sharing. gmm::event has the functions of events. */

  /** C: gmm_ipc_configure(). */
  outcome<void> ipc_configure(const ipc_desc &desc) const {
    const gmm_ipc_desc c = desc.c();
    return done(gmm_ipc_configure(context_, &c));
  }
  /** C: gmm_ipc_export(). */
  [[nodiscard]] outcome<gmm_ipc_handle> ipc_export(const void *memory) const {
    gmm_ipc_handle handle{};
    const gmm_result code = gmm_ipc_export(context_, memory, &handle);
    return detail::give<gmm_ipc_handle>(code, handle);
  }
  /** Maps another process's memory until the end of the object. C: gmm_ipc_import(). */
  [[nodiscard]] outcome<imported> ipc_import(const gmm_ipc_handle &handle, const ipc_import_desc &desc = {}) const {
    const gmm_ipc_import_desc c = desc.c();
    void *memory = nullptr;
    const gmm_result code = gmm_ipc_import(context_, &handle, &c, &memory);
    return detail::give<imported>(code, imported_ref(context_, memory));
  }
  /** Opens a file descriptor, which the caller closes. C: gmm_ipc_export_fd(). */
  [[nodiscard]] outcome<gmm_ipc_fd_info> ipc_export_fd(const void *memory, gmm_fd_type type = GMM_FD_DEFAULT) const {
    return detail::ask<gmm_ipc_fd_info>(
        [this, memory, type](gmm_ipc_fd_info *out) { return gmm_ipc_export_fd(context_, memory, type, out); });
  }
  /** Maps the memory behind a descriptor, which stays the caller's. C: gmm_ipc_import_fd(). */
  [[nodiscard]] outcome<imported> ipc_import_fd(int32_t fd, const ipc_fd_desc &desc) const {
    const gmm_ipc_fd_desc c = desc.c();
    void *memory = nullptr;
    const gmm_result code = gmm_ipc_import_fd(context_, fd, &c, &memory);
    return detail::give<imported>(code, imported_ref(context_, memory));
  }
  /** C: gmm_ipc_export_legacy(). */
  [[nodiscard]] outcome<gmm_ipc_legacy_info> ipc_export_legacy(const void *memory) const {
    return detail::ask<gmm_ipc_legacy_info>(
        [this, memory](gmm_ipc_legacy_info *out) { return gmm_ipc_export_legacy(context_, memory, out); });
  }

  /* Limits and counts. */

  /** Sets a limit of `bytes`, or takes it back: GMM_NO_LIMIT. C: gmm_limit_set(). */
  outcome<void> limit_set(const scope &of, uint64_t bytes) const {
    return done(gmm_limit_set(context_, of.get(), bytes));
  }
  /** C: gmm_stats_query(). */
  [[nodiscard]] outcome<gmm_stats_info> stats_query(const scope &of = {}) const {
    return detail::ask<gmm_stats_info>(
        [this, &of](gmm_stats_info *out) { return gmm_stats_query(context_, of.get(), out); });
  }
  /** Returns free memory of the whole context to the driver, and tells how many bytes. C: gmm_trim(). */
  outcome<uint64_t> trim() const { return trim_of(nullptr); }
  /** Returns free memory of a scope to the driver, and tells how many bytes. C: gmm_trim(). */
  outcome<uint64_t> trim(const scope &of) const { return trim_of(of.get()); }
  /** Moves the free memory of VMM heaps side by side and returns the rest to the driver. C: gmm_compact(). */
  outcome<gmm_compact_info> compact(const compact_desc &desc = {}) const { return compact_of(nullptr, desc); }
  /** Does so for the heaps of a scope. C: gmm_compact(). */
  outcome<gmm_compact_info> compact(const scope &of, const compact_desc &desc = {}) const {
    return compact_of(of.get(), desc);
  }
  /** Frees every allocation. No buffer of the context may end after that: detach() them. C: gmm_reset(). */
  outcome<void> reset() const { return done(gmm_reset(context_)); }
  /** Lists the tags: the first tags.size() of them go to `tags`. Returns how many there are. C: gmm_tag_list(). */
  [[nodiscard]] outcome<uint32_t> tag_list(gmm::span<gmm_tag> tags) const {
    uint32_t count = 0;
    const gmm_result code = gmm_tag_list(context_, tags.data(), static_cast<uint32_t>(tags.size()), &count);
    return detail::give<uint32_t>(code, count);
  }

  [[nodiscard]] friend bool operator==(context_ref a, context_ref b) noexcept { return a.get() == b.get(); }
  [[nodiscard]] friend bool operator!=(context_ref a, context_ref b) noexcept { return a.get() != b.get(); }

 protected:
  gmm_result end() noexcept { return gmm_context_release(context_); }
  friend class unique<context_ref>;

 private:
  static outcome<void> done(gmm_result code) { return detail::give<void>(code); }
  template <class Function>
  outcome<uint64_t> transition(Function function, const pause_desc &desc) const {
    const gmm_pause_desc c = desc.c();
    uint64_t bytes = 0;
    const gmm_result code = function(context_, &c, &bytes);
    return detail::give<uint64_t>(code, bytes);
  }
  template <class Function>
  outcome<ticket> transition_async(Function function, const pause_desc &desc) const {
    const gmm_pause_desc c = desc.c();
    gmm_ticket *made = nullptr;
    const gmm_result code = function(context_, &c, &made);
    return detail::give<ticket>(code, ticket_ref(made));
  }
  outcome<gmm_compact_info> compact_of(const gmm_scope_desc *of, const compact_desc &desc) const {
    const gmm_compact_desc c = desc.c();
    return detail::ask<gmm_compact_info>(
        [this, of, &c](gmm_compact_info *out) { return gmm_compact(context_, of, &c, out); });
  }
  outcome<uint64_t> trim_of(const gmm_scope_desc *desc) const {
    uint64_t bytes = 0;
    const gmm_result code = gmm_trim(context_, desc, &bytes);
    return detail::give<uint64_t>(code, bytes);
  }

  gmm_context *context_ = nullptr;
};

/** Owns a reference to a context. The last owner's end frees all memory of the context. */
class context : public unique<context_ref> {
 public:
  using unique::unique;
  /** Creates a context as a NULL descriptor says. C: gmm_context_create(). */
  [[nodiscard]] static outcome<context> create() { return create_of(nullptr); }
  /** C: gmm_context_create(). */
  [[nodiscard]] static outcome<context> create(const context_desc &desc) {
    const gmm_context_desc c = desc.c();
    return create_of(&c);
  }
  /** Drops the reference. C: gmm_context_release(). */
  outcome<void> release() { return finish(); }

 private:
  static outcome<context> create_of(const gmm_context_desc *desc) {
    gmm_context *made = nullptr;
    const gmm_result code = gmm_context_create(desc, &made);
    return detail::give<context>(code, context_ref(made));
  }
};

inline outcome<context> context_ref::retain() const {
  const gmm_result code = gmm_context_retain(context_);
  return detail::give<context>(code, *this);
}

/* --- Heaps ------------------------------------------------------------------------------------------------- */

/** A heap that somebody else owns. */
class heap_ref {
 public:
  constexpr heap_ref() noexcept = default;
  /** A heap of C with its kind, which no function of C tells. */
  heap_ref(context_ref context, gmm_heap *heap, gmm_kind kind) noexcept
      : context_(context.get()), heap_(heap), kind_(kind) {}
  [[nodiscard]] explicit operator bool() const noexcept { return heap_ != nullptr; }
  [[nodiscard]] gmm_heap *get() const noexcept { return heap_; }
  [[nodiscard]] context_ref context() const noexcept { return context_ref(context_); }
  [[nodiscard]] gmm_kind kind() const noexcept { return kind_; }

  /** Allocates a block of `size` bytes, which will be freed on `stream`. C: gmm_heap_alloc(). */
  [[nodiscard]] outcome<buffer> alloc(uint64_t size, gmm_stream stream = nullptr, uint64_t alignment = 0,
                                      uint32_t flags = 0) const {
    void *memory = nullptr;
    const gmm_result code = gmm_heap_alloc(heap_, size, alignment, flags, stream, &memory);
    return detail::give<buffer>(code, context_, memory, size, stream);
  }
  /** Allocates a block if that needs no wait; else the buffer is empty. C: gmm_heap_try_alloc(). */
  [[nodiscard]] buffer try_alloc(uint64_t size, gmm_stream stream = nullptr, uint64_t alignment = 0,
                                 uint32_t flags = 0) const noexcept {
    void *memory = nullptr;
    if (gmm_heap_try_alloc(heap_, size, alignment, flags, stream, &memory) < 0) return {};
    return buffer(context_, memory, size, stream);
  }
  /** Makes the heap hold at least so many bytes from now on, all of them touched; 0 ends it. C: gmm_heap_reserve(). */
  outcome<void> reserve(uint64_t bytes) const {
    const gmm_result code = gmm_heap_reserve(heap_, bytes);
    return detail::give<void>(code);
  }

  [[nodiscard]] friend bool operator==(heap_ref a, heap_ref b) noexcept { return a.get() == b.get(); }
  [[nodiscard]] friend bool operator!=(heap_ref a, heap_ref b) noexcept { return a.get() != b.get(); }

 protected:
  gmm_result end() noexcept { return gmm_heap_destroy(heap_); }
  friend class unique<heap_ref>;

 private:
  gmm_context *context_ = nullptr;
  gmm_heap *heap_ = nullptr;
  gmm_kind kind_ = GMM_KIND_UNSPECIFIED;
};

/** Owns a heap. Its buffers end before it; a heap with live blocks stays until the end of its context. */
class heap : public unique<heap_ref> {
 public:
  using unique::unique;
  /** C: gmm_heap_create(). */
  [[nodiscard]] static outcome<heap> create(context_ref context, const heap_desc &desc = {}) {
    const gmm_heap_desc c = desc.c();
    gmm_heap *made = nullptr;
    const gmm_result code = gmm_heap_create(context.get(), &c, &made);
    const gmm_kind kind = desc.kind != GMM_KIND_UNSPECIFIED ? desc.kind : static_cast<gmm_kind>(GMM_KIND_DEVICE);
    return detail::give<heap>(code, heap_ref(context, made, kind));
  }
  /** C: gmm_heap_destroy(). */
  outcome<void> destroy() { return finish(); }
};

/* --- Streams and events ------------------------------------------------------------------------------------ */

/** A point in the order of a stream. */
class event_ref {
 public:
  constexpr event_ref() noexcept = default;
  explicit event_ref(gmm_event *event) noexcept : event_(event) {}
  [[nodiscard]] explicit operator bool() const noexcept { return event_ != nullptr; }
  [[nodiscard]] gmm_event *get() const noexcept { return event_; }

  /** C: gmm_event_record(). */
  outcome<void> record(gmm_stream stream, uint64_t value = 0) const {
    const gmm_result code = gmm_event_record(event_, value, stream);
    return detail::give<void>(code);
  }
  /** Waits until the event has passed. C: gmm_event_synchronize(). */
  outcome<void> synchronize(uint64_t value = 0) const {
    const gmm_result code = gmm_event_synchronize(event_, value, UINT64_MAX);
    return detail::give<void>(code);
  }
  /** The same, and returns false if the time passes first. C: gmm_event_synchronize(). */
  [[nodiscard]] outcome<bool> synchronize_for(milliseconds timeout, uint64_t value = 0) const {
    const gmm_result code = gmm_event_synchronize(event_, value, timeout.count());
    return detail::give_ready(code);
  }
  /** Whether the event has passed. C: gmm_event_query(). */
  [[nodiscard]] outcome<bool> query() const {
    uint64_t passed = 0;
    const gmm_result code = gmm_event_query(event_, &passed);
    return detail::give<bool>(code, passed != 0);
  }
  /** A handle for other processes. `export` is a word of C++. C: gmm_event_export(). */
  [[nodiscard]] outcome<gmm_ipc_handle> export_handle() const {
    gmm_ipc_handle handle{};
    const gmm_result code = gmm_event_export(event_, &handle);
    return detail::give<gmm_ipc_handle>(code, handle);
  }

 protected:
  gmm_result end() noexcept { return gmm_event_destroy(event_); }
  friend class unique<event_ref>;

 private:
  gmm_event *event_ = nullptr;
};

/** Owns an event. */
class event : public unique<event_ref> {
 public:
  using unique::unique;
  /** C: gmm_event_create(). */
  [[nodiscard]] static outcome<event> create(context_ref context, const event_desc &desc = {}) {
    const gmm_event_desc c = desc.c();
    gmm_event *made = nullptr;
    const gmm_result code = gmm_event_create(context.get(), &c, &made);
    return detail::give<event>(code, event_ref(made));
  }
  /** Another process's event. `import` is a word of C++20. C: gmm_event_import(). */
  [[nodiscard]] static outcome<event> import_handle(context_ref context, const gmm_ipc_handle &handle,
                                                    const ipc_import_desc &desc = {}) {
    const gmm_ipc_import_desc c = desc.c();
    gmm_event *made = nullptr;
    const gmm_result code = gmm_event_import(context.get(), &handle, &c, &made);
    return detail::give<event>(code, event_ref(made));
  }
  /** A semaphore of Vulkan or another API. C: gmm_event_import_semaphore(). */
  [[nodiscard]] static outcome<event> import_semaphore(context_ref context, const semaphore_desc &desc) {
    const gmm_semaphore_desc c = desc.c();
    gmm_event *made = nullptr;
    const gmm_result code = gmm_event_import_semaphore(context.get(), &c, &made);
    return detail::give<event>(code, event_ref(made));
  }
  /** C: gmm_event_destroy(). */
  outcome<void> destroy() { return finish(); }
};

/** A stream with its context. It converts to gmm_stream, which functions take. */
class stream_ref {
 public:
  constexpr stream_ref() noexcept = default;
  /** Any stream: `gmm::stream_ref(context, gmm::native_stream(cuda_stream))`. */
  stream_ref(context_ref context, gmm_stream stream) noexcept : context_(context.get()), stream_(stream) {}
  [[nodiscard]] explicit operator bool() const noexcept { return context_ != nullptr; }
  [[nodiscard]] gmm_stream get() const noexcept { return stream_; }
  operator gmm_stream() const noexcept { return stream_; }

  /** C: gmm_stream_synchronize(). */
  outcome<void> synchronize() const {
    const gmm_result code = gmm_stream_synchronize(context_, stream_);
    return detail::give<void>(code);
  }
  /** C: gmm_stream_wait_event(). */
  outcome<void> wait_event(event_ref event, uint64_t value = 0) const {
    const gmm_result code = gmm_stream_wait_event(context_, stream_, event.get(), value);
    return detail::give<void>(code);
  }
  /** Queues a call of `fn(user)`. C: gmm_stream_call(). */
  outcome<void> call(void (*fn)(void *user), void *user) const {
    const gmm_result code = gmm_stream_call(context_, stream_, fn, user);
    return detail::give<void>(code);
  }
  /** The program is about to destroy a stream of its own. C: gmm_stream_forget(). */
  outcome<void> forget() const {
    const gmm_result code = gmm_stream_forget(context_, stream_);
    return detail::give<void>(code);
  }

 protected:
  gmm_result end() noexcept { return gmm_stream_destroy(context_, stream_); }
  friend class unique<stream_ref>;

 private:
  gmm_context *context_ = nullptr;
  gmm_stream stream_ = nullptr;
};

/** Owns a stream, and waits for its work at its end. */
class stream : public unique<stream_ref> {
 public:
  using unique::unique;
  /** C: gmm_stream_create(). */
  [[nodiscard]] static outcome<stream> create(context_ref context, const stream_desc &desc = {}) {
    const gmm_stream_desc c = desc.c();
    gmm_stream made = nullptr;
    const gmm_result code = gmm_stream_create(context.get(), &c, &made);
    return detail::give<stream>(code, stream_ref(context, made));
  }
  /** C: gmm_stream_destroy(). */
  outcome<void> destroy() { return finish(); }
};

/* --- Tags -------------------------------------------------------------------------------------------------- */

/** What a gmm::tag_scope owns. */
class tag_scope_ref {
 public:
  constexpr tag_scope_ref() noexcept = default;
  explicit tag_scope_ref(gmm_context *context) noexcept : context_(context) {}
  [[nodiscard]] explicit operator bool() const noexcept { return context_ != nullptr; }

 protected:
  gmm_result end() noexcept { return gmm_tag_pop(context_); }
  friend class unique<tag_scope_ref>;

 private:
  gmm_context *context_ = nullptr;
};

/**
 * A tag is the thread's current one until the end of the object. tag_ref::push() makes one.
 *
 * Threads: the object ends on its thread. Scopes end in the reverse order of their beginning.
 */
class tag_scope : public unique<tag_scope_ref> {
 public:
  using unique::unique;
  /** C: gmm_tag_pop(). */
  outcome<void> pop() { return finish(); }
};

/** A tag with its context. It converts to gmm_tag, which descriptors take. */
class tag_ref {
 public:
  constexpr tag_ref() noexcept = default;
  tag_ref(context_ref context, gmm_tag tag) noexcept : context_(context.get()), tag_(tag) {}
  /** C: gmm_tag_find(). */
  [[nodiscard]] static outcome<tag_ref> find(context_ref context, const char *name) {
    gmm_tag found = 0;
    const gmm_result code = gmm_tag_find(context.get(), name, &found);
    return detail::give<tag_ref>(code, context, found);
  }
  [[nodiscard]] explicit operator bool() const noexcept { return context_ != nullptr; }
  [[nodiscard]] gmm_tag get() const noexcept { return tag_; }
  operator gmm_tag() const noexcept { return tag_; }

  /** C: gmm_tag_query(). */
  [[nodiscard]] outcome<gmm_tag_info> query() const {
    return detail::ask<gmm_tag_info>([this](gmm_tag_info *out) { return gmm_tag_query(context_, tag_, out); });
  }
  /** C: gmm_tag_configure(). */
  outcome<void> configure(const tag_desc &desc) const {
    const gmm_tag_desc c = desc.c();
    const gmm_result code = gmm_tag_configure(context_, tag_, &c);
    return detail::give<void>(code);
  }
  /** Makes the tag the thread's current one until the end of the object. C: gmm_tag_push(). */
  [[nodiscard]] outcome<tag_scope> push() const {
    const gmm_result code = gmm_tag_push(context_, tag_);
    return detail::give<tag_scope>(code, tag_scope_ref(context_));
  }
  /** Makes the tag the current one of every thread that has pushed none. C: gmm_tag_set_default(). */
  outcome<void> set_default() const {
    const gmm_result code = gmm_tag_set_default(context_, tag_);
    return detail::give<void>(code);
  }
  /** Pauses the tag's memory, and tells how many bytes. C: gmm_pause(). */
  outcome<uint64_t> pause(uint32_t flags = 0) const { return context_ref(context_).pause(desc_of(flags)); }
  /** Resumes the tag's memory, and tells how many bytes. C: gmm_resume(). */
  outcome<uint64_t> resume() const { return context_ref(context_).resume(desc_of(0)); }
  /** C: gmm_pause_async(). */
  [[nodiscard]] outcome<ticket> pause_async(uint32_t flags = 0) const {
    return context_ref(context_).pause_async(desc_of(flags));
  }
  /** C: gmm_resume_async(). */
  [[nodiscard]] outcome<ticket> resume_async() const { return context_ref(context_).resume_async(desc_of(0)); }

 protected:
  gmm_result end() noexcept { return gmm_tag_destroy(context_, tag_); }
  friend class unique<tag_ref>;

 private:
  [[nodiscard]] pause_desc desc_of(uint32_t flags) const noexcept {
    pause_desc desc;
    desc.flags = flags;
    desc.tags = &tag_;
    desc.tag_count = 1;
    return desc;
  }

  gmm_context *context_ = nullptr;
  gmm_tag tag_ = 0;
};

/** What a gmm::tag owns: a tag, and whether the end of the object destroys it. */
class owned_tag_ref : public tag_ref {
 public:
  constexpr owned_tag_ref() noexcept = default;
  owned_tag_ref(const tag_ref &named, bool is_own) noexcept : tag_ref(named), is_own_(is_own) {}
  /** Whether the end of the object destroys the tag: the object made it, or took it over. */
  [[nodiscard]] bool is_own() const noexcept { return is_own_; }

 protected:
  /** The tag's end, whoever made it. A tag that is gone, which INVALID_TAG says, is nothing to own. */
  gmm_result destroy_any() noexcept {
    const gmm_result code = tag_ref::end();
    if (code >= 0 || code == GMM_ERROR_INVALID_TAG) *this = owned_tag_ref();
    return code;
  }
  gmm_result end() noexcept { return is_own_ ? destroy_any() : static_cast<gmm_result>(GMM_OK); }
  friend class unique<owned_tag_ref>;

 private:
  bool is_own_ = false;
};

/**
 * A tag of a name. The object that made the tag destroys it at its end if nobody uses it.
 *
 * create() of a name that is known makes an object that names the tag and does not own it: its end leaves the tag as it
 * is. So parts of a program may each create() the tag "weights", and the first of them owns it. is_own() tells which.
 * An object made of a tag_ref takes the tag over and owns it.
 *
 * A tag with live blocks stays until the end of its context. Use detach() for a tag that shall live as long as the
 * context, or that other parts of the program use after the end of the object that made it.
 *
 * Threads: when two threads create() one new name at the same moment, both objects may own the tag. Then the first end
 * destroys it unless it is in use, and the second end finds no tag. Threads that share a new tag create it beforehand.
 */
class tag : public unique<owned_tag_ref> {
 public:
  constexpr tag() noexcept = default;
  /** Takes over a tag. */
  explicit tag(const tag_ref &adopted) noexcept : unique(owned_tag_ref(adopted, true)) {}
  /** Takes over what detach() of another object gave up, which may be the name alone. */
  explicit tag(const owned_tag_ref &adopted) noexcept : unique(adopted) {}
  /** Creates a tag of the default settings, or names that which exists. C: gmm_tag_create(), gmm_tag_find(). */
  [[nodiscard]] static outcome<tag> create(context_ref context, const char *name) {
    return create_of(context, name, nullptr);
  }
  /** Creates a tag, or names that which exists and has these settings. C: gmm_tag_create(), gmm_tag_find(). */
  [[nodiscard]] static outcome<tag> create(context_ref context, const char *name, const tag_desc &desc) {
    const gmm_tag_desc c = desc.c();
    return create_of(context, name, &c);
  }
  /**
   * Destroys the tag, whoever made it. The object is empty after INVALID_TAG too: the tag is gone.
   *
   * C: gmm_tag_destroy().
   */
  outcome<void> destroy() {
    const gmm_result code = *this ? destroy_any() : static_cast<gmm_result>(GMM_OK);
    return detail::give<void>(code);
  }

 private:
  static outcome<tag> create_of(context_ref context, const char *name, const gmm_tag_desc *desc) {
    gmm_tag known = 0, made = 0;
    const bool was_known = gmm_tag_find(context.get(), name, &known) >= 0;
    const gmm_result code = gmm_tag_create(context.get(), name, desc, &made);
    // A tag that another thread destroyed in between has another number: numbers are not used again.
    return detail::give<tag>(code, owned_tag_ref(tag_ref(context, made), !was_known || known != made));
  }
};

/* --- Snapshots, traces, deferral ---------------------------------------------------------------------------- */

/** A copy of what lies in the heaps of a context. */
class snapshot_ref {
 public:
  constexpr snapshot_ref() noexcept = default;
  explicit snapshot_ref(gmm_snapshot *snapshot) noexcept : snapshot_(snapshot) {}
  [[nodiscard]] explicit operator bool() const noexcept { return snapshot_ != nullptr; }
  [[nodiscard]] gmm_snapshot *get() const noexcept { return snapshot_; }

  /** C: gmm_snapshot_query(). */
  [[nodiscard]] outcome<gmm_snapshot_info> query() const {
    return detail::ask<gmm_snapshot_info>(
        [this](gmm_snapshot_info *out) { return gmm_snapshot_query(snapshot_, out); });
  }
  /** C: gmm_snapshot_query_block(). */
  [[nodiscard]] outcome<gmm_block_info> query_block(uint64_t index) const {
    return detail::ask<gmm_block_info>(
        [this, index](gmm_block_info *out) { return gmm_snapshot_query_block(snapshot_, index, out); });
  }
  /** C: gmm_snapshot_query_extent(). */
  [[nodiscard]] outcome<gmm_extent_info> query_extent(uint64_t index) const {
    return detail::ask<gmm_extent_info>(
        [this, index](gmm_extent_info *out) { return gmm_snapshot_query_extent(snapshot_, index, out); });
  }
  /**
   * Writes the snapshot as JSON: `fn(std::string_view)` gets the text piece by piece, and returns true to continue.
   *
   * What `fn` throws ends the call, and the caller gets it.
   *
   * C: gmm_snapshot_write().
   */
  template <class Function>
  outcome<void> write(Function &&fn) const {
    detail::text_writer<std::remove_reference_t<Function>> to{&fn};
    const gmm_result code = gmm_snapshot_write(snapshot_, to.piece, &to);
#if GMM_HPP_EXCEPTIONS
    if (to.thrown != nullptr) std::rethrow_exception(to.thrown);
#endif
    return detail::give<void>(code);
  }

 protected:
  gmm_result end() noexcept { return gmm_snapshot_destroy(snapshot_); }
  friend class unique<snapshot_ref>;

 private:
  gmm_snapshot *snapshot_ = nullptr;
};

/** Owns a snapshot, which keeps its context alive. */
class snapshot : public unique<snapshot_ref> {
 public:
  using unique::unique;
  /** C: gmm_snapshot_create(). */
  [[nodiscard]] static outcome<snapshot> create(context_ref context, const scope &of = {}) {
    gmm_snapshot *made = nullptr;
    const gmm_result code = gmm_snapshot_create(context.get(), of.get(), &made);
    return detail::give<snapshot>(code, snapshot_ref(made));
  }
  /** C: gmm_snapshot_destroy(). */
  outcome<void> destroy() { return finish(); }
};

/** What a gmm::watcher owns: the watch, and the function that it calls. */
class watcher_ref {
 public:
  /** Frees the function. */
  using end_fn = void (*)(void *function) noexcept;
  constexpr watcher_ref() noexcept = default;
  explicit watcher_ref(gmm_watcher *watcher, void *function = nullptr, end_fn end_function = nullptr) noexcept
      : watcher_(watcher), function_(function), end_function_(end_function) {}
  [[nodiscard]] explicit operator bool() const noexcept { return watcher_ != nullptr; }
  [[nodiscard]] gmm_watcher *get() const noexcept { return watcher_; }

 protected:
  gmm_result end() noexcept {
    const gmm_result code = gmm_watcher_destroy(watcher_);
    if (code >= 0 && end_function_ != nullptr) end_function_(function_);
    return code;
  }
  friend class unique<watcher_ref>;

 private:
  gmm_watcher *watcher_ = nullptr;
  void *function_ = nullptr;
  end_fn end_function_ = nullptr;
};

/**
 * Watches memory or a budget until the end of the object, which waits for the function if it runs.
 *
 *     gmm::watch_desc desc;
 *     desc.events = GMM_WATCH_LOSING | GMM_WATCH_RESTORED;
 *     desc.tag = weights;
 *     gmm::watcher watch = gmm::watcher::create(context, desc, [&](const gmm_watch_info &info) {
 *       info.event == GMM_WATCH_LOSING ? cache.forget(info.tag) : cache.renew(info.tag);
 *       return 0;
 *     });
 *
 * The object must end before its context.
 */
class watcher : public unique<watcher_ref> {
 public:
  using unique::unique;
  /** Calls desc.callback. C: gmm_watch(). */
  [[nodiscard]] static outcome<watcher> create(context_ref context, const watch_desc &desc) {
    const gmm_watch_desc c = desc.c();
    gmm_watcher *made = nullptr;
    const gmm_result code = gmm_watch(context.get(), &c, &made);
    return detail::give<watcher>(code, watcher_ref(made));
  }
  /**
   * Calls a copy of `function`, which takes a gmm_watch_info and returns the answer. It lies in memory of malloc().
   *
   * C: gmm_watch().
   */
  template <class Function>
  [[nodiscard]] static outcome<watcher> create(context_ref context, watch_desc desc, Function function) {
    static_assert(std::is_nothrow_move_constructible_v<Function>, "the function is moved into memory of its own");
    static_assert(alignof(Function) <= alignof(std::max_align_t), "malloc() aligns the function");
    void *place = std::malloc(sizeof(Function));
    if (place == nullptr)
      return failed(error(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the function of a watcher."));
    desc.callback.user = ::new (place) Function(std::move(function));
    desc.callback.fn = [](void *user, const gmm_watch_info *info) -> int32_t {
      return static_cast<int32_t>((*static_cast<Function *>(user))(*info));
    };
    const watcher_ref::end_fn end_function = [](void *held) noexcept {
      static_cast<Function *>(held)->~Function();
      std::free(held);
    };
    const gmm_watch_desc c = desc.c();
    gmm_watcher *made = nullptr;
    const gmm_result code = gmm_watch(context.get(), &c, &made);
    if (code < 0) end_function(desc.callback.user);
    return detail::give<watcher>(code, watcher_ref(made, desc.callback.user, end_function));
  }
  /** C: gmm_watcher_destroy(). */
  outcome<void> destroy() { return finish(); }

 private:
  static outcome<watcher> failed(error failure) {
#if GMM_HPP_EXCEPTIONS
    detail::raise(std::move(failure));
#else
    return failure;
#endif
  }
};

/** A process's turns with memory that others use, too. */
class lease_ref {
 public:
  constexpr lease_ref() noexcept = default;
  explicit lease_ref(gmm_lease *lease) noexcept : lease_(lease) {}
  [[nodiscard]] explicit operator bool() const noexcept { return lease_ != nullptr; }
  [[nodiscard]] gmm_lease *get() const noexcept { return lease_; }

  /** Offers a tag; ::GMM_LEASE_WITHDRAW ends the offer. C: gmm_lease_offer(). */
  outcome<void> offer(gmm_tag tag, uint32_t cost = 0) const {
    const gmm_result code = gmm_lease_offer(lease_, tag, cost);
    return detail::give<void>(code);
  }
  /** Waits for the turn, and resumes the offered tags. C: gmm_lease_request(). */
  outcome<void> request(const lease_request_desc &desc = {}) const {
    const gmm_lease_request_desc c = desc.c();
    const gmm_result code = gmm_lease_request(lease_, &c, nullptr);
    return detail::give<void>(code);
  }
  /** The same in the background. The ticket ends before the lease. C: gmm_lease_request(). */
  [[nodiscard]] outcome<ticket> request_async(const lease_request_desc &desc = {}) const {
    const gmm_lease_request_desc c = desc.c();
    gmm_ticket *made = nullptr;
    const gmm_result code = gmm_lease_request(lease_, &c, &made);
    return detail::give<ticket>(code, ticket_ref(made));
  }
  /** Ends the turn. False: the lease was not in use. C: gmm_lease_return(). */
  outcome<bool> give_back() const {
    const gmm_result code = gmm_lease_return(lease_);
    return detail::give<bool>(code, code == GMM_OK);
  }
  /** C: gmm_lease_query(). */
  [[nodiscard]] outcome<gmm_lease_info> query() const {
    return detail::ask<gmm_lease_info>([this](gmm_lease_info *out) { return gmm_lease_query(lease_, out); });
  }

 protected:
  gmm_result end() noexcept { return gmm_lease_destroy(lease_); }
  friend class unique<lease_ref>;

 private:
  gmm_lease *lease_ = nullptr;
};

/** Owns a lease, which keeps its context alive. */
class lease : public unique<lease_ref> {
 public:
  using unique::unique;
  /** C: gmm_lease_create(). */
  [[nodiscard]] static outcome<lease> create(context_ref context, const lease_desc &desc) {
    const gmm_lease_desc c = desc.c();
    gmm_lease *made = nullptr;
    const gmm_result code = gmm_lease_create(context.get(), &c, &made);
    return detail::give<lease>(code, lease_ref(made));
  }
  /** C: gmm_lease_destroy(). */
  outcome<void> destroy() { return finish(); }

  /** The index-th lease of the machine, by device; `name` is empty where there is none. C: gmm_lease_list(). */
  [[nodiscard]] static outcome<gmm_lease_entry_info> list(context_ref context, uint64_t index, uint64_t timeout_ms) {
    return detail::ask<gmm_lease_entry_info>(
        [=](gmm_lease_entry_info *out) { return gmm_lease_list(context.get(), index, timeout_ms, out); });
  }
};

/** What a gmm::trace owns. */
class trace_ref {
 public:
  constexpr trace_ref() noexcept = default;
  explicit trace_ref(gmm_context *context) noexcept : context_(context) {}
  [[nodiscard]] explicit operator bool() const noexcept { return context_ != nullptr; }

 protected:
  /** The trace is over, whatever the result says of its file. A later trace is another's. Only FORKED ends nothing. */
  gmm_result end() noexcept {
    const gmm_result code = gmm_trace_end(context_);
    if (code != GMM_ERROR_FORKED) context_ = nullptr;
    return code;
  }
  friend class unique<trace_ref>;

 private:
  gmm_context *context_ = nullptr;
};

/**
 * The context's operations are recorded in a file until the end of the object.
 *
 * end() tells what the file lacks. The trace has ended then too, so the object is empty after each result but FORKED.
 */
class trace : public unique<trace_ref> {
 public:
  using unique::unique;
  /** C: gmm_trace_begin(). */
  [[nodiscard]] static outcome<trace> begin(context_ref context, const char *path) {
    const gmm_result code = gmm_trace_begin(context.get(), path);
    return detail::give<trace>(code, trace_ref(context.get()));
  }
  /** C: gmm_trace_end(). */
  outcome<void> end() { return finish(); }
};

/** What a gmm::defer owns. */
class defer_ref {
 public:
  constexpr defer_ref() noexcept = default;
  explicit defer_ref(gmm_context *context) noexcept : context_(context) {}
  [[nodiscard]] explicit operator bool() const noexcept { return context_ != nullptr; }

 protected:
  gmm_result end() noexcept { return gmm_defer_end(context_); }
  friend class unique<defer_ref>;

 private:
  gmm_context *context_ = nullptr;
};

/** Trims are put off until the end of the object. */
class defer : public unique<defer_ref> {
 public:
  using unique::unique;
  /** C: gmm_defer_begin(). */
  [[nodiscard]] static outcome<defer> begin(context_ref context) {
    const gmm_result code = gmm_defer_begin(context.get());
    return detail::give<defer>(code, defer_ref(context.get()));
  }
  /** C: gmm_defer_end(). */
  outcome<void> end() { return finish(); }
};

/* --- Containers -------------------------------------------------------------------------------------------- */

/** The kinds of memory that the CPU reads and writes. */
enum class cpu_kind : gmm_kind { host = GMM_KIND_HOST, managed = GMM_KIND_MANAGED };

/**
 * A heap of a kind that the CPU reads and writes, for containers.
 *
 * Containers have a heap of their own, because a block that is freed on a stream may come back while the stream's work
 * still uses it. Work on the same stream may do that; the CPU must not. So of a heap for containers each block is freed
 * after the work that uses it: wait for the copies and kernels that use a container before it ends or grows.
 */
class cpu_heap_ref : public heap_ref {
 public:
  constexpr cpu_heap_ref() noexcept = default;
  /** Takes a heap of kind HOST or MANAGED. Errors: INVALID_KIND (the heap is of another kind). */
  [[nodiscard]] static outcome<cpu_heap_ref> of(heap_ref heap) {
    if (heap.kind() != GMM_KIND_HOST && heap.kind() != GMM_KIND_MANAGED) {
      gmm::error failure(GMM_ERROR_INVALID_KIND,
                         "gmm::cpu_heap_ref::of: the CPU cannot read and write memory of this heap's kind: "
                         "create the heap with GMM_KIND_HOST or GMM_KIND_MANAGED");
#if GMM_HPP_EXCEPTIONS
      detail::raise(std::move(failure));
#else
      return failure;
#endif
    }
    return cpu_heap_ref(heap);
  }

 protected:
  friend class unique<cpu_heap_ref>;
  friend class cpu_heap;

 private:
  explicit cpu_heap_ref(heap_ref heap) noexcept : heap_ref(heap) {}
};

/** Owns a heap for containers, which end before it. */
class cpu_heap : public unique<cpu_heap_ref> {
 public:
  using unique::unique;
  /** `desc.kind` is set to `kind`. C: gmm_heap_create(). */
  [[nodiscard]] static outcome<cpu_heap> create(context_ref context, cpu_kind kind = cpu_kind::host,
                                                heap_desc desc = {}) {
    desc.kind = static_cast<gmm_kind>(kind);
    const gmm_heap_desc c = desc.c();
    gmm_heap *made = nullptr;
    const gmm_result code = gmm_heap_create(context.get(), &c, &made);
    return detail::give<cpu_heap>(code, cpu_heap_ref(heap_ref(context, made, desc.kind)));
  }
  /** C: gmm_heap_destroy(). */
  outcome<void> destroy() { return finish(); }
};

namespace detail {

/** Memory for a container, which gets an error in no other way than by an exception. */
[[nodiscard]] inline void *take(cpu_heap_ref heap, std::size_t size, std::size_t alignment) {
  void *memory = nullptr;
  const gmm_result code =
      gmm_heap_alloc(heap.get(), size != 0 ? size : 1, alignment > 256 ? alignment : 0, 0, nullptr, &memory);
  if (code < 0) raise_to_container(error::last(code));
  return memory;
}

inline void give_back(cpu_heap_ref heap, void *memory) noexcept {
  const gmm_result code = gmm_free(heap.context().get(), memory, nullptr);
  if (code < 0) GMM_HPP_UNHEARD(code);
}

}  // namespace detail

#if GMM_HPP_PMR
/**
 * Memory of a heap for the containers of std::pmr.
 *
 * allocate() throws gmm::bad_alloc for want of memory or of a limit, and gmm::bad_array_new_length for a size beyond
 * any memory. Each is a std::bad_alloc. Any other failure is a gmm::exception. Without exceptions a failure ends the
 * program by GMM_HPP_FATAL(), as std::pmr knows no other way. Alignments are powers of two up to 2 MiB. Two resources
 * are equal if they are one.
 */
class memory_resource : public std::pmr::memory_resource {
 public:
  /** The heap must outlive the resource, and the resource its containers. */
  explicit memory_resource(cpu_heap_ref heap) noexcept : heap_(heap) {}
  [[nodiscard]] cpu_heap_ref heap() const noexcept { return heap_; }

 private:
  void *do_allocate(std::size_t bytes, std::size_t alignment) override { return detail::take(heap_, bytes, alignment); }
  void do_deallocate(void *memory, std::size_t, std::size_t) override { detail::give_back(heap_, memory); }
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
    return this == &other;
  }

  cpu_heap_ref heap_;
};
#endif

/**
 * An allocator for the containers of std: `std::vector<float, gmm::allocator<float>> values(n, heap)`.
 *
 * It fails as gmm::memory_resource does. Two allocators are equal if they have one heap. The allocator goes with the
 * memory when a container is moved, swapped or assigned.
 */
template <class T>
class allocator {
 public:
  using value_type = T;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::false_type;

  /** The heap must outlive the containers. */
  allocator(cpu_heap_ref heap) noexcept : heap_(heap) {}
  template <class U>
  allocator(const allocator<U> &other) noexcept : heap_(other.heap()) {}

  [[nodiscard]] T *allocate(std::size_t count) {
    if (count > SIZE_MAX / sizeof(T))
      detail::raise_to_container(
          error(GMM_ERROR_SIZE_OVERFLOW, "gmm::allocator: the size is beyond any memory: ask for fewer objects"));
    return static_cast<T *>(detail::take(heap_, count * sizeof(T), alignof(T)));
  }
  void deallocate(T *memory, std::size_t) noexcept { detail::give_back(heap_, memory); }
  [[nodiscard]] cpu_heap_ref heap() const noexcept { return heap_; }

 private:
  cpu_heap_ref heap_;
};

template <class T, class U>
[[nodiscard]] bool operator==(const allocator<T> &a, const allocator<U> &b) noexcept {
  return a.heap() == b.heap();
}
template <class T, class U>
[[nodiscard]] bool operator!=(const allocator<T> &a, const allocator<U> &b) noexcept {
  return a.heap() != b.heap();
}

}  // namespace GMM_HPP_POLICY
}  // namespace gmm

#endif
