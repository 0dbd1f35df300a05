/* Vectors in C, of which a compiler makes what a machine has. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 4
#define TILE 8 /* sums that a product of queries and keys keeps at once */

typedef float vec __attribute__((vector_size(16)));
typedef int32_t whole __attribute__((vector_size(16)));

FAST vec v_zero(void) { return (vec){0}; }
FAST vec v_set(float x) { return (vec){x, x, x, x}; }
FAST vec v_load(const float *at) {
    vec x;
    memcpy(&x, at, sizeof x);
    return x;
}
FAST void v_store(float *at, vec x) { memcpy(at, &x, sizeof x); }
FAST vec v_of_bits(whole bits) {
    vec x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
FAST whole v_bits(vec x) {
    whole bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
FAST vec v_pick(whole mask, vec a, vec b) { return v_of_bits((mask & v_bits(a)) | (~mask & v_bits(b))); }
FAST vec v_load_f16(const uint16_t *at) {
    whole bits = {at[0], at[1], at[2], at[3]}, small = bits & 0x7fff;
    /* normal numbers and those that are smaller come out of one product; infinite ones and none are set apart */
    vec x = v_of_bits(small << 13) * v_set(0x1p112f);
    x = v_pick(small >= 0x7c00, v_of_bits((small << 13) | 0x7f800000), x);
    return v_of_bits(v_bits(x) | ((bits & 0x8000) << 16));
}
FAST uint16_t half_of(float x) { /* to the nearest, ties to even */
    uint32_t bits, sign, half;
    memcpy(&bits, &x, sizeof bits);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (bits >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (bits < 0x38800000) { /* less than the least normal one: in its units */
        float units = nearbyintf(fabsf(x) * 0x1p24f);
        return (uint16_t)(sign | (uint32_t)units);
    }
    half = bits - 0x38000000;
    return (uint16_t)(sign | (half + 0xfff + (half >> 13 & 1)) >> 13);
}
FAST void v_store_f16(uint16_t *at, vec x) {
    for (int i = 0; i < LANES; i++)
        at[i] = half_of(x[i]);
}
FAST vec v_load_bf16(const uint16_t *at) {
    whole bits = {at[0], at[1], at[2], at[3]};
    return v_of_bits(bits << 16);
}
FAST void v_store_bf16(uint16_t *at, vec x) { /* to the nearest, ties to even */
    whole bits = v_bits(x), near = bits + 0x7fff + ((bits >> 16) & 1), none = x != x;
    bits = (none & (bits | 0x400000)) | (~none & near);
    for (int i = 0; i < LANES; i++)
        at[i] = (uint16_t)((uint32_t)bits[i] >> 16);
}
FAST vec v_load_i8(const int8_t *at) { return (vec){at[0], at[1], at[2], at[3]}; }
FAST vec v_round(vec x) { return (vec){nearbyintf(x[0]), nearbyintf(x[1]), nearbyintf(x[2]), nearbyintf(x[3])}; }
FAST void v_store_i8(int8_t *at, vec x) {
    for (int i = 0; i < LANES; i++)
        at[i] = x[i] == x[i] ? (int8_t)nearbyintf(x[i]) : -127;
}
FAST vec v_load_e4m3(const uint8_t *at) { /* in units of FP8_UNIT */
    uint16_t halves[4];
    for (int i = 0; i < 4; i++)
        halves[i] = (uint16_t)((at[i] & 0x80) << 8 | (at[i] & 0x7f) << 7);
    return v_load_f16(halves);
}
FAST vec v_load_nibbles(const uint8_t *at, const float *table) {
    float made[4] = {table[at[0] & 15], table[at[0] >> 4], table[at[1] & 15], table[at[1] >> 4]};
    return v_load(made);
}
FAST vec v_load_pairs(const uint8_t *at, uint32_t signs, const float *table) {
    float made[4];
    for (int i = 0; i < 4; i++)
        made[i] = signs >> i & 1 ? -table[*at >> 2 * i & 3] : table[*at >> 2 * i & 3];
    return v_load(made);
}
FAST vec v_fma(vec a, vec b, vec sum) { return a * b + sum; }
FAST vec v_add(vec a, vec b) { return a + b; }
FAST vec v_sub(vec a, vec b) { return a - b; }
FAST vec v_mul(vec a, vec b) { return a * b; }
FAST vec v_div(vec a, vec b) { return a / b; }
FAST vec v_max(vec a, vec b) { return v_pick(a > b, a, b); } /* b where one of them is no number */
FAST vec v_min(vec a, vec b) { return v_pick(a < b, a, b); } /* likewise */
FAST vec v_abs(vec a) { return v_of_bits(v_bits(a) & 0x7fffffff); }
FAST vec v_sign(vec of, vec x) { return v_of_bits(v_bits(x) | (v_bits(of) & ~0x7fffffff)); }
FAST vec v_power(vec n) { /* 2^n of whole numbers from -126 on */
    vec known = v_pick(n == n, n, v_zero());
    whole exponent = {(int32_t)known[0], (int32_t)known[1], (int32_t)known[2], (int32_t)known[3]};
    return v_of_bits((exponent + 127) << 23);
}
FAST vec v_from(vec x, float least, vec value) { /* value, and 0 where x is less than that */
    return v_pick(x < v_set(least), v_zero(), value);
}
FAST float v_largest(vec x) {
    float low = x[0] > x[1] ? x[0] : x[1], high = x[2] > x[3] ? x[2] : x[3];
    return low > high ? low : high;
}

/* out[i] = the sum of the lanes of x[i], each by the same tree. */
FAST void v_totals(const vec *x, float *out) {
    for (int i = 0; i < TILE; i++)
        out[i] = (x[i][0] + x[i][2]) + (x[i][1] + x[i][3]);
}
