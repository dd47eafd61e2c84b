/* SPDX-License-Identifier: MIT */
#include "src/tools/ranks/rank_files.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/tools/containers/containers.h"
#include "src/tools/output/amount.h"
#include "src/tools/output/text.h"

#define DIGITS_MAX 10 /* of a rank */

/* --- Names. --- */

static bool has_suffix(const char *text, size_t length, const char *suffix)
{
    const size_t suffix_length = strlen(suffix);

    return length > suffix_length &&
           memcmp(text + length - suffix_length, suffix, suffix_length) == 0;
}

static bool is_snapshot(const char *base)
{
    size_t length = strlen(base);

    if (has_suffix(base, length, ".zst"))
        length -= 4;
    return base[0] != '.' &&
           (has_suffix(base, length, ".pickle") || has_suffix(base, length, ".pkl"));
}

/* Get whether a name is that of a snapshot which another program than zstd has compressed. */
static bool is_packed(const char *base)
{
    static const char *const endings[] = {".gz", ".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz"};
    const char *last = strrchr(base, '.');

    for (size_t i = 0; last && i < sizeof(endings) / sizeof(endings[0]); i++)
        if (strcmp(last, endings[i]) == 0)
            return base[0] != '.' && (strstr(base, ".pickle.") || strstr(base, ".pkl."));
    return false;
}

/* Read the number after a `rank` of a name; -1: none. */
static int64_t read_rank_number(const char *text)
{
    int64_t number = 0;
    size_t digits = 0;

    text += *text != '\0' && strchr("-_.=", *text) != NULL;
    for (; isdigit((unsigned char)text[digits]) && digits <= DIGITS_MAX; digits++)
        number = 10 * number + (text[digits] - '0');
    return digits == 0 || digits > DIGITS_MAX ? -1 : number;
}

/* Find the last number in the first `bytes` bytes of a name; -1: none. */
static int64_t find_last_number(const char *base, size_t bytes)
{
    size_t at = bytes;

    while (at > 0 && !isdigit((unsigned char)base[at - 1]))
        at--;
    while (at > 0 && isdigit((unsigned char)base[at - 1]))
        at--;
    return read_rank_number(base + at);
}

/* Get whether a `rank` in a name is a local rank. */
static bool is_local(const char *base, const char *at)
{
    const size_t position = (size_t)(at - base);

    return (position >= 5 && strncasecmp(at - 5, "local", 5) == 0) ||
           (position >= 6 && strncasecmp(at - 6, "local", 5) == 0 && strchr("-_.", at[-1]));
}

/* Find the `rank` of a name; NULL: the name has none. */
static const char *find_rank(const char *base, int64_t *rank)
{
    const char *found = NULL;

    *rank = -1;
    for (const char *at = strcasestr(base, "rank"); at; at = strcasestr(at + 1, "rank")) {
        const int64_t number = read_rank_number(at + strlen("rank"));

        if (number < 0 || (found && is_local(base, at) && !is_local(base, found)))
            continue;
        *rank = number;
        found = at;
    }
    return found;
}

/* Get whether a number in a name is the number of a host. */
static bool is_host(const char *base, const char *number)
{
    static const char *const words[] = {"node",   "host", "machine", "server",
                                        "worker", "pod",  "nid"};
    const char *end = number;

    if (end > base && strchr("-_.=", end[-1]))
        end--;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const size_t length = strlen(words[i]);

        if ((size_t)(end - base) >= length && strncasecmp(end - length, words[i], length) == 0)
            return true;
    }
    return false;
}

/* Copy the first bytes of a name, with `#` for each number, except for numbers of hosts if is_host_kept.  Returns NULL if
 * out of host memory. */
static char *replace_numbers(const char *base, size_t bytes, bool is_host_kept)
{
    char *out = malloc(bytes + 1);
    size_t count = 0;

    for (size_t i = 0; out && i < bytes;) {
        const bool is_number = isdigit((unsigned char)base[i]);
        const bool is_kept = is_host_kept && is_number && is_host(base, base + i);

        if (!is_number) {
            out[count++] = base[i++];
            continue;
        }
        if (!is_kept)
            out[count++] = '#';
        for (; i < bytes && isdigit((unsigned char)base[i]); i++)
            if (is_kept)
                out[count++] = base[i];
    }
    if (out)
        out[count] = '\0';
    return out;
}

