/*
 * checkpoint.c - te_checkpoint_*(3): the state of a training run as a safetensors file.
 *
 * Format: https://github.com/huggingface/safetensors, "Format". The header of a given sequence is a
 * function of the sequence, except for the CRC and the size of the quantizers' state. So
 * te_checkpoint_load() does not parse headers: it compares the file's with the one that
 * te_checkpoint_save() would write, entry by entry. The CRC-32C is of the whole file, with zeros as
 * its digits.
 */
#define TE_LOG_CATEGORY "core/checkpoint"
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <te/checkpoint.h>
#include <te/errno.h>
#include "libtecore/base/private.h"

#include "kernels/optim/round.h"
#include "kernels/te_k.h"
#include "libtecore/offload/crc32c.h"
#include "libtecore/ops/kernel.h"
#include "libtecore/plan/seq.h"
#include "libtecore/tensor/ctx.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors files are little-endian");

#define HEADER_MAX (100u << 20) /* the limit of the safetensors library */
#define MAGIC "{\"__metadata__\":{\"format\":\"te-checkpoint\",\"version\":\""
#define FORMAT "1"
#define BEFORE_CRC "\",\"crc32c\":\""
#define CRC_AT (8 + sizeof(MAGIC FORMAT BEFORE_CRC) - 1) /* in the file */
#define NO_CRC "00000000"

/* a tensor of the file */
struct item {
	const char *prefix, *name;
	const char *dtype;
	int ndim;
	int64_t shape[TE_MAX_DIMS];
	void *device; /* device memory of its data; NULL: host memory */
	void *host;
	size_t nbytes;
	const struct te__weight *weight; /* stored in another way than in the file; or NULL */
};

struct checkpoint {
	const char *fn, *path;
	struct te_seq *seq;
	struct te_adamw *adamw; /* or NULL */
	struct item *item;
	size_t nitems;
	size_t first_quant, after_quant; /* 0 or 1 item, after the weights */
	enum te_dtype masters;	 /* type of weights in the file: FP32, or BF16 */
	enum te_moments moments; /* how the file stores moments */
	char *moment[2]; /* in the optimizer's memory; is_copy: in host memory */
	int is_copy;
	size_t first_moment;	 /* items; the second moments follow the first */
	uint64_t rng[2];
	struct te_k_adamw_state state;
	/* header text */
	char *text;
	size_t len, cap;
	uint64_t at; /* offset of the next tensor's data */
};

static int failed(const struct checkpoint *c, int err)
{
	return te__fail(-err, "%s: %s: %s", c->fn, c->path, strerror(err));
}

/* ---- the state to save ---- */

static struct item *add(struct checkpoint *c, const char *prefix, const char *name,
			const char *dtype, void *device, void *host, size_t nbytes)
{
	struct item *it = &c->item[c->nitems++];

	*it = (struct item){ .prefix = prefix, .name = name, .dtype = dtype, .ndim = 1,
			     .device = device, .host = host, .nbytes = nbytes };
	it->shape[0] = (int64_t)nbytes;
	return it;
}

static void set_shape(struct item *it, const struct te__weight *w)
{
	it->ndim = w->decl.ndim;
	memcpy(it->shape, w->decl.shape, sizeof(it->shape));
}

static void add_weight(struct checkpoint *c, const struct te__weight *w)
{
	const size_t n = (size_t)te_tensor_nelems(w->master);
	struct item *it = add(c, "", w->name, c->masters == TE_DTYPE_BF16 ? "BF16" : "F32",
			      te_tensor_data(w->master), NULL, n * te_dtype_nbytes(c->masters));

	set_shape(it, w);
	if (w->rest || te_tensor_dtype(w->master) != c->masters) {
		it->device = NULL;
		it->weight = w;
	}
}

/*
 * Add a moment of a weight as the file stores it: FP8 is two items, codes and exponents. device is
 * the address in c->moment, which counts only if that stores it the same way.
 */
