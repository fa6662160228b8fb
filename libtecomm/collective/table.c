/* table.c - the table of algorithms, and the file of TE_COMM_TABLE, see table.h. */
#define TE_LOG_CATEGORY "comm"
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/te_k.h"
#include "libtecomm/collective/table.h"
#include "libtecore/base/private.h"

#define HEADER "te-comm-table 1"
#define LINE_NBYTES 200
#define REST TE__TABLE_REST

/* ranks: a maximum; rows of two ranks are measured: doc/perf-comm.md */
static const struct te__table_row of_gpus[] = {
	{ 2, 1, 0, 0, REST, TE_COMM_ONE_SHOT },
	{ 2, 1, 1, 0, 32 << 20, TE_COMM_ONE_SHOT },
	{ 2, 1, 1, 0, REST, TE_COMM_ZERO_COPY },
	{ 4, 1, 0, 0, 384 << 10, TE_COMM_ONE_SHOT },
	{ 4, 1, 0, 0, REST, TE_COMM_TWO_SHOT },
	{ 4, 1, 1, 0, 384 << 10, TE_COMM_ONE_SHOT },
	{ 4, 1, 1, 0, 32 << 20, TE_COMM_TWO_SHOT },
	{ 4, 1, 1, 0, REST, TE_COMM_ZERO_COPY },
	{ 8, 1, 0, 0, 128 << 10, TE_COMM_ONE_SHOT },
	{ 8, 1, 0, 0, REST, TE_COMM_TWO_SHOT },
	{ 8, 1, 1, 0, 128 << 10, TE_COMM_ONE_SHOT },
	{ 8, 1, 1, 0, 32 << 20, TE_COMM_TWO_SHOT },
	{ 8, 1, 1, 0, REST, TE_COMM_ZERO_COPY },
	{ 8, 0, 0, 0, 64 << 10, TE_COMM_LL },
	{ 8, 0, 0, 0, REST, TE_COMM_STAGED },
	{ 8, 0, 1, 0, 64 << 10, TE_COMM_LL },
	{ 8, 0, 1, 0, REST, TE_COMM_ZERO_COPY },
};

/* copies through small staging memory, which stays in a cache, are faster than packets */
static const struct te__table_row of_hosts[] = {
	{ 8, 1, 0, 0, 4 << 10, TE_COMM_ONE_SHOT },
	{ 8, 1, 0, 0, REST, TE_COMM_STAGED },
	{ 8, 1, 1, 0, 4 << 10, TE_COMM_ONE_SHOT },
	{ 8, 1, 1, 0, REST, TE_COMM_ZERO_COPY },
	{ 8, 0, 0, 0, 4 << 10, TE_COMM_LL },
	{ 8, 0, 0, 0, REST, TE_COMM_STAGED },
	{ 8, 0, 1, 0, 4 << 10, TE_COMM_LL },
	{ 8, 0, 1, 0, REST, TE_COMM_ZERO_COPY },
	{ 32, 1, 0, 0, 1 << 10, TE_COMM_ONE_SHOT },
	{ 32, 1, 0, 0, REST, TE_COMM_STAGED },
	{ 32, 1, 1, 0, 1 << 10, TE_COMM_ONE_SHOT },
	{ 32, 1, 1, 0, REST, TE_COMM_ZERO_COPY },
	{ 32, 0, 0, 0, 1 << 10, TE_COMM_LL },
	{ 32, 0, 0, 0, REST, TE_COMM_STAGED },
	{ 32, 0, 1, 0, 1 << 10, TE_COMM_LL },
	{ 32, 0, 1, 0, REST, TE_COMM_ZERO_COPY },
};

#define LENGTH(rows) (sizeof(rows) / sizeof((rows)[0]))

/* the first row for these ranks, or, if more: of the first section for at least as many */
static const struct te__table_row *find(const struct te__table_row *row, size_t n, int more,
					const struct te__table_row *want)
{
	for (size_t i = 0; i < n; i++)
		if ((more ? row[i].nranks >= want->nranks : row[i].nranks == want->nranks) &&
		    row[i].floats == want->floats && row[i].symmetric == want->symmetric &&
		    row[i].nbytes >= want->nbytes)
			return &row[i];
	return NULL;
}

