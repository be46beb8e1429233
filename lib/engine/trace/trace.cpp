// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/trace.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>

#include "base/barrier.h"
#include "base/process.h"
#include "base/thread.h"
#include "engine/heap/block.h"
#include "engine/heap/thread_cache.h"
#include "engine/trace/snapshot.h"

namespace gmm {

namespace {

static_assert(std::endian::native == std::endian::little,
              "the file is little-endian, and written from memory as it is");

constexpr uint32_t kTimeShift = 8, kAddressShift = 24;
constexpr uint64_t kLongestTime = (uint64_t{1} << (kAddressShift - kTimeShift)) - 1;
static_assert(kUnit == 256 && kMaxSize < uint64_t{1} << 48, "addresses and sizes fit into short records");

// The traces that ever began and whose contexts live, for threads that end.
constinit Registry::Place g_trace_places[Trace::kMaxTraces] = {};
constinit Registry g_traces{g_trace_places, Trace::kMaxTraces};

uint64_t place_of(const Heap &heap) {
  const HeapOptions &options = heap.options();
  return static_cast<uint64_t>(options.kind) | uint64_t{static_cast<uint16_t>(options.device.ordinal)} << 16 |
         uint64_t{options.tag} << 32;
}

void copy_text(uint64_t *to, const char *text, uint32_t bytes) { std::memcpy(to, text, strnlen(text, bytes)); }

uint64_t number_of(const void *address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

Trace::~Trace() {
  g_traces.remove(key_);
  while (buffers_ != nullptr) {
    TraceBuffer *buffer = buffers_;
    buffers_ = buffer->next;
    end_block(*buffer);
    core_.allocator.destroy(buffer);
  }
}

// --- Begin and end -------------------------------------------------------------------------------------------------

Status Trace::begin(const char *path, const gmm_trace_desc &desc) {
  LockGuard guard(control_mutex_);
  if (begun_)
    return fail(GMM_ERROR_BUSY, "gmm_trace_begin(\"%.200s\"): the context records a trace already; end it first.",
                path == nullptr ? "" : path);
  if (key_.serial == 0 && !g_traces.add(this, &key_))
    return fail(GMM_ERROR_NOT_SUPPORTED, "gmm_trace_begin(): %u contexts of a process can record; release some.",
                kMaxTraces);
  const uint64_t stack_bytes = std::min(desc.stack_bytes, kMaxSize);
  fence_ = !expedited_barriers();
  if (path != nullptr) GMM_TRY(begin_file(path, stack_bytes));
  has_file_ = path != nullptr;
  listener_ = desc.blocks;
  stack_bytes_.store(stack_bytes, std::memory_order_relaxed);
  if (stack_bytes != 0) prepare_call_stacks();
  {
    LockGuard buffers_guard(buffers_mutex_);
    for (TraceBuffer *buffer = buffers_; buffer != nullptr; buffer = buffer->next)
      buffer->until_stack = next_distance(*buffer);
    LockGuard written_guard(written_mutex_);
    written_.clear();
    modules_ = 0;
  }
  begun_ = true;
  core_.gate->word.store(kGateWatched, std::memory_order_seq_cst);
  pass_barrier();  // its partner is a thread that makes or frees a block, and then looks at the gate
  return Status();
}

Status Trace::begin_file(const char *path, uint64_t stack_bytes) {
  GMM_TRY(file_.open(path));
  lost_.store(0, std::memory_order_relaxed);
  const uint64_t hertz = counter_hertz();
  has_counter_ = hertz != 0;
  trace_header header = {};
  std::memcpy(header.magic, "gmmtrace", sizeof header.magic);
  header.version = TRACE_VERSION;
  header.block_bytes = TRACE_BLOCK_BYTES;
  header.clock_hertz = has_counter_ ? hertz : 1000000000;
  for (clock_shift_ = 0; header.clock_hertz > 200'000'000; ++clock_shift_) header.clock_hertz /= 2;
  header.begin_time = begin_time_ = now();
  header.begin_epoch = epoch_ns();
  header.process = static_cast<uint32_t>(process_number());
  header.stack_bytes = stack_bytes;
  std::strncpy(header.backend, core_.backend->name(), sizeof header.backend - 1);
  void *first = file_.add_block(TRACE_BLOCK_BYTES);
  if (first != nullptr) std::memcpy(first, &header, sizeof header);
  if (first != nullptr && file_.end_block(first, TRACE_BLOCK_BYTES)) return Status();
  const int error = file_.error();
  file_.close().ignore();  // the first failure is reported below
  return fail_native(GMM_ERROR_IO, error, "gmm_trace_begin(\"%.200s\"): the file cannot be written: %s.", path,
                     ErrorText(error).text);
}

Status Trace::end() {
  LockGuard guard(control_mutex_);
  if (!begun_) return fail(GMM_ERROR_UNBALANCED, "gmm_trace_end(): the context records no trace; begin one first.");
  begun_ = false;
  core_.gate->word.store(core_.gate_without_trace(), std::memory_order_seq_cst);
  {
    LockGuard buffers_guard(buffers_mutex_);
    pass_barrier();
    // A log callback inside a free may call this function: the thread must not wait for itself.
    const void *own = SlotTable::find(own_thread_record(), ThreadPart::kTraceBuffers, key_);
    for (TraceBuffer *buffer = buffers_; buffer != nullptr; buffer = buffer->next) {
      if (buffer != own) wait_until_left(buffer->busy);
      end_block(*buffer);
    }
  }
  if (!has_file_) return Status();
  TraceBuffer last;
  bool whole = next_block(last);
  if (whole) {
    put(last, TRACE_END, now(), {lost_.load(std::memory_order_relaxed)});
    whole = file_.end_block(last.block, TRACE_BLOCK_BYTES);
  }
  const uint64_t lost = lost_.load(std::memory_order_relaxed);
  const int error = file_.error();
  GMM_TRY(file_.close());
  if (whole && lost == 0) return Status();
  return fail_native(
      GMM_ERROR_IO, error, "gmm_trace_end(): the trace is incomplete: %" PRIu64 " events%s are missing (%s).", lost,
      whole ? "" : " and its end", error == 0 ? "no host memory for the buffers" : ErrorText(error).text);
}

// --- Buffers ---------------------------------------------------------------------------------------------------------

TraceBuffer *Trace::join() {
  ThreadRecord *record = make_thread_record();
  if (record == nullptr || !SlotTable::reserve(record, ThreadPart::kTraceBuffers, key_, end_buffers)) return nullptr;
  LockGuard guard(buffers_mutex_);
  TraceBuffer *buffer = buffers_;
  while (buffer != nullptr && buffer->thread != 0) buffer = buffer->next;
  if (buffer == nullptr) {
    buffer = core_.allocator.create<TraceBuffer>();
    if (buffer == nullptr) return nullptr;
    buffer->random = number_of(buffer) ^ now();
    buffer->until_stack = next_distance(*buffer);
    buffer->next = buffers_;
    buffers_ = buffer;
  }
  buffer->thread = static_cast<uint32_t>(thread_number());
  if (buffer->block != nullptr && buffer->end - buffer->at >= kMostWords) put_thread(*buffer);
  SlotTable::set(record, ThreadPart::kTraceBuffers, key_, buffer);
  return buffer;
}

void Trace::end_buffers(void *table) {
  SlotTable::take(table, g_traces, [](void *trace, void *buffer) {
    static_cast<Trace *>(trace)->end_buffer(*static_cast<TraceBuffer *>(buffer));
  });
}

void Trace::end_buffer(TraceBuffer &buffer) {
  LockGuard guard(buffers_mutex_);
  if (running() && buffer.block != nullptr && has_place(buffer)) put(buffer, TRACE_THREAD_ENDED, now(), {});
  buffer.thread = 0;
}

inline TraceBuffer *Trace::enter() {
  // The caller saw the word without an order, and the key was written before it.
  if (__builtin_expect(core_.gate->word.load(std::memory_order_acquire) != kGateWatched, 0)) return nullptr;
  auto *buffer = static_cast<TraceBuffer *>(SlotTable::find(own_thread_record(), ThreadPart::kTraceBuffers, key_));
  if (__builtin_expect(buffer == nullptr, 0)) {
    buffer = join();
    if (buffer == nullptr) {
      lose(1);
      return nullptr;
    }
  }
  // `busy` is a count, because a log callback inside a free may free.
  if constexpr (kThreadSanitizer) {
    buffer->busy.exchange(buffer->busy.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  } else {
    buffer->busy.store(buffer->busy.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (__builtin_expect(fence_, 0)) __atomic_thread_fence(__ATOMIC_SEQ_CST);
  }
  if (__builtin_expect(core_.gate->word.load(std::memory_order_seq_cst) == kGateWatched, 1)) return buffer;
  leave(*buffer);
  return nullptr;
}

inline void Trace::leave(TraceBuffer &buffer) {
  buffer.busy.store(buffer.busy.load(std::memory_order_relaxed) - 1, std::memory_order_release);
}

void Trace::end_block(TraceBuffer &buffer) {
  if (buffer.block != nullptr && !file_.end_block(buffer.block, TRACE_BLOCK_BYTES)) lose(buffer.events);
  buffer.block = buffer.at = buffer.end = nullptr;
  buffer.events = 0;
}

bool Trace::next_block(TraceBuffer &buffer) {
  end_block(buffer);
  buffer.block = static_cast<uint64_t *>(file_.add_block(TRACE_BLOCK_BYTES));
  if (buffer.block == nullptr) return false;
  buffer.at = buffer.block;
  buffer.end = buffer.block + TRACE_BLOCK_BYTES / 8;
  std::memset(buffer.streams, 0, sizeof buffer.streams);
  std::memset(buffer.heaps, 0, sizeof buffer.heaps);
  std::memset(buffer.held, 0, sizeof buffer.held);
  std::memset(buffer.paused, 0, sizeof buffer.paused);
  if (buffer.thread != 0) put_thread(buffer);
  return true;
}

inline bool Trace::has_place(TraceBuffer &buffer, uint32_t words) {
  if (__builtin_expect(buffer.end - buffer.at < static_cast<ptrdiff_t>(words), 0)) {
    // This thread may have ended the trace inside a free: then the event is not the trace's.
    if (buffer.block == nullptr && (!running() || !has_file_)) return false;
    if (!next_block(buffer)) {
      lose(1);
      return false;
    }
  }
  ++buffer.events;
  return true;
}

// --- Records ---------------------------------------------------------------------------------------------------------

// A reader stops at a word of 0. So the first word of a record comes last, as the program may be killed at any
// instruction.
void Trace::put(TraceBuffer &buffer, trace_type type, uint64_t time, std::initializer_list<uint64_t> values,
                const char *text, uint32_t text_words) {
  uint64_t *end = std::copy(values.begin(), values.end(), buffer.at + kLongWords);
  if (text != nullptr) {
    copy_text(end, text, 8 * text_words);  // a new block is zeros
    end += text_words;
  }
  end_long(buffer, type, time, end);
}

void Trace::end_long(TraceBuffer &buffer, trace_type type, uint64_t time, uint64_t *end) {
  uint64_t *const at = buffer.at;
  at[1] = time;
  std::atomic_signal_fence(std::memory_order_release);
  at[0] = TRACE_LONG | static_cast<uint64_t>(type) << 8 | static_cast<uint64_t>(end - at) << 16;
  std::atomic_signal_fence(std::memory_order_release);
  buffer.at = end;
  buffer.time = time;
}

void Trace::put_heap(TraceBuffer &buffer, uint64_t time, const Heap &heap) {
  static_assert(sizeof(Tag::name) == TRACE_NAME_BYTES);
  const Tag *tag = tags_.get(heap.options().tag);
  const uint64_t number = heap.fast.serial, slot = number % TRACE_HEAP_SLOTS;
  put(buffer, TRACE_HEAP, time, {slot, number, place_of(heap)}, tag != nullptr ? tag->name : "");
  buffer.heaps[slot] = number;
  buffer.held[slot] = buffer.paused[slot] = 0;
}

void Trace::put_held(TraceBuffer &buffer, uint64_t time, Heap &heap) {
  const uint64_t held = heap.own_quota().held(), paused = heap.paused_bytes();
  const uint64_t number = heap.fast.serial, slot = number % TRACE_HEAP_SLOTS;
  if (buffer.held[slot] == held && buffer.paused[slot] == paused) return;
  put(buffer, TRACE_HELD, time, {number, held, paused});
  buffer.held[slot] = held;
  buffer.paused[slot] = paused;
}

// The first word of a short record.
inline uint64_t Trace::short_record(TraceBuffer &buffer, trace_type type, uint64_t time, const void *memory,
                                    gmm_stream stream) {
  const uint64_t number = number_of(stream), slot = number * UINT64_C(0x9e3779b97f4a7c15) >> 60;
  static_assert(TRACE_STREAM_SLOTS == 1 << 4);
  if (__builtin_expect(buffer.streams[slot] != number, 0)) {
    buffer.streams[slot] = number;
    put(buffer, TRACE_STREAM, time, {slot, number});
  }
  if (__builtin_expect(time - buffer.time > kLongestTime, 0)) put(buffer, TRACE_TIME, time, {});
  const uint64_t since = time - buffer.time;
  buffer.time = time;
  return type | slot << 4 | since << kTimeShift | number_of(memory) >> 8 << kAddressShift;
}

inline void Trace::put_short(TraceBuffer &buffer, trace_type type, uint64_t time, const void *memory,
                             gmm_stream stream) {
  const uint64_t first = short_record(buffer, type, time, memory, stream);
  *buffer.at = first;
  std::atomic_signal_fence(std::memory_order_release);
  ++buffer.at;
}

// Calls fn(TraceBuffer &), where there is place for what it records.
template <typename Fn>
inline void Trace::record(Fn fn, uint32_t words) {
  TraceBuffer *buffer = enter();
  if (buffer == nullptr) return;
  if (has_place(*buffer, words)) fn(*buffer);
  leave(*buffer);
}

inline void Trace::put_changes(TraceBuffer &buffer, uint64_t time, Heap &heap) {
  const uint64_t number = heap.fast.serial, slot = number % TRACE_HEAP_SLOTS;
  if (__builtin_expect(buffer.heaps[slot] != number, 0)) put_heap(buffer, time, heap);
  if (__builtin_expect(buffer.held[slot] != heap.own_quota().held(), 0)) put_held(buffer, time, heap);
}

inline void Trace::put_alloc(TraceBuffer &buffer, uint64_t time, const Heap &heap, const void *memory, uint64_t size,
                             uint64_t alignment, uint32_t flags, gmm_stream stream) {
  const uint64_t first = short_record(buffer, TRACE_ALLOC, time, memory, stream);
  const uint64_t log2_alignment = (flags & GMM_ALLOC_PAUSED) != 0 ? uint64_t{TRACE_BORN_PAUSED}
                                  : alignment > 1                 ? static_cast<uint64_t>(std::countr_zero(alignment))
                                                                  : 0;
  buffer.at[1] = size | heap.fast.serial % TRACE_HEAP_SLOTS << 48 | log2_alignment << 56 |
                 uint64_t{(flags & GMM_ALLOC_DEDICATED) != 0} << 62 | uint64_t{(flags & GMM_ALLOC_ZERO) != 0} << 63;
  std::atomic_signal_fence(std::memory_order_release);
  buffer.at[0] = first;
  std::atomic_signal_fence(std::memory_order_release);
  buffer.at += 2;
}

void Trace::allocated(Heap &heap, const void *memory, uint64_t size, uint64_t alignment, uint32_t flags,
                      gmm_stream stream) {
  TraceBuffer *buffer = enter();
  if (buffer == nullptr) return;
  uint32_t stack = 0;
  const uint64_t stands_for = sample(*buffer, size);
  if (__builtin_expect(stands_for != 0, 0)) {
    leave(*buffer);
    stack = core_.stacks.here();
    Heap::note_stack(core_, memory, stack);
    stack = write_stack(stack);
    buffer = enter();
    if (buffer == nullptr) return;
  }
  const uint64_t time = now();
  if (has_place(*buffer)) {
    put_changes(*buffer, time, heap);
    if (__builtin_expect(stack != 0, 0)) put(*buffer, TRACE_AT, time, {stack, stands_for});
    put_alloc(*buffer, time, heap, memory, size, alignment, flags, stream);
  }
  if (__builtin_expect(listener_.allocated != nullptr, 0)) tell(listener_.allocated, memory, stream);
  leave(*buffer);
}

bool Trace::tell(Listen fn, const void *memory, gmm_stream stream) {
  Block block;
  if (fn == nullptr || !find_block(core_, memory, &block) || block.base != number_of(memory)) return false;
  const HeapOptions &options = block.heap->options();
  gmm_block_info info = {};
  info.struct_size = sizeof info;
  info.kind = static_cast<gmm_kind>(options.kind);
  info.device = options.device.ordinal;
  info.tag = options.tag;
  info.state = block.paused ? GMM_STATE_PAUSED : GMM_STATE_ACTIVE;
  info.address = const_cast<void *>(memory);
  info.size = block.requested;
  info.reserved_size = block.reserved;
  if ((block.slot->load(std::memory_order_relaxed) & kUsedElsewhere) != 0 &&
      block.heap->mutex.lock_unless_operation()) {
    const UnlockAtEnd guard(block.heap->mutex);
    std::memcpy(info.name, block.heap->notes().of(memory).name, sizeof info.name);
  }
  check_may_call_program(ProgramCall::kTrace);
  fn(listener_.user, &info, stream);
  return true;
}

void Trace::lived(Heap &heap, const Snapshot &copy) {
  record([&](TraceBuffer &buffer) {
    put_changes(buffer, begin_time_, heap);
    put_held(buffer, begin_time_, heap);
  });
  copy.for_each_block([&](const void *memory, uint64_t size, uint32_t flags, const BlockNotes::Note &note) {
    const uint32_t stack = write_stack(note.stack);
    record([&](TraceBuffer &buffer) {
      put_changes(buffer, begin_time_, heap);
      if (stack != 0) put(buffer, TRACE_AT, begin_time_, {stack, size});
      put(buffer, TRACE_LIVE, begin_time_, {});
      put_alloc(buffer, begin_time_, heap, memory, size, 0, flags, GMM_STREAM_DEFAULT);
    });
    if (TraceBuffer *buffer = enter(); buffer != nullptr) {
      tell(listener_.allocated, memory, GMM_STREAM_DEFAULT);
      leave(*buffer);
    }
    if (note.name[0] != '\0')
      record([&](TraceBuffer &buffer) { put(buffer, TRACE_BLOCK_NAME, begin_time_, {number_of(memory)}, note.name); });
  });
}

Status Trace::freed(Core &core, void *memory, gmm_stream stream) {
  TraceBuffer *buffer = enter();
  if (buffer == nullptr) return cached_free(core, memory, stream);
  const uint64_t time = now();
  const bool is_told = listener_.freed != nullptr && tell(listener_.freed, memory, stream);
  const Status status = cached_free(core, memory, stream);
  if (is_told && !status.ok()) tell(listener_.allocated, memory, stream);
  if (__builtin_expect(status.ok(), 1) && has_place(*buffer)) put_short(*buffer, TRACE_FREE, time, memory, stream);
  leave(*buffer);
  return status;
}

void Trace::freed_at_begin(const void *memory, gmm_stream stream) {
  record([&](TraceBuffer &buffer) { put_short(buffer, TRACE_FREE, begin_time_ + 1, memory, stream); });
}

void Trace::used(const void *memory, gmm_stream stream) {
  record([&](TraceBuffer &buffer) { put_short(buffer, TRACE_USE, now(), memory, stream); });
}

void Trace::named(const void *memory, const char *name) {
  static_assert(BlockNotes::kNameSize == TRACE_NAME_BYTES);
  record([&](TraceBuffer &buffer) { put(buffer, TRACE_BLOCK_NAME, now(), {number_of(memory)}, name); });
}

void Trace::note(trace_type type, std::initializer_list<uint64_t> values) {
  record([&](TraceBuffer &buffer) { put(buffer, type, now(), values); });
}

void Trace::tags_changed(trace_type type, const gmm_tag *tags, uint32_t count, uint64_t bytes, uint64_t began) {
  if (count == 0) note(type, {TRACE_EVERY_TAG, bytes, began});
  // The bytes are those of the whole call. They stand in its first record.
  for (uint32_t i = 0; i < count; ++i) note(type, {tags[i], i == 0 ? bytes : 0, began});
}

void Trace::moved(const void *memory, uint64_t bytes, Device location, uint64_t began) {
  note(TRACE_MOVE, {number_of(memory), bytes, began, static_cast<uint32_t>(location.ordinal)});
}

void Trace::held(Heap &heap) {
  record([&](TraceBuffer &buffer) {
    const uint64_t time = now();
    put_changes(buffer, time, heap);
    put_held(buffer, time, heap);
  });
}

void Trace::failed(Status status, uint64_t bytes, const Heap *heap) {
  constexpr uint32_t kTextWords = TRACE_TEXT_BYTES / 8;
  const uint32_t stack = stack_bytes_.load(std::memory_order_relaxed) == 0 ? 0 : write_stack(core_.stacks.here());
  const auto put_failure = [&](TraceBuffer &buffer) {
    const uint64_t time = now();
    if (stack != 0) put(buffer, TRACE_AT, time, {stack, bytes});
    put(buffer, TRACE_FAILED, time,
        {static_cast<uint32_t>(status.code()), bytes, heap == nullptr ? 0 : place_of(*heap)}, last_message(),
        kTextWords);
  };
  record(put_failure, 2 * kLongWords + 5 + kTextWords);
}

// --- Stacks ----------------------------------------------------------------------------------------------------------

int64_t Trace::next_distance(TraceBuffer &buffer) const {
  const uint64_t mean = stack_bytes_.load(std::memory_order_relaxed);
  if (mean == 0) return INT64_MAX;
  buffer.random = buffer.random * 6364136223846793005 + 1442695040888963407;
  return static_cast<int64_t>(1 + (buffer.random >> 16) % (2 * mean - 1));
}

inline uint64_t Trace::sample(TraceBuffer &buffer, uint64_t size) {
  buffer.until_stack -= static_cast<int64_t>(size);
  return __builtin_expect(buffer.until_stack > 0, 1) ? 0 : choose_sample(buffer, size);
}

__attribute__((noinline, cold)) uint64_t Trace::choose_sample(TraceBuffer &buffer, uint64_t size) {
  const uint64_t mean = stack_bytes_.load(std::memory_order_relaxed);
  if (mean != 0 && size >= 2 * mean - 1) {
    buffer.until_stack += static_cast<int64_t>(size);  // the points are those of smaller blocks
    return size;
  }
  uint64_t stands_for = 0;
  for (; buffer.until_stack <= 0; stands_for += mean) buffer.until_stack += next_distance(buffer);
  return stands_for;
}

uint32_t Trace::write_stack(uint32_t stack) {
  static_assert(StackTable::kInterpreted == TRACE_INTERPRETED && StackTable::kNameBytes == TRACE_NAME_BYTES &&
                StackTable::kFileBytes == TRACE_TEXT_BYTES);
  TraceBuffer *buffer = stack == 0 ? nullptr : enter();
  if (buffer == nullptr) return 0;
  bool is_whole = has_file_;
  {
    LockGuard guard(written_mutex_);
    uint64_t calls[StackTable::kMostWords];
    const uint32_t count = !is_whole || is_written(stack) ? 0 : core_.stacks.read(stack, calls);
    for (uint32_t number; count != 0 && is_whole && (number = core_.stacks.module(modules_)) != 0; modules_ += is_whole)
      is_whole = write_once(*buffer, TRACE_MODULE, number);
    for (uint32_t i = 0; i < count && is_whole; ++i)
      if ((calls[i] & TRACE_INTERPRETED) != 0)
        is_whole = write_once(*buffer, TRACE_FRAME, static_cast<uint32_t>(calls[i]));
    is_whole = is_whole && write_once(*buffer, TRACE_STACK, stack);
  }
  leave(*buffer);
  return is_whole ? stack : 0;
}

bool Trace::is_written(uint32_t number) const {
  return written_.find(number, [=](uint32_t each) { return each == number; }) != nullptr;
}

bool Trace::write_once(TraceBuffer &buffer, trace_type type, uint32_t number) {
  if (is_written(number)) return true;
  uint64_t words[StackTable::kMostWords];
  const uint32_t count = core_.stacks.read(number, words);
  if (!written_.reserve() || !has_place(buffer, kLongWords + 1 + count)) return false;
  buffer.at[kLongWords] = number;
  end_long(buffer, type, now(), std::copy_n(words, count, buffer.at + kLongWords + 1));
  written_.add(number, number);
  return true;
}

void Trace::heap_created(const Heap &heap) { note(TRACE_HEAP_CREATED, {heap.fast.serial, place_of(heap)}); }

}  // namespace gmm
