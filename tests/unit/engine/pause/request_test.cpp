// SPDX-License-Identifier: Apache-2.0
#include "engine/pause/request.h"

#include "engine/heap/test_support.h"

namespace gmm::test {
namespace {

TEST(PauseRequest, NamesVmmHeapsOfItsTagsOrOfEveryTag) {
  Engine engine;
  const auto vmm = make_heap(engine, Kind::kVmm), device = make_heap(engine, Kind::kDevice);
  const gmm_tag own = vmm->options().tag, others[] = {own + 1, own};
  PauseRequest request;
  EXPECT_TRUE(request.names(*vmm));
  EXPECT_FALSE(request.names(*device)) << "only VMM memory can be paused";
  request.tags = others;
  request.count = 1;
  EXPECT_FALSE(request.names(*vmm));
  request.count = 2;
  EXPECT_TRUE(request.names(*vmm));
  EXPECT_FALSE(request.names(*device));
  for (const auto &heap : {vmm.get(), device.get()}) EXPECT_TRUE(heap->close(true).ok());
}

struct Reported {
  uint64_t copied = 0, total = 0;
  int32_t answer = 0;
};

TEST(TransitionProgress, CountsOverHeapsForTheProgramAndTheTicket) {
  Reported reported;
  TicketState ticket;
  PauseRequest request;
  request.ticket = &ticket;
  request.progress.user = &reported;
  request.progress.fn = [](void *user, uint64_t copied, uint64_t total) {
    Reported &of = *static_cast<Reported *>(user);
    of.copied = copied;
    of.total = total;
    return of.answer;
  };
  TransitionProgress progress(request);
  progress.add_total(100);
  progress.add_total(30);
  progress.begin();
  EXPECT_EQ(ticket.total, 130u);
  EXPECT_TRUE(progress.report(40).ok());
  EXPECT_EQ(reported.copied, 40u);
  progress.end_heap(100);
  EXPECT_TRUE(progress.report(30).ok());
  EXPECT_EQ(reported.copied, 130u);
  EXPECT_EQ(reported.total, 130u);
  EXPECT_EQ(ticket.copied, 130u);
  reported.answer = 1;
  EXPECT_EQ(progress.report(30).code(), GMM_ERROR_CANCELLED);
  reported.answer = 0;
  ticket.cancelled = 1;
  EXPECT_EQ(progress.report(30).code(), GMM_ERROR_CANCELLED);
}

}  // namespace
}  // namespace gmm::test
