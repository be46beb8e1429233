// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/call_stack.h"
#include "base/utf8.h"
#include "cli/list.h"

extern "C" {
#include "cli/trace.h"
}

using gmm::append;
using gmm::List;
using gmm::Numbers;

namespace {

enum { HIGHEST_ID = 50 * 1000 * 1000, LINE = 128 };

// The state that the records of a block of the file have set.
struct block_state {
  uint64_t thread;  // 0: none so far
  uint64_t time;    // of the last record
  uint32_t streams[TRACE_STREAM_SLOTS];
  uint64_t places[TRACE_HEAP_SLOTS];  // 0: not known
  uint64_t stack, stands_for;         // of the next alloc or failure
  bool is_live;                       // the next alloc was before the trace
};

// A trace that is being read. Its functions return nullptr, or what is wrong.
struct reader {
  gzFile file = nullptr;
  trace read = {};
  Numbers streams, tags, threads, stacks;  // with the indices of these
  Numbers frames;                          // addresses, or TRACE_INTERPRETED and a frame's number
  List<uint64_t> live;                     // of a text, by number of the block: its size while it lives
  block_state now = {};
  List<uint64_t> addresses;  // of stacks, as `frames` has them
  uint64_t offset = 0;       // of the record, or number of the line
  uint64_t begin_time = 0;
  double tick = 0;  // nanoseconds of one
};

// The index of the item of a number, or of a new one.
template <typename T>
uint32_t index_of(Numbers *numbers, uint64_t number, T **items, uint32_t *count, const T &made) {
  const uint64_t index = numbers->add(number);
  return index < *count ? static_cast<uint32_t>(index) : append(items, count, made);
}

uint32_t stream_index(reader *reader, uint64_t number) {
  if (number == 1) number = 0;  // a default stream too
  return index_of(&reader->streams, number, &reader->read.streams, &reader->read.stream_count, number);
}

// A tag without a name so far is called by its number.
uint32_t tag_index(reader *reader, gmm_tag number) {
  trace_tag made = {number, {}};
  std::snprintf(made.name, sizeof made.name, number == GMM_TAG_DEFAULT ? "default" : "tag %" PRIu32, number);
  return index_of(&reader->tags, number, &reader->read.tags, &reader->read.tag_count, made);
}

// --- Text --------------------------------------------------------------------------------------------------------

// Reads ` NUMBER` and moves behind it.
bool number(const char **text, uint64_t *out) {
  const char *at = *text;
  if (*at++ != ' ' || *at < '0' || *at > '9') return false;
  for (*out = 0; *at >= '0' && *at <= '9'; ++at)
    if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, *at - '0', out)) return false;
  *text = at;
  return true;
}

const char *read_line(reader *reader, const char *text) {
  static const char neither[] = "the line is neither 'a ID BYTES STREAM' nor 'f ID STREAM'";
  const char verb = *text;
  uint64_t id = 0, size = 0, stream = 0;
  if ((verb != 'a' && verb != 'f') || (++text, !number(&text, &id)) || (verb == 'a' && !number(&text, &size)) ||
      !number(&text, &stream) || *text != '\0')
    return neither;
  if (id > HIGHEST_ID) return "the number of the block is above 50,000,000";
  reader->live.grow_to(id + 1);
  if (verb == 'a' && size == 0) return "the allocation has 0 bytes";
  if (verb == 'a' && reader->live[id] != 0) return "the block is allocated already";
  if (verb == 'f' && reader->live[id] == 0) return "the block is not allocated";
  trace_event event = {};
  event.size = size;
  event.block = static_cast<uint32_t>(id);
  event.type = verb == 'a' ? TRACE_ALLOC : TRACE_FREE;
  event.stream = stream_index(reader, stream);
  reader->live[id] = size;
  reader->read.block_count = std::max(reader->read.block_count, event.block + 1);
  append(&reader->read.events, &reader->read.count, event);
  return nullptr;
}

