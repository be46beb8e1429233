// SPDX-License-Identifier: Apache-2.0
// The kernel that finds which ranges of device memory are all zero, so that a backup need not copy them to find out.
#ifndef GMM_BACKEND_CUDA_FIND_ZEROS_H
#define GMM_BACKEND_CUDA_FIND_ZEROS_H

#include <cstdint>

namespace gmm::cuda {

// The kernel as PTX, which the driver compiles for its device. Version and target are old, so every driver accepts
// them. A range has gridDim.x blocks. Each thread reads 16 bytes at a time. The first threads also read the bytes
// before and behind whole 16 bytes. A thread that finds a nonzero byte writes `nonzero` and ends, so memory in use is
// read only in part.
inline constexpr char kFindZeros[] = R"(
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

inline constexpr unsigned kBlocks = 8, kThreads = 256;
inline constexpr uint64_t kMostRanges = 65535;  // blocks in y

}  // namespace gmm::cuda
#endif
