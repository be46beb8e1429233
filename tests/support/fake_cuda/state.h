// SPDX-License-Identifier: Apache-2.0
// The state of the fake driver in one process. Everything below is guarded by State::mutex unless it says otherwise.
#ifndef FAKE_CUDA_STATE_H
#define FAKE_CUDA_STATE_H

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "../cuda_functions.h"
#include "ledger.h"

namespace fake {

inline constexpr size_t kGranularity = size_t{2} << 20;
inline constexpr size_t kPage = 4096;
inline constexpr int kMaxDevices = 16;
inline constexpr int kHost = -1;

// X(name, suffix, version, parameters) for each entry of the fake driver.
#define FAKE_CUDA_NONE(name, suffix, version, parameters)
#define FAKE_CUDA_ENTRIES(X) GMM_CUDA_ENTRIES(X, X, FAKE_CUDA_NONE)

// One number for each symbol; counts of one name are summed over its symbols.
enum class Entry {
#define X(name, suffix, version, parameters) name##suffix,
  FAKE_CUDA_ENTRIES(X)
#undef X
      count
};

struct Stream;

struct Configuration {
  int version = 13000;
  int devices = 1;
  uint64_t memory = uint64_t{8} << 30;
  bool cpu_access = false, unaligned = false, blind = false;
  std::set<std::string> lacks, quirks;
};

// Bytes in a file, and the address through which the driver itself reaches them. The last reference may go on any
// thread.
struct Backing {
  int fd = -1;
  char *alias = nullptr;
  size_t size = 0;
  int device = kHost;
  uint64_t charged = 0;  // bytes of its device's memory; 0 when another process pays
  uint64_t id = 0;
  bool shareable = false;
  bool exported = false;  // export_backing() made a descriptor
  ~Backing();
};

// A handle for other processes, in the 64 bytes of the driver's: where they find a file of this process by its
// descriptor in /proc, which only the same user may open. The id tells a descriptor that was used again.
struct Wire {
  uint64_t kind, id, size, offset;
  int32_t pid, fd, device;
  uint32_t check;
  uint64_t rest[2];
};
inline constexpr uint64_t kMemoryWire = 0x66616b6543554441, kEventWire = kMemoryWire + 1, kFabricWire = kMemoryWire + 2;
// Adds this process and the check.
void write_wire(void *out, Wire wire);
// False: the bytes are no such handle.
bool read_wire(const void *bytes, uint64_t kind, Wire *out);
// The file of another process's descriptor, or -1.
int open_of_process(int pid, int fd);
// Shows others that the open file holds its memory.
bool lock_shared(int fd);
// A descriptor for others. The memory of a backing that ended stays taken while one lives, or a mapping of it.
int export_backing(Backing *backing);
// Gives back memory that others hold no more.
void settle_exported();

// Null when there is no memory. `charge`: bytes of the device that it takes.
std::shared_ptr<Backing> make_backing(size_t size, int device, uint64_t charge, bool shareable);
// Takes over `fd`. Null when it is no memory of a fake driver, or `id` is not 0 and not the memory's.
std::shared_ptr<Backing> adopt_backing(int fd, uint64_t id);

struct Context {
  int device = 0;
  unsigned references = 0;
  CUresult error = CUDA_SUCCESS;  // sticky, as on a device: after a wrong access nothing works
  std::shared_ptr<Stream> legacy;
  uint64_t resets = 0;
};

enum class Kind { device, pool, managed, host, registered, imported };

struct Region {
  Kind kind;
  uintptr_t base;
  size_t size;
  uintptr_t view;  // the mapping for it
  size_t view_size;
  std::shared_ptr<Backing> backing;  // device, pool, imported
  Context *context;
  unsigned flags;
  uint64_t id;
  unsigned opened;  // imported: times opened
};

struct Physical {
  std::shared_ptr<Backing> backing;
  CUmemAllocationProp properties;
  uint64_t id;
};

struct Handle {
  std::shared_ptr<Physical> physical;
  unsigned references;
  bool imported;
};

struct Mapping {
  size_t size;
  std::shared_ptr<Physical> physical;
  CUmemGenericAllocationHandle handle;
  unsigned access[kMaxDevices];  // CUmemAccess_flags
  unsigned host_access;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;  // of any stream
  Configuration configuration;
  Context contexts[2 * kMaxDevices];  // primary ones; then one that the program made, of each device
  std::map<uintptr_t, Region> regions;
  std::map<uintptr_t, size_t> reservations;
  std::multimap<uintptr_t, std::shared_ptr<Physical>> lingering;  // by reservation, see the quirk `release`
  std::set<uintptr_t> stuck;                                      // reservations, see the quirk `unmap`
  std::map<uintptr_t, Mapping> mappings;
  std::map<CUmemGenericAllocationHandle, Handle> handles;
  uint64_t next_handle = 0x700001, next_id = 1;
  uint64_t dropped = 0;
  std::atomic<uint64_t> own_used[kMaxDevices] = {};
  std::atomic<uint64_t> *used = own_used;  // bytes of each device; of the ledger where there is one
  std::atomic<uint64_t> host_bytes{0};
  State();
};

// Made at the first call and never destroyed: threads may still run when the process ends.
template <class T>
T &forever() {
  static T *only = new T;
  return *only;
}
inline State &state() { return forever<State>(); }
// FAKE_CUDA_LACKS names this ability.
inline bool lacks(const char *what) { return state().configuration.lacks.count(what) != 0; }

// FAKE_HIP_QUIRKS names this fault of ROCm.
inline bool has_quirk(const char *what) { return state().configuration.quirks.count(what) != 0; }

// This library is AMD's: each thread has a current device, device 0 at first.
extern "C" __attribute__((weak)) const char fake_is_hip;
inline bool is_hip() { return &fake_is_hip != nullptr; }
// Their contexts live on to the end of the process.
void start_all_devices();

// The ledger, which other processes see (ledger.h). Without one used_by_all() counts this process alone.
void open_ledger(State &state);
uint64_t used_by_all(int device);
// A process of the ledger that lives; NULL for none.
fake_ledger_process *find_process(int pid);
// Whether the devices have the memory that a checkpointed process held.
bool has_room_for(const fake_ledger_process &process);
void note_context(int device, bool is_live);
// While another process has locked this one by the calls of the checkpoint.
void wait_while_locked();

// Counts the call, and says how it ends before it starts: a failure that a test asked for, no cuInit, a forked child.
CUresult enter(Entry entry);

// The calling thread's context, or why there is none to use. The lock is held.
CUresult current_context(Context **out);
bool valid_device(int device);
// Ends the process as a driver does that reads through a handle of another device: SIGSEGV.
[[noreturn]] void crash(const char *why);
// The bytes of the device are taken, or not at all.
bool charge(int device, uint64_t bytes);
void release_context_regions(Context *context);

char *reserve_addresses(size_t size, size_t alignment);
// The region, or null. The lock is held.
Region *find_region(uintptr_t address);
// The mapping with its base, or null.
Mapping *find_mapping(uintptr_t address, uintptr_t *base);
bool find_reservation(uintptr_t address, uintptr_t *base, size_t *size);
uint64_t live_externals();   // of cuImportExternalMemory
uint64_t live_semaphores();  // of cuImportExternalSemaphore

// A stretch of bytes that the driver can reach, kept alive.
struct Piece {
  char *data;
  size_t size;
  std::shared_ptr<Backing> backing;
};
inline bool is_zero(const char *bytes, size_t size) { return *bytes == 0 && memcmp(bytes, bytes + 1, size - 1) == 0; }
enum class Where { pageable, pinned, managed, device };
// Where [address, address + size) really is, for work on `device`. The lock is held.
CUresult translate(uintptr_t address, size_t size, bool write, int device, std::vector<Piece> *out, Where *where);

// A region of the backing's bytes from `offset` on, at new addresses; its address, or 0. The CPU may read them if the
// configuration says so.
uintptr_t add_view(const std::shared_ptr<Backing> &backing, Kind kind, size_t offset, size_t size, Context *context);
// Frees the memory at `address` when its kind is one of these, after the work of its context; pool memory at once.
CUresult free_region(uintptr_t address, std::initializer_list<Kind> kinds, std::unique_lock<std::mutex> &lock);
// Frees the memory at `base` without waiting. The lock is held.
void drop_region(std::map<uintptr_t, Region>::iterator it);

}  // namespace fake