const char *read_text(reader *reader) {
  char line[LINE + 2];
  int code = Z_OK;
  const char *wrong = nullptr;
  for (reader->offset = 1; wrong == nullptr && gzgets(reader->file, line, sizeof line) != nullptr; ++reader->offset) {
    size_t length = std::strlen(line);
    if (length > 0 && line[length - 1] == '\n')
      line[--length] = '\0';
    else if (length == LINE + 1)
      return "the line is too long";
    else if (gzerror(reader->file, &code), code != Z_OK && code != Z_STREAM_END)
      return nullptr;  // the line is cut, which the caller reports
    if (length > 0 && line[length - 1] == '\r') line[length - 1] = '\0';
    wrong = read_line(reader, line);
    if (wrong != nullptr) return wrong;
  }
  reader->read.ended = 1;
  reader->read.thread_count = 1;
  return nullptr;
}

// --- Binary: the records -----------------------------------------------------------------------------------------

uint64_t nanoseconds(const reader *reader, uint64_t time) {
  const uint64_t ticks = time < reader->begin_time ? 0 : time - reader->begin_time;
  return static_cast<uint64_t>(static_cast<double>(ticks) * reader->tick);
}

trace_event event_at(const reader *reader, uint8_t type) {
  trace_event event = {};
  event.time = event.began = nanoseconds(reader, reader->now.time);
  event.type = type;
  event.block = TRACE_NO_BLOCK;
  return event;
}

void take_stack(reader *reader, trace_event *event) {
  event->stack = static_cast<uint32_t>(std::exchange(reader->now.stack, 0));  // its number, until all are read
}

// An event goes to the thread of its block of the file.
const char *add_read(reader *reader, trace_event *event) {
  const uint64_t thread = reader->now.thread;
  if (thread == 0) return "the block of the file has no thread";
  if (reader->read.count == UINT32_MAX) return "the trace has more events than this program can count";
  event->thread = index_of(&reader->threads, thread, &reader->read.threads, &reader->read.thread_count, thread);
  append(&reader->read.events, &reader->read.count, *event);
  return nullptr;
}

void set_place(reader *reader, uint64_t place, trace_event *event) {
  event->kind = static_cast<uint16_t>(place);
  event->device = static_cast<gmm_device>(place >> 16 & 0xffff);
  event->tag = tag_index(reader, static_cast<gmm_tag>(place >> 32));
}

const char *read_short(reader *reader, uint64_t first, uint64_t second) {
  reader->now.time += first >> 8 & 0xffff;
  trace_event event = event_at(reader, first & 0xf);
  event.address = first >> 24 << 8;
  event.stream = reader->now.streams[first >> 4 & 0xf];
  if (event.type == TRACE_ALLOC) {
    const uint64_t place = reader->now.places[second >> 48 & 0xff];
    event.size = second & ((UINT64_C(1) << 48) - 1);
    event.log2_alignment = second >> 56 & 0x3f;
    event.was_live = std::exchange(reader->now.is_live, false);
    set_place(reader, place, &event);
    take_stack(reader, &event);
    event.value = event.stack == 0 ? 0 : reader->now.stands_for;
    if (event.size == 0) return "the size of the allocation is impossible";
    if (place == 0) return "the allocation is of an unknown heap";
  }
  return add_read(reader, &event);
}

// A text of a record, or a name.
template <uint64_t kBytes>
struct Text {
  explicit Text(const uint64_t *from) {
    std::memcpy(text, from, kBytes);
    gmm::make_printable(text, kBytes);
  }
  char text[kBytes];
};

template <uint64_t kBytes>
uint32_t add_text(char (**texts)[kBytes], uint32_t *count, const uint64_t *from) {
  return append(reinterpret_cast<Text<kBytes> **>(texts), count, Text<kBytes>(from));
}

