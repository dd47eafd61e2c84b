/* SPDX-License-Identifier: MIT */
#include "src/core/pools/offer.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "src/core/pools/share.h"
#include "src/core/pools/share_header.h"
#include "src/core/pools/share_socket.h"

struct xseg_offer {
    struct xseg_list link;
    uint64_t address;
    unsigned exports; /* that are not closed */
    unsigned holders; /* the list, and the server while it answers */
    int record;
    struct xseg_offer_token token;
    struct xseg_share share;
};

/* --- The record. --- */

static xseg_status write_record(const struct xseg_offer *offer)
{
    struct xseg_offer_record record = {
        .token = offer->token, .is_open = 1, .header_bytes = offer->share.header_bytes};
    const struct iovec parts[3] = {
        {&record, sizeof(record)},
        {xseg_share_head(&offer->share), offer->share.header_bytes},
        {xseg_share_fds(&offer->share), offer->share.fd_count * sizeof(int)},
    };
    const size_t bytes = parts[0].iov_len + parts[1].iov_len + parts[2].iov_len;

    memcpy(record.magic, XSEG_OFFER_RECORD, sizeof(record.magic));
    errno = 0;
    if (pwritev(offer->record, parts, 3, 0) == (ssize_t)bytes)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_FILE, "the record of an export could not be written: %s",
                     strerror(errno));
}

/* Mark the record: from here on the descriptors may be closed. */
static void close_record(const struct xseg_offer *offer)
{
    const uint64_t no = 0;

    while (pwrite(offer->record, &no, sizeof(no),
                  (off_t)offsetof(struct xseg_offer_record, is_open)) < 0 &&
           errno == EINTR)
        continue;
}

/* --- Holding. --- */

static void end(struct xseg_offer *offer)
{
    XSEG_ASSERT(offer->holders == 0);
    if (offer->record >= 0)
        (void)close(offer->record);
    xseg_share_free(&offer->share);
    free(offer);
}

static void let_go(struct xseg_offers *offers, struct xseg_offer *offer)
{
    (void)pthread_mutex_lock(&offers->lock);
    const bool is_last = --offer->holders == 0;
    (void)pthread_mutex_unlock(&offers->lock);
    if (is_last)
        end(offer);
}

/* Answer a request, on the server's thread: with the share, or not at all. */
static void answer(void *self, int socket, const struct xseg_offer_token *token)
{
    struct xseg_offers *offers = self;
    struct xseg_offer *found = NULL;

    (void)pthread_mutex_lock(&offers->lock);
    XSEG_LIST_FOR(node, &offers->list)
    {
        struct xseg_offer *offer = XSEG_CONTAINER(node, struct xseg_offer, link);

        if (memcmp(&offer->token, token, sizeof(*token)) == 0)
            found = offer;
    }
    if (found != NULL)
        found->holders++;
    (void)pthread_mutex_unlock(&offers->lock);
    if (found == NULL)
        return;
    /* An importer that does not listen any more is no concern of the exporter's. */
    (void)xseg_share_post(socket, &found->share);
    let_go(offers, found);
}

void xseg_offers_init(struct xseg_offers *offers)
{
    (void)pthread_mutex_init(&offers->lock, NULL);
    xseg_list_init(&offers->list);
    offers->server = (struct xseg_offer_server){.answer = answer, .self = offers};
}

void xseg_offers_fini(struct xseg_offers *offers)
{
    xseg_offer_server_end(&offers->server);
    XSEG_LIST_FOR_SAFE(node, &offers->list)
    {
        struct xseg_offer *offer = XSEG_CONTAINER(node, struct xseg_offer, link);

        close_record(offer);
        offer->holders = 0;
        end(offer);
    }
    (void)pthread_mutex_destroy(&offers->lock);
}

/* --- Making. --- */

static size_t write_text(const struct xseg_offers *offers, const struct xseg_offer *offer,
                         char text[XSEG_SHARE_TEXT_BYTES])
{
    const struct xseg_offer_text said = {
        .process = offers->server.process,
        .start = xseg_offer_form_start(offers->server.process),
        .file = offer->record,
        .socket = offers->server.number,
        .token = offer->token,
    };

    return xseg_offer_form_write(&said, text);
}

