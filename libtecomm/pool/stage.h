/*
 * stage.h - staging memory: host memory that the ranks of a node share, for data to and from other
 * nodes.
 */
#ifndef TE__STAGE_H
#define TE__STAGE_H

#include <stddef.h>

/* a memfd of zeros, sealed against changes of its size */
int te__stage_create(size_t nbytes, int *ret_fd);
/* -EINVAL unless fd is one of that size; *ret is unmapped by munmap(2) */
int te__stage_map(int fd, size_t nbytes, void **ret);

#endif
