/* t/comm/verbs_lib.c - see verbs_lib.h. */
#include "config.h"

#include <unistd.h>

#include "libtecomm/meet/agree.h"
#include "verbs_lib.h"

static struct te_comm_id id;
int vb_nranks = 2, vb_timeout_ms = 10000, vb_beat_ms = 20000;
size_t vb_mem_nbytes = 1 << 20;
size_t vb_device_nbytes[VB_RANKS];
int vb_device_fd = -1;
void (*vb_hello)(struct te__verbs_hello *h);
size_t vb_most;
int vb_count, vb_depth;
pthread_barrier_t vb_ready;
_Atomic int64_t vb_fault_ns;

static int32_t position(const struct vb_rank *r, int rank)
{
	return rank - (rank > r->rank);
}

static int send_hello(struct te__boot *boot)
{
	const size_t nbytes = te__verbs_hello_nbytes(vb_nranks);
	struct te__verbs_hello *own = calloc(1, nbytes);
	int e = 0;

	own->nports = own->nlanes = 1;
	own->port[0].mtu = IBV_MTU_1024;
	own->port[0].link_layer = IBV_LINK_LAYER_ETHERNET;
	vb_hello(own);
	te__free(te__gather(boot, &e, own, nbytes, "exchange of verbs addresses", 0));
	free(own);
	return e;
}

static int serve(struct vb_rank *r)
{
	struct te_comm_opts o = TE_COMM_OPTS_INIT;
	struct te__link_opts lo = { .timeout_ms = vb_timeout_ms, .heartbeat_ms = vb_beat_ms };
	int32_t peers[VB_RANKS];
	int e;

	o.rank = r->rank;
	o.nranks = r->nranks;
	o.id = &id;
	o.timeout_ms = 10000;
	e = te__boot_open(&o, &r->boot);
	if (e)
		return e;
	if (vb_hello && r->rank == 1)
		return send_hello(r->boot);
	for (int i = 0; i < r->nranks; i++)
		if (i != r->rank)
			peers[lo.npeers++] = i;
	lo.boot = r->boot;
	lo.peers = peers;
	lo.mem = r->mem;
	lo.device_nbytes = vb_device_nbytes[r->rank];
	lo.mem_nbytes = r->nbytes - lo.device_nbytes;
	lo.device = lo.device_nbytes ? r->mem + lo.mem_nbytes : NULL;
	lo.device_fd = vb_device_fd;
	e = te__link_open(&te__link_verbs, &lo, &r->link);
	r->opened = !e;
	r->direct = !e && r->link->direct;
	return e ? e : r->fn(r);
}

static void *work(void *arg)
{
	struct vb_rank *r = arg;

	verbs_fake_rank = r->rank;
	te_error_clear();
	r->result = serve(r);
	r->ms = (double)(te__boot_now() - vb_fault_ns) * 1e-6;
	snprintf(r->text, sizeof(r->text), "%s", te_error_detail());
	te__link_close(r->link);
	te__boot_close(r->boot);
	return NULL;
}

void vb_run(int (*fn)(struct vb_rank *r), struct vb_rank *r)
{
	const int64_t live = te__alloc_live();
	struct te_comm_root *root;

	te__verbs_replace(&verbs_fake_lib);
	ck_assert_int_eq(te_comm_id_create(&id, &root), 0);
	pthread_barrier_init(&vb_ready, NULL, (unsigned)vb_nranks);
	for (int i = 0; i < vb_nranks; i++) {
		r[i] = (struct vb_rank){ .rank = i, .nranks = vb_nranks, .fn = fn,
					 .nbytes = vb_mem_nbytes };
		ck_assert_int_eq(posix_memalign((void **)&r[i].mem, 64, vb_mem_nbytes), 0);
	}
	for (int i = 0; i < vb_nranks; i++)
		ck_assert_int_eq(pthread_create(&r[i].thread, NULL, work, &r[i]), 0);
	for (int i = 0; i < vb_nranks; i++)
		pthread_join(r[i].thread, NULL);
	for (int i = 0; i < vb_nranks; i++)
		free(r[i].mem);
	te_comm_root_unref(root);
	pthread_barrier_destroy(&vb_ready);
	ck_assert_int_eq(te__alloc_live(), live);
	ck_assert_int_eq(verbs_fake.nlive, 0);
	ck_assert_int_eq(verbs_fake.nmisuse, 0);
	ck_assert_int_eq(verbs_fake.nrnr, 0);
	ck_assert_int_le(verbs_fake.most_retries, 6);
}

void vb_all_ok(const struct vb_rank *r)
{
	for (int i = 0; i < vb_nranks; i++)
		ck_assert_msg(!r[i].result, "rank %d: %d: %s", i, r[i].result, r[i].text);
}

void vb_failed(const struct vb_rank *r, int code, const char *text)
{
	ck_assert_msg(r->result == code, "rank %d: %d, not %d: %s", r->rank, r->result, code,
		      r->text);
	ck_assert_msg(strstr(r->text, text) != NULL, "rank %d: \"%s\" has no \"%s\"", r->rank,
		      r->text, text);
}

int vb_exchange_all(struct vb_rank *r)
{
	int e = 0;

	for (int a = 0; a < r->nranks; a++)
		for (int b = a + 1; b < r->nranks && !e; b++) {
			struct link_stream s = {
				.link = r->link, .rank = r->rank, .mem = r->mem, .most = vb_most,
				.depth = vb_depth, .seed = tt_seed() + (uint64_t)(a * 8 + b),
			};

			s.peer = r->rank == a ? b : a;
			if (r->rank != a && r->rank != b)
				continue;
			s.i = position(r, s.peer);
			e = link_exchange(&s, vb_count);
		}
	return e;
}

void vb_happens(struct vb_rank *r, _Atomic int *bits, int value)
{
	pthread_barrier_wait(&vb_ready);
	if (!r->rank) {
		vb_fault_ns = te__boot_now();
		*bits |= value;
	}
	pthread_barrier_wait(&vb_ready);
}

int vb_talk(struct vb_rank *r)
{
	const struct te__link_counts *c = r->link->receives;
	int e = 0;

	for (uint64_t k = 1; k <= 3 && !e; k++) {
		e = te__link_recv(r->link, 0, r->mem, 1000);
		if (r->rank)
			usleep(1000);
		e = e ? e : te__link_send(r->link, 0, r->mem + 1000, 1000);
		while (!e && (c->complete < k || r->link->sends[0].complete < k))
			e = te__link_poll(r->link, te__boot_now() + 1000 * VB_MS);
	}
	return e;
}
