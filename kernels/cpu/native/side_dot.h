/* Sixteen outputs at a time, REGISTER of them in one: `s_dot` adds to each sum the products of four numbers of its output
 * with the same four of a row of x. Numbers of an output are unsigned, of 4 bits in either half of a byte, or of these
 * and two more bits (`s_six`: vector i of half a group of groups.c), or signed of 8 bits; where instructions want one
 * factor unsigned, the latter are read as q + SHIFTED.
 *
 * Those of a register begin at `at`, and what belongs to the next four numbers is 64 bytes behind it. */
#ifndef SIDE_DOT_H
#define SIDE_DOT_H

#include <stdint.h>
#include <string.h>

#include "vectors.h"

#define PART_BYTES (4 * REGISTER)

INLINE int32_t s_four(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return four;
}

#if defined(__AVX512VNNI__)
#define SHIFTED 128
typedef __m512i s_sums, s_numbers;
INLINE s_sums s_set(int32_t sum) { return _mm512_set1_epi32(sum); }
INLINE vpart s_float(s_sums own) { return _mm512_cvtepi32_ps(own); }
INLINE s_numbers s_low(const uint8_t *at) { return _mm512_and_si512(_mm512_loadu_si512(at), _mm512_set1_epi8(15)); }
INLINE s_numbers s_high(const uint8_t *at) {
    return _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(at), 4), _mm512_set1_epi8(15));
}
INLINE s_numbers s_bytes(const uint8_t *at) {
    return _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_set1_epi8(-SHIFTED));
}
INLINE s_sums s_dot(s_sums own, s_numbers numbers, const int8_t *x) {
    return _mm512_dpbusd_epi32(own, numbers, _mm512_set1_epi32(s_four(x)));
}
#define s_dot_bytes s_dot
INLINE s_numbers s_six(const uint8_t *at, const int i, const int half) {
    const __m512i four = _mm512_loadu_si512(at + 64 * i), two = _mm512_loadu_si512(at + 256 + 64 * (i / 2));
    const __m512i low = half ? _mm512_srli_epi16(four, 4) : four;
    const __m512i high = half ? i % 2 ? _mm512_srli_epi16(two, 2) : two : _mm512_slli_epi16(two, i % 2 ? 2 : 4);
    return _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi8(15)), _mm512_and_si512(high, _mm512_set1_epi8(48)));
}
INLINE vec s_small(const uint8_t *at) { /* of 8 bits */
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at)));
}
INLINE vec s_signed(const uint8_t *at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
}

