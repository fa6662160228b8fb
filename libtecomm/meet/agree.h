/*
 * agree.h - steps that all ranks take or none: one exchange of each rank's verdict and its record
 * for the others.
 */
#ifndef TE__AGREE_H
#define TE__AGREE_H

#include "libtecomm/meet/bootstrap.h"

/*
 * Collective. Returns 0 if the code of all ranks is 0; else the same code on all ranks, with the
 * error message of the rank that had it. Takes one exchange; `what` names it in messages.
 */
int te__agree(struct te__boot *boot, int code, const char *what);
/*
 * te__agree() with a record of nbytes from each rank. If the codes of all ranks are 0, returns the
 * records in rank order, to be released by te__free(). Else returns NULL, and *code is the error.
 * own: this rank's record, not read if *code is not 0. deadline_ns 0: te__boot_deadline().
 */
void *te__gather(struct te__boot *boot, int *code, const void *own, size_t nbytes,
		 const char *what, int64_t deadline_ns);

#endif