/* Find the parts of a name: rank, kind (the name before the ending) and process. */
static bool find_names(struct rank_file *file)
{
    const char *const rank = find_rank(file->base, &file->rank);
    const size_t length = strlen(file->base);
    const size_t ending = has_suffix(file->base, length, ".zst") ? 4 : 0;
    const char *dot = memrchr(file->base, '.', length - ending);

    file->number = rank ? file->rank : find_last_number(file->base, (size_t)(dot - file->base));
    file->kind = replace_numbers(file->base, (size_t)(dot - file->base), false);
    file->process = replace_numbers(file->base, rank ? (size_t)(rank - file->base) : length, true);
    return file->kind && file->process;
}

static void free_file(struct rank_file *file)
{
    free(file->path);
    free(file->kind);
    free(file->process);
}

void rank_files_name(const struct rank_file *file, char *text, size_t bytes)
{
    if (file->rank >= 0 && !file->is_ambiguous)
        (void)snprintf(text, bytes, "rank %" PRId64, file->rank);
    else
        (void)text_escape(file->base, text, bytes);
}

void rank_files_describe_packed(const struct rank_files *files, char *text, size_t bytes)
{
    char base[96];

    text[0] = '\0';
    if (files->packed == 0)
        return;
    (void)text_escape(files->packed_base, base, sizeof(base));
    (void)snprintf(
        text, bytes, "%s %s not read, such as %s; decompress %s, or compress %s with zstd",
        amount_of(files->packed, "compressed file").text, files->packed == 1 ? "is" : "are", base,
        files->packed == 1 ? "it" : "them", files->packed == 1 ? "it" : "them");
}

/* --- The folder. --- */

static bool fail(struct recording_fault *fault, const char *message, int error)
{
    char reason[128];

    (void)snprintf(fault->text, sizeof(fault->text), "%s: %s", message,
                   strerror_r(error, reason, sizeof(reason)));
    return false;
}

static bool add_file(struct rank_files *files, const char *folder, const char *base)
{
    const size_t length = strlen(folder);
    struct rank_file file = {0};
    struct stat status = {0};

    if (asprintf(&file.path, "%s%s%s", folder, folder[length - 1] == '/' ? "" : "/", base) < 0)
        return false;
    file.base = file.path + strlen(file.path) - strlen(base);
    if (stat(file.path, &status) == 0 && !S_ISREG(status.st_mode)) {
        free(file.path);
        return true;
    }
    file.written = status.st_mtim;
    if (!find_names(&file) || !array_reserve((void **)&files->files, files->count, sizeof(file))) {
        free_file(&file);
        return false;
    }
    files->files[files->count++] = file;
    return true;
}

/* Count a compressed file.  Returns false if out of host memory. */
static bool add_packed(struct rank_files *files, const char *base)
{
    if (files->packed++ > 0 && strverscmp(files->packed_base, base) <= 0)
        return true;
    free(files->packed_base);
    files->packed_base = strdup(base);
    return files->packed_base != NULL;
}

static bool add_files(struct rank_files *files, const char *folder, struct recording_fault *fault)
{
    DIR *listing = opendir(folder);
    const struct dirent *entry;
    bool success = true;

    if (!listing)
        return fail(fault, "the folder cannot be opened", errno);
    for (errno = 0; success && (entry = readdir(listing)) != NULL; errno = 0)
        if ((is_snapshot(entry->d_name) && !add_file(files, folder, entry->d_name)) ||
            (is_packed(entry->d_name) && !add_packed(files, entry->d_name)))
            success = fail(fault, "the folder cannot be read", ENOMEM);
    if (success && errno != 0)
        success = fail(fault, "the folder cannot be read", errno);
    (void)closedir(listing);
    return success;
}