#elif defined(__AVX2__)
typedef __m256i s_sums, s_numbers;
INLINE s_sums s_set(int32_t sum) { return _mm256_set1_epi32(sum); }
INLINE vpart s_float(s_sums own) { return _mm256_cvtepi32_ps(own); }
INLINE __m256i s_all(const uint8_t *at) { return _mm256_loadu_si256((const __m256i *)at); }
INLINE __m256i s_nibble(__m256i own) { return _mm256_and_si256(own, _mm256_set1_epi8(15)); }
INLINE s_numbers s_low(const uint8_t *at) { return s_nibble(s_all(at)); }
INLINE s_numbers s_high(const uint8_t *at) { return s_nibble(_mm256_srli_epi16(s_all(at), 4)); }
INLINE s_numbers s_six(const uint8_t *at, const int i, const int half) {
    const __m256i four = s_all(at + 64 * i), two = s_all(at + 256 + 64 * (i / 2));
    const __m256i high = half ? i % 2 ? _mm256_srli_epi16(two, 2) : two : _mm256_slli_epi16(two, i % 2 ? 2 : 4);
    return _mm256_or_si256(s_nibble(half ? _mm256_srli_epi16(four, 4) : four), _mm256_and_si256(high, _mm256_set1_epi8(48)));
}
#if defined(__AVXVNNI__)
#define SHIFTED 128
INLINE s_numbers s_bytes(const uint8_t *at) { return _mm256_xor_si256(s_all(at), _mm256_set1_epi8(-SHIFTED)); }
INLINE s_sums s_dot(s_sums own, s_numbers numbers, const int8_t *x) {
    return _mm256_dpbusd_avx_epi32(own, numbers, _mm256_set1_epi32(s_four(x)));
}
#define s_dot_bytes s_dot
#else
#define SHIFTED 0
#define NARROW
INLINE __m256i s_pairs(__m256i numbers, __m256i x) { return _mm256_maddubs_epi16(numbers, x); } /* 2 · 128 · 127 at most */
INLINE s_sums s_widened(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
INLINE s_numbers s_bytes(const uint8_t *at) { return s_all(at); }
INLINE s_sums s_dot(s_sums own, s_numbers numbers, const int8_t *x) {
    return _mm256_add_epi32(own, s_widened(s_pairs(numbers, _mm256_set1_epi32(s_four(x)))));
}
INLINE s_sums s_dot_bytes(s_sums own, s_numbers numbers, const int8_t *x) { /* x with the sign of the other, which loses it */
    __m256i four = _mm256_sign_epi8(_mm256_set1_epi32(s_four(x)), numbers);
    return _mm256_add_epi32(own, s_widened(s_pairs(_mm256_abs_epi8(numbers), four)));
}
/* Numbers of 4 bits and 32 of x: eight sums of two, 8 · 2 · 15 · 127 at most, fit 16 bits, and are widened at the end. */
INLINE s_sums s_dot_small(s_sums own, s_numbers numbers, const int8_t *x) {
    return _mm256_add_epi16(own, s_pairs(numbers, _mm256_set1_epi32(s_four(x))));
}
INLINE s_sums s_begin(int32_t begin, const int bits) { return bits == 4 ? _mm256_setzero_si256() : s_set(begin); }
INLINE s_sums s_end(s_sums own, int32_t begin, const int bits) {
    return bits == 4 ? _mm256_add_epi32(s_set(begin), s_widened(own)) : own;
}
#endif
INLINE vec s_small(const uint8_t *at) {
    __m128i all = _mm_loadu_si128((const __m128i *)at);
    __m256i low = _mm256_cvtepu8_epi32(all), high = _mm256_cvtepu8_epi32(_mm_srli_si128(all, 8));
    return (vec){_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)};
}
INLINE vec s_signed(const uint8_t *at) {
    __m128i all = _mm_loadu_si128((const __m128i *)at);
    __m256i low = _mm256_cvtepi8_epi32(all), high = _mm256_cvtepi8_epi32(_mm_srli_si128(all, 8));
    return (vec){_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)};
}

#else
#define SHIFTED 0
INLINE vec s_small(const uint8_t *at) {
    vec own;
    for (int i = 0; i < LANES; i++)
        own[i] = at[i];
    return own;
}
INLINE vec s_signed(const uint8_t *at) {
    vec own;
    for (int i = 0; i < LANES; i++)
        own[i] = (int8_t)at[i];
    return own;
}
typedef int32_t s_sums __attribute__((vector_size(PART_BYTES)));
typedef int8_t s_numbers __attribute__((vector_size(PART_BYTES)));
INLINE s_sums s_set(int32_t sum) { return (s_sums){0} + sum; }
INLINE vpart s_float(s_sums own) { return __builtin_convertvector(own, vpart); }
INLINE s_numbers s_bytes(const uint8_t *at) {
    s_numbers own;
    memcpy(&own, at, sizeof own);
    return own;
}
INLINE s_numbers s_low(const uint8_t *at) { return s_bytes(at) & 15; }
INLINE s_numbers s_high(const uint8_t *at) { return s_bytes(at) >> 4 & 15; }
INLINE s_numbers s_six(const uint8_t *at, const int i, const int half) {
    const s_numbers two = s_bytes(at + 256 + 64 * (i / 2)) >> (4 * half + i % 2 * 2) & 3;
    return (half ? s_high(at + 64 * i) : s_low(at + 64 * i)) | two << 4;
}
#if defined(__ARM_FEATURE_DOTPROD)
INLINE s_sums s_dot(s_sums own, s_numbers numbers, const int8_t *x) {
    return (s_sums)vdotq_s32((int32x4_t)own, (int8x16_t)numbers, vreinterpretq_s8_s32(vdupq_n_s32(s_four(x))));
}
#else
INLINE s_sums s_dot(s_sums own, s_numbers numbers, const int8_t *x) {
    for (int lane = 0; lane < REGISTER; lane++)
        for (int i = 0; i < 4; i++)
            own[lane] += numbers[4 * lane + i] * x[i];
    return own;
}
#endif
#define s_dot_bytes s_dot
#endif

/* Sums that begin with a number; by some processors it is added at the end. */
#ifndef NARROW
#define s_dot_small s_dot
INLINE s_sums s_begin(int32_t begin, const int bits) {
    (void)bits;
    return s_set(begin);
}
INLINE s_sums s_end(s_sums own, int32_t begin, const int bits) {
    (void)begin, (void)bits;
    return own;
}
#endif

#endif
