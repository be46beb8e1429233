// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/handle.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace gmm {
namespace {

IpcHandle sample() {
  IpcHandle handle;
  handle.route = IpcRoute::kBroker;
  handle.kind = Kind::kVmm;
  handle.device.ordinal = 3;
  handle.exporter = {4242, 7, 0x0102030405060708};
  for (int i = 0; i < 16; ++i) handle.token[i] = static_cast<uint8_t>(i + 1);
  handle.allocation = 0x1122334455667788;
  handle.allocation_size = 64 << 20;
  handle.block_offset = 4096;
  handle.block_size = 8192;
  handle.offset = 5000;
  handle.generation = 9;
  return handle;
}

gmm_ipc_handle encoded(const IpcHandle &handle) {
  gmm_ipc_handle bytes;
  ipc_handle_encode(handle, &bytes);
  return bytes;
}

// The documented layout: other releases read these bytes.
TEST(IpcHandle, LayoutIsLittleEndianAndFixed) {
  const gmm_ipc_handle bytes = encoded(sample());
  const uint8_t *b = bytes.bytes;
  EXPECT_EQ(std::memcmp(b, "gmmI\x01\x00\x01\x00\x02\x00\x00\x00\x03\x00\x00\x00", 16), 0);
  EXPECT_EQ(std::memcmp(b + 16, "\x92\x10\x00\x00\x07\x00\x00\x00\x08\x07\x06\x05\x04\x03\x02\x01", 16), 0);
  EXPECT_EQ(b[40], 1);
  EXPECT_EQ(std::memcmp(b + 56, "\x88\x77\x66\x55\x44\x33\x22\x11", 8), 0);
  EXPECT_EQ(b[67], 4);  // 64 MiB
  EXPECT_EQ(b[72], 0x88);
  EXPECT_EQ(b[81], 0x10);
  EXPECT_EQ(b[89], 0x20);
  EXPECT_EQ(b[96], 9);
  IpcHandle back;
  ASSERT_TRUE(ipc_handle_decode(bytes, &back).ok()) << last_message();
  EXPECT_EQ(std::memcmp(encoded(back).bytes, b, sizeof bytes), 0);
}

TEST(IpcHandle, ChecksumIsCrc32c) { EXPECT_EQ(crc32c(reinterpret_cast<const uint8_t *>("123456789"), 9), 0xe3069283u); }

// Bytes of a good handle that are replaced. The checksum fits, unless it is what is wrong.
struct Change {
  unsigned at, size;
  uint64_t value;
};
struct Case {
  const char *words;
  std::vector<Change> changes;
  bool is_sealed = true;
};
constexpr Change kFabric = {6, 1, 3}, kLegacy = {6, 1, 2}, kMachine = {168, 8, 1}, kDevice = {8, 4, 1},
                 kHost = {8, 4, 3}, kEvent = {7, 1, 1}, kNoDevice = {12, 4, UINT32_MAX};

TEST(IpcHandle, NamesWhatIsWrong) {
  const Case cases[] = {{"not a handle of gmm", {{0, 1, 0}}},
                        {"version 2", {{4, 1, 2}}},
                        {"checksum", {{100, 1, 1}}, false},
                        {"reserved", {{7, 1, 2}}},
                        {"reserved", {{176, 1, 1}}},
                        {"reserved", {{251, 1, 1}}},
                        {"route 0", {{6, 1, 0}}},
                        {"route 4", {{6, 1, 4}}},
                        {"names a machine", {kMachine}},
                        {"names a machine, or none", {kFabric}},
                        {"fabric, which only VMM", {kFabric, kMachine, kHost}},
                        {"driver handle is empty", {kFabric, kMachine}},
                        {"kind 0", {{8, 4, 0}}},
                        {"kind 4", {{8, 4, 4}}},
                        {"kind 200", {{8, 4, 200}}},
                        {"kind 2", {kEvent}},
                        {"legacy one, which only device", {kLegacy, {104, 1, 1}}},
                        {"driver handle is empty", {kLegacy, kDevice}},
                        {"carries a legacy", {{167, 1, 1}}},
                        {"device -2", {{12, 4, UINT32_MAX - 1}}},
                        {"device -1", {kDevice, kNoDevice}},
                        {"device -1", {kEvent, kNoDevice}},
                        {"process id 0", {{16, 4, 0}}},
                        {"process id 2147483648", {{16, 4, 0x80000000u}}},
                        {"token is empty", {{40, 8, 0}, {48, 8, 0}}},
                        {"allocation size 0", {{64, 8, 0}}},
                        {"block size 0", {{88, 8, 0}}},
                        {"reaches past", {{88, 8, 64 << 20}}},
                        {"reaches past", {{88, 8, UINT64_MAX}}},
                        {"reaches past", {{80, 8, UINT64_MAX - 10}, {72, 8, UINT64_MAX - 5}}},
                        {"lies outside", {{72, 8, 4096 + 8192}}},
                        {"lies outside", {{72, 8, 4095}}},
                        {"lies outside", {{72, 8, UINT64_MAX}}}};
  for (const Case &one : cases) {
    gmm_ipc_handle bytes = encoded(sample());
    for (const Change &change : one.changes) std::memcpy(bytes.bytes + change.at, &change.value, change.size);
    if (one.is_sealed) {
      const uint32_t sum = crc32c(bytes.bytes, 252);
      std::memcpy(bytes.bytes + 252, &sum, sizeof sum);
    }
    IpcHandle out;
    out.allocation = 77;
    EXPECT_EQ(ipc_handle_decode(bytes, &out).code(), GMM_ERROR_IPC_INVALID_HANDLE) << one.words;
    EXPECT_NE(std::string(last_message()).find(one.words), std::string::npos) << last_message();
    EXPECT_EQ(out.allocation, 77u);
  }
}

TEST(IpcHandle, EdgesAreAccepted) {
  IpcHandle handle = sample(), back;
  handle.block_offset = 0;
  handle.block_size = handle.allocation_size = UINT64_MAX;
  handle.offset = UINT64_MAX - 1;
  EXPECT_TRUE(ipc_handle_decode(encoded(handle), &back).ok()) << last_message();
  handle = sample();
  handle.kind = Kind::kHost;
  handle.device = kHostLocation;
  EXPECT_TRUE(ipc_handle_decode(encoded(handle), &back).ok()) << last_message();
  EXPECT_TRUE(back.device.is_host());
}

}  // namespace
}  // namespace gmm
