/* SPDX-License-Identifier: MIT */
#include "src/tools/ranks/ranks.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/progress.h"
#include "src/tools/output/text.h"
#include "src/tools/ranks/compare.h"
#include "src/tools/reading/recording.h"

#define OUTLIER_PART 100 /* distance of an outlier: 1/100 of the reserved bytes */

/* The state that threads share. */
struct reading_job {
    struct ranks *ranks;
    const struct ranks_rules *rules;
    atomic_size_t next;
    pthread_mutex_t mutex; /* of out_of_memory and the sums of the ranks */
    bool out_of_memory;
};

/* --- Columns. --- */

/* Create the columns of a profile, which refer to its names.  Returns false if out of host memory. */
static bool make_columns(const struct profile *profile, struct ranks_columns *out)
{
    *out = (struct ranks_columns){
        .sites = malloc((profile->site_count + 1) * sizeof(*out->sites)),
        .site_count = profile->site_count,
        .idle = {(float)profile->pending.of[PROFILE_PEAK_CACHED],
                 (float)profile->pending.of[PROFILE_CACHED],
                 (float)profile->idle.of[PROFILE_PEAK_CACHED],
                 (float)profile->idle.of[PROFILE_CACHED]},
    };
    for (size_t i = 0; out->sites && i < profile->site_count; i++) {
        const uint64_t *of = profile->sites[i].figures.of;

        out->sites[i] = (struct ranks_site){
            .name = profile->sites[i].name,
            .of = {(float)of[PROFILE_PEAK_ALLOCATED] + (float)of[PROFILE_PEAK_CACHED],
                   (float)of[PROFILE_ALLOCATED], (float)of[PROFILE_CACHED]},
        };
    }
    return out->sites;
}

/* Let columns refer to the names of a sum, which contains all names. */
static void use_names(struct ranks_columns *columns, const struct profile *sum)
{
    size_t at = 0;

    for (size_t i = 0; i < columns->site_count; i++) {
        while (strcmp(sum->sites[at].name, columns->sites[i].name) != 0)
            at++;
        columns->sites[i].name = sum->sites[at].name;
    }
}

static double compute_site_deviation(const float *first, const float *second)
{
    double sum = 0;

    for (size_t i = 0; i < RANKS_SITE_COLUMNS; i++)
        sum += fabs((double)(first ? first[i] : 0) - (double)(second ? second[i] : 0));
    return sum;
}

/* Compare two sites by name; the end of the sites is greater than any name. */
static int compare_sites(const struct ranks_columns *first, size_t a,
                         const struct ranks_columns *second, size_t b)
{
    if (a == first->site_count)
        return 1;
    return b == second->site_count ? -1 : strcmp(first->sites[a].name, second->sites[b].name);
}

static double compute_deviation(const struct ranks_columns *first,
                                const struct ranks_columns *second)
{
    size_t a = 0, b = 0;
    double sum = 0;

    while (a < first->site_count || b < second->site_count) {
        const int order = compare_sites(first, a, second, b);

        sum += compute_site_deviation(order <= 0 ? first->sites[a].of : NULL,
                                      order >= 0 ? second->sites[b].of : NULL);
        a += order <= 0;
        b += order >= 0;
    }
    for (size_t i = 0; i < RANKS_IDLE_COLUMNS; i++)
        sum += fabs((double)first->idle[i] - (double)second->idle[i]);
    return sum;
}

/* --- Reading, in threads. --- */

/* Read the profile of a file.  Returns false with a fault. */
static bool read_profile(const char *path, const struct ranks_rules *rules, struct profile *out,
                         struct recording_fault *fault)
{
    const struct recording_device *device;
    struct recording recording;
    bool success;

    if (!recording_file_load(path, &recording, fault))
        return false;
    device = recording_file_device(&recording, rules->device, fault);
    success = device && profile_init(out, &recording, device, &rules->profile);
    if (device && !success)
        (void)snprintf(fault->text, sizeof(fault->text), "out of host memory");
    recording_fini(&recording);
    return success;
}

