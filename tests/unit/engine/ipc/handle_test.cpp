// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/handle.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "base/bytes.h"
#include "base/process.h"

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

void seal(gmm_ipc_handle *bytes) { store_little(bytes->bytes + 252, crc32c(bytes->bytes, 252)); }

// Refused, with a message that has these words, and `out` untouched.
void expect_refused(const gmm_ipc_handle &bytes, const char *words) {
  IpcHandle out;
  out.allocation = 77;
  EXPECT_EQ(ipc_handle_decode(bytes, &out).code(), GMM_ERROR_IPC_INVALID_HANDLE) << words;
  EXPECT_NE(std::string(last_message()).find(words), std::string::npos) << last_message();
  EXPECT_EQ(out.allocation, 77u);
}

// Every field, on every route: the fields of a route that does not use them are zero.
TEST(IpcHandle, ComesBackAsItWas) {
  struct Case {
    IpcRoute route;
    Kind kind;
    bool event;
    uint64_t machine;
  };
  for (const Case &one :
       {Case{IpcRoute::kBroker, Kind::kVmm, false, 0}, Case{IpcRoute::kLegacy, Kind::kDevice, false, 0},
        Case{IpcRoute::kFabric, Kind::kVmm, false, 0x1122334455667788},
        Case{IpcRoute::kBroker, Kind::kUnspecified, true, 0}}) {
    IpcHandle handle = sample(), back;
    handle.route = one.route;
    handle.kind = one.kind;
    handle.event = one.event ? 1 : 0;
    handle.machine = one.machine;
    handle.exporter.pid_namespace = 0x8877665544332211;
    for (unsigned i = 0; i < kLegacyHandleSize && one.route != IpcRoute::kBroker; ++i)
      handle.legacy[i] = static_cast<uint8_t>(i * 3);
    const gmm_ipc_handle bytes = encoded(handle);
    ASSERT_TRUE(ipc_handle_decode(bytes, &back).ok()) << last_message();
    EXPECT_EQ(std::memcmp(&bytes, encoded(back).bytes, sizeof bytes), 0);
    EXPECT_EQ(back.route, handle.route);
    EXPECT_EQ(back.kind, handle.kind);
    EXPECT_EQ(back.event, handle.event);
    EXPECT_EQ(back.device, handle.device);
    EXPECT_EQ(back.exporter, handle.exporter);
    EXPECT_EQ(back.machine, handle.machine);
    EXPECT_EQ(back.generation, handle.generation);
    EXPECT_EQ(back.offset, handle.offset);
    EXPECT_EQ(back.block_offset, handle.block_offset);
    EXPECT_EQ(back.block_size, handle.block_size);
    EXPECT_EQ(back.allocation_size, handle.allocation_size);
    EXPECT_EQ(back.allocation, handle.allocation);
    EXPECT_EQ(std::memcmp(back.token, handle.token, sizeof back.token), 0);
    EXPECT_EQ(std::memcmp(back.legacy, handle.legacy, sizeof back.legacy), 0);
  }
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
}

TEST(IpcHandle, ChecksumIsCrc32c) { EXPECT_EQ(crc32c(reinterpret_cast<const uint8_t *>("123456789"), 9), 0xe3069283u); }

