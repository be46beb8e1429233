// SPDX-License-Identifier: Apache-2.0
// Random histories of a whole context: each block keeps its contents through pauses, moves, compactions, trims, limits,
// busy streams and captures, while calls of the driver, the host allocator and the backend fail. The heaps' invariants
// hold after each step, and nothing is left in the end. On the host backend and on the fake driver.
//
// HISTORY_SEEDS=500 runs the seeds 1 to 500 and HISTORY_FIRST_SEED=17 begins later; HISTORY_LOG=1 prints the steps.
#include <dlfcn.h>
#include <gmm/gmm.h>
#include <sys/uio.h>

#include <cstdlib>
#include <random>
#include <utility>

#include "engine/heap/test_support.h"
#include "fake_cuda/fake_cuda.h"

namespace gmm::test {
namespace {

constexpr int kTags = 5, kHeaps = 5;
constexpr uint64_t kPage = 2 * kMiB;

struct Block {
  char *at = nullptr;
  uint64_t size = 0, mark = 0;
  Kind kind = Kind::kVmm;
  int device = 0, tag = 0, heap = -1;  // the heap of the program, if any
  gmm_stream stream = nullptr;
  bool known = true;   // what it holds
  uint32_t graph = 0;  // allocated in that capture
};

struct Driver {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  template <typename Fn>
  Fn find(const char *name) const {
    return library == nullptr ? nullptr : reinterpret_cast<Fn>(dlsym(library, name));
  }
  decltype(&fake_cuda_live) live = find<decltype(live)>("fake_cuda_live");
  decltype(&fake_cuda_fail) fail = find<decltype(fail)>("fake_cuda_fail");
  int (*context_of)(gmm_stream, void **) = find<decltype(context_of)>("cuStreamGetCtx");
  int (*set_current)(void *) = find<decltype(set_current)>("cuCtxSetCurrent");
  int (*begin_capture)(gmm_stream, int) = find<decltype(begin_capture)>("cuStreamBeginCapture_v2");
  int (*end_capture)(gmm_stream, void **) = find<decltype(end_capture)>("cuStreamEndCapture");
  int (*destroy_graph)(void *) = find<decltype(destroy_graph)>("cuGraphDestroy");
};

// The k-th request from now is refused; 0: none.
std::atomic<int64_t> host_refuses_at{0};
void *allocate_on_host(void *, uint64_t size, uint64_t alignment) {
  if (host_refuses_at.load() > 0 && host_refuses_at.fetch_sub(1) == 1) return nullptr;
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}
void deallocate_on_host(void *, void *memory, uint64_t) { std::free(memory); }

class History {
 public:
  History(uint64_t seed, gmm_backend backend) : random_(seed), backend_(backend) {}

  void run() {
    open();
    const int steps = 250;
    for (int step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step) + " " + said_);
      one_step();
      if (verbose_) fprintf(stderr, "%d %s\n", step, said_.c_str());
      check();
    }
    close();
  }

 private:
  uint64_t below(uint64_t bound) { return random_() % bound; }
  bool one_in(uint64_t n) { return below(n) == 0; }
  void said(const char *what, gmm_result result) {
    said_ = std::string(what) + " " + std::to_string(result) + (result < 0 ? std::string(": ") + last_message() : "");
  }

  void open() {
    gmm_context_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.backend = backend_;
    desc.flags = GMM_CONTEXT_NO_LEAK_REPORT;
    desc.host_devices = 2;
    desc.host_allocator = {allocate_on_host, deallocate_on_host, nullptr};
    desc.host_memory = (one_in(3) ? 192 : 2048) * kMiB;
    desc.decommit_after_ms = GMM_DECOMMIT_NEVER;
    if (driver_.live != nullptr && backend_ == GMM_BACKEND_CUDA) driver_.live(&at_start_);
    ASSERT_EQ(gmm_context_create(&desc, &context_), GMM_OK) << last_message();
    failing_ = std::make_unique<FailingBackend>(context_->core().backend);
    context_->core().backend = failing_.get();
    if (one_in(3)) {
      ASSERT_EQ(gmm_context_set_decommit(context_, 1 + below(8)), GMM_OK);
    }
    for (int i = 0; i < kTags; ++i) {
      gmm_tag_desc tag = {};
      tag.struct_size = sizeof tag;
      tag.contents = i == 1   ? GMM_CONTENTS_HOST
                     : i == 2 ? GMM_CONTENTS_FILE
                     : i == 3 ? GMM_CONTENTS_HOST
                              : GMM_CONTENTS_DROP;
      tag.flags = i == 3 ? GMM_TAG_PAGEABLE : 0;
      if (i == 0)
        tags_[i] = GMM_TAG_DEFAULT;
      else
        ASSERT_EQ(gmm_tag_create(context_, ("tag " + std::to_string(i)).c_str(), &tag, &tags_[i]), GMM_OK);
      contents_[i] = tag.contents;
    }
    gmm_backup_desc backup = {};
    backup.struct_size = sizeof backup;
    backup.flags = static_cast<uint32_t>(below(8));
    backup.arena_limit = one_in(2) ? 0 : 32 * kMiB;
    backup.pageable_limit = one_in(2) ? 0 : 24 * kMiB;
    EXPECT_EQ(gmm_backup_configure(context_, &backup), GMM_OK) << last_message();
    const uint64_t stream_count = one_in(5) ? 70 : 1 + below(4);
    for (uint64_t i = 0; i < stream_count; ++i) new_stream(static_cast<int>(stream_count == 70 ? 0 : below(2)));
    if (stream_count == 70)
      for (const Stream &stream : streams_) {
        Block block;
        if (alloc_on(&block, Kind::kVmm, 0, 1, stream.stream, kPage, 0) == GMM_OK)
          gmm_free(context_, block.at, stream.stream);
      }
  }