static void set_fault(struct rank *rank, const char *path, const struct recording_fault *fault)
{
    if (asprintf(&rank->fault, "%s: %s", path, fault->text) < 0)
        rank->fault = NULL;
}

/* Set the columns of a rank; of two jobs only the deviation, since names are freed with the profiles.  Returns false if
 * out of host memory. */
static bool set_columns(struct ranks *ranks, struct rank *rank, const struct profile *profiles)
{
    struct ranks_columns other;
    bool success;

    if (!make_columns(&profiles[0], &rank->columns))
        return false;
    if (ranks->jobs == 1) {
        use_names(&rank->columns, &ranks->sums[0]);
        return true;
    }
    success = make_columns(&profiles[1], &other);
    if (success)
        rank->distance = rank->deviation = compute_deviation(&rank->columns, &other);
    free(rank->columns.sites);
    free(other.sites);
    rank->columns = (struct ranks_columns){0};
    return success;
}

static void add_figures(struct reading_job *reading, size_t number, const struct profile *profiles)
{
    struct ranks *ranks = reading->ranks;
    struct rank *rank = &ranks->ranks[number];
    bool success = true;

    for (unsigned job = 0; job < ranks->jobs; job++) {
        for (int i = 0; i < COMPARE_MEASURES; i++)
            rank->totals[job][i] = compare_total((enum compare_measure)i, &profiles[job]);
        rank->entries[job] = profiles[job].entries;
        rank->dropped[job] = profiles[job].dropped;
        rank->lacks_history |= profiles[job].entries == 0;
    }
    rank->is_read = true;
    (void)pthread_mutex_lock(&reading->mutex);
    for (unsigned job = 0; job < ranks->jobs; job++)
        success = profile_add(&ranks->sums[job], &profiles[job]) && success;
    success = success && set_columns(ranks, rank, profiles);
    reading->out_of_memory |= !success;
    (void)pthread_mutex_unlock(&reading->mutex);
}

static void read_rank(struct reading_job *reading, size_t number)
{
    struct ranks *ranks = reading->ranks;
    struct recording_fault fault;
    struct profile profiles[2];
    unsigned job = 0;

    while (job < ranks->jobs && read_profile(ranks->files[job].files[number].path, reading->rules,
                                             &profiles[job], &fault))
        job++;
    if (job == ranks->jobs)
        add_figures(reading, number, profiles);
    else
        set_fault(&ranks->ranks[number], ranks->files[job].files[number].path, &fault);
    while (job-- > 0)
        profile_fini(&profiles[job]);
}

/* Read the next file.  Returns false after the last file. */
static bool read_next(struct reading_job *reading)
{
    const size_t number = atomic_fetch_add(&reading->next, 1);

    if (number >= reading->ranks->count)
        return false;
    read_rank(reading, number);
    return true;
}

static void *read_files(void *self)
{
    while (read_next(self))
        ;
    return NULL;
}

static void read_with_progress(struct reading_job *reading)
{
    const size_t count = reading->ranks->count;

    while (read_next(reading))
        if (reading->rules->progress) {
            const size_t next = atomic_load(&reading->next);

            progress_print("%zu of %s", next < count ? next : count, amount_of(count, "file").text);
        }
    if (reading->rules->progress)
        progress_clear();
}

/* Count the additional threads. */
static unsigned count_threads(size_t files)
{
    cpu_set_t processors;
    size_t count = 1;

    if (sched_getaffinity(0, sizeof(processors), &processors) == 0)
        count = (size_t)CPU_COUNT(&processors);
    if (count > RANKS_THREADS)
        count = RANKS_THREADS;
    return (unsigned)(count < files ? count : files) - 1;
}

static bool read_all(struct ranks *ranks, const struct ranks_rules *rules)
{
    struct reading_job reading = {.ranks = ranks, .rules = rules};
    const unsigned max = count_threads(ranks->count);
    pthread_t threads[RANKS_THREADS];
    unsigned count = 0;

    (void)pthread_mutex_init(&reading.mutex, NULL);
    while (count < max && pthread_create(&threads[count], NULL, read_files, &reading) == 0)
        count++;
    read_with_progress(&reading);
    while (count > 0)
        (void)pthread_join(threads[--count], NULL);
    (void)pthread_mutex_destroy(&reading.mutex);
    return !reading.out_of_memory;
}

