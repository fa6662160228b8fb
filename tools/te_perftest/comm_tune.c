/*
 * comm_tune.c - te_perftest comm --tune: the fastest algorithm for each size, types and memory, as
 * a file of TE_COMM_TABLE (te_comm_allreduce(3)).
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "comm.h"
#include "tools/lib/say.h"

#define HEADER "te-comm-table 1"
#define NEARLY 1.02 /* ratio of times below which a candidate counts as fastest */

/* candidates of an algorithm: first without a limit of blocks, then with fewer */
static const struct candidate {
	enum te_comm_algorithm algorithm;
	int floats, symmetric; /* 1: only these */
	int32_t max_blocks;
} candidates[] = {
	{ TE_COMM_LL, 0, 0, 0 },
	{ TE_COMM_ONE_SHOT, 1, 0, 0 },
	{ TE_COMM_TWO_SHOT, 1, 0, 0 },
	{ TE_COMM_ZERO_COPY, 0, 1, 0 },
	{ TE_COMM_ZERO_COPY, 0, 1, 64 },
	{ TE_COMM_ZERO_COPY, 0, 1, 32 },
	{ TE_COMM_ZERO_COPY, 0, 1, 16 },
	{ TE_COMM_STAGED, 0, 0, 0 },
	{ TE_COMM_STAGED, 0, 0, 64 },
	{ TE_COMM_STAGED, 0, 0, 32 },
	{ TE_COMM_STAGED, 0, 0, 16 },
};
#define NCANDIDATES ((int)(sizeof(candidates) / sizeof(candidates[0])))

struct tune {
	struct comm *c;
	int floats, symmetric;
	int left; /* measurements */
	FILE *f;  /* file of rank 0; NULL on others */
};

static int takes(const struct tune *t, const struct candidate *k)
{
	return k->floats <= t->floats && k->symmetric <= t->symmetric;
}

/*
 * The first algorithm among the nearly fastest candidates, with the fewest blocks: the same on all
 * ranks. NULL: there was no time for any.
 */
static const struct candidate *choose(const double *us)
{
	const struct candidate *k = NULL;
	double best = INFINITY;

	for (int i = 0; i < NCANDIDATES; i++)
		best = fmin(best, us[i]);
	for (int i = 0; i < NCANDIDATES; i++)
		if (isfinite(us[i]) && us[i] <= best * NEARLY &&
		    (!k || k->algorithm == candidates[i].algorithm))
			k = &candidates[i];
	return k;
}

static int fastest(struct tune *t, int64_t nbytes, const struct candidate **ret)
{
	struct comm *c = t->c;
	double us[NCANDIDATES];
	int32_t nblocks = 0; /* without a limit */
	int r = STATUS_OK;

	for (int i = 0; i < NCANDIDATES && !r; i++) {
		us[i] = INFINITY;
		if (!takes(t, &candidates[i]))
			continue;
		t->left--;
		c->algorithm = candidates[i].algorithm;
		c->max_blocks = candidates[i].max_blocks;
		if (c->max_blocks && c->max_blocks >= nblocks)
			continue;
		comm_size(c, nbytes);
		r = comm_agree_on_time(c);
		if (!r)
			r = comm_measure(c, t->left + 1);
		if (!c->max_blocks)
			nblocks = c->nblocks;
		if (!r && isfinite(c->median_us))
			us[i] = c->median_us;
	}
	*ret = r ? NULL : choose(us);
	return r;
}

static void write_row(const struct tune *t, int64_t nbytes, enum te_comm_algorithm k,
		      int32_t max_blocks)
{
	char bytes[32] = "rest";

	if (nbytes)
		snprintf(bytes, sizeof(bytes), "%lld", (long long)nbytes);
	if (t->f)
		fprintf(t->f, "%d %s %s %s %s %d\n", t->c->nranks, t->floats ? "float" : "any",
			t->symmetric ? "symmetric" : "any", bytes, te_comm_algorithm_name(k),
			max_blocks);
}

static int compare(const void *a, const void *b)
{
	const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* rows of a section; the last one has no limit and does not use packet memory */
static int section(struct tune *t, const struct option_list *sizes)
{
	const struct candidate *last = NULL, *k;
	int64_t reached = 0;
	int r = STATUS_OK;

	t->c->dtype = t->floats ? TE_DTYPE_BF16 : TE_DTYPE_INT32;
	t->c->symmetric = t->symmetric;
	for (int i = 0; i < sizes->n && !r; i++) {
		if (sizes->v[i] < 16 || sizes->v[i] == reached)
			continue;
		r = fastest(t, sizes->v[i], &k);
		if (r || !k)
			continue;
		if (last && k != last)
			write_row(t, reached, last->algorithm, last->max_blocks);
		last = k;
		reached = sizes->v[i];
	}
	if (r || !last)
		return r;
	if (last->algorithm == TE_COMM_STAGED || last->algorithm == TE_COMM_ZERO_COPY) {
		write_row(t, 0, last->algorithm, last->max_blocks);
		return r;
	}
	write_row(t, reached, last->algorithm, last->max_blocks);
	write_row(t, 0, t->symmetric ? TE_COMM_ZERO_COPY : TE_COMM_STAGED, 0);
	return r;
}

/* rows of other numbers of ranks remain */
static void keep_rows(FILE *to, const char *path, int nranks)
{
	FILE *f = fopen(path, "re");
	char line[256];
	int n;

	fprintf(to, HEADER "\n# ranks types memory bytes algorithm blocks\n");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%d", &n) == 1 && n != nranks)
			fprintf(to, "%s%s", line, strchr(line, '\n') ? "" : "\n");
	if (f)
		fclose(f);
}

static int sections(struct tune *t)
{
	struct option_list sizes = t->c->o->bytes;
	int r = STATUS_OK;

	qsort(sizes.v, (size_t)sizes.n, sizeof(sizes.v[0]), compare);
	for (int i = 0; i < 4; i++)
		for (int k = 0; k < NCANDIDATES; k++) {
			t->floats = !(i & 2);
			t->symmetric = i & 1;
			t->left += takes(t, &candidates[k]) * sizes.n;
		}
	for (int i = 0; i < 4 && !r; i++) {
		t->floats = !(i & 2);
		t->symmetric = i & 1;
		r = section(t, &sizes);
	}
	return r;
}

int comm_tune(struct comm *c)
{
	const char *path = c->o->tune;
	struct tune t = { .c = c };
	struct stat st;
	char name[512];
	int r;

	if (c->nranks < 2)
		return say_failed("--tune: there is one rank, expected 2 or more");
	if (!stat(path, &st) && !S_ISREG(st.st_mode)) /* a file would replace it */
		return say_failed("--tune: %s: is not a file, expected one or a new name", path);
	snprintf(name, sizeof(name), "%s.new", path);
	if (!c->rank) {
		t.f = fopen(name, "we");
		if (!t.f)
			return say_failed("--tune: %s: %s", name, strerror(errno));
		keep_rows(t.f, path, c->nranks);
	}
	r = sections(&t);
	if (!t.f)
		return r;
	if ((ferror(t.f) | fclose(t.f)) && !r)
		r = say_failed("--tune: %s: %s", name, strerror(errno));
	if (!r && rename(name, path))
		r = say_failed("--tune: %s: %s", path, strerror(errno));
	if (r)
		remove(name);
	return r;
}
