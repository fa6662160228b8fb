/*
 * copy.c - copies of the training state in the memory of each rank, for --copy-every: after ranks
 * were lost, or when they return, all ranks go on from the newest copy that one of them has.
 */
#include "config.h"

#include "loop.h"
#include "tools/lib/say.h"

/* copies to host memory: the next attempt needs as much memory of the device as this one */
static int take(struct trainer *t, struct ckpt_copy **ret_copy)
{
	json_t *options = trainer_options(t);
	struct ckpt_flat flat = { 0 };
	int r = ckpt_gather_weights(&t->now.model, 1, &flat);

	if (!r)
		r = ckpt_gather_moments(&t->now.model, t->now.opt, 1, &flat);
	if (!r)
		r = ckpt_take(&t->now.model, t->now.opt, &flat, options, &t->now.done, ret_copy);
	ckpt_flat_free(&flat);
	json_decref(options);
	return r;
}

void trainer_copy(struct trainer *t)
{
	struct ckpt_copy *copy;

	if (take(t, &copy)) {
		say_note("step %lld was not copied; training continues",
			 (long long)t->now.done.step);
		return;
	}
	ckpt_copy_free(t->copy);
	t->copy = copy;
}

struct sending {
	const struct trainer *t;
	int32_t root;
};

static int send_to_all(void *arg, void *p, size_t nbytes)
{
	const struct sending *s = arg;

	return ranks_send(&s->t->ranks, s->t->stream, s->root, p, nbytes);
}

/* sends the copy of rank root to the other ranks */
static int share(struct trainer *t, int32_t root, int64_t step)
{
	struct sending s = { t, root };
	int r = STATUS_OK;

	if (ckpt_copy_step(t->copy) != step) {
		ckpt_copy_free(t->copy);
		t->copy = NULL;
		r = take(t, &t->copy);
	}
	if (!r)
		r = ckpt_copy_send(t->copy, &t->now.model, t->ranks.rank == root, send_to_all, &s);
	if (r && t->ranks.rank != root) { /* the copy may be incomplete */
		ckpt_copy_free(t->copy);
		t->copy = NULL;
	}
	return r;
}

int trainer_load_copy(struct trainer *t)
{
	int64_t step, saved;
	int32_t root, any;
	int all, any_all, te, r;

	if (!t->o->copy_every || !t->nrecovered)
		return STATUS_OK;
	te = ranks_newest(&t->ranks, t->stream, ckpt_copy_step(t->copy), &root, &step, &all);
	if (te >= 0)
		te = ranks_newest(&t->ranks, t->stream, t->saved_step, &any, &saved, &any_all);
	if (te < 0)
		return say_te(te, "copies of the ranks");
	if (step < 0 || step < saved)
		return STATUS_OK;
	r = all ? STATUS_OK : share(t, root, step);
	if (!r)
		r = ckpt_copy_load(t->copy, &t->now.model, t->now.opt, &t->now.done);
	t->now.from_copy = !r;
	return r;
}
