/* te/comm.h - libtecomm. */
#ifndef TE_COMM_H
#define TE_COMM_H

#include <te/export.h>

TE_BEGIN_DECLS

/**
 * te_comm_version - the version of the libtecomm that runs, as "0.1.0"
 *
 * Thread: any thread.
 * Since:  0.1
 */
TE_EXPORT const char *te_comm_version(void);

TE_END_DECLS

#endif
