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


static int row_tasks(int64_t rows) { return (int)((rows + PACKED - 1) / PACKED); }

/* PACKED of each task, which are ready for a product together. */
#define EACH_ROW(own, index, count)                                                                        \
    for (int64_t row = (int64_t)(index) * PACKED, end = (index) + 1 < (count) ? row + PACKED : (own)->rows; \
         row < end; row++)

static void norm_task(void *given, int index, int count) {
    const rows_of *own = given;
    EACH_ROW(own, index, count)
        norm_row(own->from + row * own->size, own->by, own->floor, own->size, own->to + row * own->size);
}

static void norm_heads_of(float *x, const float *gain, float floor, int64_t size, int64_t heads) {
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
    if (only.count == 1)
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

/* A row's, whose number in the tables is `row`. */
static void turn_row(const head_rules *rules, float *x, const float *cosines, const float *sines, int64_t row) {
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
    if (only.count == 1)
        turn_heads_task(&own, 0, 1);
    else
        pool_run_phases(threads, &only, 1);
}

/* A layer's part in a step: each is a phase, of rows or of a product. */
typedef struct {
    const layer *of;
    layer_step *step;
    kv_rows kv; /* tokens is 0 where others write keys and values */
} part;

/* A row of the residual stream, normed where there is a gain, then ready for a product. */
static void make_ready(const linear *by, const layer_step *step, const float *gain, int64_t row) {
    const float *x = step->x + row * step->hidden;
    if (gain == NULL) {
        linear_ready(by, x, step->ready, row);
        return;
    }
    float own[by->inputs];
    norm_row(x, gain, step->floor, by->inputs, own);
    linear_ready(by, own, step->ready, row);
}

static void qkv_ready_task(void *given, int index, int count) {
    const part *own = given;
    const layer_step *step = own->step;
    EACH_ROW(step, index, count)
        make_ready(own->of->qkv, step, own->of->attention_norm, row);
}

static void turn_task(void *given, int index, int count) {
    const part *own = given;
    const layer_step *step = own->step;
    int64_t heads = step->heads + step->kv_heads, dim = step->head_dim;
    EACH_ROW(step, index, count) {
        float *x = step->qkv + row * (heads + step->kv_heads) * dim;
        if (own->of->rules)
            turn_row(own->of->rules, x, step->cosines, step->sines, row);
        if (own->of->qk_norm)
            norm_heads_of(x, own->of->qk_norm, step->qk_floor, dim, heads);
        if (own->of->rotations)
            rotate_row(x, own->of->rotations + step->positions[row] * dim, heads, dim);
        if (own->kv.tokens) {
            kv_rows kv = own->kv;
            kv.source = x + step->heads * dim;
            kv.slots += row;
            kv_store(&kv);
        }
    }
}

static void out_ready_task(void *given, int index, int count) {
    const part *own = given;
    const layer_step *step = own->step;
    int64_t size = own->of->out->inputs;
    EACH_ROW(step, index, count)
        linear_ready(own->of->out, step->mixed + row * size, step->ready, row);
}

static void gate_ready_task(void *given, int index, int count) {
    const part *own = given;
    const layer_step *step = own->step;
    EACH_ROW(step, index, count)
        make_ready(own->of->gate_up, step, own->of->mlp_norm, row);
}

static void down_ready_task(void *given, int index, int count) {
    const part *own = given;
    const layer_step *step = own->step;
    int64_t size = step->inner;
    EACH_ROW(step, index, count) {
        float *gate = step->gate_up + row * 2 * size;
        silu_row(gate, gate + size, size, gate);
        linear_ready(own->of->down, gate, step->ready, row);
    }
}

#define PHASES 9 /* of what follows attention, and what precedes it */

typedef struct {
    phase *phases;
    product *products;
    int count;
} plan;

static void add_rows(plan *own, task_fn run, part *of) {
    own->phases[own->count++] = (phase){run, of, row_tasks(of->step->rows)};
}

static void add_product(plan *own, const linear *by, const layer_step *step, float *out, int64_t add) {
    product *made = own->products++;
    *made = product_of(by, step->ready, step->rows, out, add);
    own->phases[own->count++] = (phase){linear_task, made, linear_tasks(by, step->rows)};
}

static void add_after(plan *own, part *of) {
    layer_step *step = of->step;
    add_rows(own, out_ready_task, of);
    add_product(own, of->of->out, step, step->x, 1);
    add_rows(own, gate_ready_task, of);
    add_product(own, of->of->gate_up, step, step->gate_up, 0);
    add_rows(own, down_ready_task, of);
    add_product(own, of->of->down, step, step->x, 1);
}

static void add_before(plan *own, part *of) {
    add_rows(own, qkv_ready_task, of);
    add_product(own, of->of->qkv, of->step, of->step->qkv, 0);
    add_rows(own, turn_task, of);
}

void layers_run(pool *threads, const layer *done, const layer *next, layer_step *step) {
    phase phases[PHASES];
    product products[PHASES];
    plan own = {phases, products, 0};
    part after = {.of = done, .step = step}, before = {.of = next, .step = step};
    if (done)
        add_after(&own, &after);
    if (next)
        add_before(&own, &before);
    pool_run_phases(threads, own.phases, own.count);
}

#define ATTENTION_PHASES 2

/* A layer's in one step, beside its phases. */
typedef struct {
    product products[4];
    part of;
    attention_layer attention;
} layer_plan;

int64_t layers_plan_bytes(int64_t count) {
    return count * (int64_t)((PHASES + ATTENTION_PHASES) * sizeof(phase) + sizeof(layer_plan));
}

void layers_step(pool *threads, const layer *layers, const layer_memory *memory, int64_t count, layer_step *step,
                 const attention_layer *attention, const kv_rows *rows, char *room) {
    layer_plan *made = (layer_plan *)room;
    plan own = {(phase *)(made + count), NULL, 0};
    for (int64_t number = 0; number < count; number++, made++) {
        own.products = made->products;
        made->of = (part){&layers[number], step, *rows};
        made->of.kv.tokens = 1;
        made->of.kv.memory = (void *)memory[number].keys;
        made->of.kv.scales = memory[number].key_scales;
        made->attention = *attention;
        made->attention.keys = memory[number].keys;
        made->attention.values = memory[number].values;
        made->attention.key_scales = memory[number].key_scales;
        made->attention.value_scales = memory[number].value_scales;
        add_before(&own, &made->of);
        own.count += attention_phases(&made->attention, own.phases + own.count);
        add_after(&own, &made->of);
    }
    pool_run_phases(threads, own.phases, own.count);
}
