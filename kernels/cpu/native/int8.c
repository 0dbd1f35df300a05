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

#if defined(__AVX512F__)
#define ROWS 8 /* of x that are multiplied together, as there are registers */
#define SIDES 2 /* for one row 1: memory is read best as one run */
#else
#define ROWS 2
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

INLINE void tile(const product *own, int64_t output, int64_t row, const int sides, const int rows) {
    const linear *by = own->own;
    const int64_t row_bytes = own->row_bytes;
    const uint8_t *weight = (const uint8_t *)by->weight + output * by->stride;
    const char *ready = own->ready + row * row_bytes;
    s_sums sums[SIDES][ROWS];
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < sides; o++)
            sums[o][r] = s_set(((const int8_header *)(ready + r * row_bytes))->begin);
    for (int64_t i = 0; i < by->stride; i += 4)
        for (int o = 0; o < sides; o++) {
            const uint8_t *at = weight + o * SIDE * by->stride + i * SIDE;
            s_numbers numbers = s_bytes(at);
            if (rows > SOON)
                ask_ahead(at);
            for (int r = 0; r < rows; r++)
                sums[o][r] = s_dot_bytes(sums[o][r], numbers, (const int8_t *)ready + r * row_bytes + HEADER + i);
        }
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < sides; o++)
            int8_store(own, output + o * SIDE, row + r, s_float(sums[o][r]), ready + r * row_bytes);
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
#if ROWS == 8
        SOME_ROWS(7)
        SOME_ROWS(6)
        SOME_ROWS(5)
        SOME_ROWS(4)
        SOME_ROWS(3)
        SOME_ROWS(2)
#endif
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
