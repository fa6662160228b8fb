/*
 * t/comm/pmix_fake.h - a libpmix.so.2 for tests: its server is memory that the processes of the
 * test share, and its functions fail, or do not return, as the test asks for.
 */
#ifndef PMIX_FAKE_H
#define PMIX_FAKE_H

#include <stdint.h>

#include <te/export.h>

struct pmix_fake {
	uint32_t nranks;
	const char *fail;	    /* the function that fails */
	const char *_Atomic stall;  /* the one that does not return until this is another */
	char key[512], text[1024];  /* what rank 0 has put */
	_Atomic int published;	    /* and committed */
	_Atomic int nget_nb;	    /* calls of all processes */
};

extern TE_EXPORT struct pmix_fake *pmix_fake;
extern TE_EXPORT uint32_t pmix_fake_rank; /* of this process */
/* calls of PMIx_Init() by this process that PMIx_Finalize() has to follow */
extern TE_EXPORT _Atomic int pmix_fake_ninit;

#endif
