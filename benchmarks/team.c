/* SPDX-License-Identifier: MIT */
#include "benchmarks/team.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "benchmarks/measure.h"

struct member {
    struct team *team;
    void *self;
    uint64_t began, ended;
};

static void *run_member(void *self)
{
    struct member *member = self;
    struct team *team = member->team;

    (void)atomic_fetch_add(&team->ready, 1);
    while (atomic_load(&team->ready) < team->count)
        (void)sched_yield();
    member->began = measure_now();
    (void)team->work(member->self, team->steps);
    member->ended = measure_now();
    return NULL;
}

uint64_t team_run(void *self, uint64_t count)
{
    struct team *team = self;
    struct member members[TEAM_MAX];
    pthread_t threads[TEAM_MAX];
    uint64_t began = UINT64_MAX, ended = 0;

    team->steps = count;
    atomic_store(&team->ready, 0);
    for (unsigned i = 0; i < team->count; i++) {
        members[i] = (struct member){team, team->self[i], 0, 0};
        if (pthread_create(&threads[i], NULL, run_member, &members[i]) != 0) {
            (void)fprintf(stderr, "pthread_create failed\n");
            exit(3);
        }
    }
    for (unsigned i = 0; i < team->count; i++) {
        (void)pthread_join(threads[i], NULL);
        began = members[i].began < began ? members[i].began : began;
        ended = members[i].ended > ended ? members[i].ended : ended;
    }
    return ended - began;
}
