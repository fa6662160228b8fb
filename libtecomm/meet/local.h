/*
 * local.h - local sockets that listen at abstract names, which need no folder and leave no file.
 *
 * The kernel chooses each name, so it reveals nothing and no other process has it. Ranks exchange
 * names. After a socket was closed, any user can take its name, so both ends of a connection check
 * the user of the other one (te__peer_check()).
 */
#ifndef TE__LOCAL_H
#define TE__LOCAL_H

#include <sys/socket.h>
#include <sys/un.h>

#define TE__LOCAL_NAME 16 /* bytes, which end with a 0 */

/* type: SOCK_STREAM or SOCK_SEQPACKET. 0, or errno values without a message */
int te__local_listen(int type, int backlog, int *ret_fd, char ret_name[TE__LOCAL_NAME]);
/* returns its length */
socklen_t te__local_address(const char *name, struct sockaddr_un *ret);

#endif
