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

#pragma GCC diagnostic ignored "-Wmissing-field-initializers"  // the other fields of a descriptor are 0

namespace gmm::test {
namespace {

constexpr int kTags = 5, kHeaps = 5, kSteps = 250;
constexpr uint64_t kPage = 2 * kMiB;

struct Block {
  char *at = nullptr;
  uint64_t size = 0, mark = 0;
  Kind kind = Kind::kVmm;
  int device = 0, tag = 0, heap = -1;  // the heap of the program, if any
  gmm_stream stream = nullptr;
  bool known = true;   // its contents
  uint32_t graph = 0;  // allocated in that capture
};
struct Stream {
  gmm_stream stream;
  int device;
  uint32_t graph = 0;  // that it is being captured into
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
    for (int step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step) + " " + said_);
      one_step();
      if (verbose_) fprintf(stderr, "%d %s\n", step, said_.c_str());
      check();
    }
    if (!testing::Test::HasFailure()) close();  // the rest would only hide what failed
  }

 private:
  uint64_t below(uint64_t bound) { return random_() % bound; }
  bool one_in(uint64_t n) { return below(n) == 0; }
  Stream &any_stream() { return streams_[below(streams_.size())]; }
  Block &any_block() { return blocks_[below(blocks_.size())]; }
  template <typename T>
  void remove_at(std::vector<T> *list, uint64_t index) {
    (*list)[index] = list->back();
    list->pop_back();
  }
  void said(const char *what, gmm_result result) {
    said_ = std::string(what) + " " + std::to_string(result) + (result < 0 ? std::string(": ") + last_message() : "");
  }

  void open() {
    gmm_context_desc desc{.struct_size = sizeof desc, .backend = backend_, .flags = GMM_CONTEXT_NO_LEAK_REPORT};
    desc.host_devices = 2;
    desc.host_allocator = {allocate_on_host, deallocate_on_host, nullptr};
    desc.host_memory = (one_in(3) ? 192 : 2048) * kMiB;
    desc.decommit_after_ms = GMM_DECOMMIT_NEVER;
    if (is_on_fake()) driver_.live(&at_start_);
    ASSERT_EQ(gmm_context_create(&desc, &context_), GMM_OK) << last_message();
    failing_ = std::make_unique<FailingBackend>(context_->core().backend);
    context_->core().backend = failing_.get();
    if (one_in(3)) {
      EXPECT_EQ(gmm_context_set_decommit(context_, 1 + below(8)), GMM_OK);
    }
    constexpr gmm_contents kContents[kTags] = {GMM_CONTENTS_DROP, GMM_CONTENTS_HOST, GMM_CONTENTS_FILE,
                                               GMM_CONTENTS_HOST, GMM_CONTENTS_DROP};
    for (int i = 0; i < kTags; ++i) {
      gmm_tag_desc tag{.struct_size = sizeof tag, .contents = kContents[i]};
      tag.flags = i == 3 ? GMM_TAG_PAGEABLE : 0;
      tags_[i] = GMM_TAG_DEFAULT;
      if (i != 0) {
        EXPECT_EQ(gmm_tag_create(context_, ("tag " + std::to_string(i)).c_str(), &tag, &tags_[i]), GMM_OK);
      }
      contents_[i] = tag.contents;
    }
    gmm_backup_desc backup{.struct_size = sizeof backup, .flags = static_cast<uint32_t>(below(8))};
    backup.arena_limit = one_in(2) ? 0 : 32 * kMiB;
    backup.pageable_limit = one_in(2) ? 0 : 24 * kMiB;
    EXPECT_EQ(gmm_backup_configure(context_, &backup), GMM_OK) << last_message();
    const bool are_many = one_in(5);  // more than a span has bits
    for (uint64_t i = are_many ? 70 : 1 + below(4); i != 0; --i) new_stream(are_many ? 0 : static_cast<int>(below(2)));
    for (const Stream &stream : streams_) {
      Block block;
      if (are_many && alloc_on(&block, Kind::kVmm, 0, 1, stream.stream, kPage, 0) == GMM_OK)
        gmm_free(context_, block.at, stream.stream);
    }
  }
  void new_stream(int device) {
    const gmm_stream_desc desc{.struct_size = sizeof desc, .device = device};
    gmm_stream stream = nullptr;
    if (gmm_stream_create(context_, &desc, &stream) == GMM_OK) streams_.push_back(Stream{stream, device});
  }
  bool is_on_fake() const { return backend_ == GMM_BACKEND_CUDA && driver_.live != nullptr; }

  // --- Failures ----------------------------------------------------------------------------------------------------
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
    const uint64_t who = below(4);
    if (who == 0)
      host_refuses_at = 1 + static_cast<int64_t>(below(12));
    else if (who == 1 && is_on_fake())
      driver_.fail(nullptr, 1 + below(20), one_in(2) ? 2 : 999);
    else
      failing_->refuse(1 + below(8), one_in(2) ? nullptr : kCalls[below(std::size(kCalls))], one_in(4));
    said("fail", 0);
  }
  // A wait of the test's own, which does not fail by order.
  bool finish(gmm_stream stream, int device) {
    nothing_fails();
    return failing_->stream_synchronize(Device{device}, stream).ok();
  }
  void finish_all() {
    nothing_fails();
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(failing_->synchronize(Device{i}).ok());
  }

  // --- Contents. They are written and read by the stream that owns the block ---------------------------------------
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
      for (char *word : {job->at + i, job->at + end - 8}) {
        uint64_t *at = reinterpret_cast<uint64_t *>(word);
        if (job->write)
          *at = job->mark + i;
        else if (*at != job->mark + i)
          ADD_FAILURE() << static_cast<void *>(at) << " at " << i << " of " << job->size << " at "
                        << static_cast<void *>(job->at) << " holds " << *at << ", not " << job->mark + i;
      }
    }
  }
  // False: the stream did not take it.
  bool queue(const Block &block, bool write, gmm_stream stream, int sleep_us) {
    if (find_stream(stream).graph != 0) return false;
    if (block.size < 8) return true;
    Job *job = new Job{block.at, block.size & ~uint64_t{7}, block.mark, write, sleep_us};
    if (failing_->stream_call(Device{device_of(stream, block)}, stream, do_job, job).ok()) return true;
    delete job;
    return false;
  }
  // A default stream has no device of its own: -1.
  Stream find_stream(gmm_stream stream) const {
    for (const Stream &each : streams_)
      if (each.stream == stream) return each;
    return Stream{stream, -1};
  }
  int device_of(gmm_stream stream, const Block &block) const {
    const int device = find_stream(stream).device;
    return device < 0 ? block.device : device;
  }
  gmm_state state_of(const Block &block) {
    gmm_pointer_info info{.struct_size = sizeof info};
    EXPECT_EQ(gmm_query(context_, block.at, &info), GMM_OK) << last_message();
    EXPECT_EQ(info.base, block.at);
    EXPECT_EQ(info.size, block.size);
    return info.state;
  }
  void write(Block *block, int sleep_us = 0) {
    block->mark = next_mark_ += 1000000007;
    block->known = queue(*block, true, block->stream, sleep_us);
  }
  void verify(const Block &block, int sleep_us = 0) {
    if (block.known && block.graph == 0) queue(block, false, block.stream, sleep_us);
  }
  void rewrite() {
    if (blocks_.empty()) return;
    Block &block = any_block();
    if (block.graph != 0 || state_of(block) != GMM_STATE_ACTIVE) return;
    verify(block);
    write(&block);
  }

  // --- Blocks and heaps --------------------------------------------------------------------------------------------
  uint64_t any_size() {
    constexpr uint64_t kUnits[] = {1, 1, 1024, kMiB, kMiB, kMiB}, kLeast[] = {8, 8, 129, 1, 1, 1},
                       kMost[] = {4000, 200 << 10, 4000, 40, 12, 12};
    const uint64_t which = below(6);
    return (kLeast[which] + below(kMost[which])) * kUnits[which];
  }
  uint64_t any_alignment() { return one_in(4) ? uint64_t{1} << below(22) : 0; }
  gmm_result alloc_on(Block *block, Kind kind, int device, int tag, gmm_stream stream, uint64_t size, uint32_t flags) {
    gmm_alloc_desc desc{.struct_size = sizeof desc, .kind = static_cast<gmm_kind>(kind), .device = device};
    desc.tag = tags_[tag];
    desc.stream = stream;
    desc.flags = flags;
    desc.alignment = any_alignment();
    void *at = nullptr;
    const gmm_result result = (one_in(6) ? gmm_try_alloc : gmm_alloc)(context_, size, &desc, &at);
    if (result == GMM_OK && desc.alignment != 0) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % desc.alignment, 0u);
    }
    *block = Block{static_cast<char *>(at), size, 0, kind, device, tag, -1, stream};
    return result;
  }
  void do_alloc() {
    if (blocks_.size() > 60) return do_free();
    Block block;
    Stream &stream = any_stream();
    gmm_result result;
    const uint64_t size = any_size();
    const int index = one_in(3) ? static_cast<int>(below(kHeaps)) : -1;
    if (index >= 0 && heaps_[index].heap == nullptr) make_heap_of_program(&heaps_[index]);
    if (index >= 0 && heaps_[index].heap != nullptr) {
      const Mine &mine = heaps_[index];
      void *at = nullptr;
      const gmm_stream on = mine.device == stream.device ? stream.stream : GMM_STREAM_DEFAULT;
      const uint64_t alignment = any_alignment();
      result = one_in(6) ? gmm_heap_try_alloc(mine.heap, size, alignment, 0, on, &at)
                         : gmm_heap_alloc(mine.heap, size, alignment, one_in(8) ? GMM_ALLOC_DEDICATED : 0, on, &at);
      block = Block{static_cast<char *>(at), size, 0, mine.kind, mine.device, mine.tag, index, on};
    } else {
      const Kind kind = one_in(5) ? static_cast<Kind>(1 + below(4)) : Kind::kVmm;
      const uint32_t flags = one_in(8) ? GMM_ALLOC_DEDICATED : one_in(8) && kind == Kind::kVmm ? GMM_ALLOC_COMM : 0;
      result = alloc_on(&block, kind, stream.device, static_cast<int>(below(kTags)), stream.stream, size, flags);
    }
    said("alloc", result);
    if (result != GMM_OK) return;
    block.graph = find_stream(block.stream).graph;
    block.known = false;
    if (block.graph == 0) write(&block, one_in(4) ? 1000 : 0);
    blocks_.push_back(block);
  }
  // Work of the block's stream is done before another stream frees it.
  void do_free() {
    if (blocks_.empty()) return;
    const uint64_t index = below(blocks_.size());
    const Block block = blocks_[index];
    const int device = device_of(block.stream, block);
    gmm_stream on = block.stream;
    const Stream *reader = nullptr;
    if (state_of(block) == GMM_STATE_ACTIVE && block.graph == 0 && find_stream(block.stream).graph == 0) {
      verify(block, one_in(3) ? 2000 : 0);
      Stream &other = any_stream();
      if (one_in(4)) {
        if (other.graph == 0 && finish(block.stream, device)) on = other.stream;
      } else if (one_in(3) && block.known && other.graph == 0) {
        // A second stream reads, and the first one frees.
        finish(block.stream, device);
        if (gmm_record_use(context_, block.at, other.stream) == GMM_OK) {
          reader = &other;
          queue(block, false, other.stream, 2000);
        }
      }
    }
    const gmm_result result = (one_in(6) ? gmm_try_free : gmm_free)(context_, block.at, on);
    said("free", result);
    if (result == GMM_OK) return remove_at(&blocks_, index);
    state_of(block);  // it is still there
    if (reader != nullptr) finish(reader->stream, reader->device);
  }
  struct Mine {
    gmm_heap *heap = nullptr;
    Kind kind = Kind::kVmm;
    int device = 0, tag = 0;
  };
  void make_heap_of_program(Mine *mine) {
    mine->kind = one_in(4) ? static_cast<Kind>(1 + below(4)) : Kind::kVmm;
    mine->device = static_cast<int>(below(2));
    mine->tag = static_cast<int>(below(kTags));
    gmm_heap_desc desc{.struct_size = sizeof desc, .kind = static_cast<gmm_kind>(mine->kind), .device = mine->device};
    desc.tag = tags_[mine->tag];
    desc.minimum_extent = one_in(2) ? 0 : (1 + below(40)) * kMiB;
    desc.limit = one_in(3) ? (16 + below(100)) * kMiB : 0;
    if (mine->kind != Kind::kDevice && one_in(3)) desc.peer_devices = 3;
    if (mine->kind == Kind::kVmm && one_in(3)) desc.flags = GMM_HEAP_EXPORTABLE;
    const gmm_result result = gmm_heap_create(context_, &desc, &mine->heap);
    said("heap", result);
    if (result < 0) mine->heap = nullptr;
  }
  void do_heap() {
    const int index = static_cast<int>(below(kHeaps));
    Mine &mine = heaps_[index];
    if (mine.heap == nullptr) return make_heap_of_program(&mine);
    if (one_in(2)) return said("reserve", gmm_heap_reserve(mine.heap, below(96) * kMiB));
    const gmm_result result = gmm_heap_destroy(mine.heap);
    said("end heap", result);
    if (result != GMM_OK) return;
    for (const Block &block : blocks_) EXPECT_NE(block.heap, index);
    mine.heap = nullptr;
  }

  // --- Pauses ------------------------------------------------------------------------------------------------------
  struct Tags {
    std::vector<gmm_tag> list;  // empty: all
    bool in[kTags];
    int until;  // this call of the progress function cancels
    gmm_pause_desc desc;
    bool has(const Block &block) const { return in[block.tag] && block.kind == Kind::kVmm; }
  };
  void some_tags(Tags *out, uint32_t flags) {
    const bool all = one_in(3);
    for (int i = 0; i < kTags; ++i) {
      out->in[i] = all || one_in(3);
      if (out->in[i] && !all) out->list.push_back(tags_[i]);
    }
    if (!all && out->list.empty()) {
      out->in[1] = true;
      out->list.push_back(tags_[1]);
    }
    out->desc = {.struct_size = sizeof out->desc, .flags = flags};
    out->desc.tags = out->list.data();
    out->desc.tag_count = static_cast<uint32_t>(out->list.size());
    out->until = 1 + static_cast<int>(below(4));
    if (one_in(4)) out->desc.progress = {cancel, &out->until};
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
  // The contents are unknown that a drop took: of memory that was active before, and is not now or was for a moment.
  void do_pause() {
    Tags tags;
    some_tags(&tags, (one_in(6) ? 1u << (1 + below(3)) : 0) | (one_in(4) ? GMM_PAUSE_FORCE : 0));
    const uint32_t flags = tags.desc.flags;
    std::vector<bool> was_active;
    for (const Block &block : blocks_) was_active.push_back(tags.has(block) && state_of(block) != GMM_STATE_PAUSED);
    const gmm_result result = carry_out(gmm_pause_async, gmm_pause, tags.desc, [] {});
    said("pause", result);
    for (size_t i = 0; i < blocks_.size() && result >= 0; ++i) {
      Block &block = blocks_[i];
      if (!was_active[i]) continue;
      const bool is_kept = (flags & (GMM_PAUSE_KEEP_HOST | GMM_PAUSE_KEEP_FILE)) != 0 ||
                           ((flags & GMM_PAUSE_DROP) == 0 && contents_[block.tag] != GMM_CONTENTS_DROP);
      if (!is_kept) block.known = false;
      if (block.graph == 0) {
        EXPECT_EQ(state_of(block), GMM_STATE_PAUSED);
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
    Tags tags;
    some_tags(&tags, one_in(4) ? GMM_RESUME_RETAIN : 0);
    const gmm_result result = carry_out(gmm_resume_async, gmm_resume, tags.desc, [&] {
      if (!one_in(3) || blocks_.empty()) return;
      const Block &block = any_block();
      (void)gmm_resume_wait(context_, block.at, block.size, below(3));
    });
    said("resume", result);
    for (const Block &block : blocks_)
      if (result >= 0 && tags.has(block)) {
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
    if (one_in(6)) {
      gmm_pause_desc desc{.struct_size = sizeof desc, .tags = &tags_[found->tag], .tag_count = 1};
      std::vector<Block *> paused;
      for (Block &each : blocks_)
        if (each.tag == found->tag && state_of(each) != GMM_STATE_ACTIVE) paused.push_back(&each);
      const gmm_result result = gmm_backup_discard(context_, &desc, nullptr);
      for (Block *each : paused) each->known = each->known && result != GMM_OK;
      return said("discard", result);
    }
    const uint64_t page = below(found->size / kPage + 1) * kPage;
    uint64_t word = 0;
    if (page + sizeof word > found->size) return;
    const gmm_result result = gmm_backup_read(context_, found->at + page, sizeof word, &word);
    said("backup read", result);
    if (result == GMM_OK && found->known) {
      EXPECT_EQ(word, found->mark + page);
    }
  }

  // --- The context -------------------------------------------------------------------------------------------------
  gmm_scope_desc any_scope() {
    gmm_scope_desc scope{.struct_size = sizeof scope};
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
  void do_trim() {
    const gmm_scope_desc scope = any_scope();
    said("trim", gmm_trim(context_, one_in(2) ? nullptr : &scope, nullptr));
  }
  void do_limit() {
    const gmm_scope_desc scope = any_scope();
    said("limit", gmm_limit_set(context_, &scope, one_in(2) ? GMM_NO_LIMIT : below(300) * kMiB));
  }
  void do_defer() {
    if (one_in(2)) return;
    said("defer", (is_deferred_ ? gmm_defer_end : gmm_defer_begin)(context_));
    is_deferred_ = !is_deferred_;
  }
  void do_compact() {
    const gmm_scope_desc scope = any_scope();
    gmm_compact_desc desc{.struct_size = sizeof desc, .flags = one_in(2) ? uint32_t{GMM_COMPACT_LIVE} : 0};
    desc.max_bytes = one_in(3) ? below(64) * kMiB + 1 : 0;
    desc.max_us = one_in(3) ? 1 + below(3000) : 0;
    gmm_compact_info info{.struct_size = sizeof info};
    said(desc.flags != 0 ? "compact live" : "compact",
         gmm_compact(context_, one_in(3) ? nullptr : &scope, &desc, &info));
  }
  void do_move() {
    if (blocks_.empty()) return;
    const Block &block = any_block();
    gmm_move_desc desc{.struct_size = sizeof desc};
    desc.stream = block.stream;
    said("move", gmm_move(context_, block.at, one_in(2) ? block.device : GMM_DEVICE_HOST, &desc));
  }
  void do_share() {
    if (!imports_.empty() && one_in(2)) {
      const uint64_t index = below(imports_.size());
      const gmm_result result = gmm_ipc_close(context_, imports_[index]);
      if (result == GMM_OK) remove_at(&imports_, index);
      return said("close", result);
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
    if (streams_.size() < 80 && (streams_.size() == 1 || one_in(2))) return new_stream(static_cast<int>(below(2)));
    const uint64_t index = below(streams_.size());
    const Stream ended = streams_[index];
    if (ended.graph != 0) return;
    finish(ended.stream, ended.device);
    const gmm_result result = gmm_stream_destroy(context_, ended.stream);
    said("end stream", result);
    if (result < 0) return;
    remove_at(&streams_, index);
    for (Block &block : blocks_)
      if (block.stream == ended.stream) block.stream = GMM_STREAM_DEFAULT;
  }
  void do_thread() {
    gmm_alloc_desc desc{.struct_size = sizeof desc, .kind = GMM_KIND_VMM, .device = static_cast<int>(below(2))};
    desc.tag = tags_[1];
    desc.stream = GMM_STREAM_PER_THREAD;
    std::thread([&] {
      for (uint64_t i = 0; i < 3; ++i) {
        void *at = nullptr;
        const uint64_t size = (1 + i * 5) << 19;
        if (gmm_alloc(context_, size, &desc, &at) != GMM_OK) continue;
        const Block block{static_cast<char *>(at), size, 77 + i, Kind::kVmm, desc.device};
        if (queue(block, true, GMM_STREAM_PER_THREAD, 500)) queue(block, false, GMM_STREAM_PER_THREAD, 500);
        while (gmm_free(context_, at, GMM_STREAM_PER_THREAD) < 0) nothing_fails();
      }
    }).join();
    said("thread", 0);
  }
  // A capture begins, or all end. A graph or two stay.
  void do_capture() {
    if (!is_on_fake()) return;
    nothing_fails();
    Stream &stream = any_stream();
    if (captured_ != 0) {
      end_captures();
      if (graphs_.size() > 1 || one_in(2)) end_graph();
      return;
    }
    enter_context_of(stream);
    const int code = driver_.begin_capture(stream.stream, 2);
    driver_.set_current(nullptr);
    if (code == 0) captured_ = stream.graph = ++graphs_made_;
    said("begin capture", -code);
  }
  void enter_context_of(const Stream &stream) {
    void *context = nullptr;
    EXPECT_EQ(driver_.context_of(stream.stream, &context), 0);
    driver_.set_current(context);
  }
  void end_captures() {
    for (Stream &stream : streams_) {
      if (stream.graph == 0) continue;
      void *graph = nullptr;
      enter_context_of(stream);
      said("end capture", -driver_.end_capture(stream.stream, &graph));
      driver_.set_current(nullptr);
      stream.graph = captured_ = 0;
      if (graph != nullptr) graphs_.push_back(graph);
    }
  }
  void end_graph() {
    if (graphs_.empty()) return;
    EXPECT_EQ(driver_.destroy_graph(graphs_.back()), 0);
    graphs_.pop_back();
  }

  // The steps in 32nds; the rest are allocations and frees, 3 to 2.
  void one_step() {
    static constexpr struct {
      uint64_t weight;
      void (History::*step)();
    } kSteps[] = {
        {3, &History::do_pause},   {4, &History::do_resume},       {1, &History::do_trim},
        {2, &History::do_compact}, {1, &History::do_move},         {1, &History::do_share},
        {1, &History::do_streams}, {1, &History::do_heap},         {1, &History::do_limit},
        {1, &History::do_defer},   {1, &History::something_fails}, {1, &History::nothing_fails},
        {1, &History::do_thread},  {1, &History::do_capture},      {1, &History::rewrite},
        {1, &History::do_backup},
    };
    said_ = "nothing";
    uint64_t drawn = below(32);
    for (const auto &each : kSteps) {
      if (drawn < each.weight) return (this->*each.step)();
      drawn -= each.weight;
    }
    if (drawn == 0)
      usleep(3000);
    else if (below(5) < 3)
      do_alloc();
    else
      do_free();
  }

  // --- Checks ------------------------------------------------------------------------------------------------------
  // Memory that the heap calls mapped can be read.
  void check_memory(Heap &heap) {
    LockGuard guard(heap.mutex);
    heap.for_each_region([&](Region &region) {
      for (Extent *extent = region.extents.front(); extent != nullptr; extent = region.extents.next(extent)) {
        if (!extent->mapped) continue;
        char byte;
        for (const uintptr_t at : {base_of(*extent), end_of(*extent) - 1}) {
          const iovec here{&byte, 1}, there{reinterpret_cast<void *>(at), 1};
          ASSERT_EQ(process_vm_readv(getpid(), &here, 1, &there, 1, 0), 1)
              << reinterpret_cast<void *>(at) << " of an extent at " << reinterpret_cast<void *>(base_of(*extent));
        }
      }
    });
  }
  gmm_stats_info stats() {
    gmm_stats_info stats{.struct_size = sizeof stats};
    EXPECT_EQ(gmm_stats_query(context_, nullptr, &stats), GMM_OK);
    return stats;
  }
  void check() {
    std::vector<Heap *> heaps;
    context_->heaps().for_each_even_ending([&](Heap &heap) { heaps.push_back(&heap); });
    for (Heap *heap : heaps) {
      if (testing::Test::HasFailure()) return;
      uint64_t of_captures = 0;
      for (Heap *each : heaps)
        if (each->capture.parent == heap) of_captures += each->own_quota().held();
      check_heap(context_->core(), *heap, of_captures);
      check_memory(*heap);
    }
    uint64_t bytes = 0;
    for (const Block &block : blocks_) bytes += block.size;
    EXPECT_EQ(stats().live_bytes, bytes) << said_;
    EXPECT_EQ(stats().live_blocks, blocks_.size()) << said_;
    if (testing::Test::HasFailure() || !one_in(10)) return;
    for (const Block &block : blocks_)
      if (state_of(block) == GMM_STATE_ACTIVE) verify(block);
  }

  // Everything ends, and nothing is left.
  void close() {
    nothing_fails();
    end_captures();
    while (!graphs_.empty()) end_graph();
    finish_all();
    const gmm_scope_desc everything{.struct_size = sizeof everything};
    EXPECT_EQ(gmm_limit_set(context_, &everything, GMM_NO_LIMIT), GMM_OK);
    for (void *at : imports_) EXPECT_EQ(gmm_ipc_close(context_, at), GMM_OK) << last_message();
    const gmm_result resumed = gmm_resume(context_, nullptr, nullptr);
    for (const Block &block : blocks_) {
      if (resumed < 0) break;
      EXPECT_EQ(state_of(block), GMM_STATE_ACTIVE);
      verify(block);
    }
    finish_all();
    for (const Block &block : blocks_) EXPECT_EQ(gmm_free(context_, block.at, block.stream), GMM_OK) << last_message();
    if (is_deferred_) {
      EXPECT_GE(gmm_defer_end(context_), 0) << last_message();
    }
    for (const Stream &stream : streams_) EXPECT_EQ(gmm_stream_destroy(context_, stream.stream), GMM_OK);
    for (const Mine &mine : heaps_) EXPECT_EQ(gmm_heap_destroy(mine.heap), GMM_OK) << last_message();
    // The driver says that a graph is gone at some moment after it went.
    EXPECT_TRUE(soon([&] { return gmm_trim(context_, nullptr, nullptr) >= 0 && stats().reserved_bytes == 0; }));
    EXPECT_EQ(stats().live_blocks, 0u);
    EXPECT_EQ(stats().paused_bytes, 0u);
    EXPECT_EQ(stats().extents, 0u);
    for (int i = 0; i < 2 && backend_ == GMM_BACKEND_HOST; ++i) {
      gmm_device_info info{.struct_size = sizeof info};
      EXPECT_EQ(gmm_device_query(context_, i, &info), GMM_OK);
      EXPECT_EQ(info.free_memory, info.total_memory);
    }
    EXPECT_EQ(gmm_context_release(context_), GMM_OK);
    if (!is_on_fake()) return;
    fake_cuda_live_t now;
    EXPECT_TRUE(soon([&] {
      driver_.live(&now);
      return now.user_objects == at_start_.user_objects;
    }));
    now.dropped = at_start_.dropped;
    now.graphs = at_start_.graphs;
    now.host_bytes = at_start_.host_bytes;  // the arena of a context may be the next one's
    const uint64_t *left = &now.allocations, *before = &at_start_.allocations;
    for (size_t i = 0; i < sizeof now / sizeof *left; ++i) EXPECT_EQ(left[i], before[i]) << "counter " << i;
  }

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
  std::vector<void *> imports_, graphs_;
  Mine heaps_[kHeaps];
  uint64_t next_mark_ = 1;
  uint32_t captured_ = 0, graphs_made_ = 0;
  bool is_deferred_ = false;
  std::string said_;
  const bool verbose_ = std::getenv("HISTORY_LOG") != nullptr;
};

// The driver records no event of one device on a stream of another. Memory that such a stream uses is waited for all
// the same.
TEST(Streams, OfAnotherDeviceKeepTheMemoryThatTheyUse) {
  if (Driver().live == nullptr) GTEST_SKIP() << "it needs the fake driver";
  const gmm_context_desc context_desc{.struct_size = sizeof context_desc, .backend = GMM_BACKEND_CUDA};
  const gmm_stream_desc stream_desc{.struct_size = sizeof stream_desc, .device = 1};
  gmm_context *context = nullptr;
  gmm_stream other = nullptr;
  gmm_tag tag = 0;
  ASSERT_EQ(gmm_context_create(&context_desc, &context), GMM_OK) << last_message();
  ASSERT_EQ(gmm_stream_create(context, &stream_desc, &other), GMM_OK) << last_message();
  ASSERT_EQ(gmm_tag_create(context, "dropped", nullptr, &tag), GMM_OK);
  for (const std::string what : {"trim", "pause", "destroy", "compact"})
    for (const bool is_freed_there : {false, true}) {
      SCOPED_TRACE(what + (is_freed_there ? ", freed on it" : ", recorded"));
      gmm_heap_desc heap_desc{.struct_size = sizeof heap_desc, .kind = GMM_KIND_VMM};
      heap_desc.tag = tag;
      heap_desc.peer_devices = 2;
      heap_desc.minimum_extent = 16 * kMiB;
      gmm_heap *heap = nullptr;
      ASSERT_EQ(gmm_heap_create(context, &heap_desc, &heap), GMM_OK) << last_message();
      const gmm_stream on = is_freed_there ? other : nullptr;
      void *block = nullptr, *neighbour = nullptr;
      ASSERT_EQ(gmm_heap_alloc(heap, 8 * kMiB, 0, 0, on, &block), GMM_OK);
      ASSERT_EQ(gmm_heap_alloc(heap, kMiB, 0, 0, nullptr, &neighbour), GMM_OK);
      std::atomic<bool> is_over{false};
      const auto work = [](void *over) {
        usleep(50000);
        *static_cast<std::atomic<bool> *>(over) = true;
      };
      ASSERT_EQ(gmm_stream_call(context, other, work, &is_over), GMM_OK) << last_message();
      if (!is_freed_there) {
        ASSERT_EQ(gmm_record_use(context, block, other), GMM_OK);
      }
      ASSERT_EQ(gmm_free(context, block, on), GMM_OK) << last_message();
      if (what == "trim" || what == "destroy") {
        EXPECT_EQ(gmm_free(context, neighbour, nullptr), GMM_OK);
      }
      EXPECT_FALSE(is_over) << "a free waits for nothing";
      gmm_compact_desc live{.struct_size = sizeof live, .flags = GMM_COMPACT_LIVE};
      live.heap = heap;
      gmm_compact_info info{.struct_size = sizeof info};
      const gmm_pause_desc pause{.struct_size = sizeof pause, .tags = &tag, .tag_count = 1};
      EXPECT_GE(what == "trim"      ? gmm_trim(context, nullptr, nullptr)
                : what == "pause"   ? gmm_pause(context, &pause, nullptr)
                : what == "compact" ? gmm_compact(context, nullptr, &live, &info)
                                    : gmm_heap_destroy(heap),
                GMM_OK)
          << last_message();
      EXPECT_TRUE(is_over) << "the memory went back while a stream used it";
      EXPECT_EQ(gmm_stream_synchronize(context, other), GMM_OK);
      if (what == "pause" || what == "compact") {
        EXPECT_EQ(gmm_free(context, neighbour, nullptr), GMM_OK);
      }
      if (what != "destroy") {
        EXPECT_EQ(gmm_heap_destroy(heap), GMM_OK) << last_message();
      }
    }
  EXPECT_EQ(gmm_stream_destroy(context, other), GMM_OK);
  EXPECT_EQ(gmm_context_release(context), GMM_OK);
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
  if (Driver().live == nullptr) GTEST_SKIP() << "it needs the fake driver";
  run_seeds(GMM_BACKEND_CUDA);
}

}  // namespace
}  // namespace gmm::test
