/* SPDX-License-Identifier: MIT */
#include "src/core/snapshot/signalled.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/core/config/config_table.h"
#include "src/core/snapshot/automatic.h"
#include "src/core/snapshot/rank.h"

/* By enum xseg_snapshot_signal. */
static const int numbers[] = {
    [XSEG_SNAPSHOT_SIGNAL_NONE] = 0,       [XSEG_SNAPSHOT_SIGNAL_HUP] = SIGHUP,
    [XSEG_SNAPSHOT_SIGNAL_QUIT] = SIGQUIT, [XSEG_SNAPSHOT_SIGNAL_USR1] = SIGUSR1,
    [XSEG_SNAPSHOT_SIGNAL_USR2] = SIGUSR2,
};

void xseg_signalled_init(struct xseg_signalled *signalled)
{
    atomic_init(&signalled->taken, XSEG_SNAPSHOT_SIGNAL_NONE);
    for (unsigned which = 0; which < XSEG_COUNT_OF(numbers); which++)
        atomic_init(&signalled->seen[which], 0);
    atomic_init(&signalled->is_writing, false);
    signalled->prepared = XSEG_SNAPSHOT_SIGNAL_NONE;
}

/* How the configuration spells a signal. */
static const char *word_of(unsigned which)
{
    XSEG_ASSERT(which < XSEG_COUNT_OF(numbers));
    return xseg_config_table[XSEG_CONFIG_SNAPSHOT_SIGNAL].choice[which];
}

xseg_status xseg_signalled_prepare(struct xseg_allocator *allocator,
                                   const struct xseg_config *config)
{
    struct xseg_signalled *signalled = allocator->signalled;
    const unsigned wanted = config->snapshot_signal;
    char what[64];

    XSEG_ASSERT(signalled->prepared == XSEG_SNAPSHOT_SIGNAL_NONE);
    if (wanted == XSEG_SNAPSHOT_SIGNAL_NONE || wanted == atomic_load(&signalled->taken))
        return XSEG_OK;
    (void)snprintf(what, sizeof(what), "snapshot_signal:%s", word_of(wanted));
    if (xseg_automatic_folder(config) == NULL)
        return xseg_fail(XSEG_ERR_CONFIG,
                         "%s: there is no folder to write into: name one with "
                         "oom_snapshot:FOLDER or the variable XSEG_OOM_SNAPSHOT",
                         what);
    const xseg_status status = xseg_signal_flag_take(numbers[wanted], what);
    if (status == XSEG_OK)
        signalled->prepared = wanted;
    return status;
}

static void give(unsigned which)
{
    if (which != XSEG_SNAPSHOT_SIGNAL_NONE)
        xseg_signal_flag_give(numbers[which]);
}

void xseg_signalled_settle(struct xseg_allocator *allocator)
{
    struct xseg_signalled *signalled = allocator->signalled;
    const unsigned before = atomic_load(&signalled->taken), prepared = signalled->prepared;
    const unsigned wanted = xseg_allocator_config(allocator)->snapshot_signal;

    XSEG_ASSERT(wanted == XSEG_SNAPSHOT_SIGNAL_NONE || wanted == before || wanted == prepared);
    signalled->prepared = XSEG_SNAPSHOT_SIGNAL_NONE;
    if (wanted != before) {
        if (wanted != XSEG_SNAPSHOT_SIGNAL_NONE)
            atomic_store(&signalled->seen[wanted], xseg_signal_flag_count(numbers[wanted]));
        atomic_store(&signalled->taken, wanted);
        give(before);
    }
    if (prepared != wanted)
        give(prepared);
}

void xseg_signalled_end(struct xseg_signalled *signalled)
{
    give(atomic_exchange(&signalled->taken, XSEG_SNAPSHOT_SIGNAL_NONE));
}

/* Numbers for which a thread of the process is writing a file, a bit each: an allocator that writes at the same signal
 * takes another number. */
static atomic_uint claimed;

_Static_assert(XSEG_SIGNALLED_FILES < 32, "a number is a bit");

/* Claim the lowest number that no file has.  Returns 0, and why in `path`, if there is none. */
static unsigned claim_name(char *path, size_t bytes, const char *folder)
{
    for (unsigned number = 1; number <= XSEG_SIGNALLED_FILES; number++) {
        const unsigned bit = 1u << number;

        if (xseg_snapshot_rank_name(path, bytes, folder, "signal", number) >= bytes) {
            (void)snprintf(path, bytes, "the folder's name is too long: %.200s", folder);
            return 0;
        }
        if ((atomic_fetch_or(&claimed, bit) & bit) != 0)
            continue;
        if (access(path, F_OK) != 0)
            return number;
        atomic_fetch_and(&claimed, ~bit);
    }
    (void)snprintf(path, bytes, "%.200s has %u of this process: move some away", folder,
                   XSEG_SIGNALLED_FILES);
    return 0;
}

static void write_into(struct xseg_allocator *allocator, const char *folder, unsigned taken)
{
    char path[XSEG_AUTOMATIC_PATH_BYTES], reason[32], what_for[32];
    const struct xseg_automatic_occasion came = {reason, what_for};
    const unsigned number = claim_name(path, sizeof(path), folder);

    (void)snprintf(reason, sizeof(reason), "SIG%s has come", word_of(taken));
    (void)snprintf(what_for, sizeof(what_for), "for SIG%s", word_of(taken));
    if (number == 0) {
        xseg_log_line(&allocator->log, XSEG_LOG_WARNING, "no snapshot %s: %s", what_for, path);
        return;
    }
    xseg_automatic_write(allocator, path, &came);
    atomic_fetch_and(&claimed, ~(1u << number));
}

static void write_or_say(struct xseg_allocator *allocator, unsigned taken)
{
    const char *folder = xseg_automatic_folder(xseg_allocator_config(allocator));

    if (folder != NULL)
        write_into(allocator, folder, taken);
    else
        xseg_log_line(
            &allocator->log, XSEG_LOG_WARNING,
            "no snapshot for SIG%s: the variable XSEG_OOM_SNAPSHOT is gone: set it again, "
            "or name a folder with oom_snapshot:FOLDER",
            word_of(taken));
}

void xseg_signalled_write(struct xseg_allocator *allocator)
{
    struct xseg_signalled *signalled = allocator->signalled;
    const unsigned taken = atomic_load(&signalled->taken);
    atomic_uint *seen = &signalled->seen[taken];
    const int error = errno;

    XSEG_ASSERT(!xseg_lock_is_any_held());
    if (taken == XSEG_SNAPSHOT_SIGNAL_NONE ||
        xseg_signal_flag_count(numbers[taken]) == atomic_load(seen) ||
        atomic_exchange(&signalled->is_writing, true))
        return;
    const unsigned came = xseg_signal_flag_count(numbers[taken]);
    if (came != atomic_load(seen)) {
        atomic_store(seen, came);
        write_or_say(allocator, taken);
    }
    atomic_store(&signalled->is_writing, false);
    errno = error;
}
