/* state.c - times, texts, the failure and the values of a bootstrap, for all files of meet/. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "libtecomm/meet/join.h"

#define EAGER 200 /* looks before the first pause */
#define PAUSE_NS INT64_C(50000)
#define DOUBLED_MOST 5

/* ---- times and names ---- */

int64_t te__boot_now(void)
{
	return (int64_t)te__now_ns();
}

int64_t te__boot_pause_ns(int k)
{
	const int doubled = (k - EAGER) / 8;

	return k < EAGER ? 0 : PAUSE_NS << (doubled < DOUBLED_MOST ? doubled : DOUBLED_MOST);
}

void te__boot_pause(int k)
{
	const struct timespec t = { .tv_nsec = te__boot_pause_ns(k) };

	if (t.tv_nsec)
		nanosleep(&t, NULL);
	else
		sched_yield();
}

int te__poll(struct pollfd *p, size_t n, int64_t wake_ns)
{
	const int64_t left = wake_ns - te__boot_now();
	const int64_t ns = left > 0 ? left : 0;
	const struct timespec t = { ns / 1000000000, ns % 1000000000 };

	return ppoll(p, n, &t, NULL) < 0 && errno != EINTR ? -errno : 0;
}

const char *te__time_text(int64_t ns, char text[24])
{
	const long long ms = (ns + 999999) / 1000000;

	if (ms < 1000)
		snprintf(text, 24, "%lld ms", ms);
	else
		snprintf(text, 24, "%g s", (double)((ms + 50) / 100) / 10);
	return text;
}

const char *te__ranks_text(const uint8_t *in, int32_t nranks, char text[160])
{
	int32_t n = 0, listed = 0;
	size_t at = 0;

	for (int32_t r = 0; r < nranks; r++)
		n += in[r];
	at = (size_t)snprintf(text, 160, n == 1 ? "rank" : "ranks");
	for (int32_t r = 0; r < nranks && at < 100; r++)
		if (in[r])
			at += (size_t)snprintf(text + at, 160 - at, "%s%d", listed++ ? ", " : " ",
					       r);
	if (listed < n)
		at += (size_t)snprintf(text + at, 160 - at, " and %d more", n - listed);
	snprintf(text + at, 160 - at, " of %d", nranks);
	return text;
}

void te__hello_text(const struct te__hello *h, char text[TE__PEER_TEXT])
{
	snprintf(text, TE__PEER_TEXT, "rank %d (host %s, pid %u)", h->rank, h->host, h->pid);
}

void te__boot_hello(const struct te__boot *b, struct te__hello *ret_h)
{
	const int64_t left = (b->deadline - te__boot_now()) / 1000000;

	memset(ret_h, 0, sizeof(*ret_h));
	ret_h->rank = b->rank;
	ret_h->nranks = b->nranks;
	ret_h->pid = (uint32_t)getpid();
	ret_h->timeout_ms = (int32_t)((b->deadline - b->begin) / 1000000);
	ret_h->left_ms = left > 0 ? (int32_t)left : 0;
	snprintf(ret_h->version, sizeof(ret_h->version), "%s", PACKAGE_VERSION);
	if (gethostname(ret_h->host, sizeof(ret_h->host) - 1))
		snprintf(ret_h->host, sizeof(ret_h->host), "?");
}

const char *te__frame_differs(const struct te__frame *f, const char *me, char text[TE__REFUSE_MOST])
{
	if (f->version == TE__FRAME_VERSION)
		return NULL;
	snprintf(text, TE__REFUSE_MOST, "a rank speaks version %u of the bootstrap protocol, %s "
		 "version %u: they run different versions of libtecomm", f->version, me,
		 TE__FRAME_VERSION);
	return text;
}

const char *te__hello_differs(const struct te__hello *h, int32_t nranks, const char *me,
			      char text[TE__REFUSE_MOST])
{
	char other[TE__PEER_TEXT];

	te__hello_text(h, other);
	if (strcmp(h->version, PACKAGE_VERSION))
		snprintf(text, TE__REFUSE_MOST, "%s runs libtecomm %s, %s %s", other, h->version,
			 me, PACKAGE_VERSION);
	else if (h->nranks != nranks)
		snprintf(text, TE__REFUSE_MOST, "%s was told that there are %d ranks, %s %d", other,
			 h->nranks, me, nranks);
	else
		return NULL;
	return text;
}

