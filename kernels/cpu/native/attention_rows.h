/* What is computed of rows of a tile: products with keys, shares, sums of values. */
#ifndef ATTENTION_ROWS_H
#define ATTENTION_ROWS_H

#include <math.h>

#include "attention_work.h"
#include "numbers.h"

#include "exponential.h" /* of the vectors of simd.h */

#define LATER 32 /* values ahead of what is multiplied are fetched */
#define MOST_ROWS (TILE == 8 ? 2 : 4) /* of a product, and of a mixture */

FAST vec v_exp(vec x) { /* of x ≤ 0 */
    return v_from(x, LEAST_EXP, v_exp_within(v_max(v_set(LEAST_EXP), x)));
}

static inline float exp_of(float x) {
    float lanes[LANES];
    v_store(lanes, v_exp(v_set(x)));
    return lanes[0];
}

FAST vec v_tanh(vec x) {
    vec small = v_exp(v_mul(v_abs(x), v_set(-2.0f)));
    return v_sign(x, v_div(v_sub(v_set(1.0f), small), v_add(v_set(1.0f), small)));
}

/* out[r * SPLIT + k] = queries[r] · keys[k]; rows * count is TILE. Fetches what comes AHEAD keys later, if `ahead`. */
FAST void products(const float *queries, int64_t row, const void **keys, int64_t dim, int number, int rows, int count,
                   int ahead, float *out) {
    vec sums[TILE];
    const void *at[TILE];
    const char *later[TILE];
#pragma GCC unroll 16
    for (int k = 0; k < count; k++) {
        at[k] = keys[k];
        later[k] = ahead ? keys[k + AHEAD] : NULL;
    }
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++)
        sums[i] = v_zero();
    for (int64_t d = 0; d < dim; d += LANES) {
        vec query[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            query[r] = v_load(queries + r * row + d);
#pragma GCC unroll 16
        for (int k = 0; k < count; k++) {
            vec key = load(at[k], d, number);
            if (ahead) /* into the second cache: a tenth quicker than into the first and half as far */
                __builtin_prefetch(later[k] + bytes_of(number, d), 0, 2);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                sums[r * count + k] = v_fma(query[r], key, sums[r * count + k]);
        }
    }
    float totals[TILE];
    v_totals(sums, totals);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        memcpy(out + r * SPLIT, totals + r * count, count * sizeof(float));
}

/* The same of NEAR keys and all rows. */
FAST void near_products(const float *queries, int64_t row, int64_t rows, int64_t dim, const void **keys, int number,
                        int ahead, float *out) {
    int64_t r = 0;
#if TILE == 16
    for (; r + 4 <= rows; r += 4)
        for (int k = 0; k < NEAR; k += 4)
            products(queries + r * row, row, keys + k, dim, number, 4, 4, ahead, out + r * SPLIT + k);
#endif
    for (; r + 2 <= rows; r += 2)
        for (int k = 0; k < NEAR; k += TILE / 2)
            products(queries + r * row, row, keys + k, dim, number, 2, TILE / 2, ahead, out + r * SPLIT + k);
    for (; r < rows; r++)
        for (int k = 0; k < NEAR; k += TILE)
            products(queries + r * row, row, keys + k, dim, number, 1, TILE, ahead, out + r * SPLIT + k);
}

static inline void near_by_number(const float *queries, int64_t row, int64_t rows, int64_t dim, const void **keys, int number,
                           float *out) {
    switch (number) {
    case FLOAT16: near_products(queries, row, rows, dim, keys, FLOAT16, 1, out); break;
    case BFLOAT16: near_products(queries, row, rows, dim, keys, BFLOAT16, 1, out); break;
    case INT8: near_products(queries, row, rows, dim, keys, INT8, 1, out); break;
    case FP8: near_products(queries, row, rows, dim, keys, FP8, 1, out); break;
    case NVFP4: near_products(queries, row, rows, dim, keys, NVFP4, 1, out); break;
    case TURBO4: near_products(queries, row, rows, dim, keys, TURBO4, 1, out); break;
    case TURBO3: near_products(queries, row, rows, dim, keys, TURBO3, 1, out); break;
    default:
        if (rows <= MOST_ROWS)
            near_products(queries, row, rows, dim, keys, FLOAT32, 1, out);
        else
            near_products(queries, row, rows, dim, keys, FLOAT32, 0, out);
    }
}

