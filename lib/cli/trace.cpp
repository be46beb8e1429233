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
#include "base/hash_table.h"
#include "base/utf8.h"

extern "C" {
#include "cli/trace.h"
}

namespace {

enum { MOST_STREAMS = 4096, MOST_TAGS = 65536, MOST_THREADS = 65536, HIGHEST_ID = 50 * 1000 * 1000, LINE = 128 };

constexpr char no_memory[] = "no memory for the trace";

struct heap_slot {
  uint32_t tag = 0;
  gmm_device device = 0;
  uint16_t kind = 0;
  bool is_known = false;
};

// Where the record of a number is.
struct numbered {
  uint64_t number;
  uint32_t index;
};

uint32_t index_of(const gmm::HashTable<numbered> &table, uint64_t number, uint32_t none) {
  const numbered *found = table.find(number, [number](const numbered &each) { return each.number == number; });
  return found == nullptr ? none : found->index;
}

// The first record of a number counts.
const char *add_number(gmm::HashTable<numbered> *table, uint64_t number, uint32_t index) {
  if (index_of(*table, number, UINT32_MAX) != UINT32_MAX) return nullptr;
  if (!table->reserve()) return no_memory;
  table->add(number, numbered{number, index});
  return nullptr;
}

// A trace that is being read. Its functions return nullptr, or what is wrong.
struct reader {
  gzFile file = nullptr;
  trace read = {};
  gmm::Vector<uint64_t> live;  // of a text, by number of the block: its size while it lives
  uint32_t thread = 0;         // of the block of the file; 0: none so far
  uint64_t time = 0;           // of the last record of the block of the file
  uint32_t stream_slots[TRACE_STREAM_SLOTS] = {};
  heap_slot heap_slots[TRACE_HEAP_SLOTS] = {};
  uint64_t stack = 0, stands_for = 0;  // of the next alloc or failure
  bool is_live = false;                // the next alloc was before the trace
  gmm::Vector<uint64_t> addresses;     // of stacks, or TRACE_INTERPRETED and a frame's number
  gmm::HashTable<numbered> stacks{gmm::HostAllocator()};
  gmm::HashTable<numbered> frames{gmm::HostAllocator()};  // by what stands in stacks
  uint64_t offset = 0;                                    // of the record, or number of the line
  uint64_t begin_time = 0;
  double tick = 0;  // nanoseconds of one
};

// An array grows when its number of items is a power of two.
template <typename T, typename Count>
const char *append(T **items, Count *count, const void *value) {
  if ((*count & (*count - 1)) == 0) {
    void *grown = std::realloc(*items, (*count == 0 ? 1 : size_t{*count} * 2) * sizeof(T));
    if (grown == nullptr) return no_memory;
    *items = static_cast<T *>(grown);
  }
  std::memcpy(&(*items)[(*count)++], value, sizeof(T));
  return nullptr;
}

// *out: the index of the item for which `same` is true, or of a new one.
template <typename T, typename Same>
const char *find_or_add(T **items, uint32_t *count, uint32_t most, const char *too_many, Same same, const T &value,
                        uint32_t *out) {
  for (*out = 0; *out < *count; ++*out)
    if (same((*items)[*out])) return nullptr;
  return *count == most ? too_many : append(items, count, &value);
}

const char *stream_index(trace *of, uint64_t number, uint32_t *out) {
  if (number == 1) number = 0;  // a default stream too
  return find_or_add(
      &of->streams, &of->stream_count, MOST_STREAMS, "the trace has more than 4,096 streams",
      [number](uint64_t each) { return each == number; }, number, out);
}

// A tag without a name so far is called by its number.
const char *tag_index(trace *of, gmm_tag number, uint32_t *out) {
  trace_tag made = {number, {}};
  std::snprintf(made.name, sizeof made.name, number == GMM_TAG_DEFAULT ? "default" : "tag %" PRIu32, number);
  return find_or_add(
      &of->tags, &of->tag_count, MOST_TAGS, "the trace has more than 65,536 tags",
      [number](const trace_tag &each) { return each.number == number; }, made, out);
}

const char *thread_index(reader *reader, uint32_t number, uint32_t *out) {
  return find_or_add(
      &reader->read.threads, &reader->read.thread_count, MOST_THREADS, "the trace has more than 65,536 threads",
      [number](uint32_t each) { return each == number; }, number, out);
}

const char *add_event(trace *of, const trace_event &event) { return append(&of->events, &of->count, &event); }

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
  trace *const of = &reader->read;
  const char verb = *text;
  uint64_t id = 0, size = 0, stream = 0;
  if ((verb != 'a' && verb != 'f') || (++text, !number(&text, &id)) || (verb == 'a' && !number(&text, &size)) ||
      !number(&text, &stream) || *text != '\0')
    return neither;
  if (id > HIGHEST_ID) return "the number of the block is above 50,000,000";
  while (reader->live.size() <= id)
    if (!reader->live.push_back(0)) return no_memory;
  if (verb == 'a' && size == 0) return "the allocation has 0 bytes";
  if (verb == 'a' && reader->live[id] != 0) return "the block is allocated already";
  if (verb == 'f' && reader->live[id] == 0) return "the block is not allocated";
  trace_event event = {};
  event.size = size;
  event.block = static_cast<uint32_t>(id);
  event.type = verb == 'a' ? TRACE_ALLOC : TRACE_FREE;
  reader->live[id] = size;
  if (of->block_count <= id) of->block_count = event.block + 1;
  const char *wrong = stream_index(of, stream, &event.stream);
  return wrong != nullptr ? wrong : add_event(of, event);
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
  event.time = event.began = nanoseconds(reader, reader->time);
  event.type = type;
  event.block = TRACE_NO_BLOCK;
  return event;
}

