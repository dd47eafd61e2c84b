/* SPDX-License-Identifier: MIT */
/* The file that keeps a pool's contents: it is removed, and no other file is, whatever happens to names. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/env.h"

#define BYTES (4 * MIB)

/* A pool with contents, and two folders, in the first of which the process is. */
struct fixture {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    unsigned char *block;
    char here[64], there[64];
    int before;     /* the folder that the process was in */
    unsigned files; /* descriptors that were open */
};

static void make_folder(char *name, size_t bytes)
{
    (void)snprintf(name, bytes, "%s", P_tmpdir "/xseg-kept-XXXXXX");
    assert_non_null(mkdtemp(name));
}

static void set_up(struct fixture *f)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB, .real_bytes = true};

    f->allocator = env_open_on(&settings, NULL);
    f->pool = env_pool(f->allocator);
    f->block = env_alloc_in(f->allocator, f->pool, BYTES, NULL);
    memset(f->block, 0x5A, BYTES);
    make_folder(f->here, sizeof(f->here));
    make_folder(f->there, sizeof(f->there));
    f->before = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(f->before >= 0);
    assert_int_equal(chdir(f->here), 0);
    f->files = env_open_fds();
}

/* Both folders are empty, or the test has left something in them; `here` may be gone. */
static void tear_down(struct fixture *f)
{
    assert_int_equal(env_open_fds(), f->files);
    assert_int_equal(fchdir(f->before), 0);
    assert_int_equal(close(f->before), 0);
    (void)rmdir(f->here);
    assert_int_not_equal(access(f->here, F_OK), 0);
    assert_int_equal(rmdir(f->there), 0);
    env_free(f->allocator, f->block);
    env_close(f->allocator);
}

static void pause_pool(const struct fixture *f, const char *name)
{
    assert_ok(xseg_pool_pause(f->pool, XSEG_KEEP_FILE, name));
    assert_int_equal(access(name, F_OK), 0);
}

/* Bring the pool back, with its contents. */
static void resume_pool(const struct fixture *f)
{
    assert_ok(xseg_pool_resume(f->pool));
    for (size_t at = 0; at < BYTES; at += 511)
        assert_int_equal(f->block[at], 0x5A);
}

static void write_file(const char *name)
{
    const int file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);

    assert_true(file >= 0);
    assert_int_equal(write(file, "mine", 4), 4);
    assert_int_equal(close(file), 0);
}

/* Remove a file that must still be the one that write_file() made. */
static void remove_own(const char *name)
{
    char text[8] = "";
    const int file = open(name, O_RDONLY | O_CLOEXEC);

    assert_true(file >= 0);
    assert_int_equal(read(file, text, sizeof(text)), 4);
    assert_memory_equal(text, "mine", 4);
    assert_int_equal(close(file) + unlink(name), 0);
}

TEST(a_relative_name_means_the_folder_of_the_pause)
{
    struct fixture f;
    char kept[80];

    set_up(&f);
    (void)snprintf(kept, sizeof(kept), "%s/kept", f.here);
    pause_pool(&f, "kept");
    assert_int_equal(chdir(f.there), 0);
    write_file("kept");
    resume_pool(&f);
    remove_own("kept");
    assert_int_not_equal(access(kept, F_OK), 0);
    tear_down(&f);
}

/* A pool that is released and not resumed: its file goes with its last block. */
TEST(so_it_does_where_the_pool_is_forgotten)
{
    struct fixture f;
    char kept[80];

    set_up(&f);
    (void)snprintf(kept, sizeof(kept), "%s/kept", f.here);
    pause_pool(&f, "./kept");
    assert_int_equal(chdir(f.there), 0);
    write_file("kept");
    assert_ok(xseg_pool_release(f.pool));
    env_free(f.allocator, f.block);
    f.block = NULL;
    env_empty_cache(f.allocator);
    assert_int_not_equal(access(kept, F_OK), 0);
    remove_own("kept");
    tear_down(&f);
}