/* --- Outliers. --- */

static int compare_numbers(const void *first, const void *second)
{
    const float a = *(const float *)first, b = *(const float *)second;

    return (a > b) - (a < b);
}

/* Compute the median; sorts the values. */
static float compute_median(float *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare_numbers);
    return count % 2 == 1 ? values[count / 2] : values[count / 2 - 1] / 2 + values[count / 2] / 2;
}

/* Add the deviations of a column.  values: of all ranks that were read; deviations: scratch memory of the same size */
static void add_column(struct ranks *ranks, float *values, float *deviations)
{
    float median, tolerance;

    memcpy(deviations, values, ranks->read * sizeof(*deviations));
    median = compute_median(values, ranks->read);
    for (size_t i = 0; i < ranks->read; i++)
        values[i] = deviations[i] = fabsf(deviations[i] - median);
    tolerance = RANKS_TOLERANCE * compute_median(values, ranks->read);
    for (size_t i = 0; i < ranks->read; i++) {
        struct rank *rank = &ranks->ranks[ranks->order[i]];

        rank->deviation += (double)deviations[i];
        rank->distance += deviations[i] > tolerance ? (double)deviations[i] - (double)tolerance : 0;
    }
}

/* Add the columns of a site.  at: of each rank, the first site that was not added */
static void add_site(struct ranks *ranks, const char *name, size_t *at, float *values,
                     float *deviations)
{
    for (size_t column = 0; column < RANKS_SITE_COLUMNS; column++) {
        for (size_t i = 0; i < ranks->read; i++) {
            const struct ranks_columns *columns = &ranks->ranks[ranks->order[i]].columns;
            const bool has_site = at[i] < columns->site_count && columns->sites[at[i]].name == name;

            values[i] = has_site ? columns->sites[at[i]].of[column] : 0;
        }
        add_column(ranks, values, deviations);
    }
    for (size_t i = 0; i < ranks->read; i++) {
        const struct ranks_columns *columns = &ranks->ranks[ranks->order[i]].columns;

        at[i] += at[i] < columns->site_count && columns->sites[at[i]].name == name;
    }
}

static void add_idle_columns(struct ranks *ranks, float *values, float *deviations)
{
    for (size_t column = 0; column < RANKS_IDLE_COLUMNS; column++) {
        for (size_t i = 0; i < ranks->read; i++)
            values[i] = ranks->ranks[ranks->order[i]].columns.idle[column];
        add_column(ranks, values, deviations);
    }
}

static bool find_distances(struct ranks *ranks)
{
    float *values = malloc(ranks->count * sizeof(*values));
    float *deviations = malloc(ranks->count * sizeof(*deviations));
    size_t *at = calloc(ranks->count, sizeof(*at));
    const bool success = values && deviations && at;

    for (size_t i = 0; success && i < ranks->sums[0].site_count; i++)
        add_site(ranks, ranks->sums[0].sites[i].name, at, values, deviations);
    if (success)
        add_idle_columns(ranks, values, deviations);
    free(values);
    free(deviations);
    free(at);
    return success;
}

/* Compute the median of bytes reserved at the peak. */
static float compute_median_reserved(const struct ranks *ranks, float *values)
{
    for (size_t i = 0; i < ranks->read; i++)
        values[i] = (float)ranks->ranks[ranks->order[i]].totals[0][COMPARE_PEAK_RESERVED];
    return compute_median(values, ranks->read);
}

