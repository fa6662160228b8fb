/*
 * t/comm/model.c - the protocols of kernels/comm/comm.h as state machines, in all interleavings.
 *
 * Of packets, two ranks run five operations: in each, a rank sends a header and a packet of data
 * and receives those of the other. Reading one, emptying it, and the moment when all others see
 * that are three steps, of which only a fence makes sure of the last. Of flags, three ranks run
 * three operations. The steps of a kernel have only the order that the protocol gives them. The
 * search visits every state that can be reached and stops at the first that breaks a rule, or in
 * which no rank can proceed. Of staged, three ranks run four steps of one operation, in the order
 * of the program. Variants without one of the protocol's conditions must break a rule.
 */
#include "config.h"

#include "tt.h"
#include "tt_states.h"

#define N 3 /* ranks */
#define K 3 /* operations */
#define PK 5 /* operations of packets, of two ranks */
#define ALL ((1u << N) - 1)

/* ---- search: a step calls reach() for each next state and returns 0 if a rule is broken ---- */

struct packets {
	uint8_t done[2][PK]; /* DONE() of a rank in an operation */
	/* 0: empty, or 1 + the operation: at a rank, header or data, in each buffer */
	uint8_t slot[2][2][3];
};

struct flags {
	uint8_t op[N];		  /* operation of the rank */
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

static uint32_t others(int r)
{
	return ALL & ~(1u << r);
}

/* ---- packets: ll, oneshot, twoshot and headers ---- */

#define ONE_BUFFER 1u	 /* instead of three */
#define TWO_BUFFERS 2u
#define LATE_FENCE 4u	 /* after the kernel before, instead of the one before that */
#define NO_FENCE 8u
#define EARLY_SEND 16u	 /* kernel k + 1 sends while kernel k runs */
#define EARLY_RECEIVE 32u /* kernel k + 1 receives while kernel k runs */
#define ONE_WAY 64u	 /* only rank 0 sends */

enum { HEADER, DATA }; /* kinds */
enum { SENT, TAKEN, EMPTIED, SEEN };
#define DONE(action, kind) (1u << (2 * (action) + (kind)))

static int sends(uint32_t variant, int r)
{
	return !(variant & ONE_WAY) || r == 0;
}

/* steps of rank r in each operation, without SEEN */
static uint32_t todo_of(uint32_t variant, int r)
{
	uint32_t bits = 0;

	for (int kind = HEADER; kind <= DATA; kind++) {
		bits |= sends(variant, r) ? DONE(SENT, kind) : 0;
		bits |= sends(variant, 1 - r) ? DONE(TAKEN, kind) | DONE(EMPTIED, kind) : 0;
	}
	return bits;
}

static int has_ended(const struct packets *p, uint32_t variant, int r, int k)
{
	return k < 0 || !(todo_of(variant, r) & ~(uint32_t)p->done[r][k]);
}

/* may kernel k of rank r proceed, with the kernel before it still running or not? */
static int may(const struct packets *p, uint32_t variant, int r, int k, uint32_t early)
{
	return has_ended(p, variant, r, k - 1) ||
	       (variant & early && has_ended(p, variant, r, k - 2));
}

/* is the fence of kernel k complete? */
static int fenced(const struct packets *p, uint32_t variant, int r, int k)
{
	const int last = variant & LATE_FENCE ? k - 1 : k - 2;
	const uint32_t seen = sends(variant, 1 - r) ? DONE(SEEN, HEADER) | DONE(SEEN, DATA) : 0;

	for (int j = 0; j <= last && !(variant & NO_FENCE); j++)
		if (seen & ~(uint32_t)p->done[r][j])
			return 0;
	return 1;
}

static int buffer_of(uint32_t variant, int k)
{
	return variant & ONE_BUFFER ? 0 : variant & TWO_BUFFERS ? k % 2 : k % 3;
}

/* steps of kernel k of rank r; 0: a rule is broken */
static int packet_steps(struct search *x, const union state *s, int r, int k, int kind)
{
	const uint32_t v = x->variant, todo = todo_of(v, r) & ~(uint32_t)s->p.done[r][k];
	const int b = buffer_of(v, k);
	const uint8_t own = s->p.slot[r][kind][b], op = (uint8_t)(1 + k);
	union state t = *s;

	if (todo & DONE(SENT, kind) && may(&s->p, v, r, k, EARLY_SEND) &&
	    (kind == DATA || fenced(&s->p, v, r, k))) {
		if (s->p.slot[1 - r][kind][b])
			return 0; /* overwrites a packet, or is emptied later */
		t.p.done[r][k] |= DONE(SENT, kind);
		t.p.slot[1 - r][kind][b] = op;
		reach(x, &t);
		t = *s;
	}
	if (todo & DONE(TAKEN, kind)) {
		/* the rank sees its own emptied packets */
		if (!own || !may(&s->p, v, r, k, EARLY_RECEIVE) ||
		    s->p.done[r][own - 1] & DONE(EMPTIED, kind))
			return 1;
		if (own != op)
			return 0; /* a packet of another operation */
		t.p.done[r][k] |= DONE(TAKEN, kind);
	} else if (todo & DONE(EMPTIED, kind)) {
		t.p.done[r][k] |= DONE(EMPTIED, kind);
	} else if (s->p.done[r][k] & DONE(EMPTIED, kind) && !(s->p.done[r][k] & DONE(SEEN, kind))) {
		if (own != op)
			return 0; /* empties another packet */
		t.p.done[r][k] |= DONE(SEEN, kind);
		t.p.slot[r][kind][b] = 0;
	} else {
		return 1;
	}
	reach(x, &t);
	return 1;
}

static int packets_step(struct search *x, const union state *s)
{
	int ok = 1;

	for (int r = 0; r < 2; r++)
		for (int k = 0; k < PK; k++)
			for (int kind = HEADER; kind <= DATA && ok; kind++)
				ok = packet_steps(x, s, r, k, kind);
	return ok;
}

static int packets_end(const union state *s, uint32_t variant)
{
	return has_ended(&s->p, variant, 0, PK - 1) && has_ended(&s->p, variant, 1, PK - 1);
}

CASE(packets, "protocol");

TEST(packets, three_buffers_lose_no_packet)
{
	ck_assert_uint_gt(search(packets_step, packets_end, 0), 10000);
	ck_assert_uint_eq(search(packets_step, packets_end, NO_FENCE), 0);
}

TEST(packets, two_buffers_need_the_fence_after_the_kernel_before)
{
	ck_assert_uint_eq(search(packets_step, packets_end, TWO_BUFFERS), 0);
	ck_assert_uint_gt(search(packets_step, packets_end, TWO_BUFFERS | LATE_FENCE), 5000);
}

TEST(packets, one_buffer_loses_packets)
{
	ck_assert_uint_eq(search(packets_step, packets_end, ONE_BUFFER | LATE_FENCE), 0);
}

TEST(packets, overlapping_kernels_must_not_send_early)
{
	ck_assert_uint_eq(search(packets_step, packets_end, EARLY_SEND), 0);
	ck_assert_uint_eq(search(packets_step, packets_end, EARLY_SEND | EARLY_RECEIVE), 0);
	ck_assert_uint_gt(search(packets_step, packets_end, EARLY_RECEIVE), 10000);
}

TEST(packets, a_rank_that_waits_for_none_must_not_send)
{
	ck_assert_uint_eq(search(packets_step, packets_end, ONE_WAY), 0);
}

/* ---- flags: zerocopy ---- */

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
	for (int r = 0; r < N; r++)
		if (s->f.op[r] != K)
			return 0;
	return 1;
}

