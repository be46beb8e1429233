// SPDX-License-Identifier: Apache-2.0
// The tour in C++17: gmm.hpp with exceptions. ../README.md says what each step must hold.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <functional>
#include <gmm/gmm.hpp>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "replay.hpp"

namespace {

constexpr uint64_t kMiB = 1024 * 1024;
constexpr uint64_t kBlock = 64 * kMiB;
constexpr const char *kKindNames[] = {"", "DEVICE", "VMM", "HOST", "MANAGED"};

// This kind lacks the step.
struct NotThere : std::runtime_error {
  using std::runtime_error::runtime_error;
};

uint8_t pattern(uint64_t i, unsigned complement) { return static_cast<uint8_t>((i * 31 + i / 4096) ^ complement); }

// The bytes free on a GPU, or those resident here as a negative number. The difference of two answers came back.
int64_t system_memory(gmm::context_ref context, bool host) {
  if (!host) return static_cast<int64_t>(context.device_query(gmm::device_id(0)).free_memory);
  long long total = 0, resident = 0;
  const std::unique_ptr<FILE, int (*)(FILE *)> file(std::fopen("/proc/self/statm", "r"), std::fclose);
  if (!file || std::fscanf(file.get(), "%lld %lld", &total, &resident) != 2)
    throw std::runtime_error("/proc/self/statm cannot be read");
  return -static_cast<int64_t>(resident) * sysconf(_SC_PAGESIZE);
}

class Tour {
 public:
  Tour()
      : context_(gmm::context::create()),
        device_(context_.device_query(gmm::device_id(0))),
        buffer_(kBlock),
        stream_(gmm::stream::create(context_)) {
    gmm::tag_desc desc;
    // On the host backend the contents go to a file: a copy in host memory would be as large as what goes back.
    desc.contents = is_host() ? GMM_CONTENTS_FILE : GMM_CONTENTS_HOST;
    tag_ = gmm::tag::create(context_, "tour", desc);
  }

  void header() const {
    const gmm_context_info info = context_.query();
    std::printf("gmm %s, C++17, backend %s (%s), device 0: %s\n", gmm::version_string(), info.backend_name,
                info.driver_version, device_.name);
    if (is_host()) std::printf("This is the host backend: it needs no GPU, and its figures say nothing about one.\n");
  }

  // Runs every step on every kind and prints the table. Returns the number of failures.
  unsigned run();
  // Runs as the second process: reads a handle, checks the bytes, writes their complement.
  void peer();

 private:
  struct Step {
    const char *name;
    std::function<std::string(Tour &)> run;  // the cell: "ok" or a figure
    const char *needs;                       // the step that must not have failed
  };
  static const std::vector<Step> kSteps;

  bool is_host() const { return (device_.capabilities & GMM_DEVICE_IS_CPU) != 0; }
  void only(std::initializer_list<gmm_kind> kinds, const char *why) const {
    for (gmm_kind kind : kinds)
      if (kind == kind_) return;
    throw NotThere(why);
  }
  void copy(void *destination, const void *source, uint64_t size) {
    context_.copy(destination, source, size, stream_);
    stream_.synchronize();
  }
  void write(void *memory, unsigned complement) {
    for (uint64_t i = 0; i < kBlock; ++i) buffer_[i] = pattern(i, complement);
    copy(memory, buffer_.data(), kBlock);
  }
  void compare(const void *memory, unsigned complement, uint64_t size = kBlock) {
    std::fill(buffer_.begin(), buffer_.end(), uint8_t{0});
    copy(buffer_.data(), memory, size);
    for (uint64_t i = 0; i < size; ++i)
      if (buffer_[i] != pattern(i, complement))
        throw std::runtime_error("byte " + std::to_string(i) + " is " + std::to_string(buffer_[i]) + ", expected " +
                                 std::to_string(pattern(i, complement)));
  }
  std::string alloc();
  std::string write_and_read();
  std::string look_at(const void *address) const;
  std::string foreign() const;
  std::string pin();
  std::string advise();
  std::string prefetch();
  std::string move();
  std::string share();
  std::string pause();
  std::string resume();
  std::string free();

  void *middle() const { return static_cast<uint8_t *>(block_.data()) + kBlock / 2; }