static void add_moment(struct checkpoint *c, int second, const struct te__weight *w)
{
	static const char *const types[] = { "F32", "BF16", "U8" };
	char *at = c->moment[second];
	const int64_t n = te_tensor_nelems(w->master), first = w->offset_nelems;
	const int fp8 = c->moments == TE_MOMENTS_FP8;
	const int64_t nall = te_seq_grad_nelems(c->seq);

	set_shape(add(c, second ? "adamw.v." : "adamw.m.", w->name, types[c->moments],
		      at + (fp8 ? first : te_k_moment_nbytes((int32_t)c->moments, first)), NULL,
		      fp8 ? (size_t)n : te_moments_nbytes(c->moments, n)), w);
	if (fp8)
		add(c, second ? "adamw.v_exp." : "adamw.m_exp.", w->name, "U8",
		    at + nall + first / TE_K_ALIGN_WEIGHT, NULL,
		    (size_t)(n + TE_K_ALIGN_WEIGHT - 1) / TE_K_ALIGN_WEIGHT);
}

static int check(struct checkpoint *c)
{
	const struct te_seq *seq = c->seq;

	if (!seq || !c->path)
		return te__fail(-EINVAL, "%s: %s is NULL", c->fn, seq ? "path" : "seq");
	if (!seq->initialised)
		return te__fail(-TE_ESTATE, "%s: te_seq_init has not run", c->fn);
	if (c->adamw && te__adamw_seq(c->adamw) != seq)
		return te__fail(-EINVAL, "%s: the optimizer is of another sequence", c->fn);
	if (c->adamw && te__adamw_nparts(c->adamw) > 1)
		return te__fail(-EOPNOTSUPP,
				"%s: the optimizer has one of %d parts of the moments, expected "
				"all: te_adamw_moments_get(3)", c->fn, te__adamw_nparts(c->adamw));
	if (te__seq_divides_masters(seq))
		return te__fail(-EOPNOTSUPP, "%s: the sequence has one of %d parts of the masters, "
				"expected all: te_seq_masters_get(3)", c->fn, seq->binding.nparts);
	for (int i = 0; i < seq->nweights; i++)
		if (!seq->weight[i].master)
			return te__fail(-EOPNOTSUPP,
					"%s: weight %s is bound to a tensor, expected a master",
					c->fn, seq->weight[i].name);
	return te__ctx_wait(seq->ctx, c->fn);
}

/* quant: the quantizers' state, or NULL: none, or to be found in the file */
static int list_items(struct checkpoint *c, void *quant, size_t quant_nbytes)
{
	const struct te_seq *seq = c->seq;

	c->item = te__calloc(3 + 5 * (size_t)seq->nweights, sizeof(*c->item));
	if (!c->item)
		return te__no_memory(c->fn);
	add(c, "", "rng", "U64", NULL, c->rng, sizeof(c->rng))->shape[0] = 2;
	for (int i = 0; i < seq->nweights; i++)
		add_weight(c, &seq->weight[i]);
	c->first_quant = c->nitems;
	if (quant)
		add(c, "", "quant", "U8", NULL, quant, quant_nbytes);
	c->after_quant = c->nitems;
	if (!c->adamw)
		return 0;
	add(c, "", "adamw", "U8", NULL, &c->state, sizeof(c->state));
	c->first_moment = c->nitems;
	for (int second = 0; second < 2; second++)
		for (int i = 0; i < seq->nweights; i++)
			if (te__weight_trains(&seq->weight[i]))
				add_moment(c, second, &seq->weight[i]);
	return 0;
}

/* addresses of the moments; in a file: of a copy, which is read if `read` is 1 */
static int find_moments_memory(struct checkpoint *c, int read)
{
	struct te_tensor *const t[] = { te_adamw_m(c->adamw), te_adamw_v(c->adamw) };
	const size_t nbytes = te_moments_nbytes(te_adamw_moments(c->adamw),
						te_seq_grad_nelems(c->seq));
	int r = 0;

	for (int second = 0; second < 2 && c->adamw && !r; second++) {
		c->is_copy = !t[second];
		c->moment[second] = t[second] ? te_tensor_data(t[second]) : te__calloc(nbytes, 1);
		if (!c->moment[second])
			r = te__no_memory(c->fn);
		else if (!t[second] && read)
			r = te_adamw_moments_get(c->adamw, second, c->moment[second]);
	}
	return r;
}

