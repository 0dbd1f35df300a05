/* See threads.h. Who writes what:
 *
 *   signal     all: one more at whatever a sleeper may wait for; sleepers wait on it by futex
 *   sleepers   who sleeps, or is about to
 *   awake      the caller: waiting threads spin before they sleep
 *   region     the caller: odd while there is work; a thread takes part only if it has counted itself in `inside` and
 *              then still found the region open. The caller closes it and waits for `inside` to become 0, so that
 *              nobody reads phases that are gone
 *   taken, finished   of the phase that is on, `turn`: the next task, and how many are done. taken holds the turn in its
 *              upper half, so that who comes late takes no task of a phase that it has not looked at
 *
 * Work is taken, not dealt: a thread that the kernel lets wait holds up nobody unless it is within a task. Outputs are
 * divided among tasks and sums never are, so that no bit depends on who does what.
 *
 * Beside busy neighbours a thread may be sent away in the middle of a task, and all wait for it. Where the caller has
 * waited so for STALL_NS and longer than its own tasks took (those of a long prompt take milliseconds), it is `alone`:
 * others leave the region and take no task for ALONE times as long as it waited. Then they come back, into the same
 * region where that is still on: a step is one, and may be much longer. Where they do not run again before they were
 * there for WORTH times as long as it waits, it is alone twice as long as the last time. So a machine with more to do
 * than it has cores sees one thread of ours, which waits for nobody; a process that woke for a moment, as a frontend does
 * for a token, costs a moment; and a core that is another's for a fifth of the time, as a virtual one may be, is used for
 * the rest of it.
 *
 * A wait spins for SPIN_NS where a step is on, then gives the core away some times; where that takes long, others want
 * it, and the thread sleeps. */
#define _GNU_SOURCE
#include "threads.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 50000
#define YIELD_NS 1000000 /* so long it gives the core away, again and again, before it sleeps */
#define BUSY_NS 20000    /* a core that comes back later than this was another's */
#define STALL_NS 500000  /* who holds a task for so much longer than others take does not run */
#define LONGER 2         /* times as long as the longest task so far another one may take */
#define ALONE 1          /* times as long as it waited the caller goes on alone at first */
#define WORTH 4          /* times as long as it waited the caller had others: they are worth it */
#define MOST_ALONE_NS 1600000000
#define LINE 64

struct pool {
    int threads;
    pthread_t *handles;
    const phase *phases;
    int count;
    _Alignas(LINE) _Atomic uint32_t signal;
    _Atomic int sleepers;      /* for tasks, or until all have left */
    _Atomic int idle_sleepers; /* for a region */
    _Atomic int alone;
    int64_t alone_until, alone_ns; /* the caller's */
    int64_t longest_ns;            /* likewise: of its tasks in this region */
    _Atomic int awake;
    _Atomic int stopping;
    _Alignas(LINE) _Atomic uint32_t region;
    _Alignas(LINE) _Atomic int inside;
    _Alignas(LINE) _Atomic uint64_t taken;
    _Alignas(LINE) _Atomic int finished;
    _Alignas(LINE) _Atomic int turn;
};

struct start {
    pool *own;
    int number;
};

