/*
 * t/comm/model.c - the protocols of kernels/comm/comm.h as state machines, in all interleavings.
 *
 * Three ranks run three operations. A rank sends in each operation a packet to each other rank, or
 * sets its flag there, and waits for theirs; the steps of a kernel have only the order that the
 * protocol gives them. Reading a packet and emptying it are two steps. The search visits every
 * state that can be reached and stops at the first that breaks a rule, or in which no rank can
 * proceed. Of R, the ranks run four steps of one operation, in the order of the program. Variants
 * without one of the protocol's conditions must break a rule.
 */
#include "config.h"

#include <string.h>

#include "tt.h"
#include "tt_states.h"

#define N 3 /* ranks */
#define K 3 /* operations */
#define ALL ((1u << N) - 1)

/* ---- search: a step calls reach() for each next state and returns 0 if a rule is broken ---- */

struct packets {
	/* of kernel k of rank r, one bit for each other rank */
	uint8_t sent[N][K], read[N][K], emptied[N][K];
	/* 0: empty, or 1 + the operation: at rank r, from rank s, in buffer b */
	uint8_t slot[N][N][2];
};

struct flags {
	uint8_t op[N];		  /* that the rank is in */
	uint8_t set[N][2], seen[N][2]; /* in that operation, of entry and of exit */
	uint8_t flag[N][N][2];	  /* at rank r, from rank s: 1 + the operation */
};

struct stages {
	uint8_t at[N]; /* the next action of each rank */
	/* 0: empty, or 1 + the step: at rank r, from rank s, of inputs or results, in buffer b */
	uint8_t slot[N][N][2][2];
};

union state {
	struct packets p;
	struct flags f;
	struct stages g;
	uint64_t word[6];
};
_Static_assert(sizeof(union state) == 48, "no padding");

struct search {
	uint32_t variant;
	int moved; /* the latest step reached a state */
	struct tt_states states;
};

static void reach(struct search *x, const union state *s)
{
	x->moved = 1;
	tt_states_add(&x->states, s);
}

/* the number of states, or 0 if a rule is broken or no rank can proceed before the end */
static size_t search(int (*step)(struct search *, const union state *),
		     int (*is_end)(const union state *, uint32_t), uint32_t variant)
{
	struct search x = { .variant = variant, .states.nbytes = sizeof(union state) };
	union state s;
	int ok = 1;

	memset(&s, 0, sizeof(s));
	reach(&x, &s);
	for (size_t i = 0; i < x.states.n && ok; i++) {
		tt_states_get(&x.states, i, &s);
		x.moved = 0;
		ok = step(&x, &s) && (x.moved || is_end(&s, variant));
	}
	tt_states_free(&x.states);
	return ok ? x.states.n : 0;
}

/* ---- packets: L1, P1, P2 and headers ---- */

#define ONE_BUFFER 1u	 /* instead of two */
#define EARLY_SEND 2u	 /* kernel k + 1 sends while kernel k runs */
#define EARLY_RECEIVE 4u /* kernel k + 1 receives while kernel k runs */
#define ONE_WAY 8u	 /* only rank 0 sends */

static uint32_t others(int r)
{
	return ALL & ~(1u << r);
}

static uint32_t to_send(uint32_t variant, int r)
{
	return variant & ONE_WAY && r ? 0 : others(r);
}

static uint32_t to_receive(uint32_t variant, int r)
{
	return variant & ONE_WAY ? others(r) & 1 : others(r);
}

static int has_ended(const struct packets *p, uint32_t variant, int r, int k)
{
	return k < 0 ||
	       (p->sent[r][k] == to_send(variant, r) && p->emptied[r][k] == to_receive(variant, r));
}

/* may kernel k of rank r proceed, with the kernel before it still running or not? */
static int may(const struct packets *p, uint32_t variant, int r, int k, uint32_t early)
{
	return has_ended(p, variant, r, k - 1) ||
	       (variant & early && has_ended(p, variant, r, k - 2));
}

static int packets_step(struct search *x, const union state *s)
{
	const uint32_t v = x->variant;

	for (int r = 0; r < N; r++)
		for (int k = 0; k < K; k++)
			for (int o = 0; o < N; o++) {
				const int b = v & ONE_BUFFER ? 0 : k % 2;
				const uint8_t bit = (uint8_t)(1u << o);
				union state t = *s;
				struct packets *p = &t.p;

				if (may(&s->p, v, r, k, EARLY_SEND) &&
				    to_send(v, r) & bit & ~p->sent[r][k]) {
					if (p->slot[o][r][b])
						return 0; /* overwrites a packet */
					p->sent[r][k] |= bit;
					p->slot[o][r][b] = (uint8_t)(1 + k);
					reach(x, &t);
					t = *s;
				}
				if (!may(&s->p, v, r, k, EARLY_RECEIVE))
					continue;
				if (to_receive(v, r) & bit & ~p->read[r][k] && p->slot[r][o][b]) {
					if (p->slot[r][o][b] != 1 + k)
						return 0; /* of another operation */
					p->read[r][k] |= bit;
					reach(x, &t);
				} else if (p->read[r][k] & bit & ~p->emptied[r][k]) {
					if (p->slot[r][o][b] != 1 + k)
						return 0; /* empties another packet */
					p->emptied[r][k] |= bit;
					p->slot[r][o][b] = 0;
					reach(x, &t);
				}
			}
	return 1;
}

