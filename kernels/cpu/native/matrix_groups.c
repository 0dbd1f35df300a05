/* Products with weights in groups of many rows by matrix instructions: sums of a group are whole numbers, and so the
 * same as those of groups.c; what follows is done in its order. */
#include "linear.h"

#if defined(__AMX_INT8__)
#include "groups.h"
#include "matrix.h"

/* Numbers of a group of SIDE outputs (of 6 bits of half a one), one byte for each. */
INLINE const uint8_t *unpacked(const uint8_t *weight, const int bits, const int half, uint8_t *room) {
    if (bits == 8)
        return weight;
    for (int i = 0; i < 4; i++)
        if (bits == 6)
            _mm512_store_si512(room + 64 * i, s_six(weight, i, half));
        else {
            _mm512_store_si512(room + 64 * i, s_low(weight + 64 * i));
            _mm512_store_si512(room + 256 + 64 * i, s_high(weight + 64 * i));
        }
    return room;
}

typedef struct {
    const product *own;
    int64_t row;
    int rows;
    ready_parts x[PACKED];
} row_block;

/* What a group adds to sums of up to PACKED rows; the first half of one begins anew. */
INLINE void add_group(const row_block *at, const uint8_t *weight, int64_t group, vec scale, vec least, vec *part,
                      const int bits, const int half) {
    const linear *by = at->own->own;
    uint8_t room[SIDE * GROUP] __attribute__((aligned(64)));
    int32_t dots[PACKED * SIDE] __attribute__((aligned(64)));
    _tile_zero(0);
    _tile_loadd(4, unpacked(weight, bits, half, room), 64);
    _tile_loadd(6, at->x[0].numbers + group * (bits == 6 ? GROUP / 2 : GROUP), at->own->row_bytes);
    _tile_dpbssd(0, 6, 4);
    _tile_stored(0, dots, SIDE * 4);
    for (int r = 0; r < at->rows; r++) {
        __m512i sum = _mm512_load_si512(dots + r * SIDE);
        if (bits < 8) /* there none is read as another number */
            sum = _mm512_add_epi32(sum, _mm512_set1_epi32(at->x[r].begin[group]));
        vec whole = _mm512_cvtepi32_ps(sum);
        part[r] = half ? v_fma(whole, scale, part[r]) : v_mul(whole, scale);
        if (bits == 4 && has_least(by))
            part[r] = v_fma(v_set(at->x[r].sums[group]), least, part[r]);
    }
}

INLINE void block(const row_block *at, int64_t output, const int bits) {
    const product *own = at->own;
    const linear *by = own->own;
    const int64_t group_bytes = SIDE * GROUP * bits / 8;
    const uint8_t *weight = (const uint8_t *)by->weight + output * by->stride;
    const unit together = unit_of(by);
    vec total[PACKED];
    for (int r = 0; r < at->rows; r++)
        total[r] = v_zero();
    for (int64_t chunk = 0; chunk < chunks(by); chunk++) {
        vec part[PACKED], scale[MOST_EACH], least[MOST_EACH];
        const int64_t place = place_in(&together, chunk);
        const uint8_t *scales = unit_at(&together, weight, chunk);
        const uint8_t *numbers = scales + together.scales + place * together.numbers;
        expand(by, scales, place, scale, least);
        for (int i = 0; i < CHUNK / GROUP; i++, numbers += group_bytes) {
            int64_t group = chunk * (CHUNK / GROUP) + i;
            if (bits == 6) {
                add_group(at, numbers, 2 * group, scale[2 * i], v_zero(), part, 6, 0);
                add_group(at, numbers, 2 * group + 1, scale[2 * i + 1], v_zero(), part, 6, 1);
            } else
                add_group(at, numbers, group, scale[i], least[i], part, bits, 0);
            for (int r = 0; r < at->rows; r++)
                total[r] = v_fma(part[r], v_set(at->x[r].steps[group]), total[r]);
        }
    }
    for (int r = 0; r < at->rows; r++)
        side_store(own, output, at->row + r, total[r]);
}

void matrix_groups(const product *own, int64_t first, int64_t last) {
    const linear *by = own->own;
    last = last < by->outputs ? last : side_outputs(by);
    matrix_begin(bits_of(by) == 6 ? GROUP / 2 : GROUP);
    for (row_block at = {.own = own}; at.row < own->rows; at.row += PACKED) {
        at.rows = own->rows - at.row < PACKED ? own->rows - at.row : PACKED;
        for (int r = 0; r < at.rows; r++)
            at.x[r] = parts_of(by, own->ready + (at.row + r) * own->row_bytes);
        for (int64_t output = first; output < last; output += SIDE)
            switch (bits_of(by)) {
            case 8: block(&at, output, 8); break;
            case 6: block(&at, output, 6); break;
            default: block(&at, output, 4);
            }
    }
    _tile_release();
}

#else
void matrix_groups(const product *own, int64_t first, int64_t last) { (void)own, (void)first, (void)last; }
#endif
