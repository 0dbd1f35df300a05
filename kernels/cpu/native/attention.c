/* See attention.h: how a layer's work is divided among threads. */
#include "attention_work.h"

#include <stddef.h>

#define TASKS_EACH 4 /* of a thread, below which spans that decode are divided by splits */

static int64_t lines(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

static int64_t tile_positions(const attention_rules *rules) { return larger(1, ROWS / group_of(rules)); }

static int64_t splits(const attention_rules *rules, const span *of) {
    return of->position / SPLIT - first_seen(rules, of->position) / SPLIT + 1;
}

static int64_t workspace_bytes(const attention_rules *rules) {
    int64_t rows = larger(ROWS, group_of(rules)), keys = filled(rules->key_dim), values = filled(rules->value_dim);
    int64_t floats = rows * (keys + SPLIT + 2 * values + 2) + NEAR * keys + SPLIT * values + 2 * SPLIT;
    return lines(4 * floats + 2 * (SPLIT + NEAR + AHEAD) * (int64_t)sizeof(void *));
}

/* How many tasks there are, if spans that decode are divided, or not; where `spans` is given it is filled in. */
static void divide(const attention_rules *rules, work *own, division *spans) {
    own->tasks = own->parts = 0;
    for (int64_t index = 0; index < rules->spans; index++) {
        const span *of = &rules->span[index];
        if (spans)
            spans[index] = (division){own->tasks, own->parts};
        if (own->divided && of->size == 1) {
            own->tasks += rules->kv_heads * splits(rules, of);
            own->parts += rules->kv_heads * splits(rules, of);
        } else {
            own->tasks += rules->kv_heads * ((of->size + own->of_tile - 1) / own->of_tile);
        }
    }
    if (spans)
        spans[rules->spans] = (division){own->tasks, own->parts};
}

static work plan(const attention_rules *rules, int64_t threads) {
    work own = {.of_tile = tile_positions(rules), .workspace = workspace_bytes(rules)};
    divide(rules, &own, NULL);
    if (threads > 1 && own.tasks < TASKS_EACH * threads) {
        own.divided = 1;
        divide(rules, &own, NULL);
    }
    return own;
}

int64_t attention_bytes(const attention_rules *rules, int64_t threads) {
    work own = plan(rules, threads);
    return lines(sizeof(work)) + lines((rules->spans + 1) * (int64_t)sizeof(division)) +
           lines(own.parts * part_floats(rules) * 4) + threads * own.workspace;
}

static void tile_task(void *own, int index, int count) {
    (void)count;
    attention_tile(own, index);
}

static void join_task(void *own, int index, int count) {
    (void)count;
    attention_join(own, index);
}

int attention_phases(attention_layer *own, phase *phases) {
    const attention_rules *rules = own->rules;
    work *made = work_of(own);
    *made = plan(rules, own->threads);
    char *at = own->memory + lines(sizeof(work));
    made->spans = (division *)at;
    divide(rules, made, made->spans);
    at += lines((rules->spans + 1) * (int64_t)sizeof(division));
    made->part = (float *)at;
    made->workspaces = at + lines(made->parts * part_floats(rules) * 4);
    phases[0] = (phase){tile_task, own, (int)made->tasks};
    phases[1] = (phase){join_task, own, (int)(rules->spans * rules->kv_heads)};
    return made->parts ? 2 : 1;
}

void attention_run(pool *threads, attention_layer *own) {
    phase phases[2];
    int count = attention_phases(own, phases);
    pool_run_phases(threads, phases, count);
}
