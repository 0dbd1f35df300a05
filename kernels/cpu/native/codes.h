/* Keys and values of 8 bits and fewer, as kernels/cpu/kv_formats.py has them: GROUP numbers are so many bytes.
 *
 *   FP8      16   e4m3; the scale is a power of two
 *   NVFP4     9   e2m1, two in a byte, the first in its lower half; then the group's own scale in e4m3
 *   TURBO4    8   of LLOYD_4, likewise
 *   TURBO3    6   of LLOYD_3: four in a byte, the first in its lowest bits; then a sign in each bit, likewise
 *
 * The upper bit of four is a sign. LLOYD_4 and LLOYD_3 are the numbers by which those of a normal distribution are told
 * with the least mean of squares (Lloyd, Max); heads are turned before they are coded, so that theirs have one. */
#ifndef CODES_H
#define CODES_H

#include <math.h>
#include <string.h>

#include "attention.h"
#include "simd.h"

#define GROUP 16
#define FP8_UNIT 256.0f /* e4m3 is read as if it were float16 with fewer bits, whose exponents have another bias */

static const float E2M1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
static const float LLOYD_4[16] = {
    0.12839503f,  0.388048299f,  0.656759119f,  0.942340456f,  1.2562312f,  1.61804639f,  2.06901723f,  2.73258957f,
    -0.12839503f, -0.388048299f, -0.656759119f, -0.942340456f, -1.2562312f, -1.61804639f, -2.06901723f, -2.73258957f};
#define FOUR 0.245094179f, 0.756005281f, 1.34390928f, 2.1519457f
static const float LLOYD_3[16] = {FOUR, FOUR, FOUR, FOUR}; /* an index may have bits above its two */
#undef FOUR

/* Those of 2^exponent · (1 + rest / 8), and below them. */
#define E4M3_OF(code) \
    ((code) >> 3 ? (8 + ((code) & 7)) * (float)(1 << ((code) >> 3)) / 1024 : ((code) & 7) * 2.0f / 1024)
#define EIGHT(code) \
    E4M3_OF(code), E4M3_OF(code + 1), E4M3_OF(code + 2), E4M3_OF(code + 3), E4M3_OF(code + 4), E4M3_OF(code + 5), \
        E4M3_OF(code + 6), E4M3_OF(code + 7)
static const float E4M3[128] = {EIGHT(0),  EIGHT(8),  EIGHT(16), EIGHT(24), EIGHT(32), EIGHT(40), EIGHT(48),  EIGHT(56),
                                EIGHT(64), EIGHT(72), EIGHT(80), EIGHT(88), EIGHT(96), EIGHT(104), EIGHT(112), EIGHT(120)};
#undef EIGHT
#undef E4M3_OF

FAST float unit_of(int64_t number) { return number == FP8 ? FP8_UNIT : 1.0f; }

FAST vec load_nvfp4(const uint8_t *at, int64_t index) {
    const uint8_t *own = at + (index >> 4) * 9;
    return v_mul(v_load_nibbles(own + (index >> 1 & 7), E2M1), v_set(E4M3[own[8] & 127]));
}

FAST vec load_turbo3(const uint8_t *at, int64_t index) {
    const uint8_t *own = at + (index >> 4) * 6;
    int64_t inside = index & 15;
    return v_load_pairs(own + (inside >> 2), (own[4] | (uint32_t)own[5] << 8) >> inside, LLOYD_3);
}

/* The same for each place of a head, and without a rule that numbers could follow. */
FAST float sign_at(uint32_t place) {
    place *= 0x9e3779b1u;
    place ^= place >> 15;
    place *= 0x85ebca6bu;
    place ^= place >> 13;
    return place & 1 ? -1.0f : 1.0f;
}

/* By Hadamard's matrix of `count` numbers, a power of two, which is its own inverse. */
static inline void mix_signs(float *x, int64_t count) {
    for (int64_t half = 1; half < count; half *= 2)
        for (int64_t at = 0; at < count; at += 2 * half)
            for (int64_t i = at; i < at + half; i++) {
                float one = x[i], other = x[i + half];
                x[i] = one + other;
                x[i + half] = one - other;
            }
    float root = 1.0f / sqrtf((float)count);
    for (int64_t i = 0; i < count; i++)
        x[i] *= root;
}

/* A head is turned: signs, then the first numbers that are a power of two, then the last as many. */
static inline void turn(float *x, int64_t dim) {
    int64_t most = (int64_t)1 << (63 - __builtin_clzll((uint64_t)dim));
    for (int64_t i = 0; i < dim; i++)
        x[i] *= sign_at((uint32_t)i);
    mix_signs(x, most);
    if (most < dim)
        mix_signs(x + dim - most, most);
}

static inline void turn_back(float *x, int64_t dim) {
    int64_t most = (int64_t)1 << (63 - __builtin_clzll((uint64_t)dim));
    if (most < dim)
        mix_signs(x + dim - most, most);
    mix_signs(x, most);
    for (int64_t i = 0; i < dim; i++)
        x[i] *= sign_at((uint32_t)i);
}

#endif