static int packets_end(const union state *s, uint32_t variant)
{
	for (int r = 0; r < N; r++)
		if (!has_ended(&s->p, variant, r, K - 1))
			return 0;
	return 1;
}

START_TEST(two_buffers_lose_no_packet)
{
	ck_assert_uint_gt(search(packets_step, packets_end, 0), 10000);
}
END_TEST

START_TEST(one_buffer_does)
{
	ck_assert_uint_eq(search(packets_step, packets_end, ONE_BUFFER), 0);
}
END_TEST

START_TEST(overlapping_kernels_must_not_send_early)
{
	ck_assert_uint_eq(search(packets_step, packets_end, EARLY_SEND), 0);
	ck_assert_uint_eq(search(packets_step, packets_end, EARLY_SEND | EARLY_RECEIVE), 0);
	ck_assert_uint_gt(search(packets_step, packets_end, EARLY_RECEIVE), 10000);
}
END_TEST

START_TEST(a_rank_that_waits_for_none_must_not_send)
{
	ck_assert_uint_eq(search(packets_step, packets_end, ONE_WAY), 0);
}
END_TEST

/* ---- flags: S ---- */

#define NO_ENTRY 1u /* does not wait for entry flags */
#define NO_EXIT 2u  /* does not wait for exit flags */

/* between these flags, a rank reads inputs and writes outputs of the others */
static int accesses(const struct flags *f, uint32_t variant, int r)
{
	return f->set[r][0] == others(r) && (variant & NO_ENTRY || f->seen[r][0] == others(r)) &&
	       f->set[r][1] == 0;
}

/* its arrays may be accessed */
static int is_inside(const struct flags *f, int r, int op)
{
	return f->op[r] == op && f->set[r][0];
}

static int flags_step(struct search *x, const union state *s)
{
	const uint32_t v = x->variant;

	for (int r = 0; r < N; r++) {
		const struct flags *f = &s->f;
		const uint8_t op = f->op[r];
		/* the phase whose flags are set and awaited next */
		const int entered = v & NO_ENTRY ? f->set[r][0] == others(r) :
						   f->seen[r][0] == others(r);
		const int phase = entered && f->set[r][0] == others(r);
		union state t = *s;

		if (op == K)
			continue;
		for (int o = 0; o < N && accesses(f, v, r); o++)
			if (o != r && !is_inside(f, o, op))
				return 0; /* accesses arrays of another operation */
		if (f->set[r][1] == others(r) &&
		    (v & NO_EXIT || f->seen[r][1] == others(r))) {
			t.f.op[r]++;
			memset(t.f.set[r], 0, sizeof(t.f.set[r]));
			memset(t.f.seen[r], 0, sizeof(t.f.seen[r]));
			reach(x, &t);
			t = *s;
		}
		for (int o = 0; o < N; o++) {
			const uint8_t bit = (uint8_t)(1u << o);

			if (others(r) & bit & ~f->set[r][phase]) {
				t.f.set[r][phase] |= bit;
				t.f.flag[o][r][phase] = (uint8_t)(1 + op);
				reach(x, &t);
				t = *s;
			}
			if (others(r) & bit & ~f->seen[r][phase] &&
			    f->flag[r][o][phase] == 1 + op) {
				t.f.seen[r][phase] |= bit;
				reach(x, &t);
				t = *s;
			}
		}
	}
	return 1;
}

static int flags_end(const union state *s, uint32_t variant)
{
	(void)variant;
	for (int r = 0; r < N; r++)
		if (s->f.op[r] != K)
			return 0;
	return 1;
}

START_TEST(entry_and_exit_flags_protect_the_arrays)
{
	ck_assert_uint_gt(search(flags_step, flags_end, 0), 1000);
}
END_TEST

START_TEST(each_of_both_flags_is_needed)
{
	ck_assert_uint_eq(search(flags_step, flags_end, NO_ENTRY), 0);
	ck_assert_uint_eq(search(flags_step, flags_end, NO_EXIT), 0);
}
END_TEST

/* ---- staging memory: R ---- */

#define T 4 /* steps */
#define ONE_OF_INPUTS 1u  /* one buffer instead of two */
#define ONE_OF_RESULTS 2u
#define ONE_PHASE 4u /* no results: reduce-scatter and all-gather */
#define NO_WAIT 8u   /* for exit flags */

