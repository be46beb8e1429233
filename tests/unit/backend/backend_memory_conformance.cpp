// SPDX-License-Identifier: Apache-2.0
// What every backend does with memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "backend_conformance.h"

namespace gmm::test {
namespace {

bool aligned(const void *address) { return reinterpret_cast<uintptr_t>(address) % kExtentAlignment == 0; }

TEST_P(BackendConformance, SaysWhatItIs) {
  char version[48] = "?";
  backend().driver_version(version, sizeof version);
  EXPECT_NE(version[0], '\0');
  EXPECT_STRNE(backend().name(), "none");
  ASSERT_GE(backend().device_count(), 1u);
  for (int32_t ordinal = 0; ordinal < static_cast<int32_t>(backend().device_count()); ++ordinal) {
    const gmm_device_info device = info(Device{ordinal});
    EXPECT_EQ(device.device, ordinal);
    EXPECT_NE(device.kinds, 0u);
    EXPECT_GT(device.total_memory, 0u);
    EXPECT_LE(device.free_memory, device.total_memory);
    if ((device.kinds & 1u << GMM_KIND_VMM) != 0) {
      ASSERT_NE(device.granularity, 0u);
      EXPECT_EQ(kExtentAlignment % device.granularity, 0u);
    }
    EXPECT_NE(device.name[0], '\0');
  }
}

TEST_P(BackendConformance, AllocatesEachKindAndDevice) {
  for (int32_t ordinal = 0; ordinal < static_cast<int32_t>(backend().device_count()); ++ordinal) {
    const Device device{ordinal};
    for (Kind kind : {Kind::kDevice, Kind::kHost, Kind::kManaged}) {
      if ((info(device).kinds & (1u << static_cast<uint32_t>(kind))) == 0) continue;
      SCOPED_TRACE(static_cast<uint32_t>(kind));
      const uint64_t calls = backend().calls();
      Allocation first, second;
      ASSERT_OK(backend().allocate(kind, device, kUnit, &first));
      ASSERT_OK(backend().allocate(kind, device, 3 * kUnit, &second));
      EXPECT_GE(backend().calls(), calls + 2);
      for (const Allocation &each : {first, second}) {
        EXPECT_TRUE(aligned(each.base));
        EXPECT_EQ(each.kind, kind);
        EXPECT_EQ(each.device, device);
      }
      EXPECT_EQ(first.size, kUnit);
      EXPECT_EQ(second.size, 3 * kUnit);
      char *const a = static_cast<char *>(first.base), *const b = static_cast<char *>(second.base);
      EXPECT_TRUE(a + first.size <= b || b + second.size <= a) << "they overlap";
      if (kind == Kind::kHost && can(GMM_DEVICE_CAN_EXPORT_FD)) {
        EXPECT_EQ(first.base ? static_cast<uint8_t *>(first.base)[kUnit - 1] : 1, 0) << "not zeroed";
        EXPECT_GE(first.fd, 0) << "no file to export";
      }
      write(first.base, pattern(kUnit, 1), device);
      write(second.base, pattern(3 * kUnit, 2), device);
      EXPECT_EQ(read(first.base, kUnit, device), pattern(kUnit, 1));
      EXPECT_EQ(read(second.base, 3 * kUnit, device), pattern(3 * kUnit, 2));
      if (kind != Kind::kDevice) {  // visible to the host by the same address
        EXPECT_EQ(std::memcmp(first.base, pattern(kUnit, 1).data(), kUnit), 0);
      }
      EXPECT_OK(backend().deallocate(first));
      EXPECT_OK(backend().deallocate(second));
      EXPECT_GE(backend().calls(), calls + 4);
    }
  }
}

TEST_P(BackendConformance, RefusesOtherKindsAsPlainAllocations) {
  Allocation out;
  EXPECT_FALSE(backend().allocate(Kind::kVmm, kFirst, kUnit, &out).ok());
  EXPECT_EQ(out.base, nullptr);
}

TEST_P(BackendConformance, RemapsAtTheSameAddress) {
  if (!can(GMM_DEVICE_CAN_PAUSE)) GTEST_SKIP() << "no virtual memory management";
  const uint64_t size = 2 * kUnit;
  Mapping mapping;
  ASSERT_OK(map_new(size, &mapping));
  EXPECT_TRUE(aligned(mapping.base));
  write(mapping.base, pattern(size, 3));
  EXPECT_EQ(read(mapping.base, size), pattern(size, 3));
  ASSERT_OK(backend().unmap(mapping.base, size));
  ASSERT_OK(backend().release(mapping.handle));
  // Nobody else may get the address meanwhile.
  void *other = nullptr;
  ASSERT_OK(backend().reserve(size, &other));
  EXPECT_NE(other, mapping.base);
  ASSERT_OK(backend().unreserve(other, size));

  ASSERT_OK(backend().create(kFirst, size, &mapping.handle));
  ASSERT_OK(backend().map(mapping.base, size, mapping.handle));
  ASSERT_OK(backend().set_access(mapping.base, size, kFirst, 0));
  write(mapping.base, pattern(size, 4));
  EXPECT_EQ(read(mapping.base, size), pattern(size, 4));
  EXPECT_OK(drop(mapping));
}

TEST_P(BackendConformance, MapsSeveralHandlesInOneReservation) {
  if (!can(GMM_DEVICE_CAN_PAUSE)) GTEST_SKIP() << "no virtual memory management";
  void *base = nullptr;
  PhysicalHandle handles[3];
  ASSERT_OK(backend().reserve(3 * kUnit, &base));
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_OK(backend().create(kFirst, kUnit, &handles[i]));
    ASSERT_OK(backend().map(static_cast<char *>(base) + i * kUnit, kUnit, handles[i]));
  }
  ASSERT_OK(backend().set_access(base, 3 * kUnit, kFirst, 0));  // one call for all
  write(base, pattern(3 * kUnit, 5));
  EXPECT_EQ(read(base, 3 * kUnit), pattern(3 * kUnit, 5));
  ASSERT_OK(backend().unmap(base, 3 * kUnit));
  for (PhysicalHandle handle : handles) EXPECT_OK(backend().release(handle));
  EXPECT_OK(backend().unreserve(base, 3 * kUnit));
}

TEST_P(BackendConformance, TwoMappingsOfOneHandleSeeEachOther) {
  if (!can(GMM_DEVICE_CAN_PAUSE)) GTEST_SKIP() << "no virtual memory management";
  Mapping mapping;
  ASSERT_OK(map_new(kUnit, &mapping));
  void *second = nullptr;
  ASSERT_OK(backend().reserve(kUnit, &second));
  ASSERT_OK(backend().map(second, kUnit, mapping.handle));
  ASSERT_OK(backend().set_access(second, kUnit, kFirst, 0));
  write(mapping.base, pattern(kUnit, 6));
  EXPECT_EQ(read(second, kUnit), pattern(kUnit, 6));
  write(second, pattern(kUnit, 7));
  EXPECT_EQ(read(mapping.base, kUnit), pattern(kUnit, 7));
  // The contents outlive one mapping and the handle.
  ASSERT_OK(backend().unmap(mapping.base, kUnit));
  ASSERT_OK(backend().release(mapping.handle));
  EXPECT_EQ(read(second, kUnit), pattern(kUnit, 7));
  EXPECT_OK(backend().unmap(second, kUnit));
  EXPECT_OK(backend().unreserve(second, kUnit));
  EXPECT_OK(backend().unreserve(mapping.base, kUnit));
}

TEST_P(BackendConformance, MemoryGoesBackWithMappingAndHandle) {
  if (!can(GMM_DEVICE_CAN_PAUSE)) GTEST_SKIP() << "no virtual memory management";
  const uint64_t size = 32 * kMiB;
  const uint64_t before = memory_in_use();
  Mapping mapping;
  ASSERT_OK(map_new(size, &mapping));
  ASSERT_OK(backend().fill(kFirst, GMM_STREAM_DEFAULT, mapping.base, 0x5a, size));
  ASSERT_OK(backend().stream_synchronize(kFirst, GMM_STREAM_DEFAULT));
  EXPECT_GE(memory_in_use(), before + size - kMiB);
  ASSERT_OK(backend().unmap(mapping.base, size));
  ASSERT_OK(backend().release(mapping.handle));
  EXPECT_LE(memory_in_use(), before + kMiB);
  EXPECT_OK(backend().unreserve(mapping.base, size));
}

TEST_P(BackendConformance, HostLocatedPhysicalMemory) {
  if (!can(GMM_DEVICE_CAN_PAUSE)) GTEST_SKIP() << "no virtual memory management";
  PhysicalHandle handle;
  void *base = nullptr;
  ASSERT_OK(backend().create(kHostLocation, kUnit, &handle));
  ASSERT_OK(backend().reserve(kUnit, &base));
  ASSERT_OK(backend().map(base, kUnit, handle));
  ASSERT_OK(backend().set_access(base, kUnit, kHostLocation, 1));
  write(base, pattern(kUnit, 8));
  EXPECT_EQ(std::memcmp(base, pattern(kUnit, 8).data(), kUnit), 0);
  EXPECT_OK(drop(Mapping{base, kUnit, handle}));
}

TEST_P(BackendConformance, TooMuchMemoryIsRefusedWithoutEffect) {
  if (!can(GMM_DEVICE_CAN_PAUSE)) GTEST_SKIP() << "no virtual memory management";
  const uint64_t size = info().total_memory / kUnit * kUnit + kUnit;
  const int64_t blocks = allocator_.blocks();
  PhysicalHandle handle;
  EXPECT_FAILS(GMM_ERROR_OUT_OF_MEMORY, backend().create(kFirst, size, &handle));
  EXPECT_EQ(handle.value, 0u);
  Allocation out;
  EXPECT_FAILS(GMM_ERROR_OUT_OF_MEMORY, backend().allocate(Kind::kDevice, kFirst, size, &out));
  EXPECT_EQ(out.base, nullptr);
  EXPECT_EQ(allocator_.blocks(), blocks);
  Mapping mapping;
  ASSERT_OK(map_new(kUnit, &mapping));
  EXPECT_OK(drop(mapping));
}

TEST_P(BackendConformance, NoHandleIsRefused) {
  if (!can(GMM_DEVICE_CAN_PAUSE)) GTEST_SKIP() << "no virtual memory management";
  void *base = nullptr;
  ASSERT_OK(backend().reserve(kUnit, &base));
  EXPECT_FALSE(backend().map(base, kUnit, PhysicalHandle{}).ok());
  EXPECT_FALSE(backend().release(PhysicalHandle{}).ok());
  int32_t fd = -5;
  EXPECT_FALSE(backend().export_fd(PhysicalHandle{}, &fd).ok());
  EXPECT_EQ(fd, -5);
  EXPECT_OK(backend().unreserve(base, kUnit));
}

TEST_P(BackendConformance, SharesVmmMemoryWithAnotherProcess) {
  if (!can(GMM_DEVICE_CAN_EXPORT_FD)) GTEST_SKIP() << "no export by file descriptor";
  Mapping mapping;
  ASSERT_OK(map_new(kUnit, &mapping));
  write(mapping.base, pattern(kUnit, 11));
  int32_t fd = -1;
  ASSERT_OK(backend().export_fd(mapping.handle, &fd));
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(play_in_child("import", {GetParam().name, "vmm", std::to_string(kUnit), "11"}, fd), 0);
  EXPECT_EQ(read(mapping.base, kUnit), pattern(kUnit, 12));
  EXPECT_EQ(::close(fd), 0);
  EXPECT_OK(drop(mapping));
}

TEST_P(BackendConformance, SharesHostMemoryWithAnotherProcess) {
  if (!can(GMM_DEVICE_CAN_EXPORT_FD)) GTEST_SKIP() << "no export by file descriptor";
  Allocation memory;
  ASSERT_OK(backend().allocate(Kind::kHost, kFirst, kUnit, &memory));
  std::memcpy(memory.base, pattern(kUnit, 13).data(), kUnit);
  EXPECT_EQ(play_in_child("import", {GetParam().name, "host", std::to_string(kUnit), "13"}, memory.fd), 0);
  EXPECT_EQ(std::memcmp(memory.base, pattern(kUnit, 14).data(), kUnit), 0);
  EXPECT_OK(backend().deallocate(memory));
}

TEST_P(BackendConformance, RefusesForeignFileDescriptors) {
  if (!can(GMM_DEVICE_CAN_EXPORT_FD)) GTEST_SKIP() << "no export by file descriptor";
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd : {-1, 1 << 20, null}) {
    PhysicalHandle handle;
    EXPECT_FALSE(backend().import_fd(fd, kUnit, kFirst, &handle).ok()) << fd;
    Allocation memory;
    EXPECT_FALSE(backend().import_host(fd, kUnit, kFirst, true, &memory).ok()) << fd;
    EXPECT_EQ(memory.base, nullptr);
  }
  EXPECT_EQ(::close(null), 0) << "a failed import must leave the descriptor alone";
}