// The head of a call: it counts, it may fail on demand, and it takes the lock. Further arguments: when the call's are
// refused.
#define FAKE_CUDA_ENTER(symbol, ...)                                   \
  if (CUresult early = fake::enter(fake::Entry::symbol)) return early; \
  std::unique_lock<std::mutex> lock(fake::state().mutex) __VA_OPT__(; if (__VA_ARGS__) return CUDA_ERROR_INVALID_VALUE)
// Of a call about the device that its parameter `device` names.
#define FAKE_CUDA_OF_DEVICE(symbol, ...)              \
  FAKE_CUDA_ENTER(symbol __VA_OPT__(, ) __VA_ARGS__); \
  if (!fake::valid_device(device)) return CUDA_ERROR_INVALID_DEVICE
// Of a call in the thread's context, which is `context`.
#define FAKE_CUDA_IN_CONTEXT(symbol, ...)             \
  FAKE_CUDA_ENTER(symbol __VA_OPT__(, ) __VA_ARGS__); \
  FAKE_CUDA_CONTEXT(context)
// Of a call that the thread may not make while a stream is captured.
#define FAKE_CUDA_UNCAPTURED(symbol, ...)                  \
  FAKE_CUDA_IN_CONTEXT(symbol __VA_OPT__(, ) __VA_ARGS__); \
  if (CUresult unsafe = fake::refuse_during_capture()) return unsafe
#define FAKE_CUDA_CONTEXT(context)  \
  fake::Context *context = nullptr; \
  if (CUresult none = fake::current_context(&context)) return none
// And on the stream of a handle, which is `stream`.
#define FAKE_CUDA_ON_STREAM(symbol, handle, ...)           \
  FAKE_CUDA_IN_CONTEXT(symbol __VA_OPT__(, ) __VA_ARGS__); \
  FAKE_CUDA_STREAM(stream, handle)
#define FAKE_CUDA_STREAM(stream, handle) \
  std::shared_ptr<fake::Stream> stream;  \
  if (CUresult unknown = fake::find_stream(handle, context, &stream)) return unknown

#endif
