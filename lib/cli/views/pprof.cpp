// SPDX-License-Identifier: Apache-2.0
// pprof's profile.proto (github.com/google/pprof/proto), packed by gzip. The sample types are those of Go's heap
// profile: objects and bytes that were allocated between `from` and `to`, and those in use at the moment. A sample is
// all blocks of one kind, device, tag, name and stack. All but the last are its labels, as is the state of the tag at
// the moment, and its outermost calls. A trace with stacks of some allocations counts only those, each for the bytes
// that it stands for, and the blocks from before it.
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

struct Text {
  const char *text;
  uint64_t index;
  uint64_t location;  // of a function of this name; 0: there is none
};

// The bytes and blocks that an alloc stands for.
uint64_t bytes_of(const trace_event &alloc) { return alloc.stack == 0 ? alloc.size : alloc.value; }
uint64_t blocks_of(const trace_event &alloc) {
  return std::max<uint64_t>(1, bytes_of(alloc) / std::max<uint64_t>(1, alloc.size));
}

class Profile {
 public:
  explicit Profile(const view_input &input) : input_(input) {
    static constexpr const char *kTypes[][2] = {
        {"alloc_objects", "count"}, {"alloc_space", "bytes"}, {"inuse_objects", "count"}, {"inuse_space", "bytes"}};
    for (int i = 0; i < 16; ++i) std::snprintf(devices_[i], sizeof devices_[i], "device %d", i);
    string("");
    for (const char *const(&type)[2] : kTypes)
      profile_.message(kSampleType, Message().number(1, string(type[0]).index).number(2, string(type[1]).index));
  }
  void add(uint32_t index, uint64_t moment);
  void write(uint64_t moment, FILE *out);

 private:
  void put(const trace &of, const WalkGroup &group, bool is_paused);
  static bool counts(const trace &of, const trace_event &alloc) {
    return of.stack_bytes <= 1 || alloc.stack != 0 || alloc.was_live != 0;
  }
  Text &string(const char *text) {
    return strings_.items[strings_.find_or_add(hash_of_text(text), Text{text, strings_.items.size(), 0},
                                               [text](const Text &each) { return std::strcmp(each.text, text) == 0; })];
  }
  // A location whose function has this name.
  uint64_t location(const char *name);
  uint64_t location(const trace &of, uint32_t frame);
  void put_mappings(const trace &of);
  void label(Message *sample, const char *key, const char *value) {
    sample->message(3, Message().number(1, string(key).index).number(2, string(value).index));
  }

  const view_input &input_;
  Message profile_;
  Distinct<Text> strings_;
  uint64_t last_location_ = 0;      // and function, which have the same numbers
  List<uint64_t> frame_locations_;  // of the trace, by frame; 0: none so far
  uint64_t mappings_ = 0;           // of the traces before
  char devices_[16][16];            // their names
};

void Profile::add(uint32_t index, uint64_t moment) {
  const trace &of = input_.traces[index];
  view_input until = input_;
  until.choice.to = moment;
  Walk walk(until, index);
  WalkGroups groups;
  while (walk.next()) {
    const trace_event &event = walk.event();
    if (event.type != TRACE_ALLOC || event.was_live != 0 || !counts(of, event)) continue;
    WalkGroup &group = group_of(*walk.block(), GroupBy::kBoth, &groups);
    group.allocated += blocks_of(event);
    group.allocated_bytes += bytes_of(event);
  }
  walk.for_each_live([&](const WalkBlock &block) {
    if (counts(of, *block.alloc))
      group_of(block, GroupBy::kBoth, &groups).add_live(blocks_of(*block.alloc), bytes_of(*block.alloc));
  });
  put_mappings(of);
  frame_locations_.clear();
  frame_locations_.grow_to(of.frame_count);
  for (const WalkGroup &group : groups.items) {
    const trace_event &place = *group.block.alloc;
    const bool is_paused = std::any_of(walk.bytes().begin(), walk.bytes().end(), [&](const WalkBytes &each) {
      return each.device == place.device && each.tag == place.tag && each.paused != 0;
    });
    put(of, group, place.kind == GMM_KIND_VMM && is_paused);
  }
  mappings_ += of.module_count;
}

uint64_t Profile::location(const char *name) {
  Text &text = string(name);
  if (text.location == 0) {
    text.location = ++last_location_;
    const uint64_t id = text.location;
    profile_.message(kFunction, Message().number(1, id).number(2, text.index));
    profile_.message(kLocation, Message().number(1, id).message(4, Message().number(1, id)));
  }
  return text.location;
}

uint64_t Profile::location(const trace &of, uint32_t frame) {
  uint64_t &id = frame_locations_[frame];
  if (id != 0) return id;
  Message made;
  for (uint32_t at = frame; at != TRACE_NO_FRAME; at = of.frames[at].outer) {
    const uint64_t function = ++last_location_, name = string(of.frames[at].name).index;
    profile_.message(kFunction,
                     Message().number(1, function).number(2, name).number(4, string(of.frames[at].file).index));
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
    profile_.message(kMapping, made.number(5, string(module.path).index).number(6, string(module.build_id).index));
  }
}

void Profile::put(const trace &of, const WalkGroup &group, bool is_paused) {
  const trace_event &place = *group.block.alloc;
  const trace_stack &stack = of.stacks[place.stack];
  const char *device = devices_[static_cast<uint32_t>(place.device) % 16];
  const char *tag = tag_name(of, place.tag);
  Message sample;
  for (uint32_t i = 0; i < stack.count; ++i) sample.number(1, location(of, of.stack_frames[stack.first + i]));
  if (group.block.name[0] != '\0') sample.number(1, location(group.block.name));
  sample.number(1, location(tag)).number(1, location(kind_text(place.kind))).number(1, location(device));
  for (const uint64_t value : {group.allocated, group.allocated_bytes, group.live, group.live_bytes})
    sample.number(2, value);
  label(&sample, "device", device);
  label(&sample, "kind", kind_text(place.kind));
  label(&sample, "tag", tag);
  label(&sample, "state", is_paused ? "paused" : "active");
  if (group.block.name[0] != '\0') label(&sample, "name", group.block.name);
  profile_.message(kSample, sample);
}

void Profile::write(uint64_t moment, FILE *out) {
  const uint64_t from = input_.choice.from;
  profile_.number(kTime, first_epoch(input_) + from);
  if (moment != UINT64_MAX) profile_.number(kDuration, moment - from);
  profile_.number(kDefaultType, string("inuse_space").index);
  for (const Text &each : strings_.items) profile_.text(kString, each.text);
  z_stream stream = {};
  constexpr int kWithHeader = 16;
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS + kWithHeader, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    end_without_memory();
  List<uint8_t> packed;
  packed.grow_to(deflateBound(&stream, profile_.size()));
  stream.next_in = const_cast<uint8_t *>(profile_.data());
  stream.avail_in = static_cast<unsigned>(profile_.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<unsigned>(packed.size());
  deflate(&stream, Z_FINISH);
  std::fwrite(packed.data(), 1, stream.total_out, out);
  deflateEnd(&stream);
}

}  // namespace

void view_pprof(const view_input *input, FILE *out) {
  const uint64_t moment = input->choice.at_peak ? find_peak(*input).time : input->choice.to;
  Profile profile(*input);
  for (uint32_t i = 0; i < input->count; ++i) profile.add(i, moment);
  profile.write(moment, out);
}
