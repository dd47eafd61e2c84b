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

#include "src/tools/containers/array.h"
#include "src/tools/text/printable.h"

#define DIGITS 10 /* of a rank at most */

/* --- Names. --- */

static bool ends(const char *text, size_t length, const char *with)
{
    const size_t tail = strlen(with);

    return length > tail && memcmp(text + length - tail, with, tail) == 0;
}

static bool is_snapshot(const char *base)
{
    size_t length = strlen(base);

    if (ends(base, length, ".zst"))
        length -= 4;
    return base[0] != '.' && (ends(base, length, ".pickle") || ends(base, length, ".pkl"));
}

/* The number behind a `rank` of a name; -1: there is none. */
static int64_t number_behind(const char *text)
{
    int64_t number = 0;
    size_t digits = 0;

    text += *text != '\0' && strchr("-_.=", *text) != NULL;
    for (; isdigit((unsigned char)text[digits]) && digits <= DIGITS; digits++)
        number = 10 * number + (text[digits] - '0');
    return digits == 0 || digits > DIGITS ? -1 : number;
}

static void find_rank(struct rank_file *file)
{
    file->rank = -1;
    file->before = strlen(file->base);
    for (const char *at = strstr(file->base, "rank"); at; at = strstr(at + 1, "rank")) {
        const int64_t number = number_behind(at + strlen("rank"));

        if (number < 0)
            continue;
        file->rank = number;
        file->before = (size_t)(at - file->base);
    }
}

void rank_files_name(const struct rank_file *file, char *text, size_t bytes)
{
    if (file->rank >= 0 && !file->is_ambiguous)
        (void)snprintf(text, bytes, "rank %" PRId64, file->rank);
    else
        (void)printable_copy(file->base, text, bytes);
}

/* --- The folder. --- */

static bool fail(struct recording_fault *fault, const char *what, int error)
{
    char reason[128];

    (void)snprintf(fault->text, sizeof(fault->text), "%s: %s", what,
                   strerror_r(error, reason, sizeof(reason)));
    return false;
}

static bool add_file(struct rank_files *files, const char *folder, const char *base)
{
    const size_t length = strlen(folder);
    struct rank_file file = {0};
    struct stat facts = {0};

    if (asprintf(&file.path, "%s%s%s", folder, folder[length - 1] == '/' ? "" : "/", base) < 0)
        return false;
    file.base = file.path + strlen(file.path) - strlen(base);
    if (stat(file.path, &facts) == 0 && !S_ISREG(facts.st_mode)) {
        free(file.path);
        return true;
    }
    file.written = facts.st_mtim;
    find_rank(&file);
    if (!array_room((void **)&files->files, files->count, sizeof(file))) {
        free(file.path);
        return false;
    }
    files->files[files->count++] = file;
    return true;
}

static bool add_all(struct rank_files *files, const char *folder, struct recording_fault *fault)
{
    DIR *listing = opendir(folder);
    const struct dirent *entry;
    bool fine = true;

    if (!listing)
        return fail(fault, "the folder cannot be opened", errno);
    for (errno = 0; fine && (entry = readdir(listing)) != NULL; errno = 0)
        if (is_snapshot(entry->d_name) && !add_file(files, folder, entry->d_name))
            fine = fail(fault, "the folder cannot be read", ENOMEM);
    if (fine && errno != 0)
        fine = fail(fault, "the folder cannot be read", errno);
    (void)closedir(listing);
    return fine;
}

bool rank_files_is_folder(const char *path)
{
    struct stat facts;

    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

/* --- One file a rank. --- */

static bool is_same_rank(const struct rank_file *a, const struct rank_file *b)
{
    return a->rank >= 0 && a->rank == b->rank && a->before == b->before &&
           memcmp(a->base, b->base, a->before) == 0;
}

/* By rank, then by what stands before it; of one rank's files the latest first. */
static int compare_files(const void *left, const void *right)
{
    const struct rank_file *a = left, *b = right;

    if (a->rank != b->rank)
        return (uint64_t)a->rank > (uint64_t)b->rank ? 1 : -1;
    if (!is_same_rank(a, b))
        return strverscmp(a->base, b->base);
    if (a->written.tv_sec != b->written.tv_sec)
        return a->written.tv_sec > b->written.tv_sec ? -1 : 1;
    if (a->written.tv_nsec != b->written.tv_nsec)
        return a->written.tv_nsec > b->written.tv_nsec ? -1 : 1;
    return strverscmp(b->base, a->base);
}

static void keep_latest(struct rank_files *files)
{
    size_t count = 0;

    for (size_t i = 0; i < files->count; i++) {
        struct rank_file *file = &files->files[i];

        if (count > 0 && is_same_rank(&files->files[count - 1], file)) {
            free(file->path);
            files->older++;
            continue;
        }
        if (count > 0 && file->rank >= 0 && files->files[count - 1].rank == file->rank)
            file->is_ambiguous = files->files[count - 1].is_ambiguous = true;
        files->files[count++] = *file;
    }
    files->count = count;
}

bool rank_files_find(const char *folder, struct rank_files *out, struct recording_fault *fault)
{
    *out = (struct rank_files){0};
    if (!add_all(out, folder, fault)) {
        rank_files_fini(out);
        return false;
    }
    if (out->count == 0) {
        (void)snprintf(fault->text, sizeof(fault->text),
                       "there is no snapshot in this folder: a file whose name ends in .pickle or "
                       ".pkl, or in one of these and .zst");
        return false;
    }
    qsort(out->files, out->count, sizeof(*out->files), compare_files);
    keep_latest(out);
    return true;
}

void rank_files_fini(struct rank_files *files)
{
    for (size_t i = 0; i < files->count; i++)
        free(files->files[i].path);
    free(files->files);
    *files = (struct rank_files){0};
}

/* --- Two folders. --- */

/* Files of two folders that belong together are equal in this order. */
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
    size_t i = 0, k = 0, count = 0, dropped = 0;

    while (i < a->count || k < b->count) {
        const int order = i == a->count   ? 1
                          : k == b->count ? -1
                                          : compare_matching(&a->files[i], &b->files[k]);

        if (order == 0) {
            a->files[count] = a->files[i++];
            b->files[count++] = b->files[k++];
            continue;
        }
        free(order < 0 ? a->files[i++].path : b->files[k++].path);
        dropped++;
    }
    a->count = b->count = count;
    return dropped;
}
