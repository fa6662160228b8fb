/* t/capture/recording_faults.c - failing calls, and backend tables without entries. */
#include "config.h"

#include <te/capture.h>
#include <te/dtype.h>

#include "libtecore/tensor/ctx.h"
#include "recording_lib.h"

/* ---- faults ---- */

static unsigned char *sweep_d[2];

struct things {
	struct te_recording *rec;
	struct te_event *e, *f;
	char *text;
};

static int use_all(struct things *o)
{
	struct te_k_add k = { sweep_d[0], sweep_d[0], sweep_d[0], 16, TE_DTYPE_FP32, 0 };
	const struct te_access access = { o, sizeof(*o), TE_ACCESS_WRITE, -1 };
	int32_t s;
	int r, end;

#define ROW(call)                 \
	do {                      \
		r = call;         \
		if (r < 0)        \
			return r; \
	} while (0)
	ROW(te_event_create(ctx, &o->e));
	ROW(te_event_create(ctx, &o->f));
	for (int round = 0; round < 4; round++) {
		const int forks = round < 3;

		ROW(te_capture_begin(a));
		r = te_capture_edges(a, CONCURRENT_PDL);
		if (!r)
			r = te_fill(a, sweep_d[0], 1, 64);
		if (!r && round == 2)
			r = te_fill_u32(a, sweep_d[0], 2, 64);
		if (!r)
			r = te_event_record_external(o->e, a);
		if (!r)
			r = te_event_record(o->f, a);
		if (!r && forks)
			r = te_event_wait(o->f, b);
		if (!r)
			r = TE__LAUNCH(forks ? b : a, ADD, &k);
		if (!r)
			r = te_capture_access(a, 1, &access);
		if (!r)
			r = te_host_call(a, rec_nothing, &k, sizeof(k));
		if (!r)
			r = te_capture_access_end(a);
		if (!r && forks)
			r = te_event_record(o->f, b);
		if (!r && forks)
			r = te_event_wait(o->f, a);
		end = round ? te_capture_update(a, o->rec, NULL) : te_capture_end(a, &o->rec);
		/* the capture has ended even if a call in it failed */
		ROW(r);
		ROW(end);
		s = te_recording_binding(o->rec, sweep_d[0], 64, NULL);
		ROW(s);
		ROW(te_recording_rebind(o->rec, 1, &s, (void *[]){ sweep_d[1] }));
		ROW(te_recording_launch(o->rec, a));
		ROW(te_event_wait(o->e, b));
		ROW(te_recording_rebind(o->rec, 1, &s, (void *[]){ sweep_d[0] }));
		ROW(te_recording_dot(o->rec, "sweep", &o->text));
		free(o->text);
		ROW(te_stream_sync(a));
		ROW(te_stream_sync(b));
	}
#undef ROW
	return 0;
}

static int sweep(void)
{
	struct things o = { 0 };
	int r = use_all(&o);
	int ra = te_stream_sync(a), rb = te_stream_sync(b);

	/* queued launches have run: destruction must release everything */
	te_recording_unref(o.rec);
	te_event_unref(o.e);
	te_event_unref(o.f);
	return r ? r : ra ? ra : rb;
}

REC_CASE(faults);

TEST(faults, each_call_fails_cleanly)
{
	sweep_d[0] = rec_device(64);
	sweep_d[1] = rec_device(64);
	ck_assert_int_gt(tt_fault_each(sweep), 40);
}

/* ---- the table ---- */

CASE(table, "backend");

TEST(table, a_backend_may_lack_every_entry)
{
	struct te__backend_ops o = { .name = "none" };
	struct te__gnode n = { .id = 5 };

	te__backend_fill(&o);
	REFUSED(-EOPNOTSUPP, o.event_record_external, NULL, NULL);
	REFUSED(-EOPNOTSUPP, o.exec_update, NULL, NULL, 1);
	REFUSED(-EOPNOTSUPP, o.exec_patch, NULL, 0, NULL);
	o.graph_node(NULL, 0, &n);
	ck_assert_int_eq(n.kind, TE_NODE_OTHER);
	ck_assert_int_eq(n.opaque, 1);
}

/* offsets of pointers in argument structs are distinct, aligned and within the struct */
TEST(table, argument_pointers_are_within_the_struct)
{
	for (int id = 0; id < TE_K_COUNT; id++) {
		const uint16_t *at = NULL;
		uint32_t n = te__k_ptrs((enum te_k_id)id, &at);

		ck_assert_uint_ge(n, 1);
		/* one range each, two of a copy and the scratch of a GEMM */
		ck_assert_uint_le(n + 3, TE__RANGES_MAX);
		for (uint32_t k = 0; k < n; k++) {
			ck_assert_uint_eq(at[k] % sizeof(void *), 0);
			ck_assert_uint_le(at[k] + sizeof(void *), te__k_nbytes((enum te_k_id)id));
			for (uint32_t j = 0; j < k; j++)
				ck_assert_uint_ne(at[j], at[k]);
		}
	}
	ck_assert_uint_eq(te__k_ptrs(TE_K_COUNT, NULL), 0);
}
