// SPDX-License-Identifier: Apache-2.0
// The promises of the SYCL backend alone, with a real dpctl.
#include "backend/sycl/sycl_backend.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "backend/sycl/interface.h"
#include "backend_test.h"

namespace gmm::test {
namespace {

using sycl::ContextRef;
using sycl::DeviceRef;
using sycl::EventRef;
using sycl::QueueRef;

TEST(SyclLibrary, WithoutItThereIsNoBackend) {
  const char *was = std::getenv("GMM_SYCL_LIBRARY");
  const std::string own = was != nullptr ? was : "";
  const std::pair<const char *, const char *> wrong[] = {{"/nonexistent/libDPCTLSyclInterface.so", "/nonexistent/"},
                                                         {"libc.so.6", "has no DPCTL"}};
  for (const auto &[library, words] : wrong) {
    setenv("GMM_SYCL_LIBRARY", library, 1);
    Backend *backend = nullptr;
    EXPECT_FAILS(GMM_ERROR_NO_BACKEND, sycl_backend_create(HostAllocator(), Log(nullptr, nullptr), &backend));
    EXPECT_NE(std::strstr(last_message(), words), nullptr) << last_message();
    EXPECT_EQ(backend, nullptr);
  }
  if (was != nullptr) setenv("GMM_SYCL_LIBRARY", own.c_str(), 1);
}

// A program uses SYCL beside gmm, in the context that dpctl gives the program's queues.
class SyclBackendTest : public ::testing::Test {
 protected:
  static constexpr Device kFirst{0};
  static constexpr uint64_t kUnit = kExtentAlignment;

  void SetUp() override {
    ASSERT_OK(sycl_backend_create(allocator_.allocator(), log_.log(), &backend_));
    ASSERT_OK(api_.open());
    sycl::SelectorRef selector = api_.DPCTLDefaultSelector_Create();
    device_ = api_.DPCTLDevice_CreateFromSelector(selector);
    api_.DPCTLDeviceSelector_Delete(selector);
    ASSERT_NE(device_, nullptr);
    const char *path = std::getenv("GMM_SYCL_LIBRARY");
    library_ = dlopen(path != nullptr ? path : "libDPCTLSyclInterface.so", RTLD_NOW);
    const auto cached = reinterpret_cast<ContextRef (*)(DeviceRef)>(dlsym(library_, "DPCTLDeviceMgr_GetCachedContext"));
    ASSERT_NE(cached, nullptr);
    context_ = cached(device_);
  }
  void TearDown() override {
    for (QueueRef queue : queues_) api_.DPCTLQueue_Delete(queue);
    if (context_ != nullptr) api_.DPCTLContext_Delete(context_);
    if (device_ != nullptr) api_.DPCTLDevice_Delete(device_);
    if (backend_ != nullptr) backend_->destroy();
    EXPECT_EQ(allocator_.blocks(), 0);
    for (const std::string &message : log_.messages()) ADD_FAILURE() << message;
  }
  Backend &backend() { return *backend_; }
  QueueRef queue(int properties) { return queue_in(context_, properties); }
  QueueRef queue_in(ContextRef context, int properties) {
    queues_.push_back(api_.DPCTLQueue_Create(context, device_, nullptr, properties));
    return queues_.back();
  }
  static gmm_stream stream(QueueRef queue) { return reinterpret_cast<gmm_stream>(queue); }

