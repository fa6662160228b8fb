/*
 * spill_lib.h - shared by the tests of the file tier: a fixture with a folder, an arena and a
 * spill, and a shim between the spill and its engine, which changes what is submitted and
 * completed.
 */
#ifndef SPILL_LIB_H
#define SPILL_LIB_H

#include "libtecore/base/private.h"
#include "libtecore/offload/spill_io.h"
#include "tt_ctx.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* rows of a loop test: what moves blocks */
struct engine {
	const char *name;
	enum te__spill_engine engine;
	int plain; /* 1: io_uring without registered memory */
};
#define NENGINES 4
extern const struct engine engines[NENGINES];

extern char spill_dir[64];
extern struct te__pinned *arena;
extern struct te__spill *spill;
extern struct te__spill_opts spill_opts; /* of te__spill_create, reset by the fixture */

/*
 * The fixture: a folder on tmpfs, where it is as fast on all machines, or on disk; an arena of
 * 8 MiB without a device; default options with a file of 8 MiB and 8 groups; no spill. Teardown
 * destroys all and finds the folder empty.
 */
void spill_setup(void);
void spill_setup_disk(void);
void spill_teardown(void);
void arena_new(size_t nbytes); /* instead of the one of 8 MiB */
/* 1: io_uring is refused on this machine, so the rest of the test has nothing to show */
int lacks_uring(const struct engine *e);
/* spill_opts for an engine; with the shim, before it is opened, unless that is 0 */
void use_engine(const struct engine *e, int shimmed);
void spill_new(void);
/* both, and groups 0 to n - 1 of so many bytes; 0: io_uring is refused, as in lacks_uring() */
int spill_begin(const struct engine *e, int shimmed, uint32_t n, size_t nbytes);

uint8_t *slot_at(size_t offset); /* in the arena */
/* write and wait, read into a poisoned slot and wait: results */
int put(uint32_t group, const void *slot, size_t nbytes);
int get(uint32_t group, void *slot, size_t nbytes);
struct te__spill_stats stats(void);

/*
 * The shim. Its hooks are called on the I/O thread for every block after te__spill_create, counted
 * from 1: submit may shorten nbytes, or return SHIM_DROP (it never completes), or another value,
 * which is its completion without any I/O, or SHIM_PASS. done may change res of a completion.
 */
#define SHIM_PASS INT32_MAX
#define SHIM_DROP (INT32_MAX - 1)
struct shim {
	const struct te__spill_ops *real;
	void *impl;
	int32_t (*on_submit)(struct shim *h, struct te__blk *b, uint64_t n);
	void (*on_done)(struct shim *h, struct te__blk_done *d, uint64_t n);
	int on; /* after te__spill_create */
	uint64_t nsubmits, ndones;
	struct te__blk_done ready[2 * TE__SPILL_DEPTH_MAX];
	uint32_t nready, ndropped;
	/* of the hooks */
	uint64_t k;
	int32_t code;
	enum te__spill_dir dir;
	int bad;
	uint32_t align;
	_Atomic int stuck; /* 1: reap does not return until it is 0 */
	_Atomic int gate; /* 1: completions are kept until it is 0 */
	struct te__blk_done held[2 * TE__SPILL_DEPTH_MAX];
	uint32_t nheld;
};
extern struct shim shim;

/* ---- faults ---- */

/* what the library logs at level info and above, for "one line says why" */
extern char logged[4096];
extern int nlogged;
/* a fixture: as spill_setup(), with that log */
void fault_setup(void);
void fault_teardown(void);

/* one transfer in both directions, of three blocks and a tail, with fresh data */
#define NBYTES ((size_t)3 * 64 * 1024 + 777)
#define NBLOCKS 4
uint8_t *fresh(void);
void works(void);

#endif
