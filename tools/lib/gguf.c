/* gguf.c - reading GGUF files: their tensors, and a config.json from their metadata. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "folder.h"
#include "gguf.h"
#include "gguf_arch.h"
#include "libtecore/base/gguf.h"
#include "say.h"

#define MOST_NAME 256

struct gguf {
	const char *path;
	uint8_t *map;
	size_t nbytes;
	struct te__gguf left; /* not read yet */
	uint64_t ntensors, nitems;
	json_t *meta; /* numbers, truth values and texts; no lists */
};

/* ---- bytes ---- */

/* bytes that were read */
static size_t read_nbytes(const struct gguf *g)
{
	return g->nbytes - g->left.n;
}

static int take_number(struct gguf *g, size_t n, uint64_t *ret)
{
	return te__gguf_number(&g->left, n, ret);
}

/* a name for a C string, without zeros */
static int take_name(struct gguf *g, char name[MOST_NAME])
{
	struct te__gguf t;

	if (!te__gguf_text(&g->left, &t) || !t.n || t.n >= MOST_NAME || memchr(t.p, 0, t.n))
		return 0;
	memcpy(name, t.p, t.n);
	name[t.n] = '\0';
	return 1;
}

/* ---- metadata ---- */

static json_t *number(const struct te__gguf_value *v)
{
	const size_t nbytes = te__gguf_types[v->type].nbytes;
	const unsigned unused = 64 - 8 * (unsigned)nbytes;
	uint64_t bits = 0;
	double x;
	float single;

	memcpy(&bits, v->at.p, nbytes);
	switch (te__gguf_types[v->type].kind) {
	case 'b':
		return json_boolean(bits);
	case 'f':
		memcpy(&single, &bits, 4);
		memcpy(&x, &bits, 8);
		return json_real(nbytes == 4 ? (double)single : x);
	case 'i':
		return json_integer((int64_t)(bits << unused) >> unused);
	default:
		return json_integer((json_int_t)bits);
	}
}

static int take_item(struct gguf *g)
{
	char key[MOST_NAME];
	struct te__gguf_value v;
	json_t *json = NULL;

	if (!take_name(g, key) || !te__gguf_value(&g->left, &v))
		return 0;
	if (v.type == TE__GGUF_TEXT && v.at.n < MOST_NAME)
		json = json_stringn(v.at.p, v.at.n);
	else if (v.type != TE__GGUF_TEXT && v.type != TE__GGUF_LIST)
		json = number(&v);
	/* values that JSON cannot express, such as NaN, are left out */
	if (json)
		json_object_set_new(g->meta, key, json);
	return 1;
}

static void gguf_unmap(struct gguf *g)
{
	if (g->map)
		munmap(g->map, g->nbytes);
	json_decref(g->meta);
	g->map = NULL;
}

static int cut_short(const struct gguf *g, const char *where)
{
	return say_bad("%s: damaged or cut short within %s", g->path, where);
}

static int read_head(struct gguf *g)
{
	uint64_t version;

	if (!te__gguf_head(&g->left, &version, &g->ntensors, &g->nitems) ||
	    memcmp(g->map, "GGUF", 4))
		return say_bad("%s: not a GGUF file, or cut short: no header", g->path);
	if (version != 2 && version != 3)
		return say_bad("%s: version %llu of GGUF; 2 and 3 are read", g->path,
			       (unsigned long long)version);
	if (g->ntensors > TE__GGUF_MOST_ITEMS || g->nitems > TE__GGUF_MOST_ITEMS)
		return say_bad("%s: %llu tensors and %llu items of metadata; at most %d are read",
			       g->path, (unsigned long long)g->ntensors,
			       (unsigned long long)g->nitems, TE__GGUF_MOST_ITEMS);
	g->meta = json_object();
	if (!g->meta)
		return say_failed("out of memory");
	for (uint64_t i = 0; i < g->nitems; i++)
		if (!take_item(g))
			return cut_short(g, "its metadata");
	return STATUS_OK;
}

/* map the file and read its metadata */
static int map_head(const char *path, struct gguf *ret_g)
{
	struct gguf g = { .path = path };
	struct stat st;
	int fd, r = file_open(path, &fd);

	if (r)
		return r;
	if (fstat(fd, &st)) {
		r = say_bad("%s: %s", path, strerror(errno));
	} else if (st.st_size) {
		g.nbytes = (size_t)st.st_size;
		g.map = mmap(NULL, g.nbytes, PROT_READ, MAP_PRIVATE, fd, 0);
		if (g.map == MAP_FAILED) {
			g.map = NULL;
			r = say_bad("%s: %s", path, strerror(errno));
		}
	}
	close(fd);
	g.left = (struct te__gguf){ (const char *)g.map, g.map ? g.nbytes : 0 };
	if (!r)
		r = read_head(&g);
	if (r)
		gguf_unmap(&g);
	else
		*ret_g = g;
	return r;
}