const char *read_frame(reader *reader, const uint64_t *values) {
  constexpr uint32_t kFile = 2 + TRACE_NAME_BYTES / 8;
  trace_frame frame = {0, TRACE_NO_FRAME, TRACE_NO_FRAME, static_cast<uint32_t>(values[1]), "", ""};
  std::memcpy(frame.name, values + 2, TRACE_NAME_BYTES);
  gmm::make_printable(frame.name, TRACE_NAME_BYTES + 1);
  std::strcpy(frame.file, Text<TRACE_TEXT_BYTES>(values + kFile).text);
  index_of(&reader->frames, values[0] | TRACE_INTERPRETED, &reader->read.frames, &reader->read.frame_count, frame);
  return nullptr;
}

// Its addresses become frames when all records are read: a frame's record may follow in the block of another thread.
const char *read_stack(reader *reader, const uint64_t *values, uint32_t count) {
  if (values[0] == 0) return "the stack has no number";
  if (reader->addresses.size() > UINT32_MAX / 2) return "the trace has more stacks than this program can count";
  const trace_stack stack = {static_cast<uint32_t>(reader->addresses.size()), count == 0 ? 0 : count - 1};
  index_of(&reader->stacks, values[0], &reader->read.stacks, &reader->read.stack_count, stack);
  for (uint32_t i = 1; i < count; ++i) reader->addresses.add(values[i]);
  return nullptr;
}

const char *read_module(reader *reader, const uint64_t *values) {
  trace_module module = {values[1], values[2], values[3], "", ""};
  gmm::Module id;
  if (values[4] > sizeof id.build_id) return "the build-id is longer than any";
  std::memcpy(id.build_id, values + 5, sizeof id.build_id);
  gmm::build_id_text(id.build_id, values[4], module.build_id);
  std::strcpy(module.path, Text<TRACE_TEXT_BYTES>(values + 5 + sizeof id.build_id / 8).text);
  append(&reader->read.modules, &reader->read.module_count, module);
  return nullptr;
}

const char *read_heap(reader *reader, const uint64_t *values) {
  if (values[0] >= TRACE_HEAP_SLOTS) return "the slot of the heap is impossible";
  reader->now.places[values[0]] = values[2];
  const uint32_t tag = tag_index(reader, static_cast<gmm_tag>(values[2] >> 32));
  if (values[3] != 0) std::strcpy(reader->read.tags[tag].name, Text<TRACE_NAME_BYTES>(&values[3]).text);
  return nullptr;
}

// Values of long records that are events as they are. Of other types the first one is the address.
constexpr struct {
  uint8_t type;
  uint64_t trace_event::*values[4];
} kEvents[] = {{TRACE_PAUSE, {nullptr, &trace_event::size, &trace_event::began}},
               {TRACE_RESUME, {nullptr, &trace_event::size, &trace_event::began}},
               {TRACE_TRIM, {nullptr, &trace_event::size, &trace_event::began}},
               {TRACE_COMPACT, {&trace_event::size, &trace_event::value, &trace_event::began}},
               {TRACE_MOVE, {&trace_event::address, &trace_event::size, &trace_event::began, &trace_event::value}},
               {TRACE_HELD, {&trace_event::address, &trace_event::size, &trace_event::value}},
               {TRACE_FAILED, {nullptr, &trace_event::size}},
               {0, {&trace_event::address}}};

