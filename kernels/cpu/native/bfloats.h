/* Of products of two factors in bfloat16, what a row that is ready has: its numbers in float32, for vectors, and behind
 * these in bfloat16, for instructions that take it. See bfloats.c. */
#ifndef BFLOATS_H
#define BFLOATS_H

#include "linear.h"

#if defined(__AVX512BF16__)
#define WIDE_BYTES 0
#define NARROW_BYTES 2
#elif defined(__AMX_BF16__)
#define WIDE_BYTES 4
#define NARROW_BYTES 2
#else
#define WIDE_BYTES 4
#define NARROW_BYTES 0
#endif

static inline char *bfloats_narrow(const linear *own, char *ready) { return ready + own->stride / 2 * WIDE_BYTES; }

#endif
