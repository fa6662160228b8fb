/*
 * t/offload/model.c - the words between a graph and the I/O thread, in all interleavings.
 *
 * Two groups with a slot each go through three replays. In a replay the graph copies a group out,
 * sets the start word of the write and takes its done word, uses the slot for something else, sets
 * the start word of the read, takes its done word and copies back; the groups run concurrently, a
 * replay follows the one before. The I/O thread clears a start word, makes the request, and ends it
 * with data or an error, at once or later; it can break at any time. The search visits every state
 * and stops at the first that breaks a rule, or in which nothing can proceed before the end.
 * Variants without one of the conditions must break a rule.
 */
#include "config.h"

#include "tt.h"
#include "tt_states.h"

#define G 2 /* groups */
#define K 3 /* replays */
#define SCRAP 14u /* other bytes in a slot */
#define BAD 15u	  /* NaN in a slot, LOST in the file */

enum { WRITE, READ };

/* variants */
#define CLEAR_LATE 1u /* the start word is cleared after the request was made */
#define KEEP_DONE 2u  /* the done word is not set to 0 when it is taken */
#define NO_WAIT 4u    /* the slot is used again without the end of the write */
#define NO_RELEASE 8u /* a failure does not set the done word */
#define NO_POISON 16u /* a failed read leaves the slot as it is */
#define WRITES 32u    /* not wrong: the graphs only write, as if others read the file */

struct state {
	uint8_t replay, at[G]; /* the next step of each group: below */
	uint8_t slot[G], file[G]; /* 1 + the replay whose data it has, or SCRAP, BAD */
	uint8_t start[G][2], done[G][2];
	uint8_t active[G][2];
	uint8_t begun[G]; /* what the slot held when the write began */
	uint8_t io, clear; /* 1 + 2 * group + direction: seen by the I/O thread; to be cleared */
	uint8_t failed, broken;
};

enum { COPY_OUT, START_WRITE, TAKE_WRITE, REUSE, START_READ, TAKE_READ, COPY_IN, STEPS };

struct search {
	uint32_t variant;
	int ok, moved;
	struct tt_states states;
};

static void reach(struct search *x, struct state s)
{
	x->moved = 1;
	tt_states_add(&x->states, &s);
}

/* ---- the graph ---- */

/* a node writes to the slot: no I/O may use it */
static void use_slot(struct search *x, struct state *s, int g, uint8_t what)
{
	if (s->active[g][WRITE] || s->active[g][READ])
		x->ok = 0;
	s->slot[g] = what;
}

static int take(struct search *x, struct state *s, int g, int dir)
{
	if (x->variant & NO_WAIT && dir == WRITE)
		return 1;
	if (!s->done[g][dir])
		return 0;
	if (!(x->variant & KEEP_DONE))
		s->done[g][dir] = 0;
	return 1;
}

static void graph_step(struct search *x, struct state s, int g)
{
	const uint8_t data = 1 + s.replay;

	switch (s.at[g]) {
	case COPY_OUT:
		use_slot(x, &s, g, data);
		break;
	case START_WRITE:
	case START_READ:
		s.start[g][s.at[g] == START_READ] = 1;
		break;
	case TAKE_WRITE:
	case TAKE_READ:
		if (!take(x, &s, g, s.at[g] == TAKE_READ))
			return;
		break;
	case REUSE:
		use_slot(x, &s, g, SCRAP);
		break;
	case COPY_IN:
		/* what was stored in this replay; or NaN, and the failure is known */
		if (s.slot[g] != data && !(s.slot[g] == BAD && s.failed))
			x->ok = 0;
		break;
	default:
		return;
	}
	s.at[g]++;
	if (s.at[g] == START_READ && x->variant & WRITES)
		s.at[g] = STEPS;
	if (s.at[0] == STEPS && s.at[1] == STEPS) {
		s.replay++;
		s.at[0] = s.at[1] = s.replay < K ? COPY_OUT : STEPS;
	}
	reach(x, s);
}

/* ---- the I/O thread ---- */

static void end(const struct search *x, struct state *s, int g, int dir, int failed)
{
	failed |= dir == READ && s->file[g] == BAD;
	s->failed |= (uint8_t)failed;
	s->active[g][dir] = 0;
	if (dir == WRITE)
		s->file[g] = failed ? BAD : s->begun[g];
	else if (!failed)
		s->slot[g] = s->file[g];
	else if (!(x->variant & NO_POISON))
		s->slot[g] = BAD;
	if (!failed || !(x->variant & NO_RELEASE))
		s->done[g][dir] = 1;
}

