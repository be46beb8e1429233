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
  HeapProgress first(progress, true), last(progress, true);
  EXPECT_TRUE(first.report(40).ok());
  EXPECT_EQ(reported.copied, 40u);
  first.end(100);
  HeapProgress elsewhere(progress, false);
  EXPECT_TRUE(elsewhere.report(20).ok());
  EXPECT_EQ(reported.copied, 40u) << "another thread told the program";
  EXPECT_TRUE(last.report(10).ok());
  EXPECT_EQ(reported.copied, 130u);
  EXPECT_EQ(reported.total, 130u);
  EXPECT_EQ(ticket.copied, 130u);
  reported.answer = 1;
  EXPECT_EQ(last.report(10).code(), GMM_ERROR_CANCELLED);
  reported.answer = 0;
  EXPECT_TRUE(last.report(10).ok());
  ticket.cancelled = 1;
  EXPECT_EQ(last.report(10).code(), GMM_ERROR_CANCELLED);
  ticket.cancelled = 0;
  EXPECT_TRUE(progress.stop());
  EXPECT_FALSE(progress.stop()) << "the first one alone";
  EXPECT_EQ(elsewhere.report(20).code(), GMM_ERROR_CANCELLED);
  EXPECT_EQ(last.report(10).code(), GMM_ERROR_CANCELLED);
}

}  // namespace
}  // namespace gmm::test
