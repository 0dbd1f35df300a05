/* SIDE outputs at a time, whose weights stand side by side: what they have in common at their end. */
#ifndef SIDE_H
#define SIDE_H

#include <math.h>
#include <string.h>

#include "linear.h"
#include "vectors.h"

#define SIDE LANES

#if defined(__AVX512F__)
#define SOON 1 /* rows of x with which weights of 8 bits are multiplied as soon as they come */
#else
#define SOON 0
#endif

/* Whole sides of them. */
static inline int64_t side_outputs(const linear *own) { return (own->outputs + SIDE - 1) / SIDE * SIDE; }

/* y of a row, or those of them that there are: with the bias, in its place or added to what is there. */
INLINE void side_store(const product *own, int64_t output, int64_t row, vec y) {
    const linear *by = own->own;
    float *out = own->out + row * own->width + output;
    int64_t count = by->outputs - output;
    if (count >= SIDE) {
        if (by->bias)
            y = v_add(y, v_load(by->bias + output));
        v_store(out, own->add ? v_add(v_load(out), y) : y);
        return;
    }
    if (by->bias)
        y = v_add(y, v_load_some(by->bias + output, count));
    v_store_some(out, own->add ? v_add(v_load_some(out, count), y) : y, count);
}

#define LEAST 1e-30f
#define MOST 127

/* By what a part of a row of x is divided: its largest size / MOST; NaN where a number is none, or infinite. Sizes are
 * compared by their bits, as whole numbers, in which an order of summing does not matter: so vectors can. */
static inline float step_of(const float *x, int64_t count) {
    int32_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= INT32_MAX;
        most = bits > most ? bits : most;
    }
    if (most >= 0x7f800000)
        return NAN;
    float size;
    memcpy(&size, &most, sizeof size);
    return (size > LEAST ? size : LEAST) / MOST;
}

/* The part in 8 bits; returns its sum. */
static inline int32_t round_by(float step, const float *x, int64_t count, int8_t *numbers) {
    int32_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t own = (int32_t)rintf(x[i] / step);
        numbers[i] = (int8_t)own;
        sum += own;
    }
    return sum;
}

#endif
