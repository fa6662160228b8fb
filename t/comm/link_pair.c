/*
 * t/comm/link_pair.c - one of two ranks, which the environment names, that exchange messages over
 * a link: for tests in virtual machines, and by hand.
 *
 * link_pair TRANSPORT MODE [BYTES [COUNT]]
 *	check: COUNT random messages of at most BYTES each way, again and again for as long as
 *	       TE_LINK_SECONDS says (once), until it fails if that is below 0
 *	lat:   COUNT round trips
 *	bw:    COUNT messages from rank 0 to rank 1
 *	idle:  nothing, for COUNT heartbeats
 * Exit status: 0; 1 the link could not be opened; 3 it failed; 5 wrong data. The time of a failure
 * is that since the last message.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libtecore/base/private.h"
#include "link_lib.h"
#include "libtecomm/reach/reach.h"

#define DEPTH 16

static double last_s; /* of the last message */

static double now_s(void)
{
	return (double)te__boot_now() * 1e-9;
}

static int env_int(const char *name, int dflt)
{
	const char *s = getenv(name);

	return s ? atoi(s) : dflt;
}

static int check(const struct link_stream *s, int count)
{
	const double end = now_s() + env_int("TE_LINK_SECONDS", 0);
	struct link_stream t = *s;
	int r;

	do {
		r = link_exchange(&t, count);
		t.seed++;
		last_s = r ? last_s : now_s();
	} while (!r && (now_s() < end || env_int("TE_LINK_SECONDS", 0) < 0));
	return r;
}

static int latency(const struct link_stream *s, int count)
{
	struct te__link *l = s->link;
	const int first = s->rank < s->peer;
	double t0 = 0;
	int r = te__link_recv(l, 0, s->mem, s->most);

	for (int n = -10; n < count && !r; n++) { /* the first ones are not counted */
		const uint64_t k = (uint64_t)(n + 11);

		if (!n)
			t0 = now_s();
		if (first)
			r = te__link_send(l, 0, s->mem + s->most, s->most);
		if (!r)
			r = te__link_wait_receives(l, 0, k);
		if (!r && n + 1 < count)
			r = te__link_recv(l, 0, s->mem, s->most);
		if (!first && !r)
			r = te__link_send(l, 0, s->mem + s->most, s->most);
		last_s = r ? last_s : now_s();
	}
	if (!r)
		r = te__link_wait_sends(l, 0, (uint64_t)count + 10);
	if (!r && first)
		printf("%s %zu bytes: %.1f us half round trip\n", l->ops->name, s->most,
		       (now_s() - t0) / count / 2 * 1e6);
	return r;
}

static int bandwidth(const struct link_stream *s, int count)
{
	struct te__link *l = s->link;
	const double t0 = now_s();
	int r = 0;

	for (int n = 0; n < count && !r; n++) {
		uint8_t *at = s->mem + (size_t)(n % DEPTH) * s->most;

		if (n >= DEPTH)
			r = s->rank ? te__link_wait_receives(l, 0, (uint64_t)(n - DEPTH + 1))
				    : te__link_wait_sends(l, 0, (uint64_t)(n - DEPTH + 1));
		if (!r)
			r = s->rank ? te__link_recv(l, 0, at, s->most)
				    : te__link_send(l, 0, at, s->most);
	}
	if (!r)
		r = s->rank ? te__link_wait_receives(l, 0, (uint64_t)count)
			    : te__link_wait_sends(l, 0, (uint64_t)count);
	if (!r && !s->rank)
		printf("%s %zu bytes: %.1f MB/s\n", l->ops->name, s->most,
		       (double)s->most * count / (now_s() - t0) * 1e-6);
	return r;
}

static int idle(const struct link_stream *s, int count)
{
	const double end = now_s() + count * s->link->o.heartbeat_ms * 1e-3;
	int r = 0;

	last_s = now_s();
	while (!r && now_s() < end)
		r = te__link_poll(s->link, te__boot_now() + 1000000000);
	return r;
}

static int run(const struct te__link_ops *ops, struct te__boot *boot, const char *mode, size_t most,
	       int count)
{
	struct link_stream s = { .rank = te__boot_rank(boot), .most = most, .depth = DEPTH };
	const int32_t peer = !s.rank;
	struct te__link_opts o = { .boot = boot, .peers = &peer, .npeers = 1 };
	int r, status;

	o.mem_nbytes = 2 * DEPTH * (most ? most : 1);
	o.mem = s.mem = te__aligned_alloc(4096, o.mem_nbytes);
	o.timeout_ms = env_int("TE_LINK_TIMEOUT_MS", 30000);
	o.heartbeat_ms = env_int("TE_LINK_HEARTBEAT_MS", 1000);
	memset(s.mem, 0, o.mem_nbytes);
	s.peer = peer;
	s.seed = 42;
	r = te__link_open(ops, &o, &s.link);
	if (r) {
		printf("rank %d: %s\n", s.rank, te_error_detail());
		te__free(s.mem);
		return 1;
	}
	last_s = now_s();
	if (!strcmp(mode, "check"))
		r = check(&s, count);
	else if (!strcmp(mode, "lat"))
		r = latency(&s, count);
	else if (!strcmp(mode, "bw"))
		r = bandwidth(&s, count);
	else
		r = idle(&s, count);
	if (r)
		printf("rank %d: after %.0f ms: %s: %s\n", s.rank, (now_s() - last_s) * 1e3,
		       te_strerror(r), te_error_detail());
	status = r == -EBADMSG ? 5 : r ? 3 : 0;
	te__link_close(s.link);
	te__free(s.mem);
	return status;
}

int main(int argc, char **argv)
{
	const struct te__link_ops *ops = argc > 2 ? te__reach_link_of(argv[1]) : NULL;
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te__boot *boot;
	int status;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!ops) {
		fprintf(stderr, "usage: link_pair TRANSPORT check|lat|bw|idle [BYTES [COUNT]]\n");
		return 2;
	}
	if (ops->probe()) {
		printf("%s\n", te_error_detail());
		return 77;
	}
	if (te__boot_open(&o, &boot)) {
		printf("%s\n", te_error_detail());
		return 1;
	}
	status = run(ops, boot, argv[2], argc > 3 ? strtoul(argv[3], NULL, 0) : 65536,
		     argc > 4 ? atoi(argv[4]) : 100);
	te__boot_close(boot);
	return status;
}
