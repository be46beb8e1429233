// SPDX-License-Identifier: Apache-2.0
#include "subjects.h"

#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

namespace gmm_bench {
namespace {

void warn(const std::string &text) { std::fprintf(stderr, "gmm-bench: warning: %s\n", text.c_str()); }

std::filesystem::path program_folder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0 || length == sizeof path) return ".";
  return std::filesystem::path(std::string(path, static_cast<size_t>(length))).parent_path();
}

// Adds the subjects that the file exports by `symbol`. Returns whether it has that symbol.
template <typename Subject>
bool add_subjects(void *object, const char *symbol, const std::string &path, std::vector<const Subject *> *out) {
  using Function = const Subject *const *(*)(uint32_t *);
  const auto subjects = reinterpret_cast<Function>(dlsym(object, symbol));
  if (subjects == nullptr) return false;
  uint32_t count = 0;
  const Subject *const *all = subjects(&count);
  for (uint32_t i = 0; i < count; ++i) {
    if (all[i]->abi != GMM_BENCH_ABI)
      warn("a peer in " + path + " is of ABI " + std::to_string(all[i]->abi) + ", not this one: build it anew");
    else
      out->push_back(all[i]);
  }
  return true;
}

// Adds to the list that is not NULL.
void load(const std::filesystem::path &path, std::vector<const gmm_bench_subject *> *out,
          std::vector<const gmm_bench_pause_subject *> *pausing) {
  // The object stays open: allocators leave threads and exit handlers behind.
  void *object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) return warn("the peer " + path.string() + " cannot be opened: " + dlerror());
  if (out != nullptr && !add_subjects(object, GMM_BENCH_SUBJECTS, path.string(), out) &&
      dlsym(object, GMM_BENCH_PAUSE_SUBJECTS) == nullptr)
    warn(path.string() + " has no " GMM_BENCH_SUBJECTS "()");
  if (pausing != nullptr) add_subjects(object, GMM_BENCH_PAUSE_SUBJECTS, path.string(), pausing);
}

// Leaves the subjects that --subject names. False after saying that it names one that does not exist.
template <typename Subject>
bool select(const Options &options, std::vector<const Subject *> *all) {
  const auto is = [](const std::string &name) { return [&](auto *subject) { return name == subject->name; }; };
  for (const std::string &name : options.names) {
    if (std::any_of(all->begin(), all->end(), is(name))) continue;
    std::string names;
    for (auto *subject : *all) names += std::string(names.empty() ? "" : ", ") + subject->name;
    std::fprintf(stderr, "gmm-bench: there is no subject '%s'; there are: %s\n", name.c_str(), names.c_str());
    return false;
  }
  std::erase_if(*all, [&](auto *subject) {
    return !options.names.empty() &&
           std::find(options.names.begin(), options.names.end(), subject->name) == options.names.end();
  });
  return true;
}

std::vector<std::filesystem::path> peer_files(const Options &options) {
  std::vector<std::filesystem::path> out;
  const std::filesystem::path folder = options.peers.empty() ? program_folder() : std::filesystem::path(options.peers);
  std::error_code error;
  for (const auto &entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("gmm_bench_", 0) == 0 && entry.path().extension() == ".so") out.push_back(entry.path());
  }
  if (error) warn("--peers " + folder.string() + ": " + error.message());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

bool Platform::fake() const { return cuda() && device_name.find("Fake CUDA") != std::string::npos; }

bool open_platform(const Options &options, Platform *out) {
  set_gmm_backend(options.backend);
  gmm_context *context = nullptr;
  gmm_context_info info = {};
  info.struct_size = sizeof info;
  gmm_device_info device = {};
  device.struct_size = sizeof device;
  gmm_result result = create_gmm_context(&context);
  if (result >= 0) result = gmm_context_query(context, &info);
  if (result >= 0) result = gmm_device_query(context, options.device, &device);
  if (result < 0) std::fprintf(stderr, "gmm-bench: %s: %s\n", gmm_result_name(result), gmm_last_error_message());
  if (context != nullptr && gmm_context_release(context) < 0)
    std::fprintf(stderr, "gmm-bench: release: %s\n", gmm_last_error_message());
  if (result < 0) return false;
  *out = {info.backend, info.backend_name, device.name, info.driver_version};
  set_gmm_backend(info.backend);
  return true;
}

std::string describe(const Platform &platform) {
  std::string text =
      "backend " + platform.backend_name + " (" + platform.driver_version + "), device " + platform.device_name;
  if (platform.fake()) return text + "\nTHE DRIVER IS THE FAKE ONE OF THE TESTS: these times say nothing about a GPU";
  if (platform.backend == GMM_BACKEND_HOST) return text + "\nno GPU took part: gmm manages memory of this machine";
  return text;
}

