/* Numbers as memory has them, read as float32. */
#ifndef NUMBERS_H
#define NUMBERS_H

#include <string.h>

#include "codes.h"

FAST int64_t in_lanes(int64_t number) { return (number + LANES - 1) / LANES * LANES; }
/* Of so many numbers; of those that are packed by GROUP, of whole groups. */
FAST int64_t bytes_of(int64_t number, int64_t count) {
    static const int64_t of_group[] = {64, 32, 32, 16, 16, 9, 8, 6};
    return count * of_group[number] >> 4;
}
FAST int scaled(int64_t number) { return number >= INT8; }
FAST int turns(int64_t number) { return number >= TURBO4; }

FAST vec load(const void *at, int64_t index, int number) {
    switch (number) {
    case FLOAT16: return v_load_f16((const uint16_t *)at + index);
    case BFLOAT16: return v_load_bf16((const uint16_t *)at + index);
    case INT8: return v_load_i8((const int8_t *)at + index);
    case FP8: return v_load_e4m3((const uint8_t *)at + index);
    case NVFP4: return load_nvfp4((const uint8_t *)at, index);
    case TURBO4: return v_load_nibbles((const uint8_t *)at + (index >> 1), LLOYD_4);
    case TURBO3: return load_turbo3((const uint8_t *)at, index);
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
    char rest[LANES * 4] = {0};
    memcpy(rest, (const char *)from + bytes_of(number, whole), bytes_of(number, count - whole));
    v_store(to + whole, load(rest, 0, number));
    for (int64_t at = whole + LANES; at < room; at += LANES)
        v_store(to + at, v_zero());
}

#endif
