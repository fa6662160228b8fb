/* t/tools/program.c - te_train --pipeline: programs of ranks, run with messages that wait. */
#include "config.h"

#include <errno.h>
#include <string.h>

#include "tools/te_train/program.h"
#include "tt.h"

enum { MOST_PARTS = 16, MOST_MICRO = 20, KINDS = 3 };

static const char *const names[] = { "gpipe", "1f1b", "interleaved", "zero-bubble" };

/* progress of all ranks */
static struct world {
	const struct program *p;
	int32_t next[MOST_PARTS];
	int done[KINDS][MOST_PARTS][MOST_MICRO];
	/* micro-batch whose value a plan has, -1: none: outputs and inputs by enum te_sched_kind */
	int32_t made[2][MOST_PARTS][MOST_MICRO], read[2][MOST_PARTS][MOST_MICRO];
} w;

static int32_t part(const struct pass *pass, int32_t rank)
{
	return pass->chunk * w.p->nranks + rank;
}

static int32_t plan(const struct pass *pass, int32_t rank)
{
	return pass->micro % w.p->rank[rank].nplans[pass->chunk];
}

static int32_t last_part(void)
{
	return w.p->nranks * w.p->nchunks - 1;
}

/* each pass has its operands, and its plan is not in use */
static void run_pass(int32_t rank, const struct pass *pass)
{
	const int32_t k = part(pass, rank), slot = plan(pass, rank), m = pass->micro;
	const int32_t n = w.p->rank[rank].nplans[pass->chunk];
	const int last = w.p->separate ? TE_SCHED_W : TE_SCHED_B;

	ck_assert(!w.done[pass->kind][k][m]);
	ck_assert(!m || w.done[pass->kind][k][m - 1]);
	if (pass->kind == TE_SCHED_F) {
		ck_assert(k == 0 || w.read[TE_SCHED_F][k][slot] == m);
		ck_assert(m < n || w.done[last][k][m - n]);
	}
	if (pass->kind == TE_SCHED_B) {
		ck_assert(w.done[TE_SCHED_F][k][m]);
		ck_assert(k == last_part() || w.read[TE_SCHED_B][k][slot] == m);
	}
	if (pass->kind == TE_SCHED_W)
		ck_assert(w.done[TE_SCHED_B][k][m]);
	w.done[pass->kind][k][m] = 1;
	if (pass->kind != TE_SCHED_W)
		w.made[pass->kind][k][slot] = m;
}

static const struct action *at(int32_t rank)
{
	const struct rank_program *r = &w.p->rank[rank];

	return w.next[rank] < r->nactions ? &r->action[w.next[rank]] : NULL;
}

/* a rank is at the message that another sends to it, or receives from it */
static int meets(int32_t from, int32_t to)
{
	const struct action *a = at(from), *b = at(to);

	return a && b && a->pass < 0 && b->pass < 0 && a->to == to && b->from == from;
}

static void carry(int32_t from, int32_t to)
{
	const struct pass *s = &at(from)->sends, *r = &at(to)->receives;
	const int last = w.p->separate ? TE_SCHED_W : TE_SCHED_B;
	const int32_t n = w.p->rank[to].nplans[r->chunk];

	ck_assert_int_eq(s->kind, r->kind);
	ck_assert_int_eq(s->micro, r->micro);
	ck_assert_int_eq(part(r, to) - part(s, from), s->kind == TE_SCHED_F ? 1 : -1);
	/* what is sent is there still; what is replaced is not read any more */
	ck_assert_int_eq(w.made[s->kind][part(s, from)][plan(s, from)], s->micro);
	if (r->kind == TE_SCHED_F)
		ck_assert(r->micro < n || w.done[last][part(r, to)][r->micro - n]);
	else
		ck_assert(w.done[TE_SCHED_F][part(r, to)][r->micro]);
	w.read[r->kind][part(r, to)][plan(r, to)] = r->micro;
}

/* all actions run, though a message waits for its receiver, and a call for both of its messages */
static void run(const struct program *p)
{
	int sent[MOST_PARTS] = { 0 }, got[MOST_PARTS] = { 0 }, more = 1;

	memset(&w, 0, sizeof(w));
	memset(w.made, -1, sizeof(w.made));
	memset(w.read, -1, sizeof(w.read));
	w.p = p;
	while (more) {
		more = 0;
		for (int32_t r = 0; r < p->nranks; r++) {
			const struct action *a = at(r);

			if (!a)
				continue;
			if (a->pass >= 0) {
				run_pass(r, &p->rank[r].pass[a->pass]);
			} else if (a->to >= 0 && !sent[r] && meets(r, a->to) && !got[a->to]) {
				carry(r, a->to);
				sent[r] = got[a->to] = 1;
				more = 1;
			}
			if (a->pass < 0 && (sent[r] != (a->to >= 0) || got[r] != (a->from >= 0)))
				continue;
			sent[r] = got[r] = 0;
			w.next[r]++;
			more = 1;
		}
	}
	for (int32_t r = 0; r < p->nranks; r++)
		ck_assert_int_eq(w.next[r], p->rank[r].nactions);
	for (int32_t k = 0; k <= last_part(); k++)
		for (int kind = 0; kind < 2 + p->separate; kind++)
			ck_assert(w.done[kind][k][p->nmicro - 1]);
}