bool find_subjects(const Options &options, const Platform &platform, std::vector<const gmm_bench_subject *> *out) {
  std::vector<const gmm_bench_subject *> all = {gmm_subject(), gmm_heap_subject(), mimalloc_subject(),
                                                umf_subject(platform.cuda())};
  if (options.command == "mixed" || options.command == "replay") all.push_back(umf_trim_subject(platform.cuda()));
  if (options.command == "latency") {
    all.insert(all.begin() + 2, gmm_reserved_subject());
    all.push_back(control_subject());
  }
  for (const auto &path : peer_files(options)) load(path, &all, nullptr);
  std::erase_if(all, [&](const gmm_bench_subject *subject) { return subject->needs_cuda && !platform.cuda(); });
  if (!select(options, &all)) return false;
  // A subject that cannot be opened at all gets one warning, not one a kind.
  std::erase_if(all, [&](auto *subject) {
    if (is_gmm(*subject)) return false;
    uint32_t kind = 0;
    while (kind < 31 && (subject->kinds >> kind & 1) == 0) ++kind;
    const auto trial = subject->make();
    if (trial->open({kind, options.device, 1})) return false;
    warn(std::string("the peer ") + subject->name + " is missing: " + trial->error());
    return true;
  });
  *out = all;
  return true;
}

bool find_pause_subjects(const Options &options, const Platform &platform,
                         std::vector<const gmm_bench_pause_subject *> *out) {
  *out = pause_baselines();
  out->insert(out->begin(), gmm_pause_subject());
  out->push_back(direct_write_subject());
  for (const auto &path : peer_files(options)) load(path, nullptr, out);
  std::erase_if(*out, [&](auto *subject) { return subject->needs_cuda && !platform.cuda(); });
  return select(options, out);
}

bool Instance::open(const gmm_bench_subject &subject, uint32_t kind, uint32_t stream_count, Workers *workers,
                    uint32_t threads, const Options &options) {
  subject_ = &subject;
  kind_ = kind;
  workers_ = workers;
  allocator_ = subject.make();
  if (!allocator_->open({kind, options.device, std::max(stream_count, threads + 1)})) return false;
  threads_.resize(threads);
  bool good = true;
  // One thread uses the default stream, as most programs do; several have one each.
  const uint32_t first = threads == 1 ? 0 : 1;
  workers_->run(
      threads, [&](uint32_t i) { return (threads_[i] = allocator_->begin_thread(first + i)) != nullptr; }, &good);
  return good;
}

void Instance::close() {
  bool good = true;
  if (!threads_.empty())
    workers_->run(
        static_cast<uint32_t>(threads_.size()), [&](uint32_t i) { return threads_[i].reset(), true; }, &good);
  threads_.clear();
  allocator_.reset();
}

std::string Instance::error() const { return name() + " (" + kind_name(kind_) + "): " + allocator_->error(); }

bool Player::play(const std::vector<gmm_bench_operation> &operations, double *ns, uint64_t *peak,
                  std::vector<uint32_t> *times) {
  const gmm_bench_replay shared = {blocks_.data(), sizes_.data(), peak};
  gmm_bench_thread &thread = instance_->thread(0);
  const auto job = [&](uint32_t) {
    if (times == nullptr) return thread.replay(operations.data(), operations.size(), shared);
    for (const gmm_bench_operation &operation : operations) {
      const uint64_t begin = now();
      if (!thread.replay(&operation, 1, shared)) return false;
      times->push_back(static_cast<uint32_t>(std::min<uint64_t>(now() - begin, UINT32_MAX)));
    }
    return true;
  };
  bool good = true;
  *ns = static_cast<double>(workers_->run(1, job, &good));
  return good;
}

bool Player::clear() {
  std::vector<gmm_bench_operation> frees;
  for (uint32_t i = 0; i < blocks_.size(); ++i)
    if (blocks_[i] != nullptr) frees.push_back({0, i, 0});
  double ignored = 0;
  return play(frees, &ignored);
}

std::vector<uint32_t> kinds_of(const gmm_bench_subject &subject, const std::vector<uint32_t> &wanted) {
  if (subject.kinds == 1u << GMM_BENCH_SYSTEM) return {GMM_BENCH_SYSTEM};
  std::vector<uint32_t> out;
  for (const uint32_t kind : wanted)
    if ((subject.kinds >> kind & 1) != 0) out.push_back(kind);
  return out;
}

}  // namespace gmm_bench
