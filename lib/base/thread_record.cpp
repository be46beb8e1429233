// SPDX-License-Identifier: Apache-2.0
#include "base/thread_record.h"

#include "base/process_mutex.h"
#include "base/thread.h"
#include "base/thread_message.h"

namespace gmm {

#if defined(__x86_64__) && defined(__LP64__)
constinit std::atomic<intptr_t> g_memo_offset{0};

// The name is the assembler's too. Nothing else names the variable, so no other access to it is ever compiled.
// NOLINTNEXTLINE(bugprone-dynamic-static-initializers): constinit says that it is not
__attribute__((visibility("hidden"))) extern constinit thread_local ThreadRecord t_record asm("gmm_thread_record");
__attribute__((used)) constinit thread_local ThreadRecord t_record = {};

// Only rax should change. But glibc before 2.40 loses vector registers and expects an aligned stack when it makes the
// storage. The red zone lies below the stack pointer.
__attribute__((noinline)) ThreadRecord &own_thread_record() {
  char *record;
  asm volatile(
      "movq %%rsp, %%rbx\n\t"
      "leaq -128(%%rsp), %%rsp\n\t"
      "andq $-64, %%rsp\n\t"
      "leaq gmm_thread_record@tlsdesc(%%rip), %%rax\n\t"
      "call *gmm_thread_record@tlscall(%%rax)\n\t"
      "movq %%rbx, %%rsp\n\t"
      "addq %%fs:0, %%rax"
      : "=a"(record)
      :
      : "rbx", "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
  return *reinterpret_cast<ThreadRecord *>(record);
}

namespace {

// The descriptor is two words: a function of the loader, and its argument. For static storage the argument is the
// distance from the thread pointer; else it is an address, which no distance to this record equals. A linker that knows
// the distance puts it in the place of the descriptor's address.
void find_memo() {
  const char *pointer;
  intptr_t descriptor;
  asm("movq %%fs:0, %0" : "=r"(pointer));
  asm volatile("leaq gmm_thread_record@tlsdesc(%%rip), %%rax" : "=a"(descriptor));
  const intptr_t distance = reinterpret_cast<const char *>(&own_thread_record()) - pointer;
  const intptr_t known = descriptor < 0 ? descriptor : reinterpret_cast<const intptr_t *>(descriptor)[1];
  if (known == distance) g_memo_offset.store(distance, std::memory_order_relaxed);
}

}  // namespace
#else
constinit thread_local ThreadRecord OwnMemo::t_record = {};
ThreadRecord &own_thread_record() { return OwnMemo::t_record; }
namespace {
void find_memo() {}
}  // namespace
#endif

namespace {

// Guards the variables below. No other lock but a registry's is taken under it.
constinit ProcessMutex g_records_mutex{LockRank::kThreadRecords};
constinit uint32_t g_holders = 0;
constinit bool g_has_key = false;
constinit ThreadKey g_key;
constinit ThreadRecord *g_first = nullptr;
// The list's number. It grows when the list is given up as a whole: with the last holder, and by a fork, whose child
// has none of the other threads and no memory of theirs.
constinit uint64_t g_epoch = 1;
// Threads inside end_thread(), counted before they take the lock.
constinit std::atomic<uint32_t> g_ending{0};
constinit std::atomic<uint64_t> g_thread_ids{0};

void reset_records() {
  g_first = nullptr;
  ++g_epoch;
  g_holders = 0;
  g_ending.store(0, std::memory_order_relaxed);
}

void end_parts(ThreadRecord &record) {
  record.memo = ThreadRecord::Memo{};
  for (ThreadRecord::Part &part : record.parts) {
    const ThreadRecord::Part ended = part;
    part = ThreadRecord::Part{};
    if (ended.end != nullptr) ended.end(ended.state);
  }
}

bool unlist(ThreadRecord &record) {
  const ProcessGuard guard(g_records_mutex, reset_records);
  if (record.epoch != g_epoch) return false;
  (record.previous == nullptr ? g_first : record.previous->next) = record.next;
  if (record.next != nullptr) record.next->previous = record.previous;
  record.epoch = 0;
  return true;
}

void end_thread(void *value) {
  g_ending.fetch_add(1, std::memory_order_acquire);
  ThreadRecord &record = *static_cast<ThreadRecord *>(value);
  // Without the lock: a cache's end waits for its heap.
  if (unlist(record)) end_parts(record);
  end_thread_message(record.message);
  record.message = nullptr;
  {
    const ProcessGuard guard(g_records_mutex, reset_records);
    if (g_ending.fetch_sub(1, std::memory_order_release) == 1) wake_all(g_ending);
  }
}

}  // namespace

ThreadRecord *make_thread_record() {
  ThreadRecord &record = own_thread_record();
  const ProcessGuard guard(g_records_mutex, reset_records);
  if (record.epoch == g_epoch) return &record;
  if (!g_has_key) {
    if (!create_thread_key(&g_key, end_thread)) return nullptr;
    g_has_key = true;
    find_memo();
  }
  if (!set_thread_key(g_key, &record)) return nullptr;
  if (record.id == 0) record.id = g_thread_ids.fetch_add(1, std::memory_order_relaxed) + 1;
  record.epoch = g_epoch;
  record.previous = nullptr;
  record.next = g_first;
  if (g_first != nullptr) g_first->previous = &record;
  g_first = &record;
  return &record;
}

void list_thread_record_if_held() {
  {
    const ProcessGuard guard(g_records_mutex, reset_records);
    if (g_holders == 0) return;
  }
  make_thread_record();
}

uint64_t current_thread_id() {
  // A thread that ends is not listed again by its own end.
  if (const uint64_t id = own_thread_record().id; id != 0) return id;
  const ThreadRecord *record = make_thread_record();
  return record == nullptr ? 0 : record->id;
}

AllocationBan::AllocationBan()
    : record_(own_thread_record()),
      caches_(record_.parts[static_cast<uint32_t>(ThreadPart::kCaches)]),
      was_set_(record_.hides_caches) {
  record_.memo = ThreadRecord::Memo{};
  record_.set_part(ThreadPart::kCaches, nullptr, nullptr);
  record_.hides_caches = true;
}

AllocationBan::~AllocationBan() {
  record_.set_part(ThreadPart::kCaches, caches_.state, caches_.end);
  record_.hides_caches = was_set_;
}

void hold_thread_records() {
  const ProcessGuard guard(g_records_mutex, reset_records);
  ++g_holders;
}

void release_thread_records() {
  {
    const ProcessGuard guard(g_records_mutex, reset_records);
    if (--g_holders != 0) return;
    for (ThreadRecord *record = g_first; record != nullptr; record = record->next) end_parts(*record);
    g_first = nullptr;
    ++g_epoch;
    if (g_has_key) delete_thread_key(g_key);
    g_has_key = false;
  }
  trim_thread_messages();
  // They found their records given up, or end parts that no context knows any more. Then the library may be unloaded.
  while (const uint32_t ending = g_ending.load(std::memory_order_acquire)) wait_while(g_ending, ending);
}

}  // namespace gmm