int gguf_items(const char *path, const char *prefix, void **ret, size_t *ret_nbytes,
	       uint64_t *ret_nitems)
{
	const size_t len = strlen(prefix);
	uint64_t nitems = 0;
	size_t n = 0, from, nbytes;
	uint8_t *p = NULL;
	struct gguf g;
	int r = map_head(path, &g);

	if (r)
		return r;
	nbytes = read_nbytes(&g);
	p = malloc(nbytes + 1);
	if (!p)
		r = say_failed("out of memory");
	/* after the header, which was read */
	g.left = (struct te__gguf){ (const char *)g.map + 24, g.nbytes - 24 };
	for (uint64_t i = 0; i < g.nitems && !r; i++) {
		from = read_nbytes(&g);
		if (!take_item(&g))
			r = cut_short(&g, "its metadata");
		nbytes = read_nbytes(&g) - from;
		if (!r && nbytes > 8 + len && !memcmp(g.map + from + 8, prefix, len)) {
			memcpy(p + n, g.map + from, nbytes);
			n += nbytes;
			nitems++;
		}
	}
	gguf_unmap(&g);
	if (r) {
		free(p);
		return r;
	}
	*ret = p;
	*ret_nbytes = n;
	*ret_nitems = nitems;
	return STATUS_OK;
}

int gguf_is(const char *path)
{
	FILE *f = NULL;
	char magic[4] = "";
	struct stat st;

	if (!stat(path, &st) && S_ISREG(st.st_mode))
		f = fopen(path, "re");
	if (!f)
		return 0;
	if (fread(magic, 1, 4, f) != 4)
		magic[0] = '\0';
	fclose(f);
	return !memcmp(magic, "GGUF", 4);
}

/* ---- tensors ---- */

static const struct {
	const char *name;
	uint32_t type, nelems, nbytes; /* elements and bytes of a block */
} formats[] = {
	{ "F32", 0, 1, 4 },    { "F16", 1, 1, 2 },    { "Q4_0", 2, 32, 18 },
	{ "Q4_1", 3, 32, 20 }, { "Q8_0", 8, 32, 34 }, { "BF16", 30, 1, 2 },
};
#define NFORMATS (sizeof(formats) / sizeof(formats[0]))

static int take_tensor(struct gguf *g, char name[MOST_NAME], json_t **ret_entry)
{
	uint64_t ndim, dim[4], type, offset, n = 1, nbytes = 0;
	json_t *shape = json_array();
	char other[32];
	size_t k = 0;
	int ok = shape && take_name(g, name) && take_number(g, 4, &ndim) && ndim >= 1 && ndim <= 4;

	for (uint64_t i = 0; ok && i < ndim; i++)
		ok = take_number(g, 8, &dim[i]) && dim[i] >= 1 && dim[i] <= INT32_MAX &&
		     !__builtin_mul_overflow(n, dim[i], &n) &&
		     !json_array_insert_new(shape, 0, json_integer((json_int_t)dim[i]));
	ok = ok && take_number(g, 4, &type) && take_number(g, 8, &offset) && offset <= g->nbytes;
	while (ok && k < NFORMATS && formats[k].type != type)
		k++;
	if (ok && k < NFORMATS)
		ok = dim[0] % formats[k].nelems == 0 &&
		     !__builtin_mul_overflow(n / formats[k].nelems, formats[k].nbytes, &nbytes) &&
		     nbytes <= g->nbytes;
	if (!ok) {
		json_decref(shape);
		return 0;
	}
	snprintf(other, sizeof(other), "type %llu of GGUF", (unsigned long long)type);
	*ret_entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype",
			       k < NFORMATS ? formats[k].name : other, "shape", shape,
			       "data_offsets", (json_int_t)offset, (json_int_t)(offset + nbytes));
	return *ret_entry != NULL;
}

static const char *arch_of(const struct gguf *g)
{
	const char *text = json_string_value(json_object_get(g->meta, "general.architecture"));

	return text ? text : "";
}

/* a name that is not known remains, and no model has it */
static int read_tensors(struct gguf *g, const struct gguf_arch *arch, json_t *header)
{
	char name[MOST_NAME], hf[MOST_NAME];
	json_t *entry;

	for (uint64_t i = 0; i < g->ntensors; i++) {
		if (!take_tensor(g, name, &entry))
			return cut_short(g, "the descriptions of its tensors");
		if (!arch || !gguf_hf_name(arch->family, name, hf, sizeof(hf)))
			snprintf(hf, sizeof(hf), "%s", name);
		if (json_object_get(header, hf)) {
			json_decref(entry);
			return say_bad("%s: two tensors have the name \"%s\"", g->path, name);
		}
		if (json_object_set_new(header, hf, entry))
			return say_bad("%s: the name of a tensor is not UTF-8", g->path);
	}
	return STATUS_OK;
}

