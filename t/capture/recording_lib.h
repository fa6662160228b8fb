/*
 * t/capture/recording_lib.h - shared by the cases of te/capture.h: streams, memory surrounded by
 * poison, and recordings of a few nodes.
 */
#ifndef RECORDING_LIB_H
#define RECORDING_LIB_H

#include <te/capture.h>

#include "tt_ctx.h"

#define REFUSED(code, fn, ...) fails(fn(__VA_ARGS__), (code), "")

#define PAD 64	    /* bytes of poison before and after the memory */
#define POISON 0xa5 /* as tt_poison() writes it */

#define CONCURRENT_PDL (TE_CAPTURE_CONCURRENT | TE_CAPTURE_PDL)

/* of the running case, in addition to ctx and st of tt_ctx.h */
extern int is_host;
extern struct te_stream *a, *b;

/* a case with these streams */
#define REC_CASE(case_, ...) \
	CASE(case_, "backend", .setup = rec_setup, .teardown = rec_teardown, ##__VA_ARGS__)
void rec_setup(void);
void rec_teardown(void);

/* memory that is freed after the case */
void *rec_pinned(size_t nbytes);
/* copies synchronously */
void rec_put(void *dst, const void *src, size_t nbytes);
/* device memory with poison in it and around it; returns its address, after the first PAD */
unsigned char *rec_device(size_t nbytes);
/* normal random numbers in such memory */
float *rec_floats(size_t n);
/* the memory has these bytes, and poison around it */
void rec_check(const void *p, const void *want, size_t n, const char *what);
void rec_check_filled(const void *p, int value, size_t n, const char *what);
/* a part of some memory, whatever is around it */
void rec_check_part(const void *p, int value, size_t n, const char *what);
/* it is still poison */
void rec_check_untouched(const void *p, size_t n, const char *what);
/* y = x + z */
void rec_check_sum(const float *y, const float *x, const float *z, size_t n, const char *what);
/* y = x + z, FP32 */
int rec_add(struct te_stream *s, const float *x, const float *z, float *y, size_t n);
/* a host call */
void rec_nothing(void *arg);
/* the results of te_recording_info(3) and te_recording_node(3) */
struct te_recording_info rec_info(const struct te_recording *rec);
struct te_node_info rec_node(const struct te_recording *rec, uint64_t index);
/* a binding; fails unless it has so many uses */
int32_t rec_binding(struct te_recording *rec, const void *p, size_t n, int nuses, int patchable);
int rec_rebind(struct te_recording *rec, int32_t s, void *p);
/* launches on a, and waits */
void rec_launch(struct te_recording *rec);

/* n floats: dst becomes those of x and z, of x, or a value */
struct work {
	enum te_node_kind kind;
	float *dst, *x, *z;
	size_t n;
	uint32_t value;
};

struct work rec_some_work(float *d, size_t n);
void rec_queue_work(const struct work *w, int n);
/* a recording that fills n bytes with the value */
struct te_recording *rec_filler(unsigned char *d, uint8_t value, size_t n);

/* on a GPU: between them driver calls may be made */
void rec_enter(void);
void rec_leave(void);

#endif
