/* Products with a weight, y = x Wᵀ + b, whatever its numbers are: an output's weights lie one after the other, or those
 * of SIDE outputs side by side.
 *
 * A row of x is made ready once (rounded, or filled up with zeros), then multiplied with all outputs. An output is one
 * sum in one order, so that its bits depend on nothing else: neither on other rows nor on who computes it. */
#ifndef LINEAR_H
#define LINEAR_H

#include <stdint.h>

#include "threads.h"

enum weights { FLOAT_32, BFLOAT_16, FLOAT_16, INT_8, GROUPED, BOTH_BFLOAT_16 };

/* How numbers in groups are scaled; see groups.c. */
enum scales { HALVES, BFLOAT_PAIRS, FLOAT_PAIRS, SUPER_BLOCKS, EIGHT_BITS, SIX_BITS };

typedef struct linear {
    int64_t kind;                     /* enum weights */
    int64_t outputs, inputs, stride;  /* bytes of an output's weights; but of floats SIDE outputs stand side by side */
    const void *weight;
    const float *scale;    /* INT_8: [outputs] */
    const float *bias;     /* [outputs] or NULL */
    int64_t scaled, group; /* GROUPED: enum scales, and numbers that share one */
    const struct linear *rest; /* of the same inputs: makes the outputs behind these, a multiple of 32; or NULL */
} linear;

typedef struct {
    const linear *own;
    char *ready; /* rows, each of linear_row_bytes */
    int64_t rows;
    float *out;  /* [rows, width] */
    int64_t add; /* 1: out += y; 0: out = y */
    int64_t row_bytes, width;
    int64_t parted; /* rows, from the first one on, whose numbers stand part by part; see float_parts */
    int tasks, large; /* as how many tasks it is done by all threads; the first of them are larger */
    int64_t units, wide, narrow; /* of TASK_BYTES in all, and in a task that is large, or is not */
} product;

/* Of a linear with all its rest. */
product product_of(const linear *own, char *ready, int64_t rows, float *out, int64_t add, int threads);

/* Of a row that is ready; a multiple of a cache line. There is room for a multiple of PACKED rows, which may be read. */
int64_t linear_row_bytes(const linear *own);
/* Row number `row`; `ready` is where the first one's memory begins. `parted`: of a product, as it is told there. */
void linear_ready(const linear *own, const float *x, char *ready, int64_t row, int64_t parted);
/* Outputs [first, last) of all rows, of the linear and of its rest. */
void linear_outputs(const product *own, int64_t first, int64_t last);
/* One of `count` tasks of a product: a phase of it. */
void linear_task(void *own, int index, int count);

/* All of it: x [rows, inputs] in float32; `ready` is memory for the rows. */
void linear_run(pool *threads, const linear *own, const float *x, int64_t rows, char *ready, float *out, int64_t add);

int64_t int8_row_bytes(const linear *own);
void int8_ready(const linear *own, const float *x, char *ready);
void int8_outputs(const product *own, int64_t first, int64_t last);
int64_t groups_row_bytes(const linear *own);
void groups_ready(const linear *own, const float *x, char *ready);
void groups_outputs(const product *own, int64_t first, int64_t last);
int64_t bfloats_row_bytes(const linear *own);
void bfloats_ready(const linear *own, const float *x, char *ready, int64_t row);
void bfloats_outputs(const product *own, int64_t first, int64_t last);
#define FEWEST_BFLOATS 5 /* rows that matrix instructions multiply, where there are some */
/* The same by matrix instructions, where they pay for so many rows. */
int matrix_allowed(void);
int matrix_pays(const product *own);
void matrix_outputs(const product *own, int64_t first, int64_t last);
void matrix_groups(const product *own, int64_t first, int64_t last);
int64_t float_parted(int64_t rows); /* how many of so many rows stand part by part */
void float_parts(const linear *own, const float *x, float *ready);
void float_outputs(const product *own, int64_t first, int64_t last);

#define PACKED 16 /* rows that are made ready by one task, and multiplied by matrix instructions together */
#define HEADER 64 /* bytes before a row that is ready: what it was divided by */

#define AHEAD 4096 /* bytes */
#ifdef ASKS_FROM /* so many rows of x; see library.py */
#define ASKED_INTO 3
#else
#define ASKS_FROM 1
#define ASKED_INTO 2
#endif

/* Asks for weights so long before they are needed: where a byte of them makes much work, a processor has few under way at
 * once, and by itself it asks no further than a page. */
static inline void ask_ahead(const void *weight, const int rows) {
    if (rows >= ASKS_FROM)
        __builtin_prefetch((const char *)weight + AHEAD, 0, ASKED_INTO);
}

static inline const char *ready_row(const product *own, int64_t row, int64_t bytes) { return own->ready + row * bytes; }

#endif
