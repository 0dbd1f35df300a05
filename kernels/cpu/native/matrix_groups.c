/* Products with weights of 8 bits in groups of many rows by matrix instructions: sums of a group are whole numbers, and so
 * the same as those of groups.c; what follows is done in its order. Of 4 and 6 bits, which would have to be unpacked for
 * each group, vectors are quicker. */
#include "linear.h"

#if defined(__AMX_INT8__)
#include "groups.h"
#include "matrix.h"

typedef struct {
    const product *own;
    int64_t row;
    int rows;
    ready_parts x[PACKED];
} row_block;

/* What a group adds to sums of up to PACKED rows. */
INLINE void add_group(const row_block *at, const uint8_t *weight, int64_t group, vec scale, vec *total) {
    int32_t dots[PACKED * SIDE] __attribute__((aligned(64)));
    for (int i = 0; i < SIDE * GROUP; i += 64)
        ask_ahead(weight + i, PACKED);
    _tile_zero(0);
    _tile_loadd(4, weight, 64);
    _tile_loadd(6, at->x[0].numbers + group * GROUP, at->own->row_bytes);
    _tile_dpbssd(0, 6, 4);
    _tile_stored(0, dots, SIDE * 4);
    for (int r = 0; r < at->rows; r++) {
        vec whole = _mm512_cvtepi32_ps(_mm512_load_si512(dots + r * SIDE));
        total[r] = v_fma(v_mul(whole, scale), v_set(at->x[r].steps[group]), total[r]);
    }
}

static void block(const row_block *at, int64_t output) {
    const product *own = at->own;
    const linear *by = own->own;
    const uint8_t *weight = (const uint8_t *)by->weight + output * by->stride;
    const unit together = unit_of(by);
    vec total[PACKED];
    for (int r = 0; r < at->rows; r++)
        total[r] = v_zero();
    for (int64_t chunk = 0; chunk < chunks(by); chunk++) {
        vec scale[MOST_EACH], least[MOST_EACH];
        const uint8_t *scales = unit_at(&together, weight, chunk), *numbers = scales + together.scales;
        expand(by, scales, place_in(&together, chunk), scale, least);
        for (int i = 0; i < CHUNK / GROUP; i++, numbers += SIDE * GROUP)
            add_group(at, numbers, chunk * (CHUNK / GROUP) + i, scale[i], total);
    }
    for (int r = 0; r < at->rows; r++)
        side_store(own, output, at->row + r, total[r]);
}

void matrix_groups(const product *own, int64_t first, int64_t last) {
    const linear *by = own->own;
    last = last < by->outputs ? last : side_outputs(by);
    matrix_begin(GROUP);
    for (row_block at = {.own = own}; at.row < own->rows; at.row += PACKED) {
        at.rows = own->rows - at.row < PACKED ? own->rows - at.row : PACKED;
        for (int r = 0; r < at.rows; r++)
            at.x[r] = parts_of(by, own->ready + (at.row + r) * own->row_bytes);
        for (int64_t output = first; output < last; output += SIDE)
            block(&at, output);
    }
    _tile_release();
}

#else
void matrix_groups(const product *own, int64_t first, int64_t last) { (void)own, (void)first, (void)last; }
#endif
