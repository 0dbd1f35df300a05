/* What LoRA adapters add to a product for the rows of a step that have them: y += B (A x), scales in B.
 *
 * The rows of one adapter are a group. Those of all groups stand one behind the other, `places` says where: there x is made
 * ready in floats, whatever the product itself multiplies, and A x is kept. A number follows from its own row and adapter
 * alone, so that its bits depend on nothing else. */
#ifndef LORA_H
#define LORA_H

#include "linear.h"

/* B of a layer, of a product that may be several side by side: SIDE outputs at a time [ranks, SIDE], with zeros behind. */
typedef struct {
    const float *b;
    int64_t first, ranks;    /* of A x */
    int64_t column, outputs; /* of y */
} lora_part;

/* One adapter's for one product. */
typedef struct {
    linear a; /* of floats, [ranks of all parts, inputs] */
    const lora_part *parts;
    int64_t count;
} lora_factors;

/* Rows that have one adapter: [first, first + count) of all that have any. */
typedef struct {
    int64_t first, count;
} lora_group;

/* One step's. */
typedef struct {
    const lora_group *groups;
    int64_t count, rows;   /* groups, and rows of all of them */
    const int64_t *chosen; /* [rows], numbers in the batch */
    const int64_t *places; /* of each row of the batch its place in `chosen`, or -1 */
    int64_t most_ranks;    /* of an adapter of the step and any product */
    char *ready;           /* of lora_row_bytes for each of `rows` */
    float *inner;          /* [rows, most_ranks] */
    /* [products, groups]: NULL where an adapter changes nothing. In layers: of q k v, out, gate and up, down of each. */
    const lora_factors *const *factors;
} lora_step;

/* One product's part in it. */
typedef struct {
    const lora_step *step;
    const lora_factors *const *factors; /* [groups] */
    int64_t inputs, outputs;
    float *out; /* [rows of the batch, outputs] */
} lora_product;

int64_t lora_row_bytes(int64_t inputs);
/* Has an adapter of the step something for it? */
int lora_changes(const lora_product *own);
/* x of row number `row` of the batch, if it has an adapter. */
void lora_ready(const lora_product *own, const float *x, int64_t row);
/* A x of rows that are ready: any task of so many, at any time. Then, behind all of them, y. */
int lora_inner_tasks(const lora_product *own);
void lora_inner(const lora_product *own, int64_t index);
int lora_outer_tasks(const lora_product *own);
void lora_outer_task(void *own, int index, int count);

/* All of it: x [rows of the batch, inputs]. */
void lora_run(pool *threads, const lora_product *own, const float *x);

#endif
