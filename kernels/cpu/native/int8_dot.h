/* Sums of products of bytes: `dot` adds to each of some sums of 32 bits products of neighbouring bytes, one factor
 * q + OFFSET. Without instructions for that, sums of two products have 16 bits: q is then one of -63 to 63. */
#ifndef INT8_DOT_H
#define INT8_DOT_H

#include <stdint.h>

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#define BYTES 64
#define OFFSET 128
typedef __m512i sums, vector;
static inline sums no_sums(void) { return _mm512_setzero_si512(); }
static inline vector load(const void *from) { return _mm512_loadu_si512(from); }
static inline sums dot(sums before, vector bytes, vector weight) {
    return _mm512_dpbusd_epi32(before, bytes, weight);
}
static inline int32_t total(sums all) { return _mm512_reduce_add_epi32(all); }

#elif defined(__AVX2__)
#include <immintrin.h>
#define BYTES 32
typedef __m256i sums, vector;
static inline sums no_sums(void) { return _mm256_setzero_si256(); }
static inline vector load(const void *from) { return _mm256_loadu_si256(from); }
#if defined(__AVXVNNI__)
#define OFFSET 128
static inline sums dot(sums before, vector bytes, vector weight) {
    return _mm256_dpbusd_avx_epi32(before, bytes, weight);
}
#else
#define OFFSET 64
static inline sums dot(sums before, vector bytes, vector weight) {
    __m256i pairs = _mm256_maddubs_epi16(bytes, weight);
    return _mm256_add_epi32(before, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif
static inline int32_t total(sums all) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#define BYTES 16
#define OFFSET 0
typedef int32x4_t sums;
typedef int8x16_t vector;
static inline sums no_sums(void) { return vdupq_n_s32(0); }
static inline vector load(const void *from) { return vld1q_s8(from); }
static inline sums dot(sums before, vector bytes, vector weight) { return vdotq_s32(before, bytes, weight); }
static inline int32_t total(sums all) { return vaddvq_s32(all); }

#else
#define BYTES 16
#define OFFSET 0
typedef int32_t sums;
typedef const int8_t *vector;
static inline sums no_sums(void) { return 0; }
static inline vector load(const void *from) { return from; }
static inline sums dot(sums before, vector bytes, vector weight) {
    for (int i = 0; i < BYTES; i++)
        before += (int16_t)((int16_t)bytes[i] * (int16_t)weight[i]);
    return before;
}
static inline int32_t total(sums all) { return all; }
#endif

/* Numbers of 4 bits: 64 bytes have those of one run in their lower halves, and the next 64 in the upper ones. `low` and
 * `high` give, as float32, sixteen sums of four neighbours' products each. */
#include "vectors.h"

#if defined(__AVX512VNNI__)
typedef __m512i nibbles;
INLINE nibbles n_load(const uint8_t *at) { return _mm512_loadu_si512(at); }
INLINE vec n_dot(__m512i numbers, const int8_t *x) {
    numbers = _mm512_and_si512(numbers, _mm512_set1_epi8(15));
    return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), numbers, _mm512_loadu_si512(x)));
}
INLINE vec n_low(nibbles own, const int8_t *x) { return n_dot(own, x); }
INLINE vec n_high(nibbles own, const int8_t *x) { return n_dot(_mm512_srli_epi16(own, 4), x); }
INLINE vec v_two(const float *two) { /* the first in the lower eight lanes, the second in the upper ones */
    __m512 second = _mm512_set1_ps(two[1]);
    return _mm512_mask_mov_ps(second, 0xff, _mm512_set1_ps(two[0]));
}

#elif defined(__AVX2__)
typedef struct {
    __m256i first, second;
} nibbles;
INLINE nibbles n_load(const uint8_t *at) { return (nibbles){load(at), load(at + 32)}; }
INLINE __m256 n_dot(__m256i numbers, const int8_t *x) {
    numbers = _mm256_and_si256(numbers, _mm256_set1_epi8(15));
    return _mm256_cvtepi32_ps(dot(_mm256_setzero_si256(), numbers, load(x)));
}
INLINE vec n_low(nibbles own, const int8_t *x) { return (vec){n_dot(own.first, x), n_dot(own.second, x + 32)}; }
INLINE vec n_high(nibbles own, const int8_t *x) {
    return (vec){n_dot(_mm256_srli_epi16(own.first, 4), x), n_dot(_mm256_srli_epi16(own.second, 4), x + 32)};
}
INLINE vec v_two(const float *two) { return (vec){_mm256_set1_ps(two[0]), _mm256_set1_ps(two[1])}; }

#else
typedef const uint8_t *nibbles;
INLINE nibbles n_load(const uint8_t *at) { return at; }
INLINE vec n_dot(const uint8_t *numbers, int shift, const int8_t *x) {
    vec found;
    for (int lane = 0; lane < LANES; lane++) {
        int32_t sum = 0;
        for (int i = 4 * lane; i < 4 * lane + 4; i++)
            sum += (numbers[i] >> shift & 15) * x[i];
        found[lane] = (float)sum;
    }
    return found;
}
#if defined(__ARM_FEATURE_DOTPROD)
INLINE vec n_quick(const uint8_t *numbers, int shift, const int8_t *x) {
    float32x4_t parts[4];
    for (int i = 0; i < 4; i++) {
        uint8x16_t own = vld1q_u8(numbers + 16 * i);
        own = shift ? vshrq_n_u8(own, 4) : vandq_u8(own, vdupq_n_u8(15));
        parts[i] = vcvtq_f32_s32(vdotq_s32(vdupq_n_s32(0), vreinterpretq_s8_u8(own), vld1q_s8(x + 16 * i)));
    }
    vec found;
    memcpy(&found, parts, sizeof found);
    return found;
}
#define n_dot n_quick
#endif
INLINE vec n_low(nibbles own, const int8_t *x) { return n_dot(own, 0, x); }
INLINE vec n_high(nibbles own, const int8_t *x) { return n_dot(own, 4, x); }
INLINE vec v_two(const float *two) {
    vec found = v_set(two[1]);
    for (int i = 0; i < LANES / 2; i++)
        found[i] = two[0];
    return found;
}
#endif

#endif
