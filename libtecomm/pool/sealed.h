/*
 * sealed.h - host memory that the ranks of a node share: a memfd that is sealed against changes of
 * its size, because a file that shrinks would end the processes that map it by SIGBUS.
 */
#ifndef TE__SEALED_H
#define TE__SEALED_H

#include <stddef.h>

/* a memfd of zeros; what: its name in messages */
int te__sealed_create(const char *what, size_t nbytes, int *ret_fd);
/* -EINVAL unless fd is one of that size; *ret is unmapped by munmap(2) */
int te__sealed_map(const char *what, int fd, size_t nbytes, void **ret);

#endif