  gmm::context context_;
  gmm_device_info device_;
  std::vector<uint8_t> buffer_;
  gmm::stream stream_;
  gmm::tag tag_;
  gmm_kind kind_ = 0;
  gmm::buffer block_;
};

std::string Tour::alloc() {
  gmm::alloc_desc desc;
  desc.kind = kind_;
  desc.tag = tag_;
  desc.stream = stream_;
  desc.flags = kind_ == GMM_KIND_VMM ? GMM_ALLOC_DEDICATED : 0;
  block_ = context_.alloc(kBlock, desc);
  if (reinterpret_cast<uintptr_t>(block_.data()) % 256 != 0)
    throw std::runtime_error("the address is not a multiple of 256");
  return "ok";
}

std::string Tour::write_and_read() {
  write(block_.data(), 0);
  compare(block_.data(), 0);
  return "ok";
}

std::string Tour::look_at(const void *address) const {
  const gmm_pointer_info info = context_.query(address);
  if (info.kind != kind_ || info.base != block_.data() || info.size != kBlock || info.device != 0 || info.tag != tag_ ||
      info.state != GMM_STATE_ACTIVE)
    throw std::runtime_error("kind " + std::to_string(info.kind) + ", size " + std::to_string(info.size) + ", device " +
                             std::to_string(info.device) + ", tag " + std::to_string(info.tag) + ", state " +
                             std::to_string(info.state));
  return "ok";
}

std::string Tour::foreign() const {
  if (context_.query(buffer_.data()).state != GMM_STATE_UNKNOWN)
    throw std::runtime_error("a vector of the program is taken for memory of gmm");
  return "ok";
}

std::string Tour::pin() {
  if ((device_.capabilities & GMM_DEVICE_CAN_PIN) == 0) throw NotThere("the device cannot pin");
  const gmm::pinned pinned = context_.pin(buffer_.data(), kMiB);
  for (uint64_t i = 0; i < kMiB; ++i) buffer_[i] = pattern(i, 0xff);
  copy(block_.data(), buffer_.data(), kMiB);
  compare(block_.data(), 0xff, kMiB);
  write(block_.data(), 0);
  return "ok";
}

constexpr const char *kOnlyManaged = "a hint about pages is for MANAGED memory";
constexpr const char *kOnlyVmm = "only VMM memory can give its pages back and keep its address";

std::string Tour::advise() {
  only({GMM_KIND_MANAGED}, kOnlyManaged);
  context_.advise(block_.data(), 0, GMM_ADVISE_SET_PREFERRED_LOCATION, gmm::device_id(0));
  context_.advise(block_.data(), 0, GMM_ADVISE_UNSET_PREFERRED_LOCATION, gmm::device_id(0));
  compare(block_.data(), 0);
  return "ok";
}

std::string Tour::prefetch() {
  only({GMM_KIND_MANAGED}, kOnlyManaged);
  context_.prefetch(block_.data(), 0, gmm::device_id::host(), stream_);
  context_.prefetch(block_.data(), 0, gmm::device_id(0), stream_);
  compare(block_.data(), 0);
  return "ok";
}

std::string Tour::move() {
  only({GMM_KIND_VMM, GMM_KIND_MANAGED}, "the driver cannot move DEVICE and HOST memory: use VMM or MANAGED");
  gmm::move_desc desc;
  desc.stream = stream_;
  context_.move(block_.data(), gmm::device_id::host(), desc);
  compare(block_.data(), 0);
  context_.move(block_.data(), gmm::device_id(0), desc);
  compare(block_.data(), 0);
  return look_at(block_.data());
}

std::string Tour::share() {
  only({GMM_KIND_DEVICE, GMM_KIND_VMM, GMM_KIND_HOST},
       "the driver has no way to share MANAGED memory: use DEVICE, VMM or HOST");
  const gmm_ipc_handle handle = context_.ipc_export(block_.data());
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const std::string size = std::to_string(kBlock);
  std::fflush(stdout);
  const pid_t second = fork();
  if (second == 0) {
    dup2(ends[0], 0);
    close(ends[0]);
    close(ends[1]);
    execl("/proc/self/exe", "tour", "--peer", size.c_str(), static_cast<char *>(nullptr));
    _exit(127);
  }
  close(ends[0]);
  const bool sent = ::write(ends[1], &handle, sizeof handle) == static_cast<ssize_t>(sizeof handle);
  close(ends[1]);
  int status = 0;
  if (second < 0 || waitpid(second, &status, 0) != second || !sent)
    throw std::runtime_error("the second process did not start");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw std::runtime_error("the second process failed; its message stands above");
  compare(block_.data(), 0xff);
  write(block_.data(), 0);
  return "ok";
}

std::string mebibytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", bytes / static_cast<double>(kMiB));
  return text;
}

std::string Tour::pause() {
  only({GMM_KIND_VMM}, kOnlyVmm);
  if ((device_.capabilities & GMM_DEVICE_CAN_PAUSE) == 0) throw NotThere("the device cannot pause");
  context_.trim();
  const int64_t before = system_memory(context_, is_host());
  tag_.pause();
  // Otherwise the memory that the copies went through stays for the next pause.
  context_.trim();
  const int64_t gone = system_memory(context_, is_host()) - before;
  if (context_.query(block_.data()).state != GMM_STATE_PAUSED)
    throw std::runtime_error("after the pause the state is not PAUSED");
  if (gone < static_cast<int64_t>(kBlock / 4 * 3))
    throw std::runtime_error("only " + mebibytes(static_cast<double>(gone)) + " came back to the system");
  return mebibytes(static_cast<double>(gone));
}

std::string Tour::resume() {
  only({GMM_KIND_VMM}, kOnlyVmm);
  if ((device_.capabilities & GMM_DEVICE_CAN_PAUSE) == 0) throw NotThere("the device cannot pause");
  const uint64_t bytes = tag_.resume();
  look_at(block_.data());
  compare(block_.data(), 0);
  return mebibytes(static_cast<double>(bytes));
}

