/* t/comm/bootstrap_lib.c - see bootstrap_lib.h. */
#include "config.h"

#include "bootstrap_lib.h"
#include "libtecomm/meet/boot.h"
#include "ranks.h"

int bf_open(int rank, int timeout_ms, struct te__boot **ret_b)
{
	struct te_comm_opts o = ranks_opts(rank);

	o.timeout_ms = timeout_ms;
	return te__boot_open(&o, ret_b);
}

int bf_open_only(int rank, int timeout_ms)
{
	struct te__boot *b = NULL;
	int r = bf_open(rank, timeout_ms, &b);

	te__boot_close(b);
	return r;
}

int bf_gather(struct te__boot *b, const char *what, int64_t ms)
{
	uint32_t mine = (uint32_t)te__boot_rank(b), all[RANKS_MAX];

	return te__boot_allgather(b, &mine, all, sizeof(mine), what,
				  ms ? te__boot_now() + ms * 1000000 : 0);
}

const char *bf_within(const char *what, int ms)
{
	static char text[200];
	char time[24];

	snprintf(text, sizeof(text), "%s within %s", what,
		 te__time_text(INT64_C(1000000) * TT_SLOWER(ms), time));
	return text;
}

int bf_meet(int rank, void *arg)
{
	struct te__boot *b;
	int r = bf_open(rank, 0, &b);

	if (r)
		return r;
	r = bf_gather(b, "all", 0);
	te__boot_close(b);
	return r;
}
