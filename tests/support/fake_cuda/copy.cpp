// SPDX-License-Identifier: Apache-2.0
// Copies and fills. Addresses are looked up at the call, to refuse what is wrong at once, and again when the work runs:
// what was freed or unmapped meanwhile is an illegal access then, as on a device.
#include <cstring>

#include "stream.h"

using namespace fake;

namespace {

enum class Needs { any, device };  // device: the driver must know the address

CUresult check(uintptr_t address, size_t size, bool write, Needs needs, int device, Where *where) {
  if (CUresult wrong = translate(address, size, write, device, nullptr, where)) return wrong;
  return needs == Needs::device && *where == Where::pageable ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// The pieces of two stretches of the same length, copied without the lock.
void copy_pieces(const std::vector<Piece> &to, const std::vector<Piece> &from) {
  size_t i = 0, j = 0, done_i = 0, done_j = 0;
  while (i < to.size() && j < from.size()) {
    size_t part = std::min(to[i].size - done_i, from[j].size - done_j);
    memmove(to[i].data + done_i, from[j].data + done_j, part);
    done_i += part;
    done_j += part;
    if (done_i == to[i].size) i++, done_i = 0;
    if (done_j == from[j].size) j++, done_j = 0;
  }
}

struct CopyRequest {
  uintptr_t to, from;
  size_t size;
  Needs to_needs, from_needs;
  bool wait;
};

CUresult copy(const CopyRequest &r, CUstream handle, std::unique_lock<std::mutex> &lock) {
  FAKE_CUDA_CONTEXT(context);
  std::shared_ptr<Stream> stream;
  if (CUresult wrong = find_stream(handle, context, &stream)) return wrong;
  if (!r.size) return CUDA_SUCCESS;
  int device = stream->context->device;
  Where to_where, from_where;
  if (CUresult wrong = check(r.to, r.size, true, r.to_needs, device, &to_where)) return wrong;
  if (CUresult wrong = check(r.from, r.size, false, r.from_needs, device, &from_where)) return wrong;
  if (r.wait)
    if (CUresult unsafe = refuse_during_capture(context)) return unsafe;
  std::shared_ptr<std::vector<char>> staged;
  if (!r.wait && !stream->capture && from_where == Where::pageable && to_where != Where::pageable) {
    const char *bytes = reinterpret_cast<const char *>(r.from);
    staged = std::make_shared<std::vector<char>>(bytes, bytes + r.size);
  }
  auto run = [r, device, staged] {
    std::vector<Piece> to, from;
    {
      std::lock_guard<std::mutex> guard(state().mutex);
      Where where;
      if (translate(r.to, r.size, true, device, &to, &where)) return CUDA_ERROR_ILLEGAL_ADDRESS;
      if (staged)
        from.push_back({staged->data(), r.size, nullptr});
      else if (translate(r.from, r.size, false, device, &from, &where))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    copy_pieces(to, from);
    return CUDA_SUCCESS;
  };
  if (CUresult wrong = enqueue(stream, run)) return wrong;
  if (stream->capture) return CUDA_SUCCESS;
  // From device to device nothing waits on the host; into pageable memory every copy does.
  bool within_device = to_where == Where::device && from_where == Where::device;
  if ((r.wait && !within_device) || to_where == Where::pageable) {
    wait_for(stream->last, lock);
    return stream->context->error;
  }
  return CUDA_SUCCESS;
}

CUresult fill(CUdeviceptr address, unsigned char value, size_t size, CUstream handle, bool asynchronous,
              std::unique_lock<std::mutex> &lock) {
  FAKE_CUDA_CONTEXT(context);
  std::shared_ptr<Stream> stream;
  if (CUresult wrong = find_stream(handle, context, &stream)) return wrong;
  if (!size) return CUDA_SUCCESS;
  int device = stream->context->device;
  Where where;
  if (CUresult wrong = check(address, size, true, Needs::device, device, &where)) return wrong;
  if (!asynchronous)
    if (CUresult unsafe = refuse_during_capture(context)) return unsafe;
  auto run = [address, value, size, device] {
    std::vector<Piece> pieces;
    {
      std::lock_guard<std::mutex> guard(state().mutex);
      Where where;
      if (translate(address, size, true, device, &pieces, &where)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (Piece &piece : pieces) memset(piece.data, value, piece.size);
    return CUDA_SUCCESS;
  };
  if (CUresult wrong = enqueue(stream, run)) return wrong;
  // Only memory that the host can see makes a fill wait.
  if (asynchronous || where == Where::device) return CUDA_SUCCESS;
  wait_for(stream->last, lock);
  return stream->context->error;
}

uintptr_t address_of(const void *pointer) { return reinterpret_cast<uintptr_t>(pointer); }

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) {
  FAKE_CUDA_ENTER(cuMemcpy);
  return copy({to, from, size, Needs::any, Needs::any, true}, nullptr, lock);
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  FAKE_CUDA_ENTER(cuMemcpyAsync);
  return copy({to, from, size, Needs::any, Needs::any, false}, stream, lock);
}
CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
  FAKE_CUDA_ENTER(cuMemcpyHtoD_v2);
  return copy({to, address_of(from), size, Needs::device, Needs::any, true}, nullptr, lock);
}
CUresult CUDAAPI cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
  FAKE_CUDA_ENTER(cuMemcpyDtoH_v2);
  return copy({address_of(to), from, size, Needs::any, Needs::device, true}, nullptr, lock);
}
CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) {
  FAKE_CUDA_ENTER(cuMemcpyDtoD_v2);
  return copy({to, from, size, Needs::device, Needs::device, true}, nullptr, lock);
}
CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  FAKE_CUDA_ENTER(cuMemcpyHtoDAsync_v2);
  return copy({to, address_of(from), size, Needs::device, Needs::any, false}, stream, lock);
}
CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  FAKE_CUDA_ENTER(cuMemcpyDtoHAsync_v2);
  return copy({address_of(to), from, size, Needs::any, Needs::device, false}, stream, lock);
}
CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  FAKE_CUDA_ENTER(cuMemcpyDtoDAsync_v2);
  return copy({to, from, size, Needs::device, Needs::device, false}, stream, lock);
}
CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t size) {
  FAKE_CUDA_ENTER(cuMemsetD8_v2);
  return fill(address, value, size, nullptr, false, lock);
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t size, CUstream stream) {
  FAKE_CUDA_ENTER(cuMemsetD8Async);
  return fill(address, value, size, stream, true, lock);
}

}  // extern "C"
