/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gmm.hpp
 * The interface in C++17: objects that clean up after themselves, over the C functions of gmm.h.
 *
 *     gmm::context context = gmm::context::create();
 *     gmm::tag_desc kept;
 *     kept.contents = GMM_CONTENTS_HOST;
 *     gmm::tag weights = gmm::tag::create(context, "weights", kept);
 *     gmm::alloc_desc desc;
 *     desc.kind = GMM_KIND_VMM;
 *     desc.tag = weights;
 *     gmm::buffer buffer = context.alloc(1 << 20, desc);
 *     context.fill(buffer.data(), 7, buffer.size());
 *     weights.pause();
 *
 * Names. `gmm_<noun>_<verb>()` is the function `<verb>` of the class `gmm::<noun>`, and `gmm_<verb>()` is a function
 * of gmm::context. A comment names the exceptions: words that C++ reserves, and functions that have no noun of their
 * own. Flags, kinds, infos and descriptors are those of C: GMM_KIND_VMM, gmm_pointer_info, gmm_tag_desc.
 * gmm::tag_desc is a gmm_tag_desc whose fields are 0. Functions take either and set struct_size, so that in C++20
 * braces will do: `gmm::tag::create(context, "weights", {.contents = GMM_CONTENTS_HOST})`.
 *
 * Comments. The body of a function names the C function that it calls. The comment of that one has the units, results,
 * errors, order with streams, and threads; a comment here has only the differences. All of these are since 1.0.
 *
 * Cost. Every function is inline and makes one C call. gmm::tag::create() makes two. An object is as large as the
 * arguments of its end. It allocates nothing, except the function of a gmm::watcher.
 *
 * Ownership.
 *  - gmm::heap, gmm::stream, gmm::event, gmm::tag, gmm::ticket, gmm::snapshot, gmm::watcher, gmm::lease, gmm::context
 *    and gmm::buffer own the object that they name, and so do the scopes: gmm::tag_scope, gmm::pinned, gmm::imported,
 *    gmm::trace, gmm::defer. They move and do not copy. An owner that was moved from, detached or made by default is
 *    empty, and `if (object)` is false.
 *  - gmm::heap_ref, gmm::context_ref and so on own nothing and copy like pointers. Functions take these, and an owner
 *    converts to its reference. A reference or a buffer keeps nothing alive: a context must outlive the objects that
 *    come from it, as a container outlives its iterators. Tickets and snapshots do keep their context.
 *  - A destructor cannot report a failure, for example that a heap still has live blocks. The named end of a class
 *    can: buffer.free(), heap.destroy(). After a failure the object still owns, with two exceptions, gmm::trace::end()
 *    and gmm::tag::destroy(). The named end of an empty object does nothing. detach() gives the ownership up, and
 *    `object = {}` does the work of the destructor.
 *
 * Errors. There are two policies, and GMM_HPP_EXCEPTIONS chooses before the first include. Its default is 1 where the
 * compiler has exceptions, else 0.
 *  - 1: a function that returns `outcome<T>` returns T. A failure throws gmm::bad_alloc, which is a std::bad_alloc, for
 *    OUT_OF_MEMORY, OUT_OF_HOST_MEMORY and LIMIT_EXCEEDED. It throws gmm::exception, which is a std::exception, for all
 *    other results. A container's allocation throws gmm::bad_array_new_length, which is a std::bad_alloc too, for
 *    SIZE_OVERFLOW. Each of the three is a gmm::error.
 *  - 0: it returns gmm::result<T>, which holds T or a gmm::error, as std::expected<T, gmm::error> does.
 * A gmm::error has the code, the message and the driver's number of the failed call. A result that is not ready yet is
 * not an error here: a wait with a time returns false, and a try form returns an empty buffer or false. GMM_UNCHANGED
 * is not an error either: the bytes of the outcome are 0.
 *
 * Files of both policies may be linked into one program. Their types differ by an inline namespace, so the linker does
 * not take one for the other.
 *
 * Threads. An object is like a pointer: two threads may use one through references, as C allows, and only one thread
 * may assign or end it. gmm::tag_scope belongs to its thread.
 *
 * Callbacks of the program run inside the library, so they must not throw. snapshot_ref::write() is the exception.
 *
 * A program may define these macros before the first include:
 *
 * | macro | default | meaning |
 * | --- | --- | --- |
 * | GMM_HPP_EXCEPTIONS | 1 with exceptions | see above |
 * | GMM_HPP_PMR | 1 with `<memory_resource>` | gmm::memory_resource is there |
 * | GMM_HPP_UNHEARD(code) | nothing | takes the failure of a destructor, a gmm_result |
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
  /** The failure of the calling thread's last call. */
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
  [[nodiscard]] const char *message() const noexcept { return message_ != nullptr ? message_ : text(); }
  [[nodiscard]] int32_t native_code() const noexcept { return native_; }
  [[nodiscard]] const char *name() const noexcept { return gmm_result_name(code_); }
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
/** A gmm::error that is thrown as an exception of std. */
template <class Standard>
class thrown : public Standard, public error {
 public:
  explicit thrown(error failure) noexcept : error(std::move(failure)) {}
  [[nodiscard]] const char *what() const noexcept override { return message(); }
};
/** A failure for want of memory or of a limit, as containers expect it. */
using bad_alloc = thrown<std::bad_alloc>;
/** A container asks for more bytes than any memory has. It is a std::bad_array_new_length, and so a std::bad_alloc. */
using bad_array_new_length = thrown<std::bad_array_new_length>;
/** Any other failure. `catch (const gmm::error &)` takes all of them. */
using exception = thrown<std::exception>;
#endif

namespace detail {

/** Throws, or ends the program where exceptions are off. */
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

/** Throws a std::bad_alloc for a size beyond any memory, as a container expects it. */
[[noreturn, gnu::cold, gnu::noinline]] inline void raise_to_container(error failure) {
#if GMM_HPP_EXCEPTIONS
  if (failure.code() == GMM_ERROR_SIZE_OVERFLOW) throw bad_array_new_length(std::move(failure));
#endif
  raise(std::move(failure));
}

/** The error of a result. */
class failable {
 public:
  using error_type = gmm::error;

  [[nodiscard]] bool has_value() const noexcept { return error_.code() >= 0; }
  [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }
  [[nodiscard]] const gmm::error &error() const noexcept { return error_; }

 protected:
  failable() noexcept = default;
  failable(gmm::error failure) noexcept : error_(std::move(failure)) {}
  void need_value() const {
    if (!has_value()) raise(error_);
  }

 private:
  gmm::error error_;
};

}  // namespace detail

