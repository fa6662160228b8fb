/*
 * gemm_cache.c - the file that keeps cuBLASLt's fastest algorithm of each GEMM problem: one line
 * per problem, "m n k ... : algorithm and checksum in hex". Processes append to it concurrently.
 */
#define TE_LOG_CATEGORY "core/cublaslt"
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/backend/cuda/gemm_cache.h"
#include "libtecore/base/base.h"

static void print_key(const struct te__gemm_key *k, char *dst, size_t nbytes)
{
	int n = snprintf(dst, nbytes,
			 "%" PRId64 " %" PRId64 " %" PRId64 " %d %d %d %d %d %d %d %d %d %d", k->m,
			 k->n, k->k, k->a_t, k->b_t, k->adtype, k->bdtype, k->ddtype, k->bias,
			 k->beta, k->scaled, k->align, k->tf32);

	/* left out if they are 0, so that files of earlier versions remain valid */
	if (k->asc || k->bsc || k->part)
		n += snprintf(dst + n, nbytes - (size_t)n, " %d %d", k->asc, k->bsc);
	if (k->part)
		snprintf(dst + n, nbytes - (size_t)n, " %d", k->part);
}

/* FNV-1a: detects lines that were truncated or mixed with another */
static uint32_t sum(const char *p, size_t n)
{
	uint32_t h = 2166136261u;

	while (n--)
		h = (h ^ (unsigned char)*p++) * 16777619u;
	return h;
}

static int parse_choice(const char *line, struct te__lt_algo *algo)
{
	const char *p = strchr(line, ':'), *end = strrchr(line, ' ');
	unsigned long long w[8];
	unsigned check;

	if (!p || !end ||
	    sscanf(p + 1, "%llx %llx %llx %llx %llx %llx %llx %llx %x", &w[0], &w[1], &w[2], &w[3],
		   &w[4], &w[5], &w[6], &w[7], &check) != 9 ||
	    check != sum(line, (size_t)(end - line)))
		return 0;
	for (int i = 0; i < 8; i++)
		algo->data[i] = w[i];
	return 1;
}

int te__gemm_cache_find(const char *path, const struct te__gemm_key *key,
			te__gemm_accept_fn *accept, void *arg)
{
	char want[256], line[512];
	struct te__lt_algo algo;
	int found = 0;
	size_t len;
	FILE *f = fopen(path, "re");

	if (!f)
		return 0;
	print_key(key, want, sizeof(want));
	len = strlen(want);
	while (fgets(line, sizeof(line), f)) {
		/* a digit follows: the longer key of a problem with block scaling or in parts */
		if (strncmp(line, want, len) || line[len] != ' ' ||
		    strchr("0123456789", line[len + 1]))
			continue;
		if (parse_choice(line, &algo) && accept(arg, &algo))
			found = 1;
		else
			te__log_warn("%s: ignored a damaged line: %s", path, want);
	}
	fclose(f);
	return found;
}

/* 1: the last line has no end, because of a full disk or a crash */
static int is_truncated(FILE *f)
{
	int last = fseek(f, -1, SEEK_END) ? '\n' : getc(f);

	fseek(f, 0, SEEK_END); /* required between reading and writing */
	return last != '\n';
}

void te__gemm_cache_add(const char *path, const struct te__gemm_key *key,
			const struct te__lt_algo *algo)
{
	char line[512], text[256];
	FILE *f;
	int n;

	print_key(key, text, sizeof(text));
	n = snprintf(line, sizeof(line), "%s :", text);
	for (int i = 0; i < 8; i++)
		n += snprintf(line + n, sizeof(line) - (size_t)n, " %" PRIx64, algo->data[i]);
	snprintf(line + n, sizeof(line) - (size_t)n, " %x", sum(line, (size_t)n));
	/* a short line is one write in append mode, which is not mixed with other writes */
	f = fopen(path, "a+e");
	if (!f || fprintf(f, "%s%s\n", is_truncated(f) ? "\n" : "", line) < 0 || fflush(f))
		te__log_warn("cannot append to %s: the chosen algorithm is not kept", path);
	if (f)
		fclose(f);
}
