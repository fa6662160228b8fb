/* rates.c - rates of the link, of kernels and of the file: from the options, or measured. */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <string.h>
#include <te/stream.h>

#include "libtecore/base/private.h"
#include "libtecore/offload/offload.h"
#include "libtecore/tensor/ctx.h"

#define NBYTES ((size_t)1 << 20) /* bytes of a measured copy; 16 times as many on a GPU */
#define NBYTES_LEAST ((size_t)1 << 17) /* minimum, if little memory is free */
#define GEMM_N 192
#define REPEATS 4

static double now(void)
{
	return 1e-9 * (double)te__now_ns();
}

/* seconds of the fastest copy */
static int time_copy(struct te_stream *st, void *dst, const void *src, size_t nbytes, double *ret)
{
	double best = 1e9;
	int r = 0;

	for (int i = 0; i < REPEATS && !r; i++) {
		const double begin = now();
		double t;

		r = te_copy(st, dst, src, nbytes);
		if (!r)
			r = te_stream_sync(st);
		t = now() - begin;
		best = t < best ? t : best;
	}
	*ret = best > 1e-9 ? best : 1e-9;
	return r;
}

/* dev: of 2 * nbytes */
static int measure_copies(struct te_stream *st, char *dev, void *pinned, size_t nbytes,
			  struct te__offload_rates *rates)
{
	double out = 1, in = 1, mem = 1;
	int r = te_fill(st, dev, 0, 2 * nbytes);

	if (!r)
		r = time_copy(st, pinned, dev, nbytes, &out);
	if (!r)
		r = time_copy(st, dev, pinned, nbytes, &in);
	if (!r)
		r = time_copy(st, dev + nbytes, dev, nbytes, &mem);
	rates->out = (double)nbytes / out;
	rates->in = (double)nbytes / in;
	rates->mem = 2 * (double)nbytes / mem;
	return r;
}

/* dev: filled with zeros. A launch of the kernel itself: te_gemm(3) is of a higher layer */
static int measure_gemm(struct te_stream *st, char *dev, double *ret_flop)
{
	const size_t nbytes = 2 * GEMM_N * GEMM_N;
	struct te_k_gemm g;
	double best = 1e9;
	int r = 0;

	memset(&g, 0, sizeof(g));
	g.a = dev;
	g.b = dev + nbytes;
	g.d = dev + 2 * nbytes;
	g.m = g.n = g.k = GEMM_N;
	g.alpha = 1;
	g.adtype = g.bdtype = g.cdtype = g.ddtype = TE_DTYPE_BF16;
	for (int i = 0; i < REPEATS && !r; i++) {
		const double begin = now();
		double s;

		r = te__stream_queued(st, TE__LAUNCH(st, GEMM, &g));
		if (!r)
			r = te_stream_sync(st);
		s = now() - begin;
		best = s < best ? s : best;
	}
	*ret_flop = 2.0 * GEMM_N * GEMM_N * GEMM_N / (best > 1e-9 ? best : 1e-9);
	return r;
}

static int measure(const struct te_offload *o, size_t nbytes, int gemm,
		   struct te__offload_rates *rates)
{
	void *dev = NULL, *pinned = NULL;
	int r = te_mem_alloc(o->out, 2 * nbytes, &dev);

	for (; r == -ENOMEM && nbytes > NBYTES_LEAST; r = te_mem_alloc(o->out, 2 * nbytes, &dev))
		nbytes /= 2;
	if (!r)
		r = te_pinned_alloc(o->ctx, nbytes, &pinned);
	if (!r)
		r = measure_copies(o->out, dev, pinned, nbytes, rates);
	if (!r && gemm)
		r = measure_gemm(o->out, dev, &rates->flop);
	if (dev)
		te_mem_free(o->out, dev);
	if (pinned)
		te_pinned_free(o->ctx, pinned);
	return r ? r : te_stream_sync(o->out);
}

/* Of GPUs the data sheet is known: kernels reach 0.8 of its bandwidth, 0.65 of its operations. */
int te__offload_find_rates(struct te_offload *o)
{
	struct te_device_info info = TE_DEVICE_INFO_INIT;
	const struct te_offload_opts *given = &o->opts;
	struct te__offload_rates *rates = &o->rates;
	int r = te_ctx_device_info(o->ctx, &info);

	rates->mem = 0.8 * info.peak_bandwidth;
	rates->flop = 0.65 * info.peak_bf16_flops;
	if (!r && !(given->out_rate > 0 && given->in_rate > 0 && given->mem_rate > 0 &&
		    given->flop_rate > 0)) {
		const int gpu = rates->mem > 0 && rates->flop > 0;
		struct te__offload_rates found = *rates;

		r = measure(o, gpu ? 16 * NBYTES : NBYTES, !gpu, &found);
		rates->out = found.out;
		rates->in = found.in;
		rates->mem = gpu ? rates->mem : found.mem;
		rates->flop = found.flop;
	}
	rates->out = given->out_rate > 0 ? given->out_rate : rates->out;
	rates->in = given->in_rate > 0 ? given->in_rate : rates->in;
	rates->mem = given->mem_rate > 0 ? given->mem_rate : rates->mem;
	rates->flop = given->flop_rate > 0 ? given->flop_rate : rates->flop;
	return r;
}

static int time_file(struct te_offload *o, enum te__spill_dir dir, void *slot, double *ret_rate)
{
	double best = 1e9;
	int r = 0;

	for (int i = 0; i < 2 && !r; i++) {
		const double begin = now();
		double t;

		r = dir == TE__SPILL_WRITE ?
			    te__spill_write(o->spill, 0, slot, NBYTES, NULL, 0) :
			    te__spill_read(o->spill, 0, slot, NBYTES, NULL, 0);
		if (!r)
			r = te__spill_wait(o->spill, dir, 0, -1);
		t = now() - begin;
		best = t < best ? t : best;
	}
	*ret_rate = (double)NBYTES / (best > 1e-9 ? best : 1e-9);
	return r;
}

int te__offload_find_file_rates(struct te_offload *o)
{
	const struct te_offload_opts *given = &o->opts;
	void *slot = NULL;
	uint32_t file;
	int r = 0;

	o->rates.write = given->write_rate;
	o->rates.read = given->read_rate;
	if (given->write_rate > 0 && given->read_rate > 0)
		return 0;
	r = te__offload_take_file(o, NBYTES, "", &file);
	if (!r)
		r = te__pinned_take(o->slots, NBYTES, &slot);
	if (!r)
		r = time_file(o, TE__SPILL_WRITE, slot, &o->rates.write);
	if (!r)
		r = time_file(o, TE__SPILL_READ, slot, &o->rates.read);
	if (slot)
		te__pinned_give(o->slots, slot);
	if (o->nfiles)
		te__offload_give_file(o, file);
	o->measured_nbytes = NBYTES;
	o->rates.write = given->write_rate > 0 ? given->write_rate : o->rates.write;
	o->rates.read = given->read_rate > 0 ? given->read_rate : o->rates.read;
	return r;
}
