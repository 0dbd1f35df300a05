/* See attention.h and codes.h: keys and values as they are written to KV memory.
 *
 * In float16 what is beyond its range becomes its largest number. What the codes are is said in kernels/cpu/kv_formats.py,
 * all in float32; a head with a number that is none, or infinite, has a scale that is no number. */
#include "attention_work.h"
#include "numbers.h"

#define MOST_DIM 1024

/* The numbers at which another code begins to be nearer; what lies on one has the lower code, or of e2m1 the even one. */
static const float E2M1_BOUNDS[7] = {0.25f, 0x1.7ffffep-1f, 1.25f, 0x1.bffffep0f, 2.5f, 0x1.bffffep1f, 5.0f};
static const float LLOYD_4_BOUNDS[7] = {0.258221665f, 0.522403709f, 0.799549788f, 1.09928583f,
                                        1.43713879f,  1.84353181f,  2.4008034f};
static const float LLOYD_3_BOUNDS[3] = {0.50054973f, 1.04995728f, 1.74792749f};

FAST uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* To the nearest, ties to even; beyond the largest it is the largest. */
FAST uint8_t e4m3_of(float x) {
    uint32_t bits = bits_of(x), size = bits & 0x7fffffff;
    uint32_t normal = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
    uint32_t tiny = bits_of(fabsf(x) + 0x1p14f) - 0x46800000; /* where floats lie 2^-9 apart */
    uint32_t code = size < 0x3c800000 ? tiny : normal;
    return (uint8_t)((code < 0x7e ? code : 0x7e) | (bits >> 24 & 0x80));
}

/* The sign above `wide` bits of the nearest size. */
FAST uint32_t code_of(float x, const float *bounds, int count, int wide) {
    uint32_t code = 0;
    for (int i = 0; i < count; i++)
        code += fabsf(x) > bounds[i];
    return code | (uint32_t)(x < 0) << wide;
}

FAST float largest_of(const float *from, int64_t count) {
    vec most = v_zero();
    for (int64_t d = 0; d < count; d += LANES)
        most = v_max(v_abs(v_load(from + d)), most);
    return v_largest(most);
}

/* 0, or no number where one of them is none or infinite. */
FAST float odd_of(const float *from, int64_t count) {
    vec odd = v_zero();
    for (int64_t d = 0; d < count; d += LANES)
        odd = v_fma(v_load(from + d), v_zero(), odd);
    float lanes[LANES], sum = 0;
    v_store(lanes, odd);
    for (int i = 0; i < LANES; i++)
        sum += lanes[i];
    return sum;
}

/* The sum of squares, by halves of what is filled up to a power of two. */
static float squares_of(const float *from, int64_t count) {
    float sums[MOST_DIM];
    int64_t whole = 1;
    while (whole < count)
        whole *= 2;
    for (int64_t i = 0; i < whole; i++)
        sums[i] = i < count ? from[i] * from[i] : 0;
    for (; whole > 1; whole /= 2)
        for (int64_t i = 0; i < whole / 2; i++)
            sums[i] += sums[i + whole / 2];
    return sums[0];
}

/* Each writes the codes of a head, filled up with zeros to whole vectors, and returns their scale. */
static float store_int8(const float *from, int64_t dim, int8_t *codes) {
    float scale = largest_of(from, in_lanes(dim)) / 127.0f;
    vec by = v_set(scale > 0 ? scale : 1.0f);
    for (int64_t d = 0; d < dim; d += LANES)
        v_store_i8(codes + d, v_max(v_set(-127), v_min(v_set(127), v_div(v_load(from + d), by))));
    return scale;
}

static float store_fp8(const float *from, int64_t dim, uint8_t *codes) {
    int32_t power = (int32_t)((bits_of(largest_of(from, in_lanes(dim))) + 0x1fffff) >> 23) - 8;
    uint32_t bits = (uint32_t)(power > 1 ? power : 1) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    for (int64_t d = 0; d < dim; d++)
        codes[d] = e4m3_of(from[d] / scale);
    return scale;
}

