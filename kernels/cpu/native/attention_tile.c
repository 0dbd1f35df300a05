/* See attention.h: the tasks of a layer. */
#include "attention_rows.h"

typedef struct {
    float *queries, *scores, *sums, *own, *largest, *total; /* by row */
    float *near_keys, *wide_values, *key_scales, *value_scales;
    const void **keys, **values;
} space;

/* The rows of a tile: queries of a group of heads at positions that follow each other. */
typedef struct {
    const span *span;
    int64_t head, offset, positions, rows, group;
} tile;

static space space_of(const attention_layer *own) {
    const attention_rules *rules = own->rules;
    const work *divided = work_of(own);
    int64_t rows = larger(ROWS, group_of(rules)), keys = filled(rules->key_dim), values = filled(rules->value_dim);
    char *at = divided->workspaces + pool_thread() * divided->workspace;
    space made;
    made.keys = (const void **)at;
    made.values = made.keys + SPLIT + NEAR + AHEAD;
    made.queries = (float *)(made.values + SPLIT + NEAR + AHEAD);
    made.scores = made.queries + rows * keys;
    made.sums = made.scores + rows * SPLIT;
    made.own = made.sums + rows * values;
    made.largest = made.own + rows * values;
    made.total = made.largest + rows;
    made.near_keys = made.total + rows;
    made.wide_values = made.near_keys + NEAR * keys;
    made.key_scales = made.wide_values + SPLIT * values;
    made.value_scales = made.key_scales + SPLIT;
    return made;
}

static void read_queries(const attention_layer *own, const tile *of, space *in) {
    const attention_rules *rules = own->rules;
    int64_t room = filled(rules->key_dim), bytes = bytes_of(rules->query_number, 1);
    vec scale = v_set(rules->scale);
    for (int64_t row = 0; row < of->rows; row++) {
        int64_t token = of->span->first + of->offset + row / of->group, head = of->head * of->group + row % of->group;
        const char *from = (const char *)own->queries + (token * own->query_stride + head * rules->key_dim) * bytes;
        float *to = in->queries + row * room;
        widen(from, (int)rules->query_number, rules->key_dim, room, to);
        for (int64_t d = 0; d < room; d += LANES)
            v_store(to + d, v_mul(v_load(to + d), scale));
        if (turns(rules->key_number))
            turn(to, rules->key_dim);
    }
}

/* Where positions base + [begin, end) of a span are; on both sides up to multiples of NEAR the nearest of them. */
static void find(const attention_layer *own, const tile *of, int64_t base, int64_t begin, int64_t end, space *in) {
    const attention_rules *rules = own->rules;
    int64_t block = rules->block_size, key_bytes = bytes_of(rules->key_number, rules->key_dim);
    int64_t value_bytes = bytes_of(rules->value_number, rules->value_dim);
    const char *keys = (const char *)own->keys + bytes_of(rules->key_number, of->head * rules->key_stride);
    const char *values = (const char *)own->values + bytes_of(rules->value_number, of->head * rules->value_stride);
    int64_t scales = of->head * rules->scale_stride;
    for (int64_t i = begin; i < end;) {
        int64_t inside = (base + i) % block, slot = of->span->blocks[(base + i) / block] * block + inside;
        int64_t stop = smaller(end, i + block - inside);
        for (; i < stop; i++, slot++) {
            in->keys[i] = keys + slot * key_bytes;
            in->values[i] = values + slot * value_bytes;
            if (scaled(rules->key_number)) {
                in->key_scales[i] = own->key_scales[scales + slot] * unit_of(rules->key_number);
                in->value_scales[i] = own->value_scales[scales + slot] * unit_of(rules->value_number);
            }
        }
    }
    for (int64_t i = begin / NEAR * NEAR; i < begin; i++)
        in->keys[i] = in->keys[begin];
    int64_t i = end;
    for (; i % NEAR; i++)
        in->keys[i] = in->keys[end - 1];
    for (int64_t next = 0; next < AHEAD; next++) { /* what is fetched behind them: the first values */
        in->keys[i + next] = in->values[smaller(begin + next, end - 1)];
        in->values[end + next] = in->values[end - 1];
    }
}

/* Products of all rows with keys [begin, end). */
static void score(const attention_rules *rules, const tile *of, int64_t begin, int64_t end, space *in) {
    int64_t room = filled(rules->key_dim), dim = in_lanes(rules->key_dim);
    int number = (int)rules->key_number, apart = dim != rules->key_dim || (number != FLOAT32 && of->rows > MOST_ROWS);
    for (int64_t i = begin / NEAR * NEAR; i < end; i += NEAR) {
        const void **keys = in->keys + i, *widened[NEAR];
        for (int k = 0; apart && k < NEAR; k++) {
            widened[k] = in->near_keys + k * room;
            widen(keys[k], number, rules->key_dim, dim, in->near_keys + k * room);
        }
        if (apart)
            near_products(in->queries, room, of->rows, dim, widened, FLOAT32, 0, in->scores + i);
        else
            near_by_number(in->queries, room, of->rows, dim, keys, number, in->scores + i);
    }
}