static bool find_outliers(struct ranks *ranks)
{
    float *values = malloc((ranks->count + 1) * sizeof(*values));
    double min_distance;

    if (!values || !find_distances(ranks)) {
        free(values);
        return false;
    }
    min_distance = (double)compute_median_reserved(ranks, values) / OUTLIER_PART;
    for (size_t i = 0; i < ranks->read; i++)
        ranks->outliers +=
            ranks->ranks[ranks->order[i]].distance >= (min_distance > 1 ? min_distance : 1);
    if (2 * ranks->outliers > ranks->read)
        ranks->outliers = 0; /* most ranks are far from the median */
    free(values);
    return true;
}

static bool compute_distances(struct ranks *ranks)
{
    const size_t *order = ranks->order;
    double deviation = 0;

    if (ranks->read > 2)
        return find_outliers(ranks);
    if (ranks->read == 2)
        deviation =
            compute_deviation(&ranks->ranks[order[0]].columns, &ranks->ranks[order[1]].columns);
    for (size_t i = 0; i < ranks->read; i++)
        ranks->ranks[order[i]].distance = ranks->ranks[order[i]].deviation = deviation;
    return true;
}

/* Compare ranks by decreasing distance, then by decreasing deviation, then by decreasing rank. */
static int compare_ranks(const void *first, const void *second, void *context)
{
    const struct rank *ranks = context;
    const size_t a = *(const size_t *)first, b = *(const size_t *)second;

    if (ranks[a].distance != ranks[b].distance)
        return ranks[a].distance > ranks[b].distance ? -1 : 1;
    if (ranks[a].deviation != ranks[b].deviation)
        return ranks[a].deviation > ranks[b].deviation ? -1 : 1;
    return a > b ? -1 : 1;
}

static bool sort_ranks(struct ranks *ranks)
{
    ranks->order = calloc(ranks->count, sizeof(*ranks->order));
    if (!ranks->order)
        return false;
    for (size_t i = 0; i < ranks->count; i++)
        if (ranks->ranks[i].is_read)
            ranks->order[ranks->read++] = i;
    if (ranks->jobs == 1 && !compute_distances(ranks))
        return false;
    qsort_r(ranks->order, ranks->read, sizeof(*ranks->order), compare_ranks, ranks->ranks);
    return true;
}

/* --- Setup. --- */

static bool find_files(struct ranks *ranks, const char *a, const char *b, const char **at,
                       struct recording_fault *fault)
{
    *at = a;
    if (!rank_files_find(a, NULL, &ranks->files[0], fault))
        return false;
    *at = b;
    if (b && !rank_files_find(b, ranks->files[0].files[0].kind, &ranks->files[1], fault))
        return false;
    if (b)
        ranks->unmatched = rank_files_match(&ranks->files[0], &ranks->files[1]);
    ranks->count = ranks->files[0].count;
    if (ranks->count == 0)
        (void)snprintf(fault->text, sizeof(fault->text), "no rank in common with the other folder");
    return ranks->count > 0;
}

bool ranks_init(struct ranks *ranks, const char *a, const char *b, const struct ranks_rules *rules,
                const char **at, struct recording_fault *fault)
{
    *ranks = (struct ranks){.jobs = b ? 2 : 1};
    if (!find_files(ranks, a, b, at, fault)) {
        ranks_fini(ranks);
        return false;
    }
    ranks->ranks = calloc(ranks->count, sizeof(*ranks->ranks));
    if (ranks->ranks) {
        for (size_t i = 0; i < ranks->count; i++)
            rank_files_name(&ranks->files[0].files[i], ranks->ranks[i].name, RANKS_NAME);
        if (read_all(ranks, rules) && sort_ranks(ranks))
            return true;
    }
    (void)snprintf(fault->text, sizeof(fault->text), "out of host memory");
    ranks_fini(ranks);
    return false;
}

void ranks_fini(struct ranks *ranks)
{
    for (size_t i = 0; ranks->ranks && i < ranks->count; i++) {
        free(ranks->ranks[i].fault);
        free(ranks->ranks[i].columns.sites);
    }
    for (unsigned job = 0; job < 2; job++) {
        rank_files_fini(&ranks->files[job]);
        profile_fini(&ranks->sums[job]);
    }
    free(ranks->ranks);
    free(ranks->order);
    *ranks = (struct ranks){0};
}

