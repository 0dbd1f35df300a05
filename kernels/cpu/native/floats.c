/* Products with weights in float32, bfloat16 or float16, of x in float32: the narrow ones are widened, which is exact.
 *
 * A sum has LANES parts, numbers i, i + LANES, i + 2 · LANES … each, which are then added as a tree. */
#include "linear.h"
#include "vectors.h"

#define OUTPUTS 4 /* weights' rows that are multiplied together */
#if defined(__AVX2__) && !defined(__AVX512F__)
#define ROWS 3    /* rows of x, whose sums stay in registers */
#define PARTED_FROM 16 /* rows, that are multiplied part by part; see panel_outputs */
#else
#define ROWS 4
#endif
#define FEW 2     /* of these, outputs are computed one by one: memory is read best as one run */
#define NEAR 512  /* numbers of a row that stay in the nearest cache while all parts of vectors pass */
#define BLOCK 64  /* outputs whose weights stay in a near cache while all rows pass */

INLINE vec numbers(const char *at, int64_t index, const int kind) {
    switch (kind) {
    case BFLOAT_16: return v_load_bf16((const uint16_t *)at + index);
    case FLOAT_16: return v_load_f16((const uint16_t *)at + index);
    default: return v_load((const float *)at + index);
    }
}

INLINE vpart numbers_of_part(const char *at, int64_t index, const int kind) {
    switch (kind) {
    case BFLOAT_16: return p_load_bf16((const uint16_t *)at + index);
    case FLOAT_16: return p_load_f16((const uint16_t *)at + index);
    default: return p_load((const float *)at + index);
    }
}

INLINE int64_t number_bytes(const int kind) { return kind == FLOAT_32 ? 4 : 2; }

/* The last ones of a row, and zeros. */
INLINE vec rest(const char *at, int64_t index, int64_t count, const int kind) {
    char own[4 * LANES] = {0};
    int64_t size = number_bytes(kind);
    memcpy(own, at + index * size, count * size);
    return numbers(own, 0, kind);
}

/* Of numbers from `i` on, those of one part of a vector; `ahead`: the next outputs' weights are not foreseen by the
 * processor. */
INLINE void add_part(vec sums[OUTPUTS][ROWS], int64_t part, const char *weight, int64_t stride, const float *const *x,
                     int64_t i, int64_t last, const int rows, const int kind, const int ahead) {
    const int64_t size = number_bytes(kind);
    vpart own[OUTPUTS][ROWS];
    for (int o = 0; o < OUTPUTS; o++)
        for (int r = 0; r < rows; r++)
            own[o][r] = p_load((const float *)&sums[o][r] + part);
    for (i += part; i < last; i += LANES)
        for (int o = 0; o < OUTPUTS; o++) {
            if (ahead)
                __builtin_prefetch(weight + (o + OUTPUTS) * stride + i * size, 0, 2);
            vpart left = numbers_of_part(weight + o * stride, i, kind);
            for (int r = 0; r < rows; r++)
                own[o][r] = p_fma(p_load(x[r] + i), left, own[o][r]);
        }
    for (int o = 0; o < OUTPUTS; o++)
        for (int r = 0; r < rows; r++)
            p_store((float *)&sums[o][r] + part, own[o][r]);
}

/* Part by part: the sums of one stay in registers where those of all are too many. */
INLINE void add_parts(vec sums[OUTPUTS][ROWS], const char *weight, int64_t stride, const float *const *x, int64_t count,
                      const int rows, const int kind, const int ahead) {
    for (int64_t first = 0; first < count; first += NEAR) {
        const int64_t last = first + NEAR < count ? first + NEAR : count;
        add_part(sums, 0, weight, stride, x, first, last, rows, kind, ahead);
        for (int64_t part = REGISTER; part < LANES; part += REGISTER)
            add_part(sums, part, weight, stride, x, first, last, rows, kind, 0);
    }
}

