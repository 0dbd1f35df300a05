/* Products with weights of 8 bits and one scale for each output.
 *
 *   y = (Σ q · n as float32) · scale · step + bias,  n = round(x / step), step = max(amax |x|, LEAST) / MOST of a row
 *
 * each operation rounded to float32 once, in this order; sums are exact. A row with a number that is none, or infinite,
 * becomes NaN, and no other does. `inputs` are at most 1 << 16, so that sums fit. Weights stand as in groups.c: four
 * numbers of SIDE outputs, then the next four. */
#include "linear.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "int8.h"
#include "side.h"
#include "side_dot.h"

#define BLOCK 128 /* outputs whose weights stay in a near cache while all rows pass */

#define NEAR 512 /* inputs whose weights stay in the nearest cache while all parts pass */
#define ROWS 8 /* of x that are multiplied together, as there are registers */
#define FEW 2  /* of these; all registers of a side are summed at once, as memory is read best */
#if PARTS == 1
#define SIDES 2 /* for one row 1: memory is read best as one run */
#else
#define SIDES 1
#endif

int64_t int8_row_bytes(const linear *own) { return HEADER + own->stride; }

void int8_ready(const linear *own, const float *x, char *ready) {
    int64_t inputs = own->inputs;
    int8_t *numbers = (int8_t *)ready + HEADER;
    int8_header *made = (int8_header *)ready;
    const float step = step_of(x, inputs);
    if (isnan(step)) {
        *made = (int8_header){NAN, 0};
        memset(numbers, 0, own->stride);
        return;
    }
    *made = (int8_header){step, -SHIFTED * round_by(step, x, inputs, numbers)};
    memset(numbers + inputs, 0, own->stride - inputs);
}

/* Products of inputs [i, last), of `parts` registers of each side. */
INLINE void add_parts(s_sums (*sums)[SIDES][ROWS], const product *own, const uint8_t *weight, const char *ready, int64_t i,
                      int64_t last, const int parts, const int sides, const int rows) {
    const int64_t stride = own->own->stride, row_bytes = own->row_bytes;
    s_sums now[PARTS][SIDES][ROWS]; /* in registers */
    for (int p = 0; p < parts; p++)
        for (int r = 0; r < rows; r++)
            for (int o = 0; o < sides; o++)
                now[p][o][r] = sums[p][o][r];
    for (; i < last; i += 4)
        for (int o = 0; o < sides; o++) {
            const uint8_t *at = weight + o * SIDE * stride + i * SIDE;
            if (rows > SOON)
                ask_ahead(at, rows);
            for (int p = 0; p < parts; p++) {
                s_numbers numbers = s_bytes(at + p * PART_BYTES);
                for (int r = 0; r < rows; r++)
                    now[p][o][r] = s_dot_bytes(now[p][o][r], numbers, (const int8_t *)ready + r * row_bytes + HEADER + i);
            }
        }
    for (int p = 0; p < parts; p++)
        for (int r = 0; r < rows; r++)
            for (int o = 0; o < sides; o++)
                sums[p][o][r] = now[p][o][r];
}

INLINE void tile(const product *own, int64_t output, int64_t row, const int sides, const int rows) {
    const linear *by = own->own;
    const int parts = rows > FEW ? 1 : PARTS;
    const int64_t row_bytes = own->row_bytes, inputs = by->stride, near = parts < PARTS ? NEAR : inputs;
    const uint8_t *weight = (const uint8_t *)by->weight + output * inputs;
    const char *ready = own->ready + row * row_bytes;
    s_sums sums[PARTS][SIDES][ROWS];
    for (int p = 0; p < PARTS; p++)
        for (int r = 0; r < rows; r++)
            for (int o = 0; o < sides; o++)
                sums[p][o][r] = s_set(((const int8_header *)(ready + r * row_bytes))->begin);
    for (int64_t i = 0; i < inputs; i += near)
        for (int p = 0; p < PARTS; p += parts)
            add_parts(sums + p, own, weight + p * PART_BYTES, ready, i, i + near < inputs ? i + near : inputs, parts, sides,
                      rows);
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < sides; o++) {
            vec whole;
            for (int p = 0; p < PARTS; p++)
                p_put(&whole, p, s_float(sums[p][o][r]));
            int8_store(own, output + o * SIDE, row + r, whole, ready + r * row_bytes);
        }
}

#define SOME_ROWS(count)                                               \
    case count:                                                        \
        for (; count > 1 && first + SIDES * SIDE <= last; first += SIDES * SIDE) \
            tile(own, first, row, SIDES, count);                       \
        for (; first < last; first += SIDE)                            \
            tile(own, first, row, 1, count);                           \
        break;

static void some_rows(const product *own, int64_t first, int64_t last, int64_t row, int64_t rows) {
    switch (rows) {
        SOME_ROWS(ROWS)
        SOME_ROWS(7)
        SOME_ROWS(6)
        SOME_ROWS(5)
        SOME_ROWS(4)
        SOME_ROWS(3)
        SOME_ROWS(2)
        SOME_ROWS(1)
    }
}

void int8_outputs(const product *own, int64_t first, int64_t last) {
    last = last < own->own->outputs ? last : side_outputs(own->own);
    for (; first < last; first += BLOCK) {
        int64_t end = first + BLOCK < last ? first + BLOCK : last;
        for (int64_t row = 0; row < own->rows; row += ROWS)
            some_rows(own, first, end, row, own->rows - row < ROWS ? own->rows - row : ROWS);
    }
}