static int set_moments(struct checkpoint *c)
{
	int r = te_adamw_moments_set(c->adamw, 0, c->moment[0]);

	return r ? r : te_adamw_moments_set(c->adamw, 1, c->moment[1]);
}

static void done(struct checkpoint *c)
{
	for (int second = 0; second < 2 && c->is_copy; second++)
		te__free(c->moment[second]);
	te__free(c->item);
	te__free(c->text);
}

/* ---- the header ---- */

static int put(struct checkpoint *c, const char *text, size_t n)
{
	if (n > c->cap - c->len) {
		size_t cap = 2 * c->cap + n + 256;
		char *p = te__realloc(c->text, cap);

		if (!p)
			return te__no_memory(c->fn);
		c->text = p;
		c->cap = cap;
	}
	memcpy(c->text + c->len, text, n);
	c->len += n;
	return 0;
}

static int putf(struct checkpoint *c, const char *fmt, ...) TE_PRINTF(2, 3);
static int putf(struct checkpoint *c, const char *fmt, ...)
{
	char buf[128];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(buf, sizeof(buf), fmt, ap);
	va_end(ap);
	return put(c, buf, (size_t)n);
}

/* in a JSON string */
static int put_name(struct checkpoint *c, const char *name)
{
	int r = 0;

	for (const char *p = name; *p && !r; p++) {
		const unsigned char ch = (unsigned char)*p;

		if (ch < ' ' || ch == '"' || ch == '\\')
			r = putf(c, "\\u%04x", ch);
		else
			r = put(c, p, 1);
	}
	return r;
}

static int put_item(struct checkpoint *c, const struct item *it)
{
	int r = putf(c, ",\"%s", it->prefix);

	if (!r)
		r = put_name(c, it->name);
	if (!r)
		r = putf(c, "\":{\"dtype\":\"%s\",\"shape\":[", it->dtype);
	for (int i = 0; i < it->ndim && !r; i++)
		r = putf(c, "%s%" PRId64, i ? "," : "", it->shape[i]);
	if (!r)
		r = putf(c, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", c->at,
			 c->at + it->nbytes);
	c->at += it->nbytes;
	return r;
}

/* ---- saving ---- */

struct file {
	int dir, fd;
	char *folder; /* folder of path, for free */
	const char *name; /* in it */
	char *fresh;	  /* name.new, for free */
	uint32_t crc;
};

static int write_all(const struct checkpoint *c, struct file *f, const void *src, size_t nbytes)
{
	const char *p = src;

	f->crc = te__crc32c(f->crc, src, nbytes);
	while (nbytes) {
		ssize_t n = write(f->fd, p, nbytes);

		if (n < 0 && errno != EINTR)
			return failed(c, errno);
		if (n > 0) {
			p += n;
			nbytes -= (size_t)n;
		}
	}
	return 0;
}

/* the rename would replace the file: as root, even /dev/null */
static int check_place(const struct checkpoint *c, const struct file *f)
{
	struct stat st;

	if (fstatat(f->dir, f->name, &st, 0) || S_ISREG(st.st_mode))
		return 0;
	return S_ISDIR(st.st_mode) ? failed(c, EISDIR) :
				     te__fail(-EINVAL, "%s: %s: is a device, pipe or socket, "
					      "expected a file or a new name", c->fn, c->path);
}

