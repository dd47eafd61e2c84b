/* SPDX-License-Identifier: MIT */
#include "src/core/metrics/metrics_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/utf8.h"

/* --- Families. --- */

enum kind { GAUGE, COUNTER };
enum unit { NUMBER, NANOSECONDS }; /* of the figure; nanoseconds are written as seconds */

struct family {
    const char *name; /* without the _total of a counter */
    enum kind kind;
    enum unit unit;
    size_t offset; /* of the figure in its row */
    const char *help;
};

static const struct family of_pools[] = {
    {"xseg_live_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_pool, live),
     "Memory in live blocks; of a paused pool addresses only."},
    {"xseg_pending_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_pool, pending),
     "Memory in blocks that were freed and that another stream may still use."},
    {"xseg_cached_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_pool, cached),
     "Reserved memory in no block."},
    {"xseg_reserved_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_pool, reserved),
     "Memory of the driver that is mapped or allocated: live, pending and cached."},
    {"xseg_reserved_recent_peak_bytes", GAUGE, NUMBER,
     offsetof(struct xseg_figures_pool, recent_peak),
     "Highest reserved memory of the last 60 to 65 seconds; not of other and ended."},
    {"xseg_registered_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_pool, registered),
     "Memory that has entered registrations (xseg_register); what is registered twice counts "
     "twice."},
    {"xseg_pool_limit_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_pool, limit),
     "Limit on what the pool may reserve; absent without a limit."},
};

static const struct family of_devices[] = {
    {"xseg_device_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_device, total),
     "Memory of the device."},
    {"xseg_limit_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_device, limit),
     "Limit on what may be taken of the device; absent without a limit."},
    {"xseg_page_cache_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_device, page_cache),
     "Pages that are mapped nowhere, kept for reuse."},
    {"xseg_stuck_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_device, stuck),
     "Memory that the driver would not take back."},
    {"xseg_paused_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_device, paused),
     "Memory of paused pools: addresses only."},
    {"xseg_device_reserved_recent_peak_bytes", GAUGE, NUMBER,
     offsetof(struct xseg_figures_device, recent_peak),
     "Highest reserved memory of all pools together of the last 60 to 65 seconds."},
    {"xseg_stranded_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_device, stranded),
     "Cached memory on pages that blocks in use share, as of the last look; without pools that "
     "somebody holds."},
    {"xseg_stranded_age_seconds", GAUGE, NANOSECONDS,
     offsetof(struct xseg_figures_device, stranded_age), "Time since that look."},
    {"xseg_used_elsewhere_bytes", GAUGE, NUMBER,
     offsetof(struct xseg_figures_device, used_elsewhere),
     "Memory of the device that others have taken, as of the driver's last answer."},
    {"xseg_used_elsewhere_age_seconds", GAUGE, NANOSECONDS,
     offsetof(struct xseg_figures_device, used_elsewhere_age), "Time since that answer."},
    {"xseg_pools", GAUGE, NUMBER, offsetof(struct xseg_figures_device, pools),
     "Private pools that have not ended."},
    {"xseg_out_of_memory", COUNTER, NUMBER, offsetof(struct xseg_figures_device, ooms),
     "Allocations refused for want of memory."},
    {"xseg_rejections", COUNTER, NUMBER, offsetof(struct xseg_figures_device, rejections),
     "Allocations refused at once because of throw_on_cudamalloc_oom."},
    {"xseg_retries", COUNTER, NUMBER, offsetof(struct xseg_figures_device, retries),
     "Allocations tried again after all idle memory was given back."},
    {"xseg_budget_member", GAUGE, NUMBER, offsetof(struct xseg_figures_device, has_part),
     "Whether this process shares the device by a budget: 1, or 0 where the log names the "
     "reason; absent without share_budget."},
    {"xseg_budget_share_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_device, share),
     "Memory of the device that is this process's own; absent without share_budget."},
    {"xseg_budget_borrowed_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_device, borrowed),
     "Memory taken above the share."},
    {"xseg_budget_wanted_bytes", GAUGE, NUMBER, offsetof(struct xseg_figures_device, wanted),
     "Memory for which requests wait."},
    {"xseg_budget_others", GAUGE, NUMBER, offsetof(struct xseg_figures_device, others),
     "Other processes that share the device."},
    {"xseg_budget_asks", COUNTER, NUMBER, offsetof(struct xseg_figures_device, asks),
     "Requests that waited for memory of other processes."},
    {"xseg_budget_served", COUNTER, NUMBER, offsetof(struct xseg_figures_device, served),
     "Of these, those that got memory while they waited."},
    {"xseg_budget_given_bytes", COUNTER, NUMBER, offsetof(struct xseg_figures_device, given),
     "Memory given back since other processes wanted it."},
};

