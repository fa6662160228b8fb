/* userns.h - users of other processes, as this process's user namespace has them. */
#ifndef TE__USERNS_H
#define TE__USERNS_H

#include <sys/types.h>

#include <te/export.h>

/*
 * The user id that SO_PEERCRED has for every user whom this user namespace does not map; (uid_t)-1:
 * it maps all. Reads /proc.
 */
TE_EXPORT uid_t te__overflow_uid(void);

#endif
