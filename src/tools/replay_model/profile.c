/* SPDX-License-Identifier: MIT */
#include "src/tools/replay_model/profile.h"

#include <stdlib.h>
#include <string.h>

#include "src/tools/replay_model/fragmentation.h"

/* --- Figures. --- */

static uint64_t saturate(fragmentation_sum sum)
{
    return sum > PROFILE_MAX ? PROFILE_MAX : (uint64_t)sum;
}

void profile_figures_add(struct profile_figures *to, const struct profile_figures *from)
{
    for (size_t i = 0; i < PROFILE_FIGURES; i++)
        to->of[i] = saturate((fragmentation_sum)to->of[i] + from->of[i]);
}

/* Compute the average in bytes, rounded down. */
static uint64_t average(const struct fragmentation *sums, fragmentation_sum sum)
{
    return saturate(sum / sums->duration_us);
}

/* --- The figures of a recording. --- */

/* The figures of a device: over time, and at the peak. */
struct figures {
    struct fragmentation over, peak;
};

static bool open_model(struct replay_model *model, const struct recording *recording,
                       const struct recording_device *device, const struct profile_rules *rules)
{
    if (rules->at_end || device->event_count == 0)
        return replay_model_init_at_end(model, recording, device);
    if (!replay_model_init(model, recording, device))
        return false;
    if (rules->by_events)
        replay_model_count_events(model);
    return true;
}

/* Compute the state after `event` events: sums over one microsecond, which are bytes. */
static bool find_state(struct fragmentation *out, struct replay_model *model,
                       const struct sites *sites, size_t event)
{
    while (model->at < event && replay_model_step(model))
        ;
    if (model->out_of_memory || !fragmentation_init(out, model, sites->count, sites_of, sites))
        return false;
    fragmentation_finish(out, out->began_us + 1);
    if (!out->out_of_memory)
        return true;
    fragmentation_fini(out);
    return false;
}

static bool find_figures(struct figures *out, struct profile *profile, const struct sites *sites,
                         const struct recording_device *device, const struct profile_rules *rules)
{
    struct replay_model model;
    bool success;

    if (!open_model(&model, sites->recording, device, rules))
        return false;
    profile->omitted = model.omitted;
    profile->dropped = model.dropped;
    success = fragmentation_play(&out->over, &model, sites->count, sites_of, sites);
    replay_model_fini(&model);
    if (!success)
        return false;
    success = open_model(&model, sites->recording, device, rules);
    if (success) {
        success = find_state(&out->peak, &model, sites, out->over.peak.event);
        replay_model_fini(&model);
    }
    if (!success)
        fragmentation_fini(&out->over);
    return success;
}

/* --- Sites by name. --- */

static int compare_names(const void *first, const void *second)
{
    const struct profile_site *a = first, *b = second;

    return strcmp(a->name, b->name);
}

