/* Matrix instructions (AMX): registers of which each is a tile of 16 rows of up to 64 bytes. */
#ifndef MATRIX_H
#define MATRIX_H

#include <immintrin.h>
#include <stdint.h>

#include "linear.h"

typedef struct {
    uint8_t palette, row, zeros[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_shapes;

/* Sums of products in tiles 0 to 3, numbers of `depth` inputs of weights in 4 and 5, and of x in 6 and 7. */
static inline void matrix_begin(int depth) {
    tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.bytes[i] = i < 6 ? 64 : depth;
        shapes.rows[i] = i == 4 || i == 5 ? depth / 4 : PACKED;
    }
    __asm__ volatile("" : : "r"(&shapes) : "memory"); /* GCC before 13 takes it for read in its first 8 bytes alone */
    _tile_loadconfig(&shapes);
}

#endif
