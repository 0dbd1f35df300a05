/* Vectors of AVX-512. */
#include <immintrin.h>

#define LANES 16
#define TILE 16 /* sums that a product of queries and keys keeps at once */

typedef __m512 vec;

FAST vec v_zero(void) { return _mm512_setzero_ps(); }
FAST vec v_set(float x) { return _mm512_set1_ps(x); }
FAST vec v_load(const float *at) { return _mm512_loadu_ps(at); }
FAST void v_store(float *at, vec x) { _mm512_storeu_ps(at, x); }
FAST vec v_load_f16(const uint16_t *at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at)); }
FAST void v_store_f16(uint16_t *at, vec x) { _mm256_storeu_si256((__m256i *)at, _mm512_cvtps_ph(x, 0)); }
FAST vec v_load_bf16(const uint16_t *at) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
FAST void v_store_bf16(uint16_t *at, vec x) { /* to the nearest, ties to even */
    __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i near = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    __mmask16 none = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    near = _mm512_mask_or_epi32(near, none, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)at, _mm512_cvtepi32_epi16(_mm512_srli_epi32(near, 16)));
}
FAST vec v_load_i8(const int8_t *at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)));
}
FAST void v_store_i8(int8_t *at, vec x) { _mm_storeu_si128((__m128i *)at, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x))); }
FAST vec v_load_e4m3(const uint8_t *at) { /* in units of FP8_UNIT */
    __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)at));
    __m256i sign = _mm256_and_si256(_mm256_slli_epi16(wide, 8), _mm256_set1_epi16((short)0x8000));
    __m256i size = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(0x3f80));
    return _mm512_cvtph_ps(_mm256_or_si256(sign, size));
}
FAST vec v_load_nibbles(const uint8_t *at, const float *table) {
    const __m512i half = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i down = _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    __m512i both = _mm512_castsi128_si512(_mm_loadl_epi64((const __m128i *)at));
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_permutexvar_epi32(half, both), down), _mm512_loadu_ps(table));
}
FAST vec v_load_pairs(const uint8_t *at, uint32_t signs, const float *table) {
    const __m512i down = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    int32_t all;
    __builtin_memcpy(&all, at, sizeof all);
    vec x = _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi32(all), down), _mm512_loadu_ps(table));
    return _mm512_mask_xor_ps(x, (__mmask16)signs, x, _mm512_set1_ps(-0.0f));
}
FAST vec v_fma(vec a, vec b, vec sum) { return _mm512_fmadd_ps(a, b, sum); }
FAST vec v_add(vec a, vec b) { return _mm512_add_ps(a, b); }
FAST vec v_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
FAST vec v_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
FAST vec v_div(vec a, vec b) { return _mm512_div_ps(a, b); }
FAST vec v_max(vec a, vec b) { return _mm512_max_ps(a, b); } /* b where one of them is no number */
FAST vec v_min(vec a, vec b) { return _mm512_min_ps(a, b); } /* likewise */
FAST vec v_abs(vec a) { return _mm512_abs_ps(a); }
FAST vec v_sign(vec of, vec x) { /* x, which is not negative, with the sign of the other */
    return _mm512_or_ps(x, _mm512_and_ps(of, _mm512_set1_ps(-0.0f)));
}
FAST vec v_round(vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
FAST vec v_power(vec n) { /* 2^n of whole numbers from -126 on */
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
FAST vec v_from(vec x, float least, vec value) { /* value, and 0 where x is less than that */
    return _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(x, _mm512_set1_ps(least), _CMP_LT_OQ), _mm512_setzero_ps());
}
FAST float v_largest(vec x) { return _mm512_reduce_max_ps(x); }

#define HALVES(a, b) \
    _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee))
#define QUARTERS(a, b) \
    _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd))
#define PAIRS(a, b)                                                                                          \
    _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))),            \
                  _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))))

/* out[i] = the sum of the lanes of x[i], each by the same tree. */
FAST void v_totals(const vec *x, float *out) {
    vec four[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
        four[k] = QUARTERS(HALVES(x[k], x[k + 4]), HALVES(x[k + 8], x[k + 12]));
    vec low = PAIRS(four[0], four[1]), high = PAIRS(four[2], four[3]);
    /* a quad has one lane of four[0], four[1] each twice: lanes 0 and 2 of both go together, then 1 and 3 */
    v_store(out, _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x88), _mm512_shuffle_ps(low, high, 0xdd)));
}