  struct Stream {
    gmm_stream stream;
    int device;
    uint32_t graph = 0;  // that it is being captured into
  };
  void new_stream(int device) {
    gmm_stream_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.device = device;
    gmm_stream stream = nullptr;
    if (gmm_stream_create(context_, &desc, &stream) == GMM_OK) streams_.push_back(Stream{stream, device});
  }

  // --- Contents. They are written and read by the stream that owns the block --------------------------------------
  struct Job {
    char *at;
    uint64_t size, mark;
    bool write;
    int sleep_us;
  };
  static void do_job(void *user) {
    std::unique_ptr<Job> job(static_cast<Job *>(user));
    if (job->sleep_us != 0) usleep(static_cast<unsigned>(job->sleep_us));
    for (uint64_t i = 0; i < job->size; i += kPage) {
      const uint64_t end = std::min(i + kPage, job->size);
      for (uint64_t *at :
           {reinterpret_cast<uint64_t *>(job->at + i), reinterpret_cast<uint64_t *>(job->at + end - 8)}) {
        if (job->write)
          *at = job->mark + i;
        else if (*at != job->mark + i)
          ADD_FAILURE() << static_cast<void *>(at) << " at " << i << " of " << job->size << " at "
                        << static_cast<void *>(job->at) << " holds " << *at << ", not " << job->mark + i;
        if (end - i <= 8) break;
      }
    }
  }
  // False: the stream did not take it.
  bool queue(const Block &block, bool write, gmm_stream stream, int sleep_us) {
    if (is_captured(stream)) return false;
    if (block.size < 8) return true;
    Job *job = new Job{block.at, block.size & ~uint64_t{7}, block.mark, write, sleep_us};
    if (real().stream_call(Device{device_of(stream, block)}, stream, do_job, job).ok()) return true;
    delete job;
    return false;
  }
  bool is_captured(gmm_stream stream) const {
    for (const Stream &each : streams_)
      if (each.stream == stream && each.graph != 0) return true;
    return false;
  }
  int device_of(gmm_stream stream, const Block &block) const {
    for (const Stream &each : streams_)
      if (each.stream == stream) return each.device;
    return block.device;
  }
  void nothing_fails() {
    failing_->refuse(0);
    host_refuses_at = 0;
    if (driver_.fail != nullptr) driver_.fail(nullptr, 0, 0);
  }
  void something_fails() {
    static constexpr const char *kCalls[] = {
        "map",     "unmap",     "create",       "set_access",  "copy",
        "fill",    "reserve",   "event_record", "synchronize", "stream_query",
        "release", "unreserve", "populate",     "find_zeros",  "stream_synchronize"};
    nothing_fails();
    switch (below(4)) {
      case 0:
        host_refuses_at = 1 + static_cast<int64_t>(below(12));
        break;
      case 1:
        if (backend_ == GMM_BACKEND_CUDA) {
          driver_.fail(nullptr, 1 + below(20), one_in(2) ? 2 : 999);
          break;
        }
        [[fallthrough]];
      default:
        failing_->refuse(1 + below(8), one_in(2) ? nullptr : kCalls[below(std::size(kCalls))], one_in(4));
    }
  }
  // The test's own calls do not fail.
  class Quiet {
   public:
    explicit Quiet(History &of) { of.nothing_fails(); }
  };
  Backend &real() { return *failing_; }

  gmm_state state_of(const Block &block) {
    gmm_pointer_info info = {};
    info.struct_size = sizeof info;
    EXPECT_EQ(gmm_query(context_, block.at, &info), GMM_OK) << last_message();
    if (!testing::Test::HasFailure()) {
      EXPECT_EQ(info.base, block.at);
      EXPECT_EQ(info.size, block.size);
    }
    return info.state;
  }
  void write(Block *block, int sleep_us = 0) {
    block->mark = next_mark_ += 1000000007;
    block->known = queue(*block, true, block->stream, sleep_us);
  }
  void verify(const Block &block, int sleep_us = 0) {
    if (block.known) queue(block, false, block.stream, sleep_us);
  }

