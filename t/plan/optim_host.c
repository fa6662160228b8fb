/* t/plan/optim_host.c - AdamW with moments in host memory: the bits of moments in device memory. */
#include "config.h"

#include <math.h>
#include <unistd.h>

#include <te/capture.h>
#include <te/checkpoint.h>
#include <te/errno.h>
#include <te/optim.h>
#include "kernels/te_k.h"
#include "libtecore/base/base.h"

#include "tt_ctx.h"
#include "tt_num.h"
#include "optim_runs.h"

static struct te_adamw_opts host(enum te_moments moments, int32_t chunk)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;

	o.moments = moments;
	o.where = TE_ADAMW_HOST;
	o.chunk_nelems = chunk;
	return o;
}

CTX_CASE(host_moments, backend, .name = "host moments");

/* _i: how weights and moments are stored */
TEST_EACH(host_moments, has_the_bits_of_device_memory, 9)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT, h;
	struct run device, r;

	o.moments = (enum te_moments)(_i / 3);
	device = start(masters[_i % 3], &o);
	train(&device, EAGER);
	for (size_t i = 0; i < TT_LEN(chunks); i++)
		for (int how = EAGER; how <= CONCURRENT; how++) {
			h = host(o.moments, chunks[i]);
			r = start(masters[_i % 3], &h);
			train(&r, (enum how)how);
			same(&device, &r);
			end(&r);
		}
	end(&device);
}

/* remainders in host memory, with moments there too, in chunks, and with moments in device memory;
 * _i: how moments are stored */
TEST_EACH(host_moments, remainders_in_host_memory_have_these_bits, ON_HOST ? 3 : 0)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT, h;
	struct run device, r;

	o.moments = (enum te_moments)_i;
	device = start(masters[1], &o);
	train(&device, EAGER);
	for (size_t i = 0; i <= TT_LEN(chunks); i++)
		for (int how = EAGER; how <= CONCURRENT; how++) {
			h = i < TT_LEN(chunks) ? host(o.moments, chunks[i]) : o;
			r = start(HOST_MASTERS, &h);
			train(&r, (enum how)how);
			same(&device, &r);
			end(&r);
		}
	end(&device);
}

/* device memory for weights is that of BF16, and a chunk has remainders, too */
TEST_IF(host_moments, remainders_take_no_device_memory, ON_HOST)
{
	const struct te_adamw_opts h = host(TE_MOMENTS_FP32, 256);
	struct te_seq *seq[2] = { NULL, NULL };
	uint64_t used[3], nbytes[2];

	used[0] = tt_used();
	for (int i = 0; i < 2; i++) {
		DO(build(ctx, i && ON_HOST ? HOST_MASTERS : masters[1], &seq[i]));
		used[i + 1] = tt_used();
		nbytes[i] = te_adamw_nbytes(seq[i], &h);
	}
	ck_assert_uint_ge(used[1] - used[0], used[2] - used[1] + 2 * 2048);
	ck_assert_uint_eq(nbytes[1], nbytes[0] + 3 * 256 * 2);
	te_seq_unref(seq[0]);
	te_seq_unref(seq[1]);
}

/* a copy to a buffer does not depend on the chunk before it, and depends on the last use of the
 * buffer */
TEST_IF(host_moments, chunks_are_copied_concurrently, ON_HOST)
{
	const struct te_adamw_opts o = host(TE_MOMENTS_FP32, 256); /* 8 chunks */
	struct run r = start(0, &o);
	struct te_recording *rec = record(&r, CONCURRENT);
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct te_node_info node = TE_NODE_INFO_INIT;
	uint64_t dep[8], nfree = 0, nadamw = 0;

	DO(te_recording_info(rec, &info));
	ck_assert_uint_eq(info.ncopies, 8 * 4);
	ck_assert_uint_eq(info.nkernels, 2 + 8);
	for (uint64_t i = 0; i < info.nnodes; i++) {
		DO(te_recording_node(rec, i, &node));
		if (node.kind == TE_NODE_COPY && !node.ndeps)
			nfree++;
		if (node.kind == TE_NODE_KERNEL && !strcmp(node.name, "adamw")) {
			/* its two copies, and the state, unless a copy depends on it */
			ck_assert_int_eq(te_recording_deps(rec, i, 8, dep), nadamw < 3 ? 3 : 2);
			nadamw++;
		}
	}
	ck_assert_uint_eq(nadamw, 8);
	ck_assert_uint_eq(nfree, 3 * 2); /* to the three buffers */
	te_recording_unref(rec);
	end(&r);
}

