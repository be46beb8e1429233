// SPDX-License-Identifier: Apache-2.0
// gmm ps and gmm top: the memory of each process of this user that uses gmm, and what else uses the cards.
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/device_text.h"
#include "base/process.h"
#include "base/thread.h"
#include "base/utf8.h"
#include "cli/control/control.h"
#include "cli/views/encodings.h"

extern "C" {
#include "cli/cli.h"
}

namespace {

using namespace gmm;

// The memory of a process on a device, or of a tag of it there; or a process of which the note tells.
struct Row : ControlHeap {
  uint32_t process = 0;
  char place[40] = "";  // the device's UUID; empty: page-locked memory of the host
  uint64_t rate = 0;    // allocations in a second
  const char *note = "";
  bool is_same(const Row &other) const {
    return process == other.process && std::strcmp(place, other.place) == 0 && std::strcmp(tag, other.tag) == 0;
  }
};

constexpr struct Column {
  const char *name, *title;
  uint64_t Row::*value;  // UINT64_MAX: not known, or no limit
  bool is_of_tag, is_bytes;
} kColumns[] = {{"live_bytes", "live MiB", &Row::live_bytes, false, true},
                {"reserved_bytes", "reserved", &Row::reserved_bytes, false, true},
                {"paused_bytes", "paused", &Row::paused_bytes, false, true},
                {"kept_bytes", "kept", &Row::kept_bytes, false, true},
                {"limit_bytes", "limit", &Row::limit_bytes, true, true},
                {"pauses", "pauses", &Row::pauses, true, false},
                {"allocations_per_s", "allocs/s", &Row::rate, true, false}};

class Sample {
 public:
  Sample(const options &all, bool by_tag);
  void find_rates(const Sample &before);
  // Becomes the later sample, for find_rates().
  void take(Sample &later) {
    rows_.swap(later.rows_);
    time_us_ = later.time_us_;
  }
  void print() const;
  void print_json() const;

 private:
  void add_heap(uint32_t process, const ControlHeap &heap);
  void add_note(uint32_t process, const char *place, uint64_t reserved, const char *note);
  void add_answer(const Answer &answer);
  void add_without_socket();
  static int add_card(void *self, const card *of);
  bool knows(uint32_t process, uint64_t rows) const;