/* Sort the sites, and merge sites with equal names. */
static void sort_sites(struct profile *profile)
{
    struct profile_site *sites = profile->sites;
    size_t count = 0;

    if (profile->site_count > 0)
        qsort(sites, profile->site_count, sizeof(*sites), compare_names);
    for (size_t i = 0; i < profile->site_count; i++) {
        if (count > 0 && strcmp(sites[count - 1].name, sites[i].name) == 0) {
            profile_figures_add(&sites[count - 1].figures, &sites[i].figures);
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
        const struct fragmentation_site *over = &figures->over.sites[i],
                                        *peak = &figures->peak.sites[i];
        struct profile_site *site = &profile->sites[profile->site_count];

        if (over->blocks == 0)
            continue;
        *site = (struct profile_site){
            .name = sites_name(sites, i),
            .figures = {{saturate(peak->allocated), saturate(peak->fragmented),
                         average(&figures->over, over->allocated),
                         average(&figures->over, over->fragmented), saturate(over->blocks),
                         saturate(over->lived_us)}},
        };
        if (!site->name)
            return false;
        profile->site_count++;
    }
    return profile->sites;
}

/* Set the rows `pending` and `idle`, and the sum.  `idle` gets the remainders of rounded averages. */
static void add_pending_and_idle(struct profile *profile, const struct figures *figures)
{
    const struct fragmentation *over = &figures->over, *peak = &figures->peak;
    const uint64_t reserved = average(over, over->reserved);
    fragmentation_sum attributed;

    profile->pending.of[PROFILE_PEAK_CACHED] = saturate(peak->pending + peak->near_pending);
    profile->pending.of[PROFILE_CACHED] = average(over, over->pending + over->near_pending);
    profile->total = profile->pending;
    for (size_t i = 0; i < profile->site_count; i++)
        profile_figures_add(&profile->total, &profile->sites[i].figures);
    attributed =
        (fragmentation_sum)profile->total.of[PROFILE_ALLOCATED] + profile->total.of[PROFILE_CACHED];
    profile->idle.of[PROFILE_PEAK_CACHED] = saturate(peak->idle);
    profile->idle.of[PROFILE_CACHED] = reserved > attributed ? reserved - (uint64_t)attributed : 0;
    profile_figures_add(&profile->total, &profile->idle);
}

bool profile_init(struct profile *profile, const struct recording *recording,
                  const struct recording_device *device, const struct profile_rules *rules)
{
    struct sites sites;
    struct figures figures;
    bool success;

    *profile = (struct profile){
        .entries = device->event_count,
        .lost = device->lost,
        .truncated = device->truncated,
        .synthetic = device->synthetic,
    };
    if (!sites_init(&sites, recording, rules->by, rules->depth))
        return false;
    if (!find_figures(&figures, profile, &sites, device, rules)) {
        sites_fini(&sites);
        return false;
    }
    success = add_sites(profile, &sites, &figures);
    if (success) {
        sort_sites(profile);
        add_pending_and_idle(profile, &figures);
    } else {
        profile_fini(profile);
    }
    fragmentation_fini(&figures.over);
    fragmentation_fini(&figures.peak);
    sites_fini(&sites);
    return success;
}

void profile_fini(struct profile *profile)
{
    for (size_t i = 0; i < profile->site_count; i++)
        free(profile->sites[i].name);
    free(profile->sites);
    *profile = (struct profile){0};
}

/* --- Sums of profiles. --- */

/* Copy the sites of `from` that `to` does not have.  Returns false if out of host memory. */
static bool copy_new_sites(const struct profile *to, const struct profile *from,
                           struct profile *out)
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

/* Add sites with new names. */
static bool add_new_sites(struct profile *to, struct profile *added)
{
    const size_t count = to->site_count + added->site_count;
    struct profile_site *sites = realloc(to->sites, (count + 1) * sizeof(*sites));

    if (!sites) {
        profile_fini(added);
        return false;
    }
    memcpy(sites + to->site_count, added->sites, added->site_count * sizeof(*sites));
    free(added->sites);
    to->sites = sites;
    to->site_count = count;
    sort_sites(to);
    return true;
}

bool profile_add(struct profile *to, const struct profile *from)
{
    struct profile added;
    size_t at = 0;

    if (!copy_new_sites(to, from, &added))
        return false;
    if (added.site_count == 0)
        profile_fini(&added);
    else if (!add_new_sites(to, &added))
        return false;
    for (size_t i = 0; i < from->site_count; i++) {
        while (strcmp(to->sites[at].name, from->sites[i].name) != 0)
            at++;
        profile_figures_add(&to->sites[at].figures, &from->sites[i].figures);
    }
    profile_figures_add(&to->pending, &from->pending);
    profile_figures_add(&to->idle, &from->idle);
    profile_figures_add(&to->total, &from->total);
    to->entries = saturate((fragmentation_sum)to->entries + from->entries);
    to->lost = saturate((fragmentation_sum)to->lost + from->lost);
    to->truncated = saturate((fragmentation_sum)to->truncated + from->truncated);
    to->synthetic = saturate((fragmentation_sum)to->synthetic + from->synthetic);
    to->dropped.blocks += from->dropped.blocks;
    to->dropped.bytes += from->dropped.bytes;
    to->omitted = saturate((fragmentation_sum)to->omitted + from->omitted);
    return true;
}
