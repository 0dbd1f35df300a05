/* Vectors of NEON. */
#include <arm_neon.h>

#define LANES 4
#define TILE 16 /* sums that a product of queries and keys keeps at once */

typedef float32x4_t vec;

FAST vec v_zero(void) { return vdupq_n_f32(0); }
FAST vec v_set(float x) { return vdupq_n_f32(x); }
FAST vec v_load(const float *at) { return vld1q_f32(at); }
FAST void v_store(float *at, vec x) { vst1q_f32(at, x); }
FAST vec v_load_f16(const uint16_t *at) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at))); }
FAST void v_store_f16(uint16_t *at, vec x) { vst1_u16(at, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
FAST vec v_load_bf16(const uint16_t *at) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(at), 16)); }
FAST void v_store_bf16(uint16_t *at, vec x) { /* to the nearest, ties to even */
    uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t near = vaddq_u32(vaddq_u32(bits, odd), vdupq_n_u32(0x7fff));
    near = vbslq_u32(vceqq_f32(x, x), near, vorrq_u32(bits, vdupq_n_u32(0x400000)));
    vst1_u16(at, vshrn_n_u32(near, 16));
}
FAST vec v_load_i8(const int8_t *at) {
    int32_t four;
    __builtin_memcpy(&four, at, sizeof four);
    int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
FAST void v_store_i8(int8_t *at, vec x) {
    int16x4_t half = vqmovn_s32(vcvtnq_s32_f32(x));
    int32_t four = vget_lane_s32(vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(half, half))), 0);
    __builtin_memcpy(at, &four, sizeof four);
}
FAST vec v_load_e4m3(const uint8_t *at) { /* in units of FP8_UNIT */
    uint16_t halves[4];
    for (int i = 0; i < 4; i++)
        halves[i] = (uint16_t)((at[i] & 0x80) << 8 | (at[i] & 0x7f) << 7);
    return v_load_f16(halves);
}
FAST vec v_load_nibbles(const uint8_t *at, const float *table) {
    float made[4] = {table[at[0] & 15], table[at[0] >> 4], table[at[1] & 15], table[at[1] >> 4]};
    return v_load(made);
}
FAST vec v_load_pairs(const uint8_t *at, uint32_t signs, const float *table) {
    float made[4];
    for (int i = 0; i < 4; i++)
        made[i] = signs >> i & 1 ? -table[*at >> 2 * i & 3] : table[*at >> 2 * i & 3];
    return v_load(made);
}
FAST vec v_fma(vec a, vec b, vec sum) { return vfmaq_f32(sum, a, b); }
FAST vec v_add(vec a, vec b) { return vaddq_f32(a, b); }
FAST vec v_sub(vec a, vec b) { return vsubq_f32(a, b); }
FAST vec v_mul(vec a, vec b) { return vmulq_f32(a, b); }
FAST vec v_div(vec a, vec b) { return vdivq_f32(a, b); }
FAST vec v_max(vec a, vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); } /* b where one of them is no number */
FAST vec v_min(vec a, vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); } /* likewise */
FAST vec v_abs(vec a) { return vabsq_f32(a); }
FAST vec v_sign(vec of, vec x) { /* x, which is not negative, with the sign of the other */
    return vbslq_f32(vdupq_n_u32(0x80000000u), of, x);
}
FAST vec v_round(vec x) { return vrndnq_f32(x); }
FAST vec v_power(vec n) { /* 2^n of whole numbers from -126 on */
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23));
}
FAST vec v_from(vec x, float least, vec value) { /* value, and 0 where x is less than that */
    return vbslq_f32(vcltq_f32(x, vdupq_n_f32(least)), vdupq_n_f32(0), value);
}
FAST float v_largest(vec x) { return vmaxvq_f32(x); }

/* out[i] = the sum of the lanes of x[i], each by the same tree. */
FAST void v_totals(const vec *x, float *out) {
#pragma GCC unroll 4
    for (int i = 0; i < TILE; i += 4)
        v_store(out + i, vpaddq_f32(vpaddq_f32(x[i], x[i + 1]), vpaddq_f32(x[i + 2], x[i + 3])));
}
