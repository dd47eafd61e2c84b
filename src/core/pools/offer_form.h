/* SPDX-License-Identifier: MIT */
/*
 * How an offer (offer.h) is written: as a text, as the record that the text leads to, and what an importer sends to its
 * socket.
 *
 *     text      xseg1:PROCESS:START:DESCRIPTOR:SOCKET:TOKEN
 *     record    a memory file: struct xseg_offer_record, the header of the share, an int for each descriptor
 *     request   struct xseg_offer_request; the answer is a share, as xseg_share_send() sends it
 *
 * START is when the process started, in the system's clock ticks.  It tells the process from a later one with the same
 * number.  SOCKET and TOKEN are random numbers, in hexadecimal digits.
 */
#ifndef XSEG_CORE_OFFER_FORM_H
#define XSEG_CORE_OFFER_FORM_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "xseg/share.h"

struct xseg_offer_token {
    uint64_t word[2];
};

struct xseg_offer_text {
    int64_t process;
    uint64_t start; /* 0: the system does not say */
    int file;       /* the descriptor of the record */
    uint64_t socket;
    struct xseg_offer_token token;
};

#define XSEG_OFFER_RECORD  "xsegofr"
#define XSEG_OFFER_REQUEST "xsegask"

struct xseg_offer_record {
    char magic[8]; /* XSEG_OFFER_RECORD */
    struct xseg_offer_token token;
    uint64_t is_open; /* 0: the descriptors may be closed by now */
    uint64_t header_bytes;
};

struct xseg_offer_request {
    char magic[8]; /* XSEG_OFFER_REQUEST */
    struct xseg_offer_token token;
};

/* Write a text; returns its bytes with the zero. */
size_t xseg_offer_form_write(const struct xseg_offer_text *offer, char text[XSEG_SHARE_TEXT_BYTES]);

/* Read a text.  Returns: XSEG_OK; XSEG_ERR_ARGUMENT with what is wrong, and where */
xseg_status xseg_offer_form_read(const char *text, struct xseg_offer_text *out);

/* When a process started; 0 if the system does not say. */
uint64_t xseg_offer_form_start(int64_t process);

/* The address of a socket, which is in no file system; returns its length. */
socklen_t xseg_offer_form_address(int64_t process, uint64_t socket, struct sockaddr_un *out);

/* Whether a process runs as the user that this one runs as, by /proc.  For one that may take everybody's descriptors. */
bool xseg_offer_form_is_own_process(int64_t process);

/* Whether the process at the other end of a socket is of the same user.  For a client: the one that listens. */
bool xseg_offer_form_is_own(int socket);

#endif
