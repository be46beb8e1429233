// SPDX-License-Identifier: Apache-2.0
// Traces of threads that race, and of files that refuse; tests/api/conformance_trace.c has the events.
#include "engine/trace/trace.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <condition_variable>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "engine/heap/test_support.h"
extern "C" {
#include "cli/trace.h"
}

namespace gmm::test {
namespace {

class TraceTest : public testing::Test {
 protected:
  TraceTest() {
    char name[] = "/tmp/gmm-trace-XXXXXX";
    close(mkstemp(name));
    path = name;
    EXPECT_TRUE(tags.init().ok());
  }
  ~TraceTest() override {
    trace_free(&file);
    EXPECT_TRUE(heap->close(true).ok());
    unlink(path.c_str());
  }
  void begin() {
    ASSERT_TRUE(trace.begin(path.c_str()).ok()) << last_message();
    Snapshot copy{engine.core.allocator};
    ASSERT_TRUE(copy.copy_heap(*heap, *tags.get(GMM_TAG_DEFAULT), true).ok());
    trace.lived(*heap, copy);
  }
  void read() {
    trace_free(&file);
    ASSERT_TRUE(trace_read(path.c_str(), &file));
  }
  void *alloc(uint64_t size, gmm_stream stream = kDefaultStream) {
    void *memory = nullptr;
    EXPECT_TRUE(cached_alloc(*heap, size, 0, stream, &memory).ok()) << last_message();
    if (trace.running()) trace.allocated(*heap, memory, size, 0, 0, stream);
    return memory;
  }
  void release(void *memory, gmm_stream stream = kDefaultStream) {
    const Status status =
        trace.running() ? trace.freed(engine.core, memory, stream) : cached_free(engine.core, memory, stream);
    EXPECT_TRUE(status.ok()) << last_message();
  }
  uint64_t count(uint8_t type) {
    uint64_t found = 0;
    for (size_t i = 0; i < file.count; ++i) found += file.events[i].type == type;
    return found;
  }
  // The order is right if no two live blocks overlap. The reader refuses an alloc at a live address, and counts what is
  // done to unknown ones. Returns the number of blocks that live at the end.
  uint64_t check_order() {
    std::map<uint64_t, uint64_t> live;  // start, end
    for (size_t i = 0; i < file.count && !HasFailure(); ++i) {
      const trace_event &event = file.events[i];
      if (event.type == TRACE_ALLOC) {
        auto after = live.lower_bound(event.address);
        EXPECT_TRUE(after == live.end() || after->first >= event.address + event.size) << "event " << i << " overlaps";
        EXPECT_TRUE(after == live.begin() || std::prev(after)->second <= event.address) << "event " << i << " overlaps";
        live[event.address] = event.address + event.size;
      } else if (event.type == TRACE_FREE) {
        EXPECT_EQ(live.erase(event.address), 1u) << "event " << i << " frees what does not live";
      }
    }
    EXPECT_EQ(file.unknown, 0u);
    return live.size();
  }
  Engine engine;
  std::unique_ptr<Heap> heap = make_heap(engine, Kind::kVmm);
  TagTable tags{engine.core.allocator};
  Trace trace{engine.core, tags};
  std::string path;
  struct trace file = {};
};

// Blocks go from thread to thread; caches spill and fill, so addresses change hands through the heap too.
TEST_F(TraceTest, ThreadsAreInOrder) {
  struct Mailbox {
    std::mutex mutex;
    std::deque<void *> blocks;
  };
  constexpr uint32_t kThreads = 4, kSteps = 40000;
  Mailbox boxes[kThreads];
  std::atomic<uint64_t> allocated{0}, freed{0};
  begin();
  const auto work = [&](uint32_t self) {
    std::mt19937 random(self);
    std::vector<void *> mine;
    uint64_t allocs = 0, frees = 0;
    for (uint32_t step = 0; step < kSteps; ++step) {
      const uint32_t choice = random() % 8;
      if (choice < 3 || mine.empty()) {
        mine.push_back(alloc(256u << (random() % 8)));
        ++allocs;
      } else if (choice < 5 || mine.size() > 200) {
        std::swap(mine[random() % mine.size()], mine.back());
        release(mine.back());
        mine.pop_back();
        ++frees;
      } else if (choice < 7) {
        Mailbox &box = boxes[random() % kThreads];
        std::lock_guard guard(box.mutex);
        box.blocks.push_back(mine.back());
        mine.pop_back();
      } else {
        Mailbox &box = boxes[self];
        std::lock_guard guard(box.mutex);
        for (; !box.blocks.empty(); box.blocks.pop_front(), ++frees) release(box.blocks.front());
      }
    }
    for (void *memory : mine) release(memory);
    allocated += allocs;
    freed += frees + mine.size();
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread &thread : threads) thread.join();
  uint64_t left = 0;
  for (Mailbox &box : boxes) left += box.blocks.size();
  ASSERT_TRUE(trace.end().ok()) << last_message();
  read();
  EXPECT_TRUE(file.ended);
  EXPECT_EQ(count(TRACE_ALLOC), allocated.load());
  EXPECT_EQ(count(TRACE_FREE), freed.load());
  EXPECT_EQ(count(TRACE_THREAD_ENDED), kThreads);
  EXPECT_EQ(check_order(), left);
  for (Mailbox &box : boxes)
    for (void *memory : box.blocks) release(memory);
}

TEST_F(TraceTest, TracesBeginAndEndWhileThreadsWork) {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> steps{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      for (uint64_t step = 0; !stop.load(); ++step, ++steps) release(alloc(256 + 256 * (i + step % 5)));
    });
  bool whole = true;
  for (uint32_t i = 0; i < 15 && whole; ++i) {
    begin();
    // More than the one that each thread may have begun before.
    const uint64_t before = steps;
    EXPECT_TRUE(soon([&] { return steps > before + 100; }));
    ASSERT_TRUE(trace.end().ok()) << last_message();
    read();
    EXPECT_TRUE(file.ended);
    EXPECT_GE(file.blocks, 2u * (100 - threads.size()));
    // The reader refuses a file with an alloc at a live address, and leaves out frees of blocks from before.
    whole = !HasFailure();
  }
  stop = true;
  for (std::thread &thread : threads) thread.join();
}

TEST_F(TraceTest, EventsThatCannotBeWrittenAreCounted) {
  EXPECT_EQ(trace.begin("/nowhere/at/all").code(), GMM_ERROR_IO);
  EXPECT_EQ(trace.begin("/dev/full").code(), GMM_ERROR_IO);
  EXPECT_FALSE(trace.running());
  release(alloc(1000));  // the limit is for memory files too: what the heap needs, it takes now
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  constexpr uint64_t kEvents = 12000;  // in three blocks
  for (uint64_t blocks = 0; blocks <= 5; ++blocks) {
    SCOPED_TRACE(blocks);
    const struct rlimit limit = {blocks * TRACE_BLOCK_BYTES + 100, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const Status begun = trace.begin(path.c_str());
    Status ended;
    for (uint64_t i = 0; i < kEvents / 2 && begun.ok(); ++i) release(alloc(1000));
    if (begun.ok()) ended = trace.end();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(engine.core.gate->word.load(), kGateOpen);
    EXPECT_EQ(begun.ok(), blocks > 0);
    EXPECT_EQ(begun.ok() && ended.ok(), blocks == 5);
    if (blocks < 2) continue;  // the file has no event
    read();
    EXPECT_EQ(file.ended, blocks == 5 ? 1u : 0u);
    if (ended.ok()) {
      EXPECT_EQ(file.blocks, kEvents);
    } else {
      EXPECT_EQ(ended.code(), GMM_ERROR_IO);
      EXPECT_NE(strstr(last_message(), std::to_string(kEvents - file.blocks - file.unknown).c_str()), nullptr)
          << last_message();
    }
  }
}

// A thread that recorded ends beside a trace whose context is being made, and has no gate yet.
TEST_F(TraceTest, AThreadEndsBesideTracesWithoutAGate) {
  begin();
  Gate *const gate = engine.core.gate;
  Core young(HostAllocator(), Log(nullptr, nullptr));
  Trace of_young{young, tags};
  std::thread([&] { release(alloc(512)); }).join();
  ASSERT_TRUE(trace.end().ok());
  read();
  EXPECT_EQ(count(TRACE_THREAD_ENDED), 1u);
  EXPECT_EQ(engine.core.gate, gate);
}

TEST_F(TraceTest, AFifoWithoutAReaderIsRefused) {
  unlink(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::atomic<bool> returned{false};
  std::thread beginner([&] {
    EXPECT_EQ(trace.begin(path.c_str()).code(), GMM_ERROR_IO);
    EXPECT_NE(strstr(last_message(), "nobody reads"), nullptr) << last_message();
    returned = true;
  });
  EXPECT_TRUE(soon([&] { return returned.load(); }));
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);  // ends the wait of one that waits
  beginner.join();
  // With a reader it gets the same blocks.
  fcntl(reader, F_SETFL, 0);
  std::string got;
  std::thread taker([&] {
    char bytes[4096];
    for (ssize_t size = 0; (size = ::read(reader, bytes, sizeof bytes)) > 0;) got.append(bytes, size);
  });
  begin();
  release(alloc(1000));
  ASSERT_TRUE(trace.end().ok()) << last_message();
  taker.join();
  EXPECT_EQ(got.substr(0, 8), "gmmtrace");
  EXPECT_EQ(got.size(), 3u * TRACE_BLOCK_BYTES);
  ::close(reader);
}

}  // namespace
}  // namespace gmm::test