const char *read_event(reader *reader, uint8_t type, const uint64_t *values) {
  trace *const of = &reader->read;
  trace_event event = event_at(reader, type);
  const auto *record = kEvents;
  while (record->type != type && record->type != 0) ++record;
  event.began = 0;
  for (uint32_t i = 0; i < 4; ++i)
    if (record->values[i] != nullptr) event.*record->values[i] = values[i];
  event.began = event.began == 0 ? event.time : std::min(nanoseconds(reader, event.began), event.time);
  if (type == TRACE_PAUSE || type == TRACE_RESUME)
    event.tag = values[0] == TRACE_EVERY_TAG ? TRACE_NO_TAG : tag_index(reader, static_cast<gmm_tag>(values[0]));
  if (type == TRACE_HEAP_CREATED) set_place(reader, values[1], &event);
  if (type == TRACE_BLOCK_NAME) event.value = add_text(&of->names, &of->name_count, &values[1]);
  if (type == TRACE_HELD) {
    const uint64_t place = reader->now.places[values[0] % TRACE_HEAP_SLOTS];
    if (place == 0) return "the bytes are of an unknown heap";
    set_place(reader, place, &event);
  }
  if (type == TRACE_FAILED) {
    take_stack(reader, &event);
    event.result = static_cast<int32_t>(values[0]);
    set_place(reader, values[2], &event);
    event.value = add_text(&of->texts, &of->text_count, &values[3]);
  }
  return add_read(reader, &event);
}

// `values` has all those that this release knows, and zeros where the record has fewer. `count`: in the record.
const char *read_long(reader *reader, uint8_t type, const uint64_t *values, uint32_t count) {
  switch (type) {
    case TRACE_TIME:
      return nullptr;
    case TRACE_LIVE:
      reader->now.is_live = true;
      return nullptr;
    case TRACE_THREAD:
      reader->now.thread = static_cast<uint32_t>(values[0]);
      return nullptr;
    case TRACE_STREAM:
      if (values[0] >= TRACE_STREAM_SLOTS) return "the slot of the stream is impossible";
      reader->now.streams[values[0]] = stream_index(reader, values[1]);
      return nullptr;
    case TRACE_HEAP:
      return read_heap(reader, values);
    case TRACE_END:
      reader->read.ended = 1;
      reader->read.lost = values[0];
      return nullptr;
    case TRACE_FRAME:
      return read_frame(reader, values);
    case TRACE_STACK:
      return read_stack(reader, values, count);
    case TRACE_MODULE:
      return read_module(reader, values);
    case TRACE_AT:
      if (values[0] > UINT32_MAX) return "the number of the stack is impossible";
      reader->now.stack = values[0];
      reader->now.stands_for = values[1];
      return nullptr;
    default:
      return read_event(reader, type, values);
  }
}

const char *read_block(reader *reader, const unsigned char *block, uint32_t size) {
  enum { VALUES = 255 - 2 };  // the most that a record has
  const uint64_t begin = reader->offset;
  reader->now = {};
  for (uint32_t at = 0; size - at >= 8 && block[at] != 0;) {
    uint64_t words[2 + VALUES] = {0};
    const int is_long = block[at] == TRACE_LONG, form = block[at] & 0xf;
    reader->offset = begin + at;
    const uint32_t bytes = is_long ? block[at + 2] * 8u : form == TRACE_ALLOC ? 16 : 8;
    if (!is_long && (form < TRACE_ALLOC || form > TRACE_USE)) return "the record has an unknown form";
    if (is_long && bytes < 16) return "the record has no size";
    if (bytes > size - at) return size == TRACE_BLOCK_BYTES ? "the record is longer than its block" : nullptr;
    std::memcpy(words, block + at, bytes);
    if (is_long) reader->now.time = words[1];
    const char *wrong =
        is_long ? read_long(reader, block[at + 1], &words[2], bytes / 8 - 2) : read_short(reader, words[0], words[1]);
    if (wrong != nullptr) return wrong;
    at += bytes;
  }
  reader->offset = begin + size;
  return nullptr;
}

