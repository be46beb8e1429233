// SPDX-License-Identifier: Apache-2.0
// gmm/gmm.hpp on the backend that GMM_BACKEND names. The file is compiled for both of the header's policies, as C++17
// and C++20: a case takes the value of an outcome by TAKE, and leaves by the error of one that has none.
static unsigned unheard;  // failures of destructors
#define GMM_HPP_UNHEARD(code) (static_cast<void>(code), static_cast<void>(++unheard))
#ifndef __cpp_exceptions
#include <unistd.h>
#define GMM_HPP_FATAL(error) _exit(-(error).code())
#endif
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <gmm/gmm.hpp>
#include <memory>
#include <string>
#include <vector>

#include "../support/check.h"
#include "../support/fake_cuda/fake_cuda.h"

namespace {

constexpr uint64_t kMiB = 1024 * 1024;

#if GMM_HPP_EXCEPTIONS
#define TAKE(name, expression) [[maybe_unused]] auto name = (expression)
#define DO(expression) (expression)
#define FAILS(expression, expected)                   \
  do {                                                \
    gmm_result fails_code = GMM_OK;                   \
    try {                                             \
      static_cast<void>(expression);                  \
    } catch (const gmm::error &fails_error) {         \
      fails_code = fails_error.code();                \
      CHECK(std::strlen(fails_error.message()) > 20); \
    }                                                 \
    CHECK_EQUAL(fails_code, expected);                \
  } while (0)
#define DONE return void()
#else
#define TAKE(name, expression)              \
  auto name##_or = (expression);            \
  if (!name##_or) return name##_or.error(); \
  [[maybe_unused]] auto &name = *name##_or
#define DO(expression)                \
  do {                                \
    auto do_or = (expression);        \
    if (!do_or) return do_or.error(); \
  } while (0)
#define FAILS(expression, expected)                      \
  do {                                                   \
    auto fails_or = (expression);                        \
    CHECK_EQUAL(fails_or.error().code(), expected);      \
    CHECK(std::strlen(fails_or.error().message()) > 20); \
  } while (0)
#define DONE return gmm::result<void>()
#endif
using step = gmm::outcome<void>;

// --- Running the cases -----------------------------------------------------------------------------------------------
step (*current)();
void run_current() {
  unheard = 0;
#if GMM_HPP_EXCEPTIONS
  try {
    current();
  } catch (const gmm::error &left) {
    CHECK_MESSAGE(false, "%s: %s", left.name(), left.message());
  }
#else
  const auto left = current();
  CHECK_MESSAGE(left.has_value(), "%s: %s", left.error().name(), left.error().message());
#endif
}
#define CASE(function) (current = function, check_run(#function, run_current))

gmm::outcome<gmm::context> open_context() {
  gmm::context_desc desc;
  desc.host_devices = 2;
  return gmm::context::create(desc);
}
bool on_cuda() {
  const char *name = std::getenv("GMM_BACKEND");
  return name != nullptr && std::strcmp(name, "cuda") == 0;
}
gmm::alloc_desc of_kind(gmm_kind kind, gmm_tag tag = 0, gmm_stream stream = nullptr) {
  gmm::alloc_desc desc;
  desc.kind = kind;
  desc.tag = tag;
  desc.stream = stream;
  return desc;
}
gmm::outcome<uint64_t> live_blocks(gmm::context_ref context) {
  TAKE(stats, context.stats_query());
  return uint64_t{stats.live_blocks};
}
#define LIVE(context, expected)           \
  do {                                    \
    TAKE(live_now, live_blocks(context)); \
    CHECK_EQUAL(live_now, expected);      \
  } while (0)

#ifndef __cpp_exceptions
// The code with which a step ends the process.
int ends_with(step (*ending)()) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    static_cast<void>(ending());
    _exit(0);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? -WEXITSTATUS(status) : 1;
}
#endif

// --- Values ----------------------------------------------------------------------------------------------------------
step times_are_milliseconds() {
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
  DONE;
}

step objects_are_as_small_as_their_contents() {
  static_assert(sizeof(gmm::context) == sizeof(void *) && sizeof(gmm::event) == sizeof(void *));
  static_assert(sizeof(gmm::buffer) == 4 * sizeof(void *) && sizeof(gmm::tag) == 2 * sizeof(void *));
  static_assert(!std::is_copy_constructible_v<gmm::context> && !std::is_copy_assignable_v<gmm::buffer>);
  static_assert(std::is_nothrow_move_constructible_v<gmm::heap> && std::is_nothrow_move_assignable_v<gmm::buffer>);
  static_assert(std::is_trivially_copyable_v<gmm::context_ref> && std::is_trivially_copyable_v<gmm::stream_ref>);
  static_assert(std::is_convertible_v<gmm::context, gmm::context_ref>);
  static_assert(!std::is_convertible_v<gmm_context *, gmm::context>, "ownership is taken over by name");
  CHECK(!gmm::context() && !gmm::buffer() && !gmm::stream() && !gmm::ticket() && !gmm::tag_scope());
  DO(gmm::heap().destroy());  // an empty object has nothing to end
  CHECK(gmm::version() == GMM_VERSION && std::strcmp(gmm::version_string(), gmm_version_string()) == 0);
  DONE;
}

step results_hold_a_value_or_an_error() {
  gmm::result<std::unique_ptr<int>> good(std::make_unique<int>(7));
  CHECK(good && **good == 7 && *good->get() == 7 && good.error().code() == GMM_OK);
  gmm::result<std::unique_ptr<int>> moved = std::move(good);
  CHECK(*moved.value() == 7);
  gmm::result<std::unique_ptr<int>> bad(gmm::error(GMM_ERROR_BUSY, "why it is busy"));
  CHECK(!bad && std::string(bad.error().name()) == "GMM_ERROR_BUSY" && bad.error().native_code() == 0);
  moved = std::move(bad);
  CHECK(!moved && std::string(moved.error().message()) == "why it is busy");
  moved = gmm::result<std::unique_ptr<int>>(std::make_unique<int>(8));
  CHECK(moved && *std::move(moved).value_or(nullptr) == 8);
  CHECK_EQUAL(gmm::result<int>(gmm::error(GMM_ERROR_BUSY, nullptr)).value_or(5), 5);
  const gmm::result<int> constant(9);
  CHECK(constant.value() == 9 && *constant == 9 && constant.value_or(5) == 9);
  static_assert(std::is_same_v<decltype(std::move(constant).value()), const int &&>);
  static_assert(std::is_same_v<decltype(*std::move(constant)), const int &&>);
  gmm::result<void>().value();
  const gmm::error copy = moved.error(), other(GMM_ERROR_BUSY, nullptr);
  CHECK(copy.code() == GMM_OK && std::string(other.message()) == other.text());
#if GMM_HPP_EXCEPTIONS
  const gmm::error busy(GMM_ERROR_BUSY, "a message of some length");
  const gmm::result<int> failed(busy);
  FAILS(gmm::result<int>(busy).value(), GMM_ERROR_BUSY);
  FAILS(failed.value(), GMM_ERROR_BUSY);
  FAILS(std::move(failed).value(), GMM_ERROR_BUSY);
  FAILS(gmm::result<void>(busy).value(), GMM_ERROR_BUSY);
#elif !defined(__cpp_exceptions)
  const auto look = []() -> step {
    static_cast<void>(gmm::result<int>(gmm::error(GMM_ERROR_BUSY, nullptr)).value());
    DONE;
  };
  CHECK_EQUAL(ends_with(look), GMM_ERROR_BUSY);
#endif
  DONE;
}

step errors_keep_their_message() {
  TAKE(context, open_context());
#if GMM_HPP_EXCEPTIONS
  gmm::error kept;
  try {
    static_cast<void>(context.alloc(0));
  } catch (const std::exception &e) {
    kept = dynamic_cast<const gmm::error &>(e);
    CHECK(std::string(e.what()) == kept.message());
  }
  DO(context.limit_set({}, 1));
  bool is_bad_alloc = false;
  try {
    static_cast<void>(context.alloc(kMiB));
  } catch (const std::bad_alloc &e) {
    is_bad_alloc = std::string(e.what()) == gmm_last_error_message();
  }
  CHECK(is_bad_alloc);
#else
  const gmm::error kept = context.alloc(0).error();
  DO(context.limit_set({}, 1));
  FAILS(context.alloc(kMiB), GMM_ERROR_LIMIT_EXCEEDED);
#endif
  CHECK_EQUAL(kept.code(), GMM_ERROR_INVALID_SIZE);
  CHECK(std::strlen(kept.message()) > 20 && std::strcmp(kept.message(), gmm_last_error_message()) != 0);
  DONE;
}

// --- Objects ---------------------------------------------------------------------------------------------------------
step contexts_are_counted() {
  TAKE(context, open_context());
  TAKE(info, context.query());
  CHECK(info.struct_size == sizeof info && info.device_count > 0);
  TAKE(device, context.device_query(gmm::device_id()));
  CHECK(device.device == 0 && device.total_memory > 0);
  FAILS(context.device_query(gmm::device_id(99)), GMM_ERROR_INVALID_DEVICE);
  TAKE(second, context.retain());
  CHECK(second == context && second.get() == context.get());
  DO(context.release());
  CHECK(!context && context != second);
  DO(context.release());  // of nothing
  gmm::context adopted(second.detach());
  TAKE(block, adopted.alloc(kMiB));
  CHECK(!second && block.context() == adopted.get());
  DONE;
}

step buffers_free_themselves() {
  TAKE(context, open_context());
  {
    TAKE(a, context.alloc(1000, of_kind(GMM_KIND_HOST)));
    CHECK(a && a.size() == 1000 && a.stream() == nullptr);
    TAKE(info, context.query(static_cast<char *>(a.data()) + 500));
    CHECK(info.base == a.data() && info.kind == GMM_KIND_HOST && info.size == 1000);
    gmm::buffer b = std::move(a);
    CHECK(!a && a.size() == 0 && b);
    LIVE(context, 1);
    TAKE(c, context.alloc(2000));
    b = std::move(c);  // frees the first
    LIVE(context, 1);
    gmm::buffer &same = b;
    b = std::move(same);
    CHECK(b.size() == 2000);
    LIVE(context, 1);
  }
  LIVE(context, 0);
  TAKE(d, context.alloc(3000));
  void *memory = d.detach();
  CHECK(memory != nullptr && !d);
  LIVE(context, 1);
  gmm::buffer e(context.get(), memory, 3000);
  DO(e.free());
  CHECK(!e && e.try_free());  // there is nothing to free
  DO(e.free(nullptr));
  FAILS(context.free(memory), GMM_ERROR_ALREADY_FREED);
  {
    gmm::buffer wrong(context.get(), &memory, 8);
    FAILS(wrong.free(), GMM_ERROR_UNKNOWN_POINTER);
    CHECK(wrong.data() == &memory && !wrong.try_free());
    CHECK_EQUAL(unheard, 0);
  }
  CHECK_EQUAL(unheard, 1);
  DONE;
}

step buffers_have_spans() {
  TAKE(context, open_context());
  TAKE(buffer, context.alloc(4096 + 3, of_kind(GMM_KIND_HOST)));
  DO(context.fill(buffer.data(), 7, buffer.size()));
  DO(gmm::stream_ref(context, nullptr).synchronize());
  const gmm::span<uint32_t> words = buffer.as<uint32_t>();
  CHECK(words.size() == 1024 && words.size_bytes() == 4096 && words[1023] == 0x07070707u && !words.empty());
  uint64_t sum = 0;
  for (const std::byte b : buffer.as()) sum += std::to_integer<unsigned>(b);
  CHECK_EQUAL(sum, 7 * (4096 + 3));
#ifdef __cpp_lib_span
  static_assert(std::is_same_v<decltype(words), const std::span<uint32_t>>);
#endif
  DONE;
}

step tries_take_from_the_thread_cache() {
  TAKE(context, open_context());
  CHECK(!context.try_alloc(5000));
  TAKE(a, context.alloc(5000));
  void *memory = a.data();
  CHECK(a.try_free() && !a);
  gmm::buffer b = context.try_alloc(5000);
  CHECK(b.data() == memory && b.size() == 5000);
  TAKE(heap, gmm::heap::create(context));
  CHECK(!heap.try_alloc(5000));
  TAKE(c, heap.alloc(5000));
  memory = c.data();
  DO(c.free());
  b = heap.try_alloc(5000);
  CHECK(b.data() == memory);
  DONE;
}

step heaps_end_after_their_blocks() {
  TAKE(context, open_context());
  gmm::heap_desc desc;
  desc.kind = GMM_KIND_VMM;
  desc.limit = 64 * kMiB;
  TAKE(heap, gmm::heap::create(context, desc));
  CHECK(heap.kind() == GMM_KIND_VMM && heap.context() == context && heap != gmm::heap_ref());
  TAKE(block, heap.alloc(5000, nullptr, 4096, GMM_ALLOC_ZERO));
  CHECK(reinterpret_cast<uintptr_t>(block.data()) % 4096 == 0);
  FAILS(heap.alloc(65 * kMiB), GMM_ERROR_LIMIT_EXCEEDED);
  DO(heap.reserve(16 * kMiB));
  FAILS(heap.reserve(65 * kMiB), GMM_ERROR_LIMIT_EXCEEDED);
  gmm::compact_desc compact;
  compact.heap = heap.get();
  TAKE(compacted, context.compact(compact));
  CHECK(compacted.largest_free != 0 && compacted.largest_free < 16 * kMiB);
  TAKE(of_host, context.compact(gmm::scope().kind(GMM_KIND_HOST)));
  CHECK_EQUAL(of_host.moved_bytes, 0);
  FAILS(heap.destroy(), GMM_ERROR_BUSY);
  CHECK(heap);
  block = {};
  DO(heap.destroy());
  CHECK(!heap && heap == gmm::heap_ref());
  {
    TAKE(plain, gmm::heap::create(context));
    CHECK_EQUAL(plain.kind(), GMM_KIND_DEVICE);
  }
  CHECK_EQUAL(unheard, 0);
  DONE;
}

int called;
step streams_and_events_order_work() {
  TAKE(context, open_context());
  gmm::stream_desc urgent;
  urgent.priority = -1;
  TAKE(stream, gmm::stream::create(context));
  TAKE(other, gmm::stream::create(context, urgent));
  TAKE(event, gmm::event::create(context));
  TAKE(host, context.alloc(4096, of_kind(GMM_KIND_HOST, 0, stream)));
  CHECK(host.stream() == stream.get());
  DO(context.fill(host.data(), 3, host.size(), stream));
  called = 0;
  DO(stream.call([](void *count) { ++*static_cast<int *>(count); }, &called));
  DO(event.record(stream));
  DO(other.wait_event(event));
  DO(event.synchronize());
  CHECK_EQUAL(called, 1);
  TAKE(passed, event.query());
  TAKE(in_time, event.synchronize_for(std::chrono::seconds(1)));
  CHECK(passed && in_time);
  DO(context.record_use(host.data(), other));
  uint8_t byte = 0;
  DO(context.copy(&byte, host.data(), 1, other));
  DO(other.synchronize());
  CHECK_EQUAL(byte, 3);
  DO(host.free(other));
  DO(other.forget());
  DO(other.destroy());
  DO(event.destroy());
  FAILS(gmm::event::import_semaphore(context, gmm::semaphore_desc()), GMM_ERROR_INVALID_VALUE);
  int native = 0;
  CHECK(gmm::native_stream(&native) == reinterpret_cast<gmm_stream>(&native));
  CHECK_EQUAL(unheard, 0);
  DONE;
}

// --- Tags and pauses -------------------------------------------------------------------------------------------------
gmm::outcome<gmm::tag> kept_tag(gmm::context_ref context, const char *name) {
  gmm::tag_desc keep;
  keep.contents = GMM_CONTENTS_HOST;
  return gmm::tag::create(context, name, keep);
}

step one_object_owns_a_tag() {
  TAKE(context, open_context());
  TAKE(first, kept_tag(context, "shared"));
  CHECK(first && first.is_own());
  {
    TAKE(second, gmm::tag::create(context, "shared"));
    gmm::tag moved = std::move(second);
    CHECK(moved && !moved.is_own() && !second && moved == first.get());
  }
  TAKE(info, first.query());
  CHECK_EQUAL(info.contents, GMM_CONTENTS_HOST);
  FAILS(gmm::tag::create(context, "shared", gmm::tag_desc()), GMM_ERROR_INVALID_VALUE);
  // A tag that was made without an object has no owner until an object takes it over.
  gmm_tag plain = 0;
  CHECK_EQUAL(gmm_tag_create(context.get(), "plain", nullptr, &plain), GMM_OK);
  TAKE(found, gmm::tag_ref::find(context, "plain"));
  CHECK_EQUAL(found.get(), plain);
  { gmm::tag taken(found); }
  FAILS(gmm::tag_ref::find(context, "plain"), GMM_ERROR_INVALID_TAG);
  {
    TAKE(kept, gmm::tag::create(context, "kept"));
    kept.detach();
  }
  TAKE(again, gmm::tag_ref::find(context, "kept"));
  // destroy() is asked for by name, so it destroys the tag of another object.
  TAKE(other, gmm::tag::create(context, "shared"));
  {
    TAKE(block, context.alloc(100, of_kind(GMM_KIND_VMM, first)));
    FAILS(other.destroy(), GMM_ERROR_BUSY);
    CHECK(other && !other.is_own());
  }
  DO(other.destroy());
  FAILS(first.destroy(), GMM_ERROR_INVALID_TAG);
  CHECK(!other && !first && unheard == 0);
  DONE;
}

gmm::outcome<uint64_t> current_tag(gmm::context_ref context) {
  TAKE(block, context.alloc(100));
  TAKE(info, context.query(block.data()));
  return uint64_t{info.tag};
}
#define CURRENT(context, expected)       \
  do {                                   \
    TAKE(tag_now, current_tag(context)); \
    CHECK_EQUAL(tag_now, expected);      \
  } while (0)

step tag_scopes_nest() {
  TAKE(context, open_context());
  TAKE(outer, gmm::tag::create(context, "outer"));
  TAKE(inner, gmm::tag::create(context, "inner"));
  gmm_tag tags[8];
  TAKE(count, context.tag_list(gmm::span<gmm_tag>(tags, 8)));
  CHECK(count == 3 && tags[0] == GMM_TAG_DEFAULT && tags[1] == outer && tags[2] == inner);
  {
    TAKE(a, outer.push());
    {
      TAKE(b, inner.push());
      gmm::tag_scope c = std::move(b);
      CURRENT(context, inner.get());
    }
    CURRENT(context, outer.get());
    DO(a.pop());
    CURRENT(context, GMM_TAG_DEFAULT);
  }
  DO(inner.set_default());
  CURRENT(context, inner.get());
  DO(gmm::tag_ref(context, GMM_TAG_DEFAULT).set_default());
  CHECK_EQUAL(unheard, 0);
  DONE;
}

step pauses_return_bytes() {
  TAKE(context, open_context());
  TAKE(tag, kept_tag(context, "paused"));
  gmm::tag_desc keep;
  keep.contents = GMM_CONTENTS_HOST;
  keep.priority = 4;
  DO(tag.configure(keep));
  gmm::backup_desc backup;
  backup.threads = 1;
  DO(context.backup_configure(backup));
  DO(context.backup_reserve(gmm::device_id(), kMiB));
  TAKE(block, context.alloc(2 * kMiB, of_kind(GMM_KIND_VMM, tag)));
  DO(context.fill(block.data(), 9, block.size()));
  TAKE(gone, tag.pause());
  CHECK(gone >= 2 * kMiB);
  TAKE(again, tag.pause());
  CHECK_EQUAL(again, 0);
  TAKE(ready, context.resume_wait_for(block.data(), block.size(), gmm::milliseconds(0)));
  CHECK(!ready);
  uint8_t byte = 0;
  DO(context.backup_read(block.data(), 1, &byte));
  CHECK_EQUAL(byte, 9);
  TAKE(mapped, context.backup_map(block.data(), 2));
  CHECK_EQUAL(static_cast<const uint8_t *>(mapped)[1], 9);
  TAKE(kept, context.backup_query());
  CHECK(kept.arena_bytes + kept.pageable_bytes > 0);
  TAKE(back, context.resume_range(block.data(), block.size()));
  CHECK(back >= 2 * kMiB);
  DO(context.resume_wait(block.data(), block.size()));
  TAKE(whole, context.pause());
  TAKE(dropped, context.backup_discard());
  CHECK(dropped > 0);
  TAKE(returned, context.resume());
  CHECK_EQUAL(returned, whole);
  TAKE(nothing, tag.resume());
  CHECK_EQUAL(nothing, 0);
  DONE;
}

step tickets_wait_at_their_end() {
  TAKE(context, open_context());
  TAKE(tag, kept_tag(context, "background"));
  TAKE(block, context.alloc(2 * kMiB, of_kind(GMM_KIND_VMM, tag)));
  {
    TAKE(ticket, tag.pause_async());
    TAKE(bytes, ticket.wait());
    TAKE(info, ticket.query());
    CHECK(bytes >= 2 * kMiB && info.state == GMM_TICKET_DONE && info.bytes == bytes);
    TAKE(same, ticket.wait_for(gmm::milliseconds(0)));
    CHECK(same.has_value() && *same == bytes);
    DO(ticket.destroy());
  }
  { TAKE(ticket, tag.resume_async()); }
  TAKE(info, context.query(block.data()));
  CHECK_EQUAL(info.state, GMM_STATE_ACTIVE);
  gmm::pause_desc hold;
  hold.flags = GMM_PAUSE_HOLD;
  TAKE(held, context.pause_async(hold));
  DO(held.wait_held());
  TAKE(early, held.wait_for(gmm::milliseconds(0)));
  CHECK(!early.has_value());
  DO(held.commit());
  TAKE(released, held.wait());
  CHECK(released >= 2 * kMiB);
  TAKE(cancelled, context.resume_async(hold));
  DO(cancelled.wait_held());
  DO(cancelled.cancel());
  FAILS(cancelled.wait(), GMM_ERROR_CANCELLED);
  CHECK_EQUAL(unheard, 0);
  DONE;
}

// A lease that no other process wants.
step a_lease_of_one_process() {
  TAKE(context, open_context());
  TAKE(tag, gmm::tag::create(context, "of a lease"));
  gmm::lease_desc desc;
  desc.name = "one";
  TAKE(lease, gmm::lease::create(context, desc));
  DO(lease.offer(tag, 3));
  DO(lease.request());
  TAKE(used, lease.query());
  CHECK(used.state == GMM_LEASE_IN_USE && used.grants == 1);
  FAILS(lease.request(), GMM_ERROR_BUSY);
  TAKE(was_used, lease.give_back());
  TAKE(is_used, lease.give_back());
  CHECK(was_used && !is_used);
  TAKE(ticket, lease.request_async());
  DO(ticket.wait());
  DO(ticket.destroy());
  TAKE(entry, gmm::lease::list(context, 0, 30000));
  CHECK(entry.entry_count != 0 && entry.name[0] != '\0');
  DO(lease.destroy());
  DONE;
}

// --- Pages, sharing --------------------------------------------------------------------------------------------------
step watchers_end_with_their_object() {
  TAKE(context, open_context());
  TAKE(tag, gmm::tag::create(context, "watched"));
  TAKE(block, context.alloc(2 * kMiB, of_kind(GMM_KIND_VMM, tag)));
  gmm::watch_desc desc;
  desc.events = GMM_WATCH_LOSING | GMM_WATCH_RESTORED;
  desc.tag = tag;
  const auto heard = std::make_shared<std::string>();  // its count shows that the function has gone
  const auto listen = [heard](const gmm_watch_info &info) {
    *heard += info.event == GMM_WATCH_LOSING ? 'L' : 'R';
    return 0;
  };
  {
    TAKE(watcher, gmm::watcher::create(context, desc, listen));
    gmm::watcher moved = std::move(watcher);
    CHECK(!watcher && moved.get() != nullptr && heard.use_count() == 3);
    DO(tag.pause());
    DO(tag.resume());
    CHECK(*heard == "LR");
    DO(moved.destroy());
    CHECK(!moved && heard.use_count() == 2);
  }
  desc.events = 0;
  FAILS(gmm::watcher::create(context, desc, listen), GMM_ERROR_INVALID_FLAGS);
  CHECK_EQUAL(heard.use_count(), 2);
  desc.events = GMM_WATCH_LOSING;
  called = 0;
  desc.callback = {[](void *count, const gmm_watch_info *) -> int32_t { return ++*static_cast<int *>(count); },
                   &called};
  TAKE(watcher, gmm::watcher::create(context, desc));
  DO(tag.pause());
  CHECK_EQUAL(called, 1);
  DONE;
}

step pins_end_with_their_object() {
  TAKE(context, open_context());
  std::vector<uint8_t> own(20000, 5);
  {
    TAKE(outer, context.pin(own.data(), own.size()));
    CHECK(outer.data() == own.data() && outer.device_pointer() != nullptr);
    TAKE(inner, context.pin(own.data(), 100));
    DO(inner.unpin());
    TAKE(info, context.query(own.data()));
    CHECK_EQUAL(info.state, GMM_STATE_PINNED);
  }
  TAKE(info, context.query(own.data()));
  CHECK_EQUAL(info.state, GMM_STATE_UNKNOWN);
  DONE;
}

step pages_move_to_a_location() {
  TAKE(context, open_context());
  TAKE(managed, context.alloc(kMiB, of_kind(GMM_KIND_MANAGED)));
  DO(context.advise(managed.data(), 0, GMM_ADVISE_SET_PREFERRED_LOCATION, gmm::device_id(0)));
  DO(context.prefetch(managed.data(), 0, gmm::device_id::host()));
  FAILS(context.prefetch(managed.data(), 0, gmm::device_id(99)), GMM_ERROR_INVALID_DEVICE);
  gmm::alloc_desc desc = of_kind(GMM_KIND_VMM);
  desc.flags = GMM_ALLOC_DEDICATED;
  TAKE(block, context.alloc(2 * kMiB, desc));
  TAKE(moved, context.move(block.data(), gmm::device_id::host()));
  TAKE(again, context.move(block.data(), gmm::device_id::host()));
  CHECK(moved && !again);
  DONE;
}

step imports_close_themselves() {
  TAKE(context, open_context());
  std::string folder = "/tmp/gmm-hpp-XXXXXX";
  CHECK(mkdtemp(folder.data()) != nullptr);
  gmm::ipc_desc place;
  place.directory = folder.c_str();
  DO(context.ipc_configure(place));
  TAKE(block, context.alloc(2 * kMiB, of_kind(GMM_KIND_VMM)));
  TAKE(handle, context.ipc_export(static_cast<char *>(block.data()) + 100));
  {
    TAKE(import, context.ipc_import(handle));
    CHECK(import.data() == static_cast<char *>(block.data()) + 100);
    gmm::imported moved = std::move(import);
    DO(moved.close());
  }
  FAILS(context.ipc_import(gmm_ipc_handle{}), GMM_ERROR_IPC_INVALID_HANDLE);
  TAKE(fd, context.ipc_export_fd(block.data()));
  gmm::ipc_fd_desc of;
  of.type = fd.type;
  of.size = fd.size;
  {
    TAKE(mapped, context.ipc_import_fd(fd.fd, of));
    TAKE(stats, context.stats_query());
    CHECK(mapped.data() != nullptr && stats.imported_bytes > 0);
  }
  CHECK_EQUAL(close(fd.fd), 0);
  TAKE(stats, context.stats_query());
  CHECK_EQUAL(stats.imported_bytes, 0);
  TAKE(device, context.alloc(2 * kMiB, of_kind(GMM_KIND_DEVICE)));
  if (on_cuda()) {
    TAKE(legacy, context.ipc_export_legacy(device.data()));
    CHECK(legacy.size >= 2 * kMiB);
  } else {
    FAILS(context.ipc_export_legacy(device.data()), GMM_ERROR_NOT_SUPPORTED);
  }
  gmm::event_desc shared;
  shared.flags = GMM_EVENT_SHARED;
  TAKE(event, gmm::event::create(context, shared));
  TAKE(event_handle, event.export_handle());
  TAKE(twin, gmm::event::import_handle(context, event_handle));
  CHECK(twin && twin.get() != event.get());
  twin = {};
  event = {};
  device = {};
  block = {};
  DO(context.release());  // its socket goes
  CHECK_EQUAL(rmdir(folder.c_str()), 0);
  CHECK_EQUAL(unheard, 0);
  DONE;
}

// --- Limits, counts, records -----------------------------------------------------------------------------------------
int32_t give_up(void *user, const gmm_oom_info *info) {
  ++*static_cast<int *>(user);
  return info->attempt < 2 ? 1 : 0;
}
step limits_are_of_a_scope() {
  TAKE(context, open_context());
  TAKE(tag, gmm::tag::create(context, "limited"));
  DO(context.limit_set(gmm::scope().tag(tag).device(gmm::device_id(0)), 4 * kMiB));
  called = 0;
  DO(context.set_oom_handler(give_up, &called));
  FAILS(context.alloc(8 * kMiB, of_kind(GMM_KIND_VMM, tag)), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_EQUAL(called, 2);
  TAKE(block, context.alloc(kMiB, of_kind(GMM_KIND_VMM, tag)));
  TAKE(other, context.alloc(kMiB));
  TAKE(of_tag, context.stats_query(gmm::scope().tag(tag).kind(GMM_KIND_VMM)));
  CHECK(of_tag.live_blocks == 1 && of_tag.live_bytes == kMiB);
  block = {};
  TAKE(trimmed, context.trim(gmm::scope().tag(tag)));
  CHECK(trimmed >= kMiB);
  {
    TAKE(deferred, gmm::defer::begin(context));
    TAKE(nothing, context.trim());
    CHECK_EQUAL(nothing, 0);
    DO(deferred.end());
  }
  DO(context.set_decommit(std::chrono::seconds(60)));
  TAKE(info, context.query());
  CHECK_EQUAL(info.decommit_after_ms, 60000);
  other.detach();
  DO(context.reset());
  LIVE(context, 0);
  DONE;
}

step snapshots_are_read_and_written() {
  TAKE(context, open_context());
  TAKE(block, context.alloc(777, of_kind(GMM_KIND_HOST)));
  DO(context.name(block.data(), "weights"));
  TAKE(snapshot, gmm::snapshot::create(context, gmm::scope().kind(GMM_KIND_HOST)));
  TAKE(info, snapshot.query());
  CHECK_EQUAL(info.block_count, 1);
  TAKE(first, snapshot.query_block(0));
  CHECK(first.address == block.data() && std::string(first.name) == "weights");
  FAILS(snapshot.query_block(1), GMM_ERROR_INVALID_VALUE);
  TAKE(extent, snapshot.query_extent(0));
  CHECK(extent.size >= first.size);
  std::string text;
  DO(snapshot.write([&](std::string_view piece) {
    text += piece;
    return true;
  }));
  CHECK(text.find("\"gmm-snapshot\"") != std::string::npos);
  FAILS(snapshot.write([](std::string_view) { return false; }), GMM_ERROR_IO);
#if GMM_HPP_EXCEPTIONS
  bool got = false;
  try {
    snapshot.write([](std::string_view) -> bool { throw 7; });
  } catch (int thrown) {
    got = thrown == 7;
  }
  CHECK(got);
#endif
  DO(snapshot.destroy());
  DONE;
}

step traces_end_with_their_object() {
  TAKE(context, open_context());
  std::string path = "/tmp/gmm-hpp-XXXXXX";
  const int file = mkstemp(path.data());
  CHECK(file >= 0 && close(file) == 0);
  {
    TAKE(trace, gmm::trace::begin(context, path.c_str()));
    FAILS(gmm::trace::begin(context, path.c_str()), GMM_ERROR_BUSY);
    DO(trace.end());
    CHECK(!trace);
    TAKE(second, gmm::trace::begin(context, path.c_str()));
  }
  CHECK_EQUAL(unheard, 0);
  // A failed end leaves nothing to end: a later trace belongs to another object.
  {
    TAKE(ended, gmm::trace::begin(context, path.c_str()));
    CHECK_EQUAL(gmm_trace_end(context.get()), GMM_OK);
    FAILS(ended.end(), GMM_ERROR_UNBALANCED);
    CHECK(!ended);
    TAKE(next, gmm::trace::begin(context, path.c_str()));
    DO(ended.end());
    DO(next.end());
  }
  CHECK_EQUAL(unheard, 0);
  {
    TAKE(lost, gmm::trace::begin(context, path.c_str()));
    CHECK_EQUAL(gmm_trace_end(context.get()), GMM_OK);
  }
  CHECK_EQUAL(unheard, 1);
  std::remove(path.c_str());
  DONE;
}

// --- Containers ------------------------------------------------------------------------------------------------------
struct alignas(4096) page {
  char bytes[4096];
};

step containers_hold_host_and_managed_memory() {
  TAKE(context, open_context());
  for (const gmm::cpu_kind kind : {gmm::cpu_kind::host, gmm::cpu_kind::managed}) {
    TAKE(heap, gmm::cpu_heap::create(context, kind));
    {
      std::vector<int, gmm::allocator<int>> numbers(1000, 7, heap);
      numbers.push_back(8);
      TAKE(info, context.query(&numbers[500]));
      CHECK(info.kind == static_cast<gmm_kind>(kind) && numbers[999] == 7 && numbers[1000] == 8);
      std::vector<int, gmm::allocator<int>> moved = std::move(numbers);
      CHECK(moved.size() == 1001 && moved.get_allocator() == gmm::allocator<char>(heap));
      std::vector<page, gmm::allocator<page>> pages(3, heap);
      CHECK(reinterpret_cast<uintptr_t>(pages.data()) % 4096 == 0);
#if GMM_HPP_PMR
      gmm::memory_resource resource(heap), other(heap);
      std::pmr::vector<std::pmr::string> words(100, "a word that is too long for the space inside of a string",
                                               &resource);
      TAKE(of_word, context.query(words[99].data()));
      CHECK(of_word.kind == static_cast<gmm_kind>(kind) && resource.heap() == heap);
      CHECK(resource == resource && resource != other);
      void *nothing = resource.allocate(0);
      CHECK(nothing != nullptr);
      resource.deallocate(nothing, 0);
#endif
    }
    LIVE(context, 0);
    DO(heap.destroy());
  }
  TAKE(own, gmm::cpu_heap::create(context));
  TAKE(another, gmm::cpu_heap::create(context));
  CHECK(gmm::allocator<int>(own) != gmm::allocator<int>(another));
  DONE;
}

step containers_refuse_other_kinds() {
  TAKE(context, open_context());
  TAKE(device, gmm::heap::create(context));
  FAILS(gmm::cpu_heap_ref::of(device), GMM_ERROR_INVALID_KIND);
  gmm::heap_desc desc;
  desc.kind = GMM_KIND_MANAGED;
  TAKE(heap, gmm::heap::create(context, desc));
  TAKE(taken, gmm::cpu_heap_ref::of(heap));
  std::vector<int, gmm::allocator<int>> numbers(10, 3, taken);
  CHECK_EQUAL(numbers[9], 3);
  static_assert(!std::is_constructible_v<gmm::allocator<int>, gmm::heap>, "a heap of any kind is refused by its type");
#if GMM_HPP_PMR
  static_assert(!std::is_constructible_v<gmm::memory_resource, gmm::heap_ref>);
#endif
  DONE;
}

[[maybe_unused]] gmm::outcome<gmm::cpu_heap> limited_heap(gmm::context_ref context) {
  gmm::heap_desc desc;
  desc.limit = 4 * kMiB;
  return gmm::cpu_heap::create(context, gmm::cpu_kind::host, desc);
}

#if GMM_HPP_EXCEPTIONS
step containers_throw_bad_alloc() {
  TAKE(context, open_context());
  TAKE(heap, limited_heap(context));
  gmm::allocator<uint64_t> allocator = heap;
  FAILS(allocator.allocate(8 * kMiB), GMM_ERROR_LIMIT_EXCEEDED);
  bool is_bad_alloc = false;
  try {
    std::vector<uint64_t, gmm::allocator<uint64_t>> large(8 * kMiB, heap);
  } catch (const std::bad_alloc &) {
    is_bad_alloc = true;
  }
  CHECK(is_bad_alloc);
  // A size beyond any memory: by the number of objects, and by the library's answer.
  bool is_bad_length = false;
  try {
    static_cast<void>(allocator.allocate(SIZE_MAX / 4));
  } catch (const std::bad_array_new_length &) {
    is_bad_length = true;
  }
  CHECK(is_bad_length);
#if GMM_HPP_PMR
  gmm::memory_resource resource(heap);
  FAILS(resource.allocate(SIZE_MAX / 2), GMM_ERROR_SIZE_OVERFLOW);
  FAILS(resource.allocate(64, 4 * kMiB), GMM_ERROR_INVALID_ALIGNMENT);
#endif
  LIVE(context, 0);
  DONE;
}
#elif !defined(__cpp_exceptions)
template <uint64_t Count>
step allocate_too_much() {
  gmm::context_desc desc;
  desc.backend = GMM_BACKEND_HOST;  // a driver does not survive fork()
  TAKE(context, gmm::context::create(desc));
  TAKE(heap, limited_heap(context));
  static_cast<void>(gmm::allocator<uint64_t>(heap).allocate(Count));
  DONE;
}
step containers_end_the_program() {
  CHECK_EQUAL(ends_with(allocate_too_much<8 * kMiB>), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_EQUAL(ends_with(allocate_too_much<SIZE_MAX / 4>), GMM_ERROR_SIZE_OVERFLOW);
  DONE;
}
#endif

// --- Failures on the way ---------------------------------------------------------------------------------------------
std::atomic<int64_t> host_blocks, host_calls, host_fails_at;
void *host_allocate(void *, uint64_t size, uint64_t alignment) {
  if (host_calls++ == host_fails_at) return nullptr;
  void *memory = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory != nullptr) ++host_blocks;
  return memory;
}
void host_deallocate(void *, void *memory, uint64_t) {
  --host_blocks;
  std::free(memory);
}

// Uses each class once; any step may fail.
step use_everything() {
  gmm::context_desc desc;
  desc.host_allocator = {host_allocate, host_deallocate, nullptr};
  desc.log.fn = [](void *, gmm_log_level, const char *) {};
  TAKE(context, gmm::context::create(desc));
  TAKE(tag, gmm::tag::create(context, "everything"));
  TAKE(scope, tag.push());
  TAKE(stream, gmm::stream::create(context));
  TAKE(event, gmm::event::create(context));
  TAKE(heap, gmm::heap::create(context));
  TAKE(of_heap, heap.alloc(3 * kMiB, stream));
  TAKE(block, context.alloc(5000, of_kind(GMM_KIND_VMM, tag, stream)));
  DO(event.record(stream));
  TAKE(own, gmm::cpu_heap::create(context));
#ifdef __cpp_exceptions
#if GMM_HPP_EXCEPTIONS
  const std::vector<int, gmm::allocator<int>> numbers(1000, 7, own);
#endif
#endif
  DO(event.synchronize());
  DO(event.destroy());  // a failure leaves it to the destructor, which tries again
  gmm::watch_desc watched;
  watched.events = GMM_WATCH_PREPARE | GMM_WATCH_FAILED;
  TAKE(watcher, gmm::watcher::create(context, watched, [](const gmm_watch_info &) { return 0; }));
  TAKE(paused, tag.pause());
  TAKE(ticket, tag.resume_async());
  TAKE(resumed, ticket.wait());
  CHECK_EQUAL(resumed, paused);
  TAKE(snapshot, gmm::snapshot::create(context));
  DONE;
}
// Whether no step failed.
bool used_everything() {
#if GMM_HPP_EXCEPTIONS
  try {
    use_everything();
    return true;
  } catch (const gmm::error &e) {
    CHECK(e.code() < 0 && std::strlen(e.message()) > 20);
    return false;
  }
#else
  return use_everything().has_value();
#endif
}

// Lets the first call fail, then the second, and so on. `arm(k)` sets the k-th, or none for 0; `is_past()` says that
// there were fewer calls.
template <class Arm, class Past>
void fail_each(Arm arm, Past is_past) {
  CHECK(used_everything());
  unsigned failed = 0;
  for (uint64_t k = 1;; ++k) {
    arm(k);
    if (!used_everything()) ++failed;
    const bool was_last = is_past();
    arm(0);
    CHECK_MESSAGE(host_blocks == 0, "call %llu: %lld blocks are left", static_cast<unsigned long long>(k),
                  static_cast<long long>(host_blocks));
    if (was_last) break;
  }
  CHECK_MESSAGE(failed > 10, "%u failures were reported", failed);
}

step nothing_leaks_when_host_memory_fails() {
  const auto arm = [](uint64_t k) {
    host_calls = 0;
    host_fails_at = static_cast<int64_t>(k) - 1;
  };
  arm(0);
  fail_each(arm, [] { return host_calls <= host_fails_at; });
  DONE;
}

template <class Function>
Function *find(void *driver, const char *name) {
  return driver != nullptr ? reinterpret_cast<Function *>(dlsym(driver, name)) : nullptr;
}
step nothing_leaks_when_the_driver_fails() {
  void *driver = on_cuda() ? dlopen("libcuda.so.1", RTLD_NOW) : nullptr;
  const auto fail = find<decltype(fake_cuda_fail)>(driver, "fake_cuda_fail");
  if (fail == nullptr) DONE;  // a real driver
  const auto failures = find<decltype(fake_cuda_failures)>(driver, "fake_cuda_failures");
  const auto live = find<decltype(fake_cuda_live)>(driver, "fake_cuda_live");
  fake_cuda_live_t before = {}, after = {};
  CHECK(used_everything());
  live(&before);
  uint64_t so_far = 0;
  fail_each(
      [&](uint64_t k) {
        so_far = failures();
        fail(nullptr, k, k != 0 ? 2 : 0);  // CUDA_ERROR_OUT_OF_MEMORY
        live(&after);
        // The driver itself keeps the reference to its context that it refused to take back.
        CHECK(after.allocations == before.allocations && after.reservations == before.reservations);
        CHECK(after.handles == before.handles && after.streams == before.streams && after.events == before.events);
      },
      [&] { return failures() == so_far; });
  dlclose(driver);
  DONE;
}

#if __cplusplus >= 202002L
step descriptors_take_names() {
  TAKE(context, gmm::context::create({.host_devices = 2}));
  TAKE(tag, gmm::tag::create(context, "named", {.contents = GMM_CONTENTS_HOST}));
  TAKE(stream, gmm::stream::create(context, {.device = gmm::device_id(0)}));
  TAKE(block, context.alloc(100, {.kind = GMM_KIND_VMM, .tag = tag, .stream = stream}));
  TAKE(info, context.query(block.data()));
  CHECK(info.kind == GMM_KIND_VMM && info.tag == tag);
  DONE;
}
#endif

}  // namespace

int main() {
  CASE(times_are_milliseconds);
  CASE(objects_are_as_small_as_their_contents);
  CASE(results_hold_a_value_or_an_error);
  CASE(errors_keep_their_message);
  CASE(contexts_are_counted);
  CASE(buffers_free_themselves);
  CASE(buffers_have_spans);
  CASE(tries_take_from_the_thread_cache);
  CASE(heaps_end_after_their_blocks);
  CASE(streams_and_events_order_work);
  CASE(one_object_owns_a_tag);
  CASE(tag_scopes_nest);
  CASE(pauses_return_bytes);
  CASE(tickets_wait_at_their_end);
  CASE(watchers_end_with_their_object);
  CASE(a_lease_of_one_process);
  CASE(pins_end_with_their_object);
  CASE(pages_move_to_a_location);
  CASE(imports_close_themselves);
  CASE(limits_are_of_a_scope);
  CASE(snapshots_are_read_and_written);
  CASE(traces_end_with_their_object);
  CASE(containers_hold_host_and_managed_memory);
  CASE(containers_refuse_other_kinds);
#if GMM_HPP_EXCEPTIONS
  CASE(containers_throw_bad_alloc);
#elif !defined(__cpp_exceptions)
  CASE(containers_end_the_program);
#endif
  CASE(nothing_leaks_when_host_memory_fails);
  CASE(nothing_leaks_when_the_driver_fails);
#if __cplusplus >= 202002L
  CASE(descriptors_take_names);
#endif
  return check_finish();
}