/* device memory is that of three chunks; moments are in host memory */
TEST_EACH(host_moments, takes_the_memory_of_chunks, 3)
{
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	const size_t moment = te_moments_nbytes((enum te_moments)_i, 2048);
	const size_t exps = _i == TE_MOMENTS_FP8 ? 256 : 0;
	struct te_adamw_opts h = host((enum te_moments)_i, 256);
	struct run r = start(0, &h);
	uint64_t used, device;

	o.moments = h.moments;
	device = te_adamw_nbytes(r.seq, &o);
	ck_assert_uint_eq(te_adamw_nbytes(r.seq, &h) - (device - 2 * moment),
			  3 * 2 * (te_moments_nbytes(TE_MOMENTS_FP32, 256) / (_i ? 2u * _i : 1) +
				   exps));
	h.chunk_nelems = 0; /* a 16th */
	ck_assert_uint_eq(te_adamw_nbytes(r.seq, &h) - (device - 2 * moment),
			  3 * 2 * ((_i == TE_MOMENTS_FP32 ? 512 : 256) + exps));
	used = tt_used();
	te_adamw_unref(r.opt);
	ck_assert_uint_ge(used - tt_used(), 3 * 2 * (size_t)(256 << (_i < 2) << !_i));
	DO(te_adamw_create(r.seq, &h, &r.opt));
	end(&r);
}

static int keep(void *arg, const struct te_region *region)
{
	if (strstr(region->name, "moments")) {
		ck_assert_int_eq(region->kind, TE_REGION_HOST);
		++*(int *)arg;
	}
	return 0;
}

/* moments as the program reads and writes them */
TEST_EACH(host_moments, moments_are_read_and_written, 3)
{
	const struct te_adamw_opts h = host((enum te_moments)_i, 128);
	struct run r = start(0, &h);
	const size_t nbytes = te_moments_nbytes(h.moments, (int64_t)r.n);
	uint8_t *m = malloc(nbytes), *back = malloc(nbytes);
	int nregions = 0;

	DO(te_adamw_moments_get(r.opt, 1, m));
	for (size_t i = 0; i < nbytes; i++)
		ck_assert_uint_eq(m[i], 0);
	train(&r, EAGER);
	DO(te_adamw_moments_get(r.opt, 1, m));
	DO(te_adamw_moments_set(r.opt, 0, m));
	DO(te_adamw_moments_get(r.opt, 0, back));
	ck_assert_mem_eq(m, back, nbytes);
	DO(te_adamw_regions(r.opt, keep, &nregions));
	ck_assert_int_eq(nregions, 2);
	free(m);
	free(back);
	end(&r);
}

static void path_of(char *path, size_t nbytes, const char *name)
{
	snprintf(path, nbytes, "%s/te-optim-host-%d-%s", getenv("TMPDIR") ? getenv("TMPDIR") :
		 "/tmp", (int)getpid(), name);
}

static void *file_bytes(const char *path, size_t *ret_nbytes)
{
	FILE *f = fopen(path, "rb");
	void *p;

	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fseek(f, 0, SEEK_END), 0);
	*ret_nbytes = (size_t)ftell(f);
	rewind(f);
	p = malloc(*ret_nbytes);
	ck_assert_uint_eq(fread(p, 1, *ret_nbytes, f), *ret_nbytes);
	fclose(f);
	return p;
}

/* checkpoints do not depend on the memory of moments, and load into either */
TEST_EACH(host_moments, checkpoints_are_the_same, 3)
{
	struct te_adamw_opts o[2] = { TE_ADAMW_OPTS_INIT, host((enum te_moments)_i, 192) };
	char path[2][256];
	struct run r[2], back;
	size_t nbytes[2];
	void *file[2];

	o[0].moments = o[1].moments;
	for (int i = 0; i < 2; i++) {
		path_of(path[i], sizeof(path[i]), i ? "host" : "device");
		r[i] = start(i && ON_HOST ? HOST_MASTERS : masters[1], &o[i]);
		train(&r[i], EAGER);
		DO(te_checkpoint_save(r[i].seq, r[i].opt, path[i]));
		file[i] = file_bytes(path[i], &nbytes[i]);
	}
	ck_assert_uint_eq(nbytes[0], nbytes[1]);
	same_bytes(file[0], file[1], nbytes[0], "checkpoints");
	for (int i = 0; i < 2; i++) {
		back = start(i && ON_HOST ? HOST_MASTERS : masters[1], &o[i]);
		ck_assert_int_ge(te_checkpoint_load(back.seq, back.opt, path[!i], 0, NULL), 0);
		same(&back, &r[0]);
		end(&back);
	}
	for (int i = 0; i < 2; i++) {
		unlink(path[i]);
		free(file[i]);
		end(&r[i]);
	}
}

/* one of three parts: its elements, and the tail */
TEST_EACH(host_moments, parts_have_the_same_bits, 3)
{
	struct te_adamw_opts o[2] = { TE_ADAMW_OPTS_INIT, host((enum te_moments)_i, 192) };
	struct part p[2] = { { 0 } };
	struct run r[2];

	o[0].moments = o[1].moments;
	for (int part = 0; part < 3; part++) {
		for (int i = 0; i < 2; i++) {
			o[i].nparts = 3;
			o[i].part = part;
			o[i].gather = gather;
			o[i].gather_arg = &p[i];
			p[i].part = part;
			r[i] = start(i && ON_HOST ? HOST_MASTERS : masters[1], &o[i]);
			train(&r[i], EAGER);
		}
		ck_assert_int_eq(p[0].ncalls, p[1].ncalls);
		same(&r[0], &r[1]);
		end(&r[0]);
		end(&r[1]);
	}
}

