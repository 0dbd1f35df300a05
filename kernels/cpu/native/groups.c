/* Products with weights in groups of GROUP numbers, multiplied as they are: w = scale · q - least.
 *
 *   y = Σ a · Σ (scale · S - least · N) + bias      over each GROUP of a row of x, and of 6 bits over its halves
 *   S = Σ q · n, N = Σ n, n = round(x / a), a = max(amax |x|, LEAST) / MOST of each GROUP of a row of x
 *
 * S and N are whole numbers; all else is float32, each sum from its first term to its last. SIDE outputs are computed
 * side by side, and stand so in memory: of a chunk their scales, then of each group four numbers of all of them, the next
 * four, … (of 4 bits, those of the second half above those of the first; of 6 bits, behind these their upper two bits:
 * of 64 bytes those of the first eight of each half of a group of GROUP, then of the others). Scales stand before the
 * numbers that they are of, so that memory is read as one run: where a side's scales lay behind all its numbers, or a
 * chunk's behind its own, one row took up to twice as long. Of each group or kind they are those of SIDE outputs:
 *   HALVES        scale in float16, least is 8 · scale                      (GGUF's Q4_0)
 *   EIGHT_BITS    scale in float16, q from -128 to 127, least is 0          (GGUF's Q8_0)
 *   BFLOAT_PAIRS  scale and middle in bfloat16, least is 8 · scale - middle (made at load)
 *   FLOAT_PAIRS   scale and least in float32 for each `group`, which a chunk is a multiple of
 *                                                                           (AWQ, GPTQ, compressed-tensors)
 *   SUPER_BLOCKS  d and m in float16 for each SUPER, which lies together; s of all its groups, t of all, of 8 bits:
 *                 d · s and m · t                                           (GGUF's Q4_K)
 *   SIX_BITS      d in float32 for each SUPER; s of -128 to 127 for each half of a group: d · s, least is 32 · d · s
 *                                                                           (GGUF's Q6_K) */
#include "groups.h"

#include <math.h>
#include <string.h>

#define BLOCK 128 /* outputs whose weights stay in a near cache while all rows pass */
#define MIDDLE 8 /* of numbers of 4 bits */
#define MIDDLE_OF_SIX 32

#define ROWS 8 /* of x that are multiplied together, as there are registers */
#define FEW 2  /* of these; all registers of a side are summed at once, as memory is read best */

int64_t groups_row_bytes(const linear *own) {
    return HEADER + (chunks(own) * CHUNK + 4 * stepped(own) + 8 * groups(own) + 63) / 64 * 64;
}

/* What is taken off each number, and so that often N off S. */
static int32_t taken_off(const linear *own) {
    switch (own->scaled) {
    case EIGHT_BITS: return SHIFTED;
    case HALVES:
    case BFLOAT_PAIRS: return MIDDLE;
    case SIX_BITS: return MIDDLE_OF_SIX;
    default: return 0;
    }
}

/* A group of x; returns a. */
static float round_group(const float *x, int8_t *numbers) {
    const float step = step_of(x, GROUP);
    if (isnan(step))
        memset(numbers, 0, GROUP);
    else
        round_by(step, x, GROUP, numbers);
    return step;
}

void groups_ready(const linear *own, const float *x, char *ready) {
    ready_parts parts = parts_of(own, ready);
    int8_t *numbers = (int8_t *)parts.numbers;
    float *steps = (float *)parts.steps, *sums = (float *)parts.sums;
    int32_t *begin = (int32_t *)parts.begin, off = taken_off(own);
    const int64_t count = each(own), size = CHUNK / count;
    for (int64_t chunk = 0; chunk < chunks(own); chunk++, numbers += CHUNK) {
        int64_t left = own->inputs - chunk * CHUNK;
        float some[CHUNK] = {0};
        memcpy(some, x + chunk * CHUNK, (left < CHUNK ? left : CHUNK) * sizeof(float));
        for (int i = 0; i < CHUNK; i += GROUP)
            *steps++ = round_group(some + i, numbers + i);
        for (int64_t group = 0; group < count; group++) {
            int32_t sum = 0;
            for (int i = 0; i < size; i++)
                sum += numbers[group * size + i];
            *sums++ = (float)sum;
            *begin++ = -off * sum;
        }
    }
}

/* Products of a group with some rows, whose numbers begin at `x`, of `parts` registers; of 6 bits of either half of one. */
INLINE void dot_group(const uint8_t *weight, const int8_t *const *x, s_sums (*sums)[ROWS], const int parts, const int rows,
                      const int bits, const int half) {
    for (int i = 0; i < (bits == 8 ? GROUP / 4 : GROUP / 8); i++) {
        if (bits != 8 || rows > SOON)
            ask_ahead(weight + 64 * i, rows);
        for (int p = 0; p < parts; p++) {
            const uint8_t *at = weight + 64 * i + p * PART_BYTES;
            if (bits == 8) {
                s_numbers numbers = s_bytes(at);
                for (int r = 0; r < rows; r++)
                    sums[p][r] = s_dot_bytes(sums[p][r], numbers, x[r] + 4 * i);
            } else if (bits == 6) {
                s_numbers numbers = s_six(weight + p * PART_BYTES, i, half);
                for (int r = 0; r < rows; r++)
                    sums[p][r] = s_dot(sums[p][r], numbers, x[r] + 4 * i);
            } else {
                s_numbers low = s_low(at), high = s_high(at);
                for (int r = 0; r < rows; r++) {
                    sums[p][r] = s_dot_small(sums[p][r], low, x[r] + 4 * i);
                    sums[p][r] = s_dot_small(sums[p][r], high, x[r] + GROUP / 2 + 4 * i);
                }
            }
        }
    }
}