/**
 * A T, or the error of the call: the std::expected<T, gmm::error> of C++23. It moves and does not copy.
 *
 * value() of an error throws it. Without exceptions it ends the program by GMM_HPP_FATAL(). operator* does not look.
 */
template <class T>
class [[nodiscard]] result : public detail::failable {
 public:
  using value_type = T;

  template <class U = T,
            class = std::enable_if_t<std::is_constructible_v<T, U> && !std::is_same_v<std::decay_t<U>, result> &&
                                     !std::is_same_v<std::decay_t<U>, gmm::error>>>
  result(U &&value) noexcept(std::is_nothrow_constructible_v<T, U>) : value_(std::forward<U>(value)) {}
  /** The error's code must be below 0. */
  result(gmm::error failure) noexcept : failable(std::move(failure)) {}
  result(result &&other) = default;
  result &operator=(result &&other) = default;

  [[nodiscard]] T &operator*() &noexcept { return *value_; }
  [[nodiscard]] const T &operator*() const &noexcept { return *value_; }
  [[nodiscard]] T &&operator*() &&noexcept { return *std::move(value_); }
  [[nodiscard]] T *operator->() noexcept { return &*value_; }
  [[nodiscard]] const T *operator->() const noexcept { return &*value_; }

  T &value() & { return need_value(), *value_; }
  const T &value() const & { return need_value(), *value_; }
  T &&value() && { return need_value(), *std::move(value_); }
  template <class U>
  [[nodiscard]] T value_or(U &&other) const & {
    return value_.value_or(std::forward<U>(other));
  }
  template <class U>
  [[nodiscard]] T value_or(U &&other) && {
    return std::move(value_).value_or(std::forward<U>(other));
  }

 private:
  std::optional<T> value_;
};

/** Success, or the error of the call. */
template <>
class [[nodiscard]] result<void> : public detail::failable {
 public:
  using value_type = void;

  result() noexcept = default;
  /** The error's code must be below 0. */
  result(gmm::error failure) noexcept : failable(std::move(failure)) {}
  void value() const { need_value(); }
};

#if GMM_HPP_EXCEPTIONS
/** The return type of a function that can fail: T, as failures are thrown. */
template <class T>
using outcome = T;
#else
/** The return type of a function that can fail: a result<T>, as nothing is thrown. */
template <class T>
using outcome = result<T>;
#endif

namespace detail {

/** The outcome that is a failure. */
template <class T>
outcome<T> fail(error failure) {
#if GMM_HPP_EXCEPTIONS
  raise(std::move(failure));
#else
  return failure;
#endif
}

/** The outcome of a C call: T made of `arguments`, or the thread's error. */
template <class T, class... Arguments>
outcome<T> give(gmm_result code, Arguments &&...arguments) {
  if (code < 0) return fail<T>(error::last(code));
  if constexpr (std::is_void_v<T>)
    return outcome<T>();
  else
    return T(std::forward<Arguments>(arguments)...);
}

/** The outcome of a C call that waits, for which NOT_READY is no error. */
inline outcome<bool> give_ready(gmm_result code) {
  if (code == GMM_ERROR_NOT_READY) return false;
  return give<bool>(code, true);
}

template <class T, class = void>
struct has_struct_size : std::false_type {};
template <class T>
struct has_struct_size<T, std::void_t<decltype(T::struct_size)>> : std::true_type {};

/** A descriptor with its size, which C takes by its address. */
template <class Desc>
class sized {
 public:
  explicit sized(const Desc &fields) noexcept : fields_(fields) { fields_.struct_size = sizeof(Desc); }
  operator const Desc *() const noexcept { return &fields_; }

 private:
  Desc fields_;
};

/** An argument for C: a descriptor with its size, anything else as it is. */
template <class T>
auto pass(const T &argument) noexcept {
  if constexpr (has_struct_size<T>::value)
    return sized<T>(argument);
  else
    return argument;
}

/** Calls a C function whose last parameter is an output of type T, and gives that. Without an output, T is void. */
template <class T, class Function, class... Arguments>
outcome<T> call(Function *function, const Arguments &...arguments) {
  if constexpr (std::is_void_v<T>) {
    return give<T>(function(pass(arguments)...));
  } else {
    T out{};
    if constexpr (has_struct_size<T>::value) out.struct_size = sizeof out;
    const gmm_result code = function(pass(arguments)..., &out);
    return give<T>(code, out);
  }
}

/** Calls a C function whose last parameter is the object that it makes, and gives its owner. */
template <class Owner, class Function, class... Arguments>
outcome<Owner> make(Function *function, const Arguments &...arguments) {
  typename Owner::named_type made{};
  const gmm_result code = function(pass(arguments)..., &made);
  return give<Owner>(code, typename Owner::ref_type(made));
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

/** Calls call(gmm_write_fn, user), which hands the text to `fn`. */
template <class Function, class Call>
outcome<void> write_text(Function &fn, Call call) {
  text_writer<Function> to{&fn};
  const gmm_result code = call(to.piece, &to);
#if GMM_HPP_EXCEPTIONS
  if (to.thrown != nullptr) std::rethrow_exception(to.thrown);
#endif
  return give<void>(code);
}

}  // namespace detail

/* --- Small types ------------------------------------------------------------------------------------------- */

/** The version of the loaded library, which may be newer than this header. */
[[nodiscard]] inline uint32_t version() noexcept { return gmm_version(); }
[[nodiscard]] inline const char *version_string() noexcept { return gmm_version_string(); }

/** A device by its ordinal, from 0, or the host as a location. A plain number does not convert to it. */
class device_id {
 public:
  constexpr device_id() noexcept = default;
  constexpr explicit device_id(gmm_device ordinal) noexcept : ordinal_(ordinal) {}
  [[nodiscard]] static constexpr device_id host() noexcept { return device_id(-1); }
  [[nodiscard]] constexpr gmm_device get() const noexcept { return ordinal_; }
  /** The field of a descriptor. */
  constexpr operator gmm_device() const noexcept { return ordinal_; }
  [[nodiscard]] friend constexpr bool operator==(device_id a, device_id b) noexcept { return a.get() == b.get(); }
  [[nodiscard]] friend constexpr bool operator!=(device_id a, device_id b) noexcept { return a.get() != b.get(); }

