/*
 * ckpt_parts.c - checkpoints of which each rank writes and reads a part.
 *
 * Rank k writes model-K-of-N.safetensors, with the tensors that begin in its N-th of the weights,
 * and state-K-of-N.safetensors, with its part of the moments. After all ranks have, rank 0 writes
 * state.safetensors, with the digests of these files, and the index; see ckpt_files.c. The numbers
 * in names have 5 and 6 digits in turn: no save writes to files of the checkpoint in the folder,
 * which is complete until the state, and for Python the index, is replaced by rename(2).
 */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt_files.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"
#include "tools/lib/weights.h"

#define BLOCK 64 /* elements; parts of moments are multiples of it: te/optim.h */

const char *const ckpt_moments_types[] = {
	[TE_MOMENTS_FP32] = "F32", [TE_MOMENTS_BF16] = "BF16", [TE_MOMENTS_FP8] = "U8"
};

/* ---- names ---- */

const char *ckpt_part_name(const struct ckpt_part *p, enum ckpt_kind kind, int32_t k,
			   char ret_name[64])
{
	snprintf(ret_name, 64, "%s-%0*d-of-%0*d.safetensors",
		 kind == CKPT_MODEL ? "model" : "state", p->digits, (int)k + 1, p->digits,
		 (int)p->n);
	return ret_name;
}

/* is it the name of a file of a part, as in *ret_part, or of one that was not completed */
static int is_part(const char *name, enum ckpt_kind *ret_kind, struct ckpt_part *ret_part,
		   int *ret_is_fresh)
{
	char word[8], want[64];
	int k, n;

	if (sscanf(name, "%5[a-z]-%6d-of-%6d.", word, &k, &n) != 3)
		return 0;
	*ret_kind = strcmp(word, "model") ? CKPT_STATE : CKPT_MODEL;
	for (int digits = 5; digits <= 6; digits++) {
		size_t len;

		*ret_part = (struct ckpt_part){ n, k - 1, digits };
		len = strlen(ckpt_part_name(ret_part, *ret_kind, k - 1, want));
		*ret_is_fresh = !strcmp(name + strnlen(name, len), ".new");
		if (!strncmp(name, want, len) && (!name[len] || *ret_is_fresh))
			return 1;
	}
	return 0;
}

int ckpt_next_digits(const char *path)
{
	struct ckpt_run run = { .obj = NULL };
	struct st_file *f = NULL;
	struct folder dir;
	int digits = 0;

	if (folder_open(path, &dir))
		return 0;
	/* the index must not name older files than the state */
	if (!ckpt_complete(&dir)) {
		say_hush(1); /* a state that cannot be read keeps no names */
		if (folder_has(&dir, STATE_ST) && !ckpt_open(&dir, STATE_ST, &f) &&
		    ckpt_read_run(f, &run))
			run = (struct ckpt_run){ .obj = NULL };
		say_hush(0);
		digits = run.part.n && run.part.digits == 5 ? 6 : 5;
	}
	json_decref(run.obj);
	st_close(f);
	folder_close(&dir);
	return digits;
}

