/*
 * t/comm/nccl_fake.h - a libnccl.so.2 for tests: its ranks are threads of the process, and its sums
 * are done by the calling threads, in the order of ranks, in FP32. Its calls return while they are
 * in progress, and end after some polls.
 */
#ifndef NCCL_FAKE_H
#define NCCL_FAKE_H

#include <te/export.h>

#define NCCL_FAKE_RANKS 8

extern TE_EXPORT struct nccl_fake {
	int version[2];	  /* of even and of odd calls of ncclGetVersion() */
	const char *_Atomic fail;  /* the function that fails */
	const char *_Atomic late;  /* the one that fails after it has returned */
	const char *_Atomic stall; /* the one that stays in progress */
	int held_rank;	   /* its ncclCommInitRankConfig() waits for so many polls */
	_Atomic int held_polls;
	/* what was called, by all ranks */
	_Atomic int nversion, nid, ninit, npoll, nreduce, ngroup, nfinalize, ndestroy, nabort;
	_Atomic int dtype, op; /* of the latest sum */
	const void *_Atomic stream;
} nccl_fake;

#endif
