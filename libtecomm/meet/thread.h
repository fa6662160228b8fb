/* thread.h - threads of communicators: watches, nodes, and roots of ids. */
#ifndef TE__COMM_THREAD_H
#define TE__COMM_THREAD_H

#include <pthread.h>

/* te__thread_create() with a fault point and a message that begins with what */
int te__thread_start(pthread_t *thread, void *(*work)(void *arg), void *arg, const char *what);
/* makes the eventfd that the thread polls readable, and joins it */
void te__thread_stop(pthread_t thread, int stop);

/* returns a descriptor that is readable when the process has ended, or -1 */
int te__pidfd(int pid);

#endif