static int create_file(const struct checkpoint *c, struct file *f)
{
	const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
	char *slash;
	int r;

	f->folder = te__strdup(c->path);
	f->fresh = te__malloc(strlen(c->path) + sizeof(".new"));
	if (!f->folder || !f->fresh)
		return te__no_memory(c->fn);
	slash = strrchr(f->folder, '/');
	f->name = strrchr(c->path, '/');
	f->name = f->name ? f->name + 1 : c->path;
	if (slash)
		slash[slash == f->folder] = '\0'; /* "/name": "/" */
	stpcpy(stpcpy(f->fresh, f->name), ".new");
	f->dir = open(slash ? f->folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (f->dir < 0)
		return failed(c, errno);
	r = check_place(c, f);
	if (r)
		return r;
	f->fd = openat(f->dir, f->fresh, flags, 0666);
	/* left by an incomplete save, or placed there so that this one follows a link */
	if (f->fd < 0 && errno == EEXIST && !unlinkat(f->dir, f->fresh, 0))
		f->fd = openat(f->dir, f->fresh, flags, 0666);
	return f->fd < 0 ? failed(c, errno) : 0;
}

static int write_header(struct checkpoint *c, struct file *f)
{
	uint64_t n;
	int r = put(c, MAGIC FORMAT BEFORE_CRC NO_CRC "\"}",
		    sizeof(MAGIC FORMAT BEFORE_CRC NO_CRC "\"}") - 1);

	for (size_t i = 0; i < c->nitems && !r; i++)
		r = put_item(c, &c->item[i]);
	if (!r)
		r = put(c, "}", 1);
	while (c->len % 8 && !r)
		r = put(c, " ", 1);
	if (!r && c->len > HEADER_MAX)
		return te__fail(-EOVERFLOW, "%s: %s: the header has %zu bytes, at most %u are read",
				c->fn, c->path, c->len, HEADER_MAX);
	n = c->len;
	if (!r)
		r = write_all(c, f, &n, sizeof(n));
	return r ? r : write_all(c, f, c->text, c->len);
}

static int write_data(struct checkpoint *c, struct file *f)
{
	size_t most = 1;
	void *buf;
	int r = 0;

	for (size_t i = 0; i < c->nitems; i++)
		if ((c->item[i].device || c->item[i].weight) && c->item[i].nbytes > most)
			most = c->item[i].nbytes;
	buf = te__malloc(most);
	if (!buf)
		return te__no_memory(c->fn);
	for (size_t i = 0; i < c->nitems && !r; i++) {
		const struct item *it = &c->item[i];

		if (it->device)
			r = te__ctx_copy(c->seq->ctx, buf, it->device, it->nbytes);
		else if (it->weight) /* with a remainder: FP32 */
			r = te__weight_read(it->weight, buf);
		if (!r)
			r = write_all(c, f, it->host ? it->host : buf, it->nbytes);
	}
	te__free(buf);
	return r;
}

/* 1: the file that was written still has its name */
static int is_there(const struct file *f)
{
	struct stat a, b;

	return !fstat(f->fd, &a) && !fstatat(f->dir, f->fresh, &b, AT_SYMLINK_NOFOLLOW) &&
	       a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int commit(const struct checkpoint *c, struct file *f)
{
	char crc[sizeof(NO_CRC)];

	snprintf(crc, sizeof(crc), "%08" PRIx32, f->crc);
	if (pwrite(f->fd, crc, sizeof(crc) - 1, CRC_AT) != (ssize_t)sizeof(crc) - 1 ||
	    fsync(f->fd))
		return failed(c, errno);
	if (!is_there(f))
		return te__fail(-EBUSY, "%s: %s: another process saves to the same file", c->fn,
				c->path);
	if (renameat(f->dir, f->fresh, f->dir, f->name))
		return failed(c, errno);
	close(f->fd);
	f->fd = -1;
	return fsync(f->dir) ? failed(c, errno) : 0;
}

static void close_file(struct file *f)
{
	if (f->fd >= 0) {
		if (is_there(f))
			unlinkat(f->dir, f->fresh, 0);
		close(f->fd);
	}
	if (f->dir >= 0)
		close(f->dir);
	te__free(f->folder);
	te__free(f->fresh);
}

int te_checkpoint_save(struct te_seq *seq, struct te_adamw *adamw, const char *path)
{
	struct checkpoint c = { .fn = __func__, .path = path, .seq = seq, .adamw = adamw };
	struct file f = { .dir = -1, .fd = -1 };
	size_t quant_nbytes = 0;
	void *quant = NULL;
	int r = check(&c);

	if (!r)
		r = te_seq_rng_get(seq, &c.rng[0], &c.rng[1]);
	if (!r && adamw)
		r = te_adamw_state_get(adamw, &c.state, sizeof(c.state));
	if (!r && seq->quant) {
		quant_nbytes = te_quant_nbytes(seq->quant);
		quant = te__malloc(quant_nbytes);
		r = quant ? te_quant_save(seq->quant, quant, quant_nbytes) : te__no_memory(c.fn);
	}
	if (!r && adamw)
		c.moments = te_adamw_moments(adamw);
	if (!r)
		c.masters = seq->rest ? TE_DTYPE_FP32 : te_tensor_dtype(seq->masters);
	if (!r)
		r = find_moments_memory(&c, 1);
	if (!r)
		r = list_items(&c, quant, quant_nbytes);
	if (!r)
		r = create_file(&c, &f);
	if (!r)
		r = write_header(&c, &f);
	if (!r)
		r = write_data(&c, &f);
	if (!r)
		r = commit(&c, &f);
	close_file(&f);
	te__free(quant);
	done(&c);
	return r;
}

/* ---- loading ---- */

/* read the whole file, so that later changes of it do not matter */
static int read_file(const struct checkpoint *c, uint8_t **ret_bytes, size_t *ret_nbytes)
{
	int fd = open(c->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), r = 0;
	uint8_t *bytes = NULL;
	size_t nbytes = 0;
	struct stat st;

	if (fd < 0)
		return failed(c, errno);
	if (fstat(fd, &st))
		r = failed(c, errno);
	else if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < CRC_AT)
		r = te__fail(-TE_EFORMAT, "%s: %s: not a checkpoint of te_checkpoint_save", c->fn,
			     c->path);
	if (!r && !(bytes = te__malloc((size_t)st.st_size)))
		r = te__no_memory(c->fn);
	while (!r && nbytes < (size_t)st.st_size) {
		ssize_t n = read(fd, bytes + nbytes, (size_t)st.st_size - nbytes);

		if (n < 0 && errno != EINTR)
			r = failed(c, errno);
		else if (!n)
			r = te__fail(-TE_ECORRUPT, "%s: %s: was cut short while it was read",
				     c->fn, c->path);
		else if (n > 0)
			nbytes += (size_t)n;
	}
	close(fd);
	if (r) {
		te__free(bytes);
		return r;
	}
	*ret_bytes = bytes;
	*ret_nbytes = nbytes;
	return 0;
}

/* how the file stores moments: the type of the first; where there is none, as FP32 */
static enum te_moments find_moments(const uint8_t *bytes, size_t nbytes)
{
	static const char before[] = ",\"adamw.m.", type[] = "\":{\"dtype\":\"";
	const uint8_t *p = memmem(bytes, nbytes, before, sizeof(before) - 1);

	if (p)
		p = memmem(p, nbytes - (size_t)(p - bytes), type, sizeof(type) - 1);
	if (!p || nbytes - (size_t)(p - bytes) < sizeof(type))
		return TE_MOMENTS_FP32;
	return p[sizeof(type) - 1] == 'B' ? TE_MOMENTS_BF16 :
	       p[sizeof(type) - 1] == 'U' ? TE_MOMENTS_FP8 :
					    TE_MOMENTS_FP32;
}

/* how the file stores weights: the type of the first, which follows the random state */
static enum te_dtype find_masters(const uint8_t *bytes, size_t nbytes)
{
	static const char before[] = ",\"rng\":{\"dtype\":\"U64\"", type[] = "\":{\"dtype\":\"";
	const uint8_t *p = memmem(bytes, nbytes, before, sizeof(before) - 1);

	if (p)
		p += sizeof(before) - 1;
	if (p)
		p = memmem(p, nbytes - (size_t)(p - bytes), type, sizeof(type) - 1);
	return p && nbytes - (size_t)(p - bytes) >= sizeof(type) && p[sizeof(type) - 1] == 'B' ?
		       TE_DTYPE_BF16 :
		       TE_DTYPE_FP32;
}

/* a part of a file's header, from *p to end */
struct cursor {
	const char *p, *end;
};

static int other_model(const struct checkpoint *c, const struct cursor *k)
{
	char found[96];
	size_t n = 0;

	while (k->p + n < k->end && n + 1 < sizeof(found) && (!n || k->p[n - 1] != '}')) {
		found[n] = k->p[n] < ' ' || k->p[n] > '~' ? '?' : k->p[n];
		n++;
	}
	found[n] = '\0';
	return te__fail(-TE_ESHAPE, "%s: %s: is of another model: holds %s, expected %.*s", c->fn,
			c->path, found, (int)c->len, c->text);
}

/* check that the next item of the file is this */
static int expect_item(struct checkpoint *c, struct cursor *k, const struct item *it)
{
	int r;

	c->len = 0;
	r = put_item(c, it);
	if (r)
		return r;
	if ((size_t)(k->end - k->p) < c->len || memcmp(k->p, c->text, c->len))
		return other_model(c, k);
	k->p += c->len;
	return 0;
}

static int expect(struct checkpoint *c, struct cursor *k, size_t from, size_t to)
{
	int r = 0;

	for (size_t i = from; i < to && !r; i++)
		r = expect_item(c, k, &c->item[i]);
	return r;
}

/* the state of quantizers, if the file has it: its size, or 0 */
static int find_quant(struct checkpoint *c, struct cursor *k, size_t *ret_nbytes)
{
	static const char before[] = ",\"quant\":{\"dtype\":\"U8\",\"shape\":[";
	struct item it = { .prefix = "", .name = "quant", .dtype = "U8", .ndim = 1 };
	uint64_t n = 0;
	int r;

	*ret_nbytes = 0;
	if ((size_t)(k->end - k->p) < sizeof(before) ||
	    memcmp(k->p, before, sizeof(before) - 1))
		return 0;
	for (const char *p = k->p + sizeof(before) - 1; p < k->end && *p >= '0' && *p <= '9'; p++)
		if (n < UINT32_MAX)
			n = 10 * n + (uint64_t)(*p - '0');
	it.shape[0] = (int64_t)n;
	it.nbytes = n;
	r = expect_item(c, k, &it);
	*ret_nbytes = r ? 0 : n;
	return r;
}

static int check_header(struct checkpoint *c, struct cursor *k, uint32_t flags,
			size_t *ret_quant_nbytes)
{
	int r = expect(c, k, 0, c->first_quant);

	if (r)
		return r;
	r = find_quant(c, k, ret_quant_nbytes);
	if (r)
		return r;
	if (!(flags & TE_CHECKPOINT_SKIP_QUANT)) {
		if (*ret_quant_nbytes && !c->seq->quant)
			return te__fail(-TE_ESTATE, "%s: %s: has the state of quantizers, and the "
				"sequence has none: expected a plan or step of its FP8 recipe "
				"first, or TE_CHECKPOINT_SKIP_QUANT", c->fn, c->path);
		if (!*ret_quant_nbytes && c->seq->quant)
			return te__fail(-TE_ESTATE, "%s: %s: has no state of quantizers, and the "
				"sequence has an FP8 plan: expected TE_CHECKPOINT_SKIP_QUANT, "
				"with which its quantizers remain", c->fn, c->path);
	}
	if (!c->adamw)
		return 0;
	if (*k->p == '}')
		return te__fail(-TE_ESTATE, "%s: %s: was saved without an optimizer, expected "
				"NULL for adamw", c->fn, c->path);
	r = expect(c, k, c->after_quant, c->nitems);
	if (r)
		return r;
	c->len = 0;
	r = put(c, "}", 1);
	return r || *k->p == '}' ? r : other_model(c, k);
}

static int check_file(struct checkpoint *c, uint8_t *bytes, size_t nbytes, uint32_t flags,
		      size_t *ret_data_at, size_t *ret_quant_nbytes)
{
	const char *head = (const char *)bytes + 8;
	char crc[sizeof(NO_CRC)];
	uint64_t n;
	struct cursor k;
	int r;

	memcpy(&n, bytes, 8);
	if (memcmp(head, MAGIC, sizeof(MAGIC) - 1))
		return te__fail(-TE_EFORMAT, "%s: %s: not a checkpoint of te_checkpoint_save",
				c->fn, c->path);
	if (memcmp(head + sizeof(MAGIC) - 1, FORMAT BEFORE_CRC,
		   sizeof(FORMAT BEFORE_CRC) - 1))
		return te__fail(-TE_EFORMAT, "%s: %s: a checkpoint of another version, expected "
				FORMAT, c->fn, c->path);
	if (n > nbytes - 8 || n < CRC_AT + sizeof(NO_CRC "\"}") - 8)
		return te__fail(-TE_ECORRUPT, "%s: %s: damaged or cut short: %" PRIu64 " bytes of "
				"header", c->fn, c->path, n);
	k = (struct cursor){ (const char *)bytes + CRC_AT + sizeof(NO_CRC "\"}") - 1, head + n };
	/* before the CRC: a file of another model is reported as such even if it is damaged */
	r = check_header(c, &k, flags, ret_quant_nbytes);
	if (r)
		return r;
	memcpy(crc, bytes + CRC_AT, sizeof(crc) - 1);
	crc[sizeof(crc) - 1] = '\0';
	memcpy(bytes + CRC_AT, NO_CRC, sizeof(crc) - 1);
	c->len = 0;
	r = putf(c, "%08" PRIx32, te__crc32c(0, bytes, nbytes));
	if (r)
		return r;
	if (memcmp(c->text, crc, sizeof(crc) - 1) || c->at > nbytes - 8 - n)
		return te__fail(-TE_ECORRUPT, "%s: %s: damaged or cut short: its CRC is not of its "
				"bytes", c->fn, c->path);
	*ret_data_at = 8 + n;
	return 0;
}

/* point each item at its data in the file, and *ret_quant at the quantizers' data */
static void find_data(struct checkpoint *c, uint8_t *data, size_t quant_nbytes, uint8_t **ret_quant)
{
	for (size_t i = 0; i < c->nitems; i++) {
		struct item *it = &c->item[i];

		if (i == c->after_quant)
			data += quant_nbytes;
		if (it->host)
			memcpy(it->host, data, it->nbytes);
		else
			it->host = data;
		data += it->nbytes;
		if (i + 1 == c->first_quant)
			*ret_quant = data;
	}
}

/* a moment of a weight from the file's items, which store it in another way than the optimizer */
static int convert(struct checkpoint *c, int second, const struct te__weight *w,
		   const struct item *it)
{
	const enum te_moments from = c->moments, to = te_adamw_moments(c->adamw);
	const int64_t n = te_tensor_nelems(w->master);
	const size_t nfrom = te_moments_nbytes(from, n), nto = te_moments_nbytes(to, n);
	struct checkpoint own = { .seq = c->seq, .adamw = c->adamw, .moments = to,
				  .moment = { c->moment[0], c->moment[1] } };
	struct item item[2];
	char *src = te__malloc(nfrom), *dst = te__malloc(nto);
	float *values = te__malloc((size_t)n * sizeof(*values));
	int r = src && dst && values ? 0 : te__no_memory(c->fn);

	own.item = item;
	if (!r) {
		memcpy(src, it->host, it->nbytes);
		if (from == TE_MOMENTS_FP8)
			memcpy(src + it->nbytes, it[1].host, it[1].nbytes);
		te_moments_to_fp32(from, second, n, src, values);
		te_moments_from_fp32(to, second, n, values, dst);
		add_moment(&own, second, w);
	}
	for (size_t i = 0, at = 0; i < own.nitems && !r; at += item[i++].nbytes)
		r = te__ctx_copy(c->seq->ctx, item[i].device, dst + at, item[i].nbytes);
	te__free(src);
	te__free(dst);
	te__free(values);
	return r;
}

/* a weight that the file stores in another way than the sequence */
static int take_weight(const struct checkpoint *c, const struct item *it)
{
	const int64_t n = te_tensor_nelems(it->weight->master);
	float *values = te__malloc((size_t)n * sizeof(*values));
	const uint8_t *src = it->host;
	int r;

	if (!values)
		return te__no_memory(c->fn);
	if (c->masters == TE_DTYPE_FP32)
		memcpy(values, src, (size_t)n * sizeof(*values));
	for (int64_t i = 0; i < n && c->masters == TE_DTYPE_BF16; i++)
		values[i] = te_round_float((uint32_t)src[2 * i] << 16 |
					   (uint32_t)src[2 * i + 1] << 24);
	r = te__weight_write(it->weight, values);
	te__free(values);
	return r;
}

static int take_moments(struct checkpoint *c)
{
	const struct te_seq *seq = c->seq;
	const struct item *it = c->item + c->first_moment;
	int r = 0;

	for (int second = 0; second < 2; second++)
		for (int i = 0; i < seq->nweights && !r; i++) {
			if (!te__weight_trains(&seq->weight[i]))
				continue;
			r = convert(c, second, &seq->weight[i], it);
			it += c->moments == TE_MOMENTS_FP8 ? 2 : 1;
		}
	return r;
}

/* checks of the file's content come before the first change */
static int take(struct checkpoint *c, const void *quant, size_t quant_nbytes)
{
	struct te_seq *seq = c->seq;
	const int same = !c->adamw || c->moments == te_adamw_moments(c->adamw);
	int r = c->adamw ? te__adamw_state_check(c->fn, &c->state) : 0;

	if (!r && quant)
		r = te_quant_load(seq->quant, quant, quant_nbytes);
	for (size_t i = 0; i < (same ? c->nitems : c->first_moment) && !r; i++)
		if (c->item[i].device)
			r = te__ctx_copy(seq->ctx, c->item[i].device, c->item[i].host,
					 c->item[i].nbytes);
		else if (c->item[i].weight)
			r = take_weight(c, &c->item[i]);
	if (!r && !same)
		r = take_moments(c);
	if (!r && c->is_copy)
		r = set_moments(c);
	if (!r && c->adamw)
		r = te_adamw_state_set(c->adamw, &c->state, sizeof(c->state));
	if (!r)
		r = te_seq_rng_set(seq, c->rng[0], c->rng[1]);
	if (!r)
		r = te_seq_weights_changed(seq, te_ctx_stream(seq->ctx));
	return r ? r : te__ctx_wait(seq->ctx, c->fn);
}

int te_checkpoint_load(struct te_seq *seq, struct te_adamw *adamw, const char *path, uint32_t flags,
		       int64_t *ret_nsteps)
{
	struct checkpoint c = { .fn = __func__, .path = path, .seq = seq, .adamw = adamw };
	uint8_t *bytes = NULL, *quant = NULL;
	size_t nbytes = 0, data_at = 0, quant_nbytes = 0;
	int r;

	if (flags & ~TE_CHECKPOINT_SKIP_QUANT)
		return te__fail(-EINVAL, "%s: unknown flags 0x%x", c.fn, (unsigned)flags);
	r = check(&c);
	if (!r)
		r = read_file(&c, &bytes, &nbytes);
	if (!r && adamw)
		c.moments = find_moments(bytes, nbytes);
	if (!r)
		c.masters = find_masters(bytes, nbytes);
	if (!r)
		r = find_moments_memory(&c, 0);
	if (!r)
		r = list_items(&c, NULL, 0);
	if (!r)
		r = check_file(&c, bytes, nbytes, flags, &data_at, &quant_nbytes);
	if (!r) {
		find_data(&c, bytes + data_at, quant_nbytes, &quant);
		r = take(&c, flags & TE_CHECKPOINT_SKIP_QUANT || !quant_nbytes ? NULL : quant,
			 quant_nbytes);
	}
	if (!r && ret_nsteps)
		*ret_nsteps = (int64_t)(c.state.nsteps + c.state.nskipped);
	te__free(bytes);
	done(&c);
	return r;
}
