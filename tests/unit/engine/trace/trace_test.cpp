// SPDX-License-Identifier: Apache-2.0
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
#include "trace_reader.h"

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
    std::free(file.events);
    EXPECT_TRUE(heap->close(true).ok());
    unlink(path.c_str());
  }
  void begin() { ASSERT_TRUE(trace.begin(path.c_str()).ok()) << last_message(); }
  void read() {
    std::free(file.events);
    ASSERT_TRUE(trace_file_read(path.c_str(), &file)) << file.wrong;
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
  uint64_t count(uint32_t number) {
    uint64_t found = 0;
    for (size_t i = 0; i < file.count; ++i) found += file.events[i].number == number;
    return found;
  }
  // The property that the order is for: no two live blocks overlap, nothing unknown is freed or used. Returns what is
  // live at the end.
  uint64_t check_order() {
    std::map<uint64_t, uint64_t> live;  // start, end
    for (size_t i = 0; i < file.count; ++i) {
      const trace_event &event = file.events[i];
      if (event.number == TRACE_ALLOC) {
        auto after = live.lower_bound(event.address);
        EXPECT_TRUE(after == live.end() || after->first >= event.address + event.size) << "event " << i << " overlaps";
        EXPECT_TRUE(after == live.begin() || std::prev(after)->second <= event.address) << "event " << i << " overlaps";
        live[event.address] = event.address + event.size;
      } else if (event.number == TRACE_FREE) {
        EXPECT_EQ(live.erase(event.address), 1u) << "event " << i << " frees what does not live";
      } else if (event.number == TRACE_USE) {
        EXPECT_EQ(live.count(event.address), 1u) << "event " << i << " uses what does not live";
      }
      if (HasFailure()) break;
    }
    return live.size();
  }
  Engine engine;
  std::unique_ptr<Heap> heap = make_heap(engine, Kind::kVmm);
  TagTable tags{engine.core.allocator};
  Trace trace{engine.core, tags};
  std::string path;
  trace_file file = {};
};

TEST_F(TraceTest, EventsCarryWhatHappened) {
  void *before = alloc(5000);
  begin();
  EXPECT_TRUE(trace.running());
  EXPECT_EQ(trace.begin(path.c_str()).code(), GMM_ERROR_BUSY);
  const gmm_stream stream = engine.stream();
  void *one = alloc(100), *two = alloc(70000, stream);
  trace.allocated(*heap, reinterpret_cast<void *>(uintptr_t{1} << 40), 7, 4096, GMM_ALLOC_DEDICATED | GMM_ALLOC_ZERO,
                  stream);
  trace.used(two, kDefaultStream);
  release(one);
  release(before);
  release(two, stream);
  const gmm_tag tags[] = {3, 9};
  trace.paused(tags, 2, 4096);
  trace.resumed(nullptr, 0, 8192);
  trace.trimmed(77);
  trace.heap_created(*heap);
  trace.heap_destroyed(5);
  trace.was_reset();
  EXPECT_EQ(trace.freed(engine.core, one, kDefaultStream).code(), GMM_ERROR_ALREADY_FREED);  // not an event
  ASSERT_TRUE(trace.end().ok()) << last_message();
  EXPECT_FALSE(trace.running());
  EXPECT_EQ(engine.core.gate->word.load(), kGateOpen);
  EXPECT_EQ(trace.end().code(), GMM_ERROR_UNBALANCED);
  read();
  EXPECT_TRUE(file.ended);
  EXPECT_EQ(file.lost, 0u);
  EXPECT_EQ(file.cut, 0u);
  EXPECT_EQ(file.process, static_cast<uint32_t>(getpid()));
  EXPECT_STREQ(file.backend, "host");
  // Kind, device 0, tag.
  const uint64_t kind_word = static_cast<uint64_t>(Kind::kVmm) | uint64_t{GMM_TAG_DEFAULT} << 32;
  const uint64_t here = reinterpret_cast<uintptr_t>(stream);
  struct Expected {
    uint32_t number;
    const void *address;
    uint64_t size, stream, first, second;
  } expected[] = {{TRACE_ALLOC, one, 100, 0, 0, 0},
                  {TRACE_ALLOC, two, 70000, here, 0, 0},
                  {TRACE_ALLOC, reinterpret_cast<void *>(uintptr_t{1} << 40), 7, here, 0, 0},
                  {TRACE_USE, two, 0, 0, 0, 0},
                  {TRACE_FREE, one, 0, 0, 0, 0},
                  {TRACE_FREE, before, 0, 0, 0, 0},
                  {TRACE_FREE, two, 0, here, 0, 0},
                  {TRACE_PAUSE, nullptr, 0, 0, 3, 4096},
                  {TRACE_PAUSE, nullptr, 0, 0, 9, 0},
                  {TRACE_RESUME, nullptr, 0, 0, UINT64_MAX, 8192},
                  {TRACE_TRIM, nullptr, 0, 0, 77, 0},
                  {TRACE_HEAP_CREATED, nullptr, 0, 0, heap->fast.serial, kind_word},
                  {TRACE_HEAP_DESTROYED, nullptr, 0, 0, 5, 0},
                  {TRACE_RESET, nullptr, 0, 0, 0, 0}};
  ASSERT_EQ(file.count, std::size(expected));
  for (size_t i = 0; i < file.count; ++i) {
    SCOPED_TRACE(i);
    const trace_event &event = file.events[i];
    EXPECT_EQ(event.number, expected[i].number);
    EXPECT_EQ(event.address, reinterpret_cast<uintptr_t>(expected[i].address));
    EXPECT_EQ(event.size, expected[i].size);
    EXPECT_EQ(event.stream, expected[i].stream);
    EXPECT_EQ(event.thread, 1u);
    if (event.number == TRACE_ALLOC) {
      EXPECT_EQ(event.heap, heap->fast.serial);
      EXPECT_EQ(event.heap_kind, kind_word);
      EXPECT_EQ(event.flags, i == 2 ? 12u | 1u << 5 | 1u << 6 : 0u);
    } else if (event.number > TRACE_USE) {
      EXPECT_EQ(event.words[0], expected[i].first);
      EXPECT_EQ(event.words[1], expected[i].second);
    }
  }
}

