/* SPDX-License-Identifier: MIT */
/* How a share goes over a socket. */
#ifndef XSEG_CORE_SHARE_SOCKET_H
#define XSEG_CORE_SHARE_SOCKET_H

#include "src/core/pools/share.h"

/* As xseg_share_send() and xseg_share_receive(). */
xseg_status xseg_share_post(int socket, const struct xseg_share *share);
xseg_status xseg_share_fetch(int socket, struct xseg_share *out);

#endif
