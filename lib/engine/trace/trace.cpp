// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/trace.h"

#include <bit>
#include <cinttypes>
#include <cstring>

#include "base/barrier.h"
#include "base/clock.h"
#include "base/process.h"
#include "engine/heap/thread_cache.h"

namespace gmm {

using namespace trace_format;

namespace {

// The traces that ever began and whose contexts live, for threads that end.
constinit Registry::Place g_trace_places[Trace::kMaxTraces] = {};
constinit Registry g_traces{g_trace_places, Trace::kMaxTraces};

uint64_t *records_of(unsigned char *chunk) { return reinterpret_cast<uint64_t *>(chunk + sizeof(ChunkHeader)); }

uint64_t heap_word_of(const Heap &heap) {
  const HeapOptions &options = heap.options();
  return heap_word(static_cast<uint32_t>(options.kind), options.device.ordinal, options.tag);
}

}  // namespace

Trace::~Trace() {
  g_traces.remove(key_);
  while (lanes_ != nullptr) {
    TraceLane *lane = lanes_;
    lanes_ = lane->next;
    end_chunk(*lane);
    core_.allocator.destroy(lane);
  }
  core_.allocator.deallocate(touched_, kTouched * sizeof *touched_);
}

// --- Begin and end -------------------------------------------------------------------------------------------------

Status Trace::begin(const char *path) {
  LockGuard guard(control_mutex_);
  if (begun_)
    return fail(GMM_ERROR_BUSY, "gmm_trace_begin(\"%.200s\"): the context records a trace already; end it first.",
                path);
  if (key_.serial == 0 && !g_traces.add(this, &key_))
    return fail(GMM_ERROR_NOT_SUPPORTED, "gmm_trace_begin(): %u contexts of a process can record; release some.",
                kMaxTraces);
  void *memory = core_.allocator.allocate(kTouched * sizeof *touched_, 64);
  if (memory == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY,
                "gmm_trace_begin(): the host has no memory for the trace's tables; free memory.");
  const Status status = file_.open(path);
  if (!status.ok()) {
    core_.allocator.deallocate(memory, kTouched * sizeof *touched_);
    return status;
  }
  std::memset(memory, 0, kTouched * sizeof *touched_);
  touched_ = static_cast<std::atomic<uint64_t> *>(memory);
  lost_.store(0, std::memory_order_relaxed);
  fence_ = !expedited_barriers();
  FileHeader header = {};
  std::memcpy(header.magic, kMagic, sizeof header.magic);
  header.version = kVersion;
  header.header_size = static_cast<uint32_t>(file_.first_chunk(sizeof header));
  header.clock_hertz = 1000000000;
  header.begin_time = monotonic_ns();
  header.begin_epoch = epoch_ns();
  header.process = static_cast<uint32_t>(process_number());
  std::strncpy(header.backend, core_.backend->name(), sizeof header.backend - 1);
  if (!file_.write_header(&header, sizeof header)) {
    const int error = file_.error();
    file_.close().ignore();  // the failure of the write is reported below
    core_.allocator.deallocate(touched_, kTouched * sizeof *touched_);
    touched_ = nullptr;
    char text[96];
    return fail_native(GMM_ERROR_IO, error, "gmm_trace_begin(\"%.200s\"): the file cannot be written: %s.", path,
                       system_error_text(error, text, sizeof text));
  }
  begun_ = true;
  core_.gate->word.store(kGateWatched, std::memory_order_seq_cst);
  return Status();
}

Status Trace::end() {
  LockGuard guard(control_mutex_);
  if (!begun_) return fail(GMM_ERROR_UNBALANCED, "gmm_trace_end(): the context records no trace; begin one first.");
  begun_ = false;
  core_.gate->word.store(kGateOpen, std::memory_order_seq_cst);
  {
    LockGuard lanes_guard(lanes_mutex_);
    pass_barrier();
    // A log callback inside a free may call this function: the thread must not wait for itself.
    const void *own = SlotTable::find(own_thread_record(), ThreadPart::kLanes, key_);
    for (TraceLane *lane = lanes_; lane != nullptr; lane = lane->next) {
      if (lane != own) wait_until_left(lane->busy);
      end_chunk(*lane);
      lane->sequence = 0;
    }
  }
  core_.allocator.deallocate(touched_, kTouched * sizeof *touched_);
  touched_ = nullptr;
  const uint64_t lost = lost_.load(std::memory_order_relaxed);
  struct {
    ChunkHeader header;
    uint64_t words[2];
  } last = {{kChunkMagic, sizeof last.words, 0, 0, monotonic_ns(), 1, 0}, {head(kEnd, 0, 0), lost}};
  const bool whole = file_.write(&last, sizeof last);
  const int error = file_.error();
  GMM_TRY(file_.close());
  if (whole && lost == 0) return Status();
  char text[96];
  return fail_native(GMM_ERROR_IO, error,
                     "gmm_trace_end(): the trace is incomplete: %" PRIu64 " events%s are missing (%s).", lost,
                     whole ? "" : " and its end",
                     error == 0 ? "no host memory for the buffers" : system_error_text(error, text, sizeof text));
}

// --- Lanes -----------------------------------------------------------------------------------------------------------

TraceLane *Trace::join() {
  ThreadRecord *record = make_thread_record();
  if (record == nullptr || !SlotTable::reserve(record, ThreadPart::kLanes, key_, end_lanes)) return nullptr;
  LockGuard guard(lanes_mutex_);
  TraceLane *lane = lanes_;
  while (lane != nullptr && lane->thread_id != 0) lane = lane->next;
  if (lane == nullptr) {
    lane = core_.allocator.create<TraceLane>();
    if (lane == nullptr) return nullptr;
    lane->number = ++lane_count_;
    lane->tag = lane->number < (1u << kTagBits) ? lane->number : 0;
    lane->next = lanes_;
    lanes_ = lane;
  }
  lane->thread_id = record->id;
  SlotTable::set(record, ThreadPart::kLanes, key_, lane);
  return lane;
}

void Trace::end_lanes(void *table) {
  SlotTable::take(table, g_traces, [](void *trace, void *lane) {
    static_cast<Trace *>(trace)->end_lane(*static_cast<TraceLane *>(lane));
  });
}

void Trace::end_lane(TraceLane &lane) {
  LockGuard guard(lanes_mutex_);
  if (running() && lane.chunk != nullptr) {
    read_clock(lane);
    put_note(lane, kThreadEnded, 0, 0);
    // A mapped chunk waits for the next thread.
    if (!lane.is_mapped) end_chunk(lane);
  }
  lane.thread_id = 0;
}

inline TraceLane *Trace::enter() {
  // The caller saw the word without an order, and the key was written before it.
  if (__builtin_expect(core_.gate->word.load(std::memory_order_acquire) != kGateWatched, 0)) return nullptr;
  auto *lane = static_cast<TraceLane *>(SlotTable::find(own_thread_record(), ThreadPart::kLanes, key_));
  if (__builtin_expect(lane == nullptr, 0)) {
    lane = join();
    if (lane == nullptr) {
      lose(1);
      return nullptr;
    }
  }
  // `busy` is a count, because a log callback inside a free may free.
  if constexpr (kThreadSanitizer) {
    lane->busy.exchange(lane->busy.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  } else {
    lane->busy.store(lane->busy.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (__builtin_expect(fence_, 0)) __atomic_thread_fence(__ATOMIC_SEQ_CST);
  }
  if (__builtin_expect(core_.gate->word.load(std::memory_order_seq_cst) == kGateWatched, 1)) return lane;
  leave(*lane);
  return nullptr;
}

inline void Trace::leave(TraceLane &lane) {
  lane.busy.store(lane.busy.load(std::memory_order_relaxed) - 1, std::memory_order_release);
}

// --- Time ------------------------------------------------------------------------------------------------------------

void Trace::read_clock(TraceLane &lane) {
  const uint64_t now = monotonic_ns();
  if (now > lane.now) lane.now = now;
  lane.unread = 0;
  lane.coarse = coarse_ns();
}

inline void Trace::stamp(TraceLane &lane, const void *memory) {
  constexpr uint32_t kLongestUnread = 32;
  const uint64_t unit = reinterpret_cast<uintptr_t>(memory) / kAddressUnit;
  const uint64_t mark = unit << kTagBits | lane.tag;
  std::atomic<uint64_t> &place = touched_[(unit ^ unit >> 12) % kTouched];
  const bool mine = place.load(std::memory_order_relaxed) == mark && lane.tag != 0 && unit >> (64 - kTagBits) == 0;
  const uint64_t coarse = coarse_ns();
  if (__builtin_expect(mine && coarse == lane.coarse && ++lane.unread < kLongestUnread, 1)) return;
  if (!mine) place.store(mark, std::memory_order_relaxed);
  read_clock(lane);
}

// --- Records ---------------------------------------------------------------------------------------------------------

void Trace::finish_chunk(TraceLane &lane) {
  if (lane.chunk == nullptr) return;
  if (lane.is_mapped) {
    for (; lane.at != lane.end; ++lane.records) put(lane, head(kUnused, 0, 0), nullptr, 0);
    reinterpret_cast<ChunkHeader *>(lane.chunk)->records = lane.records;
    TraceFile::end_chunk(lane.chunk, kChunk);
    lane.chunk = nullptr;
    lane.at = lane.end = nullptr;
  } else if (lane.at != records_of(lane.chunk)) {
    auto *header = reinterpret_cast<ChunkHeader *>(lane.chunk);
    const uint64_t size = static_cast<uint64_t>(reinterpret_cast<unsigned char *>(lane.at) - lane.chunk);
    header->size = static_cast<uint32_t>(size - sizeof(ChunkHeader));
    header->records = lane.records;
    if (!file_.write(lane.chunk, size)) lose(lane.events);
    lane.at = records_of(lane.chunk);
  }
  lane.records = lane.events = 0;
}

void Trace::end_chunk(TraceLane &lane) {
  finish_chunk(lane);
  core_.allocator.deallocate(lane.chunk, kChunk);
  lane.chunk = nullptr;
  lane.at = lane.end = nullptr;
}

bool Trace::next_chunk(TraceLane &lane) {
  finish_chunk(lane);
  // This thread may have ended the trace inside a free.
  if (lane.chunk == nullptr && !running()) return false;
  // Every chunk is readable by itself.
  lane.start = lane.written = lane.now;
  std::memset(lane.streams, 0, sizeof lane.streams);
  std::memset(lane.heaps, 0, sizeof lane.heaps);
  std::memset(lane.tags, 0, sizeof lane.tags);
  if (make_chunk(lane)) return true;
  lose(1);
  return false;
}

bool Trace::make_chunk(TraceLane &lane) {
  const ChunkHeader header = {kChunkMagic, kChunk - sizeof header, lane.number, lane.sequence, lane.start, 0, 0};
  if (lane.chunk == nullptr) {
    lane.chunk = static_cast<unsigned char *>(file_.add_chunk(&header, sizeof header, kChunk));
    lane.is_mapped = lane.chunk != nullptr;
    if (!lane.is_mapped) lane.chunk = static_cast<unsigned char *>(core_.allocator.allocate(kChunk, 64));
    if (lane.chunk == nullptr) return false;
  }
  if (!lane.is_mapped) std::memcpy(lane.chunk, &header, sizeof header);
  ++lane.sequence;
  lane.at = records_of(lane.chunk);
  lane.end = reinterpret_cast<uint64_t *>(lane.chunk + kChunk);
  lane.records = lane.events = 0;
  return true;
}

// A reader stops at a word of 0. So the first word of a record comes last, as the program may be killed at any
// instruction.
inline void Trace::put(TraceLane &lane, uint64_t first, const uint64_t *rest, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) lane.at[i + 1] = rest[i];
  std::atomic_signal_fence(std::memory_order_release);
  lane.at[0] = first;
  std::atomic_signal_fence(std::memory_order_release);
  lane.at += count + 1;
}

// Precedes a record whose time differs from that of the last one.
inline void Trace::put_time(TraceLane &lane) {
  if (__builtin_expect(lane.now == lane.written, 1)) return;
  lane.written = lane.now;
  put(lane, head(kTime, 0, lane.now - lane.start), nullptr, 0);
  ++lane.records;
}

inline uint32_t Trace::stream_place(TraceLane &lane, gmm_stream stream) {
  const uint64_t handle = reinterpret_cast<uintptr_t>(stream);
  const uint32_t place = static_cast<uint32_t>((handle * 0x9e3779b97f4a7c15u) >> 59);
  static_assert(kPlaces == 32);
  if (__builtin_expect(lane.streams[place] != stream, 0)) {
    lane.streams[place] = stream;
    put(lane, head(kStream, place, 0), &handle, 1);
    ++lane.records;
  }
  return place;
}

// A name is zeros behind its end. Its second part is left out where it has none.
void Trace::put_name(TraceLane &lane, uint8_t type, uint64_t value, const char *name) {
  static_assert(uint64_t{kNameParts} * kNameBytes >= BlockNames::kSize &&
                uint64_t{kNameParts} * kNameBytes >= sizeof(Tag::name));
  const uint64_t length = strnlen(name, kNameParts * kNameBytes);
  uint32_t part = 0;
  for (uint64_t at = 0; part == 0 || at < length; at += kNameBytes) {
    uint64_t words[kNameBytes / 8] = {};
    std::memcpy(words, name + at, length - at < kNameBytes ? length - at : kNameBytes);
    put(lane, head(type, part++, value), words, kNameBytes / 8);
    ++lane.records;
  }
}

__attribute__((noinline)) void Trace::put_tag(TraceLane &lane, gmm_tag tag) {
  gmm_tag &known = lane.tags[tag % kPlaces];
  const Tag *of = tags_.get(tag);
  if (known == tag || of == nullptr) return;
  known = tag;
  put_name(lane, kTagName, tag, of->name);
}

inline uint32_t Trace::heap_place(TraceLane &lane, const Heap &heap) {
  const uint32_t place = heap.fast.slot % kPlaces;
  if (__builtin_expect(lane.heaps[place] != heap.fast.serial, 0)) {
    lane.heaps[place] = heap.fast.serial;
    const uint64_t words[2] = {heap.fast.serial, heap_word_of(heap)};
    put(lane, head(kHeap, place, 0), words, 2);
    ++lane.records;
    put_tag(lane, heap.options().tag);
  }
  return place;
}

void Trace::allocated(const Heap &heap, const void *memory, uint64_t size, uint64_t alignment, uint32_t flags,
                      gmm_stream stream) {
  TraceLane *lane = enter();
  if (lane == nullptr) return;
  stamp(*lane, memory);
  if (room(*lane)) {
    const uint32_t stream_at = stream_place(*lane, stream), heap_at = heap_place(*lane, heap);
    put_time(*lane);
    const uint64_t word =
        size_word(size, heap_at, alignment > 1 ? static_cast<uint32_t>(std::countr_zero(alignment)) : 0,
                  (flags & GMM_ALLOC_DEDICATED) != 0, (flags & GMM_ALLOC_ZERO) != 0);
    put(*lane, head(kAlloc, stream_at, reinterpret_cast<uintptr_t>(memory) / kAddressUnit), &word, 1);
    ++lane->records;
    ++lane->events;
  }
  leave(*lane);
}

inline void Trace::put_address(TraceLane &lane, uint8_t type, const void *memory, gmm_stream stream) {
  if (!room(lane)) return;
  const uint32_t place = stream_place(lane, stream);
  put_time(lane);
  put(lane, head(type, place, reinterpret_cast<uintptr_t>(memory) / kAddressUnit), nullptr, 0);
  ++lane.records;
  ++lane.events;
}

Status Trace::freed(Core &core, void *memory, gmm_stream stream) {
  TraceLane *lane = enter();
  if (lane == nullptr) return cached_free(core, memory, stream);
  stamp(*lane, memory);
  const Status status = cached_free(core, memory, stream);
  if (__builtin_expect(status.ok(), 1)) put_address(*lane, kFree, memory, stream);
  leave(*lane);
  return status;
}

void Trace::used(const void *memory, gmm_stream stream) {
  TraceLane *lane = enter();
  if (lane == nullptr) return;
  stamp(*lane, memory);
  put_address(*lane, kUse, memory, stream);
  leave(*lane);
}

void Trace::named(const void *memory, const char *name) {
  TraceLane *lane = enter();
  if (lane == nullptr) return;
  stamp(*lane, memory);
  if (room(*lane)) {
    put_time(*lane);
    put_name(*lane, kBlockName, reinterpret_cast<uintptr_t>(memory) / kAddressUnit, name);
    ++lane->events;
  }
  leave(*lane);
}

void Trace::put_note(TraceLane &lane, uint8_t type, uint64_t first, uint64_t second) {
  if (!room(lane)) return;
  put_time(lane);
  const uint64_t words[2] = {first, second};
  put(lane, head(type, 0, 0), words, (type & 7u) - 1);
  ++lane.records;
  ++lane.events;
}

void Trace::note(uint8_t type, uint64_t first, uint64_t second) {
  TraceLane *lane = enter();
  if (lane == nullptr) return;
  read_clock(*lane);
  put_note(*lane, type, first, second);
  leave(*lane);
}

void Trace::tags_changed(uint8_t type, const gmm_tag *tags, uint32_t count, uint64_t bytes) {
  if (count == 0) note(type, kEveryTag, bytes);
  // The bytes are those of the whole call. They stand in its first record.
  for (uint32_t i = 0; i < count; ++i) note(type, tags[i], i == 0 ? bytes : 0);
}

void Trace::was_reset() {
  TraceLane *lane = enter();
  if (lane == nullptr) return;
  read_clock(*lane);
  put_note(*lane, kReset, 0, 0);
  // The next event on any address, on whichever thread, gets a later time than this one.
  for (uint32_t i = 0; i < kTouched; ++i) touched_[i].store(0, std::memory_order_relaxed);
  leave(*lane);
}

void Trace::heap_created(const Heap &heap) { note(kHeapCreated, heap.fast.serial, heap_word_of(heap)); }

}  // namespace gmm