bool rank_files_is_folder(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* --- One kind. --- */

static int compare_written(const struct rank_file *a, const struct rank_file *b)
{
    if (a->written.tv_sec != b->written.tv_sec)
        return a->written.tv_sec < b->written.tv_sec ? -1 : 1;
    return (a->written.tv_nsec > b->written.tv_nsec) - (a->written.tv_nsec < b->written.tv_nsec);
}

/* Compare files: files with a number first, by kind, then by the time of writing. */
static int compare_kinds(const void *first, const void *second)
{
    const struct rank_file *a = first, *b = second;
    int order;

    if ((a->number < 0) != (b->number < 0))
        return a->number < 0 ? 1 : -1;
    order = a->number < 0 ? 0 : strcmp(a->kind, b->kind);
    if (order == 0)
        order = compare_written(a, b);
    return order != 0 ? order : strverscmp(a->base, b->base);
}

/* Clear numbers that are not ranks.  Returns whether the remaining numbers follow a `rank`. */
static bool clear_other_numbers(struct rank_files *files)
{
    bool has_rank = false;

    for (size_t i = 0; i < files->count; i++)
        has_rank |= files->files[i].rank >= 0;
    for (size_t i = 0; i < files->count; i++)
        if (has_rank)
            files->files[i].number = files->files[i].rank;
        else if (files->files[i].number >= (int64_t)files->count)
            files->files[i].number = -1;
    return has_rank;
}

/* Get whether files of one number are of several kinds; files are in the order of kinds. */
static bool has_kinds(const struct rank_files *files, size_t numbered, bool has_rank)
{
    bool has_larger = false, has_both = false;

    for (size_t i = 0; i < numbered; i++)
        for (size_t k = i + 1; k < numbered; k++) {
            const bool is_one_kind = strcmp(files->files[i].kind, files->files[k].kind) == 0;

            has_larger |= is_one_kind && files->files[i].number != files->files[k].number;
            has_both |= !is_one_kind && files->files[i].number == files->files[k].number;
        }
    /* If each kind has one rank, names differ by process instead of by kind. */
    return has_both && (has_larger || (has_rank && numbered < 3));
}

/* A run of files of one kind. */
struct kind {
    size_t first, end;
};

static struct kind find_kind(const struct rank_files *files, size_t first, size_t numbered)
{
    size_t end = first + 1;

    while (end < numbered && strcmp(files->files[first].kind, files->files[end].kind) == 0)
        end++;
    return (struct kind){first, end};
}

static bool is_better(const struct rank_files *files, const struct kind *a, const struct kind *b)
{
    const size_t of_a = a->end - a->first, of_b = b->end - b->first;
    const struct rank_file *last_a = &files->files[a->end - 1], *last_b = &files->files[b->end - 1];
    const int order = compare_written(last_a, last_b);

    if (of_a != of_b)
        return of_a > of_b;
    return order != 0 ? order > 0 : strverscmp(last_a->base, last_b->base) > 0;
}

/* Choose the kind that is read, and list all kinds.  Returns false if out of host memory. */
static bool choose_kind(struct rank_files *files, size_t numbered, const char *preferred,
                        struct kind *out)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *list = open_memstream(&text, &bytes);
    bool has_preferred = false;

    *out = find_kind(files, 0, numbered);
    for (struct kind kind = *out; list; kind = find_kind(files, kind.end, numbered)) {
        const char *name = files->files[kind.first].kind;
        const bool is_preferred = preferred && strcmp(name, preferred) == 0;

        (void)fprintf(list, "%s'%s' (%s)", kind.first > 0 ? ", " : "", name,
                      amount_of(kind.end - kind.first, "file").text);
        if (is_preferred || (!has_preferred && is_better(files, &kind, out)))
            *out = kind;
        has_preferred |= is_preferred;
        if (kind.end == numbered)
            break;
    }
    if (list)
        (void)fprintf(list, "; only '%s' is read", files->files[out->first].kind);
    if (!list || fclose(list) != 0)
        return false;
    files->kinds = text;
    return true;
}

