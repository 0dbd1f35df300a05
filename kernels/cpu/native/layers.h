/* What stands between products of a layer, by rows; and the layers of plain decoders (norm, q k v, rotation | attention |
 * out, norm, gate and up, SiLU, down), of which a step of few rows is few calls. Numbers are float32.
 *
 *   norm    x / √(Σx² + floor) · gain         floor = n · eps; the gain holds √n
 *   rotate  (a + ib) · (cos + i·sin)          of numbers that lie side by side
 *   silu    gate / (1 + e^-gate) · up
 *
 * Each number follows from its own row alone. */
#ifndef LAYERS_H
#define LAYERS_H

#include "attention.h"
#include "linear.h"
#include "lora.h"

/* How heads of q and k, which lie side by side in a row, become what attention is given. */
enum turning {
    TURN_NONE,
    TURN_HALVES,        /* number i turns with number i + turned / 2; each has a cosine and a sine of its own */
    TURN_PAIRS,         /* numbers 2 i and 2 i + 1 turn, with theirs */
    TURN_PAIRS_OF_HALF, /* the same with the cosine and sine of number i */
};
typedef struct {
    int64_t heads, kv_heads, head_dim;
    int64_t kind, turned;          /* enum turning; numbers of a head that turn */
    int64_t norm_last;             /* norms come behind the rotation */
    int64_t q_size, k_size;        /* numbers that are normed together */
    const float *q_gain, *k_gain;  /* NULL: no norms; of all heads */
    float q_floor, k_floor;
} head_rules;

typedef struct {
    const linear *qkv, *out, *gate_up, *down;
    const float *attention_norm, *qk_norm, *mlp_norm; /* gains; NULL: none. qk_norm [heads + kv_heads, head_dim] */
    const float *rotations;                           /* [positions, head_dim / 2, 2], NULL: heads are not turned */
    const head_rules *rules; /* in place of qk_norm and rotations, with the tables of the step; NULL: those */
    int64_t number;          /* among all */
} layer;

/* One step's: `before` and `after` attention follow each other. */
typedef struct {
    int64_t rows, hidden, heads, kv_heads, head_dim, inner;
    float floor, qk_floor;
    const int64_t *positions; /* [rows] */
    float *x;                 /* [rows, hidden], the residual stream */
    float *qkv;               /* [rows, (heads + 2 · kv_heads) · head_dim] */
    const float *mixed;       /* [rows, heads · head_dim], what attention gives */
    float *gate_up;           /* [rows, 2 · inner] */
    char *ready;              /* of layers_ready_bytes for each row */
    const float *cosines, *sines; /* [rows, turned], of layers with rules */
    const lora_step *lora;        /* NULL: no row has an adapter */
} layer_step;

void norm_row(const float *x, const float *gain, float floor, int64_t size, float *out);
void rotate_row(float *heads, const float *turns, int64_t count, int64_t head_dim);
void silu_row(const float *gate, const float *up, int64_t size, float *out);
/* Heads of a row, in place: each by its own gain; by rules, `row` is its number in the tables. */
void norm_heads_of(float *x, const float *gain, float floor, int64_t size, int64_t heads);
void turn_row(const head_rules *rules, float *x, const float *cosines, const float *sines, int64_t row);

static inline int row_tasks(int64_t rows) { return (int)((rows + PACKED - 1) / PACKED); }

/* PACKED of each task, which are ready for a product together. */
#define EACH_ROW(own, index, count)                                                                        \
    for (int64_t row = (int64_t)(index) * PACKED, end = (index) + 1 < (count) ? row + PACKED : (own)->rows; \
         row < end; row++)

/* Of all rows, on all threads. `stride` is from row to row. */
void norm_rows(pool *threads, const float *x, const float *gain, float floor, int64_t size, int64_t rows, float *out);
/* Of each head by its own gain, in place. */
void norm_heads(pool *threads, float *x, const float *gain, float floor, int64_t size, int64_t heads, int64_t stride,
                int64_t rows);
void rotate_rows(pool *threads, float *x, const float *turns, int64_t heads, int64_t head_dim, int64_t stride,
                 int64_t rows);
void silu_rows(pool *threads, const float *gate_up, int64_t size, int64_t rows, float *out);

/* In place; `cosines` and `sines` are [rows, turned]. */
void turn_heads(pool *threads, const head_rules *rules, float *x, const float *cosines, const float *sines,
                int64_t stride, int64_t rows);

/* What follows the attention of layer `done`, and what precedes that of `next`; NULL: there is none. */
void layers_run(pool *threads, const layer *done, const layer *next, layer_step *step);

/* Where a layer keeps keys, and behind them values as if they were of further heads. */
typedef struct {
    const void *keys, *values;
    float *key_scales, *value_scales;
} layer_memory;

/* Bytes that layers_step needs beside its arguments. */
int64_t layers_plan_bytes(int64_t count);
/* All layers with their attention, of which all have one kind: `attention` and `rows` are that of one layer, but for what
 * `memory`, `queries`, `out` and `source` say of each. */
void layers_step(pool *threads, const layer *layers, const layer_memory *memory, int64_t count, layer_step *step,
                 const attention_layer *attention, const kv_rows *rows, char *plan);

#endif
