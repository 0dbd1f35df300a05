/* Products of 8 bits, or of bfloat16, with many rows by matrix instructions: of whole numbers sums are the same in any
 * order, and those of bfloat16 have the order of bfloats.c. */
#define _GNU_SOURCE
#include "linear.h"

#if defined(__AMX_INT8__)
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bfloats.h"
#include "int8.h"
#include "matrix.h"
#include "side.h"

#define DEPTH 64         /* bytes of inputs in a tile */
#define FEWEST 9         /* rows for which it pays: more than vectors multiply together */
#define ALLOW 0x1023     /* arch_prctl: ARCH_REQ_XCOMP_PERM */
#define TILES 18

/* The kernel gives a process these registers only if it asks. */
int matrix_allowed(void) {
    static _Atomic int known; /* 0: not asked */
    if (!known)
        known = syscall(SYS_arch_prctl, ALLOW, TILES) == 0 ? 1 : -1;
    return known > 0;
}

int matrix_pays(const product *own) {
    return own->rows >= (own->own->kind == BOTH_BFLOAT_16 ? FEWEST_BFLOATS : FEWEST) && matrix_allowed();
}

#define DOT(sum, x, weight)                     \
    if (kind == INT_8)                          \
        _tile_dpbssd(sum, x, weight);           \
    else                                        \
        _tile_dpbf16ps(sum, x, weight);

/* y of the sums in a tile, of rows from `first` on. */
#define STORE(tile, output, first)                                                              \
    if (kind != INT_8 && are_sums(own, output, first))                                           \
        _tile_stored(tile, own->out + (first) * own->width + (output), own->width * sizeof(float)); \
    else {                                                                                       \
        _tile_stored(tile, sums, SIDE * 4);                                                      \
        store(own, output, first, sums, kind);                                                   \
    }

/* Whether the sums of floats in a tile are y, and all of them are wanted. */
INLINE int are_sums(const product *own, int64_t output, int64_t first) {
    return !own->add && !own->own->bias && output + SIDE <= own->own->outputs && first + PACKED <= own->rows;
}

INLINE void store(const product *own, int64_t output, int64_t first, const int32_t *sums, const int kind) {
    int64_t last = first + PACKED < own->rows ? first + PACKED : own->rows;
    for (int64_t row = first; row < last; row++, sums += SIDE)
        if (kind == INT_8)
            int8_store(own, output, row, _mm512_cvtepi32_ps(_mm512_load_si512(sums)), own->ready + row * own->row_bytes);
        else
            side_store(own, output, row, _mm512_load_ps(sums));
}

/* One or two sides of outputs, of 32 rows or of up to 16. */
INLINE void block(const product *own, int64_t output, int64_t row, int two, const int kind) {
    const linear *by = own->own;
    const int64_t row_bytes = own->row_bytes, side_bytes = SIDE * by->stride;
    const char *weight = (const char *)by->weight + output * by->stride;
    char *ready = own->ready + row * row_bytes;
    const char *x = kind == INT_8 ? ready + HEADER : bfloats_narrow(by, ready), *next = x + PACKED * row_bytes;
    const int both = row + PACKED < own->rows;
    int32_t sums[PACKED * SIDE] __attribute__((aligned(64)));
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < by->stride; i += DEPTH) {
        _tile_loadd(4, weight + i * SIDE, 64);
        _tile_loadd(6, x + i, row_bytes);
        DOT(0, 6, 4)
        if (two) {
            _tile_loadd(5, weight + side_bytes + i * SIDE, 64);
            DOT(1, 6, 5)
        }
        if (both) {
            _tile_loadd(7, next + i, row_bytes);
            DOT(2, 7, 4)
            if (two) {
                DOT(3, 7, 5)
            }
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

INLINE void blocks(const product *own, int64_t first, int64_t last, const int kind) {
    matrix_begin(DEPTH);
    for (int64_t row = 0; row < own->rows; row += 2 * PACKED)
        for (int64_t output = first; output < last; output += 2 * SIDE)
            block(own, output, row, output + SIDE < last, kind);
    _tile_release();
}

void matrix_outputs(const product *own, int64_t first, int64_t last) {
    last = last < own->own->outputs ? last : side_outputs(own->own);
    if (own->own->kind == INT_8)
        blocks(own, first, last, INT_8);
    else
        blocks(own, first, last, BOTH_BFLOAT_16);
}

#else
int matrix_allowed(void) { return 0; }
int matrix_pays(const product *own) {
    (void)own;
    return 0;
}
void matrix_outputs(const product *own, int64_t first, int64_t last) { (void)own, (void)first, (void)last; }
#endif