std::string Tour::free() {
  const void *memory = block_.data();
  block_.free(stream_);
  const gmm_state state = context_.query(memory).state;
  if (state != GMM_STATE_FREE && state != GMM_STATE_UNKNOWN)
    throw std::runtime_error("after the free the state is " + std::to_string(state));
  const uint64_t live = context_.stats_query(gmm::scope().tag(tag_)).live_blocks;
  if (live != 0) throw std::runtime_error(std::to_string(live) + " blocks are live still");
  stream_.synchronize();
  context_.trim();
  return "ok";
}

const std::vector<Tour::Step> Tour::kSteps = {
    {"alloc", &Tour::alloc, nullptr},
    {"write and read", &Tour::write_and_read, "alloc"},
    {"query", [](Tour &t) { return t.look_at(t.block_.data()); }, "alloc"},
    {"query interior", [](Tour &t) { return t.look_at(t.middle()); }, "alloc"},
    {"query foreign", &Tour::foreign, nullptr},
    {"pin", &Tour::pin, "write and read"},
    {"advise", &Tour::advise, "write and read"},
    {"prefetch", &Tour::prefetch, "write and read"},
    {"move", &Tour::move, "write and read"},
    {"share", &Tour::share, "write and read"},
    {"pause", &Tour::pause, "write and read"},
    {"resume", &Tour::resume, "pause"},
    {"free", &Tour::free, "alloc"},
};

unsigned Tour::run() {
  std::vector<std::string> notes, failures;
  std::vector<gmm_kind> kinds;
  std::map<std::string_view, std::map<gmm_kind, std::string>> cells;
  for (kind_ = GMM_KIND_DEVICE; kind_ <= GMM_KIND_MANAGED; ++kind_) {
    if ((device_.kinds & (1u << kind_)) == 0) continue;
    kinds.push_back(kind_);
    for (const Step &step : kSteps) {
      std::string &cell = cells[step.name][kind_];
      try {
        if (step.needs != nullptr && cells[step.needs][kind_] == "FAILED") throw std::runtime_error("not reached");
        try {
          cell = step.run(*this);
        } catch (const gmm::error &error) {
          if (error.code() == GMM_ERROR_NOT_SUPPORTED) throw NotThere(error.message());
          throw std::runtime_error(std::string(error.name()) + ": " + error.message());
        }
      } catch (const NotThere &why) {
        size_t note = 0;
        while (note < notes.size() && notes[note] != why.what()) ++note;
        if (note == notes.size()) notes.push_back(why.what());
        cell = "- [" + std::to_string(note + 1) + "]";
      } catch (const std::exception &error) {
        cell = "FAILED";
        failures.push_back(std::string("FAILED ") + kKindNames[kind_] + " " + step.name + ": " + error.what());
      }
    }
  }
  std::printf("\n%-17s ", "step");
  for (gmm_kind kind : kinds) std::printf("%-13s ", kKindNames[kind]);
  for (const Step &step : kSteps) {
    std::printf("\n%-17s ", step.name);
    for (gmm_kind kind : kinds) std::printf("%-13s ", cells[step.name][kind].c_str());
  }
  std::printf("\n\n");
  for (size_t i = 0; i < notes.size(); ++i) std::printf("[%zu] %s\n", i + 1, notes[i].c_str());
  for (const std::string &failure : failures) std::printf("%s\n", failure.c_str());
  return static_cast<unsigned>(failures.size());
}

void Tour::peer() {
  gmm_ipc_handle handle;
  if (std::fread(&handle, 1, sizeof handle, stdin) != sizeof handle) throw std::runtime_error("no handle on stdin");
  gmm::imported memory = context_.ipc_import(handle);
  compare(memory.data(), 0);
  write(memory.data(), 0xff);
  memory.close();
}

}  // namespace

int main(int count, char **words) {
  const std::vector<std::string> arguments(words + 1, words + count);
  const bool second = arguments.size() == 2 && arguments[0] == "--peer" && arguments[1] == std::to_string(kBlock);
  if (!second && !arguments.empty() && arguments[0][0] == '-') {
    std::fprintf(stderr, "use: tour [TRACE.gz ...]\n");
    return 2;
  }
  unsigned failures = 0;
  try {
    Tour tour;
    if (second) {
      tour.peer();
      return 0;
    }
    tour.header();
    failures = tour.run();
  } catch (const std::exception &error) {
    std::fprintf(stderr, "tour%s: %s\n", second ? ", second process" : "", error.what());
    return 1;
  }
  if (!arguments.empty()) print_replay_header();
  for (const std::string &path : arguments) {
    try {
      replay(path);
    } catch (const std::exception &error) {
      std::printf("FAILED replay: %s: %s\n", path.c_str(), error.what());
      ++failures;
    }
  }
  if (failures == 0)
    std::printf("\ntour: ok\n");
  else
    std::printf("\ntour: %u steps failed\n", failures);
  return failures > 0 ? 1 : 0;
}
