/*
 * recover.c - the end of an attempt that failed, or the ranks with which the next one begins.
 *
 * A rank that was lost has ended, has stopped, or cannot be reached. One that fails for another
 * reason, such as a loss that is not finite, meets the others once more to tell them: all end.
 */
#include "config.h"

#include <errno.h>

#include <te/errno.h>

#include "loop.h"
#include "returns.h"
#include "tools/lib/say.h"

/* numbers that remaining ranks exchange */
enum { TOLD_STATUS, TOLD_SAVED, NTOLD };

/* all: numbers of the ranks, including this one's status; an exit status */
static int hear(struct trainer *t, const int32_t *all, int status)
{
	for (int i = 0; i < ranks_n(&t->ranks); i++) {
		const int32_t *told = all + NTOLD * i;

		if (told[TOLD_STATUS] && !status)
			status = say_failed("rank %d has failed; its message says why",
					    (int)t->ranks.number[i]);
		/* the other rank may know of a save that this rank does not know */
		if (told[TOLD_SAVED])
			t->from = trainer_folder(t);
	}
	return status;
}

static void note(const struct trainer *t, const struct ranks *before)
{
	char names[RANKS_TEXT];
	int n = ranks_name(&t->ranks, before, RANK_LOST, names);

	if (n)
		say_note("%s %s lost; %d of %d ranks go on", names, n > 1 ? "were" : "was",
			 (int)ranks_n(&t->ranks), (int)before->nfirst);
	n = ranks_name(&t->ranks, before, RANK_IDLE, names);
	if (n)
		say_note("%s %s left over, and end%s", names, n > 1 ? "are" : "is",
			 n > 1 ? "" : "s");
}

/* may another call of ranks_recover() succeed? */
static int is_again(int te)
{
	return te == -TE_EPEER || te == -TE_EABORT || te == -ETIMEDOUT;
}

/* meets the remaining ranks, which may lose others meanwhile; an exit status */
static int meet(struct trainer *t, const int32_t own[NTOLD])
{
	const struct ranks before = t->ranks;
	int32_t all[NTOLD * MOST_RANKS];
	int te;

	do {
		t->nrecovered++;
		te = ranks_recover(&t->ranks, t->stream, t->micro_batches, own, NTOLD, all);
		if (te < 0)
			say_te(te, "the ranks that are left");
	} while (is_again(te) && t->nrecovered < t->o->recover);
	if (te < 0)
		return STATUS_FAILED;
	if (ranks_is_idle(&t->ranks))
		return say_failed("rank %d is left over: those that go on have whole models, and "
				  "share %lld micro-batches",
				  (int)t->ranks.number[t->ranks.rank], (long long)t->micro_batches);
	note(t, &before);
	return hear(t, all, own[TOLD_STATUS]);
}

int trainer_recover(struct trainer *t, int *status)
{
	const int64_t saved_step = t->saved_step;
	/* failures that the user caused, or that te_train found */
	const int own_fault = ranks_check(&t->ranks) >= 0 && (*status == STATUS_BAD || !say_code());
	const int32_t own[NTOLD] = {
		[TOLD_STATUS] = own_fault ? *status : STATUS_OK,
		[TOLD_SAVED] = trainer_has_saved(t),
	};
	int te;

	if (!t->ranks.comm)
		return 0;
	te = t->o->recover ? te_ctx_sync(t->ctx) : 0;
	if (te < 0) {
		say_te(te, "this rank's device, without which the others go on");
		return 0;
	}
	/* the others may have made more steps, or fewer */
	ranks_abort(&t->ranks, "a rank was lost or has failed; its message says why");
	if (t->nrecovered < t->o->recover) {
		trainer_close(t);
		*status = meet(t, own);
	}
	if (*status && !ranks_is_idle(&t->ranks) && trainer_folder(t) && saved_step >= 0)
		say_note("the checkpoint of step %lld is the latest", (long long)saved_step);
	return !*status;
}

int trainer_looks(const struct trainer *t)
{
	struct offer o;

	return t->o->recover && trainer_folder(t) && returns_look(&t->ranks, t->micro_batches, &o);
}

int trainer_grow(struct trainer *t, int *status)
{
	const struct ranks before = t->ranks;
	char names[RANKS_TEXT];
	int te, n;

	trainer_close(t);
	te = ranks_grow(t->ctx, &t->ranks, t->stream, t->micro_batches, t->nrecovered);
	*status = te < 0 ? say_te(te, "ranks that return") : STATUS_OK;
	n = ranks_name(&t->ranks, &before, RANK_TRAINS, names);
	if (te > 0)
		say_note("%s %s returned; %d of %d ranks go on", names, n > 1 ? "have" : "has",
			 (int)ranks_n(&t->ranks), (int)t->ranks.nfirst);
	else if (!te)
		say_note("ranks that waited to return did not come; %d of %d ranks go on",
			 (int)ranks_n(&t->ranks), (int)t->ranks.nfirst);
	return te >= 0;
}
