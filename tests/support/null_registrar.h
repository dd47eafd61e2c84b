/* SPDX-License-Identifier: MIT */
/* A registrar whose callbacks do nothing. */
#ifndef XSEG_TESTS_NULL_REGISTRAR_H
#define XSEG_TESTS_NULL_REGISTRAR_H

#include "xseg/register.h"

static bool null_registrar_enter(void *context, struct xseg_registered *run)
{
    (void)context;
    (void)run;
    return true;
}

static void null_registrar_leave(void *context, const struct xseg_registered *run)
{
    (void)context;
    (void)run;
}

static inline struct xseg_registrar null_registrar(bool pin)
{
    struct xseg_registrar registrar = {sizeof(registrar), .enter = null_registrar_enter,
                                       .leave = null_registrar_leave, .pin = pin};

    return registrar;
}

#endif