void take_stack(reader *reader, trace_event *event) {
  event->stack = static_cast<uint32_t>(reader->stack);  // its number, until all are read
  reader->stack = 0;
}

// An event goes to the thread of its block of the file.
const char *add_read(reader *reader, trace_event *event) {
  const char *wrong = reader->thread == 0 ? "the block of the file has no thread" : nullptr;
  if (wrong == nullptr) wrong = thread_index(reader, reader->thread, &event->thread);
  if (wrong != nullptr) return wrong;
  if (reader->read.count == UINT32_MAX) return "the trace has more events than this program can count";
  return add_event(&reader->read, *event);
}

const char *read_short(reader *reader, uint64_t first, uint64_t second) {
  reader->time += first >> 8 & 0xffff;
  trace_event event = event_at(reader, first & 0xf);
  event.address = first >> 24 << 8;
  event.stream = reader->stream_slots[first >> 4 & 0xf];
  if (event.type == TRACE_ALLOC) {
    const heap_slot &heap = reader->heap_slots[second >> 48 & 0xff];
    event.size = second & ((UINT64_C(1) << 48) - 1);
    event.log2_alignment = second >> 56 & 0x3f;
    event.was_live = std::exchange(reader->is_live, false);
    event.kind = heap.kind;
    event.device = heap.device;
    event.tag = heap.tag;
    take_stack(reader, &event);
    event.value = event.stack == 0 ? 0 : reader->stands_for;
    if (event.size == 0) return "the size of the allocation is impossible";
    if (!heap.is_known) return "the allocation is of an unknown heap";
  }
  return add_read(reader, &event);
}

const char *set_place(reader *reader, uint64_t place, trace_event *event) {
  event->kind = static_cast<uint16_t>(place);
  event->device = static_cast<gmm_device>(place >> 16 & 0xffff);
  return tag_index(&reader->read, static_cast<gmm_tag>(place >> 32), &event->tag);
}

const char *add_operation(reader *reader, trace_event *event, uint64_t began) {
  event->began = began == 0 ? event->time : std::min(nanoseconds(reader, began), event->time);
  return add_read(reader, event);
}