int gguf_open(const char *path, struct st_file **ret_f)
{
	const struct gguf_arch *arch;
	json_t *header, *align;
	struct gguf g;
	uint64_t unit;
	int r = map_head(path, &g);

	if (r)
		return r;
	arch = gguf_arch_named(arch_of(&g));
	header = json_object();
	if (!header)
		r = say_failed("out of memory");
	else
		r = read_tensors(&g, arch, header);
	if (!r && arch)
		json_object_set_new(header, "__metadata__",
				    json_pack("{s:s}", GGUF_ARCH, arch->name));
	align = json_object_get(g.meta, "general.alignment");
	unit = align ? (uint64_t)json_integer_value(align) : 32;
	if (!r && (unit < 1 || unit > 1 << 20 || unit & (unit - 1)))
		r = say_bad("%s: general.alignment is no power of two", path);
	if (!r && (read_nbytes(&g) + unit - 1) / unit * unit > g.nbytes)
		r = cut_short(&g, "its data");
	if (!r) {
		r = st_adopt(path, g.map, g.nbytes,
			     (size_t)((read_nbytes(&g) + unit - 1) / unit * unit), header, ret_f);
		g.map = NULL;
	} else {
		json_decref(header);
	}
	gguf_unmap(&g);
	return r;
}

/* ---- config.json ---- */

/* a value of the architecture, borrowed, or NULL */
static json_t *value_of(const struct gguf *g, const char *name)
{
	char key[2 * MOST_NAME];

	snprintf(key, sizeof(key), "%s.%s", arch_of(g), name);
	return json_object_get(g->meta, key);
}

static double number_of(const struct gguf *g, const char *name)
{
	return json_number_value(value_of(g, name));
}

/* width of a head */
static int64_t head_dim(const struct gguf *g)
{
	const int64_t width = (int64_t)number_of(g, "embedding_length");
	const int64_t heads = (int64_t)number_of(g, "attention.head_count");
	const int64_t dim = (int64_t)number_of(g, "attention.key_length");

	return dim ? dim : heads > 0 ? width / heads : 0;
}

/* find by the name in GGUF files */
static int find(const struct st_file *f, const struct gguf_arch *arch, const char *name,
		struct st_tensor *ret_t)
{
	char hf[MOST_NAME];

	return gguf_hf_name(arch->family, name, hf, sizeof(hf)) && st_find(f, hf, ret_t);
}

/* the share of channels that turn */
static int add_part(json_t *obj, const struct gguf *g, const struct gguf_arch *arch)
{
	const json_t *v = value_of(g, "rope.dimension_count");
	const int64_t n = json_integer_value(v), d = head_dim(g);
	double part;

	if (!v || n == d)
		return STATUS_OK;
	if (!(arch->flags & GGUF_PARTIAL) || n < 2 || n > d)
		return say_bad("%s: %s.rope.dimension_count is %lld, expected the width of a head, "
			       "%lld", g->path, arch->name, (long long)n, (long long)d);
	part = (double)n / (double)d;
	if ((int64_t)(part * (double)d) < n)
		part = nextafter(part, 1);
	json_object_set_new(obj, "partial_rotary_factor", json_real(part));
	return STATUS_OK;
}

/* a vector in F32 as a list; NULL: there is none */
static int list_of(const struct st_file *f, const char *name, json_t **ret_list)
{
	struct st_tensor t;

	*ret_list = NULL;
	if (!st_find(f, name, &t))
		return STATUS_OK;
	if (strcmp(t.dtype, "F32") || t.ndim != 1)
		return say_bad("%s: tensor \"%s\": expected a vector in F32", st_path(f), name);
	*ret_list = json_array();
	for (size_t i = 0; i < t.nbytes / 4; i++) {
		float x;

		memcpy(&x, t.data + 4 * i, 4);
		json_array_append_new(*ret_list, json_real((double)x));
	}
	return STATUS_OK;
}

/*
 * Divisors of frequencies, as a config.json has them: for all positions of the file, or for those
 * up to the original context and those after it.
 */
