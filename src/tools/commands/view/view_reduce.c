/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/view/view_reduce.h"

#include <stdlib.h>

/* The state of making a history smaller; moments are those before. */
struct reduction {
    struct view_lives *lives;
    uint32_t *
        moment_of; /* [event_count + 2]: the new moment of each, or of the last that stays before it */
    int64_t *change; /* [event_count + 1]: of the bytes of summed lives */
};

static double weight_of(const struct view_life *life)
{
    return (double)life->bytes * (life->died - life->born);
}

static int compare_weights(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;

    return (a < b) - (a > b);
}

/* The least weight that stays, and how many of that weight do.  Returns false without host memory. */
static bool find_least(const struct view_lives *lives, size_t most, double *least, size_t *ties)
{
    double *weights = malloc(lives->life_count * sizeof(*weights));

    if (!weights)
        return false;
    for (size_t i = 0; i < lives->life_count; i++)
        weights[i] = weight_of(&lives->lives[i]);
    qsort(weights, lives->life_count, sizeof(*weights), compare_weights);
    *least = weights[most - 1];
    *ties = 0;
    for (size_t i = most; i-- > 0 && weights[i] == *least;)
        ++*ties;
    free(weights);
    return true;
}

/* Only lives that stay are left in the array; the others are in `change`, and their events are marked. */
static void take_out(struct reduction *reduction, double least, size_t ties)
{
    struct view_lives *lives = reduction->lives;
    const uint32_t end = (uint32_t)lives->event_count + 1;
    size_t count = 0;

    for (size_t i = 0; i < lives->life_count; i++) {
        const struct view_life life = lives->lives[i];
        const double weight = weight_of(&life);

        if (weight > least || (weight == least && ties > 0)) {
            ties -= weight == least;
            lives->lives[count++] = life;
            continue;
        }
        reduction->change[life.born] += (int64_t)life.bytes;
        if (life.died < end)
            reduction->change[life.died] -= (int64_t)life.bytes;
        reduction->moment_of[life.born] = 1;
        reduction->moment_of[life.freed] = 1;
        reduction->moment_of[life.died] = 1;
    }
    lives->summed_count = lives->life_count - count;
    lives->life_count = count;
}

/* Number the events that stay; marks of the others become the moment before them. */
static void number(struct reduction *reduction)
{
    struct view_lives *lives = reduction->lives;
    const size_t end = lives->event_count + 1;
    int64_t sum = reduction->change[0];
    uint32_t count = 0;

    reduction->moment_of[0] = 0;
    lives->summed[0] = (uint64_t)sum;
    for (size_t moment = 1; moment < end; moment++) {
        sum += reduction->change[moment];
        if (!reduction->moment_of[moment]) {
            lives->events[count++] = lives->events[moment - 1];
            lives->summed[count] = (uint64_t)sum;
        } else if ((uint64_t)sum > lives->summed[count]) {
            lives->summed[count] = (uint64_t)sum;
        }
        reduction->moment_of[moment] = count;
    }
    reduction->moment_of[end] = count + 1;
    lives->event_count = count;
}

static void renumber(struct reduction *reduction)
{
    struct view_lives *lives = reduction->lives;

    for (size_t i = 0; i < lives->life_count; i++) {
        struct view_life *life = &lives->lives[i];

        life->born = reduction->moment_of[life->born];
        life->freed = reduction->moment_of[life->freed];
        life->died = reduction->moment_of[life->died];
    }
    for (size_t i = 0; i < lives->span_count; i++) {
        lives->spans[i].born = reduction->moment_of[lives->spans[i].born];
        lives->spans[i].died = reduction->moment_of[lives->spans[i].died];
    }
}

bool view_lives_reduce(struct view_lives *lives, size_t most_lives)
{
    struct reduction reduction = {.lives = lives};
    double least = 0;
    size_t ties = 0;
    bool fine;

    if (lives->life_count <= most_lives)
        return true;
    reduction.moment_of = calloc(lives->event_count + 2, sizeof(*reduction.moment_of));
    reduction.change = calloc(lives->event_count + 1, sizeof(*reduction.change));
    lives->summed = calloc(lives->event_count + 1, sizeof(*lives->summed));
    fine = reduction.moment_of && reduction.change && lives->summed &&
           find_least(lives, most_lives, &least, &ties);
    if (fine) {
        take_out(&reduction, least, ties);
        number(&reduction);
        renumber(&reduction);
    }
    free(reduction.moment_of);
    free(reduction.change);
    return fine;
}