TEST(IpcHandle, EveryFlippedBitIsRefused) {
  const gmm_ipc_handle good = encoded(sample());
  for (unsigned bit = 0; bit < sizeof good.bytes * 8; ++bit) {
    gmm_ipc_handle bad = good;
    bad.bytes[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    IpcHandle out;
    EXPECT_EQ(ipc_handle_decode(bad, &out).code(), GMM_ERROR_IPC_INVALID_HANDLE) << "bit " << bit;
  }
}

TEST(IpcHandle, NamesWhatIsWrongWithTheBytes) {
  gmm_ipc_handle bytes = {};
  expect_refused(bytes, "not a handle of gmm");
  bytes = encoded(sample());
  bytes.bytes[4] = 2;
  seal(&bytes);
  expect_refused(bytes, "version 2");
  bytes = encoded(sample());
  bytes.bytes[100] ^= 1;
  expect_refused(bytes, "checksum");
  for (unsigned at : {176u, 251u}) {
    bytes = encoded(sample());
    bytes.bytes[at] = 1;
    seal(&bytes);
    expect_refused(bytes, "reserved");
  }
}

TEST(IpcHandle, NamesWhatIsWrongWithTheFields) {
  struct Case {
    const char *words;
    void (*spoil)(IpcHandle *);
  };
  const Case cases[] = {
      {"route 0", [](IpcHandle *h) { h->route = static_cast<IpcRoute>(0); }},
      {"route 4", [](IpcHandle *h) { h->route = static_cast<IpcRoute>(4); }},
      {"names a machine", [](IpcHandle *h) { h->machine = 1; }},
      {"names a machine, or none", [](IpcHandle *h) { h->route = IpcRoute::kFabric; }},
      {"fabric, which only VMM",
       [](IpcHandle *h) {
         h->route = IpcRoute::kFabric;
         h->machine = 1;
         h->kind = Kind::kHost;
       }},
      {"driver handle is empty",
       [](IpcHandle *h) {
         h->route = IpcRoute::kFabric;
         h->machine = 1;
       }},
      {"kind 0", [](IpcHandle *h) { h->kind = Kind::kUnspecified; }},
      {"kind 4", [](IpcHandle *h) { h->kind = Kind::kManaged; }},
      {"kind 200", [](IpcHandle *h) { h->kind = static_cast<Kind>(200); }},
      {"legacy one, which only device",
       [](IpcHandle *h) {
         h->route = IpcRoute::kLegacy;
         h->legacy[0] = 1;
       }},
      {"driver handle is empty",
       [](IpcHandle *h) {
         h->route = IpcRoute::kLegacy;
         h->kind = Kind::kDevice;
       }},
      {"carries a legacy", [](IpcHandle *h) { h->legacy[63] = 1; }},
      {"device -2", [](IpcHandle *h) { h->device.ordinal = -2; }},
      {"device -1",
       [](IpcHandle *h) {
         h->kind = Kind::kDevice;
         h->device.ordinal = -1;
       }},
      {"device -1",
       [](IpcHandle *h) {
         h->event = 1;
         h->device = kHostLocation;
       }},
      {"process id 0", [](IpcHandle *h) { h->exporter.pid = 0; }},
      {"process id 2147483648", [](IpcHandle *h) { h->exporter.pid = 0x80000000u; }},
      {"token is empty", [](IpcHandle *h) { std::memset(h->token, 0, 16); }},
      {"allocation size 0", [](IpcHandle *h) { h->allocation_size = 0; }},
      {"block size 0", [](IpcHandle *h) { h->block_size = 0; }},
      {"reaches past", [](IpcHandle *h) { h->block_size = h->allocation_size; }},
      {"reaches past", [](IpcHandle *h) { h->block_size = UINT64_MAX; }},
      {"reaches past",
       [](IpcHandle *h) {
         h->block_offset = UINT64_MAX - 10;
         h->offset = UINT64_MAX - 5;
       }},
      {"lies outside", [](IpcHandle *h) { h->offset = h->block_offset + h->block_size; }},
      {"lies outside", [](IpcHandle *h) { h->offset = h->block_offset - 1; }},
      {"lies outside", [](IpcHandle *h) { h->offset = UINT64_MAX; }},
  };
  for (const Case &one : cases) {
    IpcHandle handle = sample();
    one.spoil(&handle);
    expect_refused(encoded(handle), one.words);
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

TEST(Process, StartTimeTellsProcessesApart) {
  uint64_t own = 0, again = 0, other = 0;
  ASSERT_EQ(process_start_time(::getpid(), &own), 0);
  ASSERT_EQ(process_start_time(::getpid(), &again), 0);
  EXPECT_EQ(own, again);
  ASSERT_EQ(process_start_time(1, &other), 0);
  EXPECT_LE(other, own);
  EXPECT_EQ(process_start_time(INT32_MAX, &other), ESRCH);
}

}  // namespace
}  // namespace gmm
