/* Sixteen numbers in float32, by what the processor has; each operation rounds as IEEE 754 says. `vpart` is what one
 * register holds of them: where many are summed at once, part by part stays in registers. */
#ifndef VECTORS_H
#define VECTORS_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

INLINE float v_of_half(uint16_t half) { /* of float16 */
#if defined(__F16C__)
    return _cvtsh_ss(half);
#elif defined(__aarch64__)
    __fp16 own;
    memcpy(&own, &half, sizeof own);
    return own;
#else
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, rest = half & 0x3ff;
    float x;
    if (exponent == 0) { /* less than 2^-14 */
        x = (float)rest * 0x1p-24f;
        return sign ? -x : x;
    }
    uint32_t bits = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | rest << 13;
    memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

#if defined(__AVX512F__)
#include <immintrin.h>
typedef __m512 vec;
INLINE vec v_zero(void) { return _mm512_setzero_ps(); }
INLINE vec v_set(float x) { return _mm512_set1_ps(x); }
INLINE vec v_load(const float *at) { return _mm512_loadu_ps(at); }
INLINE void v_store(float *at, vec x) { _mm512_storeu_ps(at, x); }
INLINE vec v_fma(vec a, vec b, vec sum) { return _mm512_fmadd_ps(a, b, sum); }
INLINE vec v_load_f16(const uint16_t *at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at)); }
#define REGISTER LANES
typedef vec vpart;
#define p_set v_set
#define p_load v_load
#define p_store v_store
#define p_mul v_mul
#define p_fma v_fma
#define p_load_f16 v_load_f16
#define p_load_bf16 v_load_bf16
INLINE vec v_load_bf16(const uint16_t *at) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
/* Of sixteen pairs the first numbers, and the second ones. */
INLINE void v_load_pairs_bf16(const uint16_t *at, vec *first, vec *second) {
    __m512i both = _mm512_loadu_si512(at);
    *first = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    *second = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)));
}
INLINE float v_total(vec x) { return _mm512_reduce_add_ps(x); }
INLINE vec v_add(vec a, vec b) { return _mm512_add_ps(a, b); }
INLINE vec v_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
INLINE vec v_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
INLINE vec v_div(vec a, vec b) { return _mm512_div_ps(a, b); }
INLINE vec v_max(vec a, vec b) { return _mm512_max_ps(a, b); }
INLINE vec v_min(vec a, vec b) { return _mm512_min_ps(a, b); }
INLINE vec v_round(vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vec v_power(vec n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}

#elif defined(__AVX2__)
#include <immintrin.h>
typedef struct {
    __m256 low, high;
} vec;
INLINE vec v_zero(void) { return (vec){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE vec v_set(float x) { return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE vec v_load(const float *at) { return (vec){_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)}; }
INLINE void v_store(float *at, vec x) {
    _mm256_storeu_ps(at, x.low);
    _mm256_storeu_ps(at + 8, x.high);
}
INLINE vec v_fma(vec a, vec b, vec sum) {
    return (vec){_mm256_fmadd_ps(a.low, b.low, sum.low), _mm256_fmadd_ps(a.high, b.high, sum.high)};
}
INLINE vec v_load_f16(const uint16_t *at) {
    const __m128i *half = (const __m128i *)at;
    return (vec){_mm256_cvtph_ps(_mm_loadu_si128(half)), _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
}
INLINE __m256 v_wide_bf16(const uint16_t *at) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
INLINE vec v_load_bf16(const uint16_t *at) { return (vec){v_wide_bf16(at), v_wide_bf16(at + 8)}; }
#define REGISTER 8
typedef __m256 vpart;
INLINE vpart p_set(float x) { return _mm256_set1_ps(x); }
INLINE vpart p_load(const float *at) { return _mm256_loadu_ps(at); }
INLINE void p_store(float *at, vpart x) { _mm256_storeu_ps(at, x); }
INLINE vpart p_mul(vpart a, vpart b) { return _mm256_mul_ps(a, b); }
INLINE vpart p_fma(vpart a, vpart b, vpart sum) { return _mm256_fmadd_ps(a, b, sum); }
INLINE vpart p_load_f16(const uint16_t *at) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at)); }
#define p_load_bf16 v_wide_bf16
INLINE void v_load_pairs_bf16(const uint16_t *at, vec *first, vec *second) {
    __m256i low = _mm256_loadu_si256((const __m256i *)at), high = _mm256_loadu_si256((const __m256i *)at + 1);
    *first = (vec){_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
    const __m256i upper = _mm256_set1_epi32(-65536);
    *second = (vec){_mm256_castsi256_ps(_mm256_and_si256(low, upper)), _mm256_castsi256_ps(_mm256_and_si256(high, upper))};
}
#define BOTH(name, operation) \
    INLINE vec name(vec a, vec b) { return (vec){operation(a.low, b.low), operation(a.high, b.high)}; }
BOTH(v_add, _mm256_add_ps)
BOTH(v_sub, _mm256_sub_ps)
BOTH(v_mul, _mm256_mul_ps)
BOTH(v_div, _mm256_div_ps)
BOTH(v_max, _mm256_max_ps)
BOTH(v_min, _mm256_min_ps)
#undef BOTH
INLINE __m256 v_round_half(__m256 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vec v_round(vec x) { return (vec){v_round_half(x.low), v_round_half(x.high)}; }
INLINE __m256 v_power_half(__m256 n) {
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
INLINE vec v_power(vec n) { return (vec){v_power_half(n.low), v_power_half(n.high)}; }
INLINE __m128 v_quarter(vec x) {
    __m256 all = _mm256_add_ps(x.low, x.high);
    return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}
INLINE float v_total(vec x) {
    __m128 half = v_quarter(x);
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
/* v_total of four. */
INLINE __m128 v_totals(const vec x[4]) {
    __m128 a = v_quarter(x[0]), b = v_quarter(x[1]), c = v_quarter(x[2]), d = v_quarter(x[3]);
    a = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
    c = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
    return _mm_add_ps(_mm_movelh_ps(a, c), _mm_movehl_ps(c, a));
}

#else
typedef float vec __attribute__((vector_size(64)));
typedef uint32_t v_bits __attribute__((vector_size(64)));
INLINE vec v_zero(void) { return (vec){0}; }
INLINE vec v_set(float x) { return (vec){0} + x; }
INLINE vec v_load(const float *at) {
    vec x;
    memcpy(&x, at, sizeof x);
    return x;
}
INLINE void v_store(float *at, vec x) { memcpy(at, &x, sizeof x); }
#if defined(__aarch64__)
#define REGISTER 4
typedef float32x4_t vpart;
INLINE vpart p_fma(vpart a, vpart b, vpart sum) { return vfmaq_f32(sum, a, b); }
INLINE vpart p_load_f16(const uint16_t *at) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at))); }
INLINE vec v_fma(vec a, vec b, vec sum) {
    vpart parts[3][LANES / REGISTER];
    memcpy(parts[0], &a, sizeof a);
    memcpy(parts[1], &b, sizeof b);
    memcpy(parts[2], &sum, sizeof sum);
    for (int i = 0; i < LANES / REGISTER; i++)
        parts[2][i] = p_fma(parts[0][i], parts[1][i], parts[2][i]);
    memcpy(&sum, parts[2], sizeof sum);
    return sum;
}
#else
#define REGISTER LANES
typedef vec vpart;
INLINE vec v_fma(vec a, vec b, vec sum) { return sum + a * b; }
#define p_fma v_fma
#define p_load_f16 v_load_f16
#endif
typedef uint32_t p_bits __attribute__((vector_size(4 * REGISTER)));
INLINE vpart p_set(float x) { return (vpart){0} + x; }
INLINE vpart p_load(const float *at) {
    vpart x;
    memcpy(&x, at, sizeof x);
    return x;
}
INLINE void p_store(float *at, vpart x) { memcpy(at, &x, sizeof x); }
INLINE vpart p_mul(vpart a, vpart b) { return a * b; }
INLINE vpart p_load_bf16(const uint16_t *at) {
    p_bits bits;
    for (int i = 0; i < REGISTER; i++)
        bits[i] = (uint32_t)at[i] << 16;
    return (vpart)bits;
}
INLINE vec v_add(vec a, vec b) { return a + b; }
INLINE vec v_sub(vec a, vec b) { return a - b; }
INLINE vec v_mul(vec a, vec b) { return a * b; }
INLINE vec v_div(vec a, vec b) { return a / b; }
INLINE vec v_max(vec a, vec b) {
    for (int i = 0; i < LANES; i++)
        a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}
INLINE vec v_min(vec a, vec b) {
    for (int i = 0; i < LANES; i++)
        a[i] = a[i] < b[i] ? a[i] : b[i];
    return a;
}
INLINE vec v_round(vec x) { /* of less than 2^22 */
    const vec shift = v_set(0x1.8p23f);
    return (x + shift) - shift;
}
INLINE vec v_power(vec n) {
    typedef int32_t ints __attribute__((vector_size(64)));
    ints exponent = (__builtin_convertvector(n, ints) + 127) << 23;
    return (vec)exponent;
}
INLINE vec v_load_bf16(const uint16_t *at) {
    v_bits bits;
    for (int i = 0; i < LANES; i++)
        bits[i] = (uint32_t)at[i] << 16;
    return (vec)bits;
}
INLINE void v_load_pairs_bf16(const uint16_t *at, vec *first, vec *second) {
    v_bits both; /* the first of two is the lower half, as on all processors that are meant here */
    memcpy(&both, at, sizeof both);
    *first = (vec)(both << 16);
    *second = (vec)(both & 0xffff0000u);
}
INLINE vec v_load_f16(const uint16_t *at) {
    vec x;
    for (int i = 0; i < LANES; i++)
        x[i] = v_of_half(at[i]);
    return x;
}
INLINE float v_total(vec x) {
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            x[i] += x[i + half];
    return x[0];
}
#endif

#define PARTS (LANES / REGISTER)

/* Register number `part` of sixteen numbers. */
#if PARTS == 1
#define p_of(own, part) ((void)(part), *(own))
#define p_put(own, part, x) ((void)(part), *(own) = (x))
#else
INLINE vpart p_of(const vec *own, int part) { return p_load((const float *)own + part * REGISTER); }
INLINE void p_put(vec *own, int part, vpart x) { p_store((float *)own + part * REGISTER, x); }
#endif

#include "exponential.h"

/* e^x of x from -87 to 88, and of what is outside that of these. */
INLINE vec v_exp(vec x) { return v_exp_within(v_min(v_max(x, v_set(-87.0f)), v_set(88.0f))); }

/* The first `count` numbers, and zeros. */
INLINE vec v_load_some(const float *at, int64_t count) {
    float own[LANES] = {0};
    memcpy(own, at, count * sizeof(float));
    return v_load(own);
}
INLINE void v_store_some(float *at, vec x, int64_t count) {
    float own[LANES];
    v_store(own, x);
    memcpy(at, own, count * sizeof(float));
}

#endif
