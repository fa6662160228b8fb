/* agree.c - see agree.h. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libtecomm/meet/agree.h"

#define LATE_NS INT64_C(500000000) /* limit of an exchange after a time-out */

/* precedes the record of each rank */
struct verdict {
	int32_t code;
	char text[204];
};

static const struct verdict *verdict_of(const char *all, size_t each, int32_t rank)
{
	return (const void *)(all + (size_t)rank * each);
}

/* choose the error that is the cause: the end of a rank may be a consequence of its error */
static int cause(int code)
{
	if (code >= 0)
		return 0;
	return code == -TE_EPEER || code == -TE_EABORT || code == -ETIMEDOUT ? 1 : 2;
}

static int blame(const struct te__boot *b, const char *all, size_t each)
{
	const struct verdict *v = verdict_of(all, each, 0);
	char text[sizeof(v->text)];
	const char *rest;
	int32_t worst = 0;

	for (int32_t i = 1; i < te__boot_nranks(b); i++)
		if (cause(verdict_of(all, each, i)->code) > cause(v->code)) {
			v = verdict_of(all, each, i);
			worst = i;
		}
	if (v->code >= 0)
		return 0;
	snprintf(text, sizeof(text), "%.*s", (int)sizeof(v->text) - 1, v->text);
	if (te__boot_nranks(b) == 1)
		return te__fail(v->code, "%s", text);
	/* an error begins with the function, followed by its object */
	rest = strncmp(text, "te_", 3) ? NULL : strstr(text, ": ");
	rest = rest ? rest + 2 : text;
	return te__fail(v->code, "%.*s%s: %s", (int)(rest - text), text, te__boot_peer(b, worst),
			rest);
}

void *te__gather(struct te__boot *b, int *code, const void *own, size_t nbytes, const char *what,
		 int64_t deadline_ns)
{
	const size_t n = (size_t)te__boot_nranks(b), me = (size_t)te__boot_rank(b);
	const size_t each = sizeof(struct verdict) + (nbytes + 7) / 8 * 8;
	struct verdict v = { .code = *code };
	char *all = te__calloc(n, each);
	int r;

	if (*code)
		snprintf(v.text, sizeof(v.text), "%s", te_error_detail());
	if (!all) {
		te__boot_abort(b, "no memory for an exchange");
		*code = *code ? te__fail(*code, "%s", v.text) :
				te__fail(-ENOMEM, "%s: no memory for an exchange", what);
		return NULL;
	}
	memcpy(all + me * each, &v, sizeof(v));
	if (nbytes && !*code)
		memcpy(all + me * each + sizeof(v), own, nbytes);
	/* a rank whose wait has failed does not wait as long again */
	if (*code == -ETIMEDOUT)
		deadline_ns = te__boot_now() + LATE_NS;
	r = te__boot_allgather(b, all + me * each, all, each, what, deadline_ns);
	if (!r)
		r = blame(b, all, each);
	else if (cause(*code) == 2)
		r = te__fail(*code, "%s", v.text);
	*code = r;
	if (r) {
		te__free(all);
		return NULL;
	}
	for (size_t i = 0; i < n && nbytes; i++)
		memmove(all + i * nbytes, all + i * each + sizeof(v), nbytes);
	return all;
}

int te__agree(struct te__boot *b, int code, const char *what)
{
	te__free(te__gather(b, &code, NULL, 0, what, 0));
	return code;
}
