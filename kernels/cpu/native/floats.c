/* Products with weights in float32, bfloat16 or float16, of x in float32: the narrow ones are widened, which is exact.
 *
 * A sum has LANES parts, numbers i, i + LANES, i + 2 · LANES … each, which are then added as a tree. */
#include "linear.h"
#include "vectors.h"

#define OUTPUTS 4 /* weights' rows that are multiplied together */
#if defined(__AVX2__) && !defined(__AVX512F__)
#define ROWS 3    /* rows of x, whose sums stay in registers */
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

INLINE void some_rows(const product *own, int64_t first, int64_t last, int64_t row, const int rows, const int kind,
                      int64_t bytes) {
    for (; rows > FEW && first + OUTPUTS <= last; first += OUTPUTS)
        tile(own, first, row, OUTPUTS, rows, kind, bytes);
    for (; first < last; first++)
        tile(own, first, row, 1, rows, kind, bytes);
}

INLINE void all_rows(const product *own, int64_t first, int64_t last, const int kind) {
    int64_t bytes = own->row_bytes, row = 0;
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
