/* Products with weights of 4 bits, w = scale · q - least with q from 0 to 15, multiplied as they are.
 *
 *   y = Σ a · (Σ scale · (q · n) - least · Σ n) + bias       over chunks of CHUNK, and in these over groups of GROUP
 *   n = round(x / a), a = max(amax |x|, LEAST) / 127          of each chunk of a row of x
 *
 * Products of q and n are summed as whole numbers, four neighbours each; all else is float32, in one order. A row of
 * weights is CHUNK / 2 bytes for each chunk (numbers 0 to 63 in the lower halves, 64 to 127 in the upper ones), then its
 * scales; chunks are filled up with scales of 0:
 *   HALVES        scale in float16 for each GROUP, least is 8 · scale         (GGUF's Q4_0)
 *   BFLOAT_PAIRS  scale and middle in bfloat16, least is 8 · scale - middle   (made at load)
 *   FLOAT_PAIRS   scale and least in float32 for each `group`                 (AWQ, GPTQ, compressed-tensors)
 *   SUPER_BLOCKS  s and t of 8 bits for each GROUP, d and m in float16 for each SUPER: d · s and m · t  (GGUF's Q4_K) */
#include "linear.h"

#include <math.h>
#include <string.h>

#include "int8_dot.h"

#define CHUNK 128
#define GROUP 32
#define SUPER 256
#define OUTPUTS 2 /* weights' rows that are multiplied together */
#define ROWS 4    /* rows of x */
#define LEAST 1e-30f
#define MOST 127

static int64_t chunks(const linear *own) { return (own->inputs + CHUNK - 1) / CHUNK; }

static int64_t groups(const linear *own) { return chunks(own) * (CHUNK / GROUP); }

/* Of a row that is ready: its numbers, then a of each chunk, then a · Σ n of each group, filled up to vectors. */
static int64_t chunk_room(const linear *own) { return (chunks(own) + LANES - 1) / LANES * LANES; }

static int64_t group_room(const linear *own) { return (groups(own) + LANES - 1) / LANES * LANES; }

int64_t int4_row_bytes(const linear *own) {
    return HEADER + (chunks(own) * CHUNK + 63) / 64 * 64 + 4 * (chunk_room(own) + group_room(own));
}

typedef struct {
    const int8_t *numbers;
    const float *steps, *sums;
} ready_parts;

static inline ready_parts parts_of(const linear *own, const char *ready) {
    const float *steps = (const float *)(ready + HEADER + chunks(own) * CHUNK);
    return (ready_parts){(const int8_t *)ready + HEADER, steps, steps + chunk_room(own)};
}

/* A chunk of x, filled up; returns a. */
static float round_chunk(const float *x, int8_t *numbers) {
    float most = 0, odd = 0;
    for (int i = 0; i < CHUNK; i++) {
        float size = fabsf(x[i]);
        most = size > most ? size : most;
        odd += x[i] - x[i]; /* 0, or NaN */
    }
    if (odd != odd) {
        memset(numbers, 0, CHUNK);
        return NAN;
    }
    float step = (most > LEAST ? most : LEAST) / MOST;
    for (int i = 0; i < CHUNK; i++)
        numbers[i] = (int8_t)(int32_t)rintf(x[i] / step);
    return step;
}

void int4_ready(const linear *own, const float *x, char *ready) {
    ready_parts parts = parts_of(own, ready);
    int8_t *numbers = (int8_t *)parts.numbers;
    float *steps = (float *)parts.steps, *sums = (float *)parts.sums;
    memset(steps, 0, 4 * (chunk_room(own) + group_room(own)));
    for (int64_t chunk = 0; chunk < chunks(own); chunk++, numbers += CHUNK) {
        int64_t left = own->inputs - chunk * CHUNK;
        float some[CHUNK] = {0};
        memcpy(some, x + chunk * CHUNK, (left < CHUNK ? left : CHUNK) * sizeof(float));
        float step = steps[chunk] = round_chunk(some, numbers);
        for (int group = 0; group < CHUNK / GROUP; group++) {
            int32_t sum = 0;
            for (int i = 0; i < GROUP; i++)
                sum += numbers[group * GROUP + i];
            sums[chunk * (CHUNK / GROUP) + group] = step * (float)sum;
        }
    }
}

static void expand_super(const uint8_t *at, int64_t count, float *scale, float *least) {
    const uint8_t *s = at, *t = at + count, *halves = at + 2 * count;
    for (int64_t first = 0; first < count; first += SUPER / GROUP, halves += 4) {
        uint16_t pair[2];
        memcpy(pair, halves, sizeof pair);
        float d = v_of_half(pair[0]), m = v_of_half(pair[1]);
        if (first + SUPER / GROUP <= count)
            for (int64_t i = first; i < first + SUPER / GROUP; i++) {
                scale[i] = d * (float)s[i];
                least[i] = m * (float)t[i];
            }
        else
            for (int64_t i = first; i < count; i++) {
                scale[i] = d * (float)s[i];
                least[i] = m * (float)t[i];
            }
    }
}

