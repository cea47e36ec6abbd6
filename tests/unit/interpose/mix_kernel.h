// mix(out, in, salt): out[i] = 31 * out[i] + 7 * in[i] + block + salt, so that the order of two of them shows. As PTX,
// which may be cut.
#pragma once

#include <cstdint>

namespace tessera::test {

inline constexpr char kMixPtx[] = R"(
.version 8.0
.target sm_90
.address_size 64
.visible .entry mix(.param .u64 mix_param_0, .param .u64 mix_param_1, .param .u32 mix_param_2)
{
  .reg .b32 %r<12>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [mix_param_0];
  ld.param.u64 %rd2, [mix_param_1];
  ld.param.u32 %r1, [mix_param_2];
  cvta.to.global.u64 %rd3, %rd1;
  cvta.to.global.u64 %rd4, %rd2;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  mul.wide.u32 %rd5, %r5, 4;
  add.s64 %rd6, %rd3, %rd5;
  add.s64 %rd7, %rd4, %rd5;
  ld.global.u32 %r6, [%rd6];
  ld.global.u32 %r7, [%rd7];
  mul.lo.u32 %r8, %r6, 31;
  mad.lo.u32 %r9, %r7, 7, %r8;
  add.u32 %r10, %r9, %r2;
  add.u32 %r11, %r10, %r1;
  st.global.u32 [%rd6], %r11;
  ret;
}
)";
inline constexpr uint32_t kMixBlocks = 64, kMixThreads = 32, kMixWords = kMixBlocks * kMixThreads;

}  // namespace tessera::test