/* Find the offer of the same block in the same state.  `lock` is held. */
static struct xseg_offer *find_same(struct xseg_offers *offers, uint64_t address,
                                    const struct xseg_share *share)
{
    XSEG_LIST_FOR(node, &offers->list)
    {
        struct xseg_offer *offer = XSEG_CONTAINER(node, struct xseg_offer, link);

        if (offer->address == address && offer->share.header_bytes == share->header_bytes &&
            memcmp(offer->share.header, share->header, share->header_bytes) == 0)
            return offer;
    }
    return NULL;
}

/* Make an offer that is in no list, of a share which is its own from then on. */
static xseg_status make(uint64_t address, const struct xseg_share *share, struct xseg_offer **out)
{
    struct xseg_offer *offer = calloc(1, sizeof(*offer));

    if (offer == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for an export by text");
    *offer = (struct xseg_offer){.address = address, .exports = 1, .share = *share};
    offer->record = memfd_create("xseg-share", MFD_CLOEXEC);
    xseg_status status = XSEG_OK;
    if (offer->record < 0 ||
        getrandom(&offer->token, sizeof(offer->token), 0) != (ssize_t)sizeof(offer->token))
        status = xseg_fail(XSEG_ERR_FILE,
                           "the system gives no file or no random number for an "
                           "export by text: %s",
                           strerror(errno));
    if (status == XSEG_OK)
        status = write_record(offer);
    if (status == XSEG_OK) {
        *out = offer;
        return XSEG_OK;
    }
    offer->share = (struct xseg_share)XSEG_SHARE_INIT; /* the caller's still */
    end(offer);
    return status;
}

/* Offer a share that has been exported, which then is the offer's, or has ended. */
static xseg_status offer_share(struct xseg_offers *offers, uint64_t address,
                               struct xseg_share *share, char text[XSEG_SHARE_TEXT_BYTES],
                               size_t *bytes, struct xseg_offer **out)
{
    struct xseg_offer *made = NULL;
    xseg_status status = XSEG_OK;

    (void)pthread_mutex_lock(&offers->lock);
    struct xseg_offer *same = find_same(offers, address, share);
    if (same != NULL)
        same->exports++;
    else
        status = xseg_offer_server_start(&offers->server);
    if (same == NULL && status == XSEG_OK)
        status = make(address, share, &made);
    if (made != NULL) {
        made->holders = 1;
        xseg_list_insert(&offers->list, &made->link);
    }
    if (status == XSEG_OK) {
        *out = same != NULL ? same : made;
        *bytes = write_text(offers, *out, text);
    }
    (void)pthread_mutex_unlock(&offers->lock);
    if (made == NULL)
        xseg_share_free(share);
    return status;
}

xseg_status xseg_offer_make(struct xseg_allocator *allocator, uint64_t address,
                            char text[XSEG_SHARE_TEXT_BYTES], size_t *bytes)
{
    struct xseg_share share = XSEG_SHARE_INIT;
    struct xseg_export *own = NULL;
    struct xseg_offer *offer = NULL;

    XSEG_ASSERT(!xseg_lock_is_any_held());
    xseg_status status = xseg_share_export(allocator, address, XSEG_SHARE_FD, &share, &own);
    if (status != XSEG_OK)
        return status;
    status = offer_share(allocator->offers, address, &share, text, bytes, &offer);
    if (status == XSEG_OK)
        xseg_share_set_offer(own, offer);
    else
        xseg_share_withdraw(own);
    return status;
}

void xseg_offer_close(struct xseg_allocator *allocator, struct xseg_offer *offer)
{
    struct xseg_offers *offers = allocator->offers;

    (void)pthread_mutex_lock(&offers->lock);
    XSEG_ASSERT(offer->exports != 0);
    const bool is_last = --offer->exports == 0;
    if (is_last) {
        xseg_list_remove(&offer->link);
        close_record(offer);
    }
    (void)pthread_mutex_unlock(&offers->lock);
    if (is_last)
        let_go(offers, offer);
}
