/* Products with a weight, y = x Wᵀ + b, whatever its numbers are: rows of weights lie one after the other.
 *
 * A row of x is made ready once (rounded, or filled up with zeros), then multiplied with all outputs. An output is one
 * sum in one order, so that its bits depend on nothing else: neither on other rows nor on who computes it. */
#ifndef LINEAR_H
#define LINEAR_H

#include <stdint.h>

#include "threads.h"

enum weights { FLOAT_32, BFLOAT_16, FLOAT_16, INT_8, FOUR_BITS };

/* How numbers of 4 bits are scaled; see int4.c. */
enum scales { HALVES, BFLOAT_PAIRS, FLOAT_PAIRS, SUPER_BLOCKS };


typedef struct {
    int64_t kind;                     /* enum weights */
    int64_t outputs, inputs, stride;  /* bytes from a row of weights to the next */
    const void *weight;
    const float *scale;    /* INT_8: [outputs] */
    const int32_t *offset; /* INT_8: [outputs] OFFSET · sum(W) */
    const float *bias;     /* [outputs] or NULL */
    int64_t steps;         /* INT_8: that a row of x takes on each side of 0 */
    int64_t scaled, group; /* FOUR_BITS: enum scales, and numbers that share one */
} linear;

typedef struct {
    const linear *own;
    char *ready; /* rows, each of linear_row_bytes */
    int64_t rows;
    float *out; /* [rows, outputs] */
    int64_t add; /* 1: out += y; 0: out = y */
} product;

/* Of a row that is ready; a multiple of a cache line. There is room for a multiple of PACKED rows. */
int64_t linear_row_bytes(const linear *own);
/* Row number `row` of `rows` that are multiplied together; `ready` is where the first one's memory begins. */
void linear_ready(const linear *own, const float *x, char *ready, int64_t rows, int64_t row);
/* Outputs [first, last) of all rows. */
void linear_outputs(const product *own, int64_t first, int64_t last);
/* How many tasks a product of so many rows is divided into, and one of them: a phase of `product`. */
int linear_tasks(const linear *own, int64_t rows);
void linear_task(void *own, int index, int count);

/* All of it: x [rows, inputs] in float32; `ready` is memory for the rows. */
void linear_run(pool *threads, const linear *own, const float *x, int64_t rows, char *ready, float *out, int64_t add);

float int8_ready(const linear *own, const float *x, uint8_t *bytes);
void int8_outputs(const product *own, int64_t first, int64_t last);
/* With matrix instructions: whether so many rows are multiplied by them, and have their numbers side by side. */
int matrix_pays(const linear *own, int64_t rows);
void matrix_ready(const linear *own, const float *x, char *ready, int64_t row);
void matrix_outputs(const product *own, int64_t first, int64_t last);
int64_t int4_row_bytes(const linear *own);
void int4_ready(const linear *own, const float *x, char *ready);
void int4_outputs(const product *own, int64_t first, int64_t last);
void float_outputs(const product *own, int64_t first, int64_t last);

#define PACKED 16 /* rows whose numbers are side by side */
#define HEADER 64 /* bytes before a row that is ready: what it was divided by */

static inline const char *ready_row(const product *own, int64_t row, int64_t bytes) { return own->ready + row * bytes; }

#endif
