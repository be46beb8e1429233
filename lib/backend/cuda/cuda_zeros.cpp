// SPDX-License-Identifier: Apache-2.0
// Which ranges of device memory are all zero: a kernel looks, so that they need not be copied to find out.
#if defined(GMM_WITH_CUDA)

#include <cinttypes>

#include "backend/cuda/cuda_backend_impl.h"

namespace gmm::cuda {
namespace {

// PTX, which the driver compiles for its device; the version and target are old, so that every driver takes it. A range has
// gridDim.x blocks. Each thread reads 16 bytes at a time; the first threads read what lies before and behind whole
// 16 bytes. A thread that finds something writes that and ends: memory that is in use is hardly read.
constexpr char kFindZeros[] = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry gmm_find_zeros(.param .u64 ranges)
{
  .reg .pred %p<8>;
  .reg .b32 %r<10>;
  .reg .b64 %rd<16>;

  ld.param.u64 %rd0, [ranges];
  cvta.to.global.u64 %rd0, %rd0;
  mov.u32 %r0, %ctaid.y;
  mul.wide.u32 %rd1, %r0, 24;
  add.u64 %rd1, %rd0, %rd1;
  ld.global.u64 %rd2, [%rd1];
  ld.global.u64 %rd3, [%rd1+8];
  add.u64 %rd4, %rd2, %rd3;
  add.u64 %rd5, %rd2, 15;
  and.b64 %rd5, %rd5, -16;
  and.b64 %rd6, %rd4, -16;
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %nctaid.x;
  mad.lo.u32 %r5, %r3, %r2, %r1;
  mul.lo.u32 %r6, %r4, %r2;
  mul.wide.u32 %rd7, %r5, 16;
  add.u64 %rd7, %rd5, %rd7;
  mul.wide.u32 %rd8, %r6, 16;

BODY:
  setp.ge.u64 %p0, %rd7, %rd6;
  @%p0 bra EDGES;
  ld.global.v2.u64 {%rd9, %rd10}, [%rd7];
  or.b64 %rd9, %rd9, %rd10;
  setp.ne.u64 %p1, %rd9, 0;
  @%p1 bra FOUND;
  add.u64 %rd7, %rd7, %rd8;
  bra BODY;

EDGES:
  setp.ge.u32 %p2, %r5, 32;
  @%p2 bra DONE;
  cvt.u64.u32 %rd11, %r5;
  setp.ge.u32 %p3, %r5, 16;
  @%p3 bra TAIL;
  add.u64 %rd12, %rd2, %rd11;
  setp.ge.u64 %p4, %rd12, %rd5;
  @%p4 bra DONE;
  bra BYTE;
TAIL:
  sub.u64 %rd11, %rd11, 16;
  add.u64 %rd12, %rd6, %rd11;
  setp.lt.u64 %p4, %rd12, %rd2;
  @%p4 bra DONE;
BYTE:
  setp.ge.u64 %p5, %rd12, %rd4;
  @%p5 bra DONE;
  ld.global.u8 %r7, [%rd12];
  setp.eq.u32 %p6, %r7, 0;
  @%p6 bra DONE;

FOUND:
  mov.u32 %r8, 1;
  st.global.u32 [%rd1+16], %r8;
DONE:
  ret;
}
)";

constexpr unsigned kBlocks = 8, kThreads = 256;
constexpr uint64_t kMostRanges = 65535;  // blocks in y

}  // namespace

int32_t CudaBackend::host_numa_node(Device device) {
  MessageGuard keep;
  DeviceState *state = nullptr;
  return state_of(device, &state).ok() ? state->host_numa_node : -1;
}

// Loads the kernel when it is first needed; the device's context is current.
Status CudaBackend::zeros_function(Device device, CUfunction *out) {
  DeviceState *state = nullptr;
  GMM_TRY(state_of(device, &state));
  *out = state->find_zeros.load(std::memory_order_acquire);
  if (*out != nullptr) return Status();
  if (driver_.cuModuleLoadData == nullptr || driver_.cuModuleUnload == nullptr)
    return driver_.missing("cuModuleLoadData");
  if (driver_.cuModuleGetFunction == nullptr) return driver_.missing("cuModuleGetFunction");
  LockGuard lock(mutex_);
  *out = state->find_zeros.load(std::memory_order_relaxed);
  if (*out != nullptr) return Status();
  CaptureGuard capture(driver_);
  if (state->module == nullptr)
    GMM_TRY(driver_.check(driver_.cuModuleLoadData(&state->module, kFindZeros), "cuModuleLoadData"));
  GMM_TRY(driver_.check(driver_.cuModuleGetFunction(out, state->module, "gmm_find_zeros"), "cuModuleGetFunction"));
  state->find_zeros.store(*out, std::memory_order_release);
  return Status();
}

Status CudaBackend::find_zeros(Device device, gmm_stream stream, ZeroRange *ranges, uint64_t count) {
  if (count == 0) return Status();
  if (count > kMostRanges)
    return fail(GMM_ERROR_INVALID_SIZE, "Looking for zeros in %" PRIu64 " ranges: %" PRIu64 " are the most.", count,
                kMostRanges);
  if (driver_.cuLaunchKernel == nullptr) return driver_.missing("cuLaunchKernel");
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, device));
  CUfunction function = nullptr;
  Status status = zeros_function(device, &function);
  if (status.ok()) {
    void *arguments[] = {&ranges};
    status = driver_.check(driver_.cuLaunchKernel(function, kBlocks, static_cast<unsigned>(count), 1, kThreads, 1, 1, 0,
                                                  to_driver(stream), arguments, nullptr),
                           "cuLaunchKernel");
  }
  return status.ok() ? status : prefix(status, "Looking for zeros on CUDA device %d: ", device.ordinal);
}

}  // namespace gmm::cuda

#endif