  // --- Steps -------------------------------------------------------------------------------------------------------
  gmm_result alloc_on(Block *block, Kind kind, int device, int tag, gmm_stream stream, uint64_t size, uint32_t flags) {
    gmm_alloc_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.kind = static_cast<gmm_kind>(kind);
    desc.device = device;
    desc.tag = tags_[tag];
    desc.stream = stream;
    desc.flags = flags;
    desc.alignment = one_in(4) ? uint64_t{1} << below(22) : 0;
    void *at = nullptr;
    const gmm_result result =
        one_in(6) ? gmm_try_alloc(context_, size, &desc, &at) : gmm_alloc(context_, size, &desc, &at);
    if (result == GMM_OK && desc.alignment != 0) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % desc.alignment, 0u);
    }
    block->at = static_cast<char *>(at);
    block->size = size;
    block->kind = kind;
    block->device = device;
    block->tag = tag;
    block->stream = stream;
    return result;
  }
  uint64_t any_size() {
    switch (below(6)) {
      case 0:
        return 8 + below(4000);
      case 1:
        return 8 + below(200 << 10);
      case 2:
        return (129 + below(4000)) << 10;
      case 3:
        return (1 + below(40)) * kMiB;
      default:
        return (1 + below(12)) * kMiB;
    }
  }
  Stream &any_stream() { return streams_[below(streams_.size())]; }
  Block &any_block() { return blocks_[below(blocks_.size())]; }

  void do_alloc() {
    if (blocks_.size() > 60) return do_free();
    Block block;
    Stream &stream = any_stream();
    gmm_result result;
    const uint64_t size = any_size();
    const int heap = one_in(3) ? static_cast<int>(below(kHeaps)) : -1;
    if (heap >= 0 && heaps_[heap].heap == nullptr) make_heap_of_program(heap);
    if (heap >= 0 && heaps_[heap].heap != nullptr) {
      void *at = nullptr;
      const uint64_t alignment = one_in(4) ? uint64_t{1} << below(22) : 0;
      const gmm_stream on = heaps_[heap].device == stream.device ? stream.stream : GMM_STREAM_DEFAULT;
      result = one_in(6)
                   ? gmm_heap_try_alloc(heaps_[heap].heap, size, alignment, 0, on, &at)
                   : gmm_heap_alloc(heaps_[heap].heap, size, alignment, one_in(8) ? GMM_ALLOC_DEDICATED : 0, on, &at);
      block =
          Block{static_cast<char *>(at), size, 0, heaps_[heap].kind, heaps_[heap].device, heaps_[heap].tag, heap, on};
    } else {
      const Kind kind = one_in(5) ? static_cast<Kind>(1 + below(4)) : Kind::kVmm;
      const uint32_t flags = one_in(8) ? GMM_ALLOC_DEDICATED : one_in(8) && kind == Kind::kVmm ? GMM_ALLOC_COMM : 0;
      result = alloc_on(&block, kind, stream.device, static_cast<int>(below(kTags)), stream.stream, size, flags);
    }
    said("alloc", result);
    if (result != GMM_OK) return;
    for (const Stream &each : streams_)
      if (each.stream == block.stream) block.graph = each.graph;
    if (block.graph == 0)
      write(&block, one_in(4) ? 1000 : 0);
    else
      block.known = false;
    blocks_.push_back(block);
  }
  // Work of the block's stream is done before another stream frees it.
  void do_free() {
    if (blocks_.empty()) return;
    const uint64_t index = below(blocks_.size());
    Block block = blocks_[index];
    const bool active = state_of(block) == GMM_STATE_ACTIVE;
    gmm_stream on = block.stream;
    const Stream *reader = nullptr;
    if (active && block.graph == 0 && !is_captured(block.stream)) {
      verify(block, one_in(3) ? 2000 : 0);
      if (one_in(4)) {
        if (Stream &other = any_stream(); other.graph == 0) on = other.stream;
        Quiet quiet(*this);
        if (!real().stream_synchronize(Device{device_of(block.stream, block)}, block.stream).ok()) on = block.stream;
      } else if (one_in(3) && block.known) {
        // A second stream reads, and the first one frees.
        Stream &other = any_stream();
        if (other.graph == 0) {
          Quiet quiet(*this);
          real().stream_synchronize(Device{device_of(block.stream, block)}, block.stream).ignore();
          if (gmm_record_use(context_, block.at, other.stream) == GMM_OK) {
            reader = &other;
            queue(block, false, other.stream, 2000);
          }
        }
      }
    }
    const gmm_result result = one_in(6) ? gmm_try_free(context_, block.at, on) : gmm_free(context_, block.at, on);
    said("free", result);
    if (result < 0) {
      gmm_pointer_info info = {};
      info.struct_size = sizeof info;
      EXPECT_EQ(gmm_query(context_, block.at, &info), GMM_OK);
      Quiet quiet(*this);
      if (reader != nullptr) real().stream_synchronize(Device{reader->device}, reader->stream).ignore();
      return;
    }
    blocks_[index] = blocks_.back();
    blocks_.pop_back();
  }
  void make_heap_of_program(int index) {
    Mine &mine = heaps_[index];
    mine.kind = one_in(4) ? static_cast<Kind>(1 + below(4)) : Kind::kVmm;
    mine.device = static_cast<int>(below(2));
    mine.tag = static_cast<int>(below(kTags));
    gmm_heap_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.kind = static_cast<gmm_kind>(mine.kind);
    desc.device = mine.device;
    desc.tag = tags_[mine.tag];
    desc.minimum_extent = one_in(2) ? 0 : (1 + below(40)) * kMiB;
    desc.limit = one_in(3) ? (16 + below(100)) * kMiB : 0;
    if (mine.kind != Kind::kDevice && one_in(3)) desc.peer_devices = 3;
    if (mine.kind == Kind::kVmm && one_in(3)) desc.flags = GMM_HEAP_EXPORTABLE;
    const gmm_result result = gmm_heap_create(context_, &desc, &mine.heap);
    said("heap", result);
    if (result < 0) mine.heap = nullptr;
  }
  void do_heap() {
    const int index = static_cast<int>(below(kHeaps));
    Mine &mine = heaps_[index];
    if (mine.heap == nullptr) return make_heap_of_program(index);
    if (one_in(2)) return said("reserve", gmm_heap_reserve(mine.heap, below(96) * kMiB));
    uint64_t live = 0;
    for (const Block &block : blocks_) live += block.heap == index;
    const gmm_result result = gmm_heap_destroy(mine.heap);
    said("end heap", result);
    if (result == GMM_OK) {
      EXPECT_EQ(live, 0u);
      mine.heap = nullptr;
    }
  }

  // What a drop took is unknown: of what was active before, and is not now or was paused for a moment.
  bool keeps(int tag, uint32_t flags) const {
    if ((flags & GMM_PAUSE_DROP) != 0) return false;
    return (flags & (GMM_PAUSE_KEEP_HOST | GMM_PAUSE_KEEP_FILE)) != 0 || contents_[tag] != GMM_CONTENTS_DROP;
  }
  void some_tags(std::vector<gmm_tag> *list, bool *in) {
    const bool all = one_in(3);
    for (int i = 0; i < kTags; ++i) {
      in[i] = all || one_in(3);
      if (in[i] && !all) list->push_back(tags_[i]);
    }
    if (!all && list->empty()) {
      in[1] = true;
      list->push_back(tags_[1]);
    }
  }
  static int32_t cancel(void *user, uint64_t, uint64_t) { return --*static_cast<int *>(user) == 0 ? 1 : 0; }
  // With a ticket, which may be cancelled, or at once. `meanwhile` runs while the ticket's operation does.
  template <typename Fn>
  gmm_result carry_out(decltype(&gmm_pause_async) begin, decltype(&gmm_pause) at_once, const gmm_pause_desc &desc,
                       Fn meanwhile) {
    uint64_t bytes = 0;
    if (!one_in(3)) return at_once(context_, &desc, &bytes);
    gmm_ticket *ticket = nullptr;
    gmm_result result = begin(context_, &desc, &ticket);
    if (result != GMM_OK) return result;
    if (one_in(3)) gmm_ticket_cancel(ticket);
    meanwhile();
    result = gmm_ticket_wait(ticket, GMM_FOREVER, &bytes);
    gmm_ticket_destroy(ticket);
    return result;
  }
  void do_pause() {
    std::vector<gmm_tag> list;
    bool in[kTags];
    some_tags(&list, in);
    gmm_pause_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.tags = list.data();
    desc.tag_count = static_cast<uint32_t>(list.size());
    desc.flags = one_in(6) ? 1u << (1 + below(3)) : 0;
    if (one_in(4)) desc.flags |= GMM_PAUSE_FORCE;
    int until = one_in(4) ? 1 + static_cast<int>(below(4)) : 0;
    if (until != 0) desc.progress = {cancel, &until};
    std::vector<bool> was_active;
    for (Block &block : blocks_)
      was_active.push_back(block.kind == Kind::kVmm && in[block.tag] && state_of(block) != GMM_STATE_PAUSED);
    const gmm_result result = carry_out(gmm_pause_async, gmm_pause, desc, [] {});
    said("pause", result);
    if (result < 0) return;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (!was_active[i]) continue;
      if (!keeps(blocks_[i].tag, desc.flags)) blocks_[i].known = false;
      if (blocks_[i].graph == 0) {
        EXPECT_EQ(state_of(blocks_[i]), GMM_STATE_PAUSED);
      }
    }
  }
  void do_resume() {
    if (one_in(3) && !blocks_.empty()) {
      const Block &block = any_block();
      const uint64_t from = below(block.size);
      uint64_t bytes = 0;
      return said("resume range", gmm_resume_range(context_, block.at + from, 1 + below(block.size - from), &bytes));
    }
    std::vector<gmm_tag> list;
    bool in[kTags];
    some_tags(&list, in);
    gmm_pause_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.tags = list.data();
    desc.tag_count = static_cast<uint32_t>(list.size());
    desc.flags = one_in(4) ? GMM_RESUME_RETAIN : 0;
    int until = one_in(4) ? 1 + static_cast<int>(below(4)) : 0;
    if (until != 0) desc.progress = {cancel, &until};
    const gmm_result result = carry_out(gmm_resume_async, gmm_resume, desc, [&] {
      if (!one_in(3) || blocks_.empty()) return;
      const Block &block = any_block();
      (void)gmm_resume_wait(context_, block.at, block.size, below(3));
    });
    said("resume", result);
    if (result < 0) return;
    for (const Block &block : blocks_)
      if (in[block.tag] && block.kind == Kind::kVmm) {
        EXPECT_EQ(state_of(block), GMM_STATE_ACTIVE);
      }
  }
  // The kept contents of a paused block are those that it had. Now and then they are discarded.
  void do_backup() {
    const Block *found = nullptr;
    for (const Block &each : blocks_)
      if (each.graph == 0 && each.size >= 8 && state_of(each) == GMM_STATE_PAUSED && (found == nullptr || one_in(3)))
        found = &each;
    if (found == nullptr) return;
    const Block &block = *found;
    if (one_in(6)) {
      gmm_pause_desc desc = {};
      desc.struct_size = sizeof desc;
      desc.tags = &tags_[block.tag];
      desc.tag_count = 1;
      std::vector<gmm_state> before;
      for (const Block &each : blocks_) before.push_back(state_of(each));
      const gmm_result result = gmm_backup_discard(context_, &desc, nullptr);
      for (size_t i = 0; i < blocks_.size() && result == GMM_OK; ++i)
        if (blocks_[i].tag == block.tag && before[i] != GMM_STATE_ACTIVE) blocks_[i].known = false;
      return said("discard", result);
    }
    const uint64_t page = below(block.size / kPage + 1) * kPage;
    uint64_t word = 0;
    if (page + sizeof word > block.size) return;
    const gmm_result result = gmm_backup_read(context_, block.at + page, sizeof word, &word);
    said("backup read", result);
    if (result == GMM_OK && block.known) {
      EXPECT_EQ(word, block.mark + page);
    }
  }
  gmm_scope_desc any_scope() {
    gmm_scope_desc scope = {};
    scope.struct_size = sizeof scope;
    if (one_in(3)) {
      scope.flags |= GMM_SCOPE_TAG;
      scope.tag = tags_[below(kTags)];
    }
    if (one_in(4)) {
      scope.flags |= GMM_SCOPE_DEVICE;
      scope.device = static_cast<gmm_device>(below(2));
    }
    return scope;
  }
  void synchronize() {
    Quiet quiet(*this);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(real().synchronize(Device{i}).ok());
  }
  void do_compact() {
    const gmm_scope_desc scope = any_scope();
    gmm_compact_desc desc = {};
    desc.struct_size = sizeof desc;
    if (one_in(2)) {
      desc.flags = GMM_COMPACT_LIVE;
    }
    desc.max_bytes = one_in(3) ? below(64) * kMiB + 1 : 0;
    desc.max_us = one_in(3) ? 1 + below(3000) : 0;
    gmm_compact_info info = {};
    info.struct_size = sizeof info;
    const gmm_result result = gmm_compact(context_, one_in(3) ? nullptr : &scope, &desc, &info);
    said(desc.flags != 0 ? "compact live" : "compact", result);
  }
  void do_move() {
    if (blocks_.empty()) return;
    Block &block = any_block();
    gmm_move_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.stream = block.stream;
    const gmm_device places[] = {block.device, GMM_DEVICE_HOST};
    said("move", gmm_move(context_, block.at, places[below(2)], &desc));
  }
  void do_share() {
    if (!imports_.empty() && one_in(2)) {
      const uint64_t index = below(imports_.size());
      const gmm_result result = gmm_ipc_close(context_, imports_[index]);
      said("close", result);
      if (result < 0) return;
      imports_[index] = imports_.back();
      imports_.pop_back();
      return;
    }
    if (blocks_.empty()) return;
    const Block &block = any_block();
    gmm_ipc_handle handle;
    gmm_result result = gmm_ipc_export(context_, block.at, &handle);
    said("export", result);
    if (result < 0 || one_in(3)) return;
    void *at = nullptr;
    result = gmm_ipc_import(context_, &handle, nullptr, &at);
    said("import", result);
    if (result < 0) return;
    EXPECT_EQ(at, block.at);
    imports_.push_back(at);
  }
  void do_streams() {
    if (streams_.size() > 1 && one_in(2)) {
      const uint64_t index = below(streams_.size());
      const Stream ended = streams_[index];
      if (ended.graph != 0) return;
      {
        Quiet quiet(*this);
        real().stream_synchronize(Device{ended.device}, ended.stream).ignore();
      }
      const gmm_result result = gmm_stream_destroy(context_, ended.stream);
      said("end stream", result);
      if (result < 0) return;
      streams_[index] = streams_.back();
      streams_.pop_back();
      for (Block &block : blocks_)
        if (block.stream == ended.stream) block.stream = GMM_STREAM_DEFAULT;
      return;
    }
    if (streams_.size() < 80) new_stream(static_cast<int>(below(2)));
    said("stream", 0);
  }
  void do_thread() {
    const int device = static_cast<int>(below(2));
    std::thread([&] {
      gmm_alloc_desc desc = {};
      desc.struct_size = sizeof desc;
      desc.kind = GMM_KIND_VMM;
      desc.device = device;
      desc.tag = tags_[1];
      desc.stream = GMM_STREAM_PER_THREAD;
      for (int i = 0; i < 3; ++i) {
        void *at = nullptr;
        const uint64_t size = (1 + static_cast<uint64_t>(i) * 5) << 19;
        if (gmm_alloc(context_, size, &desc, &at) != GMM_OK) continue;
        Block block;
        block.at = static_cast<char *>(at);
        block.size = size;
        block.mark = 77 + static_cast<uint64_t>(i);
        block.device = device;
        if (queue(block, true, GMM_STREAM_PER_THREAD, 500)) queue(block, false, GMM_STREAM_PER_THREAD, 500);
        while (gmm_free(context_, at, GMM_STREAM_PER_THREAD) < 0) nothing_fails();
      }
    }).join();
    said("thread", 0);
  }
  void do_capture() {
    if (backend_ != GMM_BACKEND_CUDA || driver_.begin_capture == nullptr) return;
    nothing_fails();
    Stream &stream = any_stream();
    if (stream.graph == 0 && captured_ == 0) {
      void *context = nullptr;
      EXPECT_EQ(driver_.context_of(stream.stream, &context), 0);
      driver_.set_current(context);
      const int code = driver_.begin_capture(stream.stream, 2);
      driver_.set_current(nullptr);
      if (code != 0) return said("begin capture", -code);
      captured_ = stream.graph = ++graphs_made_;
      said("begin capture", 0);
      return;
    }
    for (Stream &each : streams_)
      if (each.graph != 0) end_capture(each);
    if (graphs_.size() > 1 || one_in(2)) end_graph();
  }
  void end_capture(Stream &stream) {
    void *graph = nullptr, *context = nullptr;
    EXPECT_EQ(driver_.context_of(stream.stream, &context), 0);
    driver_.set_current(context);
    said("end capture", -driver_.end_capture(stream.stream, &graph));
    driver_.set_current(nullptr);
    stream.graph = captured_ = 0;
    if (graph != nullptr) graphs_.push_back(graph);
  }
  void end_graph() {
    if (graphs_.empty()) return;
    EXPECT_EQ(driver_.destroy_graph(graphs_.back()), 0);
    graphs_.pop_back();
  }

  void one_step() {
    said_ = "nothing";
    switch (below(32)) {
      case 0:
      case 1:
      case 2:
        do_pause();
        break;
      case 3:
      case 4:
      case 5:
      case 6:
        do_resume();
        break;
      case 7: {
        const gmm_scope_desc scope = any_scope();
        uint64_t bytes = 0;
        said("trim", gmm_trim(context_, one_in(2) ? nullptr : &scope, &bytes));
        break;
      }
      case 8:
      case 9:
        do_compact();
        break;
      case 10:
        do_move();
        break;
      case 11:
        do_share();
        break;
      case 12:
        do_streams();
        break;
      case 13:
        do_heap();
        break;
      case 14: {
        gmm_scope_desc scope = any_scope();
        said("limit", gmm_limit_set(context_, &scope, one_in(2) ? GMM_NO_LIMIT : below(300) * kMiB));
        break;
      }
      case 15:
        if (deferred_ != 0 && one_in(2)) {
          const gmm_result result = gmm_defer_end(context_);
          said("defer end", result);
          --deferred_;
        } else if (deferred_ == 0 && one_in(2)) {
          said("defer", gmm_defer_begin(context_));
          ++deferred_;
        }
        break;
      case 16:
        something_fails();
        said("fail", 0);
        break;
      case 17:
        nothing_fails();
        break;
      case 18:
        do_thread();
        break;
      case 19:
        do_capture();
        break;
      case 20:
        if (!blocks_.empty()) {
          Block &block = any_block();
          if (block.graph == 0 && state_of(block) == GMM_STATE_ACTIVE) {
            verify(block);
            write(&block);
          }
        }
        break;
      case 21:
        usleep(3000);
        break;
      case 22:
        do_backup();
        break;
      default:
        if (below(5) < 3)
          do_alloc();
        else
          do_free();
    }
  }

  // What the heap calls mapped can be read.
  void check_memory(Heap &heap) {
    LockGuard guard(heap.mutex);
    for (Region *region = heap.regions().front(); region != nullptr; region = heap.regions().next(region))
      for (Extent *extent = region->extents.front(); extent != nullptr; extent = region->extents.next(extent)) {
        if (!extent->mapped) continue;
        char byte;
        for (const uintptr_t at : {base_of(*extent), end_of(*extent) - 1}) {
          const iovec here{&byte, 1}, there{reinterpret_cast<void *>(at), 1};
          ASSERT_EQ(process_vm_readv(getpid(), &here, 1, &there, 1, 0), 1)
              << reinterpret_cast<void *>(at) << " of an extent at " << reinterpret_cast<void *>(base_of(*extent));
        }
      }
  }

  void check() {
    context_->heaps().for_each_even_ending([&](Heap &heap) {
      if (testing::Test::HasFailure()) return;
      uint64_t of_captures = 0;
      for (Heap *each : context_->captures.heaps)
        if (each->capture.parent == &heap) of_captures += each->own_quota().held();
      check_heap(context_->core(), heap, of_captures);
      check_memory(heap);
    });
    gmm_stats_info stats = {};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(gmm_stats_query(context_, nullptr, &stats), GMM_OK);
    uint64_t bytes = 0;
    for (const Block &block : blocks_) bytes += block.size;
    EXPECT_EQ(stats.live_bytes, bytes) << said_;
    EXPECT_EQ(stats.live_blocks, blocks_.size()) << said_;
    if (testing::Test::HasFailure() || !one_in(10)) return;
    for (const Block &block : blocks_)
      if (block.known && block.graph == 0 && state_of(block) == GMM_STATE_ACTIVE) verify(block);
  }

  void close() {
    if (context_ == nullptr) return;
    nothing_fails();
    if (captured_ != 0)
      for (Stream &each : streams_)
        if (each.graph != 0) {
          end_capture(each);
        }
    while (!graphs_.empty()) end_graph();
    if (!testing::Test::HasFailure()) {
      synchronize();
      gmm_scope_desc scope = {};
      scope.struct_size = sizeof scope;
      EXPECT_EQ(gmm_limit_set(context_, &scope, GMM_NO_LIMIT), GMM_OK);
      for (void *at : imports_) EXPECT_EQ(gmm_ipc_close(context_, at), GMM_OK) << last_message();
      const gmm_result resumed = gmm_resume(context_, nullptr, nullptr);
      if (resumed >= 0)
        for (const Block &block : blocks_) {
          EXPECT_EQ(state_of(block), GMM_STATE_ACTIVE);
          if (block.graph == 0) verify(block);
        }
      synchronize();
      for (const Block &block : blocks_)
        EXPECT_EQ(gmm_free(context_, block.at, block.stream), GMM_OK) << last_message();
      blocks_.clear();
      while (deferred_-- > 0) EXPECT_GE(gmm_defer_end(context_), 0) << last_message();
      for (const Stream &stream : streams_) EXPECT_EQ(gmm_stream_destroy(context_, stream.stream), GMM_OK);
      for (Mine &mine : heaps_)
        if (mine.heap != nullptr) {
          EXPECT_EQ(gmm_heap_destroy(mine.heap), GMM_OK) << last_message();
        }
      gmm_stats_info stats = {};
      stats.struct_size = sizeof stats;
      // The driver says that a graph is gone at some moment after it went.
      for (int i = 0; i < 5000 && (i == 0 || stats.reserved_bytes != 0); ++i) {
        if (i != 0) usleep(1000);
        EXPECT_GE(gmm_trim(context_, nullptr, nullptr), 0) << last_message();
        EXPECT_EQ(gmm_stats_query(context_, nullptr, &stats), GMM_OK);
      }
      EXPECT_EQ(stats.live_blocks, 0u);
      EXPECT_EQ(stats.reserved_bytes, 0u);
      EXPECT_EQ(stats.paused_bytes, 0u);
      EXPECT_EQ(stats.extents, 0u);
      for (int i = 0; i < 2 && backend_ == GMM_BACKEND_HOST; ++i) {
        gmm_device_info info = {};
        info.struct_size = sizeof info;
        EXPECT_EQ(gmm_device_query(context_, i, &info), GMM_OK);
        EXPECT_EQ(info.free_memory, info.total_memory);
      }
    } else {
      return;  // the rest would only hide what failed
    }
    EXPECT_EQ(gmm_context_release(context_), GMM_OK);
    context_ = nullptr;
    if (backend_ != GMM_BACKEND_CUDA || driver_.live == nullptr) {
      return;
    }
    fake_cuda_live_t now;
    driver_.live(&now);
    for (int i = 0; i < 5000 && now.user_objects != at_start_.user_objects; ++i, driver_.live(&now)) usleep(1000);
    EXPECT_EQ(now.allocations, at_start_.allocations);
    EXPECT_EQ(now.reservations, at_start_.reservations);
    EXPECT_EQ(now.handles, at_start_.handles);
    EXPECT_EQ(now.mappings, at_start_.mappings);
    EXPECT_EQ(now.registrations, at_start_.registrations);
    EXPECT_EQ(now.streams, at_start_.streams);
    EXPECT_EQ(now.events, at_start_.events);
    EXPECT_EQ(now.imports, at_start_.imports);
    EXPECT_EQ(now.context_references, at_start_.context_references);
    EXPECT_EQ(now.device_bytes, at_start_.device_bytes);
    EXPECT_EQ(now.user_objects, at_start_.user_objects);
  }

  struct Mine {
    gmm_heap *heap = nullptr;
    Kind kind = Kind::kVmm;
    int device = 0, tag = 0;
  };
  std::mt19937_64 random_;
  const gmm_backend backend_;
  Driver driver_;
  fake_cuda_live_t at_start_ = {};
  gmm_context *context_ = nullptr;
  std::unique_ptr<FailingBackend> failing_;
  gmm_tag tags_[kTags] = {};
  gmm_contents contents_[kTags] = {};
  std::vector<Stream> streams_;
  std::vector<Block> blocks_;
  std::vector<void *> imports_;
  std::vector<void *> graphs_;
  Mine heaps_[kHeaps];
  uint64_t next_mark_ = 1;
  uint32_t captured_ = 0, graphs_made_ = 0;
  int deferred_ = 0;
  std::string said_;
  const bool verbose_ = std::getenv("HISTORY_LOG") != nullptr;
};