bool ranks_profile(const struct ranks *ranks, size_t rank, const struct ranks_rules *rules,
                   struct profile *out, struct recording_fault *fault)
{
    return read_profile(ranks->files[0].files[rank].path, rules, out, fault);
}

/* --- The report of the verdict. --- */

/* The ranks of a job differ if one rank is an outlier, or if two ranks have unequal sums; two jobs, if their sums do. */
bool ranks_report_differs(const struct ranks *ranks, const struct compare *pair)
{
    if (!pair || (ranks->jobs == 1 && ranks->read > 2 && ranks->outliers == 0))
        return false;
    return compare_judge(pair).result >= COMPARE_TOTAL;
}

/* Print why no rank of a job is an outlier. */
static void print_no_outlier(FILE *out, const struct ranks *ranks, const struct compare *pair)
{
    enum compare_result result;

    if (ranks->read == 1) {
        (void)fprintf(out, "there is only %s, so no rank is an outlier",
                      ranks->ranks[ranks->order[0]].name);
        return;
    }
    result = compare_judge(pair).result;
    (void)fprintf(out, "no rank of %zu is an outlier: ", ranks->read);
    if (ranks->ranks[ranks_furthest(ranks)].deviation <= 0 && result == COMPARE_EQUAL)
        (void)fputs("they do not differ", out);
    else if (result < COMPARE_TOTAL)
        (void)fputs("they differ by less than 1 % of the reserved bytes", out);
    else
        (void)fputs("each differs from the others as they do from each other", out);
}

/* Print the start of the verdict of one job.  Returns the name of the furthest rank in the text that follows. */
static const char *print_outliers(FILE *out, const struct ranks *ranks)
{
    const char *name = ranks->ranks[ranks_furthest(ranks)].name;

    if (ranks->read == 2)
        return name;
    if (ranks->outliers == 1)
        (void)fprintf(out, "%s is the outlier of %zu: ", name, ranks->read);
    else
        (void)fprintf(out, "%zu ranks of %zu are outliers, %s most of all: ", ranks->outliers,
                      ranks->read, name);
    return "it";
}

static bool print_verdict(FILE *out, const struct ranks *ranks, const struct compare *pair)
{
    struct compare_names names = {"A", "B"};
    char *verdict;

    if (ranks->jobs == 1 && !ranks_report_differs(ranks, pair)) {
        print_no_outlier(out, ranks, pair);
        return true;
    }
    if (ranks->jobs == 1)
        names = (struct compare_names){ranks->ranks[ranks_typical(ranks)].name,
                                       print_outliers(out, ranks)};
    verdict = compare_report_verdict(pair, &names);
    if (verdict)
        (void)fputs(verdict, out);
    free(verdict);
    return verdict;
}

char *ranks_report_verdict(const struct ranks *ranks, const struct compare *pair)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    bool success;

    if (!out)
        return NULL;
    success = print_verdict(out, ranks, pair);
    if (fclose(out) == 0 && success)
        return text;
    free(text);
    return NULL;
}

/* --- Tables. --- */

static uint64_t convert_to_bytes(double bytes)
{
    return bytes < (double)PROFILE_MAX ? (uint64_t)bytes : PROFILE_MAX;
}

static void print_cell(FILE *out, uint64_t bytes)
{
    (void)fprintf(out, "%12s  ", amount_bytes(bytes).text);
}

static void print_omitted(FILE *out, size_t count, const char *reason)
{
    if (count > 0)
        (void)fprintf(out, "omitted: %s, %s\n", amount_of(count, "file").text, reason);
}

static void print_limits(FILE *out, const struct ranks *ranks)
{
    size_t lacking = 0;

    for (size_t i = 0; i < ranks->count; i++)
        lacking += ranks->ranks[i].lacks_history;
    print_omitted(out, ranks->count - ranks->read, "which could not be read");
    print_omitted(out, ranks->files[0].older + ranks->files[1].older,
                  "of whose rank there is a newer file");
    print_omitted(out, ranks->files[0].others + ranks->files[1].others, "of another kind");
    print_omitted(out, ranks->unmatched, "whose rank is in only one folder");
    if (lacking > 0)
        (void)fprintf(out,
                      "without a history: %zu, of which the state at the end "
                      "counts; " RECORDING_FILE_HOW_TO "\n",
                      lacking);
}

