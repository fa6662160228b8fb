/* dataset.c - the data and the tokenizer of a run: files, validation sets, documents. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "dump.h"
#include "kept.h"
#include "loop.h"
#include "order.h"
#include "tools/lib/say.h"
#include "tools/lib/tokens.h"

#define MOST_TIMES 1000 /* uses of a file in an epoch */

/* one NAME=FILE */
static int open_valid(struct trainer *t, char *set, const struct data_opts *opts)
{
	static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				   "0123456789-_";
	const size_t n = strspn(set, word);
	struct valid *v = &t->valid[t->nvalid];
	char *file = set + n + 1;
	int r;

	if (!n || n >= sizeof(v->name) || set[n] != '=' || !*file)
		return say_bad("--valid: \"%s\": expected NAME=FILE, with a name of letters, "
			       "digits, - and _", set);
	set[n] = '\0';
	for (int i = 0; i < t->nvalid; i++)
		if (!strcmp(t->valid[i].name, set))
			return say_bad("--valid: there are two sets %s", set);
	if (t->nvalid == MOST_VALID)
		return say_bad("--valid: more than %d sets", MOST_VALID);
	r = data_open(&file, 1, opts, &v->data);
	if (r)
		return r;
	t->nvalid++;
	snprintf(v->name, sizeof(v->name), "%s", set);
	v->span = (struct span){ v->data, 0, data_ntokens(v->data) };
	if (data_is_bytes(t->data) != data_is_bytes(v->data))
		return say_bad("%s: token files and text cannot be mixed", file);
	if (!span_has_target(&v->span))
		return say_bad("%s: no token of the validation data is a target", file);
	return STATUS_OK;
}

static int open_valids(struct trainer *t, const struct data_opts *opts)
{
	char *list = t->o->valid ? strdup(t->o->valid) : NULL, *save = NULL;
	int r = STATUS_OK;

	if (t->o->valid && !list)
		return say_failed("out of memory");
	for (char *set = list ? strtok_r(list, ",", &save) : NULL; set && !r;
	     set = strtok_r(NULL, ",", &save))
		r = open_valid(t, set, opts);
	free(list);
	return r;
}

/* a token that config.json names, or -1; some have a list, of which the first is taken */
static int32_t special_token(const struct config *cfg, const char *field)
{
	const json_t *v = json_object_get(cfg->source, field);
	json_int_t token;

	v = json_is_array(v) ? json_array_get(v, 0) : v;
	token = json_is_integer(v) ? json_integer_value(v) : -1;
	return token >= 0 && token < cfg->vocab ? (int32_t)token : -1;
}

/* One of the model's folder need not be usable: data may be tokens. */
int trainer_open_tokenizer(struct trainer *t)
{
	const int32_t end = special_token(&t->cfg, "eos_token_id");
	const struct opts *o = t->o;
	const char *dir = o->resume ? o->resume : o->init ? o->init : o->model;
	int r;

	if (o->tokenizer)
		return tokenizer_open(o->tokenizer, t->cfg.vocab, end, &t->tokenizer);
	if (!dir || t->cfg.vocab <= DATA_NBYTES || !tokenizer_in(dir))
		return STATUS_OK;
	say_hush(1);
	r = tokenizer_open(dir, t->cfg.vocab, end, &t->tokenizer);
	say_hush(0);
	if (!r)
		t->tokenizer_from = dir;
	return STATUS_OK;
}

/* is it the path, or its last names; a resumed run may have another working directory */
static int is_path(const char *path, const char *name)
{
	const size_t n = strlen(path), m = strlen(name);

	return m <= n && !strcmp(path + n - m, name) && (m == n || path[n - m - 1] == '/');
}

