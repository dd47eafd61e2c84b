/* SPDX-License-Identifier: MIT */
/*
 * The lifetime of a plug-in: the library is loaded, used and closed with dlclose() repeatedly.  It is also closed while
 * a thread exists that had an error in it, and while a thread is executing a call.  The library remains mapped, and no
 * driver objects remain.  After the first round, the numbers of files, threads, heap blocks and mappings of the process
 * do not increase.
 *
 * reload LIBRARY: the argument of dlopen().  The program is linked with the simulator only, and started with
 * GLIBC_TUNABLES=glibc.malloc.tcache_count=0, because blocks in thread caches count as allocated.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xseg/sim.h>
#include <xseg/xseg.h>

#define ROUNDS 20

static void check(int condition, const char *message)
{
    if (condition)
        return;
    (void)fprintf(stderr, "reload: %s\n", message);
    exit(1);
}

/* The functions that dlsym() returns. */
static struct {
    void *library;
    xseg_status (*open)(const char *, const struct xseg_options *, struct xseg_allocator **);
    xseg_status (*alloc)(struct xseg_allocator *, int, size_t, xseg_stream, void **);
    xseg_status (*free)(struct xseg_allocator *, void *);
    xseg_status (*close)(struct xseg_allocator *);
    size_t (*error_message)(char *, size_t);
} xseg;

static void resolve_function(const char *name, void *function)
{
    void *address = dlsym(xseg.library, name);

    check(address != NULL, name);
    memcpy(function, &address, sizeof(address));
}

static void load_library(const char *path)
{
    xseg.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    check(xseg.library != NULL, "dlopen");
    resolve_function("xseg_open", &xseg.open);
    resolve_function("xseg_alloc", &xseg.alloc);
    resolve_function("xseg_free", &xseg.free);
    resolve_function("xseg_close", &xseg.close);
    resolve_function("xseg_error_message", &xseg.error_message);
}

struct usage {
    size_t files, threads, heap_bytes, mappings, library_mappings;
};

static size_t count_entries(const char *path)
{
    size_t count = 0;
    DIR *folder = opendir(path);

    check(folder != NULL, path);
    while (readdir(folder) != NULL)
        count++;
    (void)closedir(folder);
    return count;
}

static struct usage current_usage(void)
{
    char line[4096];
    struct usage usage = {0};
    FILE *maps = fopen("/proc/self/maps", "re");

    check(maps != NULL, "/proc/self/maps");
    while (fgets(line, sizeof(line), maps) != NULL) {
        usage.mappings++;
        usage.library_mappings += strstr(line, "libxseg.so") != NULL;
    }
    (void)fclose(maps);
    usage.files = count_entries("/proc/self/fd");
    usage.threads = count_entries("/proc/self/task");
    usage.heap_bytes = mallinfo2().uordblks;
    return usage;
}

static void check_no_growth(const char *resource, size_t first, size_t last)
{
    if (last <= first)
        return;
    (void)fprintf(stderr, "reload: %s: %zu after the first round, %zu after the last\n", resource,
                  first, last);
    exit(1);
}

static pthread_barrier_t failed, closed;

/* Keep an error message in this thread until the library is closed. */
static void *keep_error(void *unused)
{
    struct xseg_allocator *allocator = NULL;

    check(xseg.open("no_such_key:1", NULL, &allocator) == XSEG_ERR_CONFIG,
          "xseg_open with an unknown key");
    check(xseg.error_message(NULL, 0) > 0, "xseg_error_message");
    (void)pthread_barrier_wait(&failed);
    (void)pthread_barrier_wait(&closed);
    return unused;
}

static pthread_barrier_t in_call, proceed;

/* Log callback: block xseg_alloc() while it opens the device. */
static void block_in_log(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    (void)level;
    if (strstr(line, "device 0: opened") == NULL)
        return;
    (void)pthread_barrier_wait(&in_call);
    (void)pthread_barrier_wait(&proceed);
}

static void *use_during_close(void *unused)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;
    void *block = NULL;

    options.log = block_in_log;
    check(xseg.open(NULL, &options, &allocator) == XSEG_OK, "xseg_open");
    check(xseg.alloc(allocator, 0, 512, NULL, &block) == XSEG_OK, "xseg_alloc during dlclose");
    check(xseg.free(allocator, block) == XSEG_OK, "xseg_free after dlclose");
    check(xseg.close(allocator) == XSEG_OK, "xseg_close after dlclose");
    return unused;
}

static void use_library(void)
{
    struct xseg_allocator *allocator = NULL;
    void *block[2] = {NULL, NULL};

    check(xseg.open("background_thread:True", NULL, &allocator) == XSEG_OK, "xseg_open");
    check(xseg.alloc(allocator, 0, 512, NULL, &block[0]) == XSEG_OK, "xseg_alloc");
    check(xseg.alloc(allocator, 0, (size_t)64 << 20, NULL, &block[1]) == XSEG_OK, "xseg_alloc");
    check(xseg.free(allocator, block[0]) == XSEG_OK, "xseg_free");
    check(xseg.free(allocator, block[1]) == XSEG_OK, "xseg_free");
    check(xseg.close(allocator) == XSEG_OK, "xseg_close");
}

static void run_round(const char *path)
{
    pthread_t thread;

    load_library(path);
    check(pthread_create(&thread, NULL, keep_error, NULL) == 0, "pthread_create");
    use_library();
    (void)pthread_barrier_wait(&failed);
    check(dlclose(xseg.library) == 0, "dlclose");
    check(current_usage().library_mappings > 0, "the library is unmapped after dlclose");
    (void)pthread_barrier_wait(&closed);
    check(pthread_join(thread, NULL) == 0, "pthread_join");

    load_library(path);
    check(pthread_create(&thread, NULL, use_during_close, NULL) == 0, "pthread_create");
    (void)pthread_barrier_wait(&in_call);
    check(dlclose(xseg.library) == 0, "dlclose");
    (void)pthread_barrier_wait(&proceed);
    check(pthread_join(thread, NULL) == 0, "pthread_join");
}

int main(int argc, char **argv)
{
    struct usage first = {0}, last = {0};
    char leaks[1024];

    check(argc == 2, "usage: reload LIBRARY");
    check(pthread_barrier_init(&failed, NULL, 2) == 0, "pthread_barrier_init");
    check(pthread_barrier_init(&closed, NULL, 2) == 0, "pthread_barrier_init");
    check(pthread_barrier_init(&in_call, NULL, 2) == 0, "pthread_barrier_init");
    check(pthread_barrier_init(&proceed, NULL, 2) == 0, "pthread_barrier_init");
    for (int round = 0; round < ROUNDS; round++) {
        run_round(argv[1]);
        if (xseg_sim_leaks(leaks, sizeof(leaks)) > 0) {
            (void)fprintf(stderr, "reload: leaked driver objects: %s\n", leaks);
            return 1;
        }
        check(xseg_sim_reset(NULL) == XSEG_OK, "xseg_sim_reset");
        last = current_usage();
        if (round == 0)
            first = last;
    }
    check_no_growth("open files", first.files, last.files);
    check_no_growth("threads", first.threads, last.threads);
    check_no_growth("heap bytes", first.heap_bytes, last.heap_bytes);
    check_no_growth("mappings", first.mappings, last.mappings);
    check_no_growth("mappings of libxseg.so", first.library_mappings, last.library_mappings);
    return 0;
}
