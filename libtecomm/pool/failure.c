/* failure.c - the failure that ends a communicator, and ranks that have left, see pool.h. */
#include "config.h"

#include "libtecomm/pool/state.h"

int te__pool_check(const struct te__pool *p, const char *fn)
{
	if (p->look)
		p->look(p->look_arg);
	return te__control_check(p->control, fn);
}

void te__pool_set_look(struct te__pool *p, void (*look)(void *arg), void *arg)
{
	p->look = look;
	p->look_arg = arg;
}

bool te__pool_has_left(const struct te__pool *p, int32_t rank)
{
	const int32_t local = te__boot_local_rank(p->boot, rank);

	if (te__boot_node(p->boot, rank) != te__boot_node(p->boot, p->rank))
		return p->fabric && te__boot_has_closed(p->boot, rank);
	return atomic_load_explicit(&p->control->left[local], memory_order_relaxed) == TE__LEFT;
}

bool te__pool_aborted(const struct te__pool *p)
{
	return te__control_why(p->control, NULL);
}

void te__pool_abort(struct te__pool *p, int code, const char *why)
{
	char before[TE__CONTROL_REASON];
	const int first = te__control_why(p->control, before);

	/* the ranks of other nodes get the first reason, too */
	if (first)
		te__boot_note(p->boot, first, "%s", before);
	else
		te__control_abort(p->control, code, why);
	te__boot_abort(p->boot, why);
}

int te__pool_why(const struct te__pool *p, char ret_reason[TE__CONTROL_REASON])
{
	return te__control_why(p->control, ret_reason);
}

const uint32_t *te__pool_abort_word(const struct te__pool *p)
{
	const char *page = p->control_ptr;

	return (const uint32_t *)(page + offsetof(struct te__control, abort));
}
