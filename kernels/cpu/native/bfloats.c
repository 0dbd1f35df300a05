/* Products of two factors in bfloat16: weights, and x, which is rounded to it. Sums are float32.
 *
 *   y = Σ over parts of 32 numbers (Σ x · w of its even numbers + Σ x · w of its odd ones) + bias
 *
 * Each product goes into its sum with one rounding, and what is less than 2^-126 is 0: so do matrix instructions (AMX),
 * and so few rows, which vectors multiply, have the same bits as many. Where there are products of pairs (AVX-512 BF16)
 * these alone are used, and one sum goes from pair to pair, the odd number first. Weights stand as in int8.c: two numbers
 * of SIDE outputs, then the next two. */
#include "linear.h"

#include <string.h>

#include "bfloats.h"
#include "side.h"

#define LINE 64
#define BLOCK 64 /* outputs whose weights stay in a near cache while all rows pass */

#if PARTS == 1
#define ROWS 8 /* of x that are multiplied together, as there are registers */
#else
#define ROWS 6
#endif
#define FEW 2 /* of these: there are registers for all sums of both kinds */

/* Of an odd number of lines: rows that follow one another have other places in a cache. */
int64_t bfloats_row_bytes(const linear *own) { return own->stride / 2 * (WIDE_BYTES + NARROW_BYTES) | LINE; }

/* To the nearest, ties to even. */
INLINE uint16_t rounded(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fc0;
}

void bfloats_ready(const linear *own, const float *x, char *ready, int64_t row) {
    const int64_t inputs = own->inputs, room = own->stride / 2;
    const int wide = WIDE_BYTES && (row < FEWEST_BFLOATS || !matrix_allowed());
    ready += row * bfloats_row_bytes(own);
    if (wide) {
        uint32_t *bits = (uint32_t *)ready;
        for (int64_t i = 0; i < inputs; i++)
            bits[i] = (uint32_t)rounded(x[i]) << 16;
        memset(bits + inputs, 0, 4 * (room - inputs));
    }
    if (NARROW_BYTES) {
        uint16_t *narrow = (uint16_t *)bfloats_narrow(own, ready);
        for (int64_t i = 0; i < inputs; i++)
            narrow[i] = rounded(x[i]);
        memset(narrow + inputs, 0, 2 * (room - inputs));
    }
}

#if defined(__AVX512BF16__)
#define SIDES 2 /* for one row 1: memory is read best as one run */

INLINE __m512 pairs(__m512 sum, __m512i weight, const char *x) {
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)weight);
}

INLINE void sums_of(vec sums[SIDES][ROWS], const product *own, const char *weight, int64_t row, const int sides,
                    const int rows) {
    const int64_t stride = own->own->stride;
    const char *x = own->ready + row * own->row_bytes;
    for (int64_t i = 0; i < stride; i += 4)
        for (int o = 0; o < sides; o++) {
            const char *at = weight + o * SIDE * stride + i * SIDE;
            ask_ahead(at, rows);
            __m512i numbers = _mm512_loadu_si512(at);
            for (int r = 0; r < rows; r++)
                sums[o][r] = pairs(sums[o][r], numbers, x + r * own->row_bytes + i);
        }
}

#else
#define SIDES 1
#define GROUP 32 /* numbers */

/* Products of inputs [i, i + GROUP), of even numbers, or of odd ones, or of both. */
INLINE void add_group(vec *even, vec *odd, const uint16_t *weight, const float *const *x, int64_t i, const int rows,
                      const int evens, const int odds) {
    for (const int64_t last = i + GROUP; i < last; i += 2) {
        vec first, second;
        ask_ahead(weight + i * SIDE, rows);
        v_load_pairs_bf16(weight + i * SIDE, &first, &second);
        for (int r = 0; r < rows; r++) {
            if (evens)
                even[r] = v_fma(v_set(x[r][i]), first, even[r]);
            if (odds)
                odd[r] = v_fma(v_set(x[r][i + 1]), second, odd[r]);
        }
    }
}

INLINE void sums_of(vec sums[SIDES][ROWS], const product *own, const char *weight, int64_t row, const int sides,
                    const int rows) {
    (void)sides;
    const float *x[ROWS];
    for (int r = 0; r < rows; r++)
        x[r] = (const float *)(own->ready + (row + r) * own->row_bytes);
    for (int64_t i = 0; i < own->own->stride / 2; i += GROUP) {
        vec even[ROWS], odd[ROWS];
        for (int r = 0; r < rows; r++)
            even[r] = odd[r] = v_zero();
        if (PARTS == 1 || rows <= FEW)
            add_group(even, odd, (const uint16_t *)weight, x, i, rows, 1, 1);
        else { /* there are not registers for both */
            add_group(even, odd, (const uint16_t *)weight, x, i, rows, 1, 0);
            add_group(even, odd, (const uint16_t *)weight, x, i, rows, 0, 1);
        }
        for (int r = 0; r < rows; r++)
            sums[0][r] = v_add(sums[0][r], v_add(even[r], odd[r]));
    }
}
#endif

INLINE void tile(const product *own, int64_t output, int64_t row, const int sides, const int rows, vec (*to)[ROWS]) {
    vec sums[SIDES][ROWS];
    for (int o = 0; o < sides; o++)
        for (int r = 0; r < rows; r++)
            sums[o][r] = v_zero();
    const char *weight = (const char *)own->own->weight + output * own->own->stride;
    sums_of(sums, own, weight, row, sides, rows);
    for (int o = 0; o < sides; o++)
        for (int r = 0; r < rows; r++)
            to[o][r] = sums[o][r];
}

#define SOME_ROWS(count)                                                                        \
    case count:                                                                                 \
        for (; count > 1 && first + SIDES * SIDE <= last; first += SIDES * SIDE, sums += SIDES) \
            tile(own, first, row, SIDES, count, sums);                                          \
        for (; first < last; first += SIDE, sums++)                                             \
            tile(own, first, row, 1, count, sums);                                              \
        break;

/* Sums of each side of the outputs. */
static __attribute__((noinline)) void some_rows(const product *own, int64_t first, int64_t last, int64_t row,
                                                int64_t rows, vec (*sums)[ROWS]) {
    switch (rows) {
        SOME_ROWS(ROWS)
#if ROWS == 8
        SOME_ROWS(7)
        SOME_ROWS(6)
#endif
        SOME_ROWS(5)
        SOME_ROWS(4)
        SOME_ROWS(3)
        SOME_ROWS(2)
        SOME_ROWS(1)
    }
}

static void block(const product *own, int64_t first, int64_t last, int64_t row, int64_t rows) {
    vec sums[BLOCK / SIDE][ROWS];
#if defined(__SSE__)
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040); /* small numbers are 0, as factors and as sums, and not as what these are added to */
    some_rows(own, first, last, row, rows, sums);
    _mm_setcsr(mode);
#else
    some_rows(own, first, last, row, rows, sums);
#endif
    for (int64_t r = 0; r < rows; r++)
        for (int64_t output = first; output < last; output += SIDE)
            side_store(own, output, row + r, sums[(output - first) / SIDE][r]);
}

void bfloats_outputs(const product *own, int64_t first, int64_t last) {
    last = last < own->own->outputs ? last : side_outputs(own->own);
    for (; first < last; first += BLOCK) {
        int64_t end = first + BLOCK < last ? first + BLOCK : last;
        for (int64_t row = 0; row < own->rows; row += ROWS)
            block(own, first, end, row, own->rows - row < ROWS ? own->rows - row : ROWS);
    }
}
