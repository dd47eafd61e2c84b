/* SPDX-License-Identifier: MIT */
/*
 * Offers: exports that another process finds by a text alone (offer_form.h).
 *
 * An offer keeps the descriptors of an export open, and has a record that names them.  An importer takes them out of
 * this process where the system lets it, and asks the socket elsewhere (offer_import.h, offer_server.h).  One that has
 * taken descriptors looks at the record again: if that is still open, none of the descriptors can have been closed,
 * and opened for something else.
 *
 * Exports of one block, as long as nothing of it has changed, are one offer, which is counted.
 *
 * Locking: `lock` guards the list, the counts, and starting the server; no other lock is taken inside.
 */
#ifndef XSEG_CORE_OFFER_H
#define XSEG_CORE_OFFER_H

#include "src/base/list.h"
#include "src/core/pools/offer_server.h"

struct xseg_allocator;
struct xseg_offer;

struct xseg_offers {
    pthread_mutex_t lock;
    struct xseg_list list; /* of struct xseg_offer, the oldest first */
    struct xseg_offer_server server;
};

void xseg_offers_init(struct xseg_offers *offers);

/* End the server and all offers. */
void xseg_offers_fini(struct xseg_offers *offers);

/*
 * Export a live block, and offer it.  No lock is held.
 *
 * Returns: XSEG_OK; as xseg_share_export(); XSEG_ERR_FILE; on an error nothing is exported
 */
xseg_status xseg_offer_make(struct xseg_allocator *allocator, uint64_t address,
                            char text[XSEG_SHARE_TEXT_BYTES], size_t *bytes);

/* An export of an offer has been closed: the offer counts one less, and ends with the last. */
void xseg_offer_close(struct xseg_allocator *allocator, struct xseg_offer *offer);

#endif
