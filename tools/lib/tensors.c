/* tensors.c - finding a model's weight files, and their tensors by name. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf.h"
#include "record.h"
#include "say.h"
#include "tensors.h"

static const char model_st[] = "model.safetensors";

/* ---- names ---- */

/* components that PyTorch's wrappers of modules add: compile, DDP, FSDP, checkpoint_wrapper */
static const char *const wrappers[] = { "_orig_mod", "module", "_fsdp_wrapped_module",
					"_checkpoint_wrapped_module" };
/* the attributes of transformers' classes that hold all but the head; files may lack them */
static const char *const prefixes[] = { "transformer", "model", "gpt_neox" };

static int is_one_of(const char *const *list, size_t n, const char *word, size_t len)
{
	for (size_t i = 0; i < n; i++)
		if (strlen(list[i]) == len && !memcmp(list[i], word, len))
			return 1;
	return 0;
}

/* for free(3); NULL: no memory */
static char *key_of(const char *name)
{
	char *key = malloc(strlen(name) + 1), *to = key;

	while (key && *name) {
		const size_t len = strcspn(name, "."), step = len + (name[len] == '.');

		/* the last component is never one of these */
		if (step == len ||
		    !(is_one_of(wrappers, sizeof(wrappers) / sizeof(*wrappers), name, len) ||
		      (to == key &&
		       is_one_of(prefixes, sizeof(prefixes) / sizeof(*prefixes), name, len)))) {
			memcpy(to, name, step);
			to += step;
		}
		name += step;
	}
	if (key)
		*to = '\0';
	return key;
}

/* values that models compute and programs save although they are not weights */
static int is_buffer(const char *key, int ndim)
{
	static const struct {
		const char *name;
		int ndim; /* at least */
	} buffers[] = {
		{ "attn.bias", 2 }, /* GPT-2's causal mask */
		{ "attn.masked_bias", 0 },
		{ "attention.bias", 2 }, /* GPT-NeoX's */
		{ "attention.masked_bias", 0 },
		{ "rotary_emb.inv_freq", 0 },
		{ "rotary_emb.original_inv_freq", 0 },
		{ "rotary_emb.cos_cached", 0 },
		{ "rotary_emb.sin_cached", 0 },
		{ "position_ids", 0 },
		/* divisors in GGUF files, which the config has */
		{ GGUF_DIVISORS, 1 },
		{ GGUF_SHORT, 1 },
		{ GGUF_LONG, 1 },
	};
	const size_t n = strlen(key);

	for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
		const size_t m = strlen(buffers[i].name);

		if (n >= m && !strcmp(key + n - m, buffers[i].name) &&
		    (n == m || key[n - m - 1] == '.') && ndim >= buffers[i].ndim)
			return 1;
	}
	return 0;
}

static int by_key(const void *a, const void *b)
{
	const struct tensor *x = a, *y = b;

	return strcmp(x->key, y->key);
}

/* ts->at: of all files; two with one key would have one of them ignored */
static int list_all(struct tensors *ts, struct st_file *const *file, size_t nfiles)
{
	const char *name = NULL;
	size_t n = 0;

	for (size_t k = 0; k < nfiles; k++)
		n += json_object_size(st_header(file[k]));
	ts->at = calloc(n + 1, sizeof(*ts->at));
	if (!ts->at)
		return say_failed("out of memory");
	for (size_t k = 0; k < nfiles; k++) {
		const char *arch = st_get_meta(file[k], GGUF_ARCH);

		while ((name = st_next(file[k], name))) {
			struct tensor *t = &ts->at[ts->n];

			t->key = key_of(name);
			if (!t->key)
				return say_failed("out of memory");
			t->name = name;
			t->file = file[k];
			t->arch = arch ? gguf_arch_named(arch) : NULL;
			ts->n++;
			st_find(file[k], name, &t->st);
		}
	}
	qsort(ts->at, ts->n, sizeof(*ts->at), by_key);
	for (size_t i = 1; i < ts->n; i++) {
		const struct tensor *a = &ts->at[i - 1], *b = &ts->at[i];

		if (!strcmp(a->key, b->key) && !is_buffer(b->key, b->st.ndim))
			return say_bad("%s: tensors \"%s\" and \"%s\" are one weight, expected one "
				       "of them", st_path(b->file), a->name, b->name);
	}
	return STATUS_OK;
}

static struct tensor *find_key(const struct tensors *ts, const char *name)
{
	struct tensor want = { .key = key_of(name) };
	struct tensor *t = want.key ? bsearch(&want, ts->at, ts->n, sizeof(want), by_key) : NULL;

	free(want.key);
	return t;
}

struct tensor *tensors_find(const struct tensors *ts, const char *name)
{
	struct tensor *t = find_key(ts, name);