/* What the rules make of a row's products with keys [from, end); `distance` is that of the first of a split. */
static void bend(const attention_rules *rules, int64_t head, int64_t distance, int64_t from, int64_t end,
                        const space *in, float *scores) {
    int64_t begin = from / LANES * LANES;
    if (scaled(rules->key_number))
        for (int64_t i = begin; i < end; i += LANES)
            v_store(scores + i, v_mul(v_load(scores + i), v_load(in->key_scales + i)));
    if (rules->soft_cap != 0)
        for (int64_t i = begin; i < end; i += LANES) {
            vec capped = v_tanh(v_div(v_load(scores + i), v_set(rules->soft_cap)));
            v_store(scores + i, v_mul(capped, v_set(rules->soft_cap)));
        }
    if (rules->slopes)
        for (int64_t i = from; i < end; i++)
            scores[i] += rules->slopes[head] * (float)(i - distance);
}

/* A mixture of rows, each of values [from, end), which go up with the rows. */
static void mix_ragged(const float *shares, const void **values, const int64_t *from, const int64_t *end, int rows,
                              int64_t dim, int number, float *sums, int64_t row) {
    int64_t low = from[rows - 1], high = end[0];
    int fresh = from[0] == low;
    if (low >= high) {
        for (int r = 0; r < rows; r++)
            mix(shares + r * SPLIT, values, from[r], end[r], dim, number, 1, 1, sums + r * row, row);
        return;
    }
    for (int r = 0; !fresh && r < rows; r++)
        mix(shares + r * SPLIT, values, from[r], low, dim, number, 1, 1, sums + r * row, row);
    mix(shares, values, low, high, dim, number, rows, fresh, sums, row);
    for (int r = 1; r < rows; r++)
        if (end[r] > high)
            mix(shares + r * SPLIT, values, high, end[r], dim, number, 1, 0, sums + r * row, row);
}

/* What a row sees of positions base + [begin, end): from and end, end ≤ from if nothing. */
static void seen_by(const attention_rules *rules, const tile *of, int64_t row, int64_t base, int64_t *from,
                    int64_t *end) {
    int64_t position = of->span->position + of->offset + row / of->group;
    *from = larger(0, first_seen(rules, position) - base);
    *end = smaller(SPLIT, position + 1 - base);
}

/* The values of [begin, end) as they are multiplied; returns their number. */
static int values_of(const attention_rules *rules, const tile *of, int64_t begin, int64_t end, space *in) {
    int64_t room = filled(rules->value_dim), dim = in_lanes(rules->value_dim);
    int number = (int)rules->value_number;
    if (dim == rules->value_dim && (number == FLOAT32 || of->rows <= MOST_ROWS))
        return number;
    for (int64_t i = begin; i < end; i++) {
        widen(in->values[i], number, rules->value_dim, dim, in->wide_values + i * room);
        in->values[i] = in->wide_values + i * room;
    }
    return FLOAT32;
}

/* Of each row of a tile what a split comes to: own, largest and total of `in`. */
static void attend_split(const attention_layer *own, const tile *of, int64_t split, space *in, float *sums,
                                float *largest, float *total) {
    const attention_rules *rules = own->rules;
    int64_t base = split * SPLIT, room = filled(rules->value_dim), from, end, begin, last;
    seen_by(rules, of, 0, base, &begin, &last);
    seen_by(rules, of, of->rows - 1, base, &from, &last);
    find(own, of, base, begin, last, in);
    score(rules, of, begin, last, in);
    for (int64_t row = 0; row < of->rows; row++) {
        float *scores = in->scores + row * SPLIT;
        seen_by(rules, of, row, base, &from, &end);
        if (end <= from)
            continue;
        int64_t position = of->span->position + of->offset + row / of->group;
        bend(rules, of->head * of->group + row % of->group, position - base, from, end, in, scores);
        total[row] = share(scores, from, end, &largest[row]);
        if (scaled(rules->value_number))
            for (int64_t i = from / LANES * LANES; i < end; i += LANES)
                v_store(scores + i, v_mul(v_load(scores + i), v_load(in->value_scales + i)));
    }
    int number = values_of(rules, of, begin, last, in);
    for (int64_t row = 0; row < of->rows;) {
        int64_t froms[4], ends[4], left = of->rows - row;
        int rows = left >= MOST_ROWS ? MOST_ROWS : left >= 2 ? 2 : 1;
        for (int r = 0; r < rows; r++)
            seen_by(rules, of, row + r, base, &froms[r], &ends[r]);
        mix_ragged(in->scores + row * SPLIT, in->values, froms, ends, rows, in_lanes(rules->value_dim), number,
                   sums + row * room, room);
        row += rows;
    }
}

