// SPDX-License-Identifier: Apache-2.0
#include "picture.hpp"

#include <zlib.h>

#include <cctype>
#include <cstdio>
#include <cstring>

namespace {

// Five rows of three points: one octal digit a row.
constexpr uint16_t kDigits[] = {025552, 026227, 061247, 061216, 055711, 074616, 034757, 071222, 075757, 075716};
constexpr uint16_t kLetters[] = {025755, 065656, 034443, 065556, 074647, 074644, 034553, 055755, 072227,
                                 011152, 055655, 044447, 057755, 065555, 075557, 065644, 025563, 065655,
                                 034216, 072222, 055557, 055552, 055775, 055255, 055222, 071247};

uint16_t points_of(char c) {
  const int upper = std::toupper(static_cast<unsigned char>(c));
  if (upper >= '0' && upper <= '9') return kDigits[upper - '0'];
  if (upper >= 'A' && upper <= 'Z') return kLetters[upper - 'A'];
  return upper == '.' ? 000002 : upper == '/' ? 011244 : upper == ':' ? 002020 : upper == '-' ? 000700 : 0;
}

using bytes = std::vector<uint8_t>;

void put(bytes &to, uint32_t value, int size = 4) {
  for (int shift = 8 * (size - 1); shift >= 0; shift -= 8) to.push_back(static_cast<uint8_t>(value >> shift));
}

void chunk(std::FILE *file, const char *type, const bytes &data) {
  bytes head, tail;
  put(head, static_cast<uint32_t>(data.size()));
  head.insert(head.end(), type, type + 4);
  uLong sum = crc32(0, head.data() + 4, 4);
  if (!data.empty()) sum = crc32(sum, data.data(), static_cast<uInt>(data.size()));
  put(tail, static_cast<uint32_t>(sum));
  std::fwrite(head.data(), 1, head.size(), file);
  std::fwrite(data.data(), 1, data.size(), file);
  std::fwrite(tail.data(), 1, tail.size(), file);
}

// Rows of RGB, each point less the one on its left, as zlib packs them best.
bytes packed(const picture &of) {
  bytes rows;
  for (uint32_t y = 0; y < of.height; ++y) {
    rows.push_back(1);
    const uint8_t *row = &of.rgba[uint64_t{y} * of.width * 4];
    for (uint32_t x = 0; x < of.width; ++x)
      for (int c = 0; c < 3; ++c)
        rows.push_back(static_cast<uint8_t>(row[4 * x + c] - (x == 0 ? 0 : row[4 * x + c - 4])));
  }
  uLongf size = compressBound(rows.size());
  bytes out(size);
  compress2(out.data(), &size, rows.data(), rows.size(), 6);
  out.resize(size);
  return out;
}

}  // namespace

void picture::fill(uint32_t x, uint32_t y, uint32_t w, uint32_t h, uint32_t rgb) {
  for (uint32_t row = y; row < y + h && row < height; ++row)
    for (uint32_t column = x; column < x + w && column < width; ++column) {
      uint8_t *at = &rgba[(uint64_t{row} * width + column) * 4];
      for (int c = 0; c < 3; ++c) at[c] = static_cast<uint8_t>(rgb >> (16 - 8 * c));
    }
}

void picture::text(uint32_t x, uint32_t y, const char *words, uint32_t rgb) {
  for (; *words != '\0'; ++words, x += 8)
    for (uint32_t bit = 0; bit < 15; ++bit)
      if ((points_of(*words) >> (14 - bit) & 1) != 0) fill(x + bit % 3 * 2, y + bit / 3 * 2, 2, 2, rgb);
}

bool write_png(const char *path, const std::vector<picture> &pictures, uint16_t milliseconds) {
  std::FILE *file = std::fopen(path, "wb");
  if (file == nullptr) return false;
  const bool moves = pictures.size() > 1;
  bytes head, control;
  put(head, pictures[0].width);
  put(head, pictures[0].height);
  put(head, 0x08020000);  // 8 bits, RGB, the usual packing and filters
  put(head, 0, 1);        // rows in their order
  std::fwrite("\x89PNG\r\n\x1a\n", 1, 8, file);
  chunk(file, "IHDR", head);
  put(control, static_cast<uint32_t>(pictures.size()));
  put(control, 0);  // it repeats for ever
  if (moves) chunk(file, "acTL", control);
  uint32_t number = 0;
  for (const picture &each : pictures) {
    bytes frame, data;
    put(frame, number++);
    put(frame, each.width);
    put(frame, each.height);
    put(frame, 0);
    put(frame, 0);
    put(frame, milliseconds, 2);
    put(frame, 1000, 2);
    put(frame, 0, 2);  // each picture replaces the one before
    if (moves) chunk(file, "fcTL", frame);
    const bool is_first = &each == &pictures[0];
    if (!is_first) put(data, number++);
    const bytes rows = packed(each);
    data.insert(data.end(), rows.begin(), rows.end());
    chunk(file, is_first ? "IDAT" : "fdAT", data);
  }
  chunk(file, "IEND", {});
  return std::fclose(file) == 0;
}
