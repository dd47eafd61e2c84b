/* SPDX-License-Identifier: MIT */
#include "src/tools/replay_model/profile.h"

#include <stdlib.h>
#include <string.h>

#include "src/tools/replay_model/stranded.h"

/* --- Figures. --- */

static uint64_t bounded(stranded_sum sum)
{
    return sum > PROFILE_MOST ? PROFILE_MOST : (uint64_t)sum;
}

static void add(struct profile_figures *to, const struct profile_figures *from)
{
    for (size_t i = 0; i < PROFILE_FIGURES; i++)
        to->of[i] = bounded((stranded_sum)to->of[i] + from->of[i]);
}

/* Bytes on average, rounded down. */
static uint64_t average(const struct stranded *sums, stranded_sum sum)
{
    return bounded(sum / sums->duration_us);
}

/* --- The figures of a recording. --- */

/* What all of a device comes to: over its course, and at its peak. */
struct figures {
    struct stranded over, peak;
};

static bool open_course(struct course *course, const struct recording *recording,
                        const struct recording_device *device, const struct profile_rules *rules)
{
    if (rules->at_end || device->event_count == 0)
        return course_init_at_end(course, recording, device);
    if (!course_init(course, recording, device))
        return false;
    if (rules->by_events)
        course_count_events(course);
    return true;
}

/* The state behind so many events: sums of one microsecond, which are bytes. */
static bool look_at(struct stranded *out, struct course *course, const struct sites *sites,
                    size_t event)
{
    while (course->at < event && course_step(course))
        ;
    if (course->lacks_memory || !stranded_init(out, course, sites->count, sites_of, sites))
        return false;
    stranded_finish(out, out->began_us + 1);
    if (!out->lacks_memory)
        return true;
    stranded_fini(out);
    return false;
}

static bool find_figures(struct figures *out, struct profile *profile, const struct sites *sites,
                         const struct recording_device *device, const struct profile_rules *rules)
{
    struct course course;
    bool fine;

    if (!open_course(&course, sites->recording, device, rules))
        return false;
    profile->left_out = course.left_out;
    profile->dropped = course.dropped;
    fine = stranded_play(&out->over, &course, sites->count, sites_of, sites);
    course_fini(&course);
    if (!fine)
        return false;
    fine = open_course(&course, sites->recording, device, rules);
    if (fine) {
        fine = look_at(&out->peak, &course, sites, out->over.peak.event);
        course_fini(&course);
    }
    if (!fine)
        stranded_fini(&out->over);
    return fine;
}

/* --- Sites by name. --- */

static int compare_names(const void *left, const void *right)
{
    const struct profile_site *a = left, *b = right;

    return strcmp(a->name, b->name);
}

/* Put the sites in order, and make one of those with equal names. */
static void sort(struct profile *profile)
{
    struct profile_site *sites = profile->sites;
    size_t count = 0;

    if (profile->site_count > 0)
        qsort(sites, profile->site_count, sizeof(*sites), compare_names);
    for (size_t i = 0; i < profile->site_count; i++) {
        if (count > 0 && strcmp(sites[count - 1].name, sites[i].name) == 0) {
            add(&sites[count - 1].figures, &sites[i].figures);
            free(sites[i].name);
        } else {
            sites[count++] = sites[i];
        }
    }
    profile->site_count = count;
}

static bool add_sites(struct profile *profile, const struct sites *sites,
                      const struct figures *figures)
{
    profile->sites = malloc((sites->count + (size_t)1) * sizeof(*profile->sites));
    for (uint32_t i = 0; profile->sites && i < sites->count; i++) {
        const struct stranded_site *over = &figures->over.sites[i], *peak = &figures->peak.sites[i];
        struct profile_site *site = &profile->sites[profile->site_count];

        if (over->blocks == 0)
            continue;
        *site = (struct profile_site){
            .name = sites_name(sites, i),
            .figures = {{bounded(peak->live), bounded(peak->stranded),
                         average(&figures->over, over->live),
                         average(&figures->over, over->stranded), bounded(over->blocks),
                         bounded(over->lived_us)}},
        };
        if (!site->name)
            return false;
        profile->site_count++;
    }
    return profile->sites;
}

