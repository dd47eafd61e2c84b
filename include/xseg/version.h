/* SPDX-License-Identifier: MIT */
/* The version of the headers; a test compares it with meson.build. */
#ifndef XSEG_VERSION_H
#define XSEG_VERSION_H

#define XSEG_VERSION_MAJOR 0
#define XSEG_VERSION_MINOR 9
#define XSEG_VERSION_PATCH 0
#define XSEG_VERSION_TEXT  "0.9.0"

#endif
