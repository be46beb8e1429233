// SPDX-License-Identifier: Apache-2.0
// pprof's profile.proto (github.com/google/pprof/proto), packed by gzip. The sample types are those of Go's heap
// profile: objects and bytes that were allocated between `from` and `to`, and those in use at the moment. A sample is
// all blocks of one kind, device, tag and name. These and the tag's state at the moment are its labels, and its stack
// from the leaf on.
#include <unistd.h>
#include <zlib.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "cli/views/encodings.h"
#include "cli/views/walk.h"

using namespace gmm;

namespace {

enum : uint32_t {
  kSampleType = 1,
  kSample = 2,
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
  bool is_location;  // of which a function has the name
};

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
  bool add(uint32_t index, uint64_t moment);
  bool write(uint64_t moment, FILE *out);

 private:
  void put(const trace &of, const WalkGroup &group, bool is_paused);
  Text &string(const char *text) {
    return strings_.find_or_add(hash_of_text(text), Text{text, strings_.items().size(), false},
                                [text](const Text &each) { return std::strcmp(each.text, text) == 0; });
  }
  // A location whose function has this name.
  uint64_t location(const char *name);
  void label(Message *sample, const char *key, const char *value) {
    sample->message(3, Message().number(1, string(key).index).number(2, string(value).index));
  }

  const view_input &input_;
  Message profile_;
  Distinct<Text> strings_;
  char devices_[16][16];  // their names
  bool is_whole_ = true;
};

bool Profile::add(uint32_t index, uint64_t moment) {
  const trace &of = input_.traces[index];
  Vector<uint8_t> paused;  // by tag, at the moment
  for (uint32_t i = 0; i < of.tag_count; ++i) is_whole_ = paused.push_back(0) && is_whole_;
  view_input until = input_;
  until.choice.to = moment;
  Walk walk(until, index);
  WalkGroups groups;
  while (is_whole_ && walk.next()) {
    const trace_event &event = walk.event();
    if (event.type == TRACE_PAUSE || event.type == TRACE_RESUME)
      for (uint32_t i = 0; i < of.tag_count; ++i)
        if (event.tag == TRACE_NO_TAG || event.tag == i) paused[i] = event.type == TRACE_PAUSE;
    if (event.type != TRACE_ALLOC) continue;
    WalkGroup &group = group_of(*walk.block(), &groups);
    ++group.allocated;
    group.allocated_bytes += event.size;
  }
  walk.for_each_live([&](const WalkBlock &block) { group_of(block, &groups).add_live(block); });
  is_whole_ = is_whole_ && groups.is_whole() && !walk.is_out_of_memory();
  for (uint64_t i = 0; i < groups.items().size() && is_whole_; ++i) {
    const trace_event &place = *groups.items()[i].block.alloc;
    put(of, groups.items()[i], place.kind == GMM_KIND_VMM && paused[place.tag] != 0);
  }
  return is_whole_;
}

uint64_t Profile::location(const char *name) {
  Text &text = string(name);
  const uint64_t id = text.index + 1;
  if (!text.is_location) {
    profile_.message(kFunction, Message().number(1, id).number(2, text.index));
    profile_.message(kLocation, Message().number(1, id).message(4, Message().number(1, id)));
  }
  text.is_location = true;
  return id;
}

void Profile::put(const trace &of, const WalkGroup &group, bool is_paused) {
  const trace_event &place = *group.block.alloc;
  const char *device = devices_[static_cast<uint32_t>(place.device) % 16];
  const char *tag = tag_name(of, place.tag);
  Message sample;
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

bool Profile::write(uint64_t moment, FILE *out) {
  const uint64_t from = input_.choice.from;
  profile_.number(kTime, first_epoch(input_) + from);
  if (moment != UINT64_MAX) profile_.number(kDuration, moment - from);
  profile_.number(kDefaultType, string("inuse_space").index);
  for (const Text &each : strings_.items()) profile_.text(kString, each.text);
  if (!strings_.is_whole() || !profile_.is_whole()) return false;
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
