/*
 * ends.c - the failure that ends a pool, and pools that end together: a communicator's and its
 * groups'. Their abort word is in the control page of that communicator, the root.
 */
#define TE_LOG_CATEGORY "comm/memory"
#include "config.h"

#include <stdio.h>

#include "libtecomm/pool/state.h"

/* ---- pools that end together ---- */

void te__pool_join(struct te__pool *p, struct te__pool *with)
{
	struct te__pool *root = with->root;

	pthread_mutex_lock(&root->looks);
	root->joined = true;
	p->next = root->next;
	root->next = p;
	pthread_mutex_unlock(&root->looks);
	p->root = root;
}

void te__pool_part(struct te__pool *p)
{
	struct te__pool *root = p->root, *at = root;

	if (root == p)
		return;
	pthread_mutex_lock(&root->looks);
	while (at->next != p)
		at = at->next;
	at->next = p->next;
	pthread_mutex_unlock(&root->looks);
	p->root = p;
}

static bool is_alone(const struct te__pool *p)
{
	return p->root == p && !p->joined;
}

void te__pool_set_look(struct te__pool *p, void (*look)(void *arg), void *arg)
{
	pthread_mutex_lock(&p->root->looks);
	p->look = look;
	p->look_arg = arg;
	pthread_mutex_unlock(&p->root->looks);
}

static void look(const struct te__pool *p)
{
	if (p->look)
		p->look(p->look_arg);
}

/* a kernel of any of them may have failed */
static void look_at_all(struct te__pool *root)
{
	pthread_mutex_lock(&root->looks);
	for (const struct te__pool *p = root; p; p = p->next)
		look(p);
	pthread_mutex_unlock(&root->looks);
}

/* ---- the failure ---- */

const char *te__pool_why(const struct te__pool *p, int *ret_code)
{
	const char *why = te__control_why(p->root->control, ret_code);

	return why || p->root == p ? why : te__control_why(p->control, ret_code);
}

int te__pool_check(const struct te__pool *p, const char *fn)
{
	int r;

	if (is_alone(p))
		look(p);
	else
		look_at_all(p->root);
	r = te__control_check(p->root->control, fn);
	return r || p->root == p ? r : te__control_check(p->control, fn);
}

bool te__pool_aborted(const struct te__pool *p)
{
	int code;

	return te__pool_why(p, &code);
}

static void abort_all(struct te__pool *p, int code, const char *why)
{
	int first;
	const char *before = te__control_why(p->control, &first);

	/* the ranks of other nodes get the first reason, too */
	if (before)
		te__boot_note(p->boot, first, "%.*s", (int)sizeof(p->control->reason), before);
	else
		te__control_abort(p->control, code, why);
	te__boot_abort(p->boot, why);
}

/* ranks of other nodes report the code and the reason, and not that this rank has aborted */
static void abort_root(struct te__pool *p, int code, const char *why)
{
	char text[TEXT_NBYTES + 64];

	if (p->root == p)
		return;
	/* the reason has numbers of ranks in the group */
	snprintf(text, sizeof(text), "%.60s: %s", te__boot_name(p->boot), why);
	te__boot_note(p->root->boot, code, "%s", text);
	abort_all(p->root, code, text);
}

void te__pool_abort(struct te__pool *p, int code, const char *why)
{
	/* the root first: its reason is the one that all report */
	abort_root(p, code, why);
	abort_all(p, code, why);
}

void te__pool_abort_here(struct te__pool *p, int code, const char *why)
{
	te__control_abort(p->control, code, why);
	abort_root(p, code, why);
}

const uint32_t *te__pool_abort_word(const struct te__pool *p)
{
	const char *page = p->root->control_ptr;

	return (const uint32_t *)(page + offsetof(struct te__control, abort));
}