const char *read_frame(reader *reader, const uint64_t *values) {
  constexpr uint32_t kFile = 2 + TRACE_NAME_BYTES / 8;
  trace_frame frame = {0, TRACE_NO_FRAME, TRACE_NO_FRAME, static_cast<uint32_t>(values[1]), "", ""};
  std::memcpy(frame.name, values + 2, TRACE_NAME_BYTES);
  gmm::make_printable(frame.name, TRACE_NAME_BYTES + 1);
  std::memcpy(frame.file, values + kFile, TRACE_TEXT_BYTES);
  gmm::make_printable(frame.file, TRACE_TEXT_BYTES);
  const char *wrong = add_number(&reader->frames, values[0] | TRACE_INTERPRETED, reader->read.frame_count);
  return wrong != nullptr ? wrong : append(&reader->read.frames, &reader->read.frame_count, &frame);
}

// Its addresses become frames when all records are read: a frame's record may follow in the block of another thread.
const char *read_stack(reader *reader, const uint64_t *values, uint32_t count) {
  if (values[0] == 0) return "the stack has no number";
  const trace_stack stack = {static_cast<uint32_t>(reader->addresses.size()), count == 0 ? 0 : count - 1};
  if (stack.first > UINT32_MAX / 2) return "the trace has more stacks than this program can count";
  for (uint32_t i = 1; i < count; ++i)
    if (!reader->addresses.push_back(values[i])) return no_memory;
  const char *wrong = add_number(&reader->stacks, values[0], reader->read.stack_count);
  return wrong != nullptr ? wrong : append(&reader->read.stacks, &reader->read.stack_count, &stack);
}

const char *read_module(reader *reader, const uint64_t *values) {
  trace_module module = {values[1], values[2], values[3], "", ""};
  gmm::Module id;
  if (values[4] > sizeof id.build_id) return "the build-id is longer than any";
  std::memcpy(id.build_id, values + 5, sizeof id.build_id);
  gmm::build_id_text(id.build_id, values[4], module.build_id);
  std::memcpy(module.path, values + 5 + sizeof id.build_id / 8, TRACE_TEXT_BYTES);
  gmm::make_printable(module.path, TRACE_TEXT_BYTES);
  return append(&reader->read.modules, &reader->read.module_count, &module);
}

