/*
 * t/fuzz/ted.c - messages to ted(8), of any bytes, from two clients.
 *
 * The input is a list of packets: a byte with the client (bit 0), whether a descriptor comes along
 * (bit 1), whether the client reads what it was sent (bit 2), and whether the packet begins as a
 * message of the job does (bit 3); then the number of bytes, and these. 0xff in place of the first
 * byte is the end of the time to say HELLO.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/ted.h"
#include "fuzz.h"

static struct ted t;
static char folder[] = "/dev/shm/te-fuzz-XXXXXX";

static void remove_folder(void)
{
	(void)rmdir(folder);
}

static void connect_to(struct ted_client **ret_client, int *ret_sock)
{
	int s[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, s))
		abort();
	*ret_client = ted_client_add(&t, s[0]);
	if (!*ret_client)
		abort();
	*ret_sock = s[1];
}

static void one_packet(const uint8_t *data, size_t nbytes, int how, int sock)
{
	static _Alignas(8) uint8_t packet[512];
	struct te__wire m = { .magic = TE__WIRE_MAGIC, .key = { 1 } };
	char drain[16];

	memset(packet, 0, sizeof(packet));
	memcpy(packet, data, nbytes);
	if (how & 8) {
		/* the first byte is the kind, the next ones item and size */
		m.kind = packet[0];
		m.item = packet[1];
		m.nbytes = packet[2] * 4096u;
		memmove(packet + sizeof(m), packet + 3, sizeof(packet) - sizeof(m) - 3);
		memcpy(packet, &m, sizeof(m));
		nbytes = sizeof(m) + (nbytes > 3 ? nbytes - 3 : 0);
	}
	if (how & 2)
		(void)te__wire_send(sock, (void *)packet, packet + sizeof(m),
				    nbytes > sizeof(m) ? nbytes - sizeof(m) : 0, 0);
	else
		(void)send(sock, packet, nbytes, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (how & 4 && recv(sock, drain, sizeof(drain), MSG_DONTWAIT) > 0)
		;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	struct ted_client *c[2];
	struct ted_conf conf;
	int s[2];

	if (!t.client) {
		ted_conf_init(&conf);
		conf.clients = 4;
		conf.spill_files = 3;
		conf.spill_job = 1 << 20;
		conf.spill_keep = 0;
		strcpy(conf.spill, folder);
		if (!mkdtemp(conf.spill))
			abort();
		strcpy(folder, conf.spill);
		atexit(remove_folder);
		if (ted_init(&t, &conf))
			abort();
	}
	for (int i = 0; i < 2; i++)
		connect_to(&c[i], &s[i]);
	while (nbytes >= 2) {
		const int how = data[0], at = how & 1;
		size_t n = data[1];

		if (n > nbytes - 2)
			n = nbytes - 2;
		if (how == 0xff) {
			ted_client_late(&t, INT64_MAX);
		} else if (c[at]->fd >= 0) {
			one_packet(data + 2, n, how, s[at]);
			ted_client_read(&t, c[at]);
		}
		ted_client_reap(&t);
		data += 2 + n;
		nbytes -= 2 + n;
	}
	for (int i = 0; i < 2; i++) {
		close(s[i]);
		/* a burst is limited */
		while (c[i]->fd >= 0 && !c[i]->lost)
			ted_client_read(&t, c[i]);
	}
	ted_client_reap(&t);
	ted_spill_read(&t);
	/* nothing is left of them */
	if (ted_count(&t, TED_CLIENTS, 1, 0) || t.jobs || t.nlost)
		abort();
	return 0;
}
