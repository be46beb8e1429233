// SPDX-License-Identifier: Apache-2.0
// pprof's profile.proto (github.com/google/pprof/proto), packed by gzip. The sample types are those of Go's heap
// profile: objects and bytes that were allocated between `from` and `to`, and those in use at the moment. A sample is
// all blocks of one kind, device, tag, state and name. These are its labels, and its stack from the leaf on.
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

struct Row {
  uint32_t trace;
  const trace_event *place;  // kind, device and tag
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
  uint64_t string(const char *text);
  // A location whose function has this name.
  uint64_t location(const char *name);
  void label(Message *sample, const char *key, const char *value) {
    sample->message(3, Message().number(1, string(key)).number(2, string(value)));
  }

  const view_input &input_;
  Vector<Row> rows_;
  Message profile_;
  Vector<const char *> strings_;
  Vector<const char *> functions_;
  bool is_whole_ = true;
};

Row *Profile::row_of(uint32_t index, const WalkBlock &block, bool is_paused) {
  const trace_event &place = *block.alloc;
  const char *name = block.name == nullptr ? "" : block.name;
  for (Row &row : rows_)
    if (row.trace == index && row.place->tag == place.tag && row.place->kind == place.kind &&
        row.place->device == place.device && row.is_paused == is_paused && std::strcmp(row.name, name) == 0)
      return &row;
  if (!rows_.push_back(Row{index, &place, name, is_paused, 0, 0, 0, 0})) {
    is_whole_ = false;
    return nullptr;
  }
  return &rows_[rows_.size() - 1];
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
    if (event.type != TRACE_ALLOC) continue;
    if (Row *row = row_of(index, *walk.block(), false)) {
      ++row->allocated;
      row->allocated_bytes += event.size;
    }
  }
  walk.for_each_live([&](const WalkBlock &block) {
    const bool is_paused = block.alloc->kind == GMM_KIND_VMM && paused[block.alloc->tag] != 0;
    if (Row *row = row_of(index, block, is_paused)) {
      ++row->used;
      row->used_bytes += block.alloc->size;
    }
  });
  return is_whole_ && !walk.is_out_of_memory();
}

uint64_t Profile::string(const char *text) {
  for (uint64_t i = 0; i < strings_.size(); ++i)
    if (std::strcmp(strings_[i], text) == 0) return i;
  is_whole_ = strings_.push_back(text) && is_whole_;
  return strings_.size() - 1;
}

uint64_t Profile::location(const char *name) {
  for (uint64_t i = 0; i < functions_.size(); ++i)
    if (std::strcmp(functions_[i], name) == 0) return i + 1;
  is_whole_ = functions_.push_back(name) && is_whole_;
  const uint64_t id = functions_.size();
  profile_.message(kFunction, Message().number(1, id).number(2, string(name)));
  profile_.message(kLocation, Message().number(1, id).message(4, Message().number(1, id)));
  return id;
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