// `values` has all those that this release knows, and zeros where the record has fewer. `count`: in the record.
const char *read_long(reader *reader, uint8_t type, const uint64_t *values, uint32_t count) {
  trace *const of = &reader->read;
  trace_event event = event_at(reader, type);
  const char *wrong = nullptr;
  switch (type) {
    case TRACE_TIME:
      return nullptr;
    case TRACE_LIVE:
      reader->is_live = true;
      return nullptr;
    case TRACE_THREAD:
      reader->thread = static_cast<uint32_t>(values[0]);
      return nullptr;
    case TRACE_STREAM:
      if (values[0] >= TRACE_STREAM_SLOTS) return "the slot of the stream is impossible";
      return stream_index(of, values[1], &reader->stream_slots[values[0]]);
    case TRACE_HEAP: {
      if (values[0] >= TRACE_HEAP_SLOTS) return "the slot of the heap is impossible";
      heap_slot &heap = reader->heap_slots[values[0]];
      heap.is_known = true;
      wrong = set_place(reader, values[2], &event);
      heap.kind = event.kind;
      heap.device = event.device;
      heap.tag = event.tag;
      if (wrong != nullptr || values[3] == 0) return wrong;
      std::memcpy(of->tags[heap.tag].name, &values[3], TRACE_NAME_BYTES);
      gmm::make_printable(of->tags[heap.tag].name, TRACE_NAME_BYTES);
      return nullptr;
    }
    case TRACE_BLOCK_NAME:
      event.address = values[0];
      event.value = of->name_count;
      wrong = append(&of->names, &of->name_count, &values[1]);
      if (wrong != nullptr) return wrong;
      gmm::make_printable(of->names[event.value], TRACE_NAME_BYTES);
      return add_read(reader, &event);
    case TRACE_END:
      of->ended = 1;
      of->lost = values[0];
      return nullptr;
    case TRACE_PAUSE:
    case TRACE_RESUME:
      event.size = values[1];
      event.tag = TRACE_NO_TAG;
      if (values[0] != TRACE_EVERY_TAG) wrong = tag_index(of, static_cast<gmm_tag>(values[0]), &event.tag);
      return wrong != nullptr ? wrong : add_operation(reader, &event, values[2]);
    case TRACE_TRIM:
      event.size = values[1];
      return add_operation(reader, &event, values[2]);
    case TRACE_COMPACT:
      event.size = values[0];
      event.value = values[1];
      return add_operation(reader, &event, values[2]);
    case TRACE_MOVE:
      event.address = values[0];
      event.size = values[1];
      event.value = values[3];
      return add_operation(reader, &event, values[2]);
    case TRACE_HELD: {
      const heap_slot &heap = reader->heap_slots[values[0] % TRACE_HEAP_SLOTS];
      if (!heap.is_known) return "the bytes are of an unknown heap";
      event.address = values[0];
      event.size = values[1];
      event.value = values[2];
      event.kind = heap.kind;
      event.device = heap.device;
      event.tag = heap.tag;
      return add_read(reader, &event);
    }
    case TRACE_FRAME:
      return read_frame(reader, values);
    case TRACE_STACK:
      return read_stack(reader, values, count);
    case TRACE_MODULE:
      return read_module(reader, values);
    case TRACE_AT:
      if (values[0] > UINT32_MAX) return "the number of the stack is impossible";
      reader->stack = values[0];
      reader->stands_for = values[1];
      return nullptr;
    case TRACE_FAILED:
      take_stack(reader, &event);
      event.result = static_cast<int32_t>(values[0]);
      event.size = values[1];
      event.value = of->text_count;
      wrong = set_place(reader, values[2], &event);
      if (wrong == nullptr) wrong = append(&of->texts, &of->text_count, &values[3]);
      if (wrong != nullptr) return wrong;
      gmm::make_printable(of->texts[event.value], TRACE_TEXT_BYTES);
      return add_read(reader, &event);
    case TRACE_HEAP_CREATED:
      event.address = values[0];
      wrong = set_place(reader, values[1], &event);
      return wrong != nullptr ? wrong : add_read(reader, &event);
    default:
      event.address = values[0];
      return add_read(reader, &event);
  }
}