CASE(flags, "protocol");

TEST(flags, entry_and_exit_flags_protect_the_arrays)
{
	ck_assert_uint_gt(search(flags_step, flags_end, 0), 1000);
}

TEST(flags, each_of_both_flags_is_needed)
{
	ck_assert_uint_eq(search(flags_step, flags_end, NO_ENTRY), 0);
	ck_assert_uint_eq(search(flags_step, flags_end, NO_EXIT), 0);
}

/* ---- staging memory: staged ---- */

#define T 4 /* steps */
#define ONE_OF_INPUTS 1u  /* one buffer instead of two */
#define ONE_OF_RESULTS 2u
#define ONE_PHASE 4u /* no results: reduce-scatter and all-gather */
#define NO_WAIT 8u   /* for exit flags */

enum action { WRITE, SET, AWAIT, READ };

/* steps of each rank, in order: kind 0 is inputs and entry flags, 1 results and exit flags */
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
				return 0; /* overwrites unread data */
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
				return 0; /* data of another step */
			*slot = 0;
			break;
		}
		reach(x, &t);
	}
	return 1;
}

static int stages_end(const union state *s, uint32_t variant)
{
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

CASE(steps, "protocol");

TEST(steps, two_buffers_of_inputs_and_of_results_are_enough)
{
	ck_assert_uint_gt(stages_search(0), 1000);
	ck_assert_uint_gt(stages_search(ONE_PHASE), 1000);
}

TEST(steps, one_buffer_of_either_is_not)
{
	ck_assert_uint_eq(stages_search(ONE_OF_INPUTS), 0);
	ck_assert_uint_eq(stages_search(ONE_OF_RESULTS), 0);
	ck_assert_uint_eq(stages_search(ONE_PHASE | ONE_OF_INPUTS), 0);
}

TEST(steps, exit_flags_of_each_step_are_needed_for_results)
{
	ck_assert_uint_eq(stages_search(NO_WAIT), 0);
}

TT_MAIN("comm/model", TT_NEED_NOTHING)