bool is_there(const char *entry) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  return library != nullptr && dlsym(library, entry) != nullptr;
}

// The driver records no event of one device on a stream of another. What such a stream uses is waited for all the same.
TEST(Streams, OfAnotherDeviceKeepWhatTheyUse) {
  if (!is_there("fake_cuda_live")) GTEST_SKIP() << "it needs the fake driver";
  struct Work {
    std::atomic<bool> is_over{false};
    static void run(void *self) {
      usleep(50000);
      static_cast<Work *>(self)->is_over = true;
    }
  };
  gmm_context_desc context_desc = {};
  context_desc.struct_size = sizeof context_desc;
  context_desc.backend = GMM_BACKEND_CUDA;
  gmm_context *context = nullptr;
  ASSERT_EQ(gmm_context_create(&context_desc, &context), GMM_OK) << last_message();
  gmm_stream_desc stream_desc = {};
  stream_desc.struct_size = sizeof stream_desc;
  stream_desc.device = 1;
  gmm_stream other = nullptr;
  ASSERT_EQ(gmm_stream_create(context, &stream_desc, &other), GMM_OK) << last_message();
  gmm_tag tag = 0;
  ASSERT_EQ(gmm_tag_create(context, "dropped", nullptr, &tag), GMM_OK);
  for (const char *what : {"trim", "pause", "destroy", "compact"})
    for (const bool is_free_there : {false, true}) {
      SCOPED_TRACE(std::string(what) + (is_free_there ? ", freed on it" : ", recorded"));
      gmm_heap_desc heap_desc = {};
      heap_desc.struct_size = sizeof heap_desc;
      heap_desc.kind = GMM_KIND_VMM;
      heap_desc.tag = tag;
      heap_desc.peer_devices = 2;
      heap_desc.minimum_extent = 16 * kMiB;
      gmm_heap *heap = nullptr;
      ASSERT_EQ(gmm_heap_create(context, &heap_desc, &heap), GMM_OK) << last_message();
      void *block = nullptr, *neighbour = nullptr;
      ASSERT_EQ(gmm_heap_alloc(heap, 8 * kMiB, 0, 0, is_free_there ? other : nullptr, &block), GMM_OK);
      ASSERT_EQ(gmm_heap_alloc(heap, kMiB, 0, 0, nullptr, &neighbour), GMM_OK);
      Work work;
      ASSERT_EQ(gmm_stream_call(context, other, Work::run, &work), GMM_OK) << last_message();
      if (!is_free_there) {
        ASSERT_EQ(gmm_record_use(context, block, other), GMM_OK);
      }
      ASSERT_EQ(gmm_free(context, block, is_free_there ? other : nullptr), GMM_OK) << last_message();
      if (what == std::string("trim") || what == std::string("destroy")) {
        ASSERT_EQ(gmm_free(context, std::exchange(neighbour, nullptr), nullptr), GMM_OK);
      }
      EXPECT_FALSE(work.is_over) << "a free waits for nothing";
      gmm_compact_desc live = {};
      live.struct_size = sizeof live;
      live.flags = GMM_COMPACT_LIVE;
      live.heap = heap;
      gmm_compact_info info = {};
      info.struct_size = sizeof info;
      gmm_pause_desc pause = {};
      pause.struct_size = sizeof pause;
      pause.tags = &tag;
      pause.tag_count = 1;
      if (what == std::string("trim")) {
        EXPECT_GE(gmm_trim(context, nullptr, nullptr), 0) << last_message();
      }
      if (what == std::string("pause")) {
        EXPECT_EQ(gmm_pause(context, &pause, nullptr), GMM_OK) << last_message();
      }
      if (what == std::string("compact")) {
        EXPECT_GE(gmm_compact(context, nullptr, &live, &info), 0) << last_message();
      }
      if (what == std::string("destroy")) {
        EXPECT_EQ(gmm_heap_destroy(heap), GMM_OK) << last_message();
        heap = nullptr;
      }
      EXPECT_TRUE(work.is_over) << "the memory went back while a stream used it";
      EXPECT_EQ(gmm_stream_synchronize(context, other), GMM_OK);
      EXPECT_EQ(gmm_free(context, neighbour, nullptr), GMM_OK);
      if (heap != nullptr) {
        EXPECT_EQ(gmm_heap_destroy(heap), GMM_OK) << last_message();
      }
    }
  EXPECT_EQ(gmm_stream_destroy(context, other), GMM_OK);
  EXPECT_EQ(gmm_context_release(context), GMM_OK);
}

