/* tt_register.c - the tests and cases that register themselves, in the order of their lines. */
#include "config.h"

#include "tt.h"

int tt_ntests;
static struct tt_case *first_case;

/* constructors of a file run in any order, those of files in the order of the link */
void tt_add_case(struct tt_case *c)
{
	struct tt_case **at = &first_case;

	while (*at && (strcmp((*at)->file, c->file) || (*at)->line < c->line))
		at = &(*at)->next;
	c->next = *at;
	*at = c;
}

void tt_add_test(struct tt_case *c, struct tt_test *t)
{
	struct tt_test **at = &c->tests;

	while (*at && (*at)->line < t->line)
		at = &(*at)->next;
	t->next = *at;
	*at = t;
	tt_ntests++;
}

static int alike(const struct tt_case *a, const struct tt_case *b)
{
	return !strcmp(a->have.name, b->have.name) && !strcmp(a->have.tags, b->have.tags) &&
	       a->have.setup == b->have.setup && a->have.teardown == b->have.teardown &&
	       a->have.limit_s == b->have.limit_s;
}

static TCase *create(Suite *s, const struct tt_case_opts *o)
{
	TCase *c = tt_case(s, o->name, o->tags);

	if (o->setup || o->teardown)
		tcase_add_checked_fixture(c, o->setup, o->teardown);
	if (o->limit_s)
		tcase_set_timeout(c, o->limit_s == TT_NO_LIMIT ? 0 : o->limit_s);
	return c;
}

static void add_range(TCase *c, const TTest *test, struct tt_range r)
{
	if (r.parts) {
		r.from = tt_part(r.end, r.parts);
		r.end = tt_part_end(r.end, r.parts);
	}
	for (int i = r.from; i < r.end && r.step > 1; i += r.step)
		tcase_add_loop_test(c, test, i, i + 1);
	if (r.step <= 1)
		tcase_add_loop_test(c, test, r.from, r.end);
}

void tt_add_all(Suite *s)
{
	for (struct tt_case *c = first_case; c; c = c->next) {
		const struct tt_case *other = first_case;

		c->have = c->opts();
		if (!c->have.name)
			c->have.name = c->name;
		while (other != c && !(other->tcase && alike(other, c)))
			other = other->next;
		if (c->tests)
			c->tcase = other == c ? create(s, &c->have) : other->tcase;
		for (const struct tt_test *t = c->tests; t; t = t->next)
			add_range(c->tcase, *t->test, t->range());
	}
}
