// SPDX-License-Identifier: Apache-2.0
// find_zeros.cu as PTX, made by make_ptx.py. Do not edit.
#ifndef GMM_BACKEND_CUDA_FIND_ZEROS_PTX_H
#define GMM_BACKEND_CUDA_FIND_ZEROS_PTX_H

namespace gmm::cuda {

inline constexpr char kFindZeros[] = R"(
.version 6.0
.target sm_50
.address_size 64
.visible .entry gmm_find_zeros(
  .param .u64 gmm_find_zeros_param_0
)
{
  .reg .pred %p<13>;
  .reg .b16 %rs<2>;
  .reg .b32 %r<14>;
  .reg .b64 %rd<28>;
  ld.param.u64 %rd14, [gmm_find_zeros_param_0];
  cvta.to.global.u64 %rd15, %rd14;
  mov.u32 %r2, %ctaid.y;
  mul.wide.u32 %rd16, %r2, 24;
  add.s64 %rd1, %rd15, %rd16;
  ld.global.u64 %rd17, [%rd1+8];
  ld.global.u64 %rd2, [%rd1];
  add.s64 %rd3, %rd17, %rd2;
  add.s64 %rd18, %rd2, 15;
  and.b64 %rd4, %rd18, -16;
  and.b64 %rd5, %rd3, -16;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r3, %r1, %r4;
  cvt.u64.u32 %rd6, %r5;
  mul.wide.u32 %rd19, %r5, 16;
  add.s64 %rd26, %rd4, %rd19;
  setp.ge.u64 %p1, %rd26, %rd5;
  @%p1 bra $L__BB0_5;
  mov.u32 %r6, %nctaid.x;
  mul.lo.s32 %r7, %r6, %r1;
  mul.wide.u32 %rd8, %r7, 16;
$L__BB0_2:
  ld.v2.u64 {%rd20, %rd21}, [%rd26];
  or.b64 %rd24, %rd20, %rd21;
  setp.eq.s64 %p2, %rd24, 0;
  add.s64 %rd26, %rd26, %rd8;
  @%p2 bra $L__BB0_4;
  bra.uni $L__BB0_3;
$L__BB0_4:
  setp.lt.u64 %p3, %rd26, %rd5;
  @%p3 bra $L__BB0_2;
$L__BB0_5:
  cvt.u32.u64 %r9, %rd6;
  setp.gt.u32 %p4, %r9, 31;
  @%p4 bra $L__BB0_11;
  setp.lt.u32 %p5, %r9, 16;
  @%p5 bra $L__BB0_8;
  bra.uni $L__BB0_7;
$L__BB0_8:
  add.s64 %rd27, %rd2, %rd6;
  setp.ge.u64 %p9, %rd27, %rd4;
  setp.ge.u64 %p10, %rd27, %rd3;
  or.pred %p11, %p9, %p10;
  @%p11 bra $L__BB0_11;
  bra.uni $L__BB0_9;
$L__BB0_3:
  mov.u32 %r8, 1;
  st.global.u32 [%rd1+16], %r8;
  bra.uni $L__BB0_11;
$L__BB0_7:
  add.s32 %r12, %r9, -16;
  cvt.u64.u32 %rd25, %r12;
  add.s64 %rd27, %rd5, %rd25;
  setp.ge.u64 %p6, %rd27, %rd2;
  setp.lt.u64 %p7, %rd27, %rd3;
  and.pred %p8, %p7, %p6;
  @%p8 bra $L__BB0_9;
  bra.uni $L__BB0_11;
$L__BB0_9:
  ld.u8 %rs1, [%rd27];
  setp.eq.s16 %p12, %rs1, 0;
  @%p12 bra $L__BB0_11;
  mov.u32 %r13, 1;
  st.global.u32 [%rd1+16], %r13;
$L__BB0_11:
  ret;
}
)";

}  // namespace gmm::cuda
#endif