/* sums[r] += Σ shares[r][i] · values[i] from i to end, of `wide` vectors from number d on. */
FAST void mixture(const float *shares, const void **values, int64_t i, int64_t end, int64_t d, int number, int rows,
                  int wide, int fresh, float *sums, int64_t row) {
    vec kept[16];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int c = 0; c < wide; c++)
            kept[r * wide + c] = fresh ? v_zero() : v_load(sums + r * row + d + c * LANES);
    for (; i < end; i++) {
        vec value[8];
        const char *later = (const char *)values[i + LATER] + bytes_of(number, d);
#pragma GCC unroll 8
        for (int c = 0; c < wide; c++) {
            value[c] = load(values[i], d + c * LANES, number);
            if (bytes_of(number, c * LANES) % LINE == 0)
                __builtin_prefetch(later + bytes_of(number, c * LANES), 0, 2);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            vec share = v_set(shares[r * SPLIT + i]);
#pragma GCC unroll 8
            for (int c = 0; c < wide; c++)
                kept[r * wide + c] = v_fma(share, value[c], kept[r * wide + c]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int c = 0; c < wide; c++)
            v_store(sums + r * row + d + c * LANES, kept[r * wide + c]);
}

/* The same of all of `dim` numbers; of codes in fewer widths, since each is compiled by itself. */
FAST void mix_rows(const float *shares, const void **values, int64_t i, int64_t end, int64_t dim, int number, int rows,
                   int fresh, float *sums, int64_t row) {
    int64_t d = 0;
#if TILE == 16
    if (rows <= 2 && number <= INT8)
        for (; d + 8 * LANES <= dim; d += 8 * LANES)
            mixture(shares, values, i, end, d, number, rows, 8, fresh, sums, row);
#endif
    if (TILE == 16 || rows <= 2)
        for (; d + 4 * LANES <= dim; d += 4 * LANES)
            mixture(shares, values, i, end, d, number, rows, 4, fresh, sums, row);
    for (; (number <= INT8 || TILE == 8) && d + 2 * LANES <= dim; d += 2 * LANES)
        mixture(shares, values, i, end, d, number, rows, 2, fresh, sums, row);
    for (; d < dim; d += LANES)
        mixture(shares, values, i, end, d, number, rows, 1, fresh, sums, row);
}

FAST void mix_by_rows(const float *shares, const void **values, int64_t i, int64_t end, int64_t dim, int number,
                      int rows, int fresh, float *sums, int64_t row) {
    switch (rows) {
    case 1: mix_rows(shares, values, i, end, dim, number, 1, fresh, sums, row); break;
    case 2: mix_rows(shares, values, i, end, dim, number, 2, fresh, sums, row); break;
    default: mix_rows(shares, values, i, end, dim, number, 4, fresh, sums, row);
    }
}

static inline void mix(const float *shares, const void **values, int64_t i, int64_t end, int64_t dim, int number,
                       int rows, int fresh, float *sums, int64_t row) {
    switch (number) {
    case FLOAT16: mix_by_rows(shares, values, i, end, dim, FLOAT16, rows, fresh, sums, row); break;
    case BFLOAT16: mix_by_rows(shares, values, i, end, dim, BFLOAT16, rows, fresh, sums, row); break;
    case INT8: mix_by_rows(shares, values, i, end, dim, INT8, rows, fresh, sums, row); break;
    case FP8: mix_by_rows(shares, values, i, end, dim, FP8, rows, fresh, sums, row); break;
    case NVFP4: mix_by_rows(shares, values, i, end, dim, NVFP4, rows, fresh, sums, row); break;
    case TURBO4: mix_by_rows(shares, values, i, end, dim, TURBO4, rows, fresh, sums, row); break;
    case TURBO3: mix_by_rows(shares, values, i, end, dim, TURBO3, rows, fresh, sums, row); break;
    default: mix_by_rows(shares, values, i, end, dim, FLOAT32, rows, fresh, sums, row);
    }
}

/* Scores [from, end) of a row become e^(score - largest), and those beside them in their vectors 0. */
FAST float share(float *scores, int64_t from, int64_t end, float *largest) {
    int64_t begin = from / LANES * LANES, last = (end + LANES - 1) / LANES * LANES;
    for (int64_t i = begin; i < from; i++)
        scores[i] = -INFINITY;
    for (int64_t i = end; i < last; i++)
        scores[i] = -INFINITY;
    vec most = v_set(-INFINITY), sum = v_zero();
    for (int64_t i = begin; i < last; i += LANES)
        most = v_max(v_load(scores + i), most);
    *largest = v_largest(most);
    most = v_set(*largest);
    for (int64_t i = begin; i < last; i += LANES) {
        vec own = v_exp(v_sub(v_load(scores + i), most));
        sum = v_add(sum, own);
        v_store(scores + i, own);
    }
    float lanes[LANES], total = 0;
    v_store(lanes, sum);
    for (int i = 0; i < LANES; i++)
        total += lanes[i];
    return total;
}

/* O, M and L of a row go on with those of a split. */
static inline void join(float *sums, float *largest, float *total, const float *own, float own_largest, float own_total,
                        int64_t dim, int first) {
    if (first) {
        memcpy(sums, own, dim * sizeof(float));
        *largest = own_largest;
        *total = own_total;
        return;
    }
    float most = own_largest > *largest ? own_largest : *largest;
    float before = exp_of(*largest - most), now = exp_of(own_largest - most);
    vec fading = v_set(before), coming = v_set(now);
    for (int64_t d = 0; d < dim; d += LANES)
        v_store(sums + d, v_fma(v_load(own + d), coming, v_mul(v_load(sums + d), fading)));
    *total = *total * before + own_total * now;
    *largest = most;
}

#endif
