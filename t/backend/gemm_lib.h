/*
 * t/backend/gemm_lib.h - shared by the cases of GEMMs by cuBLASLt: a driver and a cuBLASLt that
 * count objects and calls and let any call fail, a device and a stream. No GPU is needed.
 */
#ifndef GEMM_LIB_H
#define GEMM_LIB_H

#include <unistd.h>

#include <te/dtype.h>
#include <te/errno.h>

#include "cuda_fake.h"
#include "libtecore/backend/cuda/cublaslt_api.h"
#include "libtecore/backend/cuda/cuda.h"
#include "tt_ctx.h"

#define CANDIDATES 3
#define MAX_EVENTS 32

enum kind { STREAM, EVENT, GRAPH, EXEC, MEMORY, PREF, DESC, LAYOUT, HANDLE, NKINDS };

/* what was queued eagerly: a GEMM of so many rows, in the order of te_gemm(), or a kernel */
struct event {
	int is_gemm;
	const void *func; /* a kernel: an address in lt_func */
	const void *a, *b, *sa, *sb;
	int adtype, bdtype, ddtype; /* cuBLASLt's */
	int32_t pointers;	    /* pointer mode */
	const void *words;	    /* alpha's address, and its value if that is the host's */
	float alpha;
	char *d, *workspace;
	int64_t rows;
	struct te_k_gemm_finish f;
	struct te_k_fill fill;
};

extern struct fake {
	int live[NKINDS];
	int ncalls, fail_at; /* the call that fails, from 1; 0: none */
	const char *failed;  /* its name */
	int fail_all;	     /* calls of that name fail */
	int ran;	     /* the candidate that ran last, in a graph or eagerly */
	int ngemms;	     /* queued eagerly */
	float ms[CANDIDATES];
	size_t version;
	int compute; /* compute type of the latest descriptor */
	int32_t mode[2]; /* modes of the scales of A and B, as set last */
	const void *sa, *sb; /* te_gemm()'s, as set last */
	int none;	     /* searches find no algorithm: 1 by their status, 2 by their number */
	int nsearches;
	size_t limit; /* workspace limit of the latest search */
	struct event event[MAX_EVENTS];
	int nevents;
} fake;

extern struct te__cuda_dev dev;
extern struct te__cuda_stream stream;
/* the file of chosen algorithms */
extern char choices[];
void lt_name_choices(const char *version);
/* names of the device functions of dev, by which they are sorted; each is its own address */
#define LT_FUNCS 6
extern const char lt_func[LT_FUNCS][32];

/* once, before the cases */
void lt_name_cache(void);
/* the fixture; after a test no object may exist */
void lt_setup(void);
void lt_teardown(void);
CASE(gemm, "host fast", .setup = lt_setup, .teardown = lt_teardown);
/* destroys stream, which has a workspace, and device, which has problems; nothing may remain */
void close_all(void);
/* is the stream that GEMMs are queued on being captured? */
int lt_is_capturing(void);

/*
 * run(g) queues nevents, or fails at one of the calls that it makes, with a message that names the
 * call, or launch for cuLaunchKernelEx; then it succeeds.
 */
void lt_each_call_may_fail(int (*run)(const struct te_k_gemm *g), const struct te_k_gemm *g,
			   int nevents, const char *launch);

/* addresses, which nothing reads */
#define A ((char *)(uintptr_t)0x1000000000)
#define B ((char *)(uintptr_t)0x2000000000)
#define C ((char *)(uintptr_t)0x3000000000)
#define D ((char *)(uintptr_t)0x4000000000)
#define BIAS ((char *)(uintptr_t)0x5000000000)
#define SA ((float *)(uintptr_t)0x6000000000)
#define SB ((float *)(uintptr_t)0x7000000000)

#endif