  CountingAllocator allocator_;
  LogKeeper log_;
  Backend *backend_ = nullptr;
  sycl::Interface api_;
  DeviceRef device_ = nullptr;
  ContextRef context_ = nullptr;
  std::vector<QueueRef> queues_;
  void *library_ = nullptr;
};

// Both sides see one context: memory of either has its kind for the other.
TEST_F(SyclBackendTest, KindsAreTheSameOnBothSides) {
  const struct {
    Kind kind;
    gmm_usm usm;
    int type;
    void *(*allocate)(size_t, size_t, QueueRef);
  } kinds[] = {{Kind::kDevice, GMM_USM_DEVICE, sycl::kUsmDevice, api_.DPCTLaligned_alloc_device},
               {Kind::kHost, GMM_USM_HOST, sycl::kUsmHost, api_.DPCTLaligned_alloc_host},
               {Kind::kManaged, GMM_USM_SHARED, sycl::kUsmShared, api_.DPCTLaligned_alloc_shared}};
  for (const auto &each : kinds) {
    SCOPED_TRACE(each.type);
    Allocation ours;
    ASSERT_OK(backend().allocate(each.kind, kFirst, kUnit, false, &ours));
    EXPECT_EQ(api_.DPCTLUSM_GetPointerType(ours.base, context_), each.type);
    EXPECT_EQ(api_.DPCTLUSM_GetPointerType(static_cast<char *>(ours.base) + kUnit - 1, context_), each.type);
    ASSERT_OK(backend().deallocate(ours));
    char *theirs = static_cast<char *>(each.allocate(64, 5000, queue(0)));
    ASSERT_NE(theirs, nullptr);
    for (char *address : {theirs, theirs + 4999}) {
      ForeignPointer out;
      backend().identify(address, &out);
      EXPECT_TRUE(out.known);
      EXPECT_EQ(out.kind, each.kind);
      EXPECT_EQ(out.usm, each.usm);
      EXPECT_EQ(out.device, each.kind == Kind::kHost ? kHostLocation : kFirst);
    }
    api_.DPCTLfree_with_context(theirs, context_);
  }
  std::unique_ptr<char[]> ordinary(new char[100]);
  ForeignPointer out;
  backend().identify(ordinary.get(), &out);
  EXPECT_FALSE(out.known);
  EXPECT_EQ(out.usm, GMM_USM_UNKNOWN);
}

void add_one(void *value) { ++*static_cast<uint8_t *>(value); }

// The program's queues are streams, in order or not.
TEST_F(SyclBackendTest, QueuesOfTheProgramAreStreams) {
  Allocation memory;
  ASSERT_OK(backend().allocate(Kind::kHost, kFirst, 4 * kUnit, false, &memory));
  uint8_t *const bytes = static_cast<uint8_t *>(memory.base);
  for (const int properties : {0, sycl::kInOrder}) {
    SCOPED_TRACE(properties);
    const QueueRef theirs = queue(properties);
    const gmm_stream as_stream = stream(theirs);
    const int64_t blocks = allocator_.blocks();
    for (uint8_t round = 1; round < 20; ++round) {
      ASSERT_OK(backend().fill(kFirst, as_stream, bytes, round, 4 * kUnit));
      ASSERT_OK(backend().copy(kFirst, as_stream, bytes + 2 * kUnit, bytes, 2 * kUnit));
      ASSERT_OK(backend().stream_call(kFirst, as_stream, add_one, bytes + 3 * kUnit));
      ASSERT_OK(backend().copy(kFirst, as_stream, bytes, bytes + 3 * kUnit, 1));
      ASSERT_OK(backend().stream_synchronize(kFirst, as_stream));
      EXPECT_EQ(bytes[0], round + 1);
      EXPECT_EQ(bytes[4 * kUnit - 1], round);
    }
    // An event of it holds another stream up.
    NativeEvent event = nullptr;
    ASSERT_OK(backend().event_create(kFirst, &event));
    ASSERT_OK(backend().fill(kFirst, as_stream, bytes, 0x55, 4 * kUnit));
    ASSERT_OK(backend().event_record(event, kFirst, as_stream));
    ASSERT_OK(backend().stream_wait(kFirst, GMM_STREAM_DEFAULT, event));
    ASSERT_OK(backend().copy(kFirst, GMM_STREAM_DEFAULT, bytes, bytes + 4 * kUnit - 1, 1));
    ASSERT_OK(backend().stream_synchronize(kFirst, GMM_STREAM_DEFAULT));
    EXPECT_EQ(bytes[0], 0x55);
    ASSERT_OK(backend().event_destroy(event));
    ASSERT_OK(backend().synchronize(kFirst));
    EXPECT_LE(allocator_.blocks(), blocks + 4) << "queues of the program stay in the table";
  }
  ASSERT_OK(backend().deallocate(memory));
}

TEST_F(SyclBackendTest, AQueueOfAnotherContextIsRefused) {
  const auto create =
      reinterpret_cast<ContextRef (*)(DeviceRef, sycl::ErrorHandler *, int)>(dlsym(library_, "DPCTLContext_Create"));
  ASSERT_NE(create, nullptr);
  ContextRef other = create(device_, nullptr, 0);
  ASSERT_NE(other, nullptr);
  EXPECT_FAILS(GMM_ERROR_INVALID_HANDLE, backend().stream_synchronize(kFirst, stream(queue_in(other, 0))));
  api_.DPCTLContext_Delete(other);
}

}  // namespace
}  // namespace gmm::test
