/* Weights in groups that share scales, as groups.c says: where what is needed of them stands. */
#ifndef GROUPS_H
#define GROUPS_H

#include "linear.h"
#include "side.h"
#include "side_dot.h"

#define CHUNK 128
#define GROUP 32
#define SUPER 256
#define EACH (CHUNK / GROUP)
#define AHEAD 32 /* groups whose scales are fetched meanwhile: processors foresee the numbers, but not these beside them */

static inline int64_t chunks(const linear *own) { return (own->inputs + CHUNK - 1) / CHUNK; }

static inline int64_t groups(const linear *own) { return chunks(own) * EACH; }

/* Of a row that is ready: behind the header its numbers, then a of each chunk, N of each group, what S begins with. */
typedef struct {
    const int8_t *numbers;
    const float *steps, *sums;
    const int32_t *begin;
} ready_parts;

static inline ready_parts parts_of(const linear *own, const char *ready) {
    const float *steps = (const float *)(ready + HEADER + chunks(own) * CHUNK), *sums = steps + chunks(own);
    return (ready_parts){(const int8_t *)ready + HEADER, steps, sums, (const int32_t *)(sums + groups(own))};
}

static inline int bits_of(const linear *own) { return own->scaled == EIGHT_BITS ? 8 : 4; }

static inline int has_least(const linear *own) {
    return own->scaled == BFLOAT_PAIRS || own->scaled == FLOAT_PAIRS || own->scaled == SUPER_BLOCKS;
}

static inline vec bfloats(const uint8_t *at) { return v_load_bf16((const uint16_t *)at); }
static inline vec halves(const uint8_t *at) { return v_load_f16((const uint16_t *)at); }
static inline vec floats(const uint8_t *at) { return v_load((const float *)at); }

/* scale and -least of the groups of a chunk, whose SIDE outputs' scales are all at `at`. */
INLINE void expand(const linear *own, const uint8_t *at, int64_t chunk, vec *scale, vec *least) {
    const int side = SIDE;
    for (int i = 0; i < EACH; i++) {
        int64_t group = chunk * EACH + i;
        const uint8_t *pair = at + 4 * side * group, *wide, *super;
        switch (own->scaled) {
        case BFLOAT_PAIRS:
            scale[i] = bfloats(pair);
            least[i] = bfloats(pair + 2 * side);
            break;
        case FLOAT_PAIRS:
            wide = at + 8 * side * (group * GROUP / own->group);
            scale[i] = floats(wide);
            least[i] = v_sub(v_zero(), floats(wide + 4 * side));
            break;
        case SUPER_BLOCKS:
            super = at + 2 * side * groups(own) + 4 * side * (group * GROUP / SUPER);
            scale[i] = v_mul(halves(super), s_small(at + side * group));
            least[i] = v_sub(v_zero(), v_mul(halves(super + 2 * side), s_small(at + side * (groups(own) + group))));
            break;
        default:
            __builtin_prefetch(at + 2 * side * (group + AHEAD));
            scale[i] = halves(at + 2 * side * group);
            least[i] = v_zero();
        }
    }
}

#endif
