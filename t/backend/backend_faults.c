/* t/backend/backend_faults.c - every row fails cleanly. */
#include "config.h"

#include <unistd.h>

#include <te/capture.h>
#include <te/ctx.h>
#include <te/errno.h>
#include "libtecore/base/private.h"

#include "backend_lib.h"
#include "tt_ctx.h"

struct things {
	void *s, *t, *e, *f, *d, *pinned, *graph, *exec;
	void *share, *peer, *base, *page, *seen;
	size_t unit;
	int got, mapped, fd;
};

/* every row, on a device that is open; stops at the first that fails */
static int use_rows(struct things *o)
{
	struct te_recording_info i = TE_RECORDING_INFO_INIT;
	struct te_device_info d = TE_DEVICE_INFO_INIT;
	uint64_t left, total;
	double ms;
	int r;

#define ROW(call)                 \
	do {                      \
		r = call;         \
		if (r < 0)        \
			return r; \
	} while (0)
	ROW(ops->device_info(0, &d));
	ROW(ops->free_nbytes(0, &left));
	ROW(ops->dev_mem(dev, &left, &total));
	ROW(ops->stream_create(dev, &o->s));
	ROW(ops->stream_create(dev, &o->t));
	ROW(ops->event_create(dev, &o->e));
	ROW(ops->event_create(dev, &o->f));
	ROW(ops->mem_alloc(o->s, 4096, &o->d));
	ROW(ops->pinned_alloc(dev, 4096, &o->pinned));
	ROW(ops->share_unit(dev, &o->unit));
	ROW(ops->share_create(dev, o->unit, &o->share));
	ROW(ops->share_export(o->share, &o->fd));
	ROW(ops->share_import(dev, o->fd, o->unit, &o->peer));
	ROW(ops->share_reserve(dev, 3 * o->unit, &o->base));
	ROW(ops->share_map(o->share, o->base));
	o->mapped = 1;
	ROW(ops->share_map(o->peer, (char *)o->base + o->unit));
	o->mapped = 2;
	ROW(ops->page_register(dev, o->page, 4096, &o->seen));
	ROW(ops->word_set(o->s, o->seen, 1));
	ROW(ops->word_take(o->s, o->seen));
	ROW(ops->event_record(o->f, o->s));
	ROW(ops->fill8(o->s, o->d, 1, 100));
	ROW(ops->fill32(o->s, o->d, 2, 100));
	ROW(bk_cast(o->s, o->d, (char *)o->d + 2048, 30));
	ROW(ops->copy(o->s, o->pinned, o->d, 4000));
	ROW(bk_note(o->s, &o->got, 3));
	ROW(ops->event_record(o->e, o->s));
	ROW(ops->event_wait(o->e, o->t));
	ROW(ops->stream_sync(o->t));
	ROW(ops->event_query(o->e));
	ROW(ops->event_sync(o->e));
	ROW(ops->event_elapsed_ms(o->f, o->e, &ms));
	ROW(ops->stream_query(o->s));
	ROW(ops->capture_begin(o->s));
	ROW(ops->fill8(o->s, o->d, 1, 100));
	ROW(ops->event_record(o->e, o->s));
	ROW(ops->event_wait(o->e, o->t));
	ROW(bk_cast(o->t, o->d, (char *)o->d + 2048, 30));
	ROW(bk_note(o->t, &o->got, 3));
	ROW(ops->event_record(o->e, o->t));
	ROW(ops->event_wait(o->e, o->s));
	ROW(ops->copy(o->s, o->pinned, o->d, 4000));
	ROW(ops->capture_end(o->s, &o->graph));
	ROW(ops->graph_info(o->graph, &i));
	ROW(ops->graph_instantiate(o->graph, &o->exec));
	ROW(ops->graph_launch(o->exec, o->s));
	ROW(ops->stream_sync(o->s));
#undef ROW
	return i.nnodes == 4 && o->got == 3 ? 0 : -EPROTO;
}

/* destroy what there is: the fault has happened, so every call works */
static void drop(struct things *o)
{
	char detail[512];

	snprintf(detail, sizeof(detail), "%s", te_error_detail());
	if (o->graph && !o->exec)
		ops->graph_destroy(o->graph);
	if (o->s && ops->capture_active(o->s) && !ops->capture_end(o->s, &o->graph))
		ops->graph_destroy(o->graph);
	/* a faulted sync has not waited, and host calls in flight hold memory */
	if (o->s)
		ck_assert_int_eq(ops->stream_sync(o->s), 0);
	if (o->t)
		ck_assert_int_eq(ops->stream_sync(o->t), 0);
	if (o->exec)
		ops->exec_destroy(o->exec);
	if (o->d)
		ck_assert_int_eq(ops->mem_free(o->s, o->d, 4096), 0);
	if (o->s)
		ck_assert_int_eq(ops->stream_sync(o->s), 0);
	for (int i = 0; i < o->mapped; i++)
		ops->share_unmap(dev, (char *)o->base + (size_t)i * o->unit, o->unit);
	if (o->base)
		ops->share_unreserve(dev, o->base, 3 * o->unit);
	if (o->peer)
		ops->share_release(o->peer);
	if (o->share)
		ops->share_release(o->share);
	if (o->fd >= 0)
		close(o->fd);
	if (o->seen)
		ops->page_unregister(dev, o->page);
	if (o->pinned)
		ck_assert_int_eq(ops->pinned_free(dev, o->pinned, 4096), 0);
	if (o->e)
		ops->event_destroy(o->e);
	if (o->f)
		ops->event_destroy(o->f);
	if (o->t)
		ops->stream_destroy(o->t);
	if (o->s)
		ops->stream_destroy(o->s);
	if (detail[0])
		te__fail(-EPROTO, "%s", detail); /* restored, for the caller to check */
}

static int rows_once(void)
{
	static _Alignas(4096) unsigned char page[4096];
	struct things o = { .page = page, .fd = -1 };
	int r = use_rows(&o);

	/* without a fault nothing is left to go wrong below */
	if (r >= 0 && te__fault_fired())
		ck_abort_msg("a fault went by unseen");
	if (r >= 0)
		te__fault_set(0);
	drop(&o);
	return r;
}

BK_CASE(faults);

TEST(faults, each_row_fails_cleanly)
{
	uint64_t before;

	DO(rows_once()); /* what a first use allocates for good */
	before = bk_held().used_nbytes;
	ck_assert_int_ge(tt_fault_each(rows_once), 43);
	bk_check_held(before, "failing rows");
	DO(rows_once());
}

/* opening a GPU makes thousands of calls and takes long: some of them fail, each once */
TEST(faults, opening_fails_cleanly)
{
	int64_t live = te__alloc_live();
	uint64_t n = 1;
	void *d;
	int r;

	for (;; n = n * 3 / 2 + 1) {
		d = NULL;
		te_error_clear();
		te__fault_set(n);
		r = ops->open(&(struct te__open){ 0 }, &d);
		if (!te__fault_fired())
			break;
		te__fault_set(0);
		ck_assert_msg(r < 0, "fault %llu was not reported", (unsigned long long)n);
		ck_assert_str_ne(te_error_detail(), "");
		ck_assert_ptr_null(d);
		ck_assert_int_eq(te__alloc_live(), live);
	}
	te__fault_set(0);
	DO(r);
	ck_assert_uint_gt(n, 2);
	ops->close(d);
	ck_assert_int_eq(te__alloc_live(), live);
}
