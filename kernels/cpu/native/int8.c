/* Products with weights of 8 bits, a row of weights after the other as the checkpoint has them.
 *
 *   y = (sum(q · W) as float32) · scale · step + bias,  q = round(x / step), step = max(amax |x|, LEAST) / steps
 *
 * each operation rounded to float32 once, in this order; sums are exact. A row with a number that is none, or infinite,
 * becomes NaN, and no other does. What is multiplied are bytes q + OFFSET, where instructions want one factor unsigned;
 * OFFSET · sum(W), which is known at load, is taken off again. `inputs` are at most 1 << 16, so that sums fit. */
#include "linear.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "int8_dot.h"
#include "vectors.h"

#define LEAST 1e-30f
#define OUTPUTS 4 /* weights' rows that are multiplied together */
#define ROWS 4    /* rows of x */
#define BLOCK 128 /* outputs whose weights stay in a near cache while all rows pass */

int int8_offset(void) { return OFFSET; }

int int8_vector(void) { return BYTES; }

/* Bytes of one row; returns its step. */
float int8_ready(const linear *own, const float *x, uint8_t *bytes) {
    int64_t inputs = own->inputs, stride = own->stride;
    float most = 0, odd = 0;
    for (int64_t i = 0; i < inputs; i++) {
        float size = fabsf(x[i]);
        most = size > most ? size : most;
        odd += x[i] - x[i]; /* 0, or NaN */
    }
    float step = (most > LEAST ? most : LEAST) / (float)own->steps;
    if (odd != odd) {
        memset(bytes, OFFSET, stride);
        return NAN;
    }
    for (int64_t i = 0; i < inputs; i++)
        bytes[i] = (uint8_t)(OFFSET + (int32_t)rintf(x[i] / step));
    memset(bytes + inputs, OFFSET, stride - inputs);
    return step;
}

INLINE void tile(
    const product *own, int64_t output, int64_t row, const int outputs, const int rows, int64_t row_bytes
) {
    const linear *by = own->own;
    const int8_t *weight = (const int8_t *)by->weight + output * by->stride;
    const char *ready = own->ready + row * row_bytes;
    sums all[OUTPUTS][ROWS];
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++)
            all[o][r] = no_sums();
    for (int64_t i = 0; i < by->stride; i += BYTES) {
        vector right[ROWS];
        for (int r = 0; r < rows; r++)
            right[r] = load(ready + r * row_bytes + HEADER + i);
        for (int o = 0; o < outputs; o++) {
            vector left = load(weight + o * by->stride + i);
            for (int r = 0; r < rows; r++)
                all[o][r] = dot(all[o][r], right[r], left);
        }
    }
    for (int r = 0; r < rows; r++) {
        float step = *(const float *)(ready + r * row_bytes);
        float *out = own->out + (row + r) * by->outputs;
        for (int o = 0; o < outputs; o++) {
            int64_t at = output + o;
            float y = (float)(total(all[o][r]) - by->offset[at]) * by->scale[at] * step;
            if (by->bias)
                y += by->bias[at];
            out[at] = own->add ? out[at] + y : y;
        }
    }
}

INLINE void some_rows(
    const product *own, int64_t first, int64_t last, int64_t row, const int rows, int64_t row_bytes
) {
    for (; first + OUTPUTS <= last; first += OUTPUTS)
        tile(own, first, row, OUTPUTS, rows, row_bytes);
    for (; first < last; first++)
        tile(own, first, row, 1, rows, row_bytes);
}

static void all_rows(const product *own, int64_t first, int64_t last) {
    int64_t row_bytes = linear_row_bytes(own->own), row = 0;
    for (; row + ROWS <= own->rows; row += ROWS)
        some_rows(own, first, last, row, ROWS, row_bytes);
    switch (own->rows - row) {
    case 3: some_rows(own, first, last, row, 3, row_bytes); break;
    case 2: some_rows(own, first, last, row, 2, row_bytes); break;
    case 1: some_rows(own, first, last, row, 1, row_bytes); break;
    }
}

void int8_outputs(const product *own, int64_t first, int64_t last) {
    for (; first < last; first += BLOCK)
        all_rows(own, first, first + BLOCK < last ? first + BLOCK : last);
}
