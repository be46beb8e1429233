// SPDX-License-Identifier: Apache-2.0
#include "base/memory_group.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/process.h"

namespace gmm::os {
namespace {

constexpr uint64_t kMaxPath = 2048;  // threads of the library have small stacks

struct Version {
  const char *top, *limit, *used;  // the folder of the groups, and files
  const char *cached[2];           // in memory.stat, behind its first line
};
constexpr Version kOne = {"/sys/fs/cgroup/memory",
                          "memory.limit_in_bytes",
                          "memory.usage_in_bytes",
                          {"\ntotal_inactive_file ", "\ntotal_active_file "}};
constexpr Version kTwo = {"/sys/fs/cgroup", "memory.max", "memory.current", {"\ninactive_file ", "\nactive_file "}};

// Whether a list that is separated by commas has the word.
bool has_word(const char *list, const char *word) {
  const uint64_t length = std::strlen(word);
  for (const char *at = list; (at = std::strstr(at, word)) != nullptr; at += length)
    if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0')) return true;
  return false;
}

// One group. `path` has place for a file's name behind its first `length` bytes.
void apply_group(const Version &version, char *path, uint64_t length, GroupLimit *out) {
  const auto file = [&](const char *name) {
    std::snprintf(path + length, kMaxPath - length, "/%s", name);
    return path;
  };
  uint64_t limit = 0, used = 0, cached = 0;
  // Version 1 tells "no limit" as the largest number of pages.
  if (!read_number(file(version.limit), &limit) || limit >= uint64_t{1} << 62) return;
  if (!read_number(file(version.used), &used)) used = 0;
  char statistics[4096];
  if (read_small_file(file("memory.stat"), statistics, sizeof statistics) == 0)
    for (const char *name : version.cached)
      if (const char *line = std::strstr(statistics, name))
        cached += std::strtoull(line + std::strlen(name), nullptr, 10);
  used -= cached < used ? cached : used;
  const uint64_t left = limit > used ? limit - used : 0;
  if (limit < out->limit) out->limit = limit;
  if (left < out->left) out->left = left;
}

// The groups from `group` up to the top.
void apply_groups(const Version &version, const char *root, const char *group, GroupLimit *out) {
  constexpr int kNames = 64;  // for the names of files
  char path[kMaxPath];
  const auto put = [&](const char *below) {
    return std::snprintf(path, sizeof path, "%s%s%s", root, version.top, below);
  };
  const int top = put("");
  // Without a namespace of groups a container sees its own group at the top, while /proc names the whole path.
  int whole = put(group);
  while (*group != '\0' && (whole > static_cast<int>(kMaxPath) - kNames || access(path, F_OK) != 0)) {
    group += 1 + std::strcspn(group + 1, "/");
    whole = put(group);
  }
  for (int length = whole; length >= top; --length)
    if (length == whole || length == top || path[length] == '/')
      apply_group(version, path, static_cast<uint64_t>(length), out);
}

}  // namespace

GroupLimit memory_group_limit(const char *root) {
  GroupLimit limit;
  char path[kMaxPath], text[2 * kMaxPath];
  std::snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  if (read_small_file(path, text, sizeof text) != 0) return limit;
  for (char *rest = text; char *line = strsep(&rest, "\n");) {
    // Number, controllers, path: "4:memory:/job", or of version 2 "0::/job".
    char *controllers = std::strchr(line, ':');
    char *group = controllers == nullptr ? nullptr : std::strchr(controllers + 1, ':');
    if (group == nullptr || group[1] != '/') continue;
    *controllers++ = *group++ = '\0';
    if (std::strncmp(group, "/..", 3) == 0) group += std::strlen(group);  // outside of what this process sees
    if (has_word(controllers, "memory")) apply_groups(kOne, root, group, &limit);
    if (*controllers == '\0' && std::strcmp(line, "0") == 0) apply_groups(kTwo, root, group, &limit);
  }
  return limit;
}

}  // namespace gmm::os