INLINE void tile(
    const product *own, int64_t output, int64_t row, const int outputs, const int rows, const int kind, int64_t bytes
) {
    const linear *by = own->own;
    const char *weight = (const char *)by->weight + output * by->stride;
    const float *x[ROWS];
    vec sums[OUTPUTS][ROWS];
    for (int r = 0; r < rows; r++)
        x[r] = (const float *)(ready_row(own, row + r, bytes) + HEADER);
    for (int o = 0; o < outputs; o++)
        for (int r = 0; r < rows; r++)
            sums[o][r] = v_zero();
    const int64_t whole = by->inputs / LANES * LANES, i = whole;
    const int64_t size = number_bytes(kind);
    if (outputs > 1 && row == 0)
        add_parts(sums, weight, by->stride, x, whole, rows, kind, 1);
    else if (outputs > 1)
        add_parts(sums, weight, by->stride, x, whole, rows, kind, 0);
    else
        for (int64_t k = 0; k < whole; k += LANES) {
            ask_ahead(weight + k * size, rows);
            vec left = numbers(weight, k, kind);
            for (int r = 0; r < rows; r++)
                sums[0][r] = v_fma(v_load(x[r] + k), left, sums[0][r]);
        }
    if (i < by->inputs)
        for (int o = 0; o < outputs; o++) {
            vec left = rest(weight + o * by->stride, i, by->inputs - i, kind);
            for (int r = 0; r < rows; r++)
                sums[o][r] = v_fma(v_load(x[r] + i), left, sums[o][r]);
        }
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outputs; o++) {
            float y = v_total(sums[o][r]);
            if (by->bias)
                y += by->bias[output + o];
            float *out = own->out + (row + r) * own->width + output + o;
            *out = own->add ? *out + y : y;
        }
}

#ifdef PARTED_FROM
#define PANEL 48 /* rows that outputs' weights in the nearest cache are multiplied with */
#define PARTS (LANES / REGISTER)

/* What a few outputs and the rows of a panel have: weights of NEAR inputs, and sums, part by part. */
typedef struct {
    vpart weights[PARTS][NEAR / LANES][OUTPUTS], sums[PANEL / ROWS][PARTS][OUTPUTS][ROWS];
} panel;

int64_t float_parted(int64_t rows) { return rows < PARTED_FROM ? 0 : rows / ROWS * ROWS; }

/* Of NEAR numbers and NEAR more the first parts of all vectors, then the second ones: each is read as one run. */
void float_parts(const linear *own, const float *x, float *ready) {
    const int64_t whole = own->inputs / LANES * LANES;
    for (int64_t first = 0, last; first < whole; first = last) {
        last = first + NEAR < whole ? first + NEAR : whole;
        for (int64_t part = 0; part < LANES; part += REGISTER)
            for (int64_t i = first + part; i < last; i += LANES, ready += REGISTER)
                p_store(ready, p_load(x + i));
    }
    memcpy(ready, x + whole, (own->inputs - whole) * sizeof(float));
}

/* Weights of inputs [first, last), widened; outputs that are none have the first one's. */
INLINE void panel_weights(panel *made, const linear *by, int64_t output, int64_t first, int64_t last, const int kind) {
    const int64_t size = number_bytes(kind);
    for (int o = 0; o < OUTPUTS; o++) {
        const char *weight = (const char *)by->weight + (output + o < by->outputs ? output + o : output) * by->stride;
        vpart *at = made->weights[0][0] + o;
        for (int64_t i = first; i < last; i += LANES, at += OUTPUTS) {
            __builtin_prefetch(weight + OUTPUTS * by->stride + i * size, 0, 2);
            for (int part = 0; part < PARTS; part++)
                at[part * NEAR / LANES * OUTPUTS] = numbers_of_part(weight, i + part * REGISTER, kind);
        }
    }
}

/* The sums of a few outputs with a few rows, in registers; `begun`: they go on. */
INLINE void panel_sums(vpart sums[OUTPUTS][ROWS], const vpart (*weights)[OUTPUTS], const float *x, int64_t stride,
                       int64_t count, const int begun) {
    vpart own[OUTPUTS][ROWS];
    for (int o = 0; o < OUTPUTS; o++)
        for (int r = 0; r < ROWS; r++)
            own[o][r] = begun ? sums[o][r] : p_set(0);
    for (int64_t i = 0; i < count; i++, x += REGISTER)
        for (int o = 0; o < OUTPUTS; o++)
            for (int r = 0; r < ROWS; r++)
                own[o][r] = p_fma(p_load(x + r * stride), weights[i][o], own[o][r]);
    memcpy(sums, own, sizeof own);
}

INLINE const float *floats_of(const product *own, int64_t row) {
    return (const float *)(ready_row(own, row, own->row_bytes) + HEADER);
}