static void io_see(struct search *x, struct state s, int g, int dir)
{
	if (!s.start[g][dir])
		return;
	if (!(x->variant & CLEAR_LATE))
		s.start[g][dir] = 0;
	s.io = (uint8_t)(1 + 2 * g + dir);
	reach(x, s);
}

/* the request that was seen: it is active, or has failed at once */
static void io_make(struct search *x, struct state s)
{
	const int g = (s.io - 1) / 2, dir = (s.io - 1) % 2;
	struct state t = s;

	if (x->variant & CLEAR_LATE)
		t.clear = s.clear = s.io;
	s.io = t.io = 0;
	end(x, &t, g, dir, 1);
	reach(x, t);
	if (s.broken)
		return;
	if (s.active[g][dir])
		x->ok = 0; /* its end would be taken twice */
	s.active[g][dir] = 1;
	s.begun[g] = dir == WRITE ? s.slot[g] : s.begun[g];
	reach(x, s);
}

static void io_end(struct search *x, struct state s, int g, int dir)
{
	if (!s.active[g][dir])
		return;
	if (dir == WRITE && s.slot[g] != s.begun[g])
		x->ok = 0; /* it was written while the slot changed */
	for (int failed = 0; failed < 2; failed++) {
		struct state t = s;

		end(x, &t, g, dir, failed);
		reach(x, t);
	}
}

static void io_break(struct search *x, struct state s)
{
	if (s.broken)
		return;
	s.broken = 1;
	for (int i = 0; i < 2 * G; i++)
		if (s.active[i / 2][i % 2])
			end(x, &s, i / 2, i % 2, 1);
	reach(x, s);
}

/* one thread: a request that it has seen comes first */
static void io_step(struct search *x, struct state s)
{
	if (s.clear) {
		s.start[(s.clear - 1) / 2][(s.clear - 1) % 2] = 0;
		s.clear = 0;
		reach(x, s);
		return;
	}
	if (s.io) {
		io_make(x, s);
		return;
	}
	for (int i = 0; i < 2 * G; i++) {
		io_see(x, s, i / 2, i % 2);
		io_end(x, s, i / 2, i % 2);
	}
	io_break(x, s);
}

/* all is done, and all words are as before the first replay */
static int is_end(const struct state *s)
{
	uint32_t left = 0;

	for (int i = 0; i < 2 * G; i++)
		left |= s->start[i / 2][i % 2] | s->done[i / 2][i % 2] | s->active[i / 2][i % 2];
	return s->replay == K && !left;
}

/* the number of states, or 0 if a rule is broken or a stream waits for ever */
static size_t search(uint32_t variant)
{
	struct search x = {
		.variant = variant,
		.ok = 1,
		.states.nbytes = sizeof(struct state),
	};
	struct state s;

	memset(&s, 0, sizeof(s));
	reach(&x, s);
	for (size_t i = 0; i < x.states.n && x.ok; i++) {
		tt_states_get(&x.states, i, &s);
		x.moved = 0;
		for (int g = 0; g < G && s.replay < K; g++)
			graph_step(&x, s, g);
		io_step(&x, s);
		/* a state in which the engine can still break is not stuck, but its successor is */
		if (!x.moved && !is_end(&s))
			x.ok = 0;
	}
	tt_states_free(&x.states);
	return x.ok ? x.states.n : 0;
}

CASE(words, "host numeric");

TEST(words, no_wake_up_is_lost_and_no_slot_changes_while_it_is_written)
{
	ck_assert_uint_gt(search(0), 10000);
	ck_assert_uint_gt(search(WRITES), 1000);
}

static const struct {
	const char *what;
	uint32_t variant;
} wrong[] = {
	/* with a read in each replay its request follows the clearing: one thread does both */
	{ "the start word is cleared after the request", CLEAR_LATE | WRITES },
	{ "the done word is kept", KEEP_DONE },
	{ "the slot is used before the write has ended", NO_WAIT },
	{ "a failure releases nothing", NO_RELEASE },
	{ "a failed read leaves other bytes", NO_POISON },
};

TEST_EACH(words, each_condition_is_needed, TT_LEN(wrong))
{
	ck_assert_msg(!search(wrong[_i].variant), "%s, and no rule is broken", wrong[_i].what);
}

TT_MAIN("offload/model", TT_NEED_NOTHING)