const struct te__table_row *te__table_find(const struct te__table *t, int host, int32_t nranks,
					   int floats, int symmetric, int64_t nbytes)
{
	const struct te__table_row want = { nranks, floats, symmetric, 0, nbytes, TE_COMM_AUTO };
	const struct te__table_row *row = find(t->row, (size_t)t->nrows, 0, &want);

	if (row)
		return row;
	return host || nranks > TE_K_COMM_RANKS ? find(of_hosts, LENGTH(of_hosts), 1, &want) :
						  find(of_gpus, LENGTH(of_gpus), 1, &want);
}

/* ---- the file ---- */

struct reader {
	const char *path;
	int line;
	struct te__table *t;
};

#define REFUSE(r, format, ...)                                                             \
	te__fail(-EINVAL, "TE_COMM_TABLE: %s:%d: " format, (r)->path, (r)->line, ##__VA_ARGS__)

static int bad(const struct reader *r, const char *what, const char *word, const char *expected)
{
	return REFUSE(r, "%s is \"%.40s\", expected %s", what, word, expected);
}

/* parse "64" or "64K"; 1: a number from lo to hi */
static int number(const char *word, int64_t lo, int64_t hi, int64_t *ret)
{
	static const char units[] = "KMG";
	const char *unit;
	char *end;
	int shift = 0;

	errno = 0;
	*ret = strtoll(word, &end, 10);
	if (end == word || errno || *ret < lo || *ret > hi)
		return 0;
	unit = *end ? strchr(units, *end) : NULL;
	if (unit) {
		shift = 10 * (int)(unit - units + 1);
		end++;
	}
	if (*end || *ret > hi >> shift)
		return 0;
	*ret <<= shift;
	return 1;
}

/* 1: the word is yes, 0: any, -1: neither */
static int which(const char *word, const char *yes)
{
	return !strcmp(word, yes) ? 1 : !strcmp(word, "any") ? 0 : -1;
}

static int read_algorithm(const struct reader *r, const char *word, struct te__table_row *row)
{
	static const enum te_comm_algorithm all[] = { TE_COMM_LL, TE_COMM_STAGED,
						      TE_COMM_ZERO_COPY, TE_COMM_ONE_SHOT,
						      TE_COMM_TWO_SHOT };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (strcmp(word, te_comm_algorithm_name(all[i])))
			continue;
		row->algorithm = all[i];
		if (all[i] == TE_COMM_ZERO_COPY ? !row->symmetric : i > 1 && !row->floats)
			break;
		if (row->nbytes == REST && all[i] == TE_COMM_LL)
			return bad(r, "the algorithm of the largest arrays", word, "another one");
		return 0;
	}
	return bad(r, "the algorithm", word,
		   row->floats ? row->symmetric ? "ll, oneshot, twoshot, staged or zerocopy" :
						  "ll, oneshot, twoshot or staged" :
		   row->symmetric ? "ll, staged or zerocopy" :
				    "ll or staged");
}

/* the six words of a line */
static int read_row(const struct reader *r, char *const *word, struct te__table_row *row)
{
	int64_t x;

	if (!number(word[0], 2, TE_K_COMM_HOST_RANKS, &x))
		return bad(r, "the number of ranks", word[0], "2 to 32");
	row->nranks = (int32_t)x;
	row->floats = which(word[1], "float");
	if (row->floats < 0)
		return bad(r, "the types", word[1], "float or any");
	row->symmetric = which(word[2], "symmetric");
	if (row->symmetric < 0)
		return bad(r, "the memory", word[2], "symmetric or any");
	row->nbytes = REST;
	if (strcmp(word[3], "rest") && !number(word[3], 1, (int64_t)1 << 40, &row->nbytes))
		return bad(r, "the bytes", word[3], "1 to 1024G, or rest");
	if (!number(word[5], 0, TE_K_COMM_CTAS, &x))
		return bad(r, "the number of blocks", word[5], "0 to 128");
	row->max_blocks = (int32_t)x;
	return read_algorithm(r, word[4], row);
}