static _Thread_local int thread_number;

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static void tell(pool *own, _Atomic int *sleepers) {
    if (atomic_load(sleepers) == 0)
        return;
    atomic_fetch_add(&own->signal, 1);
    syscall(SYS_futex, &own->signal, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* What is waited for. Each is looked at again after `sleepers` was raised, and whoever brings it about looks at
 * `sleepers` after that: one of the two sees the other. */
enum wait { WORK, TASKS, LEFT }; /* behind region `value`; behind phase `value`; nobody is inside */

static int came(pool *own, enum wait what, uint32_t value) {
    uint32_t region;
    switch (what) {
    case WORK:
        region = atomic_load(&own->region);
        return (region & 1 && region != value && !atomic_load(&own->alone)) || atomic_load(&own->stopping);
    case TASKS: return (uint32_t)atomic_load(&own->turn) != value;
    case LEFT: return atomic_load(&own->inside) == 0;
    }
    return 1;
}

static void sleep_until(pool *own, enum wait what, uint32_t value) {
    _Atomic int *sleepers = what == WORK ? &own->idle_sleepers : &own->sleepers;
    atomic_fetch_add(sleepers, 1);
    for (;;) {
        uint32_t seen = atomic_load(&own->signal);
        if (came(own, what, value))
            break;
        syscall(SYS_futex, &own->signal, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        if (what == WORK && atomic_load(&own->awake))
            break; /* a step begins: wait for its work awake */
    }
    atomic_fetch_sub(sleepers, 1);
}

static void wait_until(pool *own, enum wait what, uint32_t value) {
    while (!came(own, what, value)) {
        int64_t begin = now_ns(), now = begin;
        int spins = what != WORK || atomic_load(&own->awake);
        for (int round = 1; spins && now - begin < SPIN_NS; round++) {
            relax();
            if (came(own, what, value))
                return;
            if (round % 16 == 0)
                now = now_ns();
        }
        while (spins && now - begin < YIELD_NS) {
            sched_yield();
            if (came(own, what, value))
                return;
            int64_t back = now_ns();
            if (back - now > BUSY_NS || (what == WORK && !atomic_load(&own->awake)))
                break;
            now = back;
        }
        sleep_until(own, what, value);
    }
}

/* The caller has no task of a phase that is not done. */
static void wait_for_others(pool *own, int turn) {
    if (came(own, TASKS, turn))
        return;
    int64_t begin = now_ns();
    wait_until(own, TASKS, turn);
    int64_t now = now_ns(), waited = now - begin, together = begin - own->alone_until;
    if (waited < STALL_NS + LONGER * own->longest_ns || atomic_load(&own->alone))
        return;
    own->alone_ns = together < WORTH * waited ? 2 * own->alone_ns : ALONE * waited;
    if (own->alone_ns > MOST_ALONE_NS)
        own->alone_ns = MOST_ALONE_NS;
    own->alone_until = now + own->alone_ns;
    atomic_store(&own->alone, 1);
}

static void run_task(pool *own, const phase *on, int task) {
    if (thread_number) {
        on->run(on->arg, task, on->count);
        return;
    }
    int64_t begin = now_ns();
    on->run(on->arg, task, on->count);
    int64_t took = now_ns() - begin;
    if (took > own->longest_ns)
        own->longest_ns = took;
}

/* Where the caller was alone for long enough the others come back. */
static void look_at_alone(pool *own) {
    if (atomic_load(&own->alone) && now_ns() >= own->alone_until) {
        atomic_store(&own->alone, 0);
        tell(own, &own->idle_sleepers);
    }
}

/* All tasks that are left of all phases from the one that is on; 0 if the caller wants to be alone before that. */
static int work(pool *own) {
    int turn = atomic_load(&own->turn);
    while (turn < own->count) {
        if (!thread_number)
            look_at_alone(own);
        else if (atomic_load(&own->alone))
            return 0;
        const phase *on = &own->phases[turn];
        uint64_t ticket = atomic_load(&own->taken);
        while ((int)(ticket >> 32) == turn && (int)(uint32_t)ticket < on->count) {
            if (thread_number && atomic_load(&own->alone))
                return 0;
            if (!atomic_compare_exchange_weak(&own->taken, &ticket, ticket + 1))
                continue;
            run_task(own, on, (int)(uint32_t)ticket);
            if (atomic_fetch_add(&own->finished, 1) + 1 == on->count) {
                atomic_store(&own->finished, 0);
                atomic_store(&own->taken, (uint64_t)(turn + 1) << 32);
                atomic_store(&own->turn, turn + 1);
                tell(own, &own->sleepers);
            }
            ticket = atomic_load(&own->taken);
        }
        if (thread_number)
            wait_until(own, TASKS, turn);
        else
            wait_for_others(own, turn);
        turn = atomic_load(&own->turn);
    }
    return 1;
}

static void *serve(void *given) {
    struct start start = *(struct start *)given;
    pool *own = start.own;
    free(given);
    thread_number = start.number;
    for (uint32_t region = 0;;) {
        wait_until(own, WORK, region);
        if (atomic_load(&own->stopping))
            return NULL;
        atomic_fetch_add(&own->inside, 1);
        region = atomic_load(&own->region);
        if (region & 1 && !work(own))
            region = 0; /* it may come back */
        if (atomic_fetch_sub(&own->inside, 1) == 1)
            tell(own, &own->sleepers);
    }
}

static int add_thread(pool *own, int number) {
    struct start *start = malloc(sizeof *start);
    if (start == NULL)
        return 0;
    *start = (struct start){own, number};
    if (pthread_create(&own->handles[number], NULL, serve, start) == 0)
        return 1;
    free(start);
    return 0;
}

pool *pool_create(int threads) {
    pool *own = aligned_alloc(LINE, (sizeof *own + LINE - 1) / LINE * LINE);
    if (own == NULL)
        return NULL;
    *own = (pool){.threads = threads};
    own->handles = calloc(threads, sizeof *own->handles);
    if (own->handles == NULL) {
        free(own);
        return NULL;
    }
    sigset_t all, before; /* signals are for the thread that made us */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int made = 1;
    while (made < threads && add_thread(own, made))
        made++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (made < threads) {
        own->threads = made;
        pool_destroy(own);
        return NULL;
    }
    return own;
}

void pool_destroy(pool *own) {
    atomic_store(&own->stopping, 1);
    tell(own, &own->idle_sleepers);
    for (int number = 1; number < own->threads; number++)
        pthread_join(own->handles[number], NULL);
    free(own->handles);
    free(own);
}

int pool_threads(const pool *own) { return own->threads; }

int pool_thread(void) { return thread_number; }

static void run_alone(const phase *phases, int count) {
    for (int turn = 0; turn < count; turn++)
        for (int task = 0; task < phases[turn].count; task++)
            phases[turn].run(phases[turn].arg, task, phases[turn].count);
}

void pool_run_phases(pool *own, const phase *phases, int count) {
    if (own->threads == 1) {
        run_alone(phases, count);
        return;
    }
    own->phases = phases;
    own->count = count;
    own->longest_ns = 0;
    atomic_store(&own->finished, 0);
    atomic_store(&own->taken, 0);
    atomic_store(&own->turn, 0);
    atomic_fetch_add(&own->region, 1);
    if (!atomic_load(&own->alone))
        tell(own, &own->idle_sleepers);
    work(own);
    atomic_fetch_add(&own->region, 1);
    wait_until(own, LEFT, 0);
}

void pool_run(pool *own, task_fn run, void *arg) {
    phase only = {run, arg, own->threads};
    pool_run_phases(own, &only, 1);
}

void pool_wake(pool *own) {
    atomic_store(&own->awake, 1);
    if (!atomic_load(&own->alone))
        tell(own, &own->idle_sleepers);
}

void pool_park(pool *own) { atomic_store(&own->awake, 0); }