/* ---- failure ---- */

void te__boot_note(struct te__boot *b, int code, const char *fmt, ...)
{
	va_list ap;

	pthread_mutex_lock(&b->fail_lock);
	if (!atomic_load(&b->fail_code)) {
		va_start(ap, fmt);
		vsnprintf(b->fail_text, sizeof(b->fail_text), fmt, ap);
		va_end(ap);
		atomic_store(&b->fail_code, code);
		eventfd_write(b->wake_fd, 1);
	}
	pthread_mutex_unlock(&b->fail_lock);
}

int te__boot_failed(const struct te__boot *b, const char *what)
{
	const int code = atomic_load(&b->fail_code);

	return code ? te__fail(code, "%s: %s: %s", what, b->name, b->fail_text) : 0;
}

const char *te__boot_why(const struct te__boot *b, int *ret_code)
{
	const int code = atomic_load(&b->fail_code);

	if (!code)
		return NULL;
	*ret_code = code;
	return b->fail_text;
}

void te__boot_tell(struct te__boot *b)
{
	uint8_t body[TE__REFUSE_MOST];
	size_t n;

	if (b->told)
		return;
	b->told = 1;
	n = te__refuse_put(body, atomic_load(&b->fail_code), b->fail_text);
	for (int32_t r = 0; r < b->nranks; r++) {
		struct te__conn *c = &b->peer[r];

		if (c->fd < 0 || (b->state[r] != TE__UP && b->state[r] != TE__GREETED))
			continue;
		/* a frame that is partly sent can only be truncated */
		if (!te__conn_pending(c) || !c->out_sent)
			te__conn_say(c, TE__FRAME_ABORT, body, n);
		shutdown(c->fd, SHUT_WR);
	}
}

int te__boot_fail(struct te__boot *b, int code, const char *what, const char *fmt, ...)
{
	char text[TE__REFUSE_MOST];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	te__boot_note(b, code, "%s", text);
	te__boot_tell(b);
	return te__boot_failed(b, what);
}

/* ---- values ---- */

int te__who_by_environment(struct te__boot *b)
{
	const int64_t rank = te__param_int(TE_PARAM_COMM_RANK);
	const int64_t nranks = te__param_int(TE_PARAM_COMM_NRANKS);

	/* the options have them, and the environment need not */
	if (b->nranks && !nranks)
		return 0;
	if (te__param_int(TE_PARAM_COMM_RESTARTS) > 0)
		return te__create_fail(b, -TE_ESTATE, "rank %lld was started again by te_run "
				       "--respawn: the ranks that it started with have met without "
				       "it", (long long)rank);
	if (nranks < 1 || nranks > TE__RANKS_MAX || rank < 0 || rank >= nranks)
		return te__create_fail(b, -EINVAL, "TE_COMM_RANK is %lld and TE_COMM_NRANKS is "
				       "%lld: expected a rank from 0 of 1 to %d ranks",
				       (long long)rank, (long long)nranks, TE__RANKS_MAX);
	b->rank = (int32_t)rank;
	b->nranks = (int32_t)nranks;
	return 0;
}

int32_t te__boot_rank(const struct te__boot *b)
{
	return b->rank;
}

int32_t te__boot_nranks(const struct te__boot *b)
{
	return b->nranks;
}

const char *te__boot_provider(const struct te__boot *b)
{
	return b->provider->name;
}

int32_t te__boot_timeout_ms(const struct te__boot *b)
{
	return b->timeout_ms;
}

int64_t te__boot_deadline(const struct te__boot *b)
{
	return te__boot_now() + (int64_t)b->timeout_ms * 1000000;
}

const uint8_t *te__boot_key(const struct te__boot *b)
{
	return b->secret;
}

int32_t te__boot_nnodes(const struct te__boot *b)
{
	return b->nnodes;
}

int32_t te__boot_node(const struct te__boot *b, int32_t rank)
{
	return b->node[rank];
}

int32_t te__boot_local_rank(const struct te__boot *b, int32_t rank)
{
	return b->local_rank[rank];
}

int32_t te__boot_nlocal(const struct te__boot *b)
{
	return b->nlocal;
}

int32_t te__boot_local(const struct te__boot *b, int32_t i)
{
	return b->local[i];
}

const char *te__boot_peer(const struct te__boot *b, int32_t rank)
{
	return b->text[rank];
}
