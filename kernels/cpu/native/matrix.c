/* Products of 8 bits with many rows by matrix instructions: the sums are whole numbers, and so the same. */
#define _GNU_SOURCE
#include "linear.h"

#if defined(__AMX_INT8__)
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "int8.h"
#include "matrix.h"
#include "side.h"

#define DEPTH 64 /* inputs of a tile */
#define FEWEST 9 /* rows for which it pays: more than vectors multiply together */
#define ALLOW 0x1023 /* arch_prctl: ARCH_REQ_XCOMP_PERM */
#define TILES 18

/* The kernel gives a process these registers only if it asks. */
static int allowed(void) {
    static _Atomic int known; /* 0: not asked */
    if (!known)
        known = syscall(SYS_arch_prctl, ALLOW, TILES) == 0 ? 1 : -1;
    return known > 0;
}

int matrix_pays(int64_t rows) { return rows >= FEWEST && allowed(); }

/* y of the sums in a tile, of rows from `first` on. */
#define STORE(tile, output, first)                                                                  \
    _tile_stored(tile, sums, SIDE * 4);                                                             \
    for (int64_t r = (first); r < own->rows && r < (first) + PACKED; r++)                           \
        int8_store(own, output, r, _mm512_cvtepi32_ps(_mm512_load_si512(sums + (r - (first)) * SIDE)), \
                   own->ready + r * row_bytes);

/* One or two sides of outputs, of 32 rows or of up to 16. */
static void block(const product *own, int64_t output, int64_t row, int two) {
    const linear *by = own->own;
    const int64_t row_bytes = own->row_bytes, side_bytes = SIDE * by->stride;
    const char *weight = (const char *)by->weight + output * by->stride;
    const char *x = own->ready + row * row_bytes + HEADER, *next = x + PACKED * row_bytes;
    const int both = row + PACKED < own->rows;
    int32_t sums[PACKED * SIDE] __attribute__((aligned(64)));
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < by->stride; i += DEPTH) {
        _tile_loadd(4, weight + i * SIDE, 64);
        _tile_loadd(6, x + i, row_bytes);
        _tile_dpbssd(0, 6, 4);
        if (two) {
            _tile_loadd(5, weight + side_bytes + i * SIDE, 64);
            _tile_dpbssd(1, 6, 5);
        }
        if (both) {
            _tile_loadd(7, next + i, row_bytes);
            _tile_dpbssd(2, 7, 4);
            if (two)
                _tile_dpbssd(3, 7, 5);
        }
    }
    STORE(0, output, row)
    if (two) {
        STORE(1, output + SIDE, row)
    }
    if (both) {
        STORE(2, output, row + PACKED)
        if (two) {
            STORE(3, output + SIDE, row + PACKED)
        }
    }
}

void matrix_int8(const product *own, int64_t first, int64_t last) {
    last = last < own->own->outputs ? last : side_outputs(own->own);
    matrix_begin(DEPTH);
    for (; first < last; first += 2 * SIDE)
        for (int64_t row = 0; row < own->rows; row += 2 * PACKED)
            block(own, first, row, first + SIDE < last);
    _tile_release();
}

#else
int matrix_pays(int64_t rows) {
    (void)rows;
    return 0;
}
void matrix_int8(const product *own, int64_t first, int64_t last) { (void)own, (void)first, (void)last; }
#endif