static int add_divisors(json_t *obj, const struct gguf *g, const struct gguf_arch *arch,
			const struct st_file *f)
{
	const int two = arch->flags & GGUF_LONGROPE;
	const json_t *context = value_of(g, "context_length"), *most = context;
	double factor = two ? number_of(g, "rope.scaling.attn_factor") : 1;
	json_t *shorts, *longs = NULL;
	int r = list_of(f, two ? GGUF_SHORT : GGUF_DIVISORS, &shorts);

	if (!r && two)
		r = list_of(f, GGUF_LONG, &longs);
	if (!r && two && value_of(g, "rope.scaling.original_context_length"))
		most = value_of(g, "rope.scaling.original_context_length");
	if (!r && shorts)
		json_object_set_new(obj, "rope_scaling",
				    json_pack("{s:s, s:O, s:O, s:f, s:O*}", "rope_type", "longrope",
					      "short_factor", shorts, "long_factor",
					      longs ? longs : shorts, "attention_factor",
					      factor > 0 ? factor : 1,
					      "original_max_position_embeddings", most));
	if (!r && shorts && two && most)
		json_object_set_new(obj, "original_max_position_embeddings",
				    json_incref((json_t *)(uintptr_t)most));
	json_decref(shorts);
	json_decref(longs);
	return r;
}

/* positions that are divided by a factor */
static int add_scaling(json_t *obj, const struct gguf *g, const struct gguf_arch *arch)
{
	const char *type = json_string_value(value_of(g, "rope.scaling.type"));

	if (!type || !strcmp(type, "none") ||
	    (!strcmp(type, "longrope") && arch->flags & GGUF_LONGROPE))
		return STATUS_OK;
	if (strcmp(type, "linear") || !value_of(g, "rope.scaling.factor"))
		return say_bad("%s: %s.rope.scaling.type \"%s\" is not implemented", g->path,
			       arch->name, type);
	return json_object_set_new(obj, "rope_scaling",
				   json_pack("{s:s, s:O}", "rope_type", "linear", "factor",
					     value_of(g, "rope.scaling.factor"))) ?
		       say_failed("out of memory") :
		       STATUS_OK;
}

/* what programs that run the files choose by the number of layers: 27B models scale otherwise */
static void add_query_scalar(json_t *obj, const struct gguf *g, const struct gguf_arch *arch)
{
	const int64_t large = gguf_scaled_by_width(arch->family);
	const double heads = number_of(g, "attention.head_count");
	const int by_width = (int64_t)number_of(g, "block_count") == large && heads > 0;
	const double x = by_width ? number_of(g, "embedding_length") / heads : (double)head_dim(g);

	if (large)
		json_object_set_new(obj, "query_pre_attn_scalar",
				    x == floor(x) && x < 1e9 ? json_integer((json_int_t)x) :
							       json_real(x));
}

/* the tokens that begin and end texts */
static void add_ends(json_t *obj, const struct gguf *g)
{
	static const char *const name[] = { "bos_token_id", "eos_token_id" };

	for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
		char key[64];

		snprintf(key, sizeof(key), "tokenizer.ggml.%s", name[i]);
		if (json_object_get(g->meta, key))
			json_object_set(obj, name[i], json_object_get(g->meta, key));
	}
}

/* no window, and no cap; a size that is 0 is missing in the config as well */
static int is_zero(const json_t *v)
{
	return json_is_number(v) && json_number_value(v) == 0;
}

static int make_config(const struct gguf *g, const struct st_file *f, json_t **ret_config)
{
	const char *name = arch_of(g);
	const struct gguf_arch *arch = gguf_arch_named(name);
	struct st_tensor t;
	json_t *obj;
	int r;

	if (!arch)
		return say_bad("%s: the architecture \"%s\" is not implemented in GGUF files",
			       g->path, name);
	if (!find(f, arch, "token_embd.weight", &t))
		return say_bad("%s: there is no tensor \"token_embd.weight\"", g->path);
	obj = json_pack("{s:s, s:I}", "model_type", arch->type, "vocab_size",
			(json_int_t)t.shape[0]);
	if (!obj)
		return say_failed("out of memory");
	for (const struct gguf_sign *k = gguf_signs; k->hf; k++)
		if (k->families & 1u << arch->family)
			json_object_set_new(obj, k->hf,
					    json_boolean(find(f, arch, k->tensor, &t) !=
							 k->missing));
	for (const struct gguf_field *k = gguf_fields; k->hf; k++) {
		json_t *v = value_of(g, k->gguf);

		if (v && k->families & 1u << arch->family)
			json_object_set(obj, k->hf, is_zero(v) ? json_null() : v);
	}
	add_query_scalar(obj, g, arch);
	add_ends(obj, g);
	r = add_part(obj, g, arch);
	if (!r)
		r = add_scaling(obj, g, arch);
	if (!r)
		r = add_divisors(obj, g, arch, f);
	if (r)
		json_decref(obj);
	else
		*ret_config = obj;
	return r;
}

int gguf_config(const char *path, json_t **ret_config)
{
	struct st_file *f;
	struct gguf g;
	int r = gguf_open(path, &f);

	if (r)
		return r;
	r = map_head(path, &g);
	if (!r) {
		r = make_config(&g, f, ret_config);
		gguf_unmap(&g);
	}
	st_close(f);
	return r;
}