/* one FILE=N of --repeat */
static int set_times(const struct opts *o, char *item, int32_t *times)
{
	char *number = strrchr(item, '='), *end = NULL;
	const long long n = number ? strtoll(number + 1, &end, 10) : 0;
	int nfound = 0;
	char *path;

	if (!number || end == number + 1 || *end || n < 1 || n > MOST_TIMES)
		return say_bad("--repeat: \"%s\": expected FILE=N, with N from 1 to %d", item,
			       MOST_TIMES);
	*number = '\0';
	while (!strncmp(item, "./", 2))
		item += 2;
	path = realpath(item, NULL);
	for (int i = 0; i < o->nfiles; i++) {
		if (!is_path(o->file[i], item) && (!path || strcmp(o->file[i], path)))
			continue;
		times[i] = (int32_t)n;
		nfound++;
	}
	free(path);
	return nfound ? STATUS_OK :
			say_bad("--repeat: %s is not one of the files to train on", item);
}

/* how often each file is used in an epoch, which the caller frees */
static int parse_repeat(const struct opts *o, int32_t **ret_times)
{
	int32_t *times = calloc((size_t)o->nfiles + 1, sizeof(*times));
	char *list = strdup(o->repeat), *save = NULL;
	int r = times && list ? STATUS_OK : say_failed("out of memory");

	for (char *item = r ? NULL : strtok_r(list, ",", &save); item && !r;
	     item = strtok_r(NULL, ",", &save))
		r = set_times(o, item, times);
	free(list);
	*ret_times = times;
	return r;
}

/* tokens that divide token files into documents */
static void choose_mark(const struct trainer *t, struct data_opts *opts)
{
	if (!t->cfg.documents && strcmp(t->o->order, "documents"))
		return;
	opts->mark = *t->o->documents == 'b' ? DATA_MARK_BEGINS : DATA_MARK_ENDS;
	opts->mark_token = opts->mark == DATA_MARK_BEGINS ? special_token(&t->cfg, "bos_token_id") :
			   t->tokenizer			  ? tokenizer_end(t->tokenizer) :
							    special_token(&t->cfg, "eos_token_id");
}

/* the held-out text is read now, and threads begin with what is trained on */
static int open_chunks(struct trainer *t, const struct data_opts *opts)
{
	const struct opts *o = t->o;
	const struct chunks_at start = { 0 };
	int r = chunks_open(t->data, opts, o->val ? 0 : o->val_fraction, (uint64_t)o->seed, t->T,
			    &t->chunks);

	if (!r && !o->val)
		r = chunks_held_out(t->chunks, &t->val_data);
	if (!r && !o->resume)
		chunks_seek(t->chunks, &start);
	return r;
}

static int open_files(struct trainer *t, int64_t vocab)
{
	const struct opts *o = t->o;
	const char *const role[CHAT_NROLES] = { o->chat_system, o->chat_user, o->chat_assistant };
	char *kept = t->tokenizer ? kept_folder(o->token_cache) : NULL;
	char digest[DIGEST_NBYTES];
	int32_t *times = NULL;
	struct data_opts opts = {
		.type = data_type_find(o->data_type),
		.vocab = vocab,
		.most_nbytes = !strcmp(o->check_data, "all") ? INT64_MAX : DATA_CHECKED_NBYTES,
		.chat = &t->chat,
		.tokenizer = t->tokenizer,
		.kept = kept,
		.kept_nbytes = o->token_cache ? 0 : KEPT_NBYTES,
	};
	int r = chat_create(o->chat_template, o->chat_begin, role, o->doc_end, &t->chat);

	if (r) {
		free(kept);
		return r;
	}
	if (kept && tokenizer_digest(o->tokenizer ? o->tokenizer : t->tokenizer_from, digest))
		opts.tokenizer_digest = digest;
	choose_mark(t, &opts);
	if (o->doc_split && !t->tokenizer)
		r = say_bad("--doc-split needs a tokenizer");
	else if (o->doc_split)
		r = chat_unescape("--doc-split", o->doc_split, &t->split);
	if (!r && t->split && !*t->split)
		r = say_bad("--doc-split: expected a text that is not empty");
	opts.split = t->split;
	if (!r && o->repeat)
		r = parse_repeat(o, &times);
	opts.times = times;
	opts.later = !strcmp(o->order, "chunks");
	if (!r && opts.later && !t->tokenizer)
		r = say_bad("--order chunks is for text whose tokens a tokenizer computes");
	if (!r)
		r = data_open(o->file, o->nfiles, &opts, &t->data);
	opts.times = NULL;
	if (!r && opts.later)
		r = open_chunks(t, &opts);
	opts.later = 0;
	if (!r && o->val)
		r = data_open(&o->val, 1, &opts, &t->val_data);
	if (!r && o->val && data_is_bytes(t->data) != data_is_bytes(t->val_data))
		r = say_bad("%s: token files and text cannot be mixed", o->val);
	if (!r)
		r = open_valids(t, &opts);
	free(times);
	free(kept);
	return r;
}

