// SPDX-License-Identifier: Apache-2.0
// Copies and fills. Addresses are looked up at the call, to refuse wrong ones at once, and again when the work runs:
// memory that was freed or unmapped in between is an illegal access then, as on a device.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "stream.h"

// The thread sanitizer's. It follows accesses of memory, but takes each access of a file for an order.
extern "C" __attribute__((weak)) void __tsan_init();

using namespace fake;

namespace {

enum class Needs { any, device };  // device: the driver must know the address

// Refused by ROCm (intel/llvm#22671).
bool spans_mappings(uintptr_t address, size_t size) {
  uintptr_t base = 0;
  const Mapping *mapping = find_mapping(address, &base);
  return mapping && size > mapping->size - (address - base);
}

CUresult check(uintptr_t address, size_t size, bool write, Needs needs, int device, Where *where) {
  if (CUresult wrong = translate(address, size, write, device, nullptr, where)) return wrong;
  if (has_quirk("copy") && spans_mappings(address, size)) return CUDA_ERROR_INVALID_VALUE;
  return needs == Needs::device && *where == Where::pageable ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

off_t offset_in_file(const Piece &piece, size_t at) { return piece.data + at - piece.backing->alias; }

constexpr size_t kPart = 64 << 10;

// All of them, or false. Where the program has a limit for files, a write past it would end the program. Parts of zeros
// become holes of the file, which read as zeros: most tests write into a small part of what they pause.
bool write_file(const Piece &to, size_t at, const char *bytes, size_t size) {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY) return false;
  for (size_t done = 0; done < size;) {
    const off_t begin = offset_in_file(to, at + done);
    const size_t part = std::min(kPart - static_cast<size_t>(begin) % kPart, size - done);
    const bool is_hole = is_zero(bytes + done, part);
    const int flags = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (is_hole && fallocate(to.backing->fd, flags, begin, static_cast<off_t>(part)) != 0) return false;
    const ssize_t count = is_hole ? static_cast<ssize_t>(part) : pwrite(to.backing->fd, bytes + done, part, begin);
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}
bool read_file(const Piece &from, size_t at, char *bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t count = pread(from.backing->fd, bytes + done, size - done, offset_in_file(from, at + done));
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

// Memory of the driver is seldom touched more than once, and a fault for each of its pages takes longer than the copy.
// So the kernel copies by the file, and reads unwritten pages without taking memory.
bool goes_by_file(const Piece &piece, const Piece &other, size_t size) {
  return size >= kPage && piece.backing && !other.backing && __tsan_init == nullptr;
}

void copy_part(const Piece &to, size_t to_at, const Piece &from, size_t from_at, size_t size) {
  char *target = to.data + to_at;
  const char *source = from.data + from_at;
  if (goes_by_file(to, from, size) && write_file(to, to_at, source, size)) return;
  if (goes_by_file(from, to, size) && read_file(from, from_at, target, size)) return;
  // The address sanitizer moves byte by byte what may overlap, and copies the rest as fast as libc.
  if (target + size <= source || source + size <= target)
    memcpy(target, source, size);
  else
    memmove(target, source, size);
}

void fill_piece(const Piece &piece, unsigned char value) {
  size_t done = 0;
  if (goes_by_file(piece, {}, piece.size)) {
    char bytes[kPart];
    memset(bytes, value, sizeof bytes);
    while (done < piece.size && write_file(piece, done, bytes, std::min(kPart, piece.size - done)))
      done += std::min(kPart, piece.size - done);
  }
  if (done < piece.size) memset(piece.data + done, value, piece.size - done);
}

// The pieces of two stretches of the same length, copied without the lock.
void copy_pieces(const std::vector<Piece> &to, const std::vector<Piece> &from) {
  size_t i = 0, j = 0, done_i = 0, done_j = 0;
  while (i < to.size() && j < from.size()) {
    size_t part = std::min(to[i].size - done_i, from[j].size - done_j);
    copy_part(to[i], done_i, from[j], done_j, part);
    done_i += part;
    done_j += part;
    if (done_i == to[i].size) i++, done_i = 0;
    if (done_j == from[j].size) j++, done_j = 0;
  }
}

struct Request {
  uintptr_t to, from;
  size_t size;
  Needs to_needs, from_needs;
  bool waits;
  bool fills = false;  // with `value`; there is no `from`
  unsigned char value = 0;
};

CUresult carry_out(const Request &r, int device, const std::shared_ptr<char[]> &staged) {
  std::vector<Piece> to, from;
  {
    std::lock_guard<std::mutex> guard(state().mutex);
    Where where;
    if (translate(r.to, r.size, true, device, &to, &where)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    if (staged)
      from.push_back({staged.get(), r.size, nullptr});
    else if (!r.fills && translate(r.from, r.size, false, device, &from, &where))
      return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  if (!r.fills) copy_pieces(to, from);
  for (size_t i = 0; r.fills && i < to.size(); i++) fill_piece(to[i], r.value);
  return CUDA_SUCCESS;
}

// A copy of pageable memory. The buffer of the copy before is taken again where it is large enough, as the address
// sanitizer's allocator takes new pages for each, and a fault for each of them takes longer than the copy.
std::shared_ptr<char[]> stage(uintptr_t from, size_t size) {
  struct Kept {
    std::mutex mutex;
    std::unique_ptr<char[]> bytes;
    size_t size = 0;
  };
  static Kept &kept = *new Kept;  // streams of the driver outlive static objects
  std::unique_lock<std::mutex> guard(kept.mutex);
  if (kept.size < size) kept.bytes.reset(new char[kept.size = size]);
  const size_t capacity = std::exchange(kept.size, 0);
  std::shared_ptr<char[]> bytes(kept.bytes.release(), [capacity](char *done) {
    std::lock_guard<std::mutex> guard(kept.mutex);
    kept.bytes.reset(done);
    kept.size = capacity;
  });
  guard.unlock();
  memcpy(bytes.get(), reinterpret_cast<const char *>(from), size);
  return bytes;
}

CUresult queue(const Request &r, CUstream handle, std::unique_lock<std::mutex> &lock) {
  FAKE_CUDA_CONTEXT(context);
  FAKE_CUDA_STREAM(stream, handle);
  if (!r.size) return CUDA_SUCCESS;
  int device = stream->context->device;
  Where to_where, from_where = Where::device;
  if (CUresult wrong = check(r.to, r.size, true, r.to_needs, device, &to_where)) return wrong;
  if (!r.fills)
    if (CUresult wrong = check(r.from, r.size, false, r.from_needs, device, &from_where)) return wrong;
  if (r.waits)
    if (CUresult unsafe = refuse_during_capture()) return unsafe;
  std::shared_ptr<char[]> staged;
  if (!r.waits && !stream->capture && from_where == Where::pageable && to_where != Where::pageable)
    staged = stage(r.from, r.size);
  if (CUresult wrong = enqueue(stream, [r, device, staged] { return carry_out(r, device, staged); })) return wrong;
  if (stream->capture) return CUDA_SUCCESS;
  // Within a device nothing waits on the host; into pageable memory every copy does.
  bool within_device = to_where == Where::device && from_where == Where::device;
  if ((r.waits && !within_device) || to_where == Where::pageable) {
    wait_for(stream->last, lock);
    return stream->context->error;
  }
  return CUDA_SUCCESS;
}

uintptr_t address_of(const void *pointer) { return reinterpret_cast<uintptr_t>(pointer); }
uintptr_t address_of(CUdeviceptr address) { return address; }

}  // namespace

extern "C" {

// The types of the ends, and what the driver must know of them.
#define COPY(symbol, To, to_needs, From, from_needs)                                                                 \
  CUresult symbol(To to, From from, size_t size) {                                                                   \
    FAKE_CUDA_ENTER(symbol);                                                                                         \
    return queue({address_of(to), address_of(from), size, Needs::to_needs, Needs::from_needs, true}, nullptr, lock); \
  }
#define COPY_ASYNC(symbol, To, to_needs, From, from_needs)                                                           \
  CUresult symbol(To to, From from, size_t size, CUstream stream) {                                                  \
    FAKE_CUDA_ENTER(symbol);                                                                                         \
    return queue({address_of(to), address_of(from), size, Needs::to_needs, Needs::from_needs, false}, stream, lock); \
  }
COPY(cuMemcpy, CUdeviceptr, any, CUdeviceptr, any)
COPY(cuMemcpyHtoD_v2, CUdeviceptr, device, const void *, any)
COPY(cuMemcpyDtoH_v2, void *, any, CUdeviceptr, device)
COPY(cuMemcpyDtoD_v2, CUdeviceptr, device, CUdeviceptr, device)
COPY_ASYNC(cuMemcpyAsync, CUdeviceptr, any, CUdeviceptr, any)
COPY_ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr, device, const void *, any)
COPY_ASYNC(cuMemcpyDtoHAsync_v2, void *, any, CUdeviceptr, device)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, device, CUdeviceptr, device)

CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t size) {
  FAKE_CUDA_ENTER(cuMemsetD8_v2);
  return queue({address, 0, size, Needs::device, Needs::any, true, true, value}, nullptr, lock);
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t size, CUstream stream) {
  FAKE_CUDA_ENTER(cuMemsetD8Async);
  return queue({address, 0, size, Needs::device, Needs::any, false, true, value}, stream, lock);
}

}  // extern "C"
