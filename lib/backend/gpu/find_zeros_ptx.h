// SPDX-License-Identifier: Apache-2.0
// find_zeros.cu as PTX, made by make_ptx.py. Do not edit.
#ifndef GMM_BACKEND_GPU_FIND_ZEROS_PTX_H
#define GMM_BACKEND_GPU_FIND_ZEROS_PTX_H

namespace gmm::gpu {

inline constexpr char kFindZeros[] = R"(
.version 6.0
.target sm_50
.address_size 64
.visible .entry gmm_find_zeros(
  .param .u64 gmm_find_zeros_param_0
)
{
  .reg .pred %p<4>;
  .reg .b32 %r<9>;
  .reg .b64 %rd<19>;
  ld.param.u64 %rd7, [gmm_find_zeros_param_0];
  cvta.to.global.u64 %rd8, %rd7;
  mov.u32 %r2, %ctaid.y;
  mul.wide.u32 %rd9, %r2, 24;
  add.s64 %rd1, %rd8, %rd9;
  ld.global.u64 %rd10, [%rd1+8];
  ld.global.u64 %rd11, [%rd1];
  add.s64 %rd2, %rd10, %rd11;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r3, %r1, %r4;
  mul.wide.u32 %rd12, %r5, 16;
  add.s64 %rd18, %rd11, %rd12;
  setp.ge.u64 %p1, %rd18, %rd2;
  @%p1 bra $L__BB0_5;
  mov.u32 %r6, %nctaid.x;
  mul.lo.s32 %r7, %r6, %r1;
  mul.wide.u32 %rd4, %r7, 16;
$L__BB0_2:
  ld.v2.u64 {%rd13, %rd14}, [%rd18];
  or.b64 %rd17, %rd13, %rd14;
  setp.eq.s64 %p2, %rd17, 0;
  add.s64 %rd18, %rd18, %rd4;
  @%p2 bra $L__BB0_4;
  bra.uni $L__BB0_3;
$L__BB0_4:
  setp.lt.u64 %p3, %rd18, %rd2;
  @%p3 bra $L__BB0_2;
  bra.uni $L__BB0_5;
$L__BB0_3:
  mov.u32 %r8, 1;
  st.global.u32 [%rd1+16], %r8;
$L__BB0_5:
  ret;
}
)";

}  // namespace gmm::gpu
#endif
