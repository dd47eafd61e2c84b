/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/top/published.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/tools/output/text.h"

/* A frame that changes while it is read is read again so often. */
#define TRIES 20

#define HEAD_BYTES offsetof(struct xseg_published, samples)

static bool refuse(const char **why, const char *sentence)
{
    *why = sentence;
    return false;
}

static bool has_device(const struct xseg_published_sample *frame, int32_t ordinal)
{
    for (uint32_t i = 0; i < frame->device_count; i++)
        if (frame->devices[i].ordinal == ordinal)
            return true;
    return false;
}

/* A label that can be printed, and ends. */
static void clean_label(char label[XSEG_PUBLISHED_LABEL])
{
    char raw[XSEG_PUBLISHED_LABEL];

    memcpy(raw, label, sizeof(raw));
    raw[sizeof(raw) - 1] = '\0';
    (void)text_escape(raw, label, XSEG_PUBLISHED_LABEL);
}

static bool check_frame(struct xseg_published_sample *frame, const char **why)
{
    if (frame->device_count > XSEG_PUBLISHED_DEVICES || frame->pool_count > XSEG_PUBLISHED_POOLS)
        return refuse(why, "it says to have more devices or pools than it has room for");
    for (uint32_t i = 0; i < frame->device_count; i++)
        if (frame->devices[i].ordinal < 0)
            return refuse(why, "a device has a number below 0");
    for (uint32_t i = 0; i < frame->pool_count; i++) {
        struct xseg_published_pool *pool = &frame->pools[i];

        if (!has_device(frame, pool->ordinal))
            return refuse(why, "a pool is of a device that is not there");
        if (pool->kind > XSEG_PUBLISHED_OTHERS)
            return refuse(why, "a pool is of a kind that is not known");
        clean_label(pool->label);
    }
    return true;
}

bool published_take(const void *bytes, size_t count, struct xseg_published *head,
                    struct xseg_published_sample *frame, const char **why)
{
    const char *from = bytes;

    if (count < HEAD_BYTES)
        return refuse(why, "it is too short");
    memcpy(head, bytes, HEAD_BYTES);
    if (memcmp(head->magic, XSEG_PUBLISHED_MAGIC, sizeof(head->magic)) != 0)
        return refuse(why, "it is nothing that xseg has published");
    if (head->version != XSEG_PUBLISHED_VERSION)
        return refuse(why, "another version of xseg has published it");
    if (head->bytes != sizeof(*head) || count < sizeof(*head))
        return refuse(why, "it is too short");
    memcpy(frame, from + HEAD_BYTES + (head->sequence % 2) * sizeof(*frame), sizeof(*frame));
    return check_frame(frame, why);
}

static bool read_sequence(int file, uint64_t *sequence)
{
    return pread(file, sequence, sizeof(*sequence), offsetof(struct xseg_published, sequence)) ==
           (ssize_t)sizeof(*sequence);
}

/* Read a whole file that does not change meanwhile.  Returns how many bytes, or -1: it changes all the time. */
static ssize_t read_still(int file, void *bytes, size_t room)
{
    uint64_t before = 0, after = 0;

    for (unsigned i = 0; i < TRIES; i++) {
        /* The kernel copies as any thread does, and a system call is no barrier. */
        const bool has_sequence = read_sequence(file, &before);
        atomic_thread_fence(memory_order_acquire);
        const ssize_t count = pread(file, bytes, room, 0);
        atomic_thread_fence(memory_order_acquire);

        if (!has_sequence || count < (ssize_t)HEAD_BYTES)
            return count < 0 ? 0 : count;
        if (read_sequence(file, &after) && before == after)
            return count;
        (void)usleep(1000);
    }
    return -1;
}

bool published_read(int file, struct xseg_published *head, struct xseg_published_sample *frame,
                    const char **why)
{
    struct xseg_published *bytes = malloc(sizeof(*bytes));
    bool fine = false;

    if (!bytes)
        return refuse(why, "no host memory is left to read it");
    const ssize_t count = read_still(file, bytes, sizeof(*bytes));
    if (count < 0)
        (void)refuse(why, "it changes faster than it can be read");
    else
        fine = published_take(bytes, (size_t)count, head, frame, why);
    free(bytes);
    return fine;
}
