// SPDX-License-Identifier: Apache-2.0
// pprof's profile.proto (github.com/google/pprof/proto), packed by gzip. The sample types are those of Go's heap
// profile: objects and bytes that were allocated between `from` and `to`, and those in use at the moment. A sample is
// all blocks of one kind, device, tag, state, name and stack. All but the last are its labels, and its outermost calls.
// A trace with stacks of some allocations counts only those, each for the bytes that it stands for.
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/hash_table.h"
#include "cli/views/encodings.h"
#include "cli/views/walk.h"

using namespace gmm;

namespace {

enum : uint32_t {
  kSampleType = 1,
  kSample = 2,
  kMapping = 3,
  kLocation = 4,
  kFunction = 5,
  kString = 6,
  kTime = 9,
  kDuration = 10,
  kDefaultType = 14
};

struct Row {
  uint32_t trace;
  const trace_event *place;  // kind, device, tag and stack
  const char *name;
  bool is_paused;
  uint64_t allocated, allocated_bytes, used, used_bytes;
};

class Profile {
 public:
  explicit Profile(const view_input &input) : input_(input) {}
  bool add(uint32_t index, uint64_t moment);
  bool write(uint64_t moment, FILE *out);

 private:
  Row *row_of(uint32_t index, const WalkBlock &block, bool is_paused);
  static bool counts(const trace &of, const trace_event &alloc) { return of.stack_bytes <= 1 || alloc.stack != 0; }
  static void count(Row *row, const trace_event &alloc, uint64_t Row::*blocks, uint64_t Row::*bytes);
  uint64_t string(const char *text);
  uint64_t add_string(const char *text);
  // A location whose function has this name.
  uint64_t location(const char *name);
  uint64_t location(const trace &of, uint32_t frame);
  void put_mappings(const trace &of);
  void add_stack(Message *sample, const Row &row);
  void label(Message *sample, const char *key, const char *value) {
    sample->message(3, Message().number(1, string(key)).number(2, string(value)));
  }

