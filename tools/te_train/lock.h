/* lock.h - one run at a time saves to a folder. */
#ifndef LOCK_H
#define LOCK_H

/*
 * Lock a folder, if it is there, until *ret_fd is closed or the process ends; *ret_fd is -1 if
 * it is not there, or if its file system has no locks, which is told.
 */
int lock_folder(const char *dir, int *ret_fd);

#endif