static const struct family of_calls[] = {
    {"xseg_driver_calls", COUNTER, NUMBER, offsetof(struct xseg_figures_call, count),
     "Calls of the driver; absent before the first one."},
    {"xseg_driver_call_failures", COUNTER, NUMBER, offsetof(struct xseg_figures_call, failed),
     "Calls of the driver that failed."},
    {"xseg_driver_call_seconds", COUNTER, NANOSECONDS, offsetof(struct xseg_figures_call, spent),
     "Time in calls of the driver, the shortest ones left out."},
};

/* --- Writing. --- */

/* The page, of which as much is written as there is room for. */
struct page {
    char *text;
    size_t bytes, length; /* length: of all of it, without a terminator */
};

static void put(struct page *page, const char *bytes, size_t count)
{
    if (page->length < page->bytes && count <= page->bytes - page->length)
        memcpy(page->text + page->length, bytes, count);
    page->length += count;
}

static void put_text(struct page *page, const char *text)
{
    put(page, text, strlen(text));
}

/* Write a number with at least so many digits. */
static void put_number(struct page *page, uint64_t number, unsigned least)
{
    char digits[20];
    size_t at = sizeof(digits);

    XSEG_ASSERT(least <= sizeof(digits));
    while (number != 0 || sizeof(digits) - at < least) {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    }
    put(page, digits + at, sizeof(digits) - at);
}

static const char *suffix_of(const struct family *family)
{
    return family->kind == COUNTER ? "_total" : "";
}

static void put_comment(struct page *page, const char *keyword, const struct family *family,
                        const char *text)
{
    put_text(page, "# ");
    put_text(page, keyword);
    put_text(page, family->name);
    put_text(page, suffix_of(family));
    put_text(page, " ");
    put_text(page, text);
    put_text(page, "\n");
}

static void begin_family(struct page *page, const struct family *family)
{
    put_comment(page, "HELP ", family, family->help);
    put_comment(page, "TYPE ", family, family->kind == COUNTER ? "counter" : "gauge");
}

static void put_line(struct page *page, const struct family *family, const char *labels,
                     uint64_t figure)
{
    const uint64_t second = family->unit == NANOSECONDS ? UINT64_C(1000000000) : 1;

    put_text(page, family->name);
    put_text(page, suffix_of(family));
    put_text(page, labels);
    put_number(page, figure / second, 1);
    if (family->unit == NANOSECONDS) {
        put(page, ".", 1);
        put_number(page, figure % second, 9);
    }
    put(page, "\n", 1);
}

/* --- Labels. --- */

/* The longest: two numbers, and a name all of whose bytes are escaped. */
#define LABEL_BYTES (64 + 2 * XSEG_POOL_NAME_MOST)

struct label {
    char text[LABEL_BYTES];
};

/* Write a name as the value of a label: the format escapes three characters. */
static void put_name(struct page *page, const char *name)
{
    const unsigned char *at = (const unsigned char *)name;

    for (size_t left = strlen(name), some; left > 0; left -= some, at += some) {
        const size_t measured = xseg_utf8_measure(at, left);

        some = measured == 0 ? 1 : measured;
        if (*at == '\\' || *at == '"' || *at == '\n')
            put(page, "\\", 1);
        if (*at == '\n')
            put(page, "n", 1);
        else if (measured == 0 || *at < ' ' || *at == 0x7f)
            put(page, "?", 1);
        else
            put(page, (const char *)at, some);
    }
}