CASE(program, "numeric");

TEST_EACH(program, all_passes_run_and_no_rank_waits_forever, TT_LEN(names))
{
	for (int32_t n = 2; n <= 8; n++)
		for (int32_t chunks = 1; chunks * n <= MOST_PARTS; chunks++)
			for (int32_t micro = 1; micro <= MOST_MICRO; micro++) {
				struct program p;

				if (chunks > 1 && !program_has_chunks(names[_i]))
					continue;
				ck_assert_int_eq(program_create(names[_i], n, chunks, micro, &p),
						 0);
				run(&p);
				program_free(&p);
			}
}

/* the fraction of time in which ranks wait, with passes of these times for one chunk */
static double bubble(const char *name, int32_t n, int32_t chunks, int32_t micro, double f, double b,
		     double weights)
{
	struct part_times time[MOST_PARTS];
	struct program p;
	double span;

	ck_assert_int_eq(program_create(name, n, chunks, micro, &p), 0);
	for (int32_t k = 0; k < n * chunks; k++)
		time[k] = (struct part_times){
			.pass = { (float)(f / chunks),
				  (float)((p.separate ? b : b + weights) / chunks),
				  p.separate ? (float)(weights / chunks) : 0 },
		};
	span = program_span(&p, time);
	program_free(&p);
	return 1 - micro * (f + b + weights) / span;
}

/*
 * N ranks wait for (N - 1) / (M + N - 1) of the time with M micro-batches, (N - 1) / (C M + N - 1)
 * with C chunks, and N - 1 passes of a third of the time with separate weight gradients: Narayanan
 * et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM" (2021),
 * 2.2; Qi et al., "Zero bubble pipeline parallelism" (2023), table 2.
 */
TEST(program, waits_are_those_of_the_papers)
{
	const double n = 4, m = 16, w_bubble = (n - 1) / (m * 3 + n - 1);

	ck_assert_double_eq_tol(bubble("gpipe", 4, 1, 16, 1, 1, 1), (n - 1) / (m + n - 1), 1e-6);
	ck_assert_double_eq_tol(bubble("1f1b", 4, 1, 16, 1, 1, 1), (n - 1) / (m + n - 1), 1e-6);
	ck_assert_double_eq_tol(bubble("interleaved", 4, 2, 16, 1, 1, 1), (n - 1) / (2 * m + n - 1),
				1e-6);
	ck_assert_double_eq_tol(bubble("interleaved", 4, 4, 16, 1, 1, 1), (n - 1) / (4 * m + n - 1),
				1e-6);
	ck_assert_double_eq_tol(bubble("zero-bubble", 4, 1, 16, 1, 1, 1), w_bubble, 1e-6);
}

/* one call between two passes sends the first's result and receives the second's operand */
TEST_EACH(program, one_call_is_between_passes_of_one_chunk, 2)
{
	for (int32_t n = 2; n <= 8; n++)
		for (int32_t micro = 1; micro <= MOST_MICRO; micro++) {
			struct program p;

			ck_assert_int_eq(program_create(names[_i], n, 1, micro, &p), 0);
			for (int32_t r = 0; r < n; r++)
				for (int32_t i = 1; i < p.rank[r].nactions; i++)
					ck_assert(p.rank[r].action[i].pass >= 0 ||
						  p.rank[r].action[i - 1].pass >= 0);
			program_free(&p);
		}
}

TEST(program, plans_are_as_many_as_micro_batches_in_progress)
{
	struct program p;

	ck_assert_int_eq(program_create("1f1b", 4, 1, 16, &p), 0);
	for (int32_t r = 0; r < 4; r++)
		ck_assert_int_eq(p.rank[r].nplans[0], 4 - r);
	program_free(&p);
	ck_assert_int_eq(program_create("gpipe", 2, 1, 5, &p), 0);
	ck_assert_int_eq(p.rank[1].nplans[0], 5);
	program_free(&p);
	/* as many as the first rank of 1f1b, at most */
	ck_assert_int_eq(program_create("zero-bubble", 4, 1, 16, &p), 0);
	for (int32_t r = 0; r < 4; r++)
		ck_assert_int_le(p.rank[r].nplans[0], 4);
	program_free(&p);
}

TEST(program, refuses_what_is_no_program)
{
	struct program p;

	ck_assert_int_eq(program_create("2f2b", 2, 1, 4, &p), -EINVAL);
	program_free(&p);
	ck_assert_int_eq(program_create("1f1b", 2, 2, 4, &p), -EINVAL);
	program_free(&p);
	ck_assert_int_eq(program_create("interleaved", 1, 2, 4, &p), -EINVAL);
	program_free(&p);
	ck_assert(!program_knows("2f2b"));
}

TT_MAIN("tools/program", TT_NEED_NOTHING)
