/* Products with weights in groups of GROUP numbers, multiplied as they are: w = scale · q - least.
 *
 *   y = Σ a · Σ (scale · S - least · N) + bias      over chunks of CHUNK numbers, and in these over groups
 *   S = Σ q · n, N = Σ n, n = round(x / a), a = max(amax |x|, LEAST) / MOST of each chunk of a row of x
 *
 * S and N are whole numbers; all else is float32, each sum from its first term to its last. SIDE outputs are computed
 * side by side, and stand so in memory: of each group four numbers of all of them, then the next four (of 4 bits, the
 * fifth four above the first); behind all numbers their scales, of each group or kind those of SIDE outputs:
 *   HALVES        scale in float16, least is 8 · scale                      (GGUF's Q4_0)
 *   EIGHT_BITS    scale in float16, q from -128 to 127, least is 0          (GGUF's Q8_0)
 *   BFLOAT_PAIRS  scale and middle in bfloat16, least is 8 · scale - middle (made at load)
 *   FLOAT_PAIRS   scale and least in float32 for each `group`               (AWQ, GPTQ, compressed-tensors)
 *   SUPER_BLOCKS  s of all groups, t of all groups, of 8 bits; d and m in float16 for each SUPER: d · s and m · t
 *                                                                           (GGUF's Q4_K) */
#include "groups.h"

#include <math.h>
#include <string.h>

#define BLOCK 128 /* outputs whose weights stay in a near cache while all rows pass */
#define LEAST 1e-30f
#define MOST 127
#define MIDDLE 8 /* of numbers of 4 bits */

#if defined(__AVX512F__)
#define ROWS 8 /* of x that are multiplied together, as there are registers */
#else
#define ROWS 2
#endif

int64_t groups_row_bytes(const linear *own) {
    return HEADER + (chunks(own) * (CHUNK + 4) + 8 * groups(own) + 63) / 64 * 64;
}

/* A chunk of x, filled up; returns a. */
static float round_chunk(const float *x, int8_t *numbers) {
    float most = 0, odd = 0;
    for (int i = 0; i < CHUNK; i++) {
        float size = fabsf(x[i]);
        most = size > most ? size : most;
        odd += x[i] - x[i]; /* 0, or NaN */
    }
    if (odd != odd) {
        memset(numbers, 0, CHUNK);
        return NAN;
    }
    float step = (most > LEAST ? most : LEAST) / MOST;
    for (int i = 0; i < CHUNK; i++)
        numbers[i] = (int8_t)(int32_t)rintf(x[i] / step);
    return step;
}

/* What is taken off each number, and so that often N off S. */
static int32_t taken_off(const linear *own) {
    switch (own->scaled) {
    case EIGHT_BITS: return SHIFTED;
    case HALVES:
    case BFLOAT_PAIRS: return MIDDLE;
    default: return 0;
    }
}

void groups_ready(const linear *own, const float *x, char *ready) {
    ready_parts parts = parts_of(own, ready);
    int8_t *numbers = (int8_t *)parts.numbers;
    float *steps = (float *)parts.steps, *sums = (float *)parts.sums;
    int32_t *begin = (int32_t *)parts.begin, off = taken_off(own);
    for (int64_t chunk = 0; chunk < chunks(own); chunk++, numbers += CHUNK) {
        int64_t left = own->inputs - chunk * CHUNK;
        float some[CHUNK] = {0};
        memcpy(some, x + chunk * CHUNK, (left < CHUNK ? left : CHUNK) * sizeof(float));
        steps[chunk] = round_chunk(some, numbers);
        for (int64_t group = 0; group < EACH; group++) {
            int32_t sum = 0;
            for (int i = 0; i < GROUP; i++)
                sum += numbers[group * GROUP + i];
            sums[chunk * EACH + group] = (float)sum;
            begin[chunk * EACH + group] = -off * sum;
        }
    }
}

