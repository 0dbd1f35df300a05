/* Vectors of floats: what the processor has for which this is compiled. */
#ifndef SIMD_H
#define SIMD_H

#define FAST static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
#elif defined(__aarch64__)
#include "simd_neon.h"
#else
#include "simd_plain.h"
#endif

#endif
