/*
 * t/fuzz/ted_written.c - the file in which ted(8) keeps what was written today, of any bytes: as
 * they are, and with the first line of today and a right sum, which reach the rows.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/ted.h"
#include "fuzz.h"

/* what was taken is as ted counts: one row for each user and job, none below 0; else none */
static void parse(const char *text)
{
	static struct ted t;

	t.day = (int64_t)time(NULL) / 86400;
	if (ted_written_parse(&t, text) && t.nwritten)
		abort();
	for (int i = 0; i < t.nwritten; i++) {
		if (t.written[i].nbytes < 0)
			abort();
		for (int k = 0; k < i; k++)
			if (t.written[k].uid == t.written[i].uid &&
			    t.written[k].job == t.written[i].job)
				abort();
	}
	t.nwritten = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	const size_t cap = nbytes + 80;
	char *text = malloc(cap);
	int n;

	if (!text)
		abort();
	memcpy(text, data, nbytes);
	text[nbytes] = 0;
	parse(text);
	n = snprintf(text, cap, "day %lld\n", (long long)time(NULL) / 86400);
	memcpy(text + n, data, nbytes);
	text[n + (int)nbytes] = 0;
	n = (int)strlen(text);
	snprintf(text + n, cap - (size_t)n, "sum %016llx\n",
		 (unsigned long long)ted_written_sum(text, (size_t)n));
	parse(text);
	free(text);
	return 0;
}