/* Rows that are multiplied together, and what a group of x adds to them, but for its step. */
typedef struct {
    ready_parts x[ROWS];
    vpart added[PARTS][ROWS];
} row_parts;

/* What one group adds, whose number among all is `group`; the first half of one begins anew. */
INLINE void add_group(row_parts *own, const uint8_t *weight, int64_t group, const vec *scale, const vec *least,
                      const int first, const int parts, const int less, const int rows, const int bits, const int half) {
    const int64_t size = bits == 6 ? GROUP / 2 : GROUP;
    const int8_t *numbers[ROWS];
    s_sums sums[PARTS][ROWS];
    for (int r = 0; r < rows; r++) {
        numbers[r] = own->x[r].numbers + group * size;
        for (int p = 0; p < parts; p++)
            sums[p][r] = s_begin(own->x[r].begin[group], bits);
    }
    dot_group(weight, numbers, sums, parts, rows, bits, half);
    for (int p = 0; p < parts; p++) {
        const vpart by = p_of(scale, first + p), off = p_of(least, first + p);
        for (int r = 0; r < rows; r++) {
            vpart whole = s_float(s_end(sums[p][r], own->x[r].begin[group], bits));
            own->added[p][r] = half ? p_fma(whole, by, own->added[p][r]) : p_mul(whole, by);
        }
        if (less)
            for (int r = 0; r < rows; r++)
                own->added[p][r] = p_fma(p_set(own->x[r].sums[group]), off, own->added[p][r]);
    }
}

/* What one chunk adds to the totals in registers [first, first + parts) of each row. */
INLINE void add_chunk(row_parts *own, const uint8_t *weight, int64_t chunk, const vec *scale, const vec *least, vec *total,
                      const int first, const int parts, const int less, const int rows, const int bits) {
    weight += first * PART_BYTES;
    for (int i = 0; i < CHUNK / GROUP; i++, weight += SIDE * GROUP * bits / 8) {
        const int64_t group = chunk * (CHUNK / GROUP) + i;
        if (bits == 6) {
            add_group(own, weight, 2 * group, scale + 2 * i, least, first, parts, 0, rows, 6, 0);
            add_group(own, weight, 2 * group + 1, scale + 2 * i + 1, least, first, parts, 0, rows, 6, 1);
        } else
            add_group(own, weight, group, scale + i, least + i, first, parts, less, rows, bits, 0);
        for (int p = 0; p < parts; p++)
            for (int r = 0; r < rows; r++)
                p_put(total + r, first + p,
                      p_fma(own->added[p][r], p_set(own->x[r].steps[group]), p_of(total + r, first + p)));
    }
}

INLINE void tile(const product *own, int64_t output, int64_t row, const int rows, const int bits) {
    const linear *by = own->own;
    const int64_t row_bytes = own->row_bytes;
    const uint8_t *weight = (const uint8_t *)by->weight + output * by->stride;
    const unit together = unit_of(by);
    const int less = bits == 4 && has_least(by), parts = rows > FEW ? 1 : PARTS;
    row_parts at;
    vec total[ROWS];
    for (int r = 0; r < rows; r++) {
        at.x[r] = parts_of(by, own->ready + (row + r) * row_bytes);
        total[r] = v_zero();
    }
    for (int64_t chunk = 0; chunk < chunks(by); chunk++) {
        vec scale[MOST_EACH], least[MOST_EACH];
        const int64_t place = place_in(&together, chunk);
        const uint8_t *scales = unit_at(&together, weight, chunk);
        const uint8_t *numbers = scales + together.scales + place * together.numbers;
        expand(by, scales, place, scale, least);
        for (int part = 0; part < PARTS; part += parts)
            add_chunk(&at, numbers, chunk, scale, least, total, part, parts, less, rows, bits);
    }
    for (int r = 0; r < rows; r++)
        side_store(own, output, row + r, total[r]);
}

#define SOME_ROWS(count, bits)                              \
    case count:                                             \
        for (; first < last; first += SIDE)                 \
            tile(own, first, row, count, bits);             \
        break;

#define FEWER_ROWS(bits) \
    SOME_ROWS(7, bits) SOME_ROWS(6, bits) SOME_ROWS(5, bits) SOME_ROWS(4, bits) SOME_ROWS(3, bits) SOME_ROWS(2, bits)

static void rows_of_4_bits(const product *own, int64_t first, int64_t last, int64_t row, int64_t rows) {
    switch (rows) {
        SOME_ROWS(ROWS, 4)
        FEWER_ROWS(4)
        SOME_ROWS(1, 4)
    }
}

static void rows_of_8_bits(const product *own, int64_t first, int64_t last, int64_t row, int64_t rows) {
    switch (rows) {
        SOME_ROWS(ROWS, 8)
        FEWER_ROWS(8)
        SOME_ROWS(1, 8)
    }
}

static void rows_of_6_bits(const product *own, int64_t first, int64_t last, int64_t row, int64_t rows) {
    switch (rows) {
        SOME_ROWS(ROWS, 6)
        FEWER_ROWS(6)
        SOME_ROWS(1, 6)
    }
}

void groups_outputs(const product *own, int64_t first, int64_t last) {
    last = last < own->own->outputs ? last : side_outputs(own->own);
    for (; first < last; first += BLOCK) {
        int64_t end = first + BLOCK < last ? first + BLOCK : last;
        for (int64_t row = 0; row < own->rows; row += ROWS) {
            int64_t rows = own->rows - row < ROWS ? own->rows - row : ROWS;
            switch (bits_of(own->own)) {
            case 8: rows_of_8_bits(own, first, end, row, rows); break;
            case 6: rows_of_6_bits(own, first, end, row, rows); break;
            default: rows_of_4_bits(own, first, end, row, rows);
            }
        }
    }
}
