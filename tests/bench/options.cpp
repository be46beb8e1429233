// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>

#include "subject.h"
#include "workers.h"

namespace gmm_bench {
namespace {

constexpr const char *kKinds[] = {"system", "device", "vmm", "host", "managed"};

// Calls `take` with each part between commas. False for an empty part too.
bool each(const std::string &text, const std::function<bool(const std::string &)> &take) {
  size_t begin = 0;
  for (;;) {
    const size_t end = text.find(',', begin);
    const std::string part = text.substr(begin, end == std::string::npos ? end : end - begin);
    if (part.empty() || !take(part)) return false;
    if (end == std::string::npos) return true;
    begin = end + 1;
  }
}

bool number(const std::string &text, uint64_t least, uint64_t most, uint64_t *out, bool units = false) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  char *end = nullptr;
  errno = 0;
  uint64_t value = std::strtoull(text.c_str(), &end, 10);
  if (errno != 0) return false;
  if (units && *end != '\0') {
    const char *unit = std::strchr("KMG", *end);
    if (unit == nullptr) return false;
    const uint32_t shift = 10 * (*end == 'K' ? 1u : *end == 'M' ? 2u : 3u);
    if (value > UINT64_MAX >> shift) return false;
    value <<= shift;
    ++end;
    if (std::strcmp(end, "iB") == 0) end += 2;
  }
  if (*end != '\0' || value < least || value > most) return false;
  *out = value;
  return true;
}

template <typename T>
bool numbers(const std::string &text, uint64_t least, uint64_t most, std::vector<T> *out, bool units = false) {
  out->clear();
  return each(text, [&](const std::string &part) {
    uint64_t value = 0;
    if (!number(part, least, most, &value, units)) return false;
    out->push_back(static_cast<T>(value));
    return true;
  });
}

bool kinds(const std::string &text, std::vector<uint32_t> *out) {
  out->clear();
  return each(text, [&](const std::string &part) {
    for (uint32_t kind = GMM_BENCH_DEVICE; kind <= GMM_BENCH_MANAGED; ++kind) {
      if (part != kKinds[kind]) continue;
      out->push_back(kind);
      return true;
    }
    return false;
  });
}

bool names(const std::string &text, std::vector<std::string> *out) {
  out->clear();
  return each(text, [&](const std::string &part) { return out->push_back(part), true; });
}

template <typename T>
bool one(const std::string &text, uint64_t least, uint64_t most, T *out) {
  uint64_t value = 0;
  if (!number(text, least, most, &value)) return false;
  *out = static_cast<T>(value);
  return true;
}

// An option. --help prints this table.
struct Flag {
  const char *name, *value;  // no value: ""
  const char *commands;      // that take it; "": all
  const char *help;
  std::function<bool(const std::string &, Options *)> take;
};

const std::vector<Flag> &flags() {
  static const std::vector<Flag> all = {
      {"--backend", "auto|host|cuda|sycl", "", "default: GMM_BACKEND, else cuda where a device answers, else host",
       [](const std::string &text, Options *o) {
         constexpr const char *kBackends[] = {"auto", "host", "cuda", "sycl"};  // by GMM_BACKEND_*
         const auto found = std::find(std::begin(kBackends), std::end(kBackends), text);
         o->backend = static_cast<gmm_backend>(found - std::begin(kBackends));
         return found != std::end(kBackends);
       }},
      {"--device", "N", "", "default: 0",
       [](const std::string &text, Options *o) { return one(text, 0, INT32_MAX, &o->device); }},
      {"--kind", "device,vmm,host,managed", "pair mixed latency replay ipc",
       "default: pair all, ipc all but managed, replay vmm, else vmm and device",
       [](const std::string &text, Options *o) { return kinds(text, &o->kinds); }},
      {"--subject", "NAME,...", "", "only these; default: all that are there",
       [](const std::string &text, Options *o) { return names(text, &o->names); }},
      {"--peers", "DIR", "", "the folder of gmm_bench_*.so; default: that of this program",
       [](const std::string &text, Options *o) { return o->peers = text, !text.empty(); }},
      {"--samples", "N", "", "the median of these is printed",
       [](const std::string &text, Options *o) { return one(text, 1, 100000, &o->samples); }},
      {"--json", "", "", "prints one object a row", [](const std::string &, Options *o) { return o->json = true; }},
      {"--size", "N,...", "pair pause", "bytes, or with K, M, G; default: 512,1K,64K,1M,4M,64M; pause 2M",
       [](const std::string &text, Options *o) { return numbers(text, 1, uint64_t{1} << 40, &o->sizes, true); }},
      {"--threads", "N,...", "pair", "several have a stream each; default: 1, on the default stream",
       [](const std::string &text, Options *o) { return numbers(text, 1, kMaxThreads, &o->threads); }},
      {"--share", "", "pair", "also: one thread allocates, another frees on the allocating thread's stream",
       [](const std::string &, Options *o) { return o->share = true; }},
      {"--sample-us", "N", "pair", "the length of a sample; default: 500, with several threads 2000",
       [](const std::string &text, Options *o) { return one(text, 1, 10000000, &o->sample_us); }},
      {"--iterations", "N", "pair mixed latency", "operations a sample; default: mixed 1024, latency 1000000",
       [](const std::string &text, Options *o) { return one(text, 1, uint64_t{1} << 40, &o->iterations); }},
      {"--blocks", "N", "mixed latency pause", "live blocks; default: 256, pause 1000",
       [](const std::string &text, Options *o) { return one(text, 1, 1000000, &o->blocks); }},
      {"--contents", "drop|host|file", "pause", "default: drop",
       [](const std::string &text, Options *o) {
         o->contents = text == "host" ? GMM_CONTENTS_HOST : text == "file" ? GMM_CONTENTS_FILE : GMM_CONTENTS_DROP;
         return text == "host" || text == "file" || text == "drop";
       }},
      {"--cold", "", "pause", "host contents: each sample is the first pause of a new context",
       [](const std::string &, Options *o) { return o->cold = true; }},
      {"--pageable", "", "pause", "host contents in memory that is not page-locked",
       [](const std::string &, Options *o) { return o->pageable = true; }},
      {"--rest", "MS", "pause", "a wait before each operation, in which the driver clears released memory; default: 0",
       [](const std::string &text, Options *o) { return one(text, 0, 60000, &o->rest_ms); }},
      {"--directory", "DIR", "pause", "for files; default: GMM_BACKUP_DIR, or /tmp",
       [](const std::string &text, Options *o) { return o->directory = text, !text.empty(); }},
  };
  return all;
}

struct Command {
  const char *name, *help;
};
constexpr Command kCommands[] = {
    {"pair", "one alloc and its free: over sizes, kinds, threads, from thread to thread"},
    {"mixed", "live blocks of 512 B to 8 MiB, replaced at random"},
    {"latency", "the same blocks, each operation timed by itself: percentiles and the worst"},
    {"replay", "recorded allocations, of trace files or folders of them"},
    {"pause", "the memory of many blocks given back to the driver, and taken again"},
    {"ipc", "an import by another process, beside the driver's or system's own calls"},
};

void print_help() {
  std::printf("gmm-bench COMMAND [OPTION]...: gmm beside other allocators, in one process and one run\n\n");
  for (const Command &command : kCommands) std::printf("  %-8s  %s\n", command.name, command.help);
  std::printf("\n");
  for (const Flag &flag : flags()) {
    const std::string words = std::string(flag.name) + " " + flag.value;
    const std::string of = *flag.commands != '\0' ? std::string(flag.commands) + ": " : "";
    std::printf("  %-30s  %s%s\n", words.c_str(), of.c_str(), flag.help);
  }
}

ExitCode wrong(const std::string &text) {
  std::fprintf(stderr, "gmm-bench: %s; see `gmm-bench --help`\n", text.c_str());
  return kUsage;
}

ExitCode check_pause(const Options &options) {
  if (options.sizes.size() > 1) return wrong("pause takes one --size");
  if (!options.sizes.empty() && options.sizes[0] % (2u << 20) != 0) return wrong("pause wants a --size of whole 2M");
  if (options.cold && options.pageable) return wrong("pause takes one of --cold and --pageable");
  if ((options.cold || options.pageable) && options.contents != GMM_CONTENTS_HOST)
    return wrong("--cold and --pageable go with --contents host");
  return kGood;
}

}  // namespace

