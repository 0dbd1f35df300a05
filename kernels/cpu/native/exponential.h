/* e^x, by the vectors of whoever includes this (vectors.h or simd.h): one polynomial, each operation rounded by itself. */
#ifndef EXPONENTIAL_H
#define EXPONENTIAL_H

/* Of x from -87 to 88, off by less than 2 units in the last place. */
static inline __attribute__((always_inline)) vec v_exp_within(vec x) {
    vec n = v_round(v_mul(x, v_set(1.44269504f)));
    vec rest = v_fma(n, v_set(-0.693359375f), x);
    rest = v_fma(n, v_set(2.12194440e-4f), rest);
    vec y = v_set(1.9875691500e-4f);
    y = v_fma(y, rest, v_set(1.3981999507e-3f));
    y = v_fma(y, rest, v_set(8.3334519073e-3f));
    y = v_fma(y, rest, v_set(4.1665795894e-2f));
    y = v_fma(y, rest, v_set(1.6666665459e-1f));
    y = v_fma(y, rest, v_set(5.0000001201e-1f));
    y = v_add(v_fma(v_mul(rest, rest), y, rest), v_set(1.0f));
    return v_mul(y, v_power(n));
}

#endif