TEST_P(BackendConformance, PinsTheCallersMemory) {
  if (!can(GMM_DEVICE_CAN_PIN)) GTEST_SKIP() << "no pinning";
  const uint64_t size = 64 << 10;
  void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  void *device_pointer = nullptr;
  ASSERT_OK(backend().pin(memory, size, 0, kFirst, &device_pointer));
  ASSERT_NE(device_pointer, nullptr);
  write(device_pointer, pattern(size, 15));
  EXPECT_EQ(std::memcmp(memory, pattern(size, 15).data(), size), 0);
  EXPECT_OK(backend().unpin(memory, size));
  munmap(memory, size);
  if (!kPageLocksAreReal) return;
  device_pointer = nullptr;
  EXPECT_FALSE(backend().pin(memory, size, 0, kFirst, &device_pointer).ok()) << "the memory is gone";
  EXPECT_EQ(device_pointer, nullptr);
}

TEST_P(BackendConformance, TakesAdviceAndPrefetches) {
  if (!can(GMM_DEVICE_CAN_CONCURRENT_MANAGED)) GTEST_SKIP() << "no concurrent managed memory";
  Allocation memory;
  ASSERT_OK(backend().allocate(Kind::kManaged, kFirst, 2 * kUnit, &memory));
  write(memory.base, pattern(2 * kUnit, 16));
  for (gmm_advice advice = GMM_ADVISE_SET_READ_MOSTLY; advice <= GMM_ADVISE_UNSET_ACCESSED_BY; ++advice)
    for (Device location : {kFirst, kHostLocation})
      EXPECT_OK(backend().advise(memory.base, kUnit, advice, location)) << advice << " " << location.ordinal;
  EXPECT_FAILS(GMM_ERROR_INVALID_VALUE, backend().advise(memory.base, kUnit, 99, kFirst));
  for (Device location : {kFirst, kHostLocation})
    EXPECT_OK(backend().prefetch(memory.base, 2 * kUnit, location, kFirst, GMM_STREAM_DEFAULT));
  EXPECT_EQ(read(memory.base, 2 * kUnit), pattern(2 * kUnit, 16)) << "a prefetch changed the contents";
  EXPECT_OK(backend().deallocate(memory));
}

