// SPDX-License-Identifier: Apache-2.0
// particles.cu as PTX. A driver of CUDA 11 or newer compiles it for GPUs from Turing (sm_75) on.
#ifndef ENGINE_PARTICLES_PTX_HPP
#define ENGINE_PARTICLES_PTX_HPP

constexpr char kParticlesPtx[] = R"(.version 7.0
.target sm_75
.address_size 64

.visible .entry particles(
  .param .u64 particles_param_0,
  .param .u32 particles_param_1,
  .param .f32 particles_param_2
)
{
  .reg .pred %p<3>;
  .reg .f32 %f<46>;
  .reg .b32 %r<26>;
  .reg .b64 %rd<7>;

  ld.param.u64 %rd1, [particles_param_0];
  ld.param.u32 %r2, [particles_param_1];
  ld.param.f32 %f1, [particles_param_2];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.s32 %r1, %r3, %r4, %r5;
  setp.ge.u32 %p1, %r1, %r2;
  @%p1 bra $L__BB0_2;

  cvta.to.global.u64 %rd2, %rd1;
  mul.wide.u32 %rd3, %r1, -1431655765;
  shr.u64 %rd4, %rd3, 33;
  cvt.u32.u64 %r6, %rd4;
  mul.lo.s32 %r7, %r6, 3;
  sub.s32 %r8, %r1, %r7;
  cvt.rn.f32.u32 %f2, %r8;
  mul.ftz.f32 %f3, %f1, 0f3EB33333;
  fma.rn.ftz.f32 %f4, %f2, 0f40060419, %f3;
  mul.ftz.f32 %f5, %f4, 0f3E22F983;
  cvt.rni.f32.f32 %f6, %f5;
  mul.ftz.f32 %f7, %f6, 0f40C90FDB;
  sub.ftz.f32 %f8, %f4, %f7;
  and.b32 %r9, %r1, 1;
  setp.eq.b32 %p2, %r9, 1;
  selp.f32 %f9, 0f40490FF9, 0f00000000, %p2;
  mul.lo.s32 %r10, %r1, -1640531535;
  add.s32 %r11, %r10, -1640531535;
  shr.u32 %r12, %r11, 15;
  xor.b32 %r13, %r12, %r11;
  mul.lo.s32 %r14, %r13, -2048144777;
  shr.u32 %r15, %r14, 16;
  cvt.rn.f32.u32 %f10, %r15;
  mul.ftz.f32 %f11, %f10, 0f37800000;
  mul.ftz.f32 %f12, %f11, 0f3F000000;
  fma.rn.ftz.f32 %f13, %f11, %f12, 0f3CA3D70A;
  add.s32 %r16, %r10, 1401181143;
  shr.u32 %r17, %r16, 15;
  xor.b32 %r18, %r17, %r16;
  mul.lo.s32 %r19, %r18, -2048144777;
  shr.u32 %r20, %r19, 16;
  cvt.rn.f32.u32 %f14, %r20;
  add.s32 %r21, %r10, -1766876611;
  shr.u32 %r22, %r21, 15;
  xor.b32 %r23, %r22, %r21;
  mul.lo.s32 %r24, %r23, -2048144777;
  shr.u32 %r25, %r24, 16;
  cvt.rn.f32.u32 %f15, %r25;
  mul.ftz.f32 %f16, %f15, 0f37800000;
  fma.rn.ftz.f32 %f17, %f14, 0f37800000, %f16;
  add.ftz.f32 %f18, %f17, 0fBF800000;
  add.ftz.f32 %f19, %f11, 0f3ECCCCCD;
  lg2.approx.ftz.f32 %f20, %f13;
  mul.ftz.f32 %f21, %f20, 0f3F317218;
  fma.rn.ftz.f32 %f22, %f21, 0f40400000, %f9;
  fma.rn.ftz.f32 %f23, %f19, %f18, %f22;
  fma.rn.ftz.f32 %f24, %f13, %f13, 0f3C23D70A;
  sqrt.rn.ftz.f32 %f25, %f24;
  mul.ftz.f32 %f26, %f1, 0f3F000000;
  div.full.ftz.f32 %f27, %f26, %f25;
  sub.ftz.f32 %f28, %f23, %f27;
  mul.ftz.f32 %f29, %f28, 0f3E22F983;
  cvt.rni.f32.f32 %f30, %f29;
  mul.ftz.f32 %f31, %f30, 0f40C90FDB;
  sub.ftz.f32 %f32, %f28, %f31;
  cos.approx.ftz.f32 %f33, %f8;
  cos.approx.ftz.f32 %f34, %f32;
  mul.ftz.f32 %f35, %f13, %f34;
  fma.rn.ftz.f32 %f36, %f33, 0f3F59999A, %f35;
  sin.approx.ftz.f32 %f37, %f8;
  sin.approx.ftz.f32 %f38, %f32;
  mul.ftz.f32 %f39, %f13, %f38;
  mul.ftz.f32 %f40, %f39, 0f3F4CCCCD;
  sqrt.rn.ftz.f32 %f41, %f11;
  mul.wide.u32 %rd5, %r1, 16;
  add.s64 %rd6, %rd2, %rd5;
  fma.rn.ftz.f32 %f42, %f37, 0f3EE66666, %f40;
  mul.ftz.f32 %f43, %f36, 0f3F100000;
  fma.rn.ftz.f32 %f44, %f41, 0fBF666666, 0f3F800000;
  mov.f32 %f45, 0f40200000;
  st.global.v4.f32 [%rd6], {%f43, %f42, %f44, %f45};

$L__BB0_2:
  ret;

}
)";

#endif
