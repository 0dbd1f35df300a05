/* Attention over paged KV memory, whatever a step's spans are: tokens that decode, and chunks of prompts.
 *
 * The formula is that of kv.py:LayerAttention, computed in float32. What a query at position p sees is divided where
 * SPLIT divides positions. Of each split there are the largest score m, the sum l of e^(score - m), and
 * o = Σ e^(score - m) · value, one key after the other; splits are joined from the first to the last:
 *
 *     M' = max(M, m)    L' = L · e^(M - M') + l · e^(m - M')    O' = O · e^(M - M') + o · e^(m - M')    out = O / L
 *
 * A product of a query and a key is one sum by lanes of the vector, which are then added as a tree. So the bits of a
 * result follow from the position and from what is seen: not from rows beside it, from threads, from how a prompt was
 * cut into chunks, nor from which blocks hold it.
 *
 * Keys and values of 8 bits and fewer are codes with a scale for each token and head (codes.h), x = code · scale: the
 * product is taken of the codes and then scaled, and e^(score - m) is scaled before it is multiplied with the codes of a
 * value. Where keys are turned before they are coded, queries are turned, too; where values are, results are turned back. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include <stdint.h>

#include "threads.h"

#define SPLIT 256 /* positions; a multiple of the lanes of any vector */

enum number { FLOAT32, FLOAT16, BFLOAT16, INT8, FP8, NVFP4, TURBO4, TURBO3 }; /* from INT8 on there are scales */

typedef struct {
    int64_t first, size, position; /* its tokens in the flat batch, and where they stand in its sequence */
    const int64_t *blocks;         /* those of positions from 0 on; such as nobody sees are not read */
} span;

/* How the layers of one kind attend, and to whom. Strides are numbers, not bytes. */
typedef struct {
    int64_t heads, kv_heads, key_dim, value_dim, block_size;
    int64_t key_number, value_number, query_number; /* enum number; results are as queries */
    int64_t window, chunk;           /* 0: none */
    float scale, soft_cap;           /* soft_cap 0: none */
    const float *slopes;             /* by head of queries, or NULL */
    int64_t key_stride, value_stride, scale_stride; /* from head to head */
    int64_t spans;
    const span *span;
} attention_rules;

/* One layer's, of one step. */
typedef struct {
    const attention_rules *rules;
    const void *keys, *values;
    const float *key_scales, *value_scales; /* of codes */
    const void *queries;
    int64_t query_stride; /* from token to token; its heads lie side by side */
    void *out;            /* [tokens, heads, value_dim] */
    const float *sinks;   /* by head of queries, or NULL */
    char *memory;         /* of attention_bytes, on a cache line */
    int64_t threads;
} attention_layer;

/* Rows of keys, or of values, that are written to KV memory. */
typedef struct {
    int64_t tokens, kv_heads, dim;
    int64_t kv_number, source_number;
    const void *source;
    int64_t token_stride, head_stride;
    const int64_t *slots;
    void *memory;
    int64_t stride; /* from head to head */
    float *scales;  /* of codes */
    int64_t scale_stride;
} kv_rows;

/* How many bytes a step of these rules needs beside its inputs, on so many threads. */
int64_t attention_bytes(const attention_rules *rules, int64_t threads);
/* The phases of a layer, of which there are at most two; `own` stays until they are done. Returns how many. */
int attention_phases(attention_layer *own, phase *phases);
void attention_run(pool *threads, attention_layer *own);
void kv_store(const kv_rows *rows);

#endif