	/* safetensors.torch.save_model() keeps one of the names that share memory */
	for (size_t i = 0; i < ts->n && !t; i++) {
		const char *kept = st_get_meta(ts->at[i].file, name);

		if (i && ts->at[i].file == ts->at[i - 1].file)
			continue;
		t = kept ? find_key(ts, kept) : NULL;
	}
	return t;
}

const struct tensor *tensors_unused(const struct tensors *ts, size_t *ret_n)
{
	const struct tensor *first = NULL;

	*ret_n = 0;
	for (size_t i = ts->n; i-- > 0;) {
		const struct tensor *t = &ts->at[i];

		if (t->used || is_buffer(t->key, t->st.ndim))
			continue;
		first = t;
		++*ret_n;
	}
	return first;
}

const char *shape_text(int ndim, const int64_t *shape, char buf[SHAPE_TEXT])
{
	int n = snprintf(buf, SHAPE_TEXT, "[");

	for (int i = 0; i < ndim; i++)
		n += snprintf(buf + n, SHAPE_TEXT - (size_t)n, "%s%lld", i ? "," : "",
			      (long long)shape[i]);
	snprintf(buf + n, SHAPE_TEXT - (size_t)n, "]");
	return buf;
}

/* ---- files ---- */

int tensors_of_files(struct st_file *const *f, size_t nfiles, struct tensors *ret_ts)
{
	struct tensors ts = { .path = strdup(st_path(f[0])) };
	int r = ts.path ? list_all(&ts, f, nfiles) : say_failed("out of memory");

	if (r)
		tensors_free(&ts);
	else
		*ret_ts = ts;
	return r;
}

void tensors_free(struct tensors *ts)
{
	for (size_t i = 0; i < ts->n; i++)
		free(ts->at[i].key);
	for (size_t k = 0; k < ts->nfiles; k++)
		st_close(ts->file[k]);
	free(ts->at);
	free(ts->file);
	free(ts->path);
	memset(ts, 0, sizeof(*ts));
}

/* opens dir/name unless it is open, with room for it in ts->file; ret_f: the file */
static int open_in(struct tensors *ts, const char *dir, const char *name, struct st_file **ret_f)
{
	char *path;
	int r = STATUS_OK;

	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return say_failed("out of memory");
	for (size_t i = 0; i < ts->nfiles; i++) {
		*ret_f = ts->file[i];
		if (!strcmp(st_path(*ret_f), path)) {
			free(path);
			return STATUS_OK;
		}
	}
	r = st_open(path, &ts->file[ts->nfiles]);
	free(path);
	if (r)
		return r;
	*ret_f = ts->file[ts->nfiles++];
	return st_check_digest(*ret_f);
}

/* the index names all tensors but buffers */
static int check_listed(const struct tensors *ts, const json_t *map)
{
	for (size_t k = 0; k < ts->nfiles; k++) {
		for (const char *name = NULL; (name = st_next(ts->file[k], name));) {
			struct st_tensor t;

			if (json_object_get(map, name) ||
			    (st_find(ts->file[k], name, &t) && is_buffer(name, t.ndim)))
				continue;
			return say_bad("%s: does not name tensor \"%s\" of %s", ts->path, name,
				       st_path(ts->file[k]));
		}
	}
	return STATUS_OK;
}

/* each tensor is in the file that the index names, or is a buffer */
static int open_indexed(struct tensors *ts, const char *dir)
{
	struct record_reader rd;
	const json_t *map;
	const char *name;
	json_t *obj = NULL, *v;
	int r = record_load(ts->path, &obj);

	rd = (struct record_reader){ obj, ts->path, r };
	map = record_get_object(&rd, "weight_map");
	r = rd.status;
	if (!r && !(ts->file = calloc(json_object_size(map) + 1, sizeof(*ts->file))))
		r = say_failed("%s: out of memory", ts->path);
	json_object_foreach((json_t *)(uintptr_t)map, name, v)
	{
		const char *file = json_string_value(v);
		struct st_file *f = NULL;
		struct st_tensor t;

		if (r)
			break;
		if (!file || !*file || strchr(file, '/')) {
			r = say_bad("%s: tensor \"%s\" is in \"%s\", which is no name of a file in "
				    "its folder", ts->path, name, file ? file : "");
			break;
		}
		r = open_in(ts, dir, file, &f);
		if (!r && !st_find(f, name, &t) && !is_buffer(name, INT_MAX))
			r = say_bad("%s: there is no tensor \"%s\", which %s names", st_path(f),
				    name, ts->path);
	}
	if (!r)
		r = check_listed(ts, map);
	json_decref(obj);
	return r;
}

/* files model-00001-of-0000N.safetensors without an index */
static int open_numbered(struct tensors *ts, const char *dir, unsigned n)
{
	int r = STATUS_OK;

	ts->file = calloc(n, sizeof(*ts->file));
	if (!ts->file)
		return say_failed("%s: out of memory", dir);
	for (unsigned i = 1; i <= n && !r; i++) {
		struct st_file *f;
		char name[64];

		snprintf(name, sizeof(name), "model-%05u-of-%05u.safetensors", i, n);
		r = open_in(ts, dir, name, &f);
	}
	return r;
}

