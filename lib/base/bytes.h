// SPDX-License-Identifier: Apache-2.0
// Little-endian numbers in byte arrays, and the checksum of such arrays.
#ifndef GMM_BASE_BYTES_H
#define GMM_BASE_BYTES_H

#include <cstdint>
#include <cstring>

namespace gmm {

template <typename T>
inline void store_little(uint8_t *to, T value) {
  for (unsigned i = 0; i < sizeof(T); ++i) to[i] = static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i));
}

// The tables of a CRC-32C (Castagnoli) that reads eight bytes at a time ("slicing-by-8").
struct Crc32cTables {
  uint32_t at[8][256] = {};
  constexpr Crc32cTables() {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
      at[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; ++i)
      for (int t = 1; t < 8; ++t) at[t][i] = (at[t - 1][i] >> 8) ^ at[0][at[t - 1][i] & 0xff];
  }
};
inline constexpr Crc32cTables kCrc32c;

inline uint32_t crc32c(const uint8_t *data, uint64_t size) {
  const auto &table = kCrc32c.at;
  uint32_t crc = 0xffffffffu;
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, data, 8);  // the machine is little-endian
    word ^= crc;
    crc = table[7][word & 0xff] ^ table[6][word >> 8 & 0xff] ^ table[5][word >> 16 & 0xff] ^
          table[4][word >> 24 & 0xff] ^ table[3][word >> 32 & 0xff] ^ table[2][word >> 40 & 0xff] ^
          table[1][word >> 48 & 0xff] ^ table[0][word >> 56];
  }
  for (; size != 0; ++data, --size) crc = (crc >> 8) ^ table[0][(crc ^ *data) & 0xff];
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