enum action { WRITE, SET, AWAIT, READ };

/* what each rank does, in order: kind 0 is inputs and entry flags, 1 results and exit flags */
static struct {
	uint8_t action, kind, step, peer;
} todo[128];
static uint8_t ntodo;

static void add(enum action action, int kind, int step)
{
	for (int k = 1; k < (action == SET ? 2 : N); k++) {
		todo[ntodo].action = (uint8_t)action;
		todo[ntodo].kind = (uint8_t)kind;
		todo[ntodo].step = (uint8_t)step;
		todo[ntodo++].peer = (uint8_t)k;
	}
}

/* the order of staged() in algorithms.cuh */
static void todo_make(uint32_t variant)
{
	ntodo = 0;
	add(WRITE, 0, 0);
	add(SET, 0, 0);
	for (int t = 0; t < T; t++) {
		add(AWAIT, 0, t);
		add(READ, 0, t);
		if (!(variant & ONE_PHASE))
			add(WRITE, 1, t);
		add(SET, 1, t);
		if (t + 1 < T) {
			add(WRITE, 0, t + 1);
			add(SET, 0, t + 1);
		}
		if (!(variant & NO_WAIT))
			add(AWAIT, 1, t);
		if (!(variant & ONE_PHASE))
			add(READ, 1, t);
	}
}

/* flags of this kind that a rank has set */
static int flags_of(const struct stages *g, int r, int kind)
{
	int n = 0;

	for (int i = 0; i < g->at[r]; i++)
		n += todo[i].action == SET && todo[i].kind == kind;
	return n;
}

static int stages_step(struct search *x, const union state *s)
{
	for (int r = 0; r < N; r++) {
		union state t = *s;
		uint8_t *at = &t.g.at[r], *slot;
		int kind, step, peer, buffer, set;

		if (*at == ntodo)
			continue;
		kind = todo[*at].kind;
		step = todo[*at].step;
		peer = (r + todo[*at].peer) % N;
		buffer = x->variant & (kind ? ONE_OF_RESULTS : ONE_OF_INPUTS) ? 0 : step % 2;
		set = flags_of(&s->g, peer, kind);
		slot = todo[*at].action == READ ? &t.g.slot[r][peer][kind][buffer] :
						  &t.g.slot[peer][r][kind][buffer];
		switch (todo[(*at)++].action) {
		case WRITE:
			if (*slot)
				return 0; /* overwrites what has not been read */
			*slot = (uint8_t)(1 + step);
			break;
		case AWAIT:
			if (set > step + 2)
				return 0; /* more than one step further */
			if (set <= step)
				continue;
			break;
		case READ:
			if (*slot != 1 + step)
				return 0; /* of another step */
			*slot = 0;
			break;
		}
		reach(x, &t);
	}
	return 1;
}

static int stages_end(const union state *s, uint32_t variant)
{
	(void)variant;
	for (int r = 0; r < N; r++)
		if (s->g.at[r] != ntodo)
			return 0;
	return 1;
}

static size_t stages_search(uint32_t variant)
{
	todo_make(variant);
	return search(stages_step, stages_end, variant);
}

START_TEST(two_buffers_of_inputs_and_of_results_are_enough)
{
	ck_assert_uint_gt(stages_search(0), 1000);
	ck_assert_uint_gt(stages_search(ONE_PHASE), 1000);
}
END_TEST

START_TEST(one_buffer_of_either_is_not)
{
	ck_assert_uint_eq(stages_search(ONE_OF_INPUTS), 0);
	ck_assert_uint_eq(stages_search(ONE_OF_RESULTS), 0);
	ck_assert_uint_eq(stages_search(ONE_PHASE | ONE_OF_INPUTS), 0);
}
END_TEST

START_TEST(exit_flags_of_each_step_are_needed_for_results)
{
	ck_assert_uint_eq(stages_search(NO_WAIT), 0);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("comm/model");
	TCase *c = tt_case(s, "packets", "protocol");

	tcase_add_test(c, two_buffers_lose_no_packet);
	tcase_add_test(c, one_buffer_does);
	tcase_add_test(c, overlapping_kernels_must_not_send_early);
	tcase_add_test(c, a_rank_that_waits_for_none_must_not_send);
	c = tt_case(s, "flags", "protocol");
	tcase_add_test(c, entry_and_exit_flags_protect_the_arrays);
	tcase_add_test(c, each_of_both_flags_is_needed);
	c = tt_case(s, "steps", "protocol");
	tcase_add_test(c, two_buffers_of_inputs_and_of_results_are_enough);
	tcase_add_test(c, one_buffer_of_either_is_not);
	tcase_add_test(c, exit_flags_of_each_step_are_needed_for_results);
	return s;
}

TT_MAIN("comm/model", TT_NEED_NOTHING, suite)
