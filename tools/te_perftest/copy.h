/* copy.h - copies within the device, with which other tests are compared. */
#ifndef COPY_H
#define COPY_H

#include "call.h"

/* opens a call that copies nbytes; returns an exit status. call_close() closes it, in any case */
int copy_open(struct call *copy, struct bench *b, double nbytes);
/* adds to the row: us[0] of a call that moves nbytes, compared with us[1] of such a copy */
void copy_compare(struct bench *b, double nbytes, const struct stats *us);
/* columns of these figures; a test puts the keys that identify its rows before them */
extern const struct column copy_columns[];

#endif
