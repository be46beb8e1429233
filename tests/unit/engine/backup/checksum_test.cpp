// SPDX-License-Identifier: Apache-2.0
// The checksum of a chunk, and that a restore and a read find damage by it.
#include "engine/backup/checksum.h"

#include "engine/backup/test_support.h"

namespace gmm::test {
namespace {

class ChecksumTest : public BackupTest {};

TEST_F(ChecksumTest, EveryBitCounts) {
  if (!has_chunk_checksum()) GTEST_SKIP() << "the library was built without xxhash.h";
  EXPECT_EQ(chunk_checksum("", 0), 0x2d06800538d394c2u) << "XXH3 of nothing, as its specification has it";
  std::vector<char> bytes(4096 + 3, 'x');
  const uint64_t whole = chunk_checksum(bytes.data(), bytes.size());
  for (uint64_t i = 0; i < bytes.size(); i += 13) {
    bytes[i] ^= 1;
    EXPECT_NE(chunk_checksum(bytes.data(), bytes.size()), whole) << i;
    bytes[i] ^= 1;
  }
  EXPECT_NE(chunk_checksum(bytes.data(), bytes.size() - 1), whole);
  EXPECT_EQ(chunk_checksum(bytes.data(), bytes.size()), whole);
}

TEST_F(ChecksumTest, AChunkWithoutOneMatchesAnything) {
  Chunk chunk;
  chunk.size = 3;
  EXPECT_TRUE(chunk.matches_checksum("abc"));
  chunk.has_checksum = true;
  chunk.checksum = chunk_checksum("abc", 3);
  EXPECT_TRUE(chunk.matches_checksum("abc"));
  EXPECT_EQ(chunk.matches_checksum("abd"), !has_chunk_checksum());
}

// Reads any mapped memory, also what the address sanitizer holds back after a free. std::memcmp would be checked.
__attribute__((no_sanitize("address"), noinline)) bool same_64_bytes(const char *a, const char *b) {
  for (int i = 0; i < 64; ++i)
    if (a[i] != b[i]) return false;
  return true;
}

// Where else these 64 bytes lie in the memory of the process: in the tier.
char *find_in_memory(const char *wanted) {
  FILE *maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) return nullptr;
  char line[512];
  char *found = nullptr;
  while (found == nullptr && fgets(line, sizeof line, maps) != nullptr) {
    unsigned long from = 0, to = 0;
    char rights[5] = {}, name[2] = {};
    // Tiers are anonymous memory, and their chunks start at pages.
    if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %1s", &from, &to, rights, name) != 3) continue;
    if (from < uint64_t{1} << 32) continue;  // memory of the address sanitizer, which must not be read
    if (rights[0] != 'r' || rights[1] != 'w' || to - from < 12 * kMiB || to - from > 4096 * kMiB) continue;
    for (unsigned long at = from; at < to && found == nullptr; at += 4096)
      if (reinterpret_cast<char *>(at) != wanted && same_64_bytes(reinterpret_cast<char *>(at), wanted))
        found = reinterpret_cast<char *>(at);
  }
  fclose(maps);
  return found;
}

TEST_F(ChecksumTest, DamageIsFound) {
  for (const Tier tier : {Tier::kArena, Tier::kPageable}) {
    only(tier);
    device(12 * kMiB);
    KeptContents kept{HostAllocator()};
    const Status saved = save({range(0, 12 * kMiB)}, kept, GMM_TAG_CHECKSUM);
    if (saved.code() == GMM_ERROR_NOT_SUPPORTED) GTEST_SKIP() << "the library was built without xxhash.h";
    ASSERT_TRUE(saved.ok());
    char *damaged = find_in_memory(memory.data() + 4 * kMiB);
    ASSERT_NE(damaged, nullptr);
    *damaged ^= 4;
    EXPECT_EQ(restore({range(0, 12 * kMiB)}, kept).code(), GMM_ERROR_CORRUPT);
    char text[32];
    std::snprintf(text, sizeof text, "%#lx", static_cast<unsigned long>(kept.chunks[1].base));
    EXPECT_NE(std::string(last_message()).find(text), std::string::npos) << last_message();
    std::vector<char> out(12 * kMiB);
    EXPECT_EQ(store.read(kept, range(4 * kMiB, 100), out.data()).code(), GMM_ERROR_CORRUPT);
    EXPECT_TRUE(store.read(kept, range(0, 4 * kMiB), out.data()).ok());
    *damaged ^= 4;
    EXPECT_TRUE(restore({range(0, 12 * kMiB)}, kept).ok());
    store.drop_all(kept);
  }
}

}  // namespace
}  // namespace gmm::test
