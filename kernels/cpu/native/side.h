/* SIDE outputs at a time, whose weights stand side by side: what they have in common at their end. */
#ifndef SIDE_H
#define SIDE_H

#include "linear.h"
#include "vectors.h"

#define SIDE LANES

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

#endif