TEST(Compaction, NeedsNoHostMemory) {
  for (int64_t k = 1; k <= 12; ++k) {
    SCOPED_TRACE(k);
    gmm_context_desc context_desc = {};
    context_desc.struct_size = sizeof context_desc;
    context_desc.backend = GMM_BACKEND_HOST;
    context_desc.host_allocator = {allocate_on_host, deallocate_on_host, nullptr};
    gmm_context *context = nullptr;
    ASSERT_EQ(gmm_context_create(&context_desc, &context), GMM_OK) << last_message();
    gmm_heap_desc heap_desc = {};
    heap_desc.struct_size = sizeof heap_desc;
    heap_desc.kind = GMM_KIND_VMM;
    gmm_heap *heap = nullptr;
    ASSERT_EQ(gmm_heap_create(context, &heap_desc, &heap), GMM_OK) << last_message();
    void *blocks[5];
    for (uint64_t i = 0; i < 5; ++i)  // an extent each
      ASSERT_EQ(gmm_heap_alloc(heap, std::max(2 * kMiB, kMiB << i), 0, 0, nullptr, &blocks[i]), GMM_OK);
    for (int i = 0; i < 5; i += 2) ASSERT_EQ(gmm_free(context, blocks[i], nullptr), GMM_OK);
    ASSERT_EQ(gmm_heap_reserve(heap, 32 * kMiB), GMM_OK) << last_message();
    gmm_compact_desc desc = {};
    desc.struct_size = sizeof desc;
    gmm_compact_info info = {};
    info.struct_size = sizeof info;
    host_refuses_at = k;
    const gmm_result result = gmm_compact(context, nullptr, &desc, &info);
    host_refuses_at = 0;
    EXPECT_TRUE(result >= 0 || result == GMM_ERROR_OUT_OF_HOST_MEMORY) << last_message();
    for (int i = 1; i < 5; i += 2) EXPECT_EQ(gmm_free(context, blocks[i], nullptr), GMM_OK);
    EXPECT_EQ(gmm_heap_destroy(heap), GMM_OK) << last_message();
    EXPECT_EQ(gmm_context_release(context), GMM_OK);
  }
}

void run_seeds(gmm_backend backend) {
  const char *seeds = std::getenv("HISTORY_SEEDS"), *first = std::getenv("HISTORY_FIRST_SEED");
  const uint64_t last_seed = seeds == nullptr ? 5 : std::strtoull(seeds, nullptr, 10);
  for (uint64_t seed = first == nullptr ? 1 : std::strtoull(first, nullptr, 10);
       seed <= last_seed && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    History(seed, backend).run();
  }
}

TEST(Histories, OfAContextOnTheHost) { run_seeds(GMM_BACKEND_HOST); }

TEST(Histories, OfAContextOnTheFakeDriver) {
  if (!is_there("fake_cuda_live")) GTEST_SKIP() << "it needs the fake driver";
  run_seeds(GMM_BACKEND_CUDA);
}

}  // namespace
}  // namespace gmm::test