// A block at a time: zeros that gzip has packed take no memory here. The last block of a cut file is shorter.
const char *read_blocks(reader *reader) {
  unsigned char block[TRACE_BLOCK_BYTES];
  const char *wrong = nullptr;
  trace_header header;
  for (int first = 1, got = TRACE_BLOCK_BYTES; wrong == nullptr && got == TRACE_BLOCK_BYTES; first = 0) {
    got = gzread(reader->file, block, TRACE_BLOCK_BYTES);
    if (got <= 0) break;  // the caller looks at the cause
    if (!first) {
      wrong = reader->read.ended ? "the file goes on behind the end of the trace"
                                 : read_block(reader, block, static_cast<uint32_t>(got));
      continue;
    }
    std::memset(&header, 0, sizeof header);
    std::memcpy(&header, block, std::min<size_t>(got, sizeof header));
    if (got < static_cast<int>(sizeof header)) wrong = "the file ends in its header";
    if (wrong == nullptr && header.version != TRACE_VERSION) wrong = "the trace has another version than 1";
    if (wrong == nullptr && header.block_bytes != TRACE_BLOCK_BYTES)
      wrong = "the blocks of the trace have another size";
    reader->read.process = header.process;
    reader->read.epoch = header.begin_epoch;
    reader->read.stack_bytes = header.stack_bytes;
    reader->begin_time = header.begin_time;
    reader->tick = header.clock_hertz == 0 ? 1 : 1e9 / static_cast<double>(header.clock_hertz);
    reader->offset = static_cast<uint64_t>(got);
  }
  return wrong;
}

// --- Binary: the stacks ------------------------------------------------------------------------------------------

uint32_t module_of(const trace &of, uint64_t address) {
  for (uint32_t i = of.module_count; i-- > 0;)  // a later one may have come in the place of an earlier one
    if (address >= of.modules[i].begin && address < of.modules[i].end) return i;
  return TRACE_NO_FRAME;
}

// TRACE_NO_FRAME: the file lacks it.
uint32_t frame_index(reader *reader, uint64_t address) {
  trace &of = reader->read;
  if ((address & TRACE_INTERPRETED) != 0 || address == 0)
    return static_cast<uint32_t>(reader->frames.index_of(address));
  const trace_frame made = {address, module_of(of, address), TRACE_NO_FRAME, 0, "", ""};
  return index_of(&reader->frames, address, &of.frames, &of.frame_count, made);
}

// Frames that the file lacks are left out, and so are stacks.
void resolve_stacks(reader *reader) {
  trace &of = reader->read;
  for (uint32_t i = 0; i < of.stack_count; ++i) {
    trace_stack &stack = of.stacks[i];
    const uint32_t begin = std::exchange(stack.first, of.stack_frame_count), end = begin + stack.count;
    for (uint32_t at = begin; at < end; ++at)
      if (const uint32_t frame = frame_index(reader, reader->addresses[at]); frame != TRACE_NO_FRAME)
        append(&of.stack_frames, &of.stack_frame_count, frame);
    stack.count = of.stack_frame_count - stack.first;
  }
  for (uint64_t i = 0; i < of.count; ++i) {
    const uint64_t stack = reader->stacks.index_of(of.events[i].stack);
    of.events[i].stack = stack == Numbers::kNone ? 0 : static_cast<uint32_t>(stack);
  }
}

// --- Binary: the order and the blocks ----------------------------------------------------------------------------

struct live_block {
  uint64_t address;
  uint32_t block;
  bool was_live;
};

bool names_block(const trace_event &event) {
  return event.type == TRACE_ALLOC || event.type == TRACE_FREE || event.type == TRACE_USE ||
         event.type == TRACE_BLOCK_NAME;
}

// Puts the events of all threads into one order, and numbers the blocks.
class Order {
 public:
  explicit Order(trace *of) : trace_(of) {}
  const char *run(const char *path);

 private:
  live_block *find(uint64_t address) {
    return live_.find(address, [address](const live_block &each) { return each.address == address; });
  }
  bool is_possible(const trace_event &event) {
    const live_block *live = names_block(event) ? find(event.address) : nullptr;
    return !names_block(event) || (event.type == TRACE_ALLOC ? live == nullptr || live->was_live : live != nullptr);
  }
  void choose(trace_event *events, uint64_t count, uint64_t at);
  void add_free(const live_block &live, trace_event of);
  void end(uint64_t address, const trace_event &of);
  const char *add_alloc(trace_event event);
  const char *add(trace_event event);

