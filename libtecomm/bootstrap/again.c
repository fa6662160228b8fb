/*
 * again.c - ranks that had a bootstrap together meet: those of several nodes at the addresses of
 * their lineage, those of one by abstract local sockets, whose names they derive from its key.
 */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "libtecomm/bootstrap/lineage.h"

/* The name begins with a zero byte: it is abstract. All users see it, so it has half of the key. */
static void path_of(const struct te__boot *b, int32_t rank, struct sockaddr_un *un)
{
	char *at = un->sun_path + 1;

	*un = (struct sockaddr_un){ .sun_family = AF_UNIX };
	at += sprintf(at, "te-again-");
	for (size_t i = 0; i < sizeof(b->key) / 2; i++)
		at += sprintf(at, "%02x", b->key[i]);
	sprintf(at, "-%d", rank);
}

/* they are those of the options */
static int again_who(struct te__boot *b)
{
	(void)b;
	return 0;
}

static int again_meet(struct te__boot *b)
{
	struct sockaddr_un un;

	if (b->lineage)
		return te__lineage_addrs(b->lineage, b->addrs, &b->listen_fd);
	te__free(b->addrs);
	b->addrs = NULL;
	path_of(b, b->rank, &un);
	b->listen_fd = te__fault_point() ?
			       (errno = EMFILE, -1) :
			       socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (b->listen_fd < 0 ||
	    bind(b->listen_fd, (const struct sockaddr *)(const void *)&un, sizeof(un)) ||
	    listen(b->listen_fd, TE__RANKS_MAX))
		return te__fail(-errno, "%s: cannot listen on a local socket: %s",
				b->name, te_strerror(-errno));
	return 0;
}

static void again_dial(const struct te__boot *b, int32_t rank, struct te__dial *d)
{
	if (!b->lineage)
		path_of(b, rank, &d->path);
}

const struct te__boot_provider te__boot_again = {
	.name = "recover",
	.who = again_who,
	.meet = again_meet,
	.dial = again_dial,
};
