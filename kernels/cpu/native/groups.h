/* Weights in groups that share scales, as groups.c says: where what is needed of them stands. */
#ifndef GROUPS_H
#define GROUPS_H

#include "linear.h"
#include "side.h"
#include "side_dot.h"

#define CHUNK 128
#define GROUP 32 /* numbers that share a scale; of 6 bits half as many */
#define SUPER 256
#define MOST_EACH 8 /* groups of a chunk */

static inline int64_t chunks(const linear *own) { return (own->inputs + CHUNK - 1) / CHUNK; }

/* Groups of a chunk. */
static inline int64_t each(const linear *own) { return own->scaled == SIX_BITS ? 2 * CHUNK / GROUP : CHUNK / GROUP; }

static inline int64_t groups(const linear *own) { return chunks(own) * each(own); }

/* Of a row that is ready: behind the header its numbers, then a of each GROUP, N of each group, what S begins with. */
typedef struct {
    const int8_t *numbers;
    const float *steps, *sums;
    const int32_t *begin;
} ready_parts;

/* Parts of a row with a step of their own. */
static inline int64_t stepped(const linear *own) { return chunks(own) * (CHUNK / GROUP); }

static inline ready_parts parts_of(const linear *own, const char *ready) {
    const float *steps = (const float *)(ready + HEADER + chunks(own) * CHUNK), *sums = steps + stepped(own);
    return (ready_parts){(const int8_t *)ready + HEADER, steps, sums, (const int32_t *)(sums + groups(own))};
}

static inline int bits_of(const linear *own) {
    return own->scaled == EIGHT_BITS ? 8 : own->scaled == SIX_BITS ? 6 : 4;
}

static inline int has_least(const linear *own) {
    return own->scaled == BFLOAT_PAIRS || own->scaled == FLOAT_PAIRS || own->scaled == SUPER_BLOCKS;
}

/* What lies together: scales of SIDE outputs for 1 << `shift` chunks, then their numbers. */
typedef struct {
    int shift;
    int64_t scales, numbers; /* bytes, the latter of one chunk */
} unit;

static inline unit unit_of(const linear *own) {
    const int64_t numbers = (int64_t)SIDE * CHUNK * bits_of(own) / 8;
    switch (own->scaled) {
    case BFLOAT_PAIRS: return (unit){0, 4 * SIDE * (CHUNK / GROUP), numbers};
    case FLOAT_PAIRS: return (unit){0, 8 * SIDE * (CHUNK / own->group), numbers};
    case SUPER_BLOCKS: return (unit){1, 4 * SIDE + 2 * SIDE * (SUPER / GROUP), numbers};
    case SIX_BITS: return (unit){1, 4 * SIDE + 2 * SIDE * (SUPER / GROUP), numbers};
    default: return (unit){0, 2 * SIDE * (CHUNK / GROUP), numbers};
    }
}

/* Where the unit of a chunk begins, and which of its chunks that is. */
static inline const uint8_t *unit_at(const unit *own, const uint8_t *weight, int64_t chunk) {
    return weight + (chunk >> own->shift) * (own->scales + (own->numbers << own->shift));
}
static inline int64_t place_in(const unit *own, int64_t chunk) { return chunk & ((1 << own->shift) - 1); }

static inline vec bfloats(const uint8_t *at) { return v_load_bf16((const uint16_t *)at); }
static inline vec halves(const uint8_t *at) { return v_load_f16((const uint16_t *)at); }
static inline vec floats(const uint8_t *at) { return v_load((const float *)at); }

/* scale and -least of the groups of a chunk that is number `place` of its unit, whose scales begin at `at`. */
INLINE void expand(const linear *own, const uint8_t *at, int64_t place, vec *scale, vec *least) {
    const int side = SIDE;
    const uint8_t *small = at + 4 * side, *pair;
    switch (own->scaled) {
    case BFLOAT_PAIRS:
        for (int i = 0; i < CHUNK / GROUP; i++) {
            scale[i] = bfloats(at + 4 * side * i);
            least[i] = bfloats(at + 4 * side * i + 2 * side);
        }
        break;
    case FLOAT_PAIRS:
        for (int i = 0; i < CHUNK / GROUP; i++) {
            pair = at + 8 * side * (i * GROUP / own->group);
            scale[i] = floats(pair);
            least[i] = v_sub(v_zero(), floats(pair + 4 * side));
        }
        break;
    case SUPER_BLOCKS:
        small += side * (CHUNK / GROUP) * place;
        for (int i = 0; i < CHUNK / GROUP; i++, small += side) {
            scale[i] = v_mul(halves(at), s_small(small));
            least[i] = v_sub(v_zero(), v_mul(halves(at + 2 * side), s_small(small + side * (SUPER / GROUP))));
        }
        break;
    case SIX_BITS:
        small += side * (2 * CHUNK / GROUP) * place;
        for (int i = 0; i < 2 * CHUNK / GROUP; i++, small += side) {
            scale[i] = v_mul(floats(at), s_signed(small));
            least[i] = v_zero();
        }
        break;
    default:
        for (int i = 0; i < CHUNK / GROUP; i++) {
            scale[i] = halves(at + 2 * side * i);
            least[i] = v_zero();
        }
    }
}

#endif
