// SPDX-License-Identifier: Apache-2.0
// The checksum and comparisons of byte arrays.
#ifndef GMM_BASE_BYTES_H
#define GMM_BASE_BYTES_H

#include <cstdint>

namespace gmm {

// The table of CRC-32C (Castagnoli).
struct Crc32cTable {
  uint32_t at[256] = {};
  constexpr Crc32cTable() {
    for (uint32_t i = 0; i < 256; ++i) {
      at[i] = i;
      for (int bit = 0; bit < 8; ++bit) at[i] = (at[i] >> 1) ^ (0x82f63b78u & (0u - (at[i] & 1u)));
    }
  }
};
inline constexpr Crc32cTable kCrc32c;

inline uint32_t crc32c(const uint8_t *data, uint64_t size) {
  uint32_t crc = 0xffffffffu;
  for (; size != 0; ++data, --size) crc = (crc >> 8) ^ kCrc32c.at[(crc ^ *data) & 0xff];
  return ~crc;
}

inline bool all_zero(const uint8_t *data, uint64_t size) {
  uint8_t bits = 0;
  for (uint64_t i = 0; i < size; ++i) bits = static_cast<uint8_t>(bits | data[i]);
  return bits == 0;
}

// Compares in a time that does not depend on where the bytes differ, so nobody can guess a secret byte by byte.
inline bool equal_constant_time(const uint8_t *a, const uint8_t *b, uint64_t size) {
  volatile uint8_t bits = 0;
  for (uint64_t i = 0; i < size; ++i) bits = static_cast<uint8_t>(bits | (a[i] ^ b[i]));
  return bits == 0;
}

}  // namespace gmm
#endif