const char *read_block(reader *reader, const unsigned char *block, uint32_t size) {
  enum { VALUES = 255 - 2 };  // the most that a record has
  const uint64_t begin = reader->offset;
  reader->thread = 0;
  reader->stack = 0;
  reader->is_live = false;
  std::memset(reader->stream_slots, 0, sizeof reader->stream_slots);
  for (heap_slot &heap : reader->heap_slots) heap = heap_slot{};
  for (uint32_t at = 0; size - at >= 8 && block[at] != 0;) {
    uint64_t words[2 + VALUES] = {0};
    const int is_long = block[at] == TRACE_LONG, form = block[at] & 0xf;
    reader->offset = begin + at;
    const uint32_t bytes = is_long ? block[at + 2] * 8u : form == TRACE_ALLOC ? 16 : 8;
    if (!is_long && (form < TRACE_ALLOC || form > TRACE_USE)) return "the record has an unknown form";
    if (is_long && bytes < 16) return "the record has no size";
    if (bytes > size - at) return size == TRACE_BLOCK_BYTES ? "the record is longer than its block" : nullptr;
    std::memcpy(words, block + at, bytes);
    if (is_long) reader->time = words[1];
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
  auto *block = static_cast<unsigned char *>(std::malloc(TRACE_BLOCK_BYTES));
  const char *wrong = block == nullptr ? no_memory : nullptr;
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
  std::free(block);
  return wrong;
}

// --- Binary: the stacks ------------------------------------------------------------------------------------------

uint32_t module_of(const trace &of, uint64_t address) {
  for (uint32_t i = of.module_count; i-- > 0;)  // a later one may have come in the place of an earlier one
    if (address >= of.modules[i].begin && address < of.modules[i].end) return i;
  return TRACE_NO_FRAME;
}

const char *frame_index(reader *reader, uint64_t address, uint32_t *out) {
  trace &of = reader->read;
  *out = index_of(reader->frames, address, TRACE_NO_FRAME);
  if (*out != TRACE_NO_FRAME || (address & TRACE_INTERPRETED) != 0 || address == 0) return nullptr;
  *out = of.frame_count;
  const trace_frame made = {address, module_of(of, address), TRACE_NO_FRAME, 0, "", ""};
  const char *wrong = add_number(&reader->frames, address, *out);
  return wrong != nullptr ? wrong : append(&of.frames, &of.frame_count, &made);
}

// Frames that the file lacks are left out, and so are stacks.
const char *resolve_stacks(reader *reader) {
  trace &of = reader->read;
  const char *wrong = nullptr;
  for (uint32_t i = 0; i < of.stack_count; ++i) {
    trace_stack &stack = of.stacks[i];
    const uint32_t begin = stack.first, end = begin + stack.count;
    stack.first = of.stack_frame_count;
    for (uint32_t at = begin; at < end && wrong == nullptr; ++at) {
      uint32_t frame;
      wrong = frame_index(reader, reader->addresses[at], &frame);
      if (wrong == nullptr && frame != TRACE_NO_FRAME) wrong = append(&of.stack_frames, &of.stack_frame_count, &frame);
    }
    stack.count = of.stack_frame_count - stack.first;
  }
  for (uint64_t i = 0; i < of.count; ++i) of.events[i].stack = index_of(reader->stacks, of.events[i].stack, 0);
  return wrong;
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
  const char *add_free(const live_block &live, trace_event of);
  const char *end(uint64_t address, const trace_event &of);
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

const char *Order::add_free(const live_block &live, trace_event of) {
  of.type = TRACE_FREE;
  of.address = live.address;
  of.size = of.value = 0;
  of.stack = 0;
  of.block = live.block;
  return add_event(trace_, of);
}

// Ends the live block of an address.
const char *Order::end(uint64_t address, const trace_event &of) {
  const live_block ended = *find(address);
  live_.remove(address, [address](const live_block &each) { return each.address == address; });
  return add_free(ended, of);
}

const char *Order::add_alloc(trace_event event) {
  if (event.address == 0) return "a block is at address 0";
  if (const live_block *live = find(event.address)) {
    if (trace_->ended && trace_->lost == 0 && !live->was_live) return "an allocation is at the address of a live block";
    presumed_ += !live->was_live;
    if (const char *wrong = end(event.address, event)) return wrong;
  }
  event.block = trace_->block_count++;
  if (!live_.reserve()) return no_memory;
  live_.add(event.address, live_block{event.address, event.block, event.was_live != 0});
  return add_event(trace_, event);
}

const char *Order::add(trace_event event) {
  event.block = TRACE_NO_BLOCK;
  if (event.type == TRACE_RESET) {
    const char *wrong = nullptr;
    live_.remove_if([&](const live_block &live) {
      if (wrong == nullptr) wrong = add_free(live, event);
      return true;
    });
    if (wrong != nullptr) return wrong;
  }
  if (!names_block(event)) return add_event(trace_, event);
  if (event.type == TRACE_ALLOC) return add_alloc(event);
  const live_block *live = find(event.address);
  if (live == nullptr) {
    ++trace_->unknown;
    return nullptr;
  }
  if (event.type == TRACE_FREE) return end(event.address, event);
  event.block = live->block;
  return add_event(trace_, event);
}

const char *Order::run(const char *path) {
  trace_event *events = trace_->events;
  const uint64_t count = trace_->count;
  trace_->events = nullptr;
  trace_->count = 0;
  for (uint64_t i = 0; i < count; ++i) events[i].block = static_cast<uint32_t>(i);  // its place in the file
  std::sort(events, events + count, [](const trace_event &a, const trace_event &b) {
    return a.time != b.time ? a.time < b.time : a.block < b.block;
  });
  const char *wrong = nullptr;
  for (uint64_t i = 0; i < count && wrong == nullptr; ++i) {
    choose(events, count, i);
    wrong = add(events[i]);
  }
  std::free(events);
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
  auto *sizes = static_cast<uint64_t *>(std::calloc(of->block_count + 1u, sizeof(uint64_t)));
  uint64_t requested = 0;
  const char *wrong = sizes == nullptr ? no_memory : nullptr;
  for (uint64_t i = 0; i < of->count && wrong == nullptr; ++i) {
    const trace_event &event = of->events[i];
    of->blocks += names_block(event);
    if (event.type != TRACE_ALLOC && event.type != TRACE_FREE) continue;
    if (event.size > UINT64_MAX / 4 - requested) wrong = "the live blocks have more bytes than any machine";
    requested += event.size - sizes[event.block];
    sizes[event.block] = event.size;
    if (requested > of->peak_requested) of->peak_requested = requested;
  }
  std::free(sizes);
  return wrong;
}

}  // namespace

int trace_read(const char *path, struct trace *out) {
  reader reader;
  trace *const of = &reader.read;
  reader.file = gzopen(path, "rb");
  if (reader.file == nullptr) {
    std::fprintf(stderr, "gmm: %s cannot be opened: %s\n", path, std::strerror(errno));
    return 0;
  }
  char magic[8] = {0};
  uint32_t ignored = 0;
  const int begun = gzread(reader.file, magic, sizeof magic);
  for (int i = begun; i-- > 0;) gzungetc(static_cast<unsigned char>(magic[i]), reader.file);
  const int binary = std::memcmp(magic, "gmmtrace", sizeof magic) == 0;
  constexpr trace_stack none = {0, 0};
  const char *wrong = append(&of->stacks, &of->stack_count, &none);
  if (wrong == nullptr) wrong = stream_index(of, 0, &ignored);
  if (wrong == nullptr) wrong = tag_index(of, GMM_TAG_DEFAULT, &ignored);
  if (wrong == nullptr) wrong = binary ? read_blocks(&reader) : read_text(&reader);
  int code = Z_OK;
  gzerror(reader.file, &code);
  if (wrong == nullptr && code != Z_OK && code != Z_STREAM_END) wrong = "the file is damaged or cut off here";
  if (wrong != nullptr)
    std::fprintf(stderr, binary ? "gmm: %s: byte %" PRIu64 ": %s\n" : "gmm: %s:%" PRIu64 ": %s\n", path, reader.offset,
                 wrong);
  int good = wrong == nullptr;
  if (good && binary) wrong = resolve_stacks(&reader);
  if (good && binary && wrong == nullptr) wrong = Order(of).run(path);
  if (good && wrong == nullptr) wrong = count_requested(of);
  if (good && wrong == nullptr && of->blocks == 0 && !(binary && of->ended)) wrong = "the trace is empty";
  if (good && wrong != nullptr) std::fprintf(stderr, "gmm: %s: %s\n", path, wrong);
  good = good && wrong == nullptr;
  gzclose(reader.file);
  const size_t length = std::strlen(path);
  std::snprintf(of->file, sizeof of->file, "%s", path + (length < sizeof of->file ? 0 : length + 1 - sizeof of->file));
  *out = *of;
  if (!good) trace_free(out);
  return good;
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
  std::free(of->events);
  std::free(of->streams);
  std::free(of->tags);
  std::free(of->names);
  std::free(of->texts);
  std::free(of->threads);
  std::free(of->modules);
  std::free(of->frames);
  std::free(of->stacks);
  std::free(of->stack_frames);
  *of = trace{};
}
