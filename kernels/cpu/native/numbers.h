/* Numbers as memory has them, read as float32. */
#ifndef NUMBERS_H
#define NUMBERS_H

#include <string.h>

#include "attention.h"
#include "simd.h"

FAST int64_t in_lanes(int64_t number) { return (number + LANES - 1) / LANES * LANES; }
FAST int64_t bytes_of(int64_t number) { return number == FLOAT32 ? 4 : number == INT8 ? 1 : 2; }

FAST vec load(const void *at, int64_t index, int number) {
    switch (number) {
    case FLOAT16: return v_load_f16((const uint16_t *)at + index);
    case BFLOAT16: return v_load_bf16((const uint16_t *)at + index);
    case INT8: return v_load_i8((const int8_t *)at + index);
    default: return v_load((const float *)at + index);
    }
}

/* `count` numbers as float32, and zeros behind them up to `room`, a multiple of the lanes. */
static inline void widen(const void *from, int number, int64_t count, int64_t room, float *to) {
    int64_t whole = count / LANES * LANES;
    for (int64_t at = 0; at < whole; at += LANES)
        v_store(to + at, load(from, at, number));
    if (whole == room)
        return;
    int64_t bytes = number == FLOAT32 ? 4 : number == INT8 ? 1 : 2;
    char rest[LANES * 4] = {0};
    memcpy(rest, (const char *)from + whole * bytes, (count - whole) * bytes);
    v_store(to + whole, load(rest, 0, number));
    for (int64_t at = whole + LANES; at < room; at += LANES)
        v_store(to + at, v_zero());
}

#endif
