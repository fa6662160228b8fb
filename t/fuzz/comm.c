/*
 * t/fuzz/comm.c - what ranks read from sockets, and texts of ids: any bytes, as they are and with
 * the checksum that fits, so that what comes after its check is reached.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <te/comm.h>

#include "libtecomm/bootstrap/conn.h"

#include "fuzz.h"

#define NRANKS 8

static void bodies(const uint8_t *body, size_t nbytes)
{
	struct te__addrs addrs[NRANKS];
	char text[TE__REFUSE_MOST];
	uint8_t again[TE__HELLO_MOST];
	struct te__hello h;
	int code;

	if (!te__hello_get(body, nbytes, &h) && te__hello_put(again, &h) != nbytes)
		abort();
	if (!te__refuse_get(body, nbytes, &code, text) && code >= 0)
		abort();
	for (int32_t n = 0; n <= NRANKS; n++)
		te__table_get(body, nbytes, n, addrs);
}

/* by a connection, which need not get all of it at once */
static void stream(const uint8_t *data, size_t nbytes)
{
	struct te__conn c;
	int fd[2], r;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd))
		return;
	te__conn_open(&c, fd[0]);
	for (size_t at = 0; at < nbytes;) {
		const size_t n = nbytes - at < 61 ? nbytes - at : 61;

		if (send(fd[1], data + at, n, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)n)
			break;
		at += n;
		r = te__conn_read(&c, TE__FRAME_STRANGER);
		if (r < 0)
			break;
		if (r) {
			bodies(c.in_body, c.in.nbytes);
			te__conn_next(&c);
		}
	}
	te__conn_close(&c);
	close(fd[1]);
}

static void id_text(const uint8_t *data, size_t nbytes)
{
	char again[TE_COMM_ID_TEXT], *text = calloc(1, nbytes + 1);
	struct te_comm_id id, id2;

	memcpy(text, data, nbytes);
	if (!te_comm_id_parse(text, &id) &&
	    (te_comm_id_format(&id, again, sizeof(again)) || te_comm_id_parse(again, &id2) ||
	     memcmp(&id, &id2, sizeof(id))))
		abort();
	free(text);
	if (nbytes >= sizeof(id)) {
		memcpy(&id, data, sizeof(id));
		te_comm_id_format(&id, again, sizeof(again));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	struct te__frame f;
	uint8_t *copy;

	if (nbytes > 4096)
		return 0;
	bodies(data, nbytes);
	id_text(data, nbytes);
	stream(data, nbytes);
	if (nbytes < TE__FRAME_HEAD)
		return 0;
	copy = malloc(nbytes);
	memcpy(copy, data, nbytes);
	memcpy(copy, "teBs", 4);
	if (!te__frame_get(copy, UINT32_MAX, &f))
		te__frame_put(copy, &f, copy + TE__FRAME_HEAD, nbytes - TE__FRAME_HEAD);
	stream(copy, nbytes);
	free(copy);
	return 0;
}