  const view_input &input_;
  Vector<Row> rows_;
  HashTable<uint64_t> row_numbers_{HostAllocator()};
  Message profile_;
  Vector<const char *> strings_;
  Vector<const char *> functions_;    // of labels; null: of a frame
  uint32_t located_ = UINT32_MAX;     // the trace of the next two
  Vector<uint64_t> frame_locations_;  // by frame; 0: none so far
  uint64_t mappings_ = 0;             // of the traces before
  bool is_whole_ = true;
};

Row *Profile::row_of(uint32_t index, const WalkBlock &block, bool is_paused) {
  const trace_event &place = *block.alloc;
  const char *name = block.name == nullptr ? "" : block.name;
  const uint64_t hash = hash_of_text(name, kHashStart + place.stack * UINT64_C(0x9e3779b97f4a7c15) + place.tag);
  const uint64_t *found = row_numbers_.find(hash, [&](uint64_t number) {
    const Row &row = rows_[number];
    return row.trace == index && row.place->tag == place.tag && row.place->kind == place.kind &&
           row.place->stack == place.stack && row.place->device == place.device && row.is_paused == is_paused &&
           std::strcmp(row.name, name) == 0;
  });
  if (found != nullptr) return &rows_[*found];
  if (!row_numbers_.reserve() || !rows_.push_back(Row{index, &place, name, is_paused, 0, 0, 0, 0})) {
    is_whole_ = false;
    return nullptr;
  }
  row_numbers_.add(hash, rows_.size() - 1);
  return &rows_[rows_.size() - 1];
}

void Profile::count(Row *row, const trace_event &alloc, uint64_t Row::*blocks, uint64_t Row::*bytes) {
  const uint64_t stands_for = alloc.stack == 0 ? alloc.size : alloc.value;
  if (row == nullptr) return;
  row->*blocks += std::max<uint64_t>(1, stands_for / alloc.size);
  row->*bytes += stands_for;
}

bool Profile::add(uint32_t index, uint64_t moment) {
  const trace &of = input_.traces[index];
  Vector<uint8_t> paused;  // by tag, at the moment
  for (uint32_t i = 0; i < of.tag_count; ++i) is_whole_ = paused.push_back(0) && is_whole_;
  view_input until = input_;
  until.choice.to = moment;
  Walk walk(until, index);
  while (is_whole_ && walk.next()) {
    const trace_event &event = walk.event();
    if (event.type == TRACE_PAUSE || event.type == TRACE_RESUME)
      for (uint32_t i = 0; i < of.tag_count; ++i)
        if (event.tag == TRACE_NO_TAG || event.tag == i) paused[i] = event.type == TRACE_PAUSE;
    if (event.type == TRACE_ALLOC && counts(of, event))
      count(row_of(index, *walk.block(), false), event, &Row::allocated, &Row::allocated_bytes);
  }
  walk.for_each_live([&](const WalkBlock &block) {
    const bool is_paused = block.alloc->kind == GMM_KIND_VMM && paused[block.alloc->tag] != 0;
    if (counts(of, *block.alloc)) count(row_of(index, block, is_paused), *block.alloc, &Row::used, &Row::used_bytes);
  });
  return is_whole_ && !walk.is_out_of_memory();
}

uint64_t Profile::string(const char *text) {
  for (uint64_t i = 0; i < strings_.size(); ++i)
    if (std::strcmp(strings_[i], text) == 0) return i;
  return add_string(text);
}

uint64_t Profile::add_string(const char *text) {
  is_whole_ = strings_.push_back(text) && is_whole_;
  return strings_.size() - 1;
}

uint64_t Profile::location(const char *name) {
  for (uint64_t i = 0; i < functions_.size(); ++i)
    if (functions_[i] != nullptr && std::strcmp(functions_[i], name) == 0) return i + 1;
  is_whole_ = functions_.push_back(name) && is_whole_;
  const uint64_t id = functions_.size();
  profile_.message(kFunction, Message().number(1, id).number(2, string(name)));
  profile_.message(kLocation, Message().number(1, id).message(4, Message().number(1, id)));
  return id;
}

// Its strings are not searched for equal ones: there may be many.
uint64_t Profile::location(const trace &of, uint32_t frame) {
  uint64_t &id = frame_locations_[frame];
  if (id != 0) return id;
  Message made;
  for (uint32_t at = frame; at != TRACE_NO_FRAME; at = of.frames[at].outer) {
    is_whole_ = functions_.push_back(nullptr) && is_whole_;
    const uint64_t function = functions_.size(), name = add_string(of.frames[at].name);
    profile_.message(kFunction,
                     Message().number(1, function).number(2, name).number(4, add_string(of.frames[at].file)));
    made.message(4, Message().number(1, function).number(2, of.frames[at].line));
    if (id == 0) id = function;
  }
  if (of.frames[frame].module != TRACE_NO_FRAME) made.number(2, mappings_ + 1 + of.frames[frame].module);
  profile_.message(kLocation, made.number(1, id).number(3, of.frames[frame].address));
  return id;
}

void Profile::put_mappings(const trace &of) {
  for (uint32_t i = 0; i < of.module_count; ++i) {
    const trace_module &module = of.modules[i];
    Message made;
    made.number(1, mappings_ + 1 + i).number(2, module.begin).number(3, module.end).number(7, 1);
    profile_.message(kMapping, made.number(5, string(module.path)).number(6, string(module.build_id)));
  }
}

void Profile::add_stack(Message *sample, const Row &row) {
  const trace &of = input_.traces[row.trace];
  if (row.trace != located_) {
    if (located_ != UINT32_MAX) mappings_ += input_.traces[located_].module_count;
    located_ = row.trace;
    put_mappings(of);
    frame_locations_.clear();
    for (uint32_t i = 0; i < of.frame_count; ++i) is_whole_ = frame_locations_.push_back(0) && is_whole_;
    if (!is_whole_) return;
  }
  const trace_stack &stack = of.stacks[row.place->stack];
  for (uint32_t i = 0; i < stack.count; ++i) sample->number(1, location(of, of.stack_frames[stack.first + i]));
}

bool Profile::write(uint64_t moment, FILE *out) {
  static constexpr const char *kTypes[][2] = {
      {"alloc_objects", "count"}, {"alloc_space", "bytes"}, {"inuse_objects", "count"}, {"inuse_space", "bytes"}};
  char devices[16][16];
  for (int i = 0; i < 16; ++i) std::snprintf(devices[i], sizeof devices[i], "device %d", i);
  string("");
  for (const char *const(&type)[2] : kTypes)
    profile_.message(kSampleType, Message().number(1, string(type[0])).number(2, string(type[1])));
  for (const Row &row : rows_) {
    const char *device = devices[static_cast<uint32_t>(row.place->device) % 16];
    const char *tag = tag_name(input_.traces[row.trace], row.place->tag);
    Message sample;
    add_stack(&sample, row);
    if (row.name[0] != '\0') sample.number(1, location(row.name));
    sample.number(1, location(tag)).number(1, location(kind_text(row.place->kind))).number(1, location(device));
    for (const uint64_t value : {row.allocated, row.allocated_bytes, row.used, row.used_bytes}) sample.number(2, value);
    label(&sample, "device", device);
    label(&sample, "kind", kind_text(row.place->kind));
    label(&sample, "tag", tag);
    label(&sample, "state", row.is_paused ? "paused" : "active");
    if (row.name[0] != '\0') label(&sample, "name", row.name);
    profile_.message(kSample, sample);
    is_whole_ = is_whole_ && sample.is_whole();
  }
  const uint64_t from = input_.choice.from;
  profile_.number(kTime, first_epoch(input_) + from);
  if (moment != UINT64_MAX) profile_.number(kDuration, moment - from);
  profile_.number(kDefaultType, string("inuse_space"));
  for (const char *each : strings_) profile_.text(kString, each);
  if (!is_whole_ || !profile_.is_whole()) return false;
  // gzdopen() owns its descriptor.
  std::fflush(out);
  gzFile packed = gzdopen(dup(fileno(out)), "wb");
  if (packed == nullptr) return false;
  const bool is_written = gzwrite(packed, profile_.data(), static_cast<unsigned>(profile_.size())) != 0;
  return gzclose(packed) == Z_OK && is_written;
}

}  // namespace

int view_pprof(const view_input *input, FILE *out) {
  uint64_t moment = input->choice.to, bytes = 0;
  if (input->choice.at_peak && !find_peak(*input, &moment, &bytes)) return 0;
  Profile profile(*input);
  for (uint32_t i = 0; i < input->count; ++i)
    if (!profile.add(i, moment)) return 0;
  return profile.write(moment, out);
}
