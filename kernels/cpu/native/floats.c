/* Products with weights in float32, bfloat16 or float16, of x in float32: the narrow ones are widened, which is exact.
 *
 * A sum has LANES parts, numbers i, i + LANES, i + 2 · LANES … each, which are then added as a tree. */
#include "linear.h"
#include "vectors.h"

#define OUTPUTS 4 /* weights' rows that are multiplied together */
#define ROWS 4    /* rows of x */
#define FEW 2     /* of these, outputs are computed one by one: memory is read best as one run */
#define BLOCK 64  /* outputs whose weights stay in a near cache while all rows pass */

INLINE vec numbers(const char *at, int64_t index, const int kind) {
    switch (kind) {
    case BFLOAT_16: return v_load_bf16((const uint16_t *)at + index);
    case FLOAT_16: return v_load_f16((const uint16_t *)at + index);
    default: return v_load((const float *)at + index);
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
    int64_t i = 0;
    const int ahead = outputs > 1 && row == 0; /* the next outputs' weights are not foreseen by the processor */
    const int64_t size = number_bytes(kind);
    for (; i + LANES <= by->inputs; i += LANES)
        for (int o = 0; o < outputs; o++) {
            if (ahead)
                __builtin_prefetch(weight + (o + OUTPUTS) * by->stride + i * size, 0, 2);
            else if (outputs == 1)
                ask_ahead(weight + i * size);
            vec left = numbers(weight + o * by->stride, i, kind);
            for (int r = 0; r < rows; r++)
                sums[o][r] = v_fma(v_load(x[r] + i), left, sums[o][r]);
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
    case 3: some_rows(own, first, last, row, 3, kind, bytes); break;
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