  const bool by_tag_;
  const Answers answers_;
  uint64_t time_us_;
  uint64_t own_ = 0;  // rows of processes that use gmm
  List<Row> rows_;
  List<card> cards_;
};

// --- Look -----------------------------------------------------------------------------------------------------------

Sample::Sample(const options &all, bool by_tag)
    : by_tag_(by_tag), answers_(0, ControlRequest(), all.timeout / 1'000'000), time_us_(monotonic_us()) {
  for (const Answer &answer : answers_.list) add_answer(answer);
  add_without_socket();
  own_ = rows_.size();
  each_card(0, add_card, this);
}

void Sample::add_answer(const Answer &answer) {
  if (answer.reply.result != GMM_OK) return add_note(answer.asked.pid, "", UINT64_MAX, answer.reply.message);
  ControlHeap heap;
  bool any = false;
  for (; read(answer.file, &heap, sizeof heap) == sizeof heap; any = true) add_heap(answer.asked.pid, heap);
  if (!any) add_note(answer.asked.pid, "", 0, "no memory yet");
}

void Sample::add_heap(uint32_t process, const ControlHeap &heap) {
  Row row;
  static_cast<ControlHeap &>(row) = heap;
  row.process = process;
  if (heap.kind != GMM_KIND_HOST) uuid_text(heap.uuid, row.place);
  make_printable(row.tag, by_tag_ ? sizeof row.tag : 1);
  Row *known = std::find_if(rows_.begin(), rows_.end(), [&](const Row &other) { return other.is_same(row); });
  if (known == rows_.end()) {
    rows_.add(row);
    return;
  }
  known->allocations += heap.allocations;
  for (const Column &column : kColumns) {
    uint64_t &sum = known->*column.value;
    const uint64_t more = row.*column.value;
    if (!column.is_of_tag) sum = std::max(sum, more) == UINT64_MAX ? UINT64_MAX : sum + more;
  }
}

void Sample::add_note(uint32_t process, const char *place, uint64_t reserved, const char *note) {
  Row row;
  for (const Column &column : kColumns) row.*column.value = UINT64_MAX;
  row.process = process;
  std::snprintf(row.place, sizeof row.place, "%s", place);
  row.reserved_bytes = reserved;
  row.note = note;
  rows_.add(row);
}

bool Sample::knows(uint32_t process, uint64_t rows) const {
  return std::any_of(rows_.begin(), rows_.begin() + rows, [&](const Row &row) { return row.process == process; });
}

// Whether a process of this user has the library in its memory. One with the static library has not.
bool has_library(const char *process) {
  char path[300], line[4352];
  struct stat about = {};
  std::snprintf(path, sizeof path, "/proc/%s/maps", process);
  FILE *maps = stat(path, &about) == 0 && about.st_uid == current_user() ? std::fopen(path, "r") : nullptr;
  bool found = false;
  while (maps != nullptr && !found && std::fgets(line, sizeof line, maps) != nullptr)
    found = std::strstr(line, "/libgmm") != nullptr;
  if (maps != nullptr) std::fclose(maps);
  return found;
}

void Sample::add_without_socket() {
  DIR *all = opendir("/proc");
  while (const dirent *entry = all == nullptr ? nullptr : readdir(all)) {
    const int process = std::atoi(entry->d_name);
    if (process == 0 || process == process_number() || knows(static_cast<uint32_t>(process), rows_.size())) continue;
    if (has_library(entry->d_name))
      add_note(static_cast<uint32_t>(process), "", UINT64_MAX, "no socket for that; GMM_CONTROL=1 makes it");
  }
  if (all != nullptr) closedir(all);
}

int Sample::add_card(void *self, const card *of) {
  Sample &sample = *static_cast<Sample *>(self);
  sample.cards_.add(*of);
  const char *uuid = of->uuid + (std::strncmp(of->uuid, "GPU-", 4) == 0 ? 4 : 0);
  for (unsigned i = 0; i < of->count; ++i)
    if (!sample.knows(of->processes[i].pid, sample.own_))
      sample.add_note(of->processes[i].pid, uuid, of->processes[i].used, "without gmm");
  return 1;
}

void Sample::find_rates(const Sample &before) {
  for (Row &row : rows_)
    for (const Row &old : before.rows_)
      if (row.is_same(old) && row.allocations > old.allocations && time_us_ > before.time_us_)
        row.rate = (row.allocations - old.allocations) * 1'000'000 / (time_us_ - before.time_us_);
}

// --- Show -----------------------------------------------------------------------------------------------------------

struct Command {
  explicit Command(uint32_t process) {
    char path[32];
    std::snprintf(path, sizeof path, "/proc/%u/comm", process);
    if (read_small_file(path, text, sizeof text) != 0) text[0] = '\0';
    text[std::strcspn(text, "\n")] = '\0';
    make_printable(text, sizeof text);
  }
  char text[64] = "";
};

void Sample::print_json() const {
  JsonWriter out(write_to_file, stdout);
  out.open('{');
  out.open("memory", '[');
  for (const Row &row : rows_) {
    out.open('{');
    out.fields("command", Command(row.process).text, "device", row.place, "note", row.note, "process", row.process);
    if (by_tag_) out.fields("tag", row.tag);
    for (const Column &column : kColumns) {
      if (column.is_of_tag && !by_tag_) continue;
      if (const uint64_t value = row.*column.value; value != UINT64_MAX)
        out.fields(column.name, value);
      else
        out.fields(column.name, nullptr);
    }
    out.close("}");
  }
  out.close("]");
  out.open("cards", '[');
  for (const card &of : cards_)
    out.object("name", of.name, "uuid", of.uuid, "total_bytes", of.total, "used_bytes", of.used);
  out.close("]}");
  out.put('\n');
  out.flush();
}

void Sample::print() const {
  std::printf("%8s  %-15s  %-8s", "process", "command", "device");
  for (const Column &column : kColumns)
    if (by_tag_ || !column.is_of_tag) std::printf("  %10s", column.title);
  std::printf("\n");
  for (const Row &row : rows_) {
    const char *place = row.place[0] != '\0' ? row.place : row.note[0] != '\0' ? "-" : "host";
    std::printf("%8u  %-15s  %-8.8s", row.process, Command(row.process).text, place);
    for (const Column &column : kColumns) {
      const uint64_t value = row.*column.value;
      if (column.is_of_tag && !by_tag_) continue;
      if (value == UINT64_MAX)
        std::printf("  %10s", "-");
      else
        std::printf("  %10.*f", column.is_bytes ? 1 : 0, static_cast<double>(value) / (column.is_bytes ? 1048576 : 1));
    }
    std::printf("  %s%s\n", row.tag, row.note);
  }
  for (const card &of : cards_)
    std::printf("%s %s: %.1f MiB, %.1f MiB used by all processes\n", of.uuid, of.name,
                static_cast<double>(of.total) / 1048576, static_cast<double>(of.used) / 1048576);
}

int show(const Sample &sample, const options &options) {
  if (options.json != 0)
    sample.print_json();
  else
    sample.print();
  return std::fflush(stdout) == 0 ? EXIT_GOOD : EXIT_FAILED;
}

}  // namespace

int command_ps(const options *options) { return show(Sample(*options, false), *options); }

int command_top(const options *options) {
  constexpr uint64_t kPeriodUs = 1'000'000;
  for (Sample before(*options, true);;) {  // rates need two
    sleep_us(kPeriodUs);
    Sample now(*options, true);
    now.find_rates(before);
    if (options->json == 0 && options->once == 0 && isatty(STDOUT_FILENO) != 0) std::printf("\033[H\033[2J");
    const int code = show(now, *options);
    if (code != EXIT_GOOD || options->once != 0) return code;
    before.take(now);
  }
}