TEST_P(BackendConformance, ForeignMemoryStaysUnknown) {
  int local = 0;
  ForeignPointer out;
  backend().identify(&local, &out);
  EXPECT_FALSE(out.known);
  backend().identify(reinterpret_cast<void *>(8), &out);
  EXPECT_FALSE(out.known);
}

TEST_P(BackendConformance, ManyThreadsAllocateAtOnce) {
  std::vector<std::thread> threads;
  for (uint8_t number = 0; number < 4; ++number)
    threads.emplace_back([this, number] {
      for (int round = 0; round < 8; ++round) {
        Allocation plain;
        ASSERT_OK(backend().allocate(Kind::kDevice, kFirst, kUnit, &plain));
        Mapping mapping;
        const bool vmm = can(GMM_DEVICE_CAN_PAUSE);
        if (vmm) {
          ASSERT_OK(map_new(kUnit, &mapping));
        }
        const std::vector<uint8_t> bytes = pattern(4096, number);
        write(plain.base, bytes);
        if (vmm) {
          write(mapping.base, read(plain.base, 4096));
          EXPECT_EQ(read(mapping.base, 4096), bytes);
          EXPECT_OK(drop(mapping));
        }
        EXPECT_OK(backend().deallocate(plain));
      }
    });
  for (std::thread &thread : threads) thread.join();
}

}  // namespace
}  // namespace gmm::test