 private:
  gmm_device ordinal_ = 0;
};

/**
 * A time in whole milliseconds, which any std::chrono duration converts to.
 *
 * A part of a millisecond counts as one, a negative time as 0, and a time beyond the range as forever.
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
  /** The field of a descriptor. */
  constexpr operator uint64_t() const noexcept { return count_; }

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

/** The part of a context that a limit or a count concerns: `gmm::scope().tag(weights).kind(GMM_KIND_VMM)`. */
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

namespace detail {

/** A descriptor of C whose fields are 0. */
template <class Desc>
struct zeroed : Desc {
  constexpr zeroed() noexcept : Desc{} {}
};

}  // namespace detail

using context_desc = detail::zeroed<gmm_context_desc>;
using alloc_desc = detail::zeroed<gmm_alloc_desc>;
using heap_desc = detail::zeroed<gmm_heap_desc>;
using trace_desc = detail::zeroed<gmm_trace_desc>;
using compact_desc = detail::zeroed<gmm_compact_desc>;
using stream_desc = detail::zeroed<gmm_stream_desc>;
using event_desc = detail::zeroed<gmm_event_desc>;
using semaphore_desc = detail::zeroed<gmm_semaphore_desc>;
using watch_desc = detail::zeroed<gmm_watch_desc>;
using lease_desc = detail::zeroed<gmm_lease_desc>;
using lease_request_desc = detail::zeroed<gmm_lease_request_desc>;
using pin_desc = detail::zeroed<gmm_pin_desc>;
using move_desc = detail::zeroed<gmm_move_desc>;
using tag_desc = detail::zeroed<gmm_tag_desc>;
using pause_desc = detail::zeroed<gmm_pause_desc>;
using backup_desc = detail::zeroed<gmm_backup_desc>;
using ipc_desc = detail::zeroed<gmm_ipc_desc>;
using ipc_import_desc = detail::zeroed<gmm_ipc_import_desc>;
using ipc_fd_desc = detail::zeroed<gmm_ipc_fd_desc>;
using publish_desc = detail::zeroed<gmm_publish_desc>;
using attach_desc = detail::zeroed<gmm_attach_desc>;

/* --- Owners ------------------------------------------------------------------------------------------------ */

template <class Ref>
class unique;

/** A pointer to an object of C that somebody else owns, and the C function that ends the object. */
template <class T, gmm_result (*End)(T *)>
class object_handle {
 public:
  using named_type = T *;
  constexpr object_handle() noexcept = default;
  constexpr explicit object_handle(T *named) noexcept : named_(named) {}
  [[nodiscard]] explicit operator bool() const noexcept { return named_ != nullptr; }
  [[nodiscard]] T *get() const noexcept { return named_; }
  [[nodiscard]] friend bool operator==(object_handle a, object_handle b) noexcept { return a.get() == b.get(); }
  [[nodiscard]] friend bool operator!=(object_handle a, object_handle b) noexcept { return a.get() != b.get(); }

 protected:
  gmm_result end() noexcept { return End(named_); }
  template <class>
  friend class unique;

 private:
  T *named_ = nullptr;
};

/** A value that names an object within a context, and the C function that ends the object. */
template <class T, gmm_result (*End)(gmm_context *, T)>
class context_handle {
 public:
  constexpr context_handle() noexcept = default;
  constexpr context_handle(gmm_context *context, T named) noexcept : context_(context), named_(named) {}
  [[nodiscard]] explicit operator bool() const noexcept { return context_ != nullptr; }

 protected:
  gmm_result end() noexcept { return End(context_, named_); }
  template <class>
  friend class unique;

  gmm_context *context_ = nullptr;
  T named_ = {};
};

/**
 * Owns the object of a reference, and ends it in the destructor.
 *
 * A destructor that fails tries once more, as a driver may refuse one call, and gives a second failure to
 * GMM_HPP_UNHEARD(). An end() that fails and leaves nothing to end empties its reference: then nothing is tried again.
 */
template <class Ref>
class unique : public Ref {
 public:
  using ref_type = Ref;
  constexpr unique() noexcept = default;
  /** Takes over the object of a reference. */
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