/* Products of a group with some rows, whose numbers begin at `x`. */
INLINE void dot_group(const uint8_t *weight, const int8_t *const *x, s_sums *sums, const int rows, const int bits) {
    if (bits == 8)
        for (int i = 0; i < GROUP / 4; i++) {
            s_numbers numbers = s_bytes(weight + 64 * i);
            for (int r = 0; r < rows; r++)
                sums[r] = s_dot_bytes(sums[r], numbers, x[r] + 4 * i);
        }
    else
        for (int i = 0; i < GROUP / 8; i++) {
            s_numbers low = s_low(weight + 64 * i), high = s_high(weight + 64 * i);
            for (int r = 0; r < rows; r++) {
                sums[r] = s_dot(sums[r], low, x[r] + 4 * i);
                sums[r] = s_dot(sums[r], high, x[r] + GROUP / 2 + 4 * i);
            }
        }
}

INLINE void tile(const product *own, int64_t output, int64_t row, const int rows, const int bits) {
    const linear *by = own->own;
    const int64_t group_bytes = SIDE * GROUP * bits / 8, row_bytes = groups_row_bytes(by);
    const uint8_t *weight = (const uint8_t *)by->weight + output * by->stride;
    const uint8_t *scales = weight + groups(by) * group_bytes;
    const int less = has_least(by);
    ready_parts x[ROWS];
    vec total[ROWS];
    for (int r = 0; r < rows; r++) {
        x[r] = parts_of(by, own->ready + (row + r) * row_bytes);
        total[r] = v_zero();
    }
    for (int64_t chunk = 0; chunk < chunks(by); chunk++) {
        vec part[ROWS], scale[EACH], least[EACH];
        expand(by, scales, chunk, scale, least);
        for (int r = 0; r < rows; r++)
            part[r] = v_zero();
        for (int i = 0; i < EACH; i++) {
            int64_t group = chunk * EACH + i;
            const int8_t *numbers[ROWS];
            s_sums sums[ROWS];
            for (int r = 0; r < rows; r++) {
                numbers[r] = x[r].numbers + group * GROUP;
                sums[r] = s_set(x[r].begin[group]);
            }
            dot_group(weight + group * group_bytes, numbers, sums, rows, bits);
            for (int r = 0; r < rows; r++)
                part[r] = v_fma(s_float(sums[r]), scale[i], part[r]);
            if (less)
                for (int r = 0; r < rows; r++)
                    part[r] = v_fma(v_set(x[r].sums[group]), least[i], part[r]);
        }
        for (int r = 0; r < rows; r++)
            total[r] = v_fma(part[r], v_set(x[r].steps[chunk]), total[r]);
    }
    for (int r = 0; r < rows; r++)
        side_store(own, output, row + r, total[r]);
}

#define SOME_ROWS(count, bits)                              \
    case count:                                             \
        for (; first < last; first += SIDE)                 \
            tile(own, first, row, count, bits);             \
        break;

#if ROWS == 8
#define FEWER_ROWS(bits) \
    SOME_ROWS(7, bits) SOME_ROWS(6, bits) SOME_ROWS(5, bits) SOME_ROWS(4, bits) SOME_ROWS(3, bits) SOME_ROWS(2, bits)
#else
#define FEWER_ROWS(bits)
#endif

static void rows_of_4_bits(const product *own, int64_t first, int64_t last, int64_t row, int64_t rows) {
    switch (rows) {
        SOME_ROWS(ROWS, 4)
        FEWER_ROWS(4)
        SOME_ROWS(1, 4)
    }
}

static void rows_of_8_bits(const product *own, int64_t first, int64_t last, int64_t row, int64_t rows) {
    switch (rows) {
        SOME_ROWS(ROWS, 8)
        FEWER_ROWS(8)
        SOME_ROWS(1, 8)
    }
}

void groups_outputs(const product *own, int64_t first, int64_t last) {
    last = last < own->own->outputs ? last : side_outputs(own->own);
    for (; first < last; first += BLOCK) {
        int64_t end = first + BLOCK < last ? first + BLOCK : last;
        for (int64_t row = 0; row < own->rows; row += ROWS) {
            int64_t rows = own->rows - row < ROWS ? own->rows - row : ROWS;
            if (bits_of(own->own) == 8)
                rows_of_8_bits(own, first, end, row, rows);
            else
                rows_of_4_bits(own, first, end, row, rows);
        }
    }
}