/* Pending and idle memory, and all of it.  What rounding took of other averages is idle. */
static void add_rest(struct profile *profile, const struct figures *figures)
{
    const struct stranded *over = &figures->over, *peak = &figures->peak;
    const uint64_t reserved = average(over, over->reserved);
    stranded_sum others;

    profile->pending.of[PROFILE_PEAK_CACHED] = bounded(peak->pending + peak->beside);
    profile->pending.of[PROFILE_CACHED] = average(over, over->pending + over->beside);
    profile->whole = profile->pending;
    for (size_t i = 0; i < profile->site_count; i++)
        add(&profile->whole, &profile->sites[i].figures);
    others = (stranded_sum)profile->whole.of[PROFILE_LIVE] + profile->whole.of[PROFILE_CACHED];
    profile->idle.of[PROFILE_PEAK_CACHED] = bounded(peak->idle);
    profile->idle.of[PROFILE_CACHED] = reserved > others ? reserved - (uint64_t)others : 0;
    add(&profile->whole, &profile->idle);
}

bool profile_init(struct profile *profile, const struct recording *recording,
                  const struct recording_device *device, const struct profile_rules *rules)
{
    struct sites sites;
    struct figures figures;
    bool fine;

    *profile = (struct profile){
        .events = device->event_count, .lost = device->lost, .no_room = device->left_out};
    if (!sites_init(&sites, recording, rules->by, rules->depth))
        return false;
    if (!find_figures(&figures, profile, &sites, device, rules)) {
        sites_fini(&sites);
        return false;
    }
    fine = add_sites(profile, &sites, &figures);
    if (fine) {
        sort(profile);
        add_rest(profile, &figures);
    } else {
        profile_fini(profile);
    }
    stranded_fini(&figures.over);
    stranded_fini(&figures.peak);
    sites_fini(&sites);
    return fine;
}

void profile_fini(struct profile *profile)
{
    for (size_t i = 0; i < profile->site_count; i++)
        free(profile->sites[i].name);
    free(profile->sites);
    *profile = (struct profile){0};
}

/* --- Sums of profiles. --- */

/* Sites of `from` that `to` does not have, as copies.  Returns false without host memory: there are none then. */
static bool copy_new(const struct profile *to, const struct profile *from, struct profile *out)
{
    size_t at = 0;

    *out = (struct profile){.sites = malloc((from->site_count + 1) * sizeof(*out->sites))};
    if (!out->sites)
        return false;
    for (size_t i = 0; i < from->site_count; i++) {
        const struct profile_site *site = &from->sites[i];

        while (at < to->site_count && strcmp(to->sites[at].name, site->name) < 0)
            at++;
        if (at < to->site_count && strcmp(to->sites[at].name, site->name) == 0)
            continue;
        out->sites[out->site_count] = (struct profile_site){.name = strdup(site->name)};
        if (!out->sites[out->site_count].name) {
            profile_fini(out);
            return false;
        }
        out->site_count++;
    }
    return true;
}

/* Add sites whose names are others. */
static bool join(struct profile *to, struct profile *more)
{
    const size_t count = to->site_count + more->site_count;
    struct profile_site *sites = realloc(to->sites, (count + 1) * sizeof(*sites));

    if (!sites) {
        profile_fini(more);
        return false;
    }
    memcpy(sites + to->site_count, more->sites, more->site_count * sizeof(*sites));
    free(more->sites);
    to->sites = sites;
    to->site_count = count;
    sort(to);
    return true;
}

bool profile_add(struct profile *to, const struct profile *from)
{
    struct profile more;
    size_t at = 0;

    if (!copy_new(to, from, &more))
        return false;
    if (more.site_count == 0)
        profile_fini(&more);
    else if (!join(to, &more))
        return false;
    for (size_t i = 0; i < from->site_count; i++) {
        while (strcmp(to->sites[at].name, from->sites[i].name) != 0)
            at++;
        add(&to->sites[at].figures, &from->sites[i].figures);
    }
    add(&to->pending, &from->pending);
    add(&to->idle, &from->idle);
    add(&to->whole, &from->whole);
    to->events = bounded((stranded_sum)to->events + from->events);
    to->lost = bounded((stranded_sum)to->lost + from->lost);
    to->no_room = bounded((stranded_sum)to->no_room + from->no_room);
    to->dropped.blocks += from->dropped.blocks;
    to->dropped.bytes += from->dropped.bytes;
    to->left_out = bounded((stranded_sum)to->left_out + from->left_out);
    return true;
}
