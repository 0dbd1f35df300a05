/* See linear.h: what all kinds of weights have in common. */
#include "linear.h"

#include <string.h>

#include "vectors.h"

#define TASK_BYTES (1 << 16) /* of weights, that one thread multiplies at once, at least */
#define EACH 4               /* large tasks of a thread */
#define LARGE 3              /* quarters of a product that they are */
#define SMALL 32             /* other tasks of a thread, at most */
#define TASK_ROWS 32         /* from which on tasks are smaller: they take longer */
#define MATRIX_ROWS 256
#define MATRIX_OUTPUTS 256
#define GROUP 32             /* outputs that a task is a multiple of */

static int64_t filled(int64_t number, int64_t unit) { return (number + unit - 1) / unit * unit; }

static int64_t own_row_bytes(const linear *own) {
    if (own->kind == INT_8)
        return int8_row_bytes(own);
    if (own->kind == GROUPED)
        return groups_row_bytes(own);
    if (own->kind == BOTH_BFLOAT_16)
        return bfloats_row_bytes(own);
    return HEADER + 4 * filled(own->inputs, LANES);
}

int64_t linear_row_bytes(const linear *own) {
    int64_t bytes = 0;
    for (; own; own = own->rest)
        bytes += own_row_bytes(own);
    return bytes;
}

static int64_t all_outputs(const linear *own) {
    int64_t outputs = 0;
    for (; own; own = own->rest)
        outputs += own->outputs;
    return outputs;
}

static void own_ready(const linear *own, const float *x, char *ready, const int parts) {
    if (own->kind == GROUPED) {
        groups_ready(own, x, ready);
        return;
    }
    if (own->kind == INT_8) {
        int8_ready(own, x, ready);
        return;
    }
    float *numbers = (float *)(ready + HEADER);
    if (parts)
        float_parts(own, x, numbers);
    else
        memcpy(numbers, x, own->inputs * sizeof(float));
    memset(numbers + own->inputs, 0, (filled(own->inputs, LANES) - own->inputs) * sizeof(float));
}

void linear_ready(const linear *own, const float *x, char *ready, int64_t row, int64_t parted) {
    if (own->kind == BOTH_BFLOAT_16) { /* alone */
        bfloats_ready(own, x, ready, row);
        return;
    }
    ready += row * linear_row_bytes(own);
    for (; own; own = own->rest) {
        own_ready(own, x, ready, row < parted);
        ready += own_row_bytes(own);
    }
}

static void own_outputs(const product *own, int64_t first, int64_t last) {
    const linear *by = own->own;
    if (by->kind == GROUPED)
        (by->scaled == EIGHT_BITS && matrix_pays(own) ? matrix_groups : groups_outputs)(own, first, last);
    else if (by->kind == INT_8)
        (matrix_pays(own) ? matrix_outputs : int8_outputs)(own, first, last);
    else if (by->kind == BOTH_BFLOAT_16)
        (matrix_pays(own) ? matrix_outputs : bfloats_outputs)(own, first, last);
    else
        float_outputs(own, first, last);
}

void linear_outputs(const product *own, int64_t first, int64_t last) {
    product part = *own;
    for (int64_t outputs; part.own && last > 0; first -= outputs, last -= outputs) {
        outputs = part.own->outputs;
        if (first < outputs)
            own_outputs(&part, first > 0 ? first : 0, last < outputs ? last : outputs);
        part.ready += own_row_bytes(part.own);
        part.out += outputs;
        part.own = part.own->rest;
    }
}

/* Of many rows matrix instructions multiply some with some outputs, which all stay in a near cache. */
static int64_t row_parts(const linear *own, int64_t rows) {
    return rows && own->kind == BOTH_BFLOAT_16 && matrix_allowed() ? (rows + MATRIX_ROWS - 1) / MATRIX_ROWS : 1;
}

static int64_t all_bytes(const linear *own) {
    int64_t bytes = 0;
    for (; own; own = own->rest)
        bytes += own->outputs * own->stride;
    return bytes;
}

