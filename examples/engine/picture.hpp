// SPDX-License-Identifier: Apache-2.0
// A picture of 8-bit RGBA with small text in it, and the files that it goes into: PNG, and APNG for several.
#ifndef ENGINE_PICTURE_HPP
#define ENGINE_PICTURE_HPP

#include <cstdint>
#include <vector>

struct picture {
  uint32_t width = 0, height = 0;
  std::vector<uint8_t> rgba;

  picture(uint32_t w, uint32_t h) : width(w), height(h), rgba(uint64_t{w} * h * 4) {}
  void fill(uint32_t x, uint32_t y, uint32_t w, uint32_t h, uint32_t rgb);
  // Letters of 6 x 10 pixels, 8 apart.
  void text(uint32_t x, uint32_t y, const char *words, uint32_t rgb);
};

// One picture is a PNG. Several are an animation, which programs without APNG show as its first picture.
bool write_png(const char *path, const std::vector<picture> &pictures, uint16_t milliseconds);

#endif