static int same_section(const struct te__table_row *a, const struct te__table_row *b)
{
	return a->nranks == b->nranks && a->floats == b->floats && a->symmetric == b->symmetric;
}

/* rows of a section follow each other, in ascending order */
static int add(const struct reader *r, const struct te__table_row *row)
{
	struct te__table *t = r->t;
	const struct te__table_row *last = t->nrows ? &t->row[t->nrows - 1] : NULL;
	const int goes_on = last && last->nbytes != REST;

	if (goes_on && !same_section(last, row))
		return REFUSE(r, "the rows before do not end with one of \"rest\"");
	if (goes_on && row->nbytes <= last->nbytes)
		return REFUSE(r, "bytes do not ascend");
	for (int i = 0; i < t->nrows && !goes_on; i++)
		if (same_section(&t->row[i], row))
			return REFUSE(r, "there are rows of %d ranks, these types and this memory "
					 "already", row->nranks);
	if (t->nrows == TE__TABLE_ROWS)
		return REFUSE(r, "more than %d rows", TE__TABLE_ROWS);
	t->row[t->nrows++] = *row;
	return 0;
}

static int read_line(const struct reader *r, char *line)
{
	char *word[7], *p = line, *rest;
	struct te__table_row row;
	int n = 0, err;

	line[strcspn(line, "#\n")] = '\0';
	for (; n < 7 && (word[n] = strtok_r(p, " \t", &rest)); n++)
		p = NULL;
	if (!n)
		return 0;
	if (n != 6)
		return REFUSE(r, "%s words, expected 6: ranks, types, memory, bytes, algorithm, "
				 "blocks", n < 6 ? "too few" : "too many");
	err = read_row(r, word, &row);
	return err ? err : add(r, &row);
}

static int read_lines(struct reader *r, FILE *f)
{
	char line[LINE_NBYTES];
	int err = 0;

	for (r->line = 1; !err && fgets(line, sizeof(line), f); r->line++) {
		if (!strchr(line, '\n') && !feof(f))
			return REFUSE(r, "longer than %d characters", LINE_NBYTES - 2);
		if (r->line > 1)
			err = read_line(r, line);
		else if (strcmp(line, HEADER "\n") && strcmp(line, HEADER))
			err = REFUSE(r, "not \"" HEADER "\"");
	}
	if (!err && ferror(f))
		err = te__fail(-EIO, "TE_COMM_TABLE: %s: %s", r->path, strerror(errno));
	if (!err && r->line == 1)
		err = REFUSE(r, "the file is empty");
	r->line -= r->line > 1;
	if (!err && r->t->nrows && r->t->row[r->t->nrows - 1].nbytes != REST)
		err = REFUSE(r, "the last rows do not end with one of \"rest\"");
	return err;
}

/* FNV-1a of a number */
static uint64_t mix(uint64_t h, int64_t x)
{
	for (int i = 0; i < 64; i += 8)
		h = (h ^ ((uint64_t)x >> i & 0xff)) * 0x100000001b3u;
	return h;
}

int te__table_read(const char *path, struct te__table *ret)
{
	struct reader r = { .path = path, .t = ret };
	FILE *f = fopen(path, "re");
	int err;

	memset(ret, 0, sizeof(*ret));
	if (!f)
		return te__fail(-errno, "TE_COMM_TABLE: %s: %s", path, strerror(errno));
	snprintf(ret->path, sizeof(ret->path), "%s", path);
	err = read_lines(&r, f);
	fclose(f);
	for (int i = 0; i < ret->nrows && !err; i++) {
		const struct te__table_row *w = &ret->row[i];

		ret->hash = mix(ret->hash, w->nranks | w->floats << 4 | w->symmetric << 5 |
						   (int64_t)w->max_blocks << 8 |
						   (int64_t)w->algorithm << 16);
		ret->hash = mix(ret->hash, w->nbytes);
	}
	return err;
}
