/* lock.h - one run at a time saves to a folder. */
#ifndef LOCK_H
#define LOCK_H

#include "tools/lib/folder.h"

/*
 * Lock a folder until *ret_fd is closed or the process ends; *ret_fd is -1 if its file system has
 * no locks; a message says so. wait_s: seconds to wait for another run that has it locked.
 */
int lock_folder(const struct folder *dir, double wait_s, int *ret_fd);

/* lock a file; 0, or -1 with errno, EWOULDBLOCK after wait_s seconds */
int lock_wait(int fd, double wait_s);

#endif