static float store_nvfp4(const float *from, int64_t dim, uint8_t *codes) {
    float scale = largest_of(from, dim) / (6.0f * 448.0f), by = scale > 0 ? scale : 1.0f;
    for (int64_t d = 0; d < dim; d += GROUP, codes += 9) {
        codes[8] = e4m3_of(largest_of(from + d, GROUP) / 6.0f / by);
        float step = E4M3[codes[8]] * scale, whole = step > 0 ? step : INFINITY;
        for (int i = 0; i < 8; i++) {
            uint32_t low = code_of(from[d + 2 * i] / whole, E2M1_BOUNDS, 7, 3);
            codes[i] = (uint8_t)(low | code_of(from[d + 2 * i + 1] / whole, E2M1_BOUNDS, 7, 3) << 4);
        }
    }
    return scale;
}

/* Of a head that was turned; `from` becomes the numbers that the codes stand for. */
static float store_turbo(float *from, int64_t dim, int number, uint8_t *codes) {
    turn(from, dim);
    float norm = sqrtf(squares_of(from, dim)), by = norm > 0 ? sqrtf((float)dim) / norm : 0;
    for (int64_t d = 0; d < dim; d += GROUP, codes += bytes_of(number, GROUP)) {
        memset(codes, 0, bytes_of(number, GROUP));
        for (int i = 0; i < GROUP; i++) {
            float x = from[d + i] * by;
            if (number == TURBO4) {
                uint32_t code = code_of(x, LLOYD_4_BOUNDS, 7, 3);
                codes[i / 2] |= (uint8_t)(code << i % 2 * 4);
                from[d + i] = LLOYD_4[code];
            } else {
                uint32_t code = code_of(x, LLOYD_3_BOUNDS, 3, 2);
                codes[i / 4] |= (uint8_t)((code & 3) << i % 4 * 2);
                codes[4 + i / 8] |= (uint8_t)((code >> 2) << i % 8);
                from[d + i] = LLOYD_3[code & 3];
            }
        }
    }
    return norm / sqrtf(squares_of(from, dim));
}

static float store_codes(float *from, int64_t dim, int number, void *codes) {
    switch (number) {
    case FP8: return store_fp8(from, dim, codes);
    case NVFP4: return store_nvfp4(from, dim, codes);
    case TURBO4: return store_turbo(from, dim, TURBO4, codes);
    case TURBO3: return store_turbo(from, dim, TURBO3, codes);
    default: return store_int8(from, dim, codes);
    }
}

/* One head of a token: `from` is float32, filled up with zeros. */
static void store_row(const kv_rows *rows, float *from, int64_t head, int64_t slot) {
    char made[MOST_DIM * 2], *to = (char *)rows->memory + bytes_of(rows->kv_number, head * rows->stride + slot * rows->dim);
    if (rows->kv_number == FLOAT32) {
        memcpy(to, from, rows->dim * sizeof(float));
        return;
    }
    if (scaled(rows->kv_number)) {
        float odd = odd_of(from, in_lanes(rows->dim));
        rows->scales[head * rows->scale_stride + slot] =
            store_codes(from, rows->dim, (int)rows->kv_number, made) + odd;
    }
    for (int64_t d = 0; !scaled(rows->kv_number) && d < rows->dim; d += LANES) {
        vec own = v_load(from + d);
        if (rows->kv_number == BFLOAT16)
            v_store_bf16((uint16_t *)made + d, own);
        else
            v_store_f16((uint16_t *)made + d, v_max(v_set(-65504), v_min(v_set(65504), own)));
    }
    memcpy(to, made, bytes_of(rows->kv_number, rows->dim));
}

void kv_store(const kv_rows *rows) {
    int64_t bytes = bytes_of(rows->source_number, 1);
    float wide[MOST_DIM];
    for (int64_t token = 0; token < rows->tokens; token++)
        for (int64_t head = 0; head < rows->kv_heads; head++) {
            const char *from =
                (const char *)rows->source + (token * rows->token_stride + head * rows->head_stride) * bytes;
            int64_t place = head * rows->stride + rows->slots[token] * rows->dim;
            if (rows->source_number == rows->kv_number) {
                memcpy((char *)rows->memory + place * bytes, from, rows->dim * bytes);
                continue;
            }
            widen(from, (int)rows->source_number, rows->dim, in_lanes(rows->dim), wide);
            store_row(rows, wide, head, rows->slots[token]);
        }
}