/* Large tasks first, since memory is read best in long runs, and small ones behind them, for threads that were away. */
static void divide(product *made, int64_t units, int threads) {
    made->units = units;
    made->large = EACH * threads;
    made->wide = units * LARGE / 4 / made->large;
    if (made->wide < 2)
        made->large = 0;
    int64_t rest = units - made->large * made->wide, most = SMALL * threads;
    made->narrow = made->large && rest > most ? (rest + most - 1) / most : 1;
    made->tasks = (int)(made->large + (rest + made->narrow - 1) / made->narrow);
}

product product_of(const linear *own, char *ready, int64_t rows, float *out, int64_t add, int threads) {
    const int64_t outputs = all_outputs(own), most = (outputs + GROUP - 1) / GROUP;
    product made = {.own = own, .ready = ready, .rows = rows, .out = out, .add = add, .width = outputs};
    made.row_bytes = linear_row_bytes(own);
    made.parted = float_parted(rows);
    int64_t units = all_bytes(own) / TASK_BYTES * (rows > TASK_ROWS ? 2 : 1);
    units = units < 1 ? 1 : units > most ? most : units;
    if (own->kind == BOTH_BFLOAT_16 && rows > TASK_ROWS && matrix_allowed())
        made.tasks = (int)((outputs + MATRIX_OUTPUTS - 1) / MATRIX_OUTPUTS * row_parts(own, rows));
    else
        divide(&made, units, threads);
    return made;
}

/* Units before a task. */
static int64_t before(const product *own, int task) {
    const int64_t small = task - own->large, units = own->large * own->wide + small * own->narrow;
    if (small < 0)
        return task * own->wide;
    return units < own->units ? units : own->units;
}

void linear_task(void *given, int index, int count) {
    product own = *(const product *)given;
    const int64_t parts = row_parts(own.own, own.rows), part = index % parts, packed = filled(own.rows, PACKED) / PACKED;
    int64_t from = index, to = index + 1, of = count;
    if (parts > 1) { /* of about as many rows each: no part has so few that they would be ready for vectors */
        const int64_t row = packed * part / parts * PACKED, end = packed * (part + 1) / parts * PACKED;
        own.rows = (end < own.rows ? end : own.rows) - row;
        own.ready += row * own.row_bytes;
        own.out += row * own.width;
        from = index / parts;
        to = from + 1;
        of = count / parts;
    } else if (own.units)
        from = before(&own, index), to = before(&own, index + 1), of = own.units;
    int64_t outputs = own.width, groups = (outputs + GROUP - 1) / GROUP;
    int64_t first = groups * from / of * GROUP, last = groups * to / of * GROUP;
    linear_outputs(&own, first, last < outputs ? last : outputs);
}

typedef struct {
    const linear *own;
    const float *x;
    char *ready;
    int64_t rows, parted;
} rows_of;

static void ready_task(void *given, int index, int count) {
    const rows_of *own = given;
    int64_t groups = filled(own->rows, PACKED) / PACKED, last = groups * (index + 1) / count * PACKED;
    for (int64_t row = groups * index / count * PACKED; row < last && row < own->rows; row++)
        linear_ready(own->own, own->x + row * own->own->inputs, own->ready, row, own->parted);
}

void linear_run(pool *threads, const linear *own, const float *x, int64_t rows, char *ready, float *out, int64_t add) {
    product made = product_of(own, ready, rows, out, add, pool_threads(threads));
    rows_of given = {own, x, ready, rows, made.parted};
    phase phases[] = {
        {ready_task, &given, (int)(filled(rows, PACKED) / PACKED)},
        {linear_task, &made, made.tasks},
    };
    if (phases[0].count > 1) {
        pool_run_phases(threads, phases, 2);
        return;
    }
    ready_task(&given, 0, 1);
    pool_run_phases(threads, phases + 1, 1);
}
