/*
 * agree.h - steps that all ranks take or none does: one exchange has the verdict of each rank on
 * its own part, and what it tells the others.
 */
#ifndef TE__AGREE_H
#define TE__AGREE_H

#include "libtecomm/meet/bootstrap.h"

/*
 * Collective. 0 if the code of all ranks is 0; else the same code on all of them, with the error
 * message of the rank that had it. Its cost is one exchange, which `what` names.
 */
int te__agree(struct te__boot *boot, int code, const char *what);
/*
 * The same, where each rank gives a record of nbytes too. If the codes of all ranks are 0, returns
 * the records in rank order, to be released by te__free(). Else returns NULL, and *code is the
 * error. own is not read if *code is not 0. deadline_ns: 0: te__boot_deadline().
 */
void *te__gather(struct te__boot *boot, int *code, const void *own, size_t nbytes,
		 const char *what, int64_t deadline_ns);

#endif