/* Keep the files of one kind.  Returns false if out of host memory. */
static bool keep_kind(struct rank_files *files, const char *preferred)
{
    const bool has_rank = clear_other_numbers(files);
    size_t numbered = 0, count = 0;
    struct kind kept;

    qsort(files->files, files->count, sizeof(*files->files), compare_kinds);
    while (numbered < files->count && files->files[numbered].number >= 0)
        numbered++;
    if (!has_kinds(files, numbered, has_rank))
        return true;
    if (!choose_kind(files, numbered, preferred, &kept))
        return false;
    for (size_t i = 0; i < files->count; i++)
        if (i >= kept.first && i < kept.end)
            files->files[count++] = files->files[i];
        else
            free_file(&files->files[i]);
    files->others = files->count - count;
    files->count = count;
    return true;
}

/* --- One file of each rank. --- */

static bool is_same_rank(const struct rank_file *a, const struct rank_file *b)
{
    return a->rank >= 0 && a->rank == b->rank && strcmp(a->process, b->process) == 0;
}

/* Compare files by rank, then by host; of the files of one process, the latest comes first. */
static int compare_files(const void *first, const void *second)
{
    const struct rank_file *a = first, *b = second;
    int order;

    if (a->rank != b->rank)
        return (uint64_t)a->rank > (uint64_t)b->rank ? 1 : -1;
    if (!is_same_rank(a, b))
        return strverscmp(a->base, b->base);
    order = compare_written(b, a);
    return order != 0 ? order : strverscmp(b->base, a->base);
}

static void keep_latest(struct rank_files *files)
{
    size_t count = 0;

    for (size_t i = 0; i < files->count; i++) {
        struct rank_file *file = &files->files[i];

        if (count > 0 && is_same_rank(&files->files[count - 1], file)) {
            free_file(file);
            files->older++;
            continue;
        }
        if (count > 0 && file->rank >= 0 && files->files[count - 1].rank == file->rank)
            file->is_ambiguous = files->files[count - 1].is_ambiguous = true;
        files->files[count++] = *file;
    }
    files->count = count;
}

bool rank_files_find(const char *folder, const char *kind, struct rank_files *out,
                     struct recording_fault *fault)
{
    *out = (struct rank_files){0};
    if (!add_files(out, folder, fault)) {
        rank_files_fini(out);
        return false;
    }
    if (out->count == 0) {
        char packed[200];

        rank_files_describe_packed(out, packed, sizeof(packed));
        (void)snprintf(fault->text, sizeof(fault->text), "no snapshot in this folder: %s",
                       packed[0] ? packed
                                 : "a file whose name ends in .pickle or .pkl, or in one of these "
                                   "and .zst");
        rank_files_fini(out);
        return false;
    }
    if (!keep_kind(out, kind)) {
        rank_files_fini(out);
        return fail(fault, "the folder cannot be read", ENOMEM);
    }
    qsort(out->files, out->count, sizeof(*out->files), compare_files);
    keep_latest(out);
    return true;
}

void rank_files_fini(struct rank_files *files)
{
    for (size_t i = 0; i < files->count; i++)
        free_file(&files->files[i]);
    free(files->files);
    free(files->kinds);
    free(files->packed_base);
    *files = (struct rank_files){0};
}

/* --- Two folders. --- */

/* Compare files of two folders; matching files are equal. */
static int compare_matching(const struct rank_file *a, const struct rank_file *b)
{
    if (a->rank != b->rank)
        return (uint64_t)a->rank > (uint64_t)b->rank ? 1 : -1;
    if (a->rank >= 0 && !a->is_ambiguous && !b->is_ambiguous)
        return 0;
    return strverscmp(a->base, b->base);
}

size_t rank_files_match(struct rank_files *a, struct rank_files *b)
{
    size_t i = 0, k = 0, count = 0, omitted = 0;

    while (i < a->count || k < b->count) {
        const int order = i == a->count   ? 1
                          : k == b->count ? -1
                                          : compare_matching(&a->files[i], &b->files[k]);

        if (order == 0) {
            a->files[count] = a->files[i++];
            b->files[count++] = b->files[k++];
            continue;
        }
        free_file(order < 0 ? &a->files[i++] : &b->files[k++]);
        omitted++;
    }
    a->count = b->count = count;
    return omitted;
}