static void print_rank(FILE *out, const struct ranks *ranks, const struct rank *rank)
{
    if (ranks->jobs == 1) {
        print_cell(out, rank->totals[0][COMPARE_PEAK_RESERVED]);
        print_cell(out, rank->totals[0][COMPARE_PEAK_ALLOCATED]);
        print_cell(out, rank->totals[0][COMPARE_FRAGMENTED]);
    } else {
        for (unsigned job = 0; job < 2; job++)
            print_cell(out, rank->totals[job][COMPARE_PEAK_RESERVED]);
        for (unsigned job = 0; job < 2; job++)
            print_cell(out, rank->totals[job][COMPARE_FRAGMENTED]);
    }
    print_cell(out, convert_to_bytes(rank->distance));
    (void)fprintf(out, "%s\n", rank->name);
}

void ranks_report_table(FILE *out, const struct ranks *ranks, uint32_t rows)
{
    print_limits(out, ranks);
    (void)fprintf(out,
                  "at the peak of reserved memory: reserved%s; averages over events: fragmented\n",
                  ranks->jobs == 1 ? ", allocated" : "");
    if (ranks->jobs == 1)
        text_print_heading(out, "%12s  %12s  %12s  %12s  rank", "reserved", "allocated",
                           "fragmented", "distance");
    else
        text_print_heading(out, "%12s  %12s  %12s  %12s  %12s  rank", "reserved A", "B",
                           "fragmented A", "B", "distance");
    for (size_t i = 0; i < ranks->read && i < rows; i++)
        print_rank(out, ranks, &ranks->ranks[ranks->order[i]]);
    if (ranks->read > rows)
        (void)fprintf(out, "%s more\n", amount_count(ranks->read - rows).text);
}

/* --- JSON. --- */

static json_t *side_json(const struct ranks *ranks, size_t number, unsigned job)
{
    const struct rank *rank = &ranks->ranks[number];
    const uint64_t *totals = rank->totals[job];

    return json_pack(
        "{s:o, s:I, s:{s:I, s:I}, s:{s:I, s:I, s:I}}", "file",
        text_json(ranks->files[job].files[number].path), "entries", (json_int_t)rank->entries[job],
        "peak", "reserved", (json_int_t)totals[COMPARE_PEAK_RESERVED], "allocated",
        (json_int_t)totals[COMPARE_PEAK_ALLOCATED], "average", "reserved",
        (json_int_t)totals[COMPARE_RESERVED], "allocated", (json_int_t)totals[COMPARE_ALLOCATED],
        "fragmented", (json_int_t)totals[COMPARE_FRAGMENTED]);
}

json_t *ranks_report_json(const struct ranks *ranks)
{
    json_t *list = json_array();

    for (size_t i = 0; i < ranks->read; i++) {
        const size_t number = ranks->order[i];
        const struct rank *rank = &ranks->ranks[number];
        const int64_t of_name = ranks->files[0].files[number].rank;
        json_t *object = json_pack("{s:s, s:o, s:I, s:o}", "name", rank->name, "rank",
                                   of_name < 0 ? json_null() : json_integer(of_name), "distance",
                                   (json_int_t)convert_to_bytes(rank->distance), "a",
                                   side_json(ranks, number, 0));

        if (ranks->jobs == 2)
            output_json_set(&object, "b", side_json(ranks, number, 1));
        output_json_add(&list, object);
    }
    return list;
}

json_t *ranks_report_unread(const struct ranks *ranks)
{
    json_t *list = json_array();

    for (size_t i = 0; i < ranks->count; i++) {
        const struct rank *rank = &ranks->ranks[i];

        if (!rank->is_read)
            output_json_add(&list, text_json(rank->fault ? rank->fault : rank->name));
    }
    return list;
}
