/*
 * reach.h - the table of reaches, by which bytes of one rank become another's.
 *
 * While a communicator is created, every rank puts an offer into the one record that all exchange
 * (te__reach_offer()); from all offers each rank computes the rows that all ranks can use
 * (te__reach_agree()). Then pool/ maps memory by fd, fabric and nvls, and collective/nodes/ opens a
 * link by the first row of messages that works.
 */
#ifndef TE__REACH_H
#define TE__REACH_H

#include "libtecomm/meet/bootstrap.h"
#include "libtecomm/reach/link/link.h"
#include "libtecore/base/private.h"

/* rows, in the order of te_transport_info() and of choice between nodes */
enum te__reach_row {
	TE__REACH_FD,
	TE__REACH_FABRIC,
	TE__REACH_NVLS,
	TE__REACH_GPUDIRECT,
	TE__REACH_VERBS,
	TE__REACH_TCP,
	TE__REACH_ROWS
};

#define TE__REACH_WHY 300

/* exchanged record of the rows that a rank can use */
struct te__reach_offer {
	struct te__fabric_domain domain;
	char why[TE__REACH_ROWS][100]; /* why it cannot; "": it can */
};

/* rows that all ranks can use, equal on all of them */
struct te__reach_choice {
	char why[TE__REACH_ROWS][TE__REACH_WHY]; /* why they cannot; "": they can */
};

/* the row that TE_COMM_TRANSPORT names; -1: the first that works */
int te__reach_wanted(void);
const char *te__reach_name(int row);
/* transport of messages of a row; NULL: the row has none, or there is no such row */
const struct te__link_ops *te__reach_link(int row);
const struct te__link_ops *te__reach_link_of(const char *name);

void te__reach_offer(const struct te__boot *boot, struct te_ctx *ctx,
		     struct te__reach_offer *ret);
/*
 * all: the offer of each rank, stride bytes apart. Environment variables are equal on all ranks.
 * Fails, on all ranks alike, if ranks are on several nodes and no row between nodes is left.
 */
int te__reach_agree(const struct te__boot *boot, const void *all, size_t stride,
		    struct te__reach_choice *ret);

/* fails with the reasons why no row between nodes can be used */
int te__reach_none(const struct te__boot *boot, const struct te__reach_choice *choice);

#endif
