/* Matrix instructions (AMX) in plain C, for processors that have AVX-512 without them: included before all else. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define __AMX_INT8__ 1
#define __AMX_TILE__ 1
#define __AMX_BF16__ 1

typedef struct {
    uint8_t palette, start, zeros[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} emulated_shapes;

static _Thread_local emulated_shapes emulated;
static _Thread_local int8_t emulated_tiles[8][16][64];

static inline void emulated_load(int tile, const void *from, int64_t stride) {
    memset(emulated_tiles[tile], 0, sizeof emulated_tiles[tile]);
    for (int row = 0; row < emulated.rows[tile]; row++)
        memcpy(emulated_tiles[tile][row], (const char *)from + row * stride, emulated.bytes[tile]);
}

static inline void emulated_store(int tile, void *to, int64_t stride) {
    for (int row = 0; row < emulated.rows[tile]; row++)
        memcpy((char *)to + row * stride, emulated_tiles[tile][row], emulated.bytes[tile]);
}

/* Of each row of `a` fours of bytes with those of each column of `b`, which is [fours][columns][4]. */
static inline void emulated_dot(int sums, int a, int b, int a_signed, int b_signed) {
    for (int row = 0; row < emulated.rows[sums]; row++)
        for (int four = 0; four < emulated.bytes[a] / 4; four++)
            for (int column = 0; column < emulated.bytes[sums] / 4; column++) {
                int32_t sum;
                memcpy(&sum, emulated_tiles[sums][row] + 4 * column, 4);
                for (int i = 0; i < 4; i++) {
                    int8_t one = emulated_tiles[a][row][4 * four + i], other = emulated_tiles[b][four][4 * column + i];
                    sum += (a_signed ? one : (uint8_t)one) * (b_signed ? other : (uint8_t)other);
                }
                memcpy(emulated_tiles[sums][row] + 4 * column, &sum, 4);
            }
}

static inline float emulated_wide(const int8_t *at) {
    uint32_t bits = 0;
    float wide;
    memcpy((char *)&bits + 2, at, 2);
    memcpy(&wide, &bits, 4);
    return wide;
}

/* Of pairs in bfloat16: the first numbers of all pairs are one sum, the second ones another; small numbers are 0. */
static __attribute__((noinline)) void emulated_pairs(int sums, int a, int b) {
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
    for (int row = 0; row < emulated.rows[sums]; row++)
        for (int column = 0; column < emulated.bytes[sums] / 4; column++) {
            float parts[2] = {0}, sum;
            for (int pair = 0; pair < emulated.bytes[a] / 4; pair++)
                for (int i = 0; i < 2; i++)
                    parts[i] = __builtin_fmaf(emulated_wide(emulated_tiles[a][row] + 4 * pair + 2 * i),
                                              emulated_wide(emulated_tiles[b][pair] + 4 * column + 2 * i), parts[i]);
            memcpy(&sum, emulated_tiles[sums][row] + 4 * column, 4);
            sum += parts[0] + parts[1];
            memcpy(emulated_tiles[sums][row] + 4 * column, &sum, 4);
        }
    _mm_setcsr(mode);
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud
#define _tile_loadconfig(shapes) memcpy(&emulated, shapes, sizeof emulated)
#define _tile_release() memset(&emulated, 0, sizeof emulated)
#define _tile_loadd(tile, from, stride) emulated_load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated_store(tile, to, stride)
#define _tile_zero(tile) memset(emulated_tiles[tile], 0, sizeof emulated_tiles[tile])
#define _tile_dpbf16ps(sums, a, b) emulated_pairs(sums, a, b)
#define _tile_dpbssd(sums, a, b) emulated_dot(sums, a, b, 1, 1)
#define _tile_dpbsud(sums, a, b) emulated_dot(sums, a, b, 1, 0)
#define _tile_dpbusd(sums, a, b) emulated_dot(sums, a, b, 0, 1)
#define _tile_dpbuud(sums, a, b) emulated_dot(sums, a, b, 0, 0)
/* The kernel gives them to who asks. */
#define syscall(number, ...) ((number) == SYS_arch_prctl ? 0 : (syscall)(number, ##__VA_ARGS__))