int ckpt_drop_parts(const struct folder *dir, const struct ckpt_part *keep)
{
	const int fd = openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	char model[64];
	int n = 0;

	if (!list) {
		say_bad("%s: %s", dir->path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return STATUS_BAD;
	}
	for (const struct dirent *e; (e = readdir(list));) {
		enum ckpt_kind kind;
		struct ckpt_part p;
		int fresh;

		if (!is_part(e->d_name, &kind, &p, &fresh) ||
		    (keep && !fresh && keep->n == p.n && keep->digits == p.digits))
			continue;
		/* a model file without a state file is not of te_train */
		if (kind == CKPT_STATE && !fresh)
			unlinkat(dir->fd, ckpt_part_name(&p, CKPT_MODEL, p.k, model), 0);
		if (kind == CKPT_STATE || fresh)
			unlinkat(dir->fd, e->d_name, 0);
		n += kind == CKPT_STATE;
	}
	closedir(list);
	if (n && !keep) {
		unlinkat(dir->fd, INDEX_JSON, 0);
		ckpt_drop(dir, INDEX_JSON);
	}
	return STATUS_OK;
}

int ckpt_link_parts(const struct folder *dir, const struct folder *to, const struct ckpt_part *p)
{
	char name[64];

	for (int32_t i = 0; i < 2 * p->n; i++) {
		ckpt_part_name(p, i < p->n ? CKPT_MODEL : CKPT_STATE, i % p->n, name);
		if (linkat(dir->fd, name, to->fd, name, 0))
			return say_bad("%s/%s: %s", to->path, name, strerror(errno));
	}
	return STATUS_OK;
}

/* ---- saving ---- */

/* elements of a moment of n elements in part k */
static int64_t part_nelems(const struct ckpt_part *p, int32_t k, int64_t n)
{
	const int64_t each = n / BLOCK / p->n * BLOCK;

	return k + 1 < p->n ? each : n - k * each;
}

static int64_t part_first(const struct ckpt_part *p, int32_t k, int64_t n)
{
	return k * (n / BLOCK / p->n * BLOCK);
}

struct elements {
	uint8_t *at;
	int64_t size, first; /* elements of the moment at `at`, and the first one that is meant */
};

/* n elements and, for FP8, their exponents; both may be in one buffer */
static void copy_elements(enum te_moments moments, struct elements to, struct elements from,
			  int64_t n)
{
	const int fp8 = moments == TE_MOMENTS_FP8;
	const size_t size = fp8 ? 1 : te_moments_nbytes(moments, 1);

	memmove(to.at + (size_t)to.first * size, from.at + (size_t)from.first * size,
		(size_t)n * size);
	if (fp8)
		memmove(to.at + to.size + to.first / BLOCK,
			from.at + from.size + from.first / BLOCK,
			(size_t)((n + BLOCK - 1) / BLOCK));
}

/* the optimizer has its part, and the elements after all parts, which the last part has in files */
static int read_moment(const struct te_adamw *opt, int second, int64_t nall,
		       const struct ckpt_part *p, void **ret_data)
{
	const int64_t n = part_nelems(p, p->k, nall), each = part_nelems(p, 0, nall);
	const int64_t held = p->n > 1 ? each + nall - p->n * each : nall;
	const struct te_tensor *t = second ? te_adamw_v(opt) : te_adamw_m(opt);
	const size_t nbytes = te_moments_nbytes(te_adamw_moments(opt), held);
	uint8_t *data = malloc(nbytes + 1);
	int te = data ? te_tensor_read(t, data, nbytes) : -ENOMEM;

	*ret_data = data;
	if (te < 0)
		return say_te(te, "reading the moments");
	copy_elements(te_adamw_moments(opt), (struct elements){ data, n, 0 },
		      (struct elements){ data, held, 0 }, n);
	return STATUS_OK;
}

static int read_weights(const struct model *m, const struct ckpt_part *p, struct ckpt_flat *flat)
{
	const struct te_tensor *masters = te_seq_masters(m->seq);
	const int divided = te_tensor_nelems(masters) < te_seq_nelems(m->seq);
	int te = 0, r = STATUS_OK;

	/* without memory, this rank takes part too: the others wait for it */
	for (int32_t k = 0; k < p->n && !r && te >= 0; k++) {
		int64_t first, n;
		float *x = NULL;

		r = weights_part(m, k, p->n, &first, &n);
		if (!r && k == p->k) {
			flat->first = first;
			flat->n = n;
			x = flat->weights = malloc((size_t)n * sizeof(*x) + 1);
		}
		if (!r && (divided || x))
			te = te_seq_masters_get(m->seq, first, n, x);
	}
	if (!r && te >= 0 && !flat->weights)
		te = -ENOMEM;
	return te < 0 ? say_te(te, "reading weights") : r;
}

int ckpt_read_part(const struct model *m, const struct te_adamw *opt, const struct ckpt_part *part,
		   struct ckpt_flat *ret_flat)
{
	const int64_t nall = te_seq_grad_nelems(m->seq);
	struct ckpt_flat flat = { .part = *part, .nmoment = part_nelems(part, part->k, nall) };
	int r = read_weights(m, part, &flat);

	if (!r)
		r = read_moment(opt, 0, nall, part, &flat.m);
	if (!r)
		r = read_moment(opt, 1, nall, part, &flat.v);
	if (!r) {
		*ret_flat = flat;
		return STATUS_OK;
	}
	free(flat.weights);
	free(flat.m);
	free(flat.v);
	return r;
}

/* ---- the index ---- */

/* the digest of a file of a part, and for the index the tensors of a model file */
static int list_file(const struct folder *dir, const char *name, struct record *digests,
		     struct digest *d, struct record *map, int64_t *nbytes)
{
	char *path = folder_path(dir, name);
	struct st_file *f = NULL;
	int r = path ? st_open(path, &f) : STATUS_FAILED;
	const char *digest = r ? NULL : st_get_meta(f, "digest");

	free(path);
	if (digest) {
		record_text(digests, NULL, digest);
		digest_add(d, digest, strlen(digest));
	}
	for (const char *tensor = NULL; !r && map && (tensor = st_next(f, tensor));) {
		struct st_tensor t;

		st_find(f, tensor, &t);
		*nbytes += (int64_t)t.nbytes;
		record_text(map, tensor, name);
	}
	st_close(f);
	return r;
}

int ckpt_write_index(const struct folder *dir, const struct ckpt_part *p, json_t **ret_digests,
		     char ret_digest[17])
{
	struct record index, list;
	struct digest d = { 0 };
	json_t *obj = NULL, *digests = NULL;
	int64_t nbytes = 0;
	int r = STATUS_OK;
	char name[64];

	record_begin(&index);
	record_open(&index, "weight_map");
	record_begin(&list);
	record_open_list(&list, "digests");
	for (int32_t i = 0; i < 2 * p->n && !r; i++) {
		const enum ckpt_kind kind = i < p->n ? CKPT_MODEL : CKPT_STATE;

		r = list_file(dir, ckpt_part_name(p, kind, i % p->n, name), &list, &d,
			      kind == CKPT_MODEL ? &index : NULL, &nbytes);
		if (r)
			say_bad("%s/%s: rank %d has written it, but rank 0 cannot read it: "
				"expected a folder that all ranks share", dir->path, name,
				(int)(i % p->n));
	}
	digest_end(&d, ret_digest);
	record_close(&index);
	record_open(&index, "metadata");
	record_int(&index, "total_size", nbytes);
	record_text(&index, "digest", ret_digest);
	record_close(&index);
	record_close(&list);
	obj = record_end(&index, INDEX_JSON);
	digests = record_end(&list, STATE_ST);
	if (!r && (!obj || !digests))
		r = STATUS_FAILED;
	if (!r)
		r = record_save(dir, ckpt_fresh_name(INDEX_JSON, name), obj);
	if (!r)
		*ret_digests = json_incref(json_object_get(digests, "digests"));
	json_decref(digests);
	json_decref(obj);
	return r;
}

/* ---- loading ---- */

int ckpt_open_part(const struct folder *dir, const struct ckpt_run *run, enum ckpt_kind kind,
		   int32_t k, struct st_file **ret_f)
{
	const size_t i = (size_t)(kind == CKPT_MODEL ? k : run->part.n + k);
	const char *want = json_string_value(json_array_get(run->digests, i)), *have;
	struct st_file *f = NULL;
	char name[64];
	int r = ckpt_open(dir, ckpt_part_name(&run->part, kind, k, name), &f);

	if (r)
		return r;
	have = st_get_meta(f, "digest");
	if (!have || !want || strcmp(have, want)) {
		r = say_bad("%s: not the part that %s/%s belongs to", st_path(f), dir->path,
			    STATE_ST);
		st_close(f);
		return r;
	}
	*ret_f = f;
	return STATUS_OK;
}

int ckpt_state_part(struct ckpt_states *s, int32_t k, const struct st_file **ret_f)
{
	const int r = s->file[k] ? STATUS_OK :
				   ckpt_open_part(s->dir, s->run, CKPT_STATE, k, &s->file[k]);

	*ret_f = s->file[k];
	return r;
}

void ckpt_states_close(struct ckpt_states *s)
{
	for (int32_t k = 0; k < CKPT_MOST_PARTS; k++)
		st_close(s->file[k]);
}

int ckpt_find_moment(const struct st_file *f, int second, int64_t nelems,
		     enum te_moments *ret_from, struct st_tensor *ret_t)
{
	const char *name = second ? "adamw.v" : "adamw.m";
	int from = TE_MOMENTS_FP8;
	size_t nbytes;

	if (!st_find(f, name, ret_t))
		return say_bad("%s: there is no \"%s\"", st_path(f), name);
	while (from && strcmp(ret_t->dtype, ckpt_moments_types[from]))
		from--;
	nbytes = te_moments_nbytes((enum te_moments)from, nelems);
	if (strcmp(ret_t->dtype, ckpt_moments_types[from]) || ret_t->nbytes != nbytes)
		return say_bad("%s: \"%s\" has %zu bytes of %s; this model makes %zu of %s",
			       st_path(f), name, ret_t->nbytes, ret_t->dtype, nbytes,
			       ckpt_moments_types[from]);
	*ret_from = (enum te_moments)from;
	return STATUS_OK;
}

/* elements from `first` on, at to->first in a buffer that is allocated when their type is known */
static int read_elements(struct ckpt_states *s, int second, int64_t nall, int64_t first, int64_t n,
			 struct elements *to, int *moments)
{
	const struct ckpt_part *p = &s->run->part;
	int r = STATUS_OK;

	for (int32_t k = 0; k < p->n && !r; k++) {
		const int64_t at = part_first(p, k, nall), size = part_nelems(p, k, nall);
		const int64_t from = first > at ? first : at;
		const int64_t end = first + n < at + size ? first + n : at + size;
		const struct st_file *f;
		enum te_moments type;
		struct elements part;
		struct st_tensor t;

		if (from >= end)
			continue;
		r = ckpt_state_part(s, k, &f);
		if (!r)
			r = ckpt_find_moment(f, second, size, &type, &t);
		if (r)
			break;
		if (*moments < 0) {
			*moments = type;
			to->at = malloc(te_moments_nbytes(type, to->size) + 1);
		}
		if (!to->at)
			return say_failed("out of memory");
		if (*moments != (int)type)
			return say_bad("%s: has moments in %s, unlike other parts", st_path(f),
				       t.dtype);
		part = (struct elements){ (uint8_t *)(uintptr_t)t.data, size, from - at };
		copy_elements(type, (struct elements){ to->at, to->size, to->first + from - first },
			      part, end - from);
	}
	to->first += n;
	return r;
}

int ckpt_read_moment(struct ckpt_states *s, int second, int64_t nall, const struct ckpt_part *own,
		     enum te_moments *ret_from, int64_t *ret_n, void **ret_data)
{
	const int64_t n = own->n ? part_nelems(own, 0, nall) : nall;
	const int64_t tail = own->n > 1 ? own->n * n : nall; /* the first element after all parts */
	struct elements to = { NULL, n + nall - tail, 0 };
	int moments = -1;
	int r = read_elements(s, second, nall, own->n ? own->k * n : 0, n, &to, &moments);

	if (!r)
		r = read_elements(s, second, nall, tail, nall - tail, &to, &moments);
	if (r) {
		free(to.at);
		return r;
	}
	*ret_from = moments < 0 ? TE_MOMENTS_FP32 : (enum te_moments)moments;
	*ret_n = to.size;
	*ret_data = to.at;
	return STATUS_OK;
}
