/* Of products with weights of 8 bits, what becomes of their sums: int8.c. */
#ifndef INT8_H
#define INT8_H

#include "side.h"

/* Of a row that is ready; behind it its numbers. */
typedef struct {
    float step;
    int32_t begin; /* of sums, where weights are read as q + SHIFTED */
} int8_header;

/* y of sums of SIDE outputs. */
INLINE void int8_store(const product *own, int64_t output, int64_t row, vec sums, const char *ready) {
    const linear *by = own->own;
    int64_t count = by->outputs - output;
    vec scale = count < SIDE ? v_load_some(by->scale + output, count) : v_load(by->scale + output);
    side_store(own, output, row, v_mul(v_mul(sums, scale), v_set(((const int8_header *)ready)->step)));
}

#endif
