// SPDX-License-Identifier: Apache-2.0
#include "cli/serve/keeper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

namespace gmm {
namespace {

constexpr uint64_t kExtent = kExtentAlignment;

KeepRequest request(KeepVerb verb, const char *name = "weights", uint64_t client = 1) {
  KeepRequest out;
  out.verb = verb;
  out.client = client;
  std::snprintf(out.name, sizeof out.name, "%s", name);
  if (!out.brings_memory()) return out;
  out.memory.base = 16 * kExtent;
  out.memory.extents = 2;
  out.memory.sizes[0] = kExtent;
  out.memory.sizes[1] = 3 * kExtent;
  out.memory.size = 4 * kExtent;
  out.memory.block_size = 4 * kExtent - 10;
  return out;
}

struct KeeperTest : testing::Test {
  Keeper keeper{1000, false, 0};
  uint64_t now = 0;
  struct Got {
    int count = 0, result = 1, descriptors = 0;
    bool is_revocation = false;
    KeepAnswer answer;
  };
  std::map<Keeper::Client *, Got> got;

  Keeper::Client *client() { return keeper.add(7, nullptr); }
  bool send(Keeper::Client *to, const KeepRequest &what, int descriptors = -1) {
    os::Descriptors fds;
    if (descriptors < 0) descriptors = what.brings_memory() ? static_cast<int>(what.memory.extents) : 0;
    for (int i = 0; i < descriptors; ++i) fds.each[fds.count++] = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    return keeper.receive(to, what, &fds);
  }
  // What the client got since the last call; count 0: nothing.
  Got hear(Keeper::Client *of) {
    for (Keeper::Message message; keeper.next(now, &message);) {
      Got &to = got[message.to];
      to.answer = message.answer;
      to.result = message.answer.result;
      to.is_revocation = message.is_revocation;
      to.descriptors = message.along == nullptr ? 0 : static_cast<int>(message.along->count);
      ++to.count;
    }
    return std::exchange(got[of], Got());
  }
  int result(Keeper::Client *of, const KeepRequest &what) {
    EXPECT_TRUE(send(of, what));
    const Got heard = hear(of);
    return heard.count == 1 ? heard.result : GMM_ERROR_NOT_READY;
  }
  uint64_t readers() {
    Keeper::Client *const asker = client();
    EXPECT_TRUE(send(asker, request(KeepVerb::kList)));
    const Got heard = hear(asker);
    keeper.remove(asker);
    return heard.result == GMM_OK ? heard.answer.memory.readers : UINT64_MAX;
  }
};

TEST_F(KeeperTest, PublishedMemoryOutlivesItsPublisher) {
  Keeper::Client *const publisher = client(), *const reader = client();
  EXPECT_EQ(result(publisher, request(KeepVerb::kPublish)), GMM_OK);
  keeper.remove(publisher);
  EXPECT_TRUE(send(reader, request(KeepVerb::kAttach)));
  const Got heard = hear(reader);
  EXPECT_EQ(heard.descriptors, 2);
  EXPECT_EQ(heard.answer.memory.generation, 1001u);
  EXPECT_EQ(heard.answer.memory.process, 7);
  EXPECT_EQ(readers(), 1u);
  keeper.remove(reader);
  EXPECT_EQ(readers(), 0u);
  EXPECT_FALSE(keeper.empty());
}

TEST_F(KeeperTest, ANameIsPublishedOnce) {
  EXPECT_EQ(result(client(), request(KeepVerb::kPublish)), GMM_OK);
  EXPECT_EQ(result(client(), request(KeepVerb::kPublish)), GMM_ERROR_BUSY);
  EXPECT_EQ(result(client(), request(KeepVerb::kPublish, "another")), GMM_OK);
}

TEST_F(KeeperTest, AClaimIsOnesUntilItsEnd) {
  Keeper::Client *const first = client(), *const second = client(), *const third = client();
  EXPECT_EQ(result(first, request(KeepVerb::kClaim, "weights", 1)), GMM_UNCHANGED);
  Keeper::Client *const thread = client();  // of the same context
  EXPECT_EQ(result(thread, request(KeepVerb::kClaim, "weights", 1)), GMM_ERROR_NOT_READY);
  keeper.remove(thread);
  EXPECT_TRUE(send(second, request(KeepVerb::kClaim, "weights", 2)));
  EXPECT_TRUE(send(third, request(KeepVerb::kAttach, "weights", 3)));
  EXPECT_EQ(hear(second).count, 0);
  EXPECT_EQ(result(client(), request(KeepVerb::kPublish, "weights", 3)), GMM_ERROR_BUSY);
  keeper.remove(first);
  EXPECT_EQ(hear(second).result, GMM_UNCHANGED);
  EXPECT_EQ(result(client(), request(KeepVerb::kPublish, "weights", 2)), GMM_OK);
  EXPECT_EQ(hear(third).descriptors, 2);
}

TEST_F(KeeperTest, AWithdrawnNameIsOverForThoseWhoHaveIt) {
  for (const bool is_revoked : {false, true}) {
    Keeper::Client *const publisher = client(), *const reader = client();
    EXPECT_EQ(result(publisher, request(KeepVerb::kPublish)), GMM_OK);
    EXPECT_EQ(result(reader, request(KeepVerb::kAttach)), GMM_OK);
    if (is_revoked)
      EXPECT_TRUE(send(publisher, request(KeepVerb::kRevoke)));
    else
      EXPECT_EQ(result(client(), request(KeepVerb::kUnpublish)), GMM_OK);
    const Got heard = hear(reader);
    EXPECT_EQ(heard.count, 1);
    EXPECT_EQ(heard.result, GMM_ERROR_IPC_PEER_GONE);
    EXPECT_EQ(heard.is_revocation, is_revoked);
    EXPECT_TRUE(keeper.empty());
    EXPECT_EQ(result(client(), request(KeepVerb::kUnpublish)), GMM_UNCHANGED);
    keeper.remove(reader);
  }
}

TEST_F(KeeperTest, AReaderMayWantOneGeneration) {
  EXPECT_EQ(result(client(), request(KeepVerb::kPublish)), GMM_OK);
  KeepRequest wish = request(KeepVerb::kAttach);
  wish.index = 1001;
  EXPECT_EQ(result(client(), wish), GMM_OK);
  wish.index = 1000;
  EXPECT_EQ(result(client(), wish), GMM_ERROR_IPC_PEER_GONE);
}

TEST_F(KeeperTest, ASuccessorWaitsForWhatOthersHave) {
  Keeper successor(2000, true, 100);
  const auto ask = [&](const KeepRequest &what, uint64_t at) {
    Keeper::Client *const from = successor.add(8, nullptr);
    os::Descriptors fds;
    for (uint32_t i = 0; i < what.memory.extents; ++i) fds.each[fds.count++] = ::open("/dev/null", O_RDONLY);
    EXPECT_TRUE(successor.receive(from, what, &fds));
    Keeper::Message message;
    return successor.next(at, &message) && message.to == from ? message.answer.result : GMM_ERROR_NOT_READY;
  };
  KeepRequest restored = request(KeepVerb::kRestoreReader, "weights");
  restored.memory.generation = 1500;
  EXPECT_EQ(ask(request(KeepVerb::kClaim, "weights", 1), 110), GMM_ERROR_NOT_READY);
  EXPECT_EQ(successor.wakes_at(110), 100 + Keeper::kGraceMs);
  EXPECT_EQ(ask(restored, 120), GMM_OK);
  Keeper::Message message;
  EXPECT_TRUE(successor.next(120, &message));  // of the one that waited
  EXPECT_EQ(message.along->count, 2u);
  restored.verb = KeepVerb::kRestorePublisher;
  EXPECT_EQ(ask(restored, 130), GMM_OK);  // it is the same memory
  restored.memory.generation = 1400;
  EXPECT_EQ(ask(restored, 140), GMM_ERROR_IPC_PEER_GONE);  // and this is not
  EXPECT_EQ(ask(request(KeepVerb::kRestoreClaim, "other", 2), 140), GMM_OK);
  EXPECT_EQ(ask(request(KeepVerb::kClaim, "other", 3), 700), GMM_ERROR_NOT_READY);
}

TEST_F(KeeperTest, RequestsThatMakeNoSenseAreRefused) {
  const auto changed = [](auto change) {
    KeepRequest out = request(KeepVerb::kPublish);
    change(&out);
    return out;
  };
  using R = KeepRequest;
  const KeepRequest wrong[] = {
      changed([](R *r) { r->header.version = 9; }),
      changed([](R *r) { r->verb = static_cast<KeepVerb>(99); }),
      changed([](R *r) { r->name[0] = 0; }),
      changed([](R *r) { std::memset(r->name, 'x', sizeof r->name); }),
      changed([](R *r) { r->name[0] = '\x80'; }),
      changed([](R *r) { r->memory.extents = kIpcMaxExtents + 1; }),
      changed([](R *r) { r->memory.size += kExtent; }),
      changed([](R *r) { r->memory.sizes[0] = 4096; }),
      changed([](R *r) { r->memory.sizes[0] = UINT64_MAX - 3 * kExtent + 1; }),
      changed([](R *r) { r->memory.base = UINT64_MAX - kExtent + 1; }),
      changed([](R *r) { r->memory.block_offset = UINT64_MAX; }),
      changed([](R *r) { r->memory.block_size = 5 * kExtent; }),
      changed([](R *r) { r->reserved = 1; }),
  };
  for (const KeepRequest &each : wrong) EXPECT_FALSE(send(client(), each, 2));
  EXPECT_FALSE(send(client(), request(KeepVerb::kPublish), 1));
  Keeper::Client *const twice = client();
  EXPECT_TRUE(send(twice, request(KeepVerb::kAttach)));
  EXPECT_FALSE(send(twice, request(KeepVerb::kAttach)));
  EXPECT_TRUE(keeper.empty());
}

}  // namespace
}  // namespace gmm
