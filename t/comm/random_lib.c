/* t/comm/random_lib.c - see random_lib.h. */
#include "config.h"

#include <stdatomic.h>
#include <unistd.h>

#include "libtecomm/meet/boot.h"
#include "libtecore/base/splitmix64.h"
#include "random_lib.h"
#include "threads.h"

#define SLACK_MS TT_SLOWER(1000) /* after the time-out */
#define TRIES 10

int random_count(int ndefault)
{
	const char *s = getenv("TE_TEST_FAULTS");

	return s ? atoi(s) : TT_FEWER(ndefault);
}

void random_trials(void (*trial)(uint64_t seed), int ndefault)
{
	const uint64_t first = tt_seed();
	uint64_t x = first;

	for (int k = 0; k < random_count(ndefault); k++)
		trial(k ? te__splitmix64(&x) : first);
}

void random_draw(struct random_trial *t, uint64_t seed, uint64_t *ret_x)
{
	static const char *const layout[] = { "ab",   "aab",  "abb",   "abc",	"aabb",
					      "abab", "aabc", "aabbc", "abcab", "aaabb" };

	*ret_x = seed;
	te__splitmix64(ret_x);
	t->seed = seed;
	snprintf(t->nodes, sizeof(t->nodes), "%s", layout[te__splitmix64(ret_x) % TT_LEN(layout)]);
	t->n = (int)strlen(t->nodes);
}

void random_print(const struct random_trial *t)
{
	if (getenv("TE_TEST_FAULTS"))
		fprintf(stderr, "# %llu: %s of rank %d of %s%s\n", (unsigned long long)t->seed,
			t->fault, t->victim, t->nodes, t->early ? ", early" : "");
}

static uint32_t running(const struct random_trial *t)
{
	return ((1u << t->n) - 1) & ~t->absent;
}

int random_all_finished(const struct random_trial *t)
{
	return !(running(t) & ~t->finished);
}

/* 1: the rank tries again; 0: all have finished, and some may have gone */
static int withdraw(struct random_trial *t, int rank)
{
	uint32_t old = t->finished;

	do
		if (!(running(t) & ~old))
			return 0;
	while (!atomic_compare_exchange_weak(&t->finished, &old, old & ~(1u << rank)));
	return 1;
}

/* once; 0: a communicator that works, for some operations at least */
static int recover(struct joined *j, int timeout_ms)
{
	struct te_comm_recover_opts o = TE_COMM_RECOVER_OPTS_INIT;
	struct te_comm *next = NULL;
	int32_t ranks[RANKS_MAX];
	int r = 0;

	o.timeout_ms = timeout_ms;
	STEP(te_comm_recover(j->comm, &o, ranks, &next));
	nodes_succeed(j, next, ranks);
	for (int k = 0; k < 3 && !r; k++)
		r = nodes_reduce(j, 0);
	return r;
}

/* until all ranks that run have a communicator, or know that they get none */
static void recover_all(struct random_trial *t, struct joined *j, int timeout_ms)
{
	struct random_outcome *out = &t->out[j->who];
	int r = -TE_EPEER;

	t->nrecovering++;
	for (int tries = 0; r && tries < TRIES; tries++) {
		r = recover(j, timeout_ms);
		snprintf(out->why, sizeof(out->why), "%s", r ? te_error_detail() : "");
		out->too_few = r && strstr(out->why, "may continue without ");
		if (r == -EPROTO || r == -TE_ESTATE || out->too_few)
			break;
		if (r)
			continue;
		/* another rank may have failed in the last exchange of all */
		t->finished |= 1u << j->who;
		for (int ms = 0; !random_all_finished(t) && ms < 8000 && !r; ms++) {
			usleep(1000);
			r = te_comm_error(j->comm);
		}
		if (r && !withdraw(t, j->who))
			r = 0;
	}
	out->recovered = r;
	out->members = r ? 0 : nodes_members(j);
}

void random_ended(struct random_trial *t, const struct joined *j, int r)
{
	struct random_outcome *out = &t->out[j->who];

	out->ms = (double)(te__boot_now() - t->at_ns) * 1e-6;
	out->code = r;
	out->recovered = 1;
	snprintf(out->text, sizeof(out->text), "%s", r ? te_error_detail() : "");
}

void random_finish(struct random_trial *t, struct joined *j, int timeout_ms)
{
	const struct random_outcome *out = &t->out[j->who];

	if (out->code && out->created && out->code != -EPROTO)
		recover_all(t, j, timeout_ms);
	t->finished |= 1u << j->who;
	te_comm_unref(j->comm);
	te_ctx_unref(j->ctx);
	te_error_clear();
}

int random_is_late(const struct random_outcome *out)
{
	return out->code && out->ms >= RANDOM_TIMEOUT_MS * 1.125 + 2 * RANDOM_BEAT_MS + SLACK_MS;
}

void random_check_members(const struct random_trial *t)
{
	uint32_t members = 0;

	for (int i = 0; i < t->n; i++) {
		const uint32_t m = t->out[i].members;

		RANDOM_EXPECT(!m || m >> i & 1, t, i);
		RANDOM_EXPECT(!m || !members || m == members, t, i);
		members |= m;
	}
}