TEST(a_file_that_took_its_place_stays)
{
    struct fixture f;

    set_up(&f);
    pause_pool(&f, "kept");
    assert_int_equal(unlink("kept"), 0);
    write_file("kept");
    resume_pool(&f);
    remove_own("kept");

    pause_pool(&f, "kept");
    write_file("other");
    assert_int_equal(rename("other", "kept"), 0);
    resume_pool(&f);
    remove_own("kept");
    tear_down(&f);
}

/* The link is another file, even where it leads to the one that was kept. */
TEST(a_link_that_took_its_place_stays)
{
    struct fixture f;

    set_up(&f);
    pause_pool(&f, "kept");
    assert_int_equal(rename("kept", "moved"), 0);
    assert_int_equal(symlink("moved", "kept"), 0);
    resume_pool(&f);
    assert_int_equal(unlink("kept") + unlink("moved"), 0);
    tear_down(&f);
}

TEST(its_folder_may_get_another_name)
{
    struct fixture f;
    char moved[80], kept[96];

    set_up(&f);
    (void)snprintf(moved, sizeof(moved), "%s/moved", f.there);
    (void)snprintf(kept, sizeof(kept), "%s/kept", f.here);
    pause_pool(&f, kept);
    assert_int_equal(rename(f.here, moved), 0);
    assert_int_equal(mkdir(f.here, S_IRWXU), 0);
    write_file(kept);
    resume_pool(&f);
    remove_own(kept);
    assert_int_equal(rmdir(moved), 0); /* so it is empty */
    tear_down(&f);
}

TEST(its_folder_may_be_removed)
{
    struct fixture f;
    char folder[80], kept[96];

    set_up(&f);
    (void)snprintf(folder, sizeof(folder), "%s/folder", f.here);
    (void)snprintf(kept, sizeof(kept), "%s/kept", folder);
    assert_int_equal(mkdir(folder, S_IRWXU), 0);
    pause_pool(&f, kept);
    assert_int_equal(unlink(kept) + rmdir(folder), 0);
    resume_pool(&f);

    /* Another folder of that name, with a file of that name, is none of the library's business. */
    assert_int_equal(mkdir(folder, S_IRWXU), 0);
    pause_pool(&f, "folder/kept");
    assert_int_equal(unlink(kept) + rmdir(folder) + mkdir(folder, S_IRWXU), 0);
    write_file(kept);
    resume_pool(&f);
    remove_own(kept);
    assert_int_equal(rmdir(folder), 0);
    tear_down(&f);
}

TEST(names_that_name_no_file_are_refused)
{
    static const char *const names[] = {"", "/", ".", "..", "./", "new/", "file/kept", "no/kept"};
    struct fixture f;
    char link[] = "link";

    set_up(&f);
    write_file("file");
    assert_int_equal(symlink("nowhere", link), 0);
    for (unsigned i = 0; i < COUNT_OF(names); i++)
        env_expect_error(xseg_pool_pause(f.pool, XSEG_KEEP_FILE, names[i]), XSEG_ERR_FILE,
                         names[i]);
    env_expect_error(xseg_pool_pause(f.pool, XSEG_KEEP_FILE, link), XSEG_ERR_FILE, "exists");
    env_expect_error(xseg_pool_pause(f.pool, XSEG_KEEP_FILE, "file"), XSEG_ERR_FILE, "exists");
    assert_int_not_equal(access("nowhere", F_OK), 0);
    remove_own("file");
    assert_int_equal(unlink(link), 0);
    tear_down(&f);
}

/* What is kept may be secret. */
TEST(only_its_owner_may_read_it)
{
    const mode_t mask = umask(0);
    struct stat info = {0};
    struct fixture f;

    set_up(&f);
    pause_pool(&f, "kept");
    (void)umask(mask);
    assert_int_equal(stat("kept", &info), 0);
    assert_int_equal(info.st_mode & (S_IRWXU | S_IRWXG | S_IRWXO), S_IRUSR | S_IWUSR);
    resume_pool(&f);
    tear_down(&f);
}