TEST_F(TraceTest, AnotherTraceStartsAfresh) {
  begin();
  void *memory = alloc(100);
  ASSERT_TRUE(trace.end().ok());
  release(memory);
  begin();
  memory = alloc(300);
  release(memory);
  ASSERT_TRUE(trace.end().ok());
  read();
  ASSERT_EQ(file.count, 2u);
  EXPECT_EQ(file.events[0].size, 300u);
  EXPECT_EQ(file.events[1].number, static_cast<uint32_t>(TRACE_FREE));
}

TEST_F(TraceTest, MoreStreamsThanPlacesKeepTheirHandles) {
  begin();
  std::vector<std::pair<uint64_t, uint64_t>> expected;  // size, stream
  void *memory = alloc(64);
  for (uint64_t i = 1; i <= 3000; ++i) {
    const uint64_t stream = i * 37 % 200 * 16;
    trace.allocated(*heap, memory, i, 0, 0, reinterpret_cast<gmm_stream>(stream));
    expected.emplace_back(i, stream);
  }
  ASSERT_TRUE(trace.end().ok());
  read();
  ASSERT_EQ(file.count, expected.size() + 1);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(file.events[i + 1].size, expected[i].first);
    ASSERT_EQ(file.events[i + 1].stream, expected[i].second);
    ASSERT_STREQ(file.events[i + 1].name, "default") << "every chunk names its tags";
  }
  EXPECT_GE(file.chunks, 2u);
}

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

// The tightest hand-over there is: a block at a time, through a word.
TEST_F(TraceTest, ABlockThatGoesToAndFroIsInOrder) {
  std::atomic<void *> word{nullptr};
  constexpr uint32_t kRounds = 20000;
  begin();
  std::thread other([&] {
    for (uint32_t i = 0; i < kRounds; ++i) {
      void *memory = nullptr;
      while ((memory = word.exchange(nullptr)) == nullptr) std::this_thread::yield();
      release(memory);
    }
  });
  for (uint32_t i = 0; i < kRounds; ++i) {
    word.store(alloc(1024));
    while (word.load() != nullptr) std::this_thread::yield();
  }
  other.join();
  ASSERT_TRUE(trace.end().ok());
  read();
  EXPECT_EQ(count(TRACE_ALLOC), kRounds);
  EXPECT_EQ(count(TRACE_FREE), kRounds);
  EXPECT_EQ(check_order(), 0u);
}

TEST_F(TraceTest, EndedThreadsLeaveEverything) {
  begin();
  for (uint32_t i = 0; i < 300; ++i) std::thread([&] { release(alloc(512)); }).join();
  ASSERT_TRUE(trace.end().ok());
  read();
  EXPECT_EQ(count(TRACE_ALLOC), 300u);
  EXPECT_EQ(count(TRACE_FREE), 300u);
  EXPECT_EQ(count(TRACE_THREAD_ENDED), 300u);
  EXPECT_EQ(check_order(), 0u);
  for (size_t i = 0; i < file.count; ++i) ASSERT_EQ(file.events[i].thread, 1u);  // its number is used again
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
    EXPECT_GE(file.count, 2u * (100 - threads.size()));
    // A free whose alloc was before the trace is there; all else is in order.
    std::map<uint64_t, bool> live;
    for (size_t at = 0; at < file.count; ++at) {
      const trace_event &event = file.events[at];
      whole = whole && !(event.number == TRACE_ALLOC && live[event.address]);
      live[event.address] = event.number == TRACE_ALLOC;
    }
    EXPECT_TRUE(whole) << "an address is allocated twice";
  }
  stop = true;
  for (std::thread &thread : threads) thread.join();
}