  trace *const trace_;
  gmm::HashTable<live_block> live_{gmm::HostAllocator()};  // by address
  uint64_t presumed_ = 0;                                  // frees that must be missing
};

// Of several threads' events at about one time, takes one that is possible to `at`.
void Order::choose(trace_event *events, uint64_t count, uint64_t at) {
  if (is_possible(events[at])) return;
  for (uint64_t i = at + 1; i < count && events[i].time <= events[at].time + 10000; ++i) {
    if (events[i].address != events[at].address || events[i].thread == events[at].thread || !is_possible(events[i]))
      continue;
    const trace_event found = events[i];
    std::memmove(&events[at + 1], &events[at], (i - at) * sizeof *events);
    events[at] = found;
    return;
  }
}

void Order::add_free(const live_block &live, trace_event of) {
  of.type = TRACE_FREE;
  of.address = live.address;
  of.size = of.value = 0;
  of.stack = 0;
  of.was_live = 0;
  of.block = live.block;
  append(&trace_->events, &trace_->count, of);
}

// Ends the live block of an address.
void Order::end(uint64_t address, const trace_event &of) {
  const live_block ended = *find(address);
  live_.remove(address, [address](const live_block &each) { return each.address == address; });
  add_free(ended, of);
}

const char *Order::add_alloc(trace_event event) {
  if (event.address == 0) return "a block is at address 0";
  if (const live_block *live = find(event.address)) {
    if (trace_->ended && trace_->lost == 0 && !live->was_live) return "an allocation is at the address of a live block";
    presumed_ += !live->was_live;
    end(event.address, event);
  }
  event.block = trace_->block_count++;
  if (!live_.reserve()) gmm::end_without_memory();
  live_.add(event.address, live_block{event.address, event.block, event.was_live != 0});
  append(&trace_->events, &trace_->count, event);
  return nullptr;
}

const char *Order::add(trace_event event) {
  event.block = TRACE_NO_BLOCK;
  if (event.type == TRACE_RESET)
    live_.remove_if([&](const live_block &live) {
      add_free(live, event);
      return true;
    });
  if (event.type == TRACE_ALLOC) return add_alloc(event);
  const live_block *live = names_block(event) ? find(event.address) : nullptr;
  trace_->unknown += names_block(event) && live == nullptr;
  if (live != nullptr && event.type == TRACE_FREE) {
    end(event.address, event);
  } else if (live != nullptr || !names_block(event)) {
    if (live != nullptr) event.block = live->block;
    append(&trace_->events, &trace_->count, event);
  }
  return nullptr;
}

const char *Order::run(const char *path) {
  trace_event *const read = std::exchange(trace_->events, nullptr);
  const uint64_t count = std::exchange(trace_->count, 0);
  for (uint64_t i = 0; i < count; ++i) read[i].block = static_cast<uint32_t>(i);  // its place in the file
  std::sort(read, read + count, [](const trace_event &a, const trace_event &b) {
    return a.time != b.time ? a.time < b.time : a.block < b.block;
  });
  const char *wrong = nullptr;
  for (uint64_t i = 0; i < count && wrong == nullptr; ++i) {
    choose(read, count, i);
    wrong = add(read[i]);
  }
  std::free(read);
  if (wrong != nullptr || (trace_->ended && trace_->lost == 0)) return wrong;
  std::fprintf(stderr, "gmm: %s: the trace is incomplete: ", path);
  if (trace_->ended)
    std::fprintf(stderr, "its end says that %" PRIu64 " events are missing", trace_->lost);
  else
    std::fprintf(stderr, "its end is missing, as after a kill of the program");
  std::fprintf(stderr, "; gmm presumes %" PRIu64 " frees\n", presumed_);
  return nullptr;
}

// --- The whole ---------------------------------------------------------------------------------------------------

