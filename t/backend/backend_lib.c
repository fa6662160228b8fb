/* t/backend/backend_lib.c - see backend_lib.h. */
#include "config.h"

#include <te/dtype.h>
#include <te/errno.h>
#include "libtecore/base/private.h"

#include "backend_lib.h"
#include "tt_ctx.h"
#include "tt_gate.h"

const struct te__backend_ops *ops;
int is_host;
void *dev, *a, *b;

static struct {
	void *ptr[64];
	size_t nbytes[64];
	int kind[64];
	int n;
} owned;

void *bk_get(enum place where, size_t nbytes)
{
	void *p = NULL;

	ck_assert_int_lt(owned.n, (int)TT_LEN(owned.ptr));
	if (where == DEVICE) {
		DO(ops->mem_alloc(a, nbytes, &p));
		DO(ops->stream_sync(a)); /* so that b may use it */
	} else if (where == PINNED) {
		DO(ops->pinned_alloc(dev, nbytes, &p));
	} else {
		p = malloc(nbytes);
	}
	ck_assert_ptr_nonnull(p);
	owned.kind[owned.n] = where;
	owned.nbytes[owned.n] = nbytes;
	owned.ptr[owned.n++] = p;
	return p;
}

static void give_back(void)
{
	while (owned.n) {
		void *p = owned.ptr[--owned.n];

		if (owned.kind[owned.n] == DEVICE)
			DO(ops->mem_free(a, p, owned.nbytes[owned.n]));
		else if (owned.kind[owned.n] == PINNED)
			DO(ops->pinned_free(dev, p, owned.nbytes[owned.n]));
		else
			free(p);
	}
}

void bk_setup(void)
{
	ops = te__backend_by_name(backend);
	is_host = !strcmp(backend, "host");
	dev = a = b = NULL;
	tt_gate_setup();
	tt_hold_kernels();
	te_error_clear();
	DO(ops->open(&(struct te__open){ 0 }, &dev));
	DO(ops->stream_create(dev, &a));
	DO(ops->stream_create(dev, &b));
}

void bk_teardown(void)
{
	tt_gate_open();
	/* a test that failed may not have ended its capture */
	ops->stream_destroy(b);
	if (ops->capture_active(a)) {
		void *graph;

		if (!ops->capture_end(a, &graph))
			ops->graph_destroy(graph);
	}
	(void)ops->stream_sync(a);
	give_back();
	ops->stream_destroy(a);
	ops->close(dev);
	tt_gate_teardown();
}

void bk_hold_up(void *stream)
{
	tt_gate_close();
	DO(ops->host_call(stream, tt_gate_wait, NULL, 0));
}

void bk_move(void *dst, const void *src, size_t n)
{
	DO(ops->copy(a, dst, src, n));
	DO(ops->stream_sync(a));
}

void bk_poison(void *p, size_t n)
{
	void *t = malloc(n);

	tt_poison(t, n);
	bk_move(p, t, n);
	free(t);
}

void bk_check(const void *p, const void *want, size_t n, const char *what)
{
	unsigned char *got = malloc(n);
	size_t i = 0;

	bk_move(got, p, n);
	while (i < n && got[i] == ((const unsigned char *)want)[i])
		i++;
	ck_assert_msg(i == n, "%s: byte %zu of %zu is 0x%x, not 0x%x", what, i, n, got[i],
		      ((const unsigned char *)want)[i]);
	free(got);
}

void bk_check_filled(const void *p, int value, size_t n, const char *what)
{
	unsigned char *want = malloc(n);

	memset(want, value, n);
	bk_check(p, want, n, what);
	free(want);
}

struct te__mem_held bk_held(void)
{
	struct te__mem_held h;

	DO(ops->stream_sync(a));
	DO(ops->mem_held(dev, &h));
	ck_assert_uint_le(h.used_nbytes, h.peak_nbytes);
	ck_assert_uint_le(h.workspace_nbytes, h.used_nbytes);
	return h;
}

void bk_check_held(uint64_t before, const char *what)
{
	uint64_t now = bk_held().used_nbytes;

	ck_assert_msg(now == before, "%s: %llu bytes were held, now %llu", what,
		      (unsigned long long)before, (unsigned long long)now);
}

struct note {
	int *at;
	int value;
	unsigned char pad[1000]; /* more than a command of the host backend holds */
};

/* value where the pad arrived whole, else -1 */
static void write_note(void *arg)
{
	const struct note *n = arg;

	*n->at = n->value;
	for (size_t i = 0; i < sizeof(n->pad); i++)
		if (n->pad[i] != (unsigned char)(n->value + (int)i))
			*n->at = -1;
}

int bk_note(void *stream, int *at, int value)
{
	struct note n = { .at = at, .value = value };
	int r;

	for (size_t i = 0; i < sizeof(n.pad); i++)
		n.pad[i] = (unsigned char)(value + (int)i);
	r = ops->host_call(stream, write_note, &n, sizeof(n));
	memset(&n, 0, sizeof(n));
	return r;
}

void bk_increment(void *arg)
{
	++*(int *)arg;
}

void bk_fail_full(void *arg)
{
	te__k_fail(te__fail(-ENOSPC, "the disk of rank 3 is full"));
}

int bk_cast(void *stream, const float *x, void *y, int64_t n)
{
	struct te_k_cast k = {
		.x = x,
		.y = y,
		.n = n,
		.xdtype = TE_DTYPE_FP32,
		.ydtype = TE_DTYPE_BF16,
	};
	struct te__launch l = { TE_K_CAST, &k, sizeof(k) };
	int r = ops->launch(stream, &l);

	/* the backend has a copy */
	memset(&k, 0xff, sizeof(k));
	memset(&l, 0xff, sizeof(l));
	return r;
}