  /** Gives the ownership up: the caller ends the object. */
  Ref detach() noexcept { return std::exchange(named(), Ref()); }
  /** Ends the object. After a failure it is still owned, unless end() emptied the reference. */
  outcome<void> destroy() {
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

/** The block of a gmm::buffer. */
class block_ref {
 public:
  constexpr block_ref() noexcept = default;
  constexpr block_ref(gmm_context *context, void *memory, uint64_t size, gmm_stream stream) noexcept
      : context_(context), memory_(memory), size_(size), stream_(stream) {}
  [[nodiscard]] explicit operator bool() const noexcept { return memory_ != nullptr; }
  [[nodiscard]] void *data() const noexcept { return memory_; }
  /** The requested size in bytes. */
  [[nodiscard]] uint64_t size() const noexcept { return size_; }
  [[nodiscard]] gmm_context *context() const noexcept { return context_; }
  /** The stream on which the block will be freed: at first that of its allocation. */
  [[nodiscard]] gmm_stream stream() const noexcept { return stream_; }
  void set_stream(gmm_stream stream) noexcept { stream_ = stream; }
  /** The block as objects of a type; a part of an object at the end is left out. */
  template <class T = std::byte>
  [[nodiscard]] gmm::span<T> as() const noexcept {
    return gmm::span<T>(static_cast<T *>(memory_), size_ / sizeof(T));
  }

 protected:
  gmm_result end() noexcept { return gmm_free(context_, memory_, stream_); }
  friend class unique<block_ref>;

 private:
  gmm_context *context_ = nullptr;
  void *memory_ = nullptr;
  uint64_t size_ = 0;
  gmm_stream stream_ = nullptr;
};

/**
 * Owns a block, and frees it on a stream at its end.
 *
 * Memory of kind HOST and MANAGED can be read and written by the CPU, that of other kinds by devices only. data() and
 * as() give the address in either case.
 */
class buffer : public unique<block_ref> {
 public:
  constexpr buffer() noexcept = default;
  /** Takes over a block of a context. */
  buffer(gmm_context *context, void *memory, uint64_t size, gmm_stream stream = nullptr) noexcept
      : unique(block_ref(context, memory, size, stream)) {}

  outcome<void> free() { return destroy(); }
  /** Frees the block in the order of a stream. */
  outcome<void> free(gmm_stream stream) {
    set_stream(stream);
    return destroy();
  }
  /** Frees the block if the thread's cache takes it, and returns whether it did. */
  [[nodiscard]] bool try_free() noexcept {
    if (*this && gmm_try_free(context(), data(), stream()) < 0) return false;
    detach();
    return true;
  }
  /** Gives the block up: the caller frees it. */
  void *detach() noexcept { return unique::detach().data(); }
};

/** The memory of a gmm::pinned. */
class pinned_ref : public context_handle<void *, gmm_unpin> {
 public:
  constexpr pinned_ref() noexcept = default;
  pinned_ref(gmm_context *context, void *memory, void *device_pointer) noexcept
      : context_handle(context, memory), device_pointer_(device_pointer) {}
  [[nodiscard]] void *data() const noexcept { return named_; }
  [[nodiscard]] void *device_pointer() const noexcept { return device_pointer_; }

 private:
  void *device_pointer_ = nullptr;
};

/** The program's own memory, page-locked until the end of the object. context_ref::pin() makes one. */
class pinned : public unique<pinned_ref> {
 public:
  using unique::unique;
  outcome<void> unpin() { return destroy(); }
};

/** The memory of a gmm::imported. */
class imported_ref : public context_handle<void *, gmm_ipc_close> {
 public:
  using context_handle::context_handle;
  /** The address for which the handle was made, or the start of a descriptor's allocation. */
  [[nodiscard]] void *data() const noexcept { return named_; }
};

/** Another process's memory, until the end of the object. context_ref::ipc_import(), _fd() and attach() make one. */
class imported : public unique<imported_ref> {
 public:
  using unique::unique;
  outcome<void> close() { return destroy(); }
};

/** A pause or resume in the background. */
class ticket_ref : public object_handle<gmm_ticket, gmm_ticket_destroy> {
 public:
  using object_handle::object_handle;
  [[nodiscard]] outcome<gmm_ticket_info> query() const {
    return detail::call<gmm_ticket_info>(gmm_ticket_query, get());
  }
  outcome<uint64_t> wait() const { return detail::call<uint64_t>(gmm_ticket_wait, get(), UINT64_MAX); }
  /** Waits for the end, and returns the bytes, or nothing if the time passes first. */
  [[nodiscard]] outcome<std::optional<uint64_t>> wait_for(milliseconds timeout) const {
    uint64_t bytes = 0;
    const gmm_result code = gmm_ticket_wait(get(), timeout.count(), &bytes);
    gmm_ticket_info info = {};
    info.struct_size = sizeof info;
    // A request of a lease may itself end with NOT_READY.
    if (code == GMM_ERROR_NOT_READY && gmm_ticket_query(get(), &info) == GMM_OK && info.state != GMM_TICKET_DONE)
      return std::optional<uint64_t>();
    return detail::give<std::optional<uint64_t>>(code, bytes);
  }
  outcome<void> wait_held() const { return detail::call<void>(gmm_ticket_wait_held, get(), UINT64_MAX); }
  outcome<void> commit() const { return detail::call<void>(gmm_ticket_commit, get()); }
  outcome<void> cancel() const { return detail::call<void>(gmm_ticket_cancel, get()); }
};

/**
 * Owns a pause or resume in the background, and waits for it at its end. It keeps its context alive.
 *
 * destroy() leaves out the result of the operation.
 */
using ticket = unique<ticket_ref>;

/* --- Contexts ---------------------------------------------------------------------------------------------- */

class context;

/** A context that somebody else owns. Functions take it, and it has the verbs. */
class context_ref : public object_handle<gmm_context, gmm_context_release> {
 public:
  using object_handle::object_handle;

  [[nodiscard]] inline outcome<context> retain() const;
  [[nodiscard]] outcome<gmm_context_info> query() const { return call<gmm_context_info>(gmm_context_query); }
  [[nodiscard]] outcome<gmm_device_info> device_query(device_id device) const {
    return call<gmm_device_info>(gmm_device_query, device.get());
  }
  /** Sets how long memory stays free before it returns to the driver; forever: never. */
  outcome<void> set_decommit(milliseconds after) const { return call<void>(gmm_context_set_decommit, after.count()); }
  outcome<void> set_oom_handler(gmm_oom_fn fn, void *user) const {
    return call<void>(gmm_context_set_oom_handler, fn, user);
  }

  /* Memory. */

  /** Allocates a block of `size` bytes as a NULL descriptor says: DEVICE, device 0, default stream. */
  [[nodiscard]] outcome<buffer> alloc(uint64_t size) const {
    void *memory = nullptr;
    const gmm_result code = gmm_alloc(get(), size, nullptr, &memory);
    return detail::give<buffer>(code, get(), memory, size);
  }
  /** Allocates a block of `size` bytes. It will be freed on desc.stream, unless that is changed. */
  [[nodiscard]] outcome<buffer> alloc(uint64_t size, const gmm_alloc_desc &desc) const {
    void *memory = nullptr;
    const gmm_result code = gmm_alloc(get(), size, detail::pass(desc), &memory);
    return detail::give<buffer>(code, get(), memory, size, desc.stream);
  }
  /** Allocates a block if that needs no wait; else the buffer is empty. */
  [[nodiscard]] buffer try_alloc(uint64_t size, const gmm_alloc_desc &desc = {}) const noexcept {
    void *memory = nullptr;
    if (gmm_try_alloc(get(), size, detail::pass(desc), &memory) < 0) return {};
    return buffer(get(), memory, size, desc.stream);
  }
  outcome<void> free(void *memory, gmm_stream stream = nullptr) const { return call<void>(gmm_free, memory, stream); }
  [[nodiscard]] outcome<gmm_pointer_info> query(const void *address) const {
    return call<gmm_pointer_info>(gmm_query, address);
  }
  outcome<void> name(const void *memory, const char *name) const { return call<void>(gmm_name, memory, name); }
  outcome<void> copy(void *destination, const void *source, uint64_t size, gmm_stream stream = nullptr) const {
    return call<void>(gmm_copy, destination, source, size, stream);
  }
  outcome<void> fill(void *destination, uint8_t value, uint64_t size, gmm_stream stream = nullptr) const {
    return call<void>(gmm_fill, destination, value, size, stream);
  }
  outcome<void> record_use(const void *memory, gmm_stream stream) const {
    return call<void>(gmm_record_use, memory, stream);
  }

  [[nodiscard]] outcome<pinned> pin(void *memory, uint64_t size, const gmm_pin_desc &desc = {}) const {
    void *device_pointer = nullptr;
    const gmm_result code = gmm_pin(get(), memory, size, detail::pass(desc), &device_pointer);
    return detail::give<pinned>(code, pinned_ref(get(), memory, device_pointer));
  }
  outcome<void> advise(void *memory, uint64_t size, gmm_advice advice, device_id location) const {
    return call<void>(gmm_advise, memory, size, advice, location.get());
  }
  outcome<void> prefetch(void *memory, uint64_t size, device_id location, gmm_stream stream = nullptr) const {
    return call<void>(gmm_prefetch, memory, size, location.get(), stream);
  }
  /** Moves a block, which keeps its address. Returns false if it was at the location already. */
  outcome<bool> move(void *memory, device_id location, const gmm_move_desc &desc = {}) const {
    const gmm_result code = gmm_move(get(), memory, location.get(), detail::pass(desc));
    return detail::give<bool>(code, code != GMM_UNCHANGED);
  }

  /* Pause and resume, by default of every tag. gmm::tag_ref has them for one tag. Results are bytes. */

  outcome<uint64_t> pause(const gmm_pause_desc &desc = {}) const { return call<uint64_t>(gmm_pause, desc); }
  outcome<uint64_t> resume(const gmm_pause_desc &desc = {}) const { return call<uint64_t>(gmm_resume, desc); }
  [[nodiscard]] outcome<ticket> pause_async(const gmm_pause_desc &desc = {}) const {
    return detail::make<ticket>(gmm_pause_async, get(), desc);
  }
  [[nodiscard]] outcome<ticket> resume_async(const gmm_pause_desc &desc = {}) const {
    return detail::make<ticket>(gmm_resume_async, get(), desc);
  }
  outcome<uint64_t> pause_range(const void *address, uint64_t size, uint32_t flags = 0) const {
    return call<uint64_t>(gmm_pause_range, address, size, flags);
  }
  outcome<uint64_t> resume_range(const void *address, uint64_t size) const {
    return call<uint64_t>(gmm_resume_range, address, size);
  }
  outcome<void> resume_wait(const void *address, uint64_t size) const {
    return call<void>(gmm_resume_wait, address, size, UINT64_MAX);
  }
  /** Waits until others have resumed a range, and returns false if the time passes first. */
  [[nodiscard]] outcome<bool> resume_wait_for(const void *address, uint64_t size, milliseconds timeout) const {
    return detail::give_ready(gmm_resume_wait(get(), address, size, timeout.count()));
  }

  /* Backups. */

  outcome<void> backup_configure(const gmm_backup_desc &desc) const { return call<void>(gmm_backup_configure, desc); }
  outcome<void> backup_reserve(device_id device, uint64_t bytes) const {
    return call<void>(gmm_backup_reserve, device.get(), bytes);
  }
  [[nodiscard]] outcome<gmm_backup_info> backup_query() const { return call<gmm_backup_info>(gmm_backup_query); }
  /** Copies kept contents to `out`, a buffer of `size` bytes. */
  outcome<void> backup_read(const void *address, uint64_t size, void *out) const {
    return call<void>(gmm_backup_read, address, size, out);
  }
  [[nodiscard]] outcome<const void *> backup_map(const void *address, uint64_t size) const {
    return call<const void *>(gmm_backup_map, address, size);
  }
  outcome<uint64_t> backup_discard(const gmm_pause_desc &desc = {}) const {
    return call<uint64_t>(gmm_backup_discard, desc);
  }

  /* Sharing. gmm::event has the functions of events. */

  outcome<void> ipc_configure(const gmm_ipc_desc &desc) const { return call<void>(gmm_ipc_configure, desc); }
  [[nodiscard]] outcome<gmm_ipc_handle> ipc_export(const void *memory) const {
    return call<gmm_ipc_handle>(gmm_ipc_export, memory);
  }
  [[nodiscard]] outcome<imported> ipc_import(const gmm_ipc_handle &handle, const gmm_ipc_import_desc &desc = {}) const {
    return import_by(gmm_ipc_import, &handle, desc);
  }
  [[nodiscard]] outcome<gmm_ipc_fd_info> ipc_export_fd(const void *memory, gmm_fd_type type = GMM_FD_DEFAULT) const {
    return call<gmm_ipc_fd_info>(gmm_ipc_export_fd, memory, type);
  }
  [[nodiscard]] outcome<imported> ipc_import_fd(int32_t fd, const gmm_ipc_fd_desc &desc) const {
    return import_by(gmm_ipc_import_fd, fd, desc);
  }
  [[nodiscard]] outcome<gmm_ipc_legacy_info> ipc_export_legacy(const void *memory) const {
    return call<gmm_ipc_legacy_info>(gmm_ipc_export_legacy, memory);
  }

  outcome<void> publish(const void *memory, const char *name, const gmm_publish_desc &desc = {}) const {
    return call<void>(gmm_publish, memory, name, desc);
  }
  outcome<void> unpublish(const char *name) const { return call<void>(gmm_unpublish, name); }
  /** Empty: the context has the claim of the name (GMM_ATTACH_OR_CLAIM). */
  [[nodiscard]] outcome<imported> attach(const char *name, const gmm_attach_desc &desc = {}) const {
    return import_by(gmm_attach, name, desc);
  }
  /** Ends memory that imported::detach() gave up. */
  outcome<void> detach_memory(void *memory) const { return call<void>(gmm_detach, memory); }
  [[nodiscard]] outcome<gmm_published_info> published_list(uint64_t index, uint64_t timeout_ms) const {
    return call<gmm_published_info>(gmm_published_list, index, timeout_ms);
  }

  /* Limits and counts. A scope without a part is the whole context. */

  outcome<void> limit_set(const scope &of, uint64_t bytes) const { return call<void>(gmm_limit_set, of.get(), bytes); }
  [[nodiscard]] outcome<gmm_stats_info> stats_query(const scope &of = {}) const {
    return call<gmm_stats_info>(gmm_stats_query, of.get());
  }
  /** Writes the metrics as Prometheus text, as snapshot_ref::write() does it. */
  template <class Function>
  outcome<void> metrics_write(Function &&fn) const {
    return detail::write_text(fn,
                              [this](gmm_write_fn piece, void *user) { return gmm_metrics_write(get(), piece, user); });
  }
  outcome<uint64_t> trim(const scope &of = {}) const { return call<uint64_t>(gmm_trim, of.get()); }
  outcome<gmm_compact_info> compact(const gmm_compact_desc &desc = {}) const { return compact(scope(), desc); }
  outcome<gmm_compact_info> compact(const scope &of, const gmm_compact_desc &desc = {}) const {
    return call<gmm_compact_info>(gmm_compact, of.get(), desc);
  }
  /** Frees every allocation. No buffer of the context may end after that: detach() them. */
  outcome<void> reset() const { return call<void>(gmm_reset); }
  /** Lists the tags: the first tags.size() of them go to `tags`. Returns the number of all tags. */
  [[nodiscard]] outcome<uint32_t> tag_list(gmm::span<gmm_tag> tags) const {
    return call<uint32_t>(gmm_tag_list, tags.data(), static_cast<uint32_t>(tags.size()));
  }

 private:
  template <class T, class Function, class... Arguments>
  outcome<T> call(Function *function, const Arguments &...arguments) const {
    return detail::call<T>(function, get(), arguments...);
  }
  template <class Function, class From, class Desc>
  outcome<imported> import_by(Function *function, From from, const Desc &desc) const {
    void *memory = nullptr;
    const gmm_result code = function(get(), from, detail::pass(desc), &memory);
    return detail::give<imported>(code, memory == nullptr ? imported_ref() : imported_ref(get(), memory));
  }
};

/** Owns a reference to a context. The last owner's end frees all memory of the context. */
class context : public unique<context_ref> {
 public:
  using unique::unique;
  [[nodiscard]] static outcome<context> create(const gmm_context_desc &desc = {}) {
    return detail::make<context>(gmm_context_create, desc);
  }
  outcome<void> release() { return destroy(); }
};

inline outcome<context> context_ref::retain() const {
  const gmm_result code = gmm_context_retain(get());
  return detail::give<context>(code, *this);
}

/* --- Heaps ------------------------------------------------------------------------------------------------- */

/** A heap that somebody else owns. */
class heap_ref : public object_handle<gmm_heap, gmm_heap_destroy> {
 public:
  constexpr heap_ref() noexcept = default;
  /** A heap of C with its kind, which no function of C returns. */
  heap_ref(context_ref context, gmm_heap *heap, gmm_kind kind) noexcept
      : object_handle(heap), context_(context.get()), kind_(kind) {}
  [[nodiscard]] static outcome<unique<heap_ref>> create(context_ref context, const gmm_heap_desc &desc = {}) {
    gmm_heap *made = nullptr;
    const gmm_result code = gmm_heap_create(context.get(), detail::pass(desc), &made);
    const gmm_kind kind = desc.kind != GMM_KIND_UNSPECIFIED ? desc.kind : static_cast<gmm_kind>(GMM_KIND_DEVICE);
    return detail::give<unique<heap_ref>>(code, heap_ref(context, made, kind));
  }
  [[nodiscard]] context_ref context() const noexcept { return context_ref(context_); }
  [[nodiscard]] gmm_kind kind() const noexcept { return kind_; }

  [[nodiscard]] outcome<buffer> alloc(uint64_t size, gmm_stream stream = nullptr, uint64_t alignment = 0,
                                      uint32_t flags = 0) const {
    void *memory = nullptr;
    const gmm_result code = gmm_heap_alloc(get(), size, alignment, flags, stream, &memory);
    return detail::give<buffer>(code, context_, memory, size, stream);
  }
  /** Allocates a block if that needs no wait; else the buffer is empty. */
  [[nodiscard]] buffer try_alloc(uint64_t size, gmm_stream stream = nullptr, uint64_t alignment = 0,
                                 uint32_t flags = 0) const noexcept {
    void *memory = nullptr;
    if (gmm_heap_try_alloc(get(), size, alignment, flags, stream, &memory) < 0) return {};
    return buffer(context_, memory, size, stream);
  }
  outcome<void> reserve(uint64_t bytes) const { return detail::call<void>(gmm_heap_reserve, get(), bytes); }

 private:
  gmm_context *context_ = nullptr;
  gmm_kind kind_ = GMM_KIND_UNSPECIFIED;
};

/** Owns a heap. Its buffers end before it; a heap with live blocks stays until the end of its context. */
using heap = unique<heap_ref>;

/* --- Streams and events ------------------------------------------------------------------------------------ */

/** A point in the order of a stream. */
class event_ref : public object_handle<gmm_event, gmm_event_destroy> {
 public:
  using object_handle::object_handle;
  [[nodiscard]] static outcome<unique<event_ref>> create(context_ref context, const gmm_event_desc &desc = {}) {
    return detail::make<unique<event_ref>>(gmm_event_create, context.get(), desc);
  }
  /** Another process's event. `import` is a word of C++20. */
  [[nodiscard]] static outcome<unique<event_ref>> import_handle(context_ref context, const gmm_ipc_handle &handle,
                                                                const gmm_ipc_import_desc &desc = {}) {
    return detail::make<unique<event_ref>>(gmm_event_import, context.get(), &handle, desc);
  }
  [[nodiscard]] static outcome<unique<event_ref>> import_semaphore(context_ref context,
                                                                   const gmm_semaphore_desc &desc) {
    return detail::make<unique<event_ref>>(gmm_event_import_semaphore, context.get(), desc);
  }
  outcome<void> record(gmm_stream stream, uint64_t value = 0) const {
    return detail::call<void>(gmm_event_record, get(), value, stream);
  }
  outcome<void> synchronize(uint64_t value = 0) const {
    return detail::call<void>(gmm_event_synchronize, get(), value, UINT64_MAX);
  }
  /** Waits until the event has passed, and returns false if the time passes first. */
  [[nodiscard]] outcome<bool> synchronize_for(milliseconds timeout, uint64_t value = 0) const {
    return detail::give_ready(gmm_event_synchronize(get(), value, timeout.count()));
  }
  [[nodiscard]] outcome<bool> query() const {
    uint64_t passed = 0;
    const gmm_result code = gmm_event_query(get(), &passed);
    return detail::give<bool>(code, passed != 0);
  }
  /** A handle for other processes. `export` is a word of C++. */
  [[nodiscard]] outcome<gmm_ipc_handle> export_handle() const {
    return detail::call<gmm_ipc_handle>(gmm_event_export, get());
  }
};

/** Owns an event. */
using event = unique<event_ref>;

/** A stream with its context. It converts to gmm_stream, which functions take. */
class stream_ref : public context_handle<gmm_stream, gmm_stream_destroy> {
 public:
  constexpr stream_ref() noexcept = default;
  /** Any stream: `gmm::stream_ref(context, gmm::native_stream(cuda_stream))`. */
  stream_ref(context_ref context, gmm_stream stream) noexcept : context_handle(context.get(), stream) {}
  [[nodiscard]] static outcome<unique<stream_ref>> create(context_ref context, const gmm_stream_desc &desc = {}) {
    gmm_stream made = nullptr;
    const gmm_result code = gmm_stream_create(context.get(), detail::pass(desc), &made);
    return detail::give<unique<stream_ref>>(code, stream_ref(context, made));
  }
  [[nodiscard]] gmm_stream get() const noexcept { return named_; }
  operator gmm_stream() const noexcept { return named_; }

  outcome<void> synchronize() const { return detail::call<void>(gmm_stream_synchronize, context_, named_); }
  outcome<void> wait_event(event_ref target, uint64_t value = 0) const {
    return detail::call<void>(gmm_stream_wait_event, context_, named_, target.get(), value);
  }
  outcome<void> call(void (*fn)(void *user), void *user) const {
    return detail::call<void>(gmm_stream_call, context_, named_, fn, user);
  }
  outcome<void> forget() const { return detail::call<void>(gmm_stream_forget, context_, named_); }
};

/** Owns a stream, and waits for its work at its end. */
using stream = unique<stream_ref>;

/* --- Tags -------------------------------------------------------------------------------------------------- */

/** The context of a gmm::tag_scope. */
using tag_scope_ref = object_handle<gmm_context, gmm_tag_pop>;

/**
 * A tag is the thread's current one until the end of the object. tag_ref::push() makes one.
 *
 * Threads: the object ends on its thread. Scopes end in the reverse order of their beginning.
 */
class tag_scope : public unique<tag_scope_ref> {
 public:
  using unique::unique;
  outcome<void> pop() { return destroy(); }
};

/** A tag with its context. It converts to gmm_tag, which descriptors take. */
class tag_ref : public context_handle<gmm_tag, gmm_tag_destroy> {
 public:
  constexpr tag_ref() noexcept = default;
  tag_ref(context_ref context, gmm_tag tag) noexcept : context_handle(context.get(), tag) {}
  [[nodiscard]] static outcome<tag_ref> find(context_ref context, const char *name) {
    gmm_tag found = 0;
    const gmm_result code = gmm_tag_find(context.get(), name, &found);
    return detail::give<tag_ref>(code, context, found);
  }
  [[nodiscard]] gmm_tag get() const noexcept { return named_; }
  operator gmm_tag() const noexcept { return named_; }

  [[nodiscard]] outcome<gmm_tag_info> query() const {
    return detail::call<gmm_tag_info>(gmm_tag_query, context_, named_);
  }
  outcome<void> configure(const gmm_tag_desc &desc) const {
    return detail::call<void>(gmm_tag_configure, context_, named_, desc);
  }
  [[nodiscard]] outcome<tag_scope> push() const {
    const gmm_result code = gmm_tag_push(context_, named_);
    return detail::give<tag_scope>(code, tag_scope_ref(context_));
  }
  outcome<void> set_default() const { return detail::call<void>(gmm_tag_set_default, context_, named_); }
  outcome<uint64_t> pause(uint32_t flags = 0) const { return context_ref(context_).pause(desc_of(flags)); }
  outcome<uint64_t> resume() const { return context_ref(context_).resume(desc_of(0)); }
  [[nodiscard]] outcome<ticket> pause_async(uint32_t flags = 0) const {
    return context_ref(context_).pause_async(desc_of(flags));
  }
  [[nodiscard]] outcome<ticket> resume_async() const { return context_ref(context_).resume_async(desc_of(0)); }

 private:
  [[nodiscard]] pause_desc desc_of(uint32_t flags) const noexcept {
    pause_desc desc;
    desc.flags = flags;
    desc.tags = &named_;
    desc.tag_count = 1;
    return desc;
  }
};

/** The tag of a gmm::tag, and whether the end of the object destroys it. */
class owned_tag_ref : public tag_ref {
 public:
  constexpr owned_tag_ref() noexcept = default;
  owned_tag_ref(const tag_ref &named, bool is_own) noexcept : tag_ref(named), is_own_(is_own) {}
  /** Whether the end of the object destroys the tag: the object made it, or took it over. */
  [[nodiscard]] bool is_own() const noexcept { return is_own_; }

 protected:
  /** Ends the tag, own or not. INVALID_TAG means that the tag has gone, so nothing is left to own. */
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
 * is. So parts of a program may each create() the tag "weights", and the first of them owns it, as is_own() says.
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
  /** Takes over the result of another object's detach(), which may be the name alone. */
  explicit tag(const owned_tag_ref &adopted) noexcept : unique(adopted) {}
  /** Creates a tag of the default settings, or names the existing one. */
  [[nodiscard]] static outcome<tag> create(context_ref context, const char *name) {
    return create_of(context, name, nullptr);
  }
  /** Creates a tag, or names the existing one with these settings. */
  [[nodiscard]] static outcome<tag> create(context_ref context, const char *name, const gmm_tag_desc &desc) {
    return create_of(context, name, detail::pass(desc));
  }
  /** Destroys the tag, own or not. After INVALID_TAG too the object is empty. */
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

/* --- Snapshots, watchers, leases, traces, deferral ------------------------------------------------------------ */

/** A copy of the state of a context's heaps. */
class snapshot_ref : public object_handle<gmm_snapshot, gmm_snapshot_destroy> {
 public:
  using object_handle::object_handle;
  [[nodiscard]] static outcome<unique<snapshot_ref>> create(context_ref context, const scope &of = {}) {
    return detail::make<unique<snapshot_ref>>(gmm_snapshot_create, context.get(), of.get());
  }
  [[nodiscard]] outcome<gmm_snapshot_info> query() const {
    return detail::call<gmm_snapshot_info>(gmm_snapshot_query, get());
  }
  [[nodiscard]] outcome<gmm_block_info> query_block(uint64_t index) const {
    return detail::call<gmm_block_info>(gmm_snapshot_query_block, get(), index);
  }
  [[nodiscard]] outcome<gmm_extent_info> query_extent(uint64_t index) const {
    return detail::call<gmm_extent_info>(gmm_snapshot_query_extent, get(), index);
  }
  /**
   * Writes the snapshot as JSON: `fn(std::string_view)` gets the text piece by piece, and returns true to continue.
   *
   * An exception of `fn` ends the call, and the caller gets it.
   */
  template <class Function>
  outcome<void> write(Function &&fn) const {
    return detail::write_text(
        fn, [this](gmm_write_fn piece, void *user) { return gmm_snapshot_write(get(), piece, user); });
  }
};

/** Owns a snapshot, which keeps its context alive. */
using snapshot = unique<snapshot_ref>;

/** The watch of a gmm::watcher, and the function that it calls. */
class watcher_ref : public object_handle<gmm_watcher, gmm_watcher_destroy> {
 public:
  /** Frees the function. */
  using end_fn = void (*)(void *function) noexcept;
  constexpr watcher_ref() noexcept = default;
  explicit watcher_ref(gmm_watcher *watcher, void *function = nullptr, end_fn end_function = nullptr) noexcept
      : object_handle(watcher), function_(function), end_function_(end_function) {}
  [[nodiscard]] static outcome<unique<watcher_ref>> create(context_ref context, const gmm_watch_desc &desc) {
    return detail::make<unique<watcher_ref>>(gmm_watch, context.get(), desc);
  }
  /**
   * Calls a copy of `function`, which takes a gmm_watch_info and returns the answer. It lies in memory of malloc().
   */
  template <class Function>
  [[nodiscard]] static outcome<unique<watcher_ref>> create(context_ref context, gmm_watch_desc desc,
                                                           Function function) {
    static_assert(std::is_nothrow_move_constructible_v<Function>, "the function is moved into memory of its own");
    static_assert(alignof(Function) <= alignof(std::max_align_t), "malloc() aligns the function");
    void *place = std::malloc(sizeof(Function));
    if (place == nullptr)
      return detail::fail<unique<watcher_ref>>(
          error(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for a watcher's function."));
    desc.callback.user = ::new (place) Function(std::move(function));
    desc.callback.fn = [](void *user, const gmm_watch_info *info) -> int32_t {
      return static_cast<int32_t>((*static_cast<Function *>(user))(*info));
    };
    const watcher_ref::end_fn end_function = [](void *held) noexcept {
      static_cast<Function *>(held)->~Function();
      std::free(held);
    };
    gmm_watcher *made = nullptr;
    const gmm_result code = gmm_watch(context.get(), detail::pass(desc), &made);
    if (code < 0) end_function(desc.callback.user);
    return detail::give<unique<watcher_ref>>(code, watcher_ref(made, desc.callback.user, end_function));
  }

 protected:
  gmm_result end() noexcept {
    const gmm_result code = object_handle::end();
    if (code >= 0 && end_function_ != nullptr) end_function_(function_);
    return code;
  }
  friend class unique<watcher_ref>;

 private:
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
using watcher = unique<watcher_ref>;

/** A process's lease of a GPU that others use too. */
class lease_ref : public object_handle<gmm_lease, gmm_lease_destroy> {
 public:
  using object_handle::object_handle;
  [[nodiscard]] static outcome<unique<lease_ref>> create(context_ref context, const gmm_lease_desc &desc) {
    return detail::make<unique<lease_ref>>(gmm_lease_create, context.get(), desc);
  }
  [[nodiscard]] static outcome<gmm_lease_entry_info> list(context_ref context, uint64_t index, uint64_t timeout_ms) {
    return detail::call<gmm_lease_entry_info>(gmm_lease_list, context.get(), index, timeout_ms);
  }
  outcome<void> offer(gmm_tag tag, uint32_t cost = 0) const {
    return detail::call<void>(gmm_lease_offer, get(), tag, cost);
  }
  outcome<void> request(const gmm_lease_request_desc &desc = {}) const {
    return detail::call<void>(gmm_lease_request, get(), desc, nullptr);
  }
  /** Requests the lease in the background. The ticket ends before the lease. */
  [[nodiscard]] outcome<ticket> request_async(const gmm_lease_request_desc &desc = {}) const {
    return detail::make<ticket>(gmm_lease_request, get(), desc);
  }
  /** Ends the use. False: the lease was not in use. */
  outcome<bool> give_back() const {
    const gmm_result code = gmm_lease_return(get());
    return detail::give<bool>(code, code == GMM_OK);
  }
  [[nodiscard]] outcome<gmm_lease_info> query() const { return detail::call<gmm_lease_info>(gmm_lease_query, get()); }
};

/** Owns a lease, which keeps its context alive. */
using lease = unique<lease_ref>;

/** The context of a gmm::trace. */
class trace_ref : public object_handle<gmm_context, gmm_trace_end> {
 public:
  using object_handle::object_handle;

 protected:
  /** Every result but FORKED ends the trace, whatever it says of the file. A later trace belongs to another object. */
  gmm_result end() noexcept {
    const gmm_result code = object_handle::end();
    if (code != GMM_ERROR_FORKED) *this = trace_ref();
    return code;
  }
  friend class unique<trace_ref>;
};

/**
 * The context's operations are recorded in a file, or told without one, until the end of the object.
 *
 * end() reports what the file lacks. The trace has ended then too, so the object is empty after each result but FORKED.
 */
class trace : public unique<trace_ref> {
 public:
  using unique::unique;
  [[nodiscard]] static outcome<trace> begin(context_ref context, const char *path,
                                            const gmm_trace_desc &desc = trace_desc()) {
    const gmm_result code = gmm_trace_begin(context.get(), path, detail::pass(desc));
    return detail::give<trace>(code, trace_ref(context.get()));
  }
  static outcome<void> set_frames(gmm_frames_fn fn) { return detail::call<void>(gmm_trace_set_frames, fn); }
  outcome<void> end() { return destroy(); }
};

/** The context of a gmm::defer. */
using defer_ref = object_handle<gmm_context, gmm_defer_end>;

/** Trims are put off until the end of the object. */
class defer : public unique<defer_ref> {
 public:
  using unique::unique;
  [[nodiscard]] static outcome<defer> begin(context_ref context) {
    const gmm_result code = gmm_defer_begin(context.get());
    return detail::give<defer>(code, defer_ref(context.get()));
  }
  outcome<void> end() { return destroy(); }
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
  /** `desc.kind` is set to `kind`. */
  [[nodiscard]] static outcome<unique<cpu_heap_ref>> create(context_ref context, cpu_kind kind = cpu_kind::host,
                                                            gmm_heap_desc desc = {}) {
    desc.kind = static_cast<gmm_kind>(kind);
    gmm_heap *made = nullptr;
    const gmm_result code = gmm_heap_create(context.get(), detail::pass(desc), &made);
    return detail::give<unique<cpu_heap_ref>>(code, cpu_heap_ref(heap_ref(context, made, desc.kind)));
  }
  /** Takes a heap of kind HOST or MANAGED. Errors: INVALID_KIND (the heap is of another kind). */
  [[nodiscard]] static outcome<cpu_heap_ref> of(heap_ref any) {
    if (any.kind() != GMM_KIND_HOST && any.kind() != GMM_KIND_MANAGED)
      return detail::fail<cpu_heap_ref>(
          error(GMM_ERROR_INVALID_KIND,
                "gmm::cpu_heap_ref::of: the CPU cannot read and write memory of this heap's kind: "
                "create the heap with GMM_KIND_HOST or GMM_KIND_MANAGED"));
    return cpu_heap_ref(any);
  }

 protected:
  friend class unique<cpu_heap_ref>;

 private:
  explicit cpu_heap_ref(heap_ref named) noexcept : heap_ref(named) {}
};

/** Owns a heap for containers, which end before it. */
using cpu_heap = unique<cpu_heap_ref>;

namespace detail {

/** Memory for a container, which learns of an error only by an exception. */
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
