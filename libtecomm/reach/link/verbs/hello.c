/* hello.c - see hello.h. */
#include "config.h"

#include <stdio.h>

#include "libtecomm/reach/link/verbs/hello.h"

static int in_range(const char *what, int n, int lo, int hi, char *ret_text, size_t nbytes)
{
	if (n >= lo && n <= hi)
		return 0;
	snprintf(ret_text, nbytes, "its %s is %d, expected %d to %d", what, n, lo, hi);
	return -TE_EMISMATCH;
}

int te__verbs_hello_check(const struct te__verbs_hello *h, char *ret_text, size_t nbytes)
{
	int r = in_range("number of ports", h->nports, 1, TE__VERBS_PORTS_MOST, ret_text, nbytes);

	if (!r)
		r = in_range("number of queue pairs", h->nlanes, 1, LANES_MOST, ret_text, nbytes);
	for (int k = 0; k < h->nports && !r; k++)
		r = in_range("MTU (enum ibv_mtu)", h->port[k].mtu, IBV_MTU_256, IBV_MTU_4096,
			     ret_text, nbytes);
	return r;
}
