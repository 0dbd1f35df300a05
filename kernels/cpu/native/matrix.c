/* Products of 8 bits with many rows by matrix instructions (AMX): the sums are whole numbers, and so the same.
 *
 * A tile of weights is 16 outputs as they lie, 64 numbers of each. Rows of x are made ready in groups of PACKED, four
 * numbers of one beside four of the next: [stride / 4][PACKED][4 bytes], behind the steps of the group. */
#define _GNU_SOURCE
#include "linear.h"

#if defined(__AMX_INT8__)
#include <immintrin.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "int8_dot.h"

#define SIDE 16  /* of a tile of sums */
#define DEPTH 64 /* numbers of a row in a tile */
#define FEWEST 5 /* rows for which it pays */
#define ALLOW 0x1023 /* arch_prctl: ARCH_REQ_XCOMP_PERM */
#define TILES 18

/* The kernel gives a process these registers only if it asks. */
static int allowed(void) {
    static _Atomic int known; /* 0: not asked */
    if (!known)
        known = syscall(SYS_arch_prctl, ALLOW, TILES) == 0 ? 1 : -1;
    return known > 0;
}

int matrix_pays(const linear *own, int64_t rows) {
    return rows >= FEWEST && own->outputs >= 2 * SIDE && allowed();
}

void matrix_ready(const linear *own, const float *x, char *ready, int64_t row) {
    char *group = ready + row / PACKED * PACKED * linear_row_bytes(own);
    uint8_t bytes[own->stride];
    ((float *)group)[row % PACKED] = int8_ready(own, x, bytes);
    char *to = group + HEADER + row % PACKED * 4;
    for (int64_t i = 0; i < own->stride; i += 4)
        memcpy(to + i * PACKED, bytes + i, 4);
}

static void set_up(void) {
    struct {
        uint8_t palette, row, zeros[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.bytes[i] = DEPTH;
        shape.rows[i] = SIDE;
    }
    __asm__ volatile("" : : "r"(&shape) : "memory"); /* GCC before 13 takes it for read in its first 8 bytes alone */
    _tile_loadconfig(&shape);
}

/* y of a tile of sums: [outputs][rows]. */
static void finish(const product *own, const int32_t *sums, int64_t output, int64_t row, const float *steps) {
    const linear *by = own->own;
    float y[SIDE][SIDE];
    for (int o = 0; o < SIDE; o++)
        for (int r = 0; r < SIDE; r++)
            y[r][o] = (float)(sums[o * SIDE + r] - by->offset[output + o]) * by->scale[output + o] * steps[r];
    int64_t rows = own->rows - row < SIDE ? own->rows - row : SIDE;
    for (int r = 0; r < rows; r++) {
        float *out = own->out + (row + r) * by->outputs + output;
        if (by->bias)
            for (int o = 0; o < SIDE; o++)
                y[r][o] += by->bias[output + o];
        if (own->add)
            for (int o = 0; o < SIDE; o++)
                y[r][o] = out[o] + y[r][o];
        memcpy(out, y[r], sizeof y[r]);
    }
}

#define STORE(tile, output, row, steps)      \
    _tile_stored(tile, sums, SIDE * 4);      \
    finish(own, sums, output, row, steps);

/* 32 outputs of 32 rows, or of 16. */
static void block(const product *own, int64_t output, int64_t row, int64_t group_bytes) {
    const linear *by = own->own;
    const char *weight = (const char *)by->weight + output * by->stride, *more = weight + SIDE * by->stride;
    const char *group = own->ready + row / PACKED * group_bytes, *next = group + group_bytes;
    int both = row + PACKED < own->rows;
    int32_t sums[SIDE * SIDE] __attribute__((aligned(64)));
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < by->stride; i += DEPTH) {
        _tile_loadd(4, weight + i, by->stride);
        _tile_loadd(5, more + i, by->stride);
        _tile_loadd(6, group + HEADER + i * PACKED, DEPTH);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 5, 6);
        if (both) {
            _tile_loadd(7, next + HEADER + i * PACKED, DEPTH);
            _tile_dpbsud(2, 4, 7);
            _tile_dpbsud(3, 5, 7);
        }
    }
    STORE(0, output, row, (const float *)group)
    STORE(1, output + SIDE, row, (const float *)group)
    if (both) {
        STORE(2, output, row + PACKED, (const float *)next)
        STORE(3, output + SIDE, row + PACKED, (const float *)next)
    }
}

/* The last outputs, which are no whole tile: one number after the other. */
static void by_number(const product *own, int64_t output, int64_t group_bytes) {
    const linear *by = own->own;
    const int8_t *weight = (const int8_t *)by->weight + output * by->stride;
    for (int64_t row = 0; row < own->rows; row++) {
        const char *group = own->ready + row / PACKED * group_bytes;
        const uint8_t *x = (const uint8_t *)group + HEADER + row % PACKED * 4;
        int32_t sum = -by->offset[output];
        for (int64_t i = 0; i < by->stride; i++)
            sum += weight[i] * x[i / 4 * 4 * PACKED + i % 4];
        float y = (float)sum * by->scale[output] * ((const float *)group)[row % PACKED];
        if (by->bias)
            y += by->bias[output];
        float *out = own->out + row * by->outputs + output;
        *out = own->add ? *out + y : y;
    }
}

void matrix_outputs(const product *own, int64_t first, int64_t last) {
    int64_t group_bytes = PACKED * linear_row_bytes(own->own);
    set_up();
    for (; first + 2 * SIDE <= last; first += 2 * SIDE)
        for (int64_t row = 0; row < own->rows; row += 2 * PACKED)
            block(own, first, row, group_bytes);
    _tile_release();
    for (; first < last; first++)
        by_number(own, first, group_bytes);
}

#else
int matrix_pays(const linear *own, int64_t rows) {
    (void)own, (void)rows;
    return 0;
}
void matrix_ready(const linear *own, const float *x, char *ready, int64_t row) {
    (void)own, (void)x, (void)ready, (void)row;
}
void matrix_outputs(const product *own, int64_t first, int64_t last) { (void)own, (void)first, (void)last; }
#endif
