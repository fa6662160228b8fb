/*
 * share.c - limits of all users together, and the share that one of them may have; see ted.h.
 *
 * The use of a user is counted on request, from the lists of clients, jobs and files, so that no
 * count needs to be maintained.
 */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "daemon/ted.h"

static const struct {
	const char *unit, *limit;
} name[] = {
	[TED_CLIENTS] = { "clients", "clients" },
	[TED_FILES] = { "files", "spill_files" },
};

int ted_is_admin(uid_t uid)
{
	return !uid || uid == geteuid();
}

int64_t ted_count(const struct ted *t, enum ted_what what, int any, uid_t uid)
{
	int64_t n = 0;

	for (int i = 0; i < t->end; i++) {
		const struct ted_client *c = &t->client[i];

		if (c->fd < 0 || !(any || c->uid == uid))
			continue;
		n += what == TED_CLIENTS;
	}
	for (const struct ted_job *j = t->jobs; j; j = j->next)
		if (any || j->uid == uid)
			n += what == TED_FILES ? j->ngrants : 0;
	return n;
}

int ted_over(const struct ted *t, uid_t uid, enum ted_what what, char *why, size_t nbytes)
{
	const int64_t limits[] = {
		[TED_CLIENTS] = t->conf.clients, [TED_FILES] = t->conf.spill_files,
	};
	const int64_t limit = limits[what], all = ted_count(t, what, 1, 0);
	const int64_t of_uid = ted_count(t, what, 0, uid);

	if (all >= limit)
		snprintf(why, nbytes, "there are %" PRId64 " %s, the limit is %" PRId64 " (%s)",
			 all, name[what].unit, limit, name[what].limit);
	/* half, rounded up: with a limit of 1 a user may have 1 */
	else if (!ted_is_admin(uid) && of_uid >= limit - limit / 2)
		snprintf(why, nbytes, "user %u has %" PRId64 " %s, half of all is the limit (%s)",
			 (unsigned int)uid, of_uid, name[what].unit, name[what].limit);
	else
		return 0;
	return 1;
}
