/* What the parts of attention have in common, and what they give each other. */
#ifndef ATTENTION_WORK_H
#define ATTENTION_WORK_H

#include "attention.h"

#define LINE 64  /* bytes of a cache line */
#define ROWS 64  /* queries of heads that share keys, of a tile */
#define NEAR 16  /* keys whose products are taken together; a multiple of what a tile of any vector has */
#define AHEAD 64 /* keys that are fetched before they are multiplied */
#define WIDE 16  /* the lanes of the widest vector: rows of numbers are filled up to a multiple */
#define LEAST_EXP (-87.0f) /* below it e^x is 0 */

void attention_tile(const attention_layer *own, int64_t task);
void attention_join(const attention_layer *own, int64_t task);

/* How a layer's work is divided: at the begin of its memory, followed by an entry of each span, by parts of spans that
 * are divided by splits, and by a workspace for each thread. */
typedef struct {
    int64_t first_task, first_part; /* of a span; the entry behind the last has how many there are */
} division;

typedef struct {
    int64_t tasks, parts;
    int64_t divided; /* spans of one token have a task for each of their splits */
    int64_t of_tile; /* positions that are computed together */
    int64_t workspace; /* bytes of one thread's */
    division *spans;
    float *part; /* of a split: group × (value_dim, filled up), then largest scores, then sums */
    char *workspaces;
} work;

static inline int64_t filled(int64_t number) { return (number + WIDE - 1) / WIDE * WIDE; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t group_of(const attention_rules *rules) { return rules->heads / rules->kv_heads; }

static inline int64_t first_seen(const attention_rules *rules, int64_t position) {
    int64_t first = rules->window ? larger(0, position - rules->window + 1) : 0;
    return rules->chunk ? larger(first, position / rules->chunk * rules->chunk) : first;
}

static inline int64_t part_floats(const attention_rules *rules) {
    return group_of(rules) * (filled(rules->value_dim) + 2) + WIDE;
}

static inline work *work_of(const attention_layer *own) { return (work *)own->memory; }

#endif
