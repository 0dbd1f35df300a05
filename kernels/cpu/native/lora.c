/* See lora.h. */
#include "lora.h"

#include "side.h"

#define RANKS 8  /* of A, that a task multiplies */
#define SIDES 16 /* of B, of SIDE outputs each */
#define ROWS 64  /* that a task is of */
#define TILE 4   /* rows that are multiplied together */

static int64_t blocks(int64_t number, int64_t unit) { return (number + unit - 1) / unit; }
static int64_t less(int64_t one, int64_t other) { return one < other ? one : other; }

int64_t lora_row_bytes(int64_t inputs) {
    linear like = {.kind = FLOAT_32, .inputs = inputs};
    return linear_row_bytes(&like);
}

int lora_changes(const lora_product *own) {
    for (int64_t group = 0; group < own->step->count; group++)
        if (own->factors[group])
            return 1;
    return 0;
}

void lora_ready(const lora_product *own, const float *x, int64_t row) {
    linear like = {.kind = FLOAT_32, .inputs = own->inputs};
    int64_t place = own->step->places[row];
    if (place >= 0)
        linear_ready(&like, x, own->step->ready, place, 0);
}

static float *inner_of(const lora_step *step, const lora_group *group) {
    return step->inner + group->first * step->most_ranks;
}

static int64_t inner_of_group(const lora_group *group, const lora_factors *factors) {
    return factors ? blocks(factors->a.outputs, RANKS) * blocks(group->count, ROWS) : 0;
}

int lora_inner_tasks(const lora_product *own) {
    int64_t tasks = 0;
    for (int64_t group = 0; group < own->step->count; group++)
        tasks += inner_of_group(own->step->groups + group, own->factors[group]);
    return (int)tasks;
}

void lora_inner(const lora_product *own, int64_t index) {
    const lora_step *step = own->step;
    const lora_group *group = step->groups;
    const lora_factors *const *factors = own->factors;
    for (int64_t tasks; index >= (tasks = inner_of_group(group, *factors)); group++, factors++)
        index -= tasks;
    const linear *a = &(*factors)->a;
    int64_t across = blocks(a->outputs, RANKS), rank = index % across * RANKS, row = index / across * ROWS;
    char *ready = step->ready + (group->first + row) * linear_row_bytes(a);
    product made = product_of(a, ready, less(ROWS, group->count - row), inner_of(step, group) + row * a->outputs, 0, 1);
    made.parted = 0; /* a group's rows begin anywhere */
    float_outputs(&made, rank, less(rank + RANKS, a->outputs));
}

static int64_t outer_of_part(const lora_group *group, const lora_part *part) {
    return blocks(blocks(part->outputs, SIDE), SIDES) * blocks(group->count, ROWS);
}

int lora_outer_tasks(const lora_product *own) {
    int64_t tasks = 0;
    for (int64_t group = 0; group < own->step->count; group++)
        for (int64_t part = 0; own->factors[group] && part < own->factors[group]->count; part++)
            tasks += outer_of_part(own->step->groups + group, own->factors[group]->parts + part);
    return (int)tasks;
}

/* SIDE outputs, or the last `count` of a layer, of some rows. */
INLINE void tile(const float *b, const float *inner, int64_t stride, int64_t ranks, float *const *out, int64_t count,
                 const int rows) {
    vec sums[TILE];
    for (int r = 0; r < rows; r++)
        sums[r] = v_zero();
    for (int64_t rank = 0; rank < ranks; rank++, b += SIDE)
        for (int r = 0; r < rows; r++)
            sums[r] = v_fma(v_set(inner[r * stride + rank]), v_load(b), sums[r]);
    for (int r = 0; r < rows; r++)
        if (count >= SIDE)
            v_store(out[r], v_add(v_load(out[r]), sums[r]));
        else
            v_store_some(out[r], v_add(v_load_some(out[r], count), sums[r]), count);
}

INLINE void some_rows(const lora_product *own, const lora_part *part, const int64_t *chosen, const float *inner,
                      int64_t stride, int64_t side, int64_t last, const int rows) {
    float *out[TILE];
    for (int r = 0; r < rows; r++)
        out[r] = own->out + chosen[r] * own->outputs + part->column + side * SIDE;
    for (; side < last; side++) {
        tile(part->b + side * part->ranks * SIDE, inner, stride, part->ranks, out, part->outputs - side * SIDE, rows);
        for (int r = 0; r < rows; r++)
            out[r] += SIDE;
    }
}

static void outer(const lora_product *own, const lora_group *group, const lora_factors *factors, const lora_part *part,
                  int64_t index) {
    int64_t sides = blocks(part->outputs, SIDE), across = blocks(sides, SIDES), stride = factors->a.outputs;
    int64_t side = index % across * SIDES, last = less(side + SIDES, sides), row = index / across * ROWS;
    int64_t end = less(row + ROWS, group->count);
    const int64_t *chosen = own->step->chosen + group->first;
    const float *inner = inner_of(own->step, group) + part->first;
    for (; row + TILE <= end; row += TILE)
        some_rows(own, part, chosen + row, inner + row * stride, stride, side, last, TILE);
    chosen += row;
    inner += row * stride;
    switch (end - row) {
    case 3: some_rows(own, part, chosen, inner, stride, side, last, 3); break;
    case 2: some_rows(own, part, chosen, inner, stride, side, last, 2); break;
    case 1: some_rows(own, part, chosen, inner, stride, side, last, 1); break;
    }
}

void lora_outer_task(void *given, int index, int count) {
    (void)count;
    const lora_product *own = given;
    int64_t left = index;
    for (int64_t group = 0;; group++) {
        const lora_group *rows = own->step->groups + group;
        const lora_factors *factors = own->factors[group];
        for (int64_t part = 0; factors && part < factors->count; part++) {
            int64_t tasks = outer_of_part(rows, factors->parts + part);
            if (left < tasks) {
                outer(own, rows, factors, factors->parts + part, left);
                return;
            }
            left -= tasks;
        }
    }
}

typedef struct {
    const lora_product *own;
    const float *x;
} all_rows;

static void ready_task(void *given, int index, int count) {
    (void)count;
    const all_rows *all = given;
    const lora_step *step = all->own->step;
    for (int64_t place = (int64_t)index * PACKED; place < less((int64_t)(index + 1) * PACKED, step->rows); place++)
        lora_ready(all->own, all->x + step->chosen[place] * all->own->inputs, step->chosen[place]);
}

static void inner_task(void *given, int index, int count) {
    (void)count;
    lora_inner(given, index);
}

void lora_run(pool *threads, const lora_product *own, const float *x) {
    all_rows all = {own, x};
    phase phases[] = {
        {ready_task, &all, (int)blocks(own->step->rows, PACKED)},
        {inner_task, (void *)own, lora_inner_tasks(own)},
        {lora_outer_task, (void *)own, lora_outer_tasks(own)},
    };
    if (phases[0].count > 1) {
        pool_run_phases(threads, phases, 3);
        return;
    }
    ready_task(&all, 0, 1);
    pool_run_phases(threads, phases + 1, 2);
}