#define CONVERT "convert it to safetensors, for example with transformers' save_pretrained()"

/* files that have the weights in another form; the first row that matches is the message */
static const struct other {
	const char *pattern, *advice;
} others[] = {
	{ "adapter_model.*", "it is an adapter: give the model that adapter_config.json names" },
	{ "*.bin", CONVERT },
	{ "*.safetensors", "if it is the whole model, rename it to model.safetensors" },
	{ "*.gguf", "give that file instead of its folder" },
	{ "*.pth", CONVERT },
	{ "*.pt", CONVERT },
	{ "*.ckpt", CONVERT },
	{ "*.h5", CONVERT },
	{ "*.msgpack", CONVERT },
};
#define NOTHERS (sizeof(others) / sizeof(others[0]))

struct scan {
	unsigned nshards; /* 0: there are none */
	int two;	  /* shards of two models */
	size_t row;	  /* row in others, or NOTHERS */
	char name[256];	  /* name of that file */
};

static int scan_folder(const char *dir, struct scan *ret_scan)
{
	struct scan s = { .row = NOTHERS };
	DIR *d = opendir(dir);

	if (!d)
		return say_bad("%s: %s", dir, strerror(errno));
	for (const struct dirent *e; (e = readdir(d));) {
		unsigned i, n;
		int len = 0;

		if (sscanf(e->d_name, "model-%5u-of-%5u.safetensors%n", &i, &n, &len) == 2 &&
		    (size_t)len == strlen(e->d_name) && n) {
			s.two |= s.nshards && s.nshards != n;
			s.nshards = n;
		}
		for (size_t k = 0; k < s.row; k++) {
			if (fnmatch(others[k].pattern, e->d_name, 0))
				continue;
			s.row = k;
			snprintf(s.name, sizeof(s.name), "%s", e->d_name);
		}
	}
	closedir(d);
	*ret_scan = s;
	return STATUS_OK;
}

static int open_found(struct tensors *ts, const char *dir)
{
	struct scan s;
	int r = scan_folder(dir, &s);

	if (r)
		return r;
	if (s.two)
		return say_bad("%s: has shards of two models and no %s.index.json, which would "
			       "name the shards of one", dir, model_st);
	if (s.nshards)
		return open_numbered(ts, dir, s.nshards);
	if (s.row < NOTHERS)
		return say_bad("%s: there is no %s, but %s: %s", dir, model_st, s.name,
			       others[s.row].advice);
	return say_bad("%s: there is no %s, and no other file of weights", dir, model_st);
}

/* r: the result of opening; consumes ts */
static int list_opened(struct tensors *ts, int r, struct tensors *ret_ts)
{
	if (!r)
		r = list_all(ts, ts->file, ts->nfiles);
	if (r)
		tensors_free(ts);
	else
		*ret_ts = *ts;
	return r;
}

static int open_single(struct tensors *ts, const char *dir, const char *name)
{
	struct st_file *f;

	if (asprintf(&ts->path, "%s/%s", dir, name) < 0)
		ts->path = NULL;
	ts->file = calloc(1, sizeof(*ts->file));
	return ts->path && ts->file ? open_in(ts, dir, name, &f) : say_failed("out of memory");
}

int tensors_of_adapter(const char *dir, struct tensors *ret_ts)
{
	struct tensors ts = { 0 };
	const int r = open_single(&ts, dir, "adapter_model.safetensors");

	return list_opened(&ts, r, ret_ts);
}

int tensors_of_folder(const char *dir, struct tensors *ret_ts)
{
	struct tensors ts = { 0 };
	char *single = NULL, *index = NULL;
	int r = STATUS_OK;

	if (gguf_is(dir)) {
		ts.path = strdup(dir);
		ts.file = calloc(1, sizeof(*ts.file));
		r = ts.path && ts.file ? gguf_open(dir, &ts.file[0]) :
					 say_failed("out of memory");
		ts.nfiles = r ? 0 : 1;
		return list_opened(&ts, r, ret_ts);
	}
	if (asprintf(&single, "%s/%s", dir, model_st) < 0)
		single = NULL;
	if (single && asprintf(&index, "%s.index.json", single) < 0)
		index = NULL;
	if (!single || !index) {
		r = say_failed("out of memory");
	} else if (!access(single, F_OK)) {
		r = open_single(&ts, dir, model_st);
	} else if (!access(index, F_OK)) {
		ts.path = strdup(index);
		r = ts.path ? open_indexed(&ts, dir) : say_failed("out of memory");
	} else {
		ts.path = strdup(dir);
		r = ts.path ? open_found(&ts, dir) : say_failed("out of memory");
	}
	free(single);
	free(index);
	return list_opened(&ts, r, ret_ts);
}
