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

// Splits at commas; calls `take` with each part. False for an empty part too.
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

bool choice(const std::string &text, const char *first, const char *second, bool *is_second) {
  *is_second = text == second;
  return *is_second || text == first;
}

struct Flag {
  const char *name;
  std::function<bool(const std::string &, Options *)> take;
  bool has_value = true;
  const char *commands = "pair mixed latency replay pause ipc";
};

const std::vector<Flag> &flags() {
  static const std::vector<Flag> all = {
      {"--backend",
       [](const std::string &text, Options *o) {
         constexpr const char *kBackends[] = {"auto", "host", "cuda", "sycl"};  // by GMM_BACKEND_*
         const auto found = std::find(std::begin(kBackends), std::end(kBackends), text);
         o->backend = static_cast<gmm_backend>(found - std::begin(kBackends));
         return found != std::end(kBackends);
       }},
      {"--device", [](const std::string &text, Options *o) { return one(text, 0, INT32_MAX, &o->device); }},
      {"--host-memory",
       [](const std::string &text, Options *o) {
         if (!one(text, 1, 1u << 20, &o->host_memory)) return false;
         o->host_memory <<= 30;
         return true;
       }},
      {"--kind", [](const std::string &text, Options *o) { return kinds(text, &o->kinds); }, true,
       "pair mixed latency replay ipc"},
      {"--subject", [](const std::string &text, Options *o) { return names(text, &o->names); }},
      {"--peers", [](const std::string &text, Options *o) { return o->peers = text, !text.empty(); }},
      {"--samples", [](const std::string &text, Options *o) { return one(text, 1, 100000, &o->samples); }},
      {"--json", [](const std::string &, Options *o) { return o->json = true; }, false},
      {"--size",
       [](const std::string &text, Options *o) { return numbers(text, 1, uint64_t{1} << 40, &o->sizes, true); }, true,
       "pair pause"},
      {"--threads", [](const std::string &text, Options *o) { return numbers(text, 1, kMaxThreads, &o->threads); },
       true, "pair ipc"},
      {"--share", [](const std::string &, Options *o) { return o->share = true; }, false, "pair"},
      {"--cross", [](const std::string &, Options *o) { return o->share = o->cross = true; }, false, "pair"},
      {"--sample-us", [](const std::string &text, Options *o) { return one(text, 1, 10000000, &o->sample_us); }, true,
       "pair"},
      {"--iterations",
       [](const std::string &text, Options *o) { return one(text, 1, uint64_t{1} << 40, &o->iterations); }, true,
       "pair mixed latency ipc"},
      {"--sizes", [](const std::string &text, Options *o) { return choice(text, "log", "uniform", &o->uniform); }, true,
       "mixed latency"},
      {"--blocks", [](const std::string &text, Options *o) { return one(text, 1, 1000000, &o->blocks); }, true,
       "mixed latency pause ipc"},
      {"--contents",
       [](const std::string &text, Options *o) {
         o->contents = text == "host" ? GMM_CONTENTS_HOST : text == "file" ? GMM_CONTENTS_FILE : GMM_CONTENTS_DROP;
         return text == "host" || text == "file" || text == "drop";
       },
       true, "pause"},
      {"--cold", [](const std::string &, Options *o) { return o->cold = true; }, false, "pause"},
      {"--rest", [](const std::string &text, Options *o) { return one(text, 0, 60000, &o->rest_ms); }, true, "pause"},
      {"--pageable", [](const std::string &, Options *o) { return o->pageable = true; }, false, "pause"},
      {"--directory", [](const std::string &text, Options *o) { return o->directory = text, !text.empty(); }, true,
       "pause"},
      {"--reserve", [](const std::string &text, Options *o) { return one(text, 1, 10000, &o->reserve); }, true,
       "latency"},
      {"--seed", [](const std::string &text, Options *o) { return one(text, 0, UINT64_MAX, &o->seed); }, true,
       "mixed latency"},
  };
  return all;
}

ExitCode wrong(const std::string &what) {
  std::fprintf(stderr, "gmm-bench: %s; `gmm-bench --help` says what there is\n", what.c_str());
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
    if (word.size() < 2 || word[0] != '-') {
      words.push_back(word);
      continue;
    }
    const Flag *flag = nullptr;
    for (const Flag &candidate : flags())
      if (word == candidate.name) flag = &candidate;
    if (flag == nullptr) return wrong("there is no option " + word);
    if (flag->has_value && i + 1 == argc) return wrong(word + " wants a value");
    const std::string value = flag->has_value ? argv[++i] : "";
    if (!flag->take(value, out)) return wrong(word + " does not take '" + value + "'");
    given.push_back(flag);
  }
  if (words.empty()) return wrong("no command");
  out->command = words[0];
  const char *const commands[] = {"pair", "mixed", "latency", "replay", "pause", "ipc"};
  if (std::find(std::begin(commands), std::end(commands), out->command) == std::end(commands))
    return wrong("there is no command '" + out->command + "'");
  out->files.assign(words.begin() + 1, words.end());
  if (out->command == "replay" && out->files.empty()) return wrong("replay wants a trace");
  if (out->command != "replay" && !out->files.empty())
    return wrong(out->command + " does not take '" + out->files[0] + "'");
  for (const Flag *flag : given)
    if ((std::string(" ") + flag->commands + " ").find(" " + out->command + " ") == std::string::npos)
      return wrong(out->command + " does not take " + flag->name);
  if (out->blocks == 0) out->blocks = out->command == "pause" || out->command == "ipc" ? 1000 : 256;
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
