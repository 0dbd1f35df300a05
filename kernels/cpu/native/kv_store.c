/* See attention.h: keys and values as they are written to KV memory.
 *
 * In float16 what is beyond its range becomes its largest number. Of 8 bits, scale = max |x| / 127 and code = x / scale to
 * the nearest whole number, ties to even, both in float32; a head with a number that is none, or infinite, has a scale
 * that is no number. */
#include "attention_work.h"
#include "numbers.h"

/* One head of a token: `from` is float32, filled up with zeros. */
static void store_row(const kv_rows *rows, const float *from, int64_t head, int64_t slot) {
    int64_t place = head * rows->stride + slot * rows->dim, whole = in_lanes(rows->dim);
    float made[WIDE * 64];
    if (rows->kv_number == FLOAT32) {
        memcpy((float *)rows->memory + place, from, rows->dim * sizeof(float));
        return;
    }
    if (rows->kv_number == INT8) {
        vec most = v_zero(), odd = v_zero();
        for (int64_t d = 0; d < whole; d += LANES) {
            most = v_max(v_abs(v_load(from + d)), most);
            odd = v_fma(v_load(from + d), v_zero(), odd); /* 0, or no number where one of them is none or infinite */
        }
        float lanes[LANES], sum = 0, scale = v_largest(most) / 127.0f;
        v_store(lanes, odd);
        for (int i = 0; i < LANES; i++)
            sum += lanes[i];
        rows->scales[head * rows->scale_stride + slot] = scale + sum;
        int8_t *codes = (int8_t *)made;
        vec by = v_set(scale > 0 ? scale : 1.0f);
        for (int64_t d = 0; d < whole; d += LANES) {
            vec code = v_div(v_load(from + d), by);
            v_store_i8(codes + d, v_max(v_set(-127), v_min(v_set(127), code)));
        }
        memcpy((int8_t *)rows->memory + place, codes, rows->dim);
        return;
    }
    uint16_t *halves = (uint16_t *)made;
    for (int64_t d = 0; d < whole; d += LANES) {
        vec own = v_load(from + d);
        if (rows->kv_number == BFLOAT16)
            v_store_bf16(halves + d, own);
        else
            v_store_f16(halves + d, v_max(v_set(-65504), v_min(v_set(65504), own)));
    }
    memcpy((uint16_t *)rows->memory + place, halves, rows->dim * 2);
}

void kv_store(const kv_rows *rows) {
    int64_t bytes = bytes_of(rows->source_number);
    float wide[WIDE * 64];
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
