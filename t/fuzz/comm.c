/*
 * t/fuzz/comm.c - what ranks read from sockets, and texts of ids: any bytes, as a stream to an end
 * that waits for a challenge and to one that waits for an answer, and as frames with the MAC that
 * fits, so that what comes after its check is reached.
 */
#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <te/comm.h>

#include "libtecomm/meet/conn.h"

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

static const uint8_t key[TE__KEY_NBYTES] = { 1, 2, 3 }, nonce[TE__NONCE_NBYTES];

/* by a connection, which need not get all of it at once; sealed: in frames with MACs */
static void stream(const uint8_t *data, size_t nbytes, int connects, int sealed)
{
	const struct te__ends ends = { .key = key, .purpose = TE__FOR_MESH, .me = 1, .peer = 0,
				       .nonce = sealed ? nonce : NULL };
	const struct te__ends far_ends = { .key = key, .purpose = TE__FOR_MESH, .peer = 1,
					   .nonce = nonce };
	const uint8_t *end = data + nbytes;
	struct te__conn c, far;
	struct te__frame f;
	int fd[2], r = 0;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd))
		return;
	te__conn_open(&c, fd[0], &ends, connects);
	if (sealed)
		te__conn_open(&far, fd[1], &far_ends, 1);
	for (size_t n; data < end && r >= 0; data += n) {
		n = (size_t)(end - data) < 61 ? (size_t)(end - data) : 61;
		if (sealed) {
			/* a frame of the first byte's type and the second's size */
			if (end - data < TE__FRAME_HEAD)
				break;
			memset(&f, 0, sizeof(f));
			memcpy(&f.seq, data, sizeof(f.seq));
			memcpy(f.what, data + 8, sizeof(f.what) - 1);
			f.type = data[50];
			f.version = data[51];
			n = data[52] | (size_t)(data[53] & 7) << 8;
			if ((size_t)(end - data) < TE__FRAME_HEAD + n)
				n = (size_t)(end - data) - TE__FRAME_HEAD;
			te__conn_queue(&far, &f, data + TE__FRAME_HEAD, n);
			n += TE__FRAME_HEAD;
			if (te__conn_write(&far) != 1)
				break;
		} else if (send(fd[1], data, n, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)n) {
			break;
		}
		while ((r = te__conn_read(&c, TE__FRAME_STRANGER)) > 0) {
			bodies(c.in_body, c.in.nbytes);
			te__conn_next(&c);
		}
		if (sealed && r == -EBADMSG && n <= TE__FRAME_STRANGER)
			abort();
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
	struct te__challenge ch;

	if (nbytes > 4096)
		return 0;
	bodies(data, nbytes);
	te__challenge_get(data, nbytes, &ch);
	id_text(data, nbytes);
	stream(data, nbytes, 0, 0);
	stream(data, nbytes, 1, 0);
	stream(data, nbytes, 0, 1);
	return 0;
}
