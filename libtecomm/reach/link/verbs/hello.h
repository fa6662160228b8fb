/* hello.h - the record that ranks exchange before they connect queue pairs. */
#ifndef TE__VERBS_HELLO_H
#define TE__VERBS_HELLO_H

#include "libtecomm/reach/link/verbs/vlink.h"

struct te__verbs_hello {
	int32_t nports, nlanes;
	struct {
		uint8_t gid[16];
		uint16_t lid;
		uint8_t mtu, link_layer;
		uint32_t rkey, d_rkey, c_rkey;
	} port[TE__VERBS_PORTS_MOST];
	uint32_t psn;
	struct {
		uint64_t control;
		uint32_t qpn[LANES_MOST];
	} to[]; /* by rank */
};

static inline size_t te__verbs_hello_nbytes(int32_t nranks)
{
	return sizeof(struct te__verbs_hello) +
	       (size_t)nranks * sizeof(((struct te__verbs_hello *)0)->to[0]);
}

/* 0, or -TE_EMISMATCH with the invalid member in ret_text */
int te__verbs_hello_check(const struct te__verbs_hello *h, char *ret_text, size_t nbytes);

#endif