TEST_F(TraceTest, WhatCannotBeWrittenIsCountedAndTheRestIsReadable) {
  EXPECT_EQ(trace.begin("/nowhere/at/all").code(), GMM_ERROR_IO);
  EXPECT_FALSE(trace.running());
  EXPECT_EQ(trace.begin("/dev/full").code(), GMM_ERROR_IO);
  EXPECT_FALSE(trace.running());
  release(alloc(1000));  // the limit is for memory files too: what the heap needs, it takes now
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  // The k-th write fails: the header, each chunk, and the last with the end behind it.
  constexpr uint64_t kEvents = 40000;
  uint64_t refused = 0, lost = 0, whole = 0;
  for (uint64_t size : {0, 40, 64, 100, 65600, 65700, 140000, 200000, 600000}) {
    SCOPED_TRACE(size);
    const struct rlimit limit = {size, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const Status begun = trace.begin(path.c_str());
    Status ended;
    if (begun.ok()) {
      for (uint64_t i = 0; i < kEvents / 2; ++i) release(alloc(1000));
      ended = trace.end();
    }
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(engine.core.gate->word.load(), kGateOpen);
    if (!begun.ok()) {
      EXPECT_EQ(begun.code(), GMM_ERROR_IO);
      ++refused;
      continue;
    }
    read();
    EXPECT_EQ(file.cut, 0u);
    if (ended.ok()) {
      EXPECT_TRUE(file.ended);
      EXPECT_EQ(file.count, kEvents);
      ++whole;
      continue;
    }
    EXPECT_EQ(ended.code(), GMM_ERROR_IO);
    EXPECT_NE(strstr(last_message(), std::to_string(kEvents - file.count).c_str()), nullptr) << last_message();
    if (file.ended) {
      EXPECT_EQ(file.count + file.lost, kEvents);
    }
    ++lost;
  }
  EXPECT_EQ(refused, 4u);
  EXPECT_EQ(lost, 4u);
  EXPECT_EQ(whole, 1u);
}

// The file has every event as soon as it is recorded, of threads that live and of those that ended.
TEST_F(TraceTest, TheFileIsReadableAtEveryMoment) {
  begin();
  for (uint32_t i = 1; i <= 40; ++i) {
    release(alloc(1000));
    std::thread([&] { release(alloc(2000)); }).join();
    read();
    ASSERT_EQ(count(TRACE_ALLOC), 2 * i);
    ASSERT_EQ(count(TRACE_FREE), 2 * i);
    ASSERT_EQ(count(TRACE_THREAD_ENDED), i);
    ASSERT_FALSE(file.ended);
    ASSERT_EQ(file.cut, 0u);
    ASSERT_EQ(file.unfinished, 2u) << "the second thread's chunk serves those after it";
  }
  for (uint32_t i = 0; i < 20000; ++i) release(alloc(1000));
  read();
  EXPECT_EQ(count(TRACE_ALLOC), 20080u);
  EXPECT_EQ(file.unfinished, 2u);
  EXPECT_EQ(check_order(), 0u);
  ASSERT_TRUE(trace.end().ok());
  read();
  EXPECT_EQ(count(TRACE_ALLOC), 20080u);
  EXPECT_EQ(file.unfinished, 0u);
  EXPECT_TRUE(file.ended);
}

TEST_F(TraceTest, TwoTracesDoNotShareAFile) {
  begin();
  Trace other{engine.core, tags};
  EXPECT_EQ(other.begin(path.c_str()).code(), GMM_ERROR_BUSY);
  void *memory = alloc(100);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(Trace(engine.core, tags).begin(path.c_str()).code() == GMM_ERROR_BUSY ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  release(memory);
  ASSERT_TRUE(trace.end().ok());
  read();
  EXPECT_EQ(file.count, 2u);
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
  // With a reader it is a file like another.
  begin();
  release(alloc(1000));
  ASSERT_TRUE(trace.end().ok()) << last_message();
  char bytes[8] = {};
  EXPECT_EQ(::read(reader, bytes, sizeof bytes), 8);
  EXPECT_EQ(std::string(bytes, sizeof bytes), "gmmtrace");
  ::close(reader);
}

}  // namespace
}  // namespace gmm::test
