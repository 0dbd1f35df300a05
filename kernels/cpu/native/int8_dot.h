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

#endif
