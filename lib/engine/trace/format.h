// SPDX-License-Identifier: Apache-2.0
// The bytes of a trace file, version 1. FORMAT.md in this folder describes them for those who write a reader.
#ifndef GMM_ENGINE_TRACE_FORMAT_H
#define GMM_ENGINE_TRACE_FORMAT_H

#include <bit>
#include <cstdint>

namespace gmm::trace_format {

static_assert(std::endian::native == std::endian::little,
              "the file is little-endian, and written from memory as it is");

inline constexpr char kMagic[8] = {'g', 'm', 'm', 't', 'r', 'a', 'c', 'e'};
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kChunkMagic = 0x6b6e6863;  // "chnk"

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_size;  // where the first chunk begins
  uint64_t clock_hertz;  // ticks a second of every time in the file
  uint64_t begin_time;   // when the trace began, by that clock
  uint64_t begin_epoch;  // the same moment in nanoseconds since 1970
  uint32_t process;
  uint32_t reserved;
  char backend[16];  // padded with zeros
};
static_assert(sizeof(FileHeader) == 64);

// The header of a chunk of one thread. Everything that a chunk's records refer to is in the chunk. A chunk that is
// being filled has its final size, and zeros where no record is yet.
struct ChunkHeader {
  uint32_t magic;
  uint32_t size;      // bytes of the records, a multiple of 8
  uint32_t thread;    // from 1; 0: the last chunk of the file
  uint32_t sequence;  // number of the chunk among its thread's, from 0
  uint64_t time;      // the base of the records' times
  uint32_t records;   // 0: the chunk was not finished
  uint32_t reserved;
};
static_assert(sizeof(ChunkHeader) == 32);

// A record is one to seven words of 8 bytes. The low three bits of its first byte are the number of words, so a reader
// can skip unknown records. The second byte is a place. The rest of the first word is the record's value.
constexpr uint8_t type(uint8_t number, uint8_t words) { return static_cast<uint8_t>(number << 3 | words); }
inline constexpr uint8_t kTime = type(1, 1);            // value: the offset of the next records from the chunk's time
inline constexpr uint8_t kStream = type(2, 2);          // place; the stream's handle
inline constexpr uint8_t kHeap = type(3, 3);            // place; the heap's number; heap_word()
inline constexpr uint8_t kAlloc = type(4, 2);           // place of the stream, value: address / 256; size_word()
inline constexpr uint8_t kFree = type(5, 1);            // place of the stream, value: address / 256
inline constexpr uint8_t kUse = type(6, 1);             // place of the stream, value: address / 256
inline constexpr uint8_t kPause = type(7, 3);           // tag or kEveryTag; bytes
inline constexpr uint8_t kResume = type(8, 3);          // tag or kEveryTag; bytes
inline constexpr uint8_t kTrim = type(9, 2);            // bytes
inline constexpr uint8_t kReset = type(10, 1);          // every block is freed
inline constexpr uint8_t kHeapCreated = type(11, 3);    // number; heap_word()
inline constexpr uint8_t kHeapDestroyed = type(12, 2);  // number
inline constexpr uint8_t kThreadEnded = type(13, 1);
inline constexpr uint8_t kEnd = type(14, 2);  // number of events that the file lacks
inline constexpr uint8_t kUnused = type(15, 1);
// Names have a record for each kNameBytes of them. The place is the number of the part.
inline constexpr uint8_t kTagName = type(16, 7);    // value: tag; bytes
inline constexpr uint8_t kBlockName = type(17, 7);  // value: address / 256; bytes
inline constexpr uint8_t kCompact = type(18, 3);    // bytes moved; bytes released
inline constexpr uint64_t kNameBytes = 48;
inline constexpr uint64_t kNameParts = 2;
inline constexpr uint32_t kNameWords = 14;  // of all parts

inline constexpr uint32_t kPlaces = 32;  // places for streams, and as many for heaps
inline constexpr uint64_t kEveryTag = UINT64_MAX;
inline constexpr uint64_t kAddressUnit = 256;  // every block starts at a multiple of this
inline constexpr uint32_t kValueBits = 48;

constexpr uint64_t head(uint8_t type, uint32_t place, uint64_t value) {
  return type | uint64_t{place} << 8 | value << (64 - kValueBits);
}
constexpr uint64_t heap_word(uint32_t kind, int32_t device, uint32_t tag) {
  return (kind & 0xffff) | uint64_t{static_cast<uint16_t>(device)} << 16 | uint64_t{tag} << 32;
}
// `log2_alignment` is 0 if the program requested no alignment.
constexpr uint64_t size_word(uint64_t size, uint32_t heap_place, uint32_t log2_alignment, bool dedicated, bool zeroed) {
  return size | uint64_t{heap_place} << 48 | uint64_t{log2_alignment} << 53 | uint64_t{dedicated} << 58 |
         uint64_t{zeroed} << 59;
}

}  // namespace gmm::trace_format
#endif