ExitCode parse(int argc, char **argv, Options *out) {
  std::vector<std::string> words;
  std::vector<const Flag *> given;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--help" || word == "-h") return print_help(), kHelp;
    if (word.size() < 2 || word[0] != '-') {
      words.push_back(word);
      continue;
    }
    const Flag *flag = nullptr;
    for (const Flag &candidate : flags())
      if (word == candidate.name) flag = &candidate;
    if (flag == nullptr) return wrong("there is no option " + word);
    if (*flag->value != '\0' && i + 1 == argc) return wrong(word + " wants a value");
    const std::string value = *flag->value != '\0' ? argv[++i] : "";
    if (!flag->take(value, out)) return wrong(word + " does not take '" + value + "'");
    given.push_back(flag);
  }
  if (words.empty()) return wrong("no command");
  out->command = words[0];
  if (std::none_of(std::begin(kCommands), std::end(kCommands), [&](auto &each) { return words[0] == each.name; }))
    return wrong("there is no command '" + words[0] + "'");
  out->files.assign(words.begin() + 1, words.end());
  if (out->command == "replay" && out->files.empty()) return wrong("replay wants a trace");
  if (out->command != "replay" && !out->files.empty())
    return wrong(out->command + " does not take '" + out->files[0] + "'");
  for (const Flag *flag : given)
    if (*flag->commands != '\0' &&
        (std::string(" ") + flag->commands + " ").find(" " + out->command + " ") == std::string::npos)
      return wrong(out->command + " does not take " + flag->name);
  if (out->blocks == 0) out->blocks = out->command == "pause" ? 1000 : 256;
  return out->command == "pause" ? check_pause(*out) : kGood;
}

const char *kind_name(uint32_t kind) { return kind < sizeof kKinds / sizeof *kKinds ? kKinds[kind] : "unknown"; }

std::string size_text(uint64_t bytes) {
  const char *units[] = {"B", "KiB", "MiB", "GiB"};
  uint32_t unit = 0;
  while (unit < 3 && bytes >= 1024 && bytes % 1024 == 0) bytes /= 1024, ++unit;
  return std::to_string(bytes) + " " + units[unit];
}

}  // namespace gmm_bench