static void expand_halves(const uint8_t *at, int64_t count, float *scale, float *least) {
    for (int64_t i = 0; i < count; i += LANES) {
        uint16_t some[LANES] = {0};
        if (count - i >= LANES)
            memcpy(some, at + 2 * i, sizeof some);
        else
            memcpy(some, at + 2 * i, 2 * (count - i));
        vec own = v_load_f16(some);
        v_store(scale + i, own);
        v_store(least + i, v_mul(own, v_set(8)));
    }
}

static void expand_bfloats(const uint8_t *at, int64_t count, float *scale, float *least) {
    for (int64_t i = 0; i < count; i++) {
        uint16_t pair[2];
        memcpy(pair, at + 4 * i, sizeof pair);
        uint32_t bits[2] = {(uint32_t)pair[0] << 16, (uint32_t)pair[1] << 16};
        float middle;
        memcpy(&scale[i], &bits[0], 4);
        memcpy(&middle, &bits[1], 4);
        least[i] = 8 * scale[i] - middle;
    }
}

static void expand_floats(const uint8_t *at, int64_t count, int64_t each, float *scale, float *least) {
    for (int64_t i = 0; i < count; i += each, at += 8) {
        float pair[2];
        memcpy(pair, at, sizeof pair);
        for (int64_t j = i; j < i + each && j < count; j++) {
            scale[j] = pair[0];
            least[j] = pair[1];
        }
    }
}

/* Scale and least of each group of a row of weights; zeros behind them, up to whole vectors. */
static void expand(const linear *own, const uint8_t *weight, float *scale, float *least) {
    const uint8_t *at = weight + chunks(own) * (CHUNK / 2);
    int64_t count = groups(own), room = group_room(own);
    switch (own->scaled) {
    case HALVES: expand_halves(at, count, scale, least); break;
    case BFLOAT_PAIRS: expand_bfloats(at, count, scale, least); break;
    case FLOAT_PAIRS: expand_floats(at, count, own->group / GROUP, scale, least); break;
    default: expand_super(at, count, scale, least);
    }
    memset(scale + count, 0, (room - count) * sizeof(float));
    memset(least + count, 0, (room - count) * sizeof(float));
}

INLINE void tile(
    const product *own, const float *scales, int64_t output, int64_t row, const int outputs, const int rows,
    int64_t row_bytes
) {
    const linear *by = own->own;
    const uint8_t *weight = (const uint8_t *)by->weight + output * by->stride;
    int64_t room = group_room(by), count = chunks(by);
    ready_parts x[ROWS];
    vec sums[OUTPUTS][ROWS], least[OUTPUTS][ROWS];
    for (int r = 0; r < rows; r++)
        x[r] = parts_of(by, own->ready + (row + r) * row_bytes);
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++)
            sums[o][r] = least[o][r] = v_zero();
    for (int64_t chunk = 0; chunk < count; chunk++)
        for (int o = 0; o < outputs; o++) {
            const float *scale = scales + 2 * o * room + chunk * (CHUNK / GROUP);
            nibbles numbers = n_load(weight + o * by->stride + chunk * (CHUNK / 2));
            vec low = v_two(scale), high = v_two(scale + 2);
            for (int r = 0; r < rows; r++) {
                const int8_t *n = x[r].numbers + chunk * CHUNK;
                vec both = v_fma(n_high(numbers, n + CHUNK / 2), high, v_mul(n_low(numbers, n), low));
                sums[o][r] = v_fma(both, v_set(x[r].steps[chunk]), sums[o][r]);
            }
        }
    for (int64_t i = 0; i < room; i += LANES)
        for (int o = 0; o < outputs; o++)
            for (int r = 0; r < rows; r++)
                least[o][r] = v_fma(v_load(scales + (2 * o + 1) * room + i), v_load(x[r].sums + i), least[o][r]);
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outputs; o++) {
            float y = v_total(v_sub(sums[o][r], least[o][r]));
            if (by->bias)
                y += by->bias[output + o];
            float *out = own->out + (row + r) * by->outputs + output + o;
            *out = own->add ? *out + y : y;
        }
}

INLINE void all_rows(const product *own, int64_t output, const int outputs) {
    int64_t row_bytes = int4_row_bytes(own->own), room = group_room(own->own), row = 0;
    float scales[2 * outputs * room];
    for (int o = 0; o < outputs; o++) {
        const uint8_t *weight = (const uint8_t *)own->own->weight + (output + o) * own->own->stride;
        expand(own->own, weight, scales + 2 * o * room, scales + (2 * o + 1) * room);
    }
    for (; row + ROWS <= own->rows; row += ROWS)
        tile(own, scales, output, row, outputs, ROWS, row_bytes);
    switch (own->rows - row) {
    case 3: tile(own, scales, output, row, outputs, 3, row_bytes); break;
    case 2: tile(own, scales, output, row, outputs, 2, row_bytes); break;
    case 1: tile(own, scales, output, row, outputs, 1, row_bytes); break;
    }
}

void int4_outputs(const product *own, int64_t first, int64_t last) {
    for (; first + OUTPUTS <= last; first += OUTPUTS)
        all_rows(own, first, OUTPUTS);
    for (; first < last; first++)
        all_rows(own, first, 1);
}
