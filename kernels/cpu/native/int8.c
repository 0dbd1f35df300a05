/* Products with weights of 8 bits, a row of weights after the other as the checkpoint has them.
 *
 *   y = (sum(q · W) as float32) · scale · step + bias,  q = round(x / step), step = max(amax |x|, LEAST) / steps
 *
 * each operation rounded to float32 once, in this order; sums are exact. A row with a number that is none, or infinite,
 * becomes NaN, and no other does. What is multiplied are bytes q + OFFSET, where instructions want one factor unsigned;
 * OFFSET · sum(W), which is known at load, is taken off again. `inputs` are at most 1 << 16, so that sums fit. */
#include "threads.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "int8_dot.h"

#define LEAST 1e-30f
#define OUTPUTS 4 /* weights' rows that are multiplied together */
#define ROWS 4    /* rows of x */

typedef struct {
    const float *x; /* [rows, inputs] */
    const int8_t *weight; /* [outputs, stride], zeros behind `inputs` */
    const float *scale; /* [outputs] */
    const int32_t *offset; /* [outputs] OFFSET · sum(W) */
    const float *bias; /* [outputs] or NULL */
    float *out; /* [rows, outputs] */
    uint8_t *bytes; /* [rows, stride] */
    float *step; /* [rows] */
    int64_t rows, inputs, stride, outputs;
    int32_t steps, add;
} int8_product;

int int8_offset(void) { return OFFSET; }

int int8_vector(void) { return BYTES; }

/* Bytes of one row; returns its step. */
float int8_round(const float *x, uint8_t *bytes, int64_t inputs, int64_t stride, int steps) {
    float most = 0, odd = 0;
    for (int64_t i = 0; i < inputs; i++) {
        float size = fabsf(x[i]);
        most = size > most ? size : most;
        odd += x[i] - x[i]; /* 0, or NaN */
    }
    float step = (most > LEAST ? most : LEAST) / (float)steps;
    if (odd != odd) {
        memset(bytes, OFFSET, stride);
        return NAN;
    }
    for (int64_t i = 0; i < inputs; i++)
        bytes[i] = (uint8_t)(OFFSET + (int32_t)rintf(x[i] / step));
    memset(bytes + inputs, OFFSET, stride - inputs);
    return step;
}

static inline __attribute__((always_inline)) void tile(
    const int8_product *own, int64_t output, int64_t row, const int outputs, const int rows
) {
    const int8_t *weight = own->weight + output * own->stride;
    const uint8_t *bytes = own->bytes + row * own->stride;
    sums all[OUTPUTS][ROWS];
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++)
            all[o][r] = no_sums();
    for (int64_t i = 0; i < own->stride; i += BYTES) {
        vector right[ROWS];
        for (int r = 0; r < rows; r++)
            right[r] = load(bytes + r * own->stride + i);
        for (int o = 0; o < outputs; o++) {
            vector left = load(weight + o * own->stride + i);
            for (int r = 0; r < rows; r++)
                all[o][r] = dot(all[o][r], right[r], left);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outputs; o++) {
            int64_t at = output + o;
            float y = (float)(total(all[o][r]) - own->offset[at]) * own->scale[at] * own->step[row + r];
            if (own->bias != NULL)
                y += own->bias[at];
            float *out = own->out + (row + r) * own->outputs + at;
            *out = own->add ? *out + y : y;
        }
}

static inline __attribute__((always_inline)) void tiles(const int8_product *own, int64_t output, const int outputs) {
    int64_t row = 0;
    for (; row + ROWS <= own->rows; row += ROWS)
        tile(own, output, row, outputs, ROWS);
    switch (own->rows - row) {
    case 3: tile(own, output, row, outputs, 3); break;
    case 2: tile(own, output, row, outputs, 2); break;
    case 1: tile(own, output, row, outputs, 1); break;
    }
}

static void round_rows(void *arg, int index, int count) {
    const int8_product *own = arg;
    int64_t first = own->rows * index / count, last = own->rows * (index + 1) / count;
    for (int64_t row = first; row < last; row++)
        own->step[row] = int8_round(
            own->x + row * own->inputs, own->bytes + row * own->stride, own->inputs, own->stride, own->steps
        );
}

static void multiply(void *arg, int index, int count) {
    const int8_product *own = arg;
    int64_t groups = (own->outputs + OUTPUTS - 1) / OUTPUTS;
    int64_t output = groups * index / count * OUTPUTS, last = groups * (index + 1) / count * OUTPUTS;
    if (last > own->outputs)
        last = own->outputs;
    for (; output + OUTPUTS <= last; output += OUTPUTS)
        tiles(own, output, OUTPUTS);
    for (; output < last; output++)
        tiles(own, output, 1);
}

void int8_linear(pool *threads, int8_product *own) {
    int64_t tasks = own->outputs * own->stride / TASK_BYTES, most = (own->outputs + OUTPUTS - 1) / OUTPUTS;
    tasks = tasks < 1 ? 1 : tasks > most ? most : tasks;
    phase phases[] = {
        {round_rows, own, own->rows < 8 ? 1 : (int)(own->rows / 4)},
        {multiply, own, (int)tasks},
    };
    if (phases[0].count == 1) {
        round_rows(own, 0, 1);
        pool_run_phases(threads, phases + 1, 1);
        return;
    }
    pool_run_phases(threads, phases, 2);
}
