// SPDX-License-Identifier: Apache-2.0
// gmm/gmm.hpp on the backend that GMM_BACKEND names: ownership, moves, conversions, and both ways of failing. The C
// functions below have tests of their own. The file is compiled for both of the header's policies, as C++17 and C++20:
// MUST gives the value of an outcome, and ends the case or the program where there is none.
static unsigned unheard;  // failures of destructors
#define GMM_HPP_UNHEARD(code) (static_cast<void>(code), static_cast<void>(++unheard))
#ifndef __cpp_exceptions
#include <unistd.h>
#define GMM_HPP_FATAL(error) _exit(-(error).code())
#endif
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <gmm/gmm.hpp>
#include <memory>
#include <string>
#include <vector>

#include "../support/check.h"

namespace {

constexpr uint64_t kMiB = 1024 * 1024;

// --- Both policies ---------------------------------------------------------------------------------------------------
#if GMM_HPP_EXCEPTIONS
#define MUST(expression) (expression)
template <class Function>
gmm::error failure_of(Function fails) {
  try {
    static_cast<void>(fails());
    return {};
  } catch (const gmm::error &error) {
    return error;
  }
}
#else
#define MUST(expression) must(expression)
template <class T>
T must(gmm::result<T> result) {
  if (!result) {
    std::printf("Bail out! %s: %s\n", result.error().name(), result.error().message());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}
template <class Function>
gmm::error failure_of(Function fails) {
  return fails().error();
}
#endif
#define FAILS(expression, expected)                                    \
  do {                                                                 \
    const gmm::error failure = failure_of([&] { return expression; }); \
    CHECK_EQUAL(failure.code(), expected);                             \
    CHECK(std::strlen(failure.message()) > 20);                        \
  } while (0)

void (*current)();
void run_current() {
  unheard = 0;
#if GMM_HPP_EXCEPTIONS
  try {
    current();
  } catch (const gmm::error &left) {
    CHECK_MESSAGE(false, "%s: %s", left.name(), left.message());
  }
#else
  current();
#endif
  CHECK_EQUAL(unheard, 0);
}
#define CASE(function) (current = function, check_run(#function, run_current))

// --- Support ---------------------------------------------------------------------------------------------------------
gmm::context open_context() {
  gmm::context_desc desc;
  desc.host_devices = 2;
  return MUST(gmm::context::create(desc));
}
bool on_gpu() {
  const char *name = std::getenv("GMM_BACKEND");
  return name != nullptr && (std::strcmp(name, "cuda") == 0 || std::strcmp(name, "hip") == 0);
}
gmm::alloc_desc of_kind(gmm_kind kind, gmm_tag tag = 0, gmm_stream stream = nullptr) {
  gmm::alloc_desc desc;
  desc.kind = kind;
  desc.tag = tag;
  desc.stream = stream;
  return desc;
}
gmm::tag kept_tag(gmm::context_ref context, const char *name) {
  gmm::tag_desc keep;
  keep.contents = GMM_CONTENTS_HOST;
  return MUST(gmm::tag::create(context, name, keep));
}
uint64_t live_blocks(gmm::context_ref context) { return MUST(context.stats_query()).live_blocks; }
gmm_tag current_tag(gmm::context_ref context) {
  const gmm::buffer block = MUST(context.alloc(100));
  return MUST(context.query(block.data())).tag;
}

#ifndef __cpp_exceptions
// The code with which a function ends the process.
int ends_with(void (*ending)()) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    ending();
    _exit(0);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? -WEXITSTATUS(status) : 1;
}
#endif

// --- Owners ----------------------------------------------------------------------------------------------------------

// An owner ends its object once: in the destructor, by an assignment, or by name. `make` gives an object, `end` is the
// end by name, and `lives` says whether there is an object, where a function of C tells that.
template <class Owner, class Make>
void owns(Make make, gmm::outcome<void> (Owner::*end)(), const std::function<bool()> &lives = nullptr) {
  using ref = typename Owner::ref_type;
  using base = gmm::unique<ref>;
  static_assert(!std::is_copy_constructible_v<Owner> && !std::is_copy_assignable_v<Owner>);
  static_assert(std::is_nothrow_move_constructible_v<Owner> && std::is_nothrow_move_assignable_v<Owner>);
  static_assert(std::is_convertible_v<Owner, ref> && !std::is_convertible_v<ref, Owner>, "taken over by name alone");
  static_assert(sizeof(Owner) == sizeof(ref));
  const auto check = [&](int line, bool owner, bool expected) {
    CHECK_MESSAGE(owner == expected, "line %d: the owner is %s", line, owner ? "not empty" : "empty");
    CHECK_MESSAGE(!lives || lives() == expected, "line %d: an object %s", line, expected ? "has gone" : "lives");
    CHECK_MESSAGE(unheard == 0, "line %d: a destructor failed", line);
  };
  Owner empty;
  check(__LINE__, static_cast<bool>(empty), false);
  MUST((empty.*end)());  // has nothing to do
  {
    Owner first = make();
    check(__LINE__, static_cast<bool>(first), true);
    Owner second = std::move(first), &same = second;
    second = std::move(same);
    check(__LINE__, second && !first, true);
    first = std::move(second);
    check(__LINE__, first && !second, true);
  }
  check(__LINE__, false, false);
  Owner one = make();
  one = {};
  check(__LINE__, static_cast<bool>(one), false);
  one = make();
  MUST((one.*end)());
  check(__LINE__, static_cast<bool>(one), false);
  one = make();
  const ref given_up = static_cast<base &>(one).detach();
  check(__LINE__, given_up && !one, true);
  { const base adopted(given_up); }
  check(__LINE__, false, false);
}

void owners_end_their_object_once() {
  gmm::context context = open_context();
  gmm::tag tag = kept_tag(context, "owners");
  std::string path = "/tmp/gmm-hpp-XXXXXX", folder = path;
  CHECK(close(mkstemp(path.data())) == 0 && mkdtemp(folder.data()) != nullptr);
  gmm::ipc_desc place;
  place.directory = folder.c_str();
  MUST(context.ipc_configure(place));

  owns<gmm::context>([&] { return MUST(context.retain()); }, &gmm::context::release);
  owns<gmm::heap>([&] { return MUST(gmm::heap::create(context)); }, &gmm::heap::destroy);
  owns<gmm::cpu_heap>([&] { return MUST(gmm::cpu_heap::create(context)); }, &gmm::cpu_heap::destroy);
  owns<gmm::stream>([&] { return MUST(gmm::stream::create(context)); }, &gmm::stream::destroy);
  owns<gmm::event>([&] { return MUST(gmm::event::create(context)); }, &gmm::event::destroy);
  owns<gmm::ticket>([&] { return MUST(tag.resume_async()); }, &gmm::ticket::destroy);
  owns<gmm::snapshot>([&] { return MUST(gmm::snapshot::create(context)); }, &gmm::snapshot::destroy);
  const gmm::context member = open_context();  // the server of its leases keeps a socket in the usual folder
  owns<gmm::lease>(
      [&] {
        gmm::lease_desc desc;
        desc.name = "owner";
        return MUST(gmm::lease::create(member, desc));
      },
      &gmm::lease::destroy);
  owns<gmm::tag>([&] { return MUST(gmm::tag::create(context, "once")); }, &gmm::tag::destroy,
                 [&] {
                   gmm_tag found = 0;
                   return gmm_tag_find(context.get(), "once", &found) == GMM_OK;
                 });
  owns<gmm::tag_scope>([&] { return MUST(tag.push()); }, &gmm::tag_scope::pop,
                       [&] { return current_tag(context) == tag; });
  owns<gmm::trace>([&] { return MUST(gmm::trace::begin(context, path.c_str())); }, &gmm::trace::end,
                   [&] {
                     return gmm_trace_begin(context.get(), path.c_str(), nullptr) == GMM_ERROR_BUSY ||
                            gmm_trace_end(context.get()) != GMM_OK;
                   });
  owns<gmm::defer>([&] { return MUST(gmm::defer::begin(context)); }, &gmm::defer::end,
                   [&] { return gmm_defer_end(context.get()) == GMM_OK && gmm_defer_begin(context.get()) == GMM_OK; });
  owns<gmm::buffer>([&] { return MUST(context.alloc(1000)); }, &gmm::buffer::free,
                    [&] { return live_blocks(context) != 0; });
  std::vector<char> own(20000);
  owns<gmm::pinned>([&] { return MUST(context.pin(own.data(), own.size())); }, &gmm::pinned::unpin,
                    [&] { return MUST(context.query(own.data())).state == GMM_STATE_PINNED; });
  {
    const gmm::buffer block = MUST(context.alloc(2 * kMiB, of_kind(GMM_KIND_VMM)));
    const gmm_ipc_handle handle = MUST(context.ipc_export(block.data()));
    owns<gmm::imported>([&] { return MUST(context.ipc_import(handle)); }, &gmm::imported::close);
  }
  const auto held = std::make_shared<int>(0);  // its count shows whether the watcher has its function
  const auto function = [held](const gmm_watch_info &) { return 0; };
  owns<gmm::watcher>(
      [&] {
        gmm::watch_desc desc;
        desc.events = GMM_WATCH_LOSING;
        return MUST(gmm::watcher::create(context, desc, function));
      },
      &gmm::watcher::destroy, [&] { return held.use_count() > 2; });
  std::remove(path.c_str());
  tag = {};
  MUST(context.release());  // its socket goes
  CHECK_EQUAL(rmdir(folder.c_str()), 0);
}

// An object of which the first ends fail.
struct refusing_ref {
  refusing_ref(unsigned number = 0, unsigned *count = nullptr) noexcept : failures(number), calls(count) {}
  explicit operator bool() const noexcept { return calls != nullptr; }
  gmm_result end() noexcept {
    return ++*calls > failures ? static_cast<gmm_result>(GMM_OK) : static_cast<gmm_result>(GMM_ERROR_DRIVER);
  }
  unsigned failures, *calls;
};

void a_failed_end_is_reported() {
  const gmm::context context = open_context();
  int wrong = 0;
  {
    gmm::buffer buffer(context.get(), &wrong, 8);
    FAILS(buffer.free(), GMM_ERROR_UNKNOWN_POINTER);
    CHECK(buffer.data() == &wrong && !buffer.try_free() && unheard == 0);
  }
  CHECK_EQUAL(std::exchange(unheard, 0), 1);
  // A destructor tries once more, as a driver may refuse one call.
  for (unsigned failures = 0; failures < 3; ++failures) {
    unsigned calls = 0;
    { const gmm::unique<refusing_ref> owner(refusing_ref(failures, &calls)); }
    CHECK_EQUAL(calls, failures == 0 ? 1 : 2);
    CHECK_EQUAL(std::exchange(unheard, 0), failures == 2 ? 1 : 0);
  }
  gmm::heap heap = MUST(gmm::heap::create(context));
  {
    const gmm::buffer block = MUST(heap.alloc(100));
    FAILS(heap.destroy(), GMM_ERROR_BUSY);
    CHECK(heap);
  }
  MUST(heap.destroy());
  MUST(gmm::trace::set_frames(nullptr));
  // A failed end of a trace leaves nothing to end: a later trace belongs to another object.
  std::string path = "/tmp/gmm-hpp-XXXXXX";
  CHECK(close(mkstemp(path.data())) == 0);
  {
    gmm::trace ended = MUST(gmm::trace::begin(context, path.c_str()));
    CHECK_EQUAL(gmm_trace_end(context.get()), GMM_OK);
    FAILS(ended.end(), GMM_ERROR_UNBALANCED);
    CHECK(!ended);
    gmm::trace next = MUST(gmm::trace::begin(context, path.c_str()));
    MUST(ended.end());
    MUST(next.end());
    const gmm::trace lost = MUST(gmm::trace::begin(context, path.c_str()));
    CHECK_EQUAL(gmm_trace_end(context.get()), GMM_OK);
  }
  CHECK_EQUAL(std::exchange(unheard, 0), 1);
  std::remove(path.c_str());
}

void one_object_owns_a_tag() {
  const gmm::context context = open_context();
  gmm::tag first = kept_tag(context, "shared");
  CHECK(first.is_own());
  {
    gmm::tag second = MUST(gmm::tag::create(context, "shared"));
    const gmm::tag moved = std::move(second);
    CHECK(moved && !moved.is_own() && moved == first.get());
  }
  CHECK_EQUAL(MUST(first.query()).contents, GMM_CONTENTS_HOST);
  FAILS(open_context().alloc(100, of_kind(GMM_KIND_VMM, first)), GMM_ERROR_INVALID_TAG);  // another context's
  FAILS(gmm::tag::create(context, "shared", gmm::tag_desc()), GMM_ERROR_INVALID_VALUE);
  // A tag that was made without an object has no owner until an object takes it over.
  gmm_tag plain = 0;
  CHECK_EQUAL(gmm_tag_create(context.get(), "plain", nullptr, &plain), GMM_OK);
  { const gmm::tag taken(MUST(gmm::tag_ref::find(context, "plain"))); }
  FAILS(gmm::tag_ref::find(context, "plain"), GMM_ERROR_INVALID_TAG);
  // destroy() is asked for by name, so it destroys the tag of another object.
  gmm::tag other = MUST(gmm::tag::create(context, "shared"));
  {
    const gmm::buffer block = MUST(context.alloc(100, of_kind(GMM_KIND_VMM, first)));
    FAILS(other.destroy(), GMM_ERROR_BUSY);
    CHECK(other && !other.is_own());
  }
  MUST(other.destroy());
  FAILS(first.destroy(), GMM_ERROR_INVALID_TAG);
  CHECK(!other && !first);
}

void watchers_own_their_function() {
  const gmm::context context = open_context();
  const gmm::tag tag = kept_tag(context, "watched");
  const gmm::buffer block = MUST(context.alloc(2 * kMiB, of_kind(GMM_KIND_VMM, tag)));
  gmm::watch_desc desc;
  desc.events = GMM_WATCH_LOSING | GMM_WATCH_RESTORED;
  desc.tag = tag;
  const auto heard = std::make_shared<std::string>();
  const auto listen = [heard](const gmm_watch_info &info) {
    *heard += info.event == GMM_WATCH_LOSING ? 'L' : 'R';
    return 0;
  };
  {
    const gmm::watcher watcher = MUST(gmm::watcher::create(context, desc, listen));
    CHECK(MUST(tag.pause()) != 0 && MUST(tag.resume()) != 0);
    CHECK(*heard == "LR");
  }
  int calls = 0;
  desc.callback = {[](void *count, const gmm_watch_info *) -> int32_t { return ++*static_cast<int *>(count); }, &calls};
  const gmm::watcher watcher = MUST(gmm::watcher::create(context, desc));
  CHECK(MUST(tag.pause()) != 0 && calls == 1);
  desc.events = 0;
  FAILS(gmm::watcher::create(context, desc, listen), GMM_ERROR_INVALID_FLAGS);
  CHECK_EQUAL(heard.use_count(), 2);  // the function of a failed create() has gone
}

// --- Values and failures ---------------------------------------------------------------------------------------------

void values_convert() {
  using namespace std::chrono_literals;
  CHECK_EQUAL(gmm::milliseconds(2s).count(), 2000);
  CHECK_EQUAL(gmm::milliseconds(1500us).count(), 2);
  CHECK_EQUAL(gmm::milliseconds(-3s).count(), 0);
  CHECK_EQUAL(gmm::milliseconds(std::chrono::duration<double>(0.25)).count(), 250);
  CHECK(gmm::milliseconds(std::chrono::hours::max()).count() == GMM_FOREVER);
  CHECK(gmm::milliseconds::forever().count() == GMM_FOREVER && gmm::milliseconds().count() == 0);
  static_assert(!std::is_convertible_v<int, gmm::milliseconds>, "a number says no unit");
  static_assert(!std::is_convertible_v<int, gmm::device_id>, "a device is no number");
  static_assert(gmm::device_id::host().get() == -1 && gmm::device_id(1) != gmm::device_id());
  static_assert(std::is_trivially_copyable_v<gmm::context_ref> && std::is_trivially_copyable_v<gmm::stream_ref>);
  static_assert(std::is_convertible_v<gmm::stream, gmm_stream> && std::is_convertible_v<gmm::tag, gmm_tag>);
  static_assert(sizeof(gmm::context) == sizeof(void *) && sizeof(gmm::buffer) == 4 * sizeof(void *));
  CHECK(gmm::version() == GMM_VERSION && std::strcmp(gmm::version_string(), gmm_version_string()) == 0);
  int native = 0;
  CHECK(gmm::native_stream(&native) == reinterpret_cast<gmm_stream>(&native));
  gmm::context_desc desc;
  CHECK(desc.struct_size == 0 && desc.flags == 0 && desc.log.fn == nullptr);
  desc.decommit_after_ms = gmm::milliseconds(60s);
  const gmm::context context = MUST(gmm::context::create(desc));
  CHECK_EQUAL(MUST(context.query()).decommit_after_ms, 60000);
  MUST(context.set_decommit(5s));
  CHECK_EQUAL(MUST(context.query()).decommit_after_ms, 5000);
  const gmm_device_info device = MUST(context.device_query(gmm::device_id()));
  CHECK(device.struct_size == sizeof device && device.device == 0 && device.total_memory > 0);
  FAILS(context.device_query(gmm::device_id(99)), GMM_ERROR_INVALID_DEVICE);
}

void results_hold_a_value_or_an_error() {
  using pointer = std::unique_ptr<int>;
  gmm::result<pointer> good(std::make_unique<int>(7));
  CHECK(good && **good == 7 && *good->get() == 7 && good.error().code() == GMM_OK);
  gmm::result<pointer> moved = std::move(good);
  CHECK(*moved.value() == 7);
  moved = gmm::result<pointer>(gmm::error(GMM_ERROR_BUSY, "why it is busy"));
  CHECK(!moved && std::string(moved.error().message()) == "why it is busy" && moved.error().native_code() == 0);
  moved = gmm::result<pointer>(std::make_unique<int>(8));
  CHECK(moved && *std::move(moved).value_or(nullptr) == 8);
  static_assert(!std::is_copy_constructible_v<gmm::result<int>> && std::is_move_assignable_v<gmm::result<int>>);
  const gmm::error busy(GMM_ERROR_BUSY, nullptr), copy = busy;
  CHECK(std::string(copy.message()) == copy.text() && std::string(copy.name()) == "GMM_ERROR_BUSY");
  const gmm::result<int> constant(9), failed(busy);
  CHECK(constant.value() == 9 && *constant == 9 && constant.value_or(5) == 9 && failed.value_or(5) == 5);
  gmm::result<void>().value();
#if GMM_HPP_EXCEPTIONS
  CHECK_EQUAL(failure_of([&] { return failed.value(); }).code(), GMM_ERROR_BUSY);
  CHECK_EQUAL(failure_of([&] { return gmm::result<int>(busy).value(); }).code(), GMM_ERROR_BUSY);
  CHECK_EQUAL(failure_of([&] { return gmm::result<void>(busy).value(); }).code(), GMM_ERROR_BUSY);
#elif !defined(__cpp_exceptions)
  const auto look = [] { static_cast<void>(gmm::result<int>(gmm::error(GMM_ERROR_BUSY, nullptr)).value()); };
  CHECK_EQUAL(ends_with(look), GMM_ERROR_BUSY);
#endif
}

void errors_keep_their_message() {
  const gmm::context context = open_context();
  const gmm::error kept = failure_of([&] { return context.alloc(0); });
  const std::string message = gmm_last_error_message();
  MUST(context.limit_set({}, 1));
  FAILS(context.alloc(kMiB), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK(kept.code() == GMM_ERROR_INVALID_SIZE && message == kept.message() && message != gmm_last_error_message());
#if GMM_HPP_EXCEPTIONS
  std::string what;
  try {
    static_cast<void>(context.alloc(kMiB));
  } catch (const std::bad_alloc &e) {
    what = e.what();
  }
  CHECK(what == gmm_last_error_message());
  try {
    static_cast<void>(context.alloc(0));
  } catch (const std::exception &e) {
    CHECK(dynamic_cast<const gmm::error *>(&e) != nullptr && dynamic_cast<const std::bad_alloc *>(&e) == nullptr);
    what = e.what();
  }
  CHECK(what == message);
#endif
}

#if __cplusplus >= 202002L
// GCC 12 knows defaults of fields only where the struct has initializers.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
void descriptors_take_names() {
  const gmm::context context = MUST(gmm::context::create({.host_devices = 2}));
  const gmm::tag tag = MUST(gmm::tag::create(context, "named", {.contents = GMM_CONTENTS_HOST}));
  const gmm::stream stream = MUST(gmm::stream::create(context, {.device = gmm::device_id(0)}));
  const gmm::buffer block = MUST(context.alloc(100, {.kind = GMM_KIND_VMM, .tag = tag, .stream = stream}));
  const gmm_pointer_info info = MUST(context.query(block.data()));
  CHECK(info.kind == GMM_KIND_VMM && info.tag == tag && block.stream() == stream);
}
#pragma GCC diagnostic pop
#endif

// --- Verbs: each gives its arguments to C, and what C gives back -----------------------------------------------------

void blocks_are_used_and_freed() {
  const gmm::context context = open_context();
  gmm::buffer block = MUST(context.alloc(4096 + 3, of_kind(GMM_KIND_HOST)));
  MUST(context.fill(block.data(), 7, block.size()));
  MUST(gmm::stream_ref(context, nullptr).synchronize());
  const gmm::span<uint32_t> words = block.as<uint32_t>();
  CHECK(words.size() == 1024 && words.size_bytes() == 4096 && words[1023] == 0x07070707u && !words.empty());
  uint64_t sum = 0;
  for (const std::byte b : block.as()) sum += std::to_integer<unsigned>(b);
  CHECK_EQUAL(sum, 7 * (4096 + 3));
  const gmm_pointer_info info = MUST(context.query(static_cast<char *>(block.data()) + 500));
  CHECK(info.base == block.data() && info.size == 4099 && block.context() == context.get());
  void *memory = block.detach();
  CHECK(memory != nullptr && !block && block.size() == 0 && live_blocks(context) == 1);
  block = gmm::buffer(context.get(), memory, 4099);
  MUST(block.free(nullptr));
  FAILS(context.free(memory), GMM_ERROR_ALREADY_FREED);
  CHECK(!context.try_alloc(5000));  // the thread's cache is empty
  block = MUST(context.alloc(5000));
  memory = block.data();
  CHECK(block.try_free() && !block && block.try_free());
  block = context.try_alloc(5000);
  CHECK(block.data() == memory && block.size() == 5000);
  static_cast<void>(block.detach());
  MUST(context.reset());
  CHECK_EQUAL(live_blocks(context), 0);
}

void heaps_allocate() {
  const gmm::context context = open_context();
  gmm::heap_desc desc;
  desc.kind = GMM_KIND_VMM;
  desc.limit = 64 * kMiB;
  const gmm::heap heap = MUST(gmm::heap::create(context, desc));
  CHECK(heap.kind() == GMM_KIND_VMM && heap.context() == context && heap != gmm::heap_ref());
  CHECK_EQUAL(MUST(gmm::heap::create(context)).kind(), GMM_KIND_DEVICE);
  CHECK(!heap.try_alloc(5000));
  gmm::buffer block = MUST(heap.alloc(5000, nullptr, 4096, GMM_ALLOC_ZERO));
  CHECK(reinterpret_cast<uintptr_t>(block.data()) % 4096 == 0);
  block = MUST(heap.alloc(5000));
  const void *memory = block.data();
  MUST(block.free());
  block = heap.try_alloc(5000);
  CHECK(block.data() == memory);
  MUST(heap.reserve(16 * kMiB));
  FAILS(heap.reserve(65 * kMiB), GMM_ERROR_LIMIT_EXCEEDED);
  gmm::compact_desc compact;
  compact.heap = heap.get();
  CHECK(MUST(context.compact(compact)).largest_free != 0);
}

void count_call(void *count) { ++*static_cast<int *>(count); }
void streams_and_events_order_work() {
  const gmm::context context = open_context();
  gmm::stream_desc urgent;
  urgent.priority = -1;
  const gmm::stream stream = MUST(gmm::stream::create(context)), other = MUST(gmm::stream::create(context, urgent));
  gmm::event_desc shared;
  shared.flags = GMM_EVENT_SHARED;
  const gmm::event event = MUST(gmm::event::create(context, shared));
  gmm::buffer host = MUST(context.alloc(4096, of_kind(GMM_KIND_HOST, 0, stream)));
  int called = 0;
  MUST(context.fill(host.data(), 3, host.size(), stream));
  MUST(stream.call(count_call, &called));
  MUST(event.record(stream));
  MUST(other.wait_event(event));
  MUST(event.synchronize());
  CHECK(called == 1 && MUST(event.query()) && MUST(event.synchronize_for(std::chrono::seconds(1))));
  MUST(context.record_use(host.data(), other));
  uint8_t byte = 0;
  MUST(context.copy(&byte, host.data(), 1, other));
  MUST(other.synchronize());
  CHECK_EQUAL(byte, 3);
  MUST(host.free(other));
  MUST(other.forget());
  FAILS(gmm::event::import_semaphore(context, gmm::semaphore_desc()), GMM_ERROR_INVALID_VALUE);
  const gmm_ipc_handle handle = MUST(event.export_handle());
  CHECK(MUST(gmm::event::import_handle(context, handle)).get() != event.get());
}

void pauses_return_bytes() {
  const gmm::context context = open_context();
  const gmm::tag tag = kept_tag(context, "paused");
  gmm::tag_desc keep;
  keep.contents = GMM_CONTENTS_HOST;
  keep.priority = 4;
  MUST(tag.configure(keep));
  gmm::backup_desc backup;
  backup.threads = 1;
  MUST(context.backup_configure(backup));
  MUST(context.backup_reserve(gmm::device_id(), kMiB));
  const gmm::buffer block = MUST(context.alloc(2 * kMiB, of_kind(GMM_KIND_VMM, tag)));
  MUST(context.fill(block.data(), 9, block.size()));
  const uint64_t bytes = MUST(tag.pause());
  CHECK(bytes >= 2 * kMiB && MUST(tag.pause()) == 0);
  CHECK(!MUST(context.resume_wait_for(block.data(), block.size(), gmm::milliseconds(0))));
  uint8_t byte = 0;
  MUST(context.backup_read(block.data(), 1, &byte));
  CHECK_EQUAL(byte, 9);
  CHECK_EQUAL(static_cast<const uint8_t *>(MUST(context.backup_map(block.data(), 2)))[1], 9);
  CHECK(MUST(context.backup_query()).arena_bytes != 0);
  CHECK_EQUAL(MUST(context.resume_range(block.data(), block.size())), bytes);
  FAILS(context.pause_range(block.data(), block.size()), GMM_ERROR_INVALID_KIND);
  MUST(context.resume_wait(block.data(), block.size()));
  {
    const gmm::ticket ticket = MUST(tag.pause_async());
    CHECK(MUST(ticket.wait()) == bytes && MUST(ticket.query()).bytes == bytes);
    CHECK(MUST(ticket.wait_for(gmm::milliseconds(0))) == bytes);
  }
  CHECK(MUST(context.backup_discard()) > 0);
  { const gmm::ticket waits_at_its_end = MUST(tag.resume_async()); }
  CHECK_EQUAL(MUST(context.query(block.data())).state, GMM_STATE_ACTIVE);
  gmm::pause_desc hold;
  hold.flags = GMM_PAUSE_HOLD;
  const gmm::ticket held = MUST(context.pause_async(hold));
  MUST(held.wait_held());
  CHECK(!MUST(held.wait_for(gmm::milliseconds(0))).has_value());
  MUST(held.commit());
  CHECK_EQUAL(MUST(held.wait()), bytes);
  const gmm::ticket cancelled = MUST(context.resume_async(hold));
  MUST(cancelled.wait_held());
  MUST(cancelled.cancel());
  FAILS(cancelled.wait(), GMM_ERROR_CANCELLED);
  CHECK(MUST(context.resume()) == bytes && MUST(tag.resume()) == 0 && MUST(context.pause()) == bytes);
}

// A lease that no other process wants.
void a_lease_is_requested_and_returned() {
  const gmm::context context = open_context();
  const gmm::tag tag = MUST(gmm::tag::create(context, "of a lease"));
  gmm::lease_desc desc;
  desc.name = "one";
  const gmm::lease lease = MUST(gmm::lease::create(context, desc));
  MUST(lease.offer(tag, 3));
  MUST(lease.request());
  const gmm_lease_info used = MUST(lease.query());
  CHECK(used.state == GMM_LEASE_IN_USE && used.grants == 1);
  FAILS(lease.request(), GMM_ERROR_BUSY);
  CHECK(MUST(lease.give_back()) && !MUST(lease.give_back()));
  CHECK_EQUAL(MUST(MUST(lease.request_async()).wait()), 0);
  CHECK(MUST(gmm::lease::list(context, 0, 30000)).entry_count != 0);
}

void pages_move_to_a_location() {
  const gmm::context context = open_context();
  const gmm::buffer managed = MUST(context.alloc(kMiB, of_kind(GMM_KIND_MANAGED)));
  MUST(context.advise(managed.data(), 0, GMM_ADVISE_SET_PREFERRED_LOCATION, gmm::device_id(0)));
  MUST(context.prefetch(managed.data(), 0, gmm::device_id::host()));
  FAILS(context.prefetch(managed.data(), 0, gmm::device_id(99)), GMM_ERROR_INVALID_DEVICE);
  gmm::alloc_desc desc = of_kind(GMM_KIND_VMM);
  desc.flags = GMM_ALLOC_DEDICATED;
  const gmm::buffer block = MUST(context.alloc(2 * kMiB, desc));
  CHECK(MUST(context.move(block.data(), gmm::device_id::host())));
  CHECK(!MUST(context.move(block.data(), gmm::device_id::host())));
  std::vector<char> own(20000);
  const gmm::pinned pinned = MUST(context.pin(own.data(), own.size()));
  CHECK(pinned.data() == own.data() && pinned.device_pointer() != nullptr);
}

void memory_is_shared_by_descriptor() {
  const gmm::context context = open_context();
  const gmm::buffer block = MUST(context.alloc(2 * kMiB, of_kind(GMM_KIND_VMM)));
  const gmm_ipc_fd_info fd = MUST(context.ipc_export_fd(block.data()));
  gmm::ipc_fd_desc of;
  of.type = fd.type;
  of.size = fd.size;
  {
    const gmm::imported mapped = MUST(context.ipc_import_fd(fd.fd, of));
    CHECK(mapped.data() != nullptr && MUST(context.stats_query()).imported_bytes > 0);
  }
  MUST(context.publish(block.data(), "of gmm_hpp_test"));
  CHECK(MUST(context.attach("of gmm_hpp_test")).data() != nullptr);
  gmm::attach_desc claim;
  claim.flags = GMM_ATTACH_OR_CLAIM;
  CHECK(!MUST(context.attach("another of gmm_hpp_test", claim)));
  CHECK(MUST(context.published_list(0, 60000)).entry_count != 0);
  MUST(context.unpublish("of gmm_hpp_test"));
  FAILS(context.detach_memory(block.data()), GMM_ERROR_UNKNOWN_POINTER);
  CHECK_EQUAL(close(fd.fd), 0);
  CHECK_EQUAL(MUST(context.stats_query()).imported_bytes, 0);
  FAILS(context.ipc_import(gmm_ipc_handle{}), GMM_ERROR_IPC_INVALID_HANDLE);
  const gmm::buffer device = MUST(context.alloc(2 * kMiB, of_kind(GMM_KIND_DEVICE)));
  if (on_gpu())
    CHECK(MUST(context.ipc_export_legacy(device.data())).size >= 2 * kMiB);
  else
    FAILS(context.ipc_export_legacy(device.data()), GMM_ERROR_NOT_SUPPORTED);
}

int32_t give_up(void *user, const gmm_oom_info *info) {
  ++*static_cast<int *>(user);
  return info->attempt < 2 ? 1 : 0;
}
void scopes_and_tags_select_memory() {
  const gmm::context context = open_context();
  const gmm::tag tag = MUST(gmm::tag::create(context, "limited"));
  MUST(context.limit_set(gmm::scope().tag(tag).device(gmm::device_id(0)), 4 * kMiB));
  int called = 0;
  MUST(context.set_oom_handler(give_up, &called));
  FAILS(context.alloc(8 * kMiB, of_kind(GMM_KIND_VMM, tag)), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_EQUAL(called, 2);
  {
    const gmm::buffer block = MUST(context.alloc(kMiB, of_kind(GMM_KIND_VMM, tag))), other = MUST(context.alloc(kMiB));
    const gmm_stats_info of_tag = MUST(context.stats_query(gmm::scope().tag(tag).kind(GMM_KIND_VMM)));
    CHECK(of_tag.live_blocks == 1 && of_tag.live_bytes == kMiB);
  }
  CHECK(MUST(context.trim(gmm::scope().tag(tag))) >= kMiB);
  gmm_tag tags[8];
  CHECK_EQUAL(MUST(context.tag_list(gmm::span<gmm_tag>(tags, 8))), 2);
  CHECK(tags[0] == GMM_TAG_DEFAULT && tags[1] == tag);
  MUST(tag.set_default());
  CHECK_EQUAL(current_tag(context), tag.get());
  MUST(gmm::tag_ref(context, GMM_TAG_DEFAULT).set_default());
}

void snapshots_are_read_and_written() {
  const gmm::context context = open_context();
  const gmm::buffer block = MUST(context.alloc(777, of_kind(GMM_KIND_HOST)));
  MUST(context.name(block.data(), "weights"));
  const gmm::snapshot snapshot = MUST(gmm::snapshot::create(context, gmm::scope().kind(GMM_KIND_HOST)));
  CHECK_EQUAL(MUST(snapshot.query()).block_count, 1);
  const gmm_block_info first = MUST(snapshot.query_block(0));
  CHECK(first.address == block.data() && std::string(first.name) == "weights");
  CHECK(MUST(snapshot.query_extent(0)).size >= first.size);
  FAILS(snapshot.query_block(1), GMM_ERROR_INVALID_VALUE);
  std::string text;
  MUST(snapshot.write([&](std::string_view piece) {
    text += piece;
    return true;
  }));
  CHECK(text.find("\"gmm-snapshot\"") != std::string::npos);
  FAILS(snapshot.write([](std::string_view) { return false; }), GMM_ERROR_IO);
  MUST(context.metrics_write([&](std::string_view piece) { return text = piece, true; }));
  CHECK(text.find("gmm_live_bytes{") != std::string::npos);
#if GMM_HPP_EXCEPTIONS
  int got = 0;
  try {
    snapshot.write([](std::string_view) -> bool { throw 7; });
  } catch (int thrown) {
    got = thrown;
  }
  CHECK_EQUAL(got, 7);
#endif
}

// --- Containers ------------------------------------------------------------------------------------------------------
struct alignas(4096) page {
  char bytes[4096];
};

gmm::cpu_heap limited_heap(gmm::context_ref context, gmm::cpu_kind kind) {
  gmm::heap_desc desc;
  desc.limit = 4 * kMiB;
  return MUST(gmm::cpu_heap::create(context, kind, desc));
}

void containers_hold_host_and_managed_memory() {
  const gmm::context context = open_context();
  for (const gmm::cpu_kind kind : {gmm::cpu_kind::host, gmm::cpu_kind::managed}) {
    gmm::cpu_heap heap = limited_heap(context, kind);
    {
      std::vector<int, gmm::allocator<int>> numbers(1000, 7, heap);
      numbers.push_back(8);
      CHECK_EQUAL(MUST(context.query(&numbers[500])).kind, static_cast<gmm_kind>(kind));
      const std::vector<int, gmm::allocator<int>> moved = std::move(numbers);
      CHECK(moved.size() == 1001 && moved[999] == 7 && moved[1000] == 8);
      CHECK(moved.get_allocator() == gmm::allocator<char>(heap));
      const std::vector<page, gmm::allocator<page>> pages(3, heap);
      CHECK(reinterpret_cast<uintptr_t>(pages.data()) % 4096 == 0);
#if GMM_HPP_PMR
      gmm::memory_resource resource(heap), other(heap);
      const std::pmr::vector<std::pmr::string> words(2, "too long for the space inside of a string", &resource);
      CHECK_EQUAL(MUST(context.query(words[1].data())).kind, static_cast<gmm_kind>(kind));
      CHECK(resource.heap() == heap && resource == resource && resource != other);
      void *nothing = resource.allocate(0);
      CHECK(nothing != nullptr);
      resource.deallocate(nothing, 0);
#endif
    }
    CHECK_EQUAL(live_blocks(context), 0);
    MUST(heap.destroy());
  }
  const gmm::cpu_heap own = MUST(gmm::cpu_heap::create(context)), another = MUST(gmm::cpu_heap::create(context));
  CHECK(gmm::allocator<int>(own) != gmm::allocator<int>(another));
  static_assert(!std::is_constructible_v<gmm::allocator<int>, gmm::heap>, "a heap of any kind is refused by its type");
  FAILS(gmm::cpu_heap_ref::of(MUST(gmm::heap::create(context))), GMM_ERROR_INVALID_KIND);
  gmm::heap_desc desc;
  desc.kind = GMM_KIND_MANAGED;
  const gmm::heap heap = MUST(gmm::heap::create(context, desc));
  const std::vector<int, gmm::allocator<int>> numbers(10, 3, MUST(gmm::cpu_heap_ref::of(heap)));
  CHECK_EQUAL(numbers[9], 3);
}

// Too many objects for the heap's limit, and for any memory.
#if GMM_HPP_EXCEPTIONS
void containers_throw_bad_alloc() {
  const gmm::context context = open_context();
  const gmm::cpu_heap heap = limited_heap(context, gmm::cpu_kind::host);
  const auto thrown_for = [&](std::size_t count) -> std::string {
    try {
      static_cast<void>(gmm::allocator<uint64_t>(heap).allocate(count));
    } catch (const std::bad_array_new_length &) {
      return "bad_array_new_length";
    } catch (const std::bad_alloc &) {
      return "bad_alloc";
    }
    return "";
  };
  CHECK(thrown_for(8 * kMiB) == "bad_alloc" && thrown_for(SIZE_MAX / 4) == "bad_array_new_length");
#if GMM_HPP_PMR
  gmm::memory_resource resource(heap);
  FAILS(resource.allocate(SIZE_MAX / 2), GMM_ERROR_SIZE_OVERFLOW);
  FAILS(resource.allocate(64, 4 * kMiB), GMM_ERROR_INVALID_ALIGNMENT);
#endif
}
#elif !defined(__cpp_exceptions)
template <uint64_t Count>
void allocate_too_much() {
  gmm::context_desc desc;
  desc.backend = GMM_BACKEND_HOST;  // a driver does not survive fork()
  const gmm::context context = MUST(gmm::context::create(desc));
  static_cast<void>(gmm::allocator<uint64_t>(limited_heap(context, gmm::cpu_kind::host)).allocate(Count));
}
void containers_end_the_program() {
  CHECK_EQUAL(ends_with(allocate_too_much<8 * kMiB>), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_EQUAL(ends_with(allocate_too_much<SIZE_MAX / 4>), GMM_ERROR_SIZE_OVERFLOW);
}
#endif

}  // namespace

int main() {
  // A folder of its own: the server of leases is this build's, whichever others run on the machine.
  std::string folder = "/tmp/gmm-hpp-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr || setenv("GMM_IPC_DIR", folder.c_str(), 1) != 0) return 1;
  CASE(owners_end_their_object_once);
  CASE(a_failed_end_is_reported);
  CASE(one_object_owns_a_tag);
  CASE(watchers_own_their_function);
  CASE(values_convert);
  CASE(results_hold_a_value_or_an_error);
  CASE(errors_keep_their_message);
#if __cplusplus >= 202002L
  CASE(descriptors_take_names);
#endif
  CASE(blocks_are_used_and_freed);
  CASE(heaps_allocate);
  CASE(streams_and_events_order_work);
  CASE(pauses_return_bytes);
  CASE(a_lease_is_requested_and_returned);
  CASE(pages_move_to_a_location);
  CASE(memory_is_shared_by_descriptor);
  CASE(scopes_and_tags_select_memory);
  CASE(snapshots_are_read_and_written);
  CASE(containers_hold_host_and_managed_memory);
#if GMM_HPP_EXCEPTIONS
  CASE(containers_throw_bad_alloc);
#elif !defined(__cpp_exceptions)
  CASE(containers_end_the_program);
#endif
  std::remove((folder + "/serve.sock").c_str());
  rmdir(folder.c_str());
  return check_finish();
}
