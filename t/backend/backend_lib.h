/*
 * t/backend/backend_lib.h - what the cases of a backend's table share: a device, its streams and
 * memory, and work that leaves a trace.
 */
#ifndef BACKEND_LIB_H
#define BACKEND_LIB_H

#include "libtecore/backend/backend.h"
#include "tt.h"

#define PAD 64 /* poison on either side of what is written */

enum place { DEVICE, PINNED, PAGEABLE, NPLACES };

/* of the case that runs: a table, a device, and two of its streams */
extern const struct te__backend_ops *ops;
extern int is_host;
extern void *dev, *a, *b;

/* a case with these */
#define BK_CASE(case_, ...) \
	CASE(case_, "backend", .setup = bk_setup, .teardown = bk_teardown, ##__VA_ARGS__)
void bk_setup(void);
void bk_teardown(void);

/* memory that teardown frees */
void *bk_get(enum place where, size_t nbytes);

/* what is queued from here on waits for the gate */
void bk_hold_up(void *stream);
/* between any memory and memory that the CPU sees, now */
void bk_move(void *dst, const void *src, size_t n);
void bk_poison(void *p, size_t n);
/* memory holds these bytes */
void bk_check(const void *p, const void *want, size_t n, const char *what);
void bk_check_filled(const void *p, int value, size_t n, const char *what);
/* device memory in use, after queued work and frees */
struct te__mem_held bk_held(void);
void bk_check_held(uint64_t before, const char *what);
/* a host call that writes the value, if it gets all of its 1000 bytes */
int bk_note(void *stream, int *at, int value);
/* host calls: adds 1 to an int; fails */
void bk_increment(void *arg);
void bk_fail_full(void *arg);
/* FP32 to BF16 */
int bk_cast(void *stream, const float *x, void *y, int64_t n);

#endif
