/*
 * ib_write.h - the programs ib_write_lat and ib_write_bw of the package perftest, between the hosts
 * of ranks 0 and 1. Calls are collective, and return an exit status.
 */
#ifndef IB_WRITE_H
#define IB_WRITE_H

#include "comm.h"

struct verbs_opts {
	struct option_list bytes;
	char *transport, *perftest; /* perftest: a host, or NULL */
	int64_t depth;
};

struct ib_write {
	const struct verbs_opts *o;
	struct comm *c;
	int can; /* both ranks have the programs */
	char device[64], port[16], gid[16];
	char *text; /* output of a program */
};

/* opens w for --perftest; reports why the programs cannot run. The caller closes w in any case */
int ib_write_open(struct ib_write *w, struct comm *c, const struct verbs_opts *o);
void ib_write_close(struct ib_write *w);
/* returns 1 if the programs support messages of nbytes */
int ib_write_takes(const struct ib_write *w, int64_t nbytes);
/* times of half a round trip, in us; rank 0 gets them */
struct ib_write_lat {
	double least_us, median_us, p99_us;
};
int ib_write_lat(struct ib_write *w, int64_t nbytes, struct ib_write_lat *ret);
int ib_write_bw(struct ib_write *w, int64_t nbytes, double *ret_bytes_per_s);

#endif