const char *count_requested(trace *of) {
  List<uint64_t> sizes;
  uint64_t requested = 0;
  sizes.grow_to(of->block_count);
  for (uint64_t i = 0; i < of->count; ++i) {
    const trace_event &event = of->events[i];
    of->blocks += names_block(event);
    if (event.type != TRACE_ALLOC && event.type != TRACE_FREE) continue;
    if (event.size > UINT64_MAX / 4 - requested) return "the live blocks have more bytes than any machine";
    requested += event.size - sizes[event.block];
    sizes[event.block] = event.size;
    of->peak_requested = std::max(of->peak_requested, requested);
  }
  return nullptr;
}

// Looks at the file as a whole.
const char *put_in_order(reader *reader, const char *path, bool is_binary) {
  trace *const of = &reader->read;
  if (is_binary) {
    resolve_stacks(reader);
    if (const char *wrong = Order(of).run(path)) return wrong;
  }
  if (const char *wrong = count_requested(of)) return wrong;
  return of->blocks == 0 && !(is_binary && of->ended) ? "the trace is empty" : nullptr;
}

}  // namespace

int trace_read(const char *path, struct trace *out) {
  *out = trace{};
  gzFile file = gzopen(path, "rb");
  if (file == nullptr) {
    std::fprintf(stderr, "gmm: %s cannot be opened: %s\n", path, std::strerror(errno));
    return 0;
  }
  reader reader;
  reader.file = file;
  char magic[8] = {0};
  const int begun = gzread(file, magic, sizeof magic);
  for (int i = begun; i-- > 0;) gzungetc(static_cast<unsigned char>(magic[i]), file);
  const bool is_binary = std::memcmp(magic, "gmmtrace", sizeof magic) == 0;
  index_of(&reader.stacks, 0, &reader.read.stacks, &reader.read.stack_count, trace_stack{0, 0});
  stream_index(&reader, 0);
  tag_index(&reader, GMM_TAG_DEFAULT);
  const char *wrong = is_binary ? read_blocks(&reader) : read_text(&reader);
  int code = Z_OK;
  gzerror(file, &code);
  if (wrong == nullptr && code != Z_OK && code != Z_STREAM_END) wrong = "the file is damaged or cut off here";
  gzclose(file);
  if (wrong != nullptr)
    std::fprintf(stderr, is_binary ? "gmm: %s: byte %" PRIu64 ": %s\n" : "gmm: %s:%" PRIu64 ": %s\n", path,
                 reader.offset, wrong);
  else if ((wrong = put_in_order(&reader, path, is_binary)) != nullptr)
    std::fprintf(stderr, "gmm: %s: %s\n", path, wrong);
  *out = reader.read;
  const size_t length = std::strlen(path), most = sizeof out->file - 1;
  std::snprintf(out->file, sizeof out->file, "%s", path + (length > most ? length - most : 0));
  if (wrong != nullptr) trace_free(out);
  return wrong == nullptr;
}

int trace_each(const char *path, int (*fn)(void *user, const char *path), void *user) {
  struct dirent **entries = nullptr;
  const int count = scandir(path, &entries, nullptr, alphasort);
  if (count < 0 && (errno == ENOTDIR || errno == ENOENT)) return fn(user, path);
  if (count < 0) std::fprintf(stderr, "gmm: %s cannot be read: %s\n", path, std::strerror(errno));
  int good = count >= 0;
  for (int i = 0; i < count; ++i) {
    char file[4096];
    const int length = std::snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
    if (entries[i]->d_name[0] != '.' && length < static_cast<int>(sizeof file)) good = fn(user, file) && good;
    std::free(entries[i]);
  }
  std::free(entries);
  return good;
}

void trace_free(trace *of) {
  void *const arrays[] = {of->events,  of->streams, of->tags,   of->names,  of->texts,
                          of->threads, of->modules, of->frames, of->stacks, of->stack_frames};
  for (void *array : arrays) std::free(array);
  *of = trace{};
}
