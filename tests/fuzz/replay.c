/* SPDX-License-Identifier: MIT */
/*
 * Passes the files of a folder to a fuzz target, as a test: replay FOLDER.
 *
 * The target aborts on an error, so the last line of the output precedes the file that failed.
 */
#include <dirent.h>
#include <stdbool.h>
#include <string.h>

#include "tests/fuzz/holds.h"

/* Read a file into a buffer of its exact size, so that AddressSanitizer detects a read past the end. */
static uint8_t *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    long length;

    if (file == NULL)
        return NULL;
    if (fseek(file, 0, SEEK_END) == 0 && (length = ftell(file)) >= 0 &&
        fseek(file, 0, SEEK_SET) == 0 && (data = malloc((size_t)length + (length == 0))) != NULL) {
        *bytes = fread(data, 1, (size_t)length, file);
        if (*bytes != (size_t)length) {
            free(data);
            data = NULL;
        }
    }
    (void)fclose(file);
    return data;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static bool replay_file(const char *folder, const char *name)
{
    char path[4096];
    size_t bytes = 0;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    uint8_t *data = read_file(path, &bytes);
    if (data == NULL)
        return false;
    (void)LLVMFuzzerTestOneInput(data, bytes);
    free(data);
    return true;
}

int main(int count, char **arguments)
{
    struct dirent **entry;
    const int files = count == 2 ? scandir(arguments[1], &entry, is_visible, alphasort) : -1;
    int failed = 0;

    if (files <= 0) {
        (void)fprintf(stderr, "usage: replay FOLDER; the folder must contain files\n");
        return 2;
    }
    printf("1..%d\n", files);
    for (int i = 0; i < files; i++) {
        const bool is_read = replay_file(arguments[1], entry[i]->d_name);

        printf("%s %d - %s\n", is_read ? "ok" : "not ok", i + 1, entry[i]->d_name);
        (void)fflush(stdout);
        failed += !is_read;
        free(entry[i]);
    }
    free(entry);
    return failed == 0 ? 0 : 1;
}
