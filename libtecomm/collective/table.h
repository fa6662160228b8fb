/*
 * table.h - the table of algorithms if neither the call nor TE_COMM_ALGO chooses one.
 *
 * A row holds for a number of ranks, types, memory, and a maximum size of arrays. A *section*
 * is a set of rows that differ in bytes only, in ascending order; the last has no limit.
 * TE_COMM_TABLE is a file whose sections replace the library's. te_comm_allreduce(3) has
 * its format.
 */
#ifndef TE__TABLE_H
#define TE__TABLE_H

#include <stddef.h>
#include <stdint.h>

#include <te/collective.h>

#define TE__TABLE_ROWS 512
#define TE__TABLE_REST INT64_MAX /* bytes of the last row of a section */

struct te__table_row {
	int32_t nranks;
	int32_t floats;	   /* 1: all-reduce of floating types; 0: the other operations and types */
	int32_t symmetric; /* 1: in and out are symmetric memory */
	int32_t max_blocks; /* 0: as many as are useful */
	int64_t nbytes;	   /* maximum size of arrays */
	enum te_comm_algorithm algorithm;
};

struct te__table {
	char path[256]; /* "": there is no file */
	uint64_t hash;	/* hash of its rows; 0: no rows */
	int nrows;
	struct te__table_row row[TE__TABLE_ROWS];
};

/* 0, or an error that names the file and the line; ret is then undefined */
int te__table_read(const char *path, struct te__table *ret);
/*
 * The first row for arrays of nbytes, from the file if it has the section. host: use the library's
 * rows for the host backend
 */
const struct te__table_row *te__table_find(const struct te__table *t, int host, int32_t nranks,
					   int floats, int symmetric, int64_t nbytes);

#endif
