/* See layers.h. */
#include "layers.h"

#include <math.h>
#include <string.h>

#include "vectors.h"

void norm_row(const float *x, const float *gain, float floor, int64_t size, float *out) {
    vec sums[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        vec own = v_load(x + i);
        sums[i / LANES % 4] = v_fma(own, own, sums[i / LANES % 4]);
    }
    if (i < size) {
        vec own = v_load_some(x + i, size - i);
        sums[0] = v_fma(own, own, sums[0]);
    }
    float length = sqrtf(v_total(v_add(v_add(sums[0], sums[1]), v_add(sums[2], sums[3]))) + floor);
    for (i = 0; i + LANES <= size; i += LANES)
        v_store(out + i, v_mul(v_div(v_load(x + i), v_set(length)), v_load(gain + i)));
    for (; i < size; i++)
        out[i] = x[i] / length * gain[i];
}

void rotate_row(float *heads, const float *turns, int64_t count, int64_t head_dim) {
    for (int64_t head = 0; head < count; head++, heads += head_dim)
        for (int64_t i = 0; i < head_dim; i += 2) {
            float a = heads[i], b = heads[i + 1], cosine = turns[i], sine = turns[i + 1];
            heads[i] = a * cosine - b * sine;
            heads[i + 1] = a * sine + b * cosine;
        }
}

INLINE vec silu(vec gate, vec up) {
    vec below = v_add(v_set(1.0f), v_exp(v_sub(v_zero(), gate)));
    return v_mul(v_div(gate, below), up);
}

void silu_row(const float *gate, const float *up, int64_t size, float *out) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
        v_store(out + i, silu(v_load(gate + i), v_load(up + i)));
    if (i < size)
        v_store_some(out + i, silu(v_load_some(gate + i, size - i), v_load_some(up + i, size - i)), size - i);
}

/* Rows of which each is computed by itself. */
typedef struct {
    const float *from, *by;
    float *to;
    float floor;
    int64_t size, heads, stride, rows;
} rows_of;

static void norm_task(void *given, int index, int count) {
    const rows_of *own = given;
    EACH_ROW(own, index, count)
        norm_row(own->from + row * own->size, own->by, own->floor, own->size, own->to + row * own->size);
}

void norm_heads_of(float *x, const float *gain, float floor, int64_t size, int64_t heads) {
    for (int64_t head = 0; head < heads; head++)
        norm_row(x + head * size, gain + head * size, floor, size, x + head * size);
}

static void norm_heads_task(void *given, int index, int count) {
    const rows_of *own = given;
    EACH_ROW(own, index, count)
        norm_heads_of(own->to + row * own->stride, own->by, own->floor, own->size, own->heads);
}

static void rotate_task(void *given, int index, int count) {
    const rows_of *own = given;
    EACH_ROW(own, index, count)
        rotate_row(own->to + row * own->stride, own->by + row * own->size, own->heads, own->size);
}

static void silu_task(void *given, int index, int count) {
    const rows_of *own = given;
    EACH_ROW(own, index, count) {
        const float *gate = own->from + row * 2 * own->size;
        silu_row(gate, gate + own->size, own->size, own->to + row * own->size);
    }
}

static void run_rows(pool *threads, task_fn run, rows_of *own) {
    phase only = {run, own, row_tasks(own->rows)};
    if (only.count <= 1) /* a phase has a task at least */
        run(own, 0, 1);
    else
        pool_run_phases(threads, &only, 1);
}

void norm_rows(pool *threads, const float *x, const float *gain, float floor, int64_t size, int64_t rows, float *out) {
    rows_of own = {.from = x, .by = gain, .to = out, .floor = floor, .size = size, .rows = rows};
    run_rows(threads, norm_task, &own);
}

void norm_heads(pool *threads, float *x, const float *gain, float floor, int64_t size, int64_t heads, int64_t stride,
                int64_t rows) {
    rows_of own = {.by = gain, .to = x, .floor = floor, .size = size, .heads = heads, .stride = stride, .rows = rows};
    run_rows(threads, norm_heads_task, &own);
}

void rotate_rows(pool *threads, float *x, const float *turns, int64_t heads, int64_t head_dim, int64_t stride,
                 int64_t rows) {
    rows_of own = {.by = turns, .to = x, .size = head_dim, .heads = heads, .stride = stride, .rows = rows};
    run_rows(threads, rotate_task, &own);
}

void silu_rows(pool *threads, const float *gate_up, int64_t size, int64_t rows, float *out) {
    rows_of own = {.from = gate_up, .to = out, .size = size, .rows = rows};
    run_rows(threads, silu_task, &own);
}

/* Heads that are normed and turned by tables of the rows. */
typedef struct {
    const head_rules *rules;
    float *x;
    const float *cosines, *sines;
    int64_t stride, rows;
} turned_rows;

static void turn_halves(float *x, const float *cosines, const float *sines, int64_t turned) {
    int64_t half = turned / 2;
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cosines[i] - b * sines[i];
        x[i + half] = b * cosines[i + half] + a * sines[i + half];
    }
}

static void turn_pairs(float *x, const float *cosines, const float *sines, int64_t turned, int64_t kind) {
    int64_t step = kind == TURN_PAIRS ? 2 : 1;
    for (int64_t i = 0; i < turned / 2; i++) {
        float a = x[2 * i], b = x[2 * i + 1], cosine = cosines[i * step], sine = sines[i * step];
        x[2 * i] = a * cosine - b * sine;
        x[2 * i + 1] = b * cosine + a * sine;
    }
}

static void norm_both(const head_rules *own, float *x) {
    int64_t of_q = own->heads * own->head_dim, of_k = own->kv_heads * own->head_dim;
    if (own->q_gain)
        norm_heads_of(x, own->q_gain, own->q_floor, own->q_size, of_q / own->q_size);
    if (own->k_gain)
        norm_heads_of(x + of_q, own->k_gain, own->k_floor, own->k_size, of_k / own->k_size);
}

void turn_row(const head_rules *rules, float *x, const float *cosines, const float *sines, int64_t row) {
    if (!rules->norm_last)
        norm_both(rules, x);
    if (rules->kind != TURN_NONE) {
        cosines += row * rules->turned;
        sines += row * rules->turned;
        for (int64_t head = 0; head < rules->heads + rules->kv_heads; head++)
            if (rules->kind == TURN_HALVES)
                turn_halves(x + head * rules->head_dim, cosines, sines, rules->turned);
            else
                turn_pairs(x + head * rules->head_dim, cosines, sines, rules->turned, rules->kind);
    }
    if (rules->norm_last)
        norm_both(rules, x);
}

static void turn_heads_task(void *given, int index, int count) {
    const turned_rows *own = given;
    EACH_ROW(own, index, count)
        turn_row(own->rules, own->x + row * own->stride, own->cosines, own->sines, row);
}

void turn_heads(pool *threads, const head_rules *rules, float *x, const float *cosines, const float *sines,
                int64_t stride, int64_t rows) {
    turned_rows own = {rules, x, cosines, sines, stride, rows};
    phase only = {turn_heads_task, &own, row_tasks(rows)};
    if (only.count <= 1) /* a phase has a task at least */
        turn_heads_task(&own, 0, 1);
    else
        pool_run_phases(threads, &only, 1);
}