/* The result of one row, from the sums of all splits. */
static void finish(const attention_layer *own, const tile *of, int64_t row, float *sums, float largest,
                          float total) {
    const attention_rules *rules = own->rules;
    int64_t token = of->span->first + of->offset + row / of->group, head = of->head * of->group + row % of->group;
    int64_t dim = rules->value_dim, place = (token * rules->heads + head) * dim;
    float fading = 1;
    if (own->sinks) {
        float most = own->sinks[head] > largest ? own->sinks[head] : largest;
        fading = exp_of(largest - most);
        total = total * fading + exp_of(own->sinks[head] - most);
    }
    vec factor = v_set(fading), whole = v_set(total);
    for (int64_t d = 0; d < dim; d += LANES)
        v_store(sums + d, v_div(v_mul(v_load(sums + d), factor), whole));
    if (turns(rules->value_number))
        turn_back(sums, dim);
    if (rules->query_number == FLOAT32) {
        memcpy((float *)own->out + place, sums, dim * sizeof(float));
        return;
    }
    uint16_t *out = (uint16_t *)own->out + place, rest[LANES];
    for (int64_t d = 0; d < dim; d += LANES) {
        uint16_t *to = d + LANES <= dim ? out + d : rest;
        if (rules->query_number == FLOAT16)
            v_store_f16(to, v_load(sums + d));
        else
            v_store_bf16(to, v_load(sums + d));
        if (to == rest)
            memcpy(out + d, rest, (dim - d) * sizeof *rest);
    }
}

/* A tile of positions, all that they see. */
static void attend_tile(const attention_layer *own, const tile *of, space *in) {
    const attention_rules *rules = own->rules;
    int64_t position = of->span->position + of->offset, room = filled(rules->value_dim);
    int64_t last = (position + of->positions - 1) / SPLIT, begun = first_seen(rules, position) / SPLIT;
    float largest[2 * ROWS], total[2 * ROWS];
    for (int64_t split = begun; split <= last; split++) {
        attend_split(own, of, split, in, in->own, largest, total);
        for (int64_t row = 0; row < of->rows; row++) {
            int64_t from, end, at = position + row / of->group;
            seen_by(rules, of, row, split * SPLIT, &from, &end);
            if (from < end)
                join(in->sums + row * room, &in->largest[row], &in->total[row], in->own + row * room, largest[row],
                     total[row], in_lanes(rules->value_dim), split == first_seen(rules, at) / SPLIT);
        }
    }
    for (int64_t row = 0; row < of->rows; row++)
        finish(own, of, row, in->sums + row * room, in->largest[row], in->total[row]);
}

/* The span that a task belongs to. */
static int64_t span_of(const attention_layer *own, int64_t task) {
    const division *spans = work_of(own)->spans;
    int64_t low = 0, high = own->rules->spans;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (spans[middle].first_task <= task)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void attention_tile(const attention_layer *own, int64_t task) {
    const attention_rules *rules = own->rules;
    const work *divided = work_of(own);
    int64_t index = span_of(own, task), each = (divided->spans[index + 1].first_task - divided->spans[index].first_task);
    each /= rules->kv_heads;
    task -= divided->spans[index].first_task;
    const span *from = &rules->span[index];
    space in = space_of(own);
    tile of = {.span = from, .head = task / each, .group = group_of(rules)};
    if (divided->divided && from->size == 1) {
        of.positions = 1;
        of.rows = of.group;
        read_queries(own, &of, &in);
        float *part = divided->part + (divided->spans[index].first_part + task) * part_floats(rules);
        int64_t sums = of.group * filled(rules->value_dim);
        attend_split(own, &of, first_seen(rules, from->position) / SPLIT + task % each, &in, part, part + sums,
                     part + sums + of.group);
        return;
    }
    of.offset = (each - 1 - task % each) * divided->of_tile; /* the last see most: they come first */
    of.positions = smaller(divided->of_tile, from->size - of.offset);
    of.rows = of.positions * of.group;
    read_queries(own, &of, &in);
    attend_tile(own, &of, &in);
}

/* The splits of one head of a span that was divided. */
void attention_join(const attention_layer *own, int64_t task) {
    const attention_rules *rules = own->rules;
    const work *divided = work_of(own);
    int64_t index = task / rules->kv_heads, room = filled(rules->value_dim), group = group_of(rules);
    if (rules->span[index].size > 1)
        return;
    tile of = {.span = &rules->span[index], .head = task % rules->kv_heads, .positions = 1, .rows = group, .group = group};
    int64_t parts = (divided->spans[index + 1].first_part - divided->spans[index].first_part) / rules->kv_heads;
    const float *part = divided->part + (divided->spans[index].first_part + of.head * parts) * part_floats(rules);
    space in = space_of(own);
    for (int64_t split = 0; split < parts; split++, part += part_floats(rules))
        for (int64_t row = 0; row < group; row++)
            join(in.sums + row * room, &in.largest[row], &in.total[row], part + row * room, part[group * room + row],
                 part[group * (room + 1) + row], in_lanes(rules->value_dim), split == 0);
    for (int64_t row = 0; row < group; row++)
        finish(own, &of, row, in.sums + row * room, in.largest[row], in.total[row]);
}
