// SPDX-License-Identifier: Apache-2.0
#include "base/memory_group.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace gmm::os {
namespace {

constexpr uint64_t kMaxPath = 2048;  // threads of the library have small stacks
constexpr uint64_t kMaxLine = 2 * kMaxPath;

// A file line by line. Lines that are too long are cut.
class Lines {
 public:
  explicit Lines(const char *path) : fd_(open(path, O_RDONLY | O_CLOEXEC)) {}
  ~Lines() {
    if (fd_ >= 0) close(fd_);
  }
  Lines(const Lines &) = delete;
  Lines &operator=(const Lines &) = delete;

  // The next line without its end; NULL after the last one.
  char *next() {
    uint64_t length = 0;
    for (char c = 0; (c = next_char()) != '\n';) {
      if (c == '\0') {
        if (length == 0) return nullptr;
        break;
      }
      if (length + 1 < sizeof line_) line_[length++] = c;
    }
    line_[length] = '\0';
    return line_;
  }

 private:
  // '\0' at the end of the file.
  char next_char() {
    if (at_ == end_) {
      ssize_t got = -1;
      do {
        got = fd_ < 0 ? 0 : read(fd_, buffer_, sizeof buffer_);
      } while (got < 0 && errno == EINTR);
      if (got <= 0) return '\0';
      at_ = 0;
      end_ = static_cast<uint64_t>(got);
    }
    return buffer_[at_++];
  }

  const int fd_;
  uint64_t at_ = 0, end_ = 0;
  char buffer_[1024];
  char line_[kMaxLine];
};

struct Version {
  const char *limit, *used, *inactive, *active;  // files, and lines of memory.stat
};
constexpr Version kOne = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ",
                          "total_active_file "};
constexpr Version kTwo = {"memory.max", "memory.current", "inactive_file ", "active_file "};

bool starts_with(const char *text, const char *start) { return std::strncmp(text, start, std::strlen(start)) == 0; }

// Whether a list that is separated by commas has the word.
bool has_word(const char *list, const char *word) {
  const uint64_t length = std::strlen(word);
  for (const char *at = list; (at = std::strstr(at, word)) != nullptr; at += length)
    if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0')) return true;
  return false;
}

// mountinfo writes spaces, tabs, line ends and backslashes as three octal digits.
void decode_octal(char *text) {
  char *to = text;
  for (const char *from = text; *from != '\0'; ++to) {
    const auto digit = [&](int i) { return from[i] >= '0' && from[i] <= '7'; };
    if (from[0] == '\\' && digit(1) && digit(2) && digit(3)) {
      *to = static_cast<char>((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
      from += 4;
    } else {
      *to = *from++;
    }
  }
  *to = '\0';
}

bool first_number(const char *path, uint64_t *out) {
  Lines lines(path);
  const char *line = lines.next();
  if (line == nullptr || *line < '0' || *line > '9') return false;  // "max", or no such file
  *out = std::strtoull(line, nullptr, 10);
  return true;
}

// One group. `path` has place for a file's name behind its first `length` bytes.
void apply_group(const Version &version, char *path, uint64_t length, GroupLimit *out) {
  const auto file = [&](const char *name) {
    std::snprintf(path + length, kMaxPath - length, "/%s", name);
    return path;
  };
  uint64_t limit = 0, used = 0, cached = 0;
  if (!first_number(file(version.limit), &limit)) return;
  // Version 1 tells "no limit" as the largest number of pages.
  if (limit >= uint64_t{1} << 62) return;
  if (!first_number(file(version.used), &used)) used = 0;
  Lines statistics(file("memory.stat"));
  while (const char *line = statistics.next())
    for (const char *name : {version.inactive, version.active})
      if (starts_with(line, name)) cached += std::strtoull(line + std::strlen(name), nullptr, 10);
  used -= cached < used ? cached : used;
  const uint64_t left = limit > used ? limit - used : 0;
  if (limit < out->limit) out->limit = limit;
  if (left < out->left) out->left = left;
}

// The groups from `group` up to the top. `mount_root`: the group that is mounted at `mount_point`; a container may see
// its own group there while /proc names it by its path from the real top.
void apply_groups(const Version &version, const char *root, const char *mount_point, const char *mount_root,
                  const char *group, GroupLimit *out) {
  uint64_t skipped = std::strcmp(mount_root, "/") == 0 ? 0 : std::strlen(mount_root);
  const bool is_below = std::strncmp(group, mount_root, skipped) == 0 && (group[skipped] == '/' || !group[skipped]);
  // Of a group outside of the mount only the top's limit can be read.
  const char *below = is_below && std::strstr(group, "/..") == nullptr ? group + skipped : "";
  char path[kMaxPath];
  const int top = std::snprintf(path, sizeof path, "%s%s", root, mount_point);
  if (top < 0) return;
  const int whole = std::snprintf(path, sizeof path, "%s%s%s", root, mount_point, below);
  constexpr int kNames = 64;  // for the names of files
  if (whole < 0 || whole >= static_cast<int>(kMaxPath) - kNames) return;
  for (auto length = static_cast<uint64_t>(whole);;) {
    while (length > static_cast<uint64_t>(top) && path[length - 1] == '/') --length;
    apply_group(version, path, length, out);
    if (length <= static_cast<uint64_t>(top)) return;
    while (length > static_cast<uint64_t>(top) && path[length - 1] != '/') --length;
  }
}

// Finds the process's group. False: this version does not control its memory.
bool find_group(const char *root, bool is_two, char group[kMaxPath]) {
  char path[kMaxPath];
  std::snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  Lines lines(path);
  while (char *line = lines.next()) {
    // Number, controllers, path: "4:memory:/job", or of version 2 "0::/job".
    char *controllers = std::strchr(line, ':');
    char *name = controllers == nullptr ? nullptr : std::strchr(controllers + 1, ':');
    if (name == nullptr || name[1] != '/') continue;
    *controllers++ = *name++ = '\0';
    if (is_two ? std::strcmp(line, "0") != 0 || *controllers != '\0' : !has_word(controllers, "memory")) continue;
    std::snprintf(group, kMaxPath, "%s", name);
    return true;
  }
  return false;
}

}  // namespace

GroupLimit memory_group_limit(const char *root) {
  GroupLimit limit;
  char groups[2][kMaxPath];
  const bool has_group[2] = {find_group(root, false, groups[0]), find_group(root, true, groups[1])};
  if (!has_group[0] && !has_group[1]) return limit;
  char path[kMaxPath];
  std::snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
  Lines mounts(path);
  while (char *line = mounts.next()) {
    // 36 35 98:0 ROOT POINT OPTIONS [optional fields] - TYPE SOURCE OPTIONS
    char *end = std::strstr(line, " - ");
    if (end == nullptr || !starts_with(end + 3, "cgroup")) continue;
    const bool is_two = starts_with(end + 3, "cgroup2 ");
    char *options = std::strrchr(end + 3, ' ');
    if (!is_two && (!starts_with(end + 3, "cgroup ") || !has_word(options + 1, "memory"))) continue;
    *end = '\0';
    char *fields[5] = {};
    char *rest = line;
    for (char *&field : fields) field = rest == nullptr ? nullptr : strsep(&rest, " ");
    if (fields[4] == nullptr || !has_group[is_two]) continue;
    decode_octal(fields[3]);
    decode_octal(fields[4]);
    apply_groups(is_two ? kTwo : kOne, root, fields[4], fields[3], groups[is_two], &limit);
  }
  return limit;
}

}  // namespace gmm::os