/* The sums of a few outputs with a panel's rows are told. */
INLINE void panel_totals(const panel *made, const product *own, int64_t output, int64_t row, int64_t rows,
                         const int outputs, const int kind) {
    const linear *by = own->own;
    const int64_t whole = by->inputs / LANES * LANES, over = by->inputs - whole;
    vec left[OUTPUTS] = {0}, sums[OUTPUTS];
    float totals[OUTPUTS] = {0}, *out = own->out + row * own->width + output;
    for (int o = 0; o < outputs && over; o++)
        left[o] = rest((const char *)by->weight + (output + o) * by->stride, whole, over, kind);
    for (int o = 0; o < outputs && by->bias; o++)
        totals[o] = by->bias[output + o];
    const __m128 bias = _mm_loadu_ps(totals);
    for (int64_t r = 0; r < rows; r++, out += own->width) {
        const int64_t tile = r / ROWS, at = r % ROWS;
        for (int o = 0; o < OUTPUTS; o++)
            sums[o] = (vec){made->sums[tile][0][o][at], made->sums[tile][1][o][at]};
        if (over) {
            const vec x = v_load(floats_of(own, row + r) + whole);
            for (int o = 0; o < OUTPUTS; o++)
                sums[o] = v_fma(x, left[o], sums[o]);
        }
        __m128 y = v_totals(sums);
        if (by->bias)
            y = _mm_add_ps(y, bias);
        if (outputs == OUTPUTS) {
            _mm_storeu_ps(out, own->add ? _mm_add_ps(_mm_loadu_ps(out), y) : y);
            continue;
        }
        _mm_storeu_ps(totals, y);
        for (int o = 0; o < outputs; o++)
            out[o] = own->add ? out[o] + totals[o] : totals[o];
    }
}

/* The sums of a few outputs with a panel's rows, without the last inputs, which are no whole vector. */
INLINE void panel_of(panel *made, const product *own, int64_t output, int64_t row, int64_t rows, const int kind) {
    const int64_t whole = own->own->inputs / LANES * LANES, stride = own->row_bytes / sizeof(float);
    if (whole == 0)
        memset(made->sums, 0, sizeof made->sums);
    for (int64_t from = 0, to; from < whole; from = to) {
        to = from + NEAR < whole ? from + NEAR : whole;
        const int64_t count = (to - from) / LANES;
        panel_weights(made, own->own, output, from, to, kind);
        for (int part = 0; part < PARTS; part++)
            for (int64_t r = 0; r < rows; r += ROWS) {
                const float *x = floats_of(own, row + r) + from + part * count * REGISTER;
                if (from)
                    panel_sums(made->sums[r / ROWS][part], made->weights[part], x, stride, count, 1);
                else
                    panel_sums(made->sums[r / ROWS][part], made->weights[part], x, stride, count, 0);
            }
    }
}

/* Many rows: a few outputs' weights are widened once and stay in the nearest cache while the rows of a panel pass. */
INLINE void panel_outputs(const product *own, int64_t first, int64_t last, const int kind) {
    panel made;
    for (int64_t row = 0, rows; row < own->parted; row += rows) {
        rows = own->parted - row < PANEL ? own->parted - row : PANEL;
        for (int64_t output = first; output < last; output += OUTPUTS) {
            panel_of(&made, own, output, row, rows, kind);
            if (output + OUTPUTS <= last)
                panel_totals(&made, own, output, row, rows, OUTPUTS, kind);
            else
                panel_totals(&made, own, output, row, rows, last - output, kind);
        }
    }
}
#else
int64_t float_parted(int64_t rows) { return 0; }
void float_parts(const linear *own, const float *x, float *ready) {}
#endif

INLINE void some_rows(const product *own, int64_t first, int64_t last, int64_t row, const int rows, const int kind,
                      int64_t bytes) {
    for (; rows > FEW && first + OUTPUTS <= last; first += OUTPUTS)
        tile(own, first, row, OUTPUTS, rows, kind, bytes);
    for (; first < last; first++)
        tile(own, first, row, 1, rows, kind, bytes);
}

INLINE void all_rows(const product *own, int64_t first, int64_t last, const int kind) {
    int64_t bytes = own->row_bytes, row = own->parted;
#ifdef PARTED_FROM
    panel_outputs(own, first, last, kind);
#endif
    for (; row + ROWS <= own->rows; row += ROWS)
        some_rows(own, first, last, row, ROWS, kind, bytes);
    switch (own->rows - row) {
#if ROWS > 3
    case 3: some_rows(own, first, last, row, 3, kind, bytes); break;
#endif
    case 2: some_rows(own, first, last, row, 2, kind, bytes); break;
    case 1: some_rows(own, first, last, row, 1, kind, bytes); break;
    }
}

void float_outputs(const product *own, int64_t first, int64_t last) {
    for (; first < last; first += BLOCK) {
        int64_t end = first + BLOCK < last ? first + BLOCK : last;
        switch (own->own->kind) {
        case BFLOAT_16: all_rows(own, first, end, BFLOAT_16); break;
        case FLOAT_16: all_rows(own, first, end, FLOAT_16); break;
        default: all_rows(own, first, end, FLOAT_32);
        }
    }
}
