/* SPDX-License-Identifier: MIT */
/*
 * Modules: the programme and the libraries that are loaded, and those that were.
 *
 * Terms:
 *   module     a file that was loaded: its path, its build id and the shape of its segments.  Another file
 *              that comes to the same path later is another module.
 *   placement  a module at a load address.  It is loaded or not; if the module comes to the same address
 *              again, it is loaded again.
 *   held       while the loader is held, no module comes or goes
 *
 * Only modules of the namespace that this library is loaded in are seen, not those of dlmopen().
 *
 * Invariants:
 *   MODULES-1  the placements in `loaded` rise and do not overlap, and all that are loaded are there.
 *   MODULES-2  no two modules are of the same path, build id and shape; no two placements are of the
 *              same module and address.
 *
 * Locking: the owner's lock covers every call.  Modules and placements are never moved and are valid as long as their
 * memory.  Only `is_loaded` changes in them, so they are read without the lock.
 */
#ifndef XSEG_BASE_MODULES_H
#define XSEG_BASE_MODULES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "src/base/bump.h"
#include "src/base/check.h"

struct xseg_module {
    struct xseg_module *next;
    const char *name;     /* as the loader has it */
    const char *path;     /* absolute where that could be found out */
    const char *build_id; /* in hexadecimal digits; NULL if it has none */
    uint64_t shape;       /* a hash of its segments */
};

struct xseg_module_placement {
    struct xseg_module_placement *next;
    struct xseg_module *module;
    uintptr_t base;       /* what is added to addresses of the file */
    uintptr_t start, end; /* the addresses it takes */
    atomic_bool is_loaded;
    bool was_seen; /* by the look that is under way */
};

struct xseg_modules {
    struct xseg_bump *memory;
    struct xseg_module *modules;
    struct xseg_module_placement *placements;
    const struct xseg_module_placement **loaded; /* by address */
    uint32_t loaded_count, loaded_room;
    bool is_known;                 /* nothing has been loaded or unloaded since the last look */
    unsigned long long adds, subs; /* of the loader, at the last look */
    uint64_t changes;              /* how often a placement was found loaded or unloaded */
};

/* Everything lies in `memory`, and ends with it. */
void xseg_modules_init(struct xseg_modules *modules, struct xseg_bump *memory);

/*
 * Hold the loader, look at what is loaded if that has changed, and call a function.
 *
 * run: must not load, unload, or ask for host memory
 *
 * Cost: some 50 ns if nothing was loaded or unloaded, else some 200 ns a module.
 */
void xseg_modules_hold(struct xseg_modules *modules, void (*run)(void *context), void *context);

/* The loaded placement that takes an address, as of the last look; or NULL. */
const struct xseg_module_placement *xseg_modules_find(const struct xseg_modules *modules,
                                                      uintptr_t address);

bool xseg_modules_audit(const struct xseg_modules *modules, struct xseg_finding *finding);

#endif