static void label_pool(struct label *label, const struct xseg_figures_pool *row)
{
    static const char *const of[] = {
        [XSEG_POOL_FIGURES_DEFAULT] = "default", [XSEG_POOL_FIGURES_PRIVATE] = "",
        [XSEG_POOL_FIGURES_GUARDED] = "guarded", [XSEG_POOL_FIGURES_OTHERS] = "other",
        [XSEG_POOL_FIGURES_ENDED] = "ended",
    };
    struct page page = {.text = label->text, .bytes = sizeof(label->text) - 1};

    put_text(&page, "{device=\"");
    put_number(&page, (uint64_t)row->device, 1);
    put_text(&page, "\",pool=\"");
    put_text(&page, of[row->of]);
    if (row->of == XSEG_POOL_FIGURES_PRIVATE)
        put_number(&page, row->number, 1);
    put_text(&page, "\",name=\"");
    put_name(&page, row->name);
    put_text(&page, "\"} ");
    XSEG_ASSERT(page.length <= page.bytes);
    label->text[page.length] = '\0';
}

static void label_device(struct label *label, const struct xseg_figures_device *row)
{
    (void)snprintf(label->text, sizeof(label->text), "{device=\"%d\"} ", row->device);
}

static void label_call(struct label *label, const struct xseg_figures_call *row)
{
    (void)snprintf(label->text, sizeof(label->text), "{call=\"%s\"} ", row->name);
}

/* --- The page. --- */

/* Rows of figures of one kind, with their labels. */
struct rows {
    const void *row;
    size_t count, row_bytes;
    const struct label *label;
};

static uint64_t figure_of(const struct rows *rows, size_t at, const struct family *family)
{
    uint64_t figure;

    memcpy(&figure, (const char *)rows->row + at * rows->row_bytes + family->offset,
           sizeof(figure));
    return figure;
}

static void put_families(struct page *page, const struct family *family, size_t families,
                         const struct rows *rows)
{
    for (size_t i = 0; i < families; i++) {
        bool is_begun = false;

        for (size_t at = 0; at < rows->count; at++) {
            const uint64_t figure = figure_of(rows, at, &family[i]);

            if (figure == XSEG_FIGURES_NONE)
                continue;
            if (!is_begun)
                begin_family(page, &family[i]);
            is_begun = true;
            put_line(page, &family[i], rows->label[at].text, figure);
        }
    }
}

/* Calls that were never made are left out. */
static size_t choose_calls(const struct xseg_figures *figures, struct xseg_figures_call *chosen)
{
    size_t count = 0;

    for (size_t i = 0; i < figures->calls; i++)
        if (figures->call[i].count != 0)
            chosen[count++] = figures->call[i];
    return count;
}

static void put_page(struct page *page, const struct xseg_figures *figures, struct label *labels)
{
    struct xseg_figures_call call[XSEG_DRIVER_CALLS_MOST];
    const size_t calls = choose_calls(figures, call);
    struct label *of_device = labels + figures->pools, *of_call = of_device + figures->devices;

    for (size_t i = 0; i < figures->pools; i++)
        label_pool(&labels[i], &figures->pool[i]);
    for (size_t i = 0; i < figures->devices; i++)
        label_device(&of_device[i], &figures->device[i]);
    for (size_t i = 0; i < calls; i++)
        label_call(&of_call[i], &call[i]);
    put_families(page, of_pools, XSEG_COUNT_OF(of_pools),
                 &(struct rows){figures->pool, figures->pools, sizeof(*figures->pool), labels});
    put_families(
        page, of_devices, XSEG_COUNT_OF(of_devices),
        &(struct rows){figures->device, figures->devices, sizeof(*figures->device), of_device});
    put_families(page, of_calls, XSEG_COUNT_OF(of_calls),
                 &(struct rows){call, calls, sizeof(call[0]), of_call});
}

xseg_status xseg_metrics_text_write(const struct xseg_figures *figures, char *text, size_t bytes,
                                    size_t *needed)
{
    struct page page = {.text = text, .bytes = bytes};
    const size_t count = figures->pools + figures->devices + figures->calls;
    struct label *labels = malloc((count + 1) * sizeof(*labels));

    if (labels == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for %zu labels of metrics", count);
    put_page(&page, figures, labels);
    free(labels);
    if (bytes > 0)
        text[page.length < bytes ? page.length : 0] = '\0';
    *needed = page.length + 1;
    return XSEG_OK;
}