static int put_norm(void *arg, struct te_stream *stream, void *parts, size_t nbytes)
{
	return te_fill(stream, (char *)parts + nbytes, 0, nbytes) + 0 * *(int *)arg;
}

/* the norm of several shards, set after the first step */
TEST(host_moments, shards_have_the_same_bits)
{
	struct te_adamw_opts o[2] = { TE_ADAMW_OPTS_INIT, host(TE_MOMENTS_FP32, 192) };
	struct te_adamw_shards sh = TE_ADAMW_SHARDS_INIT;
	int none = 0;
	struct run r[2];

	o[0].moments = o[1].moments;
	sh.nshards = 2;
	sh.gather = put_norm;
	sh.arg = &none;
	for (int i = 0; i < 2; i++) {
		r[i] = start(0, &o[i]);
		put_grads(&r[i], 0);
		DO(te_adamw_step(r[i].opt, st));
		DO(te_adamw_set_shards(r[i].opt, &sh));
		train(&r[i], EAGER);
	}
	same(&r[0], &r[1]);
	end(&r[0]);
	end(&r[1]);
}

/* whichever call fails in a step, the first of which records the update: it has changed nothing,
 * and the next step has the bits that it would have had */
TEST_IF(host_moments, a_step_that_fails_changes_nothing, ON_HOST)
{
	const struct te_adamw_opts h = host(TE_MOMENTS_FP8, 512);
	struct run want = start(HOST_MASTERS, &h), r;
	struct state before;
	int nfailed = 0;

	train(&want, EAGER);
	r = start(HOST_MASTERS, &h);
	for (int i = 0; i < NSTEPS; i++) {
		put_grads(&r, i);
		before = state_of(&r);
		for (uint64_t nth = 1;; nth += nth < 40 ? 1 : 7) {
			int e, fired;

			te__fault_set(nth);
			e = te_adamw_step(r.opt, st);
			fired = te__fault_fired();
			te__fault_set(0);
			if (!fired) {
				DO(e);
				break;
			}
			ck_assert_int_lt(e, 0);
			same_state(&r, &before);
			nfailed++;
		}
		state_free(&before);
	}
	ck_assert_int_ge(nfailed, 20);
	same(&want, &r);
	end(&want);
	end(&r);
}

TEST(host_moments, names_the_option_at_fault)
{
	static const struct {
		int where;
		int32_t chunk;
	} bad[] = { { 3, 0 }, { -1, 0 }, { TE_ADAMW_DEVICE, 64 }, { TE_ADAMW_HOST, 65 },
		    { TE_ADAMW_HOST, -64 } };
	struct te_adamw_opts o = TE_ADAMW_OPTS_INIT;
	struct run r = start(0, NULL);
	struct te_adamw *opt = NULL;

	for (size_t i = 0; i < TT_LEN(bad); i++) {
		char words[64];

		o.where = (enum te_adamw_where)bad[i].where;
		o.chunk_nelems = bad[i].chunk;
		snprintf(words, sizeof(words), "te_adamw_create: where %d and chunk_nelems %d",
			 bad[i].where, bad[i].chunk);
		fails(te_adamw_create(r.seq, &o, &opt), -EINVAL, words);
		ck_assert_uint_eq(te_adamw_nbytes(r.seq, &o), 0);
	}
	ck_assert_ptr_null(opt);
	end(&r);
}

TEST_IF(host_moments, gpus_refuse_remainders_in_host_memory, !ON_HOST)
{
	struct te_seq *seq;

	ck_assert_int_eq(build(ctx, HOST_MASTERS, &seq), -EOPNOTSUPP);
	te_seq_unref(seq);
}

static int create(void)
{
	const struct te_adamw_opts h = host(TE_MOMENTS_FP8, 1024);
	struct te_adamw *opt = NULL;
	struct te_ctx *c = NULL;
	struct te_seq *s = NULL;
	int r = tt_ctx_new(&c);

	if (r >= 0)
		r = build(c, HOST_MASTERS, &s);
	if (r >= 0)
		r = te_adamw_create(s, &h, &opt);
	if (r >= 0)
		r = te_adamw_step(opt, te_ctx_stream(c));
	if (r >= 0)
		r = te_stream_sync(te_ctx_stream(c));
	if (r >= 0)
		tt_fault_end();
	te_adamw_unref(opt);
	te_seq_unref(s);
	te_ctx_unref(c);
	return r;
}

CASE(faults, backend);

TEST_IF(faults, survives_every_failed_allocation, ON_HOST)
{
	ck_assert_int_ge(tt_fault_each(create), 20);
}

TT_PAIR("plan/optim_host", TT_ONE_PROCESS)
