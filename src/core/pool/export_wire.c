/* SPDX-License-Identifier: MIT */
#include "src/core/pool/export_wire.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"

/* Limits of the fields: the addresses of a device, and the smallest page that any device maps. */
#define SIZE_MAX_OF_RUN (UINT64_C(1) << 47)
#define PAGE_MIN        UINT64_C(4096)

_Static_assert(sizeof(struct xseg_export_fields) == XSEG_EXPORT_TOKEN_SIZE,
               "the fields fill a token without gaps");

xseg_status xseg_export_token_read(const struct xseg_export_token *token,
                                   struct xseg_export_fields *out)
{
    struct xseg_export_fields fields;

    memcpy(&fields, token->byte, sizeof(fields));
    if (memcmp(fields.magic, XSEG_EXPORT_MAGIC, sizeof(fields.magic)) != 0)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "token is not an export token, first byte 0x%02x; pass all %u bytes "
                         "that xseg_export() wrote",
                         token->byte[0], XSEG_EXPORT_TOKEN_SIZE);
    if (fields.version != XSEG_EXPORT_TOKEN_VERSION)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "version of the export token is not supported, %" PRIu32
                         " instead of %u; run the same version of xseg in both processes",
                         fields.version, XSEG_EXPORT_TOKEN_VERSION);
    if (fields.size == 0 || fields.size > SIZE_MAX_OF_RUN || fields.size % PAGE_MIN != 0 ||
        fields.offset > SIZE_MAX_OF_RUN || fields.offset % PAGE_MIN != 0 || fields.reserved != 0)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "export token is malformed, run of %" PRIu64 " bytes at offset %" PRIu64
                         "; pass all %u bytes that xseg_export() wrote",
                         fields.size, fields.offset, XSEG_EXPORT_TOKEN_SIZE);
    *out = fields;
    return XSEG_OK;
}

socklen_t xseg_export_address(uint64_t exporter, struct sockaddr_un *out)
{
    memset(out, 0, sizeof(*out));
    out->sun_family = AF_UNIX;
    /* The leading zero byte makes the name abstract. */
    const int length =
        snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "xseg-export-%016" PRIx64, exporter);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

bool xseg_export_peer(int socket, struct ucred *out)
{
    socklen_t size = sizeof(*out);

    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, out, &size) == 0 && size == sizeof(*out) &&
           out->uid == geteuid();
}
