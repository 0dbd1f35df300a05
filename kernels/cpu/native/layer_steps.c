/* Layers of plain decoders as a whole: a step as phases, of rows, of products, of attention. See layers.h. */
#include "layers.h"

#include <stddef.h>

enum { QKV, OUT, GATE_UP, DOWN, PRODUCTS };

/* One of a layer's products in a step. */
typedef struct {
    product of;
    lora_product lora; /* its step is NULL where adapters change nothing */
    int inner_tasks;   /* of A x, which is made beside the product itself */
} layer_product;

/* A layer's part in a step: each is a phase, of rows or of a product. */
typedef struct {
    const layer *of;
    layer_step *step;
    kv_rows kv; /* tokens is 0 where others write keys and values */
    layer_product products[PRODUCTS];
} part;

/* A row for one of a layer's products, and for what adapters add to it. */
static void make_ready(const part *own, int which, const float *x, int64_t row) {
    const layer_product *by = own->products + which;
    linear_ready(by->of.own, x, by->of.ready, row, by->of.parted);
    if (by->lora.step)
        lora_ready(&by->lora, x, row);
}

/* The same of a row of the residual stream, normed where there is a gain. */
static void norm_ready(const part *own, int which, const float *gain, int64_t row) {
    const layer_step *step = own->step;
    const float *x = step->x + row * step->hidden;
    if (gain == NULL) {
        make_ready(own, which, x, row);
        return;
    }
    float normed[step->hidden];
    norm_row(x, gain, step->floor, step->hidden, normed);
    make_ready(own, which, normed, row);
}

static void qkv_ready_task(void *given, int index, int count) {
    const part *own = given;
    const layer_step *step = own->step;
    EACH_ROW(step, index, count)
        norm_ready(own, QKV, own->of->attention_norm, row);
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
        make_ready(own, OUT, step->mixed + row * size, row);
}

static void gate_ready_task(void *given, int index, int count) {
    const part *own = given;
    const layer_step *step = own->step;
    EACH_ROW(step, index, count)
        norm_ready(own, GATE_UP, own->of->mlp_norm, row);
}

static void down_ready_task(void *given, int index, int count) {
    const part *own = given;
    const layer_step *step = own->step;
    int64_t size = step->inner;
    EACH_ROW(step, index, count) {
        float *gate = step->gate_up + row * 2 * size;
        silu_row(gate, gate + size, size, gate);
        make_ready(own, DOWN, gate, row);
    }
}

#define PHASES 13 /* of what follows attention, and what precedes it */

typedef struct {
    phase *phases;
    int count, threads;
} plan;

static void add_phase(plan *own, task_fn run, void *of, int tasks) {
    own->phases[own->count++] = (phase){run, of, tasks};
}

static void add_rows(plan *own, task_fn run, part *of) { add_phase(own, run, of, row_tasks(of->step->rows)); }

static void adapted_task(void *given, int index, int count) {
    layer_product *own = given;
    if (index < own->inner_tasks)
        lora_inner(&own->lora, index);
    else
        linear_task(&own->of, index - own->inner_tasks, count - own->inner_tasks);
}

static void add_product(plan *own, part *of, int which, const linear *by, float *out, int64_t add) {
    const layer_step *step = of->step;
    layer_product *made = of->products + which;
    made->of = product_of(by, step->ready, step->rows, out, add, own->threads);
    made->lora.step = NULL;
    if (step->lora) {
        const lora_factors *const *factors = step->lora->factors + (of->of->number * PRODUCTS + which) * step->lora->count;
        lora_product changes = {step->lora, factors, by->inputs, made->of.width, out};
        if (lora_changes(&changes))
            made->lora = changes;
    }
    if (made->lora.step == NULL) {
        add_phase(own, linear_task, &made->of, made->of.tasks);
        return;
    }
    made->inner_tasks = lora_inner_tasks(&made->lora);
    add_phase(own, adapted_task, made, made->inner_tasks + made->of.tasks);
    add_phase(own, lora_outer_task, &made->lora, lora_outer_tasks(&made->lora));
}

static void add_after(plan *own, part *of) {
    layer_step *step = of->step;
    add_rows(own, out_ready_task, of);
    add_product(own, of, OUT, of->of->out, step->x, 1);
    add_rows(own, gate_ready_task, of);
    add_product(own, of, GATE_UP, of->of->gate_up, step->gate_up, 0);
    add_rows(own, down_ready_task, of);
    add_product(own, of, DOWN, of->of->down, step->x, 1);
}

static void add_before(plan *own, part *of) {
    add_rows(own, qkv_ready_task, of);
    add_product(own, of, QKV, of->of->qkv, of->step->qkv, 0);
    add_rows(own, turn_task, of);
}

void layers_run(pool *threads, const layer *done, const layer *next, layer_step *step) {
    phase phases[PHASES];
    plan own = {phases, 0, pool_threads(threads)};
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
    part of;
    attention_layer attention;
} layer_plan;

int64_t layers_plan_bytes(int64_t count) {
    return count * (int64_t)((PHASES + ATTENTION_PHASES) * sizeof(phase) + sizeof(layer_plan));
}

void layers_step(pool *threads, const layer *layers, const layer_memory *memory, int64_t count, layer_step *step,
                 const attention_layer *attention, const kv_rows *rows, char *room) {
    layer_plan *made = (layer_plan *)room;
    plan own = {(phase *)(made + count), 0, pool_threads(threads)};
    for (int64_t number = 0; number < count; number++, made++) {
        made->of = (part){.of = &layers[number], .step = step, .kv = *rows};
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
