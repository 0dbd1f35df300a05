/* Vectors of AVX2. */
#include <immintrin.h>

#define LANES 8
#define TILE 8 /* sums that a product of queries and keys keeps at once */

typedef __m256 vec;

FAST vec v_zero(void) { return _mm256_setzero_ps(); }
FAST vec v_set(float x) { return _mm256_set1_ps(x); }
FAST vec v_load(const float *at) { return _mm256_loadu_ps(at); }
FAST void v_store(float *at, vec x) { _mm256_storeu_ps(at, x); }
FAST vec v_load_f16(const uint16_t *at) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at)); }
FAST void v_store_f16(uint16_t *at, vec x) { _mm_storeu_si128((__m128i *)at, _mm256_cvtps_ph(x, 0)); }
FAST vec v_load_bf16(const uint16_t *at) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at)), 16));
}
FAST void v_store_bf16(uint16_t *at, vec x) { /* to the nearest, ties to even */
    __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i near = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
    __m256i none = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    near = _mm256_blendv_epi8(near, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), none);
    near = _mm256_srli_epi32(near, 16);
    _mm_storeu_si128((__m128i *)at, _mm_packus_epi32(_mm256_castsi256_si128(near), _mm256_extracti128_si256(near, 1)));
}
FAST vec v_load_i8(const int8_t *at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)));
}
FAST void v_store_i8(int8_t *at, vec x) {
    __m256i whole = _mm256_cvtps_epi32(x);
    __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64((__m128i *)at, _mm_packs_epi16(half, half));
}
FAST vec v_load_e4m3(const uint8_t *at) { /* in units of FP8_UNIT */
    __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)at));
    __m128i sign = _mm_and_si128(_mm_slli_epi16(wide, 8), _mm_set1_epi16((short)0x8000));
    __m128i size = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(0x3f80));
    return _mm256_cvtph_ps(_mm_or_si128(sign, size));
}
FAST vec v_load_nibbles(const uint8_t *at, const float *table) {
    int32_t all;
    __builtin_memcpy(&all, at, sizeof all);
    __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32(all), _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0));
    __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(codes, 3), 31);
    return _mm256_or_ps(_mm256_permutevar8x32_ps(_mm256_loadu_ps(table), codes), _mm256_castsi256_ps(sign));
}
FAST vec v_load_pairs(const uint8_t *at, uint32_t signs, const float *table) {
    uint16_t all;
    __builtin_memcpy(&all, at, sizeof all);
    __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32(all), _mm256_set_epi32(14, 12, 10, 8, 6, 4, 2, 0));
    __m256i up = _mm256_sllv_epi32(_mm256_set1_epi32((int)signs), _mm256_set_epi32(24, 25, 26, 27, 28, 29, 30, 31));
    __m256i sign = _mm256_and_si256(up, _mm256_set1_epi32((int)0x80000000));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(_mm256_loadu_ps(table), codes), _mm256_castsi256_ps(sign));
}
FAST vec v_fma(vec a, vec b, vec sum) { return _mm256_fmadd_ps(a, b, sum); }
FAST vec v_add(vec a, vec b) { return _mm256_add_ps(a, b); }
FAST vec v_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
FAST vec v_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
FAST vec v_div(vec a, vec b) { return _mm256_div_ps(a, b); }
FAST vec v_max(vec a, vec b) { return _mm256_max_ps(a, b); } /* b where one of them is no number */
FAST vec v_min(vec a, vec b) { return _mm256_min_ps(a, b); } /* likewise */
FAST vec v_abs(vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
FAST vec v_sign(vec of, vec x) { /* x, which is not negative, with the sign of the other */
    return _mm256_or_ps(x, _mm256_and_ps(of, _mm256_set1_ps(-0.0f)));
}
FAST vec v_round(vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
FAST vec v_power(vec n) { /* 2^n of whole numbers from -126 on */
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
FAST vec v_from(vec x, float least, vec value) { /* value, and 0 where x is less than that */
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(least), _CMP_LT_OQ), value);
}
FAST float v_largest(vec x) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
}

#define HALVES(a, b) _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31))
#define PAIRS(a, b)                                                                                          \
    _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b))),            \
                  _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b))))

/* out[i] = the sum of the lanes of x[i], each by the same tree. */
FAST void v_totals(const vec *x, float *out) {
    vec low = PAIRS(HALVES(x[0], x[4]), HALVES(x[1], x[5])), high = PAIRS(HALVES(x[2], x[6]), HALVES(x[3], x[7]));
    v_store(out, _mm256_add_ps(_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xdd)));
}