const char *trainer_data_name(const struct trainer *t)
{
	return t->o->nfiles ? t->o->file[0] : "--random-tokens";
}

void trainer_digests(const struct trainer *t, char ret_text[2 * DIGEST_NBYTES])
{
	snprintf(ret_text, 2 * DIGEST_NBYTES, "%s%s%s", data_digest(t->data),
		 t->val_data ? "+" : "", t->val_data ? data_digest(t->val_data) : "");
}

static int dump_val(const struct trainer *t)
{
	const char *path = t->o->dump_val;
	struct stat st;
	int reads = 0;

	if (!stat(path, &st)) {
		reads = data_reads(t->data, &st) || (t->val_data && data_reads(t->val_data, &st));
		for (int i = 0; i < t->nvalid; i++)
			reads |= data_reads(t->valid[i].data, &st);
	}
	if (reads)
		return say_bad("%s: --dump-val would replace a file that the run reads, expected "
			       "another file", path);
	return span_dump(&t->val, path);
}

int trainer_open_data(struct trainer *t, int64_t vocab)
{
	const struct opts *o = t->o;
	int64_t n, nval;
	int r;

	if (o->random_tokens && (o->nfiles || o->val || o->valid))
		return say_bad("--random-tokens and files exclude each other");
	if (!o->nfiles && !o->random_tokens)
		return say_bad("no training data: give one file or more; see te_train --help");
	r = o->random_tokens ? data_random(vocab, &t->data) : open_files(t, vocab);
	if (r)
		return r;
	n = data_ntokens(t->data);
	if (o->val || t->chunks) {
		t->train = (struct span){ t->data, 0, n };
		t->val = (struct span){ t->val_data, 0, data_ntokens(t->val_data) };
	} else {
		nval = (int64_t)((double)n * o->val_fraction);
		t->train = (struct span){ t->data, 0, n - nval };
		t->val = (struct span){ t->data, n - nval, nval };
	}
	if (!t->chunks && t->train.n < t->T + 1) {
		return say_bad("%s: %lld tokens to train on; a context of %lld needs at least %lld",
			       trainer_data_name(t), (long long)t->train.n, (long long)t->T,
			       (long long)t->T + 1);
	}
	if (t->val.n < 2) {
		return say_bad("%s: %lld tokens to validate on; at least 2 are needed",
			       o->val ? o->val : trainer_data_name(t), (long long)t->val.n);
	}
	if (!t->chunks && !span_has_target(&t->train))
		return say_bad("%s: no token of the training data is a target",
			       trainer_data_name(t));
	if (!span_has_target(&t->val))
		return say_bad("%s: no token of the validation data is a target",
			       o->val ? o->val : trainer_data_name(t));
	if (!strcmp(o->order, "documents"))
		r = order_open(&t->train, (uint64_t)o->seed, ORDER_CHUNK, ORDER_NCHUNKS,
			       &t->order);
	return !r && o->dump_val && !t->ranks.rank ? dump_val(t) : r;
}
