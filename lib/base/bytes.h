// SPDX-License-Identifier: Apache-2.0
// Little-endian numbers in byte arrays, and the checksum of such arrays.
#ifndef GMM_BASE_BYTES_H
#define GMM_BASE_BYTES_H

#include <cstdint>

namespace gmm {

template <typename T>
inline void store_little(uint8_t *to, T value) {
  for (unsigned i = 0; i < sizeof(T); ++i) to[i] = static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i));
}
template <typename T>
inline T load_little(const uint8_t *from) {
  uint64_t value = 0;
  for (unsigned i = 0; i < sizeof(T); ++i) value |= static_cast<uint64_t>(from[i]) << (8 * i);
  return static_cast<T>(value);
}

// CRC-32C (Castagnoli) without a table: for a few hundred bytes now and then.
inline uint32_t crc32c(const uint8_t *data, uint64_t size) {
  uint32_t crc = 0xffffffffu;
  for (uint64_t i = 0; i < size; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
  }
  return ~crc;
}

inline bool all_zero(const uint8_t *data, uint64_t size) {
  uint8_t bits = 0;
  for (uint64_t i = 0; i < size; ++i) bits = static_cast<uint8_t>(bits | data[i]);
  return bits == 0;
}

// Takes the same time wherever the bytes differ, so that a secret cannot be guessed byte by byte.
inline bool equal_constant_time(const uint8_t *a, const uint8_t *b, uint64_t size) {
  volatile uint8_t bits = 0;
  for (uint64_t i = 0; i < size; ++i) bits = static_cast<uint8_t>(bits | (a[i] ^ b[i]));
  return bits == 0;
}

}  // namespace gmm
#endif
