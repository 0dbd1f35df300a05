/* One pool of threads a process: a step's work as phases, one after the other, each of tasks for whoever is free. */
#ifndef THREADS_H
#define THREADS_H

typedef void (*task_fn)(void *arg, int index, int count);

typedef struct {
    task_fn run; /* called once for each index below `count`, by any thread, at any time of its phase */
    void *arg;
    int count; /* at least 1 */
} phase;

typedef struct pool pool;

/* `threads` with the caller; NULL if there is no memory or no thread. Not before a fork. */
pool *pool_create(int threads);
/* Ends the threads; none of them may be at work. */
void pool_destroy(pool *own);
int pool_threads(const pool *own);
/* 0 of who called pool_run…, else 1 and on: of the running task, for memory of a thread's own. */
int pool_thread(void);

/* All tasks of all phases; none of a phase begins before all of the one before it are done. One caller at a time. */
void pool_run_phases(pool *own, const phase *phases, int count);
/* One phase of as many tasks as there are threads. */
void pool_run(pool *own, task_fn run, void *arg);

/* A step begins: threads wait for its work awake. It has ended: they sleep. */
void pool_wake(pool *own);
void pool_park(pool *own);

#endif
