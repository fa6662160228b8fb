/* ted_space.h - a ted(8) with spill space, and a client of it, for programs of its files. */
#ifndef TED_SPACE_H
#define TED_SPACE_H

#include "libtecore/offload/spill.h"
#include "tt_ted.h"

#define MIB ((uint64_t)1 << 20)

/* a folder where files without a name can be created; in memory where the test's folder has none */
extern char space[96];
extern int space_in_memory; /* set before space_begin(): always in memory */
void space_create(void);
/* creates it, and starts run with it and lines of its configuration */
void space_begin(const char *fmt, ...) TE_PRINTF(1, 2);
/* stops it; all files are gone by themselves */
void space_end(void);

/* options of a te_spill in run's space */
struct te__spill_opts space_opts(uint64_t nbytes);
/* writes random bytes from the arena, and compares those that it reads; 0, a code, or 1 */
int space_use(struct te__spill *spill, struct te__pinned *arena, uint32_t group);

#endif
