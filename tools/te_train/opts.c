/* opts.c - the options of te_train by opts.def: parser, --help, presets, options in checkpoints. */
#include "config.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/quant.h>
#include <te/seq.h>

#include "ckpt.h"
#include "groups.h"
#include "opts.h"
#include "program.h"
#include "tools/lib/chat.h"
#include "tools/lib/digest.h"
#include "tools/lib/option.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"

#define KEPT 1u /* saved in checkpoints: a resumed run continues with it */
#define NAME 2u /* ranks may have different values, but all have one or none */
#define LOCAL 4u /* ranks may have different values, or none */
#define AT(field) offsetof(struct opts, field)
#define BIG 1e15

static const struct option_field rows[] = {
#define HEADING(text) { text, OPTION_HEADING, 0, 0, 0, 0, 0, 0, 0 },
#define OPTION(name, kind, field, ...) { name, OPTION_##kind, AT(field), __VA_ARGS__ },
#include "opts.def"
#undef HEADING
#undef OPTION
	{ 0 },
};

#define GPT2(layers, heads, width)                                                              \
	"{\"model_type\":\"gpt2\",\"vocab_size\":50257,\"n_positions\":1024,\"n_embd\":" #width \
	",\"n_layer\":" #layers ",\"n_head\":" #heads ",\"activation_function\":\"gelu_new\","  \
	"\"layer_norm_epsilon\":1e-5,\"embd_pdrop\":0.0,\"resid_pdrop\":0.0,\"attn_pdrop\":0.0}"

/* Each config is a config.json. The tokens of text are its bytes. */
static const struct preset presets[] = {
	{ "tiny", "4 layers, 128 wide, bytes: for a CPU",
	  "{\"model_type\":\"llama\",\"vocab_size\":256,\"hidden_size\":128,"
	  "\"intermediate_size\":352,"
	  "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":4,"
	  "\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
	  "\"hidden_act\":\"silu\",\"tie_word_embeddings\":true,\"initializer_range\":0.05}",
	  "batch=4 lr=1.5e-3 warmup=50 steps=2000 eval-every=200 eval-batches=20 beta2=0.99" },
	{ "char-gpt", "6 layers, 384 wide, bytes: nanoGPT's Shakespeare",
	  "{\"model_type\":\"gpt2\",\"vocab_size\":256,\"n_positions\":256,\"n_embd\":384,"
	  "\"n_layer\":6,\"n_head\":6,\"activation_function\":\"gelu_new\","
	  "\"layer_norm_epsilon\":1e-5,\"embd_pdrop\":0.2,\"resid_pdrop\":0.2,\"attn_pdrop\":0.2}",
	  "batch=64 lr=1e-3 min-lr=1e-4 warmup=100 steps=5000 beta2=0.99 weight-decay=0.1 clip=1 "
	  "eval-every=250 eval-batches=0" },
	{ "gpt2-124m", "12 layers, 768 wide, 50257 tokens", GPT2(12, 12, 768),
	  "batch=32 lr=6e-4 warmup=700 steps=20000" },
	{ "gpt2-350m", "24 layers, 1024 wide, 50257 tokens", GPT2(24, 16, 1024),
	  "batch=16 lr=3e-4 warmup=700 steps=20000" },
	{ "gpt2-774m", "36 layers, 1280 wide, 50257 tokens", GPT2(36, 20, 1280),
	  "batch=8 lr=2.5e-4 warmup=700 steps=20000" },
	{ "gpt2-1558m", "48 layers, 1600 wide, 50257 tokens", GPT2(48, 25, 1600),
	  "batch=4 lr=2e-4 warmup=700 steps=20000" },
	{ "llama-tiny", "8 layers, 512 wide, bytes, grouped queries: a GPU",
	  "{\"model_type\":\"llama\",\"vocab_size\":256,\"hidden_size\":512,"
	  "\"intermediate_size\":1408,"
	  "\"num_hidden_layers\":8,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
	  "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
	  "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}",
	  "batch=32 lr=1e-3 warmup=100 steps=5000 beta2=0.99" },
};
#define NPRESETS (sizeof(presets) / sizeof(presets[0]))

const struct preset *preset_find(const char *name)
{
	for (size_t i = 0; i < NPRESETS; i++) {
		if (!strcmp(presets[i].name, name))
			return &presets[i];
	}
	return NULL;
}

static int set_preset(struct opts *o, const char *name)
{
	const struct preset *p = preset_find(name);
	char buf[512], *save = NULL;
	int r = STATUS_OK;

	if (!p)
		return say_bad("--preset: there is no preset \"%s\"; --help lists them", name);
	snprintf(buf, sizeof(buf), "%s", p->defaults);
	for (char *w = strtok_r(buf, " ", &save); w && !r; w = strtok_r(NULL, " ", &save)) {
		char *eq = strchr(w, '=');

		*eq = '\0';
		r = option_set(option_find(rows, w), o, eq + 1, w);
	}
	return r;
}

json_t *opts_to_json(const struct opts *o)
{
	struct record rec;

	record_begin(&rec);
	for (const struct option_field *f = rows; f->name; f++) {
		const void *field = (const char *)o + f->offset;

		if (!(f->key & KEPT))
			continue;
		if (option_is_text(f) && *(char *const *)field)
			record_name(&rec, f->name, *(char *const *)field);
		else if (f->kind == OPTION_REAL && !isnan(*(const double *)field))
			record_real(&rec, f->name, *(const double *)field);
		else if (f->kind == OPTION_FLAG || f->kind == OPTION_INT)
			record_int(&rec, f->name, *(const int64_t *)field);
	}
	record_open_list(&rec, "files");
	for (int i = 0; i < o->nfiles; i++)
		record_name(&rec, NULL, o->file[i]);
	record_close(&rec);
	return record_end(&rec, "the options and the names of files");
}

static int set_files(struct opts *o, int n, char *const *file)
{
	for (int i = 0; i < o->nfiles; i++)
		free(o->file[i]);
	free(o->file);
	o->nfiles = 0;
	o->file = calloc((size_t)n + 1, sizeof(*o->file));
	if (!o->file)
		return say_failed("out of memory");
	for (int i = 0; i < n; i++) {
		/* absolute if possible, so that a run can be resumed in any folder */
		o->file[i] = realpath(file[i], NULL);
		/* for a pipe such as /dev/fd/3 the path names no file */
		if (o->file[i] && access(o->file[i], F_OK)) {
			free(o->file[i]);
			o->file[i] = NULL;
		}
		if (!o->file[i])
			o->file[i] = strdup(file[i]);
		if (!o->file[i])
			return say_failed("out of memory");
		o->nfiles++;
	}
	return STATUS_OK;
}

/* an option of a checkpoint, as checked as one of the command line */
static int set_kept(struct opts *o, const struct option_field *row, const json_t *v,
		    const char *where)
{
	const int number = !option_is_text(row);
	char num[64], *text = number ? NULL : record_name_of(v);
	int r;

	if (text) {
		r = option_set(row, o, text, where);
		free(text);
		return r;
	}
	/* a mode was a flag once */
	if (json_is_integer(v) && (number || row->kind == OPTION_MODE))
		snprintf(num, sizeof(num), "%lld", (long long)json_integer_value(v));
	else if (json_is_real(v) && number)
		snprintf(num, sizeof(num), "%.17g", json_real_value(v));
	else
		return say_bad("%s is not a %s", where, number ? "number" : "text");
	return option_set(row, o, num, where);
}

static int set_kept_files(struct opts *o, const json_t *files, const char *where)
{
	size_t n = json_array_size(files);
	char **list;
	int r = STATUS_OK;

	if (!json_is_array(files) || n > INT32_MAX)
		return say_bad("%s: \"files\" is not a list", where);
	list = calloc(n + 1, sizeof(*list));
	if (!list)
		return say_failed("out of memory");
	for (size_t i = 0; i < n && !r; i++) {
		list[i] = record_name_of(json_array_get(files, i));
		if (!list[i])
			r = say_bad("%s: \"files\": entry %zu is not a text", where, i + 1);
	}
	if (!r && n)
		r = set_files(o, (int)n, list);
	for (size_t i = 0; i < n; i++)
		free(list[i]);
	free(list);
	return r;
}

static int set_resumed(struct opts *o, const char *dir)
{
	json_t *kept = NULL, *v;
	const char *name;
	char file[4096];
	int r = ckpt_options(dir, &kept);

	if (r)
		return r;
	snprintf(file, sizeof(file), "%s/state.safetensors", dir);
	json_object_foreach(kept, name, v)
	{
		const struct option_field *row = option_find(rows, name);
		char where[4200];

		snprintf(where, sizeof(where), "%s: option \"%s\"", file, name);
		if (row && (row->key & KEPT)) /* not one of a later version */
			r = set_kept(o, row, v, where);
		if (r)
			break;
	}
	/* a te_train without these options saved it */
	if (!r && !json_object_get(kept, "order"))
		r = option_set(option_find(rows, "order"), o, "random", file);
	if (!r && !json_object_get(kept, "check-data"))
		r = option_set(option_find(rows, "check-data"), o, "all", file);
	if (!r)
		r = set_kept_files(o, json_object_get(kept, "files"), file);
	json_decref(kept);
	return r;
}

static void print_help(void)
{
	printf("usage: te_train --preset NAME [options] FILE...\n"
	       "       te_train --model config.json [options] FILE...\n"
	       "       te_train --init DIR|FILE.gguf [options] FILE...\n"
	       "       te_train --resume DIR [options]\n"
	       "Trains a transformer on text, whose bytes are the tokens, JSON lines or token\n"
	       "files; - is the standard input. Files may be compressed (.gz, .xz, .zst).\n");
	option_print(rows);
	printf("\nPresets\n");
	for (size_t i = 0; i < NPRESETS; i++)
		printf("  %-24s  %s\n", presets[i].name, presets[i].text);
	printf("\nOther\n  --help                    print this\n"
	       "  --version                 print the version\n"
	       "Exit status: 0 success, 1 failure, 2 bad usage or input,\n"
	       "130 ended by a signal and saved.\n");
}

/* DIR[:SIZE] */
static int set_offload_file(struct opts *o)
{
	char *colon = o->offload_file ? strrchr(o->offload_file, ':') : NULL;

	o->offload_quota = (int64_t)8 << 30;
	if (!o->offload_file)
		return STATUS_OK;
	if (!strcmp(o->offload, "off") && o->memory < 0)
		return say_bad("--offload-file needs --offload or --memory");
	if (!colon)
		return STATUS_OK;
	*colon = 0;
	return colon[1] ? option_size(option_find(rows, "offload-file"), colon + 1,
				      "--offload-file", &o->offload_quota) :
			  say_bad("--offload-file: no size after the colon");
}

static int set_offload(struct opts *o)
{
	int r = set_offload_file(o);

	o->offload_nbytes = o->pinned_nbytes = 0;
	if (!r && o->offload_pinned)
		r = option_size(option_find(rows, "offload-pinned"), o->offload_pinned,
				"--offload-pinned", &o->pinned_nbytes);
	if (r || option_choice("off|auto|all", o->offload, strlen(o->offload)) >= 0)
		return r;
	if (!*o->offload)
		return say_bad("--offload: \"\": expected off, auto, all or a size");
	return option_size(option_find(rows, "offload"), o->offload, "--offload",
			   &o->offload_nbytes);
}

/* absolute if possible, so that a run can be resumed in any folder */
static void set_absolute(char **name)
{
	char *path = *name ? realpath(*name, NULL) : NULL;

	if (!path)
		return;
	free(*name);
	*name = path;
}

/* the files of a list NAME=FILE,..., which is unchanged without memory */
static void set_absolute_sets(char **list)
{
	char *copy = *list ? strdup(*list) : NULL, *all = NULL, *save = NULL;
	size_t n;
	FILE *f = copy ? open_memstream(&all, &n) : NULL;

	for (char *set = f ? strtok_r(copy, ",", &save) : NULL; set;
	     set = strtok_r(NULL, ",", &save)) {
		char *file = strchr(set, '='), *path = file ? realpath(file + 1, NULL) : NULL;

		if (path && strchr(path, ',')) {
			free(path);
			path = NULL;
		}
		fprintf(f, "%s%.*s%s", set == copy ? "" : ",",
			path ? (int)(file + 1 - set) : (int)strlen(set), set, path ? path : "");
		free(path);
	}
	free(copy);
	if (!f || fclose(f)) {
		free(all);
		return;
	}
	free(*list);
	*list = all;
}

struct te_adamw_opts opts_adamw(const struct opts *o)
{
	struct te_adamw_opts ao = TE_ADAMW_OPTS_INIT;

	ao.beta1 = (float)o->beta1;
	ao.beta2 = (float)o->beta2;
	ao.weight_decay = (float)o->weight_decay;
	ao.max_grad_norm = (float)o->clip;
	ao.moments = !strcmp(o->moments, "bf16") ? TE_MOMENTS_BF16 :
		     !strcmp(o->moments, "fp8")	 ? TE_MOMENTS_FP8 :
						   TE_MOMENTS_FP32;
	if (strcmp(o->states, "device")) {
		ao.where = o->states_file ? TE_ADAMW_FILE : TE_ADAMW_HOST;
		ao.dir = o->states_file;
	}
	ao.ngroups = o->ngroups;
	ao.groups = o->group;
	/* the copies that matrix products read */
	if (opts_hosted(o) && !ao.dir && !strcmp(o->masters, "bf16") &&
	    strncmp(o->recipe, "fp32", 4) &&
	    strncmp(o->recipe, "bf16", 4))
		ao.flags |= TE_ADAMW_CAST;
	return ao;
}

uint32_t opts_masters(const struct opts *o, const char *backend)
{
	const int in_host = strcmp(o->states, "device") && !strcmp(backend, "host");
	const uint32_t exact = TE_SEQ_BF16_MASTERS | TE_SEQ_REMAINDERS |
			       (in_host ? TE_SEQ_HOST_REMAINDERS : 0);

	/* the model's weights as matrix products read them; adapters are exactly FP32 */
	if (o->lora && strcmp(o->masters, "bf16") && strcmp(o->recipe, "fp32"))
		return exact | TE_SEQ_ROUND_FROZEN;
	return !strcmp(o->masters, "fp32") ? 0 :
	       !strcmp(o->masters, "bf16") ? TE_SEQ_BF16_MASTERS :
					     exact;
}

uint32_t opts_grads(const struct opts *o)
{
	return strcmp(o->gradients, "fp32") ? TE_SEQ_BF16_GRADS : 0;
}

uint32_t opts_hosted(const struct opts *o)
{
	return !strcmp(o->states, "all")     ? TE_SEQ_HOST_MASTERS | TE_SEQ_HOST_GRADS :
	       !strcmp(o->states, "masters") ? TE_SEQ_HOST_MASTERS :
					       0;
}

uint32_t opts_copies(const struct opts *o)
{
	return strcmp(o->column_copies, "keep") ? TE_SEQ_RECOMPUTE_COLS : 0;
}

static int has_choices(const struct opts *o)
{
	return o->eval_choices && *o->eval_choices;
}

/* options that ranks with stages of a model, with some tokens of each sequence, or with parts of
 * the gradients or of the weights exclude */
static int check_excluded(const struct opts *o)
{
	enum { PIPELINE = 1, CONTEXT = 2, ZERO2 = 4, ZERO3 = 8, ZERO = ZERO2 | ZERO3 };
	static const char *const by_name[] = { "--pipeline", "--context", "--zero 2", "--zero 3" };
	const int asked = (o->pipeline > 1 ? PIPELINE : 0) | (o->context > 1 ? CONTEXT : 0) |
			  (o->zero == 2 ? ZERO2 : 0) | (o->zero == 3 ? ZERO3 : 0);
	const struct {
		int given;
		const char *name;
		int by;
	} row[] = {
		{ o->tensor > 1, "--tensor", CONTEXT | ZERO },
		{ o->pipeline > 1, "--pipeline", CONTEXT | ZERO },
		{ o->context > 1, "--context", ZERO },
		{ o->sequence_parallel != 0, "--sequence-parallel", PIPELINE },
		{ o->lora != NULL, "--lora", PIPELINE | CONTEXT | ZERO3 },
		{ o->groups != NULL, "--groups", PIPELINE },
		{ o->layer_recipe != NULL, "--layer-recipe", PIPELINE | ZERO3 },
		{ !strcmp(o->graph, "layer"), "--graph layer", PIPELINE },
		{ !strcmp(o->graph, "pass"), "--graph pass", PIPELINE },
		{ strcmp(o->documents, "off") != 0, "--documents", PIPELINE },
		{ strcmp(o->offload, "off") != 0, "--offload", PIPELINE },
		{ o->loss_chunk > 0, "--loss-chunk", CONTEXT },
		{ o->memory > 0, "--memory", PIPELINE },
		{ strcmp(o->recompute, "off") != 0, "--recompute", PIPELINE },
		{ strcmp(o->masters, "fp32") != 0, "--masters other than fp32", PIPELINE },
		{ !strcmp(o->masters, "bf16-remainder"), "--masters bf16-remainder", ZERO3 },
		{ !strcmp(o->recipe, "fp8-delayed"), "--recipe fp8-delayed", ZERO3 },
		{ strcmp(o->moments, "fp32") != 0, "--moments other than fp32", PIPELINE },
		{ opts_grads(o) != 0, "--gradients other than fp32", PIPELINE },
		{ strcmp(o->states, "device") != 0, "--states other than device", PIPELINE },
		{ !strcmp(o->recipe, "fp8-delayed"), "--recipe fp8-delayed", PIPELINE },
		{ !strcmp(o->recipe, "auto"), "--recipe auto", PIPELINE | ZERO3 },
		{ !strcmp(o->head_recipe, "fp8-delayed"), "--head-recipe fp8-delayed", PIPELINE },
		{ o->recover > 0, "--recover", PIPELINE },
		{ o->sample > 0, "--sample", PIPELINE | CONTEXT | ZERO3 },
		{ has_choices(o), "--eval-choices", PIPELINE | CONTEXT | ZERO3 },
		{ o->estimate >= 0, "--estimate", PIPELINE },
		{ o->print_plan != NULL, "--print-plan", PIPELINE },
		{ o->profile != NULL, "--profile", PIPELINE | ZERO },
		{ o->numerics != NULL, "--numerics", PIPELINE | ZERO },
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		for (int k = 3; k >= 0; k--)
			if (row[i].given && row[i].by & asked & 1 << k)
				return say_bad("%s: %s is not possible with it", by_name[k],
					       row[i].name);
	return STATUS_OK;
}

static int check_pipeline(const struct opts *o)
{
	const char *given = o->pipeline_schedule, *schedule = given && *given ? given : "1f1b";

	if (o->pipeline < 2)
		return STATUS_OK;
	if (!program_knows(schedule))
		return say_bad("--pipeline: expected --pipeline-schedule " PROGRAM_NAMES
			       ", not %s", schedule);
	if (o->chunks > 1 && !program_has_chunks(schedule))
		return say_bad("--pipeline: --pipeline-schedule %s is for --chunks 1", schedule);
	if (o->chunks < 2 && !strcmp(schedule, "interleaved"))
		return say_bad("--pipeline: --pipeline-schedule interleaved needs --chunks 2 or "
			       "more");
	return STATUS_OK;
}

static int check_needs(const struct opts *o)
{
	if (o->preset && o->model)
		return say_bad("--preset and --model exclude each other");
	if (o->sample_only && !o->resume && !o->init)
		return say_bad("--sample-only needs --resume or --init");
	if ((o->sample_only || o->prompt || o->prompt_tokens) && !o->sample)
		return say_bad("%s needs --sample", o->prompt	     ? "--prompt" :
						    o->prompt_tokens ? "--prompt-tokens" :
								       "--sample-only");
	if (o->save_best && !o->out && !o->resume)
		return say_bad("--save-best needs --out");
	if (o->overwrite && !o->out)
		return say_bad("--overwrite needs --out");
	if (o->copy_every && !o->recover)
		return say_bad("--copy-every needs --recover");
	if (o->copy_every && (o->tensor > 1 || o->zero))
		return say_bad("--copy-every: each rank copies a whole model and all moments, "
			       "expected %s", o->zero ? "--zero 0" : "--tensor 1");
	if (o->sharded && !o->zero)
		return say_bad("--sharded needs --zero 1, 2 or 3");
	if (o->sharded && (o->tensor > 1 || o->pipeline > 1 || o->lora || o->states_file))
		return say_bad("--sharded: %s is not possible with it",
			       o->tensor > 1	 ? "--tensor" :
			       o->pipeline > 1	 ? "--pipeline" :
			       o->lora		 ? "--lora" :
						   "--states-file");
	if (o->lora && !o->init && !o->resume)
		return say_bad("--lora needs --init, the model that adapters are trained for");
	if (o->lora && o->freeze)
		return say_bad("--lora and --freeze exclude each other: only adapters are trained");
	if (o->lora && o->tensor > 1)
		return say_bad("--lora: ranks cannot divide adapters, expected --tensor 1");
	if (o->memory > 0 && o->sample_only)
		return say_bad("--memory is for training, not for --sample-only");
	if (o->memory > 0 && o->offload_given && strcmp(o->offload, "off") &&
	    strcmp(o->offload, "auto"))
		return say_bad("--memory chooses what moves: --offload is %s, expected off or auto",
			       o->offload);
	if (strcmp(o->documents, "off") && o->random_tokens)
		return say_bad("--documents needs files, --random-tokens has no documents");
	if (!strcmp(o->order, "documents") && o->random_tokens)
		return say_bad("--order documents needs files, --random-tokens has no documents");
	if (!strcmp(o->order, "chunks") && o->random_tokens)
		return say_bad("--order chunks needs text, --random-tokens has none");
	if (o->repeat && *o->repeat && !o->val)
		return say_bad("--repeat needs --val FILE: the held-out end of a file would also "
			       "be trained on");
	if (strcmp(o->documents, "off") &&
	    (!strcmp(o->graph, "layer") || (o->pipeline_schedule && *o->pipeline_schedule)))
		return say_bad("--documents: parts of a model cannot share one input: expected "
			       "neither --graph layer nor --pipeline-schedule");
	if (o->tensor > 1 && strcmp(o->masters, "fp32"))
		return say_bad("--tensor: ranks cannot divide masters in %s, expected --masters "
			       "fp32", o->masters);
	if (o->tensor > 1 && strcmp(o->moments, "fp32"))
		return say_bad("--tensor: ranks cannot divide moments in %s, expected --moments "
			       "fp32", o->moments);
	if (opts_grads(o) && !strcmp(o->recipe, "fp32"))
		return say_bad("--gradients bf16: --recipe fp32 computes in FP32, expected "
			       "--gradients fp32");
	if (opts_hosted(o) && !(opts_masters(o, "host") & TE_SEQ_BF16_MASTERS))
		return say_bad("--states %s: masters are FP32, expected --masters bf16 or "
			       "bf16-remainder", o->states);
	if (o->states_file && !strcmp(o->states, "device") && o->memory < 0)
		return say_bad("--states-file needs --states host, masters or all, or --memory");
	if (o->states_file && o->tensor > 1)
		return say_bad("--states-file: ranks cannot divide moments in a file, expected no "
			       "--tensor");
	if (o->layer_recipe && has_choices(o))
		return say_bad("--eval-choices and --layer-recipe exclude each other");
	if (o->tensor > 1 && has_choices(o))
		return say_bad("--eval-choices needs whole models, --tensor is %lld",
			       (long long)o->tensor);
	return check_excluded(o) ? STATUS_BAD : check_pipeline(o);
}

/* text of the last of the given options that sets the field at an offset; NULL: there is none */
static const char *has(const struct option_given *given, int n, size_t at)
{
	while (n-- && given[n].field->offset != at)
		;
	return n < 0 ? NULL : given[n].text;
}

int opts_parse(struct opts *o, int argc, char **argv, int *ret_done)
{
	const struct option_field *const tables[] = { rows, NULL };
	const struct option_table table = { .help = print_help, .fields = tables };
	struct option_given given[256];
	const char *preset, *resume;
	int random_given, steps_given, tokens_given, n, r;

	*ret_done = 0;
	memset(o, 0, sizeof(*o));
	r = option_defaults(rows, o);
	if (r)
		return r;
	n = option_given(&table, argc, argv, given, 256);
	*ret_done = n == OPTION_DONE;
	if (n < 0)
		return *ret_done ? STATUS_OK : STATUS_BAD;
	tokens_given = has(given, n, AT(tokens)) != NULL;
	steps_given = has(given, n, AT(steps)) != NULL;
	random_given = has(given, n, AT(random_tokens)) != NULL;
	o->recompute_given = has(given, n, AT(recompute)) != NULL;
	o->chunk_given = has(given, n, AT(loss_chunk)) != NULL;
	o->offload_given = has(given, n, AT(offload)) != NULL;
	o->states_given = has(given, n, AT(states)) != NULL;
	o->copies_given = has(given, n, AT(column_copies)) != NULL;
	preset = has(given, n, AT(preset));
	resume = has(given, n, AT(resume));
	if (preset)
		r = set_preset(o, preset);
	if (!r && resume)
		r = set_resumed(o, resume);
	o->accum_kept = resume != NULL;
	for (int i = 0; i < n && !r; i++) {
		char where[64];

		snprintf(where, sizeof(where), "--%s", given[i].field->name);
		r = option_set(given[i].field, o, given[i].text, where);
		if (given[i].field->offset == AT(accum))
			o->accum_kept = 0;
	}
	/* files or random tokens given here replace what the checkpoint names */
	o->files_given = optind < argc || random_given;
	if (!r && o->files_given)
		r = set_files(o, argc - optind, argv + optind);
	if (!r && o->files_given)
		o->random_tokens = random_given;
	/* a preset or a checkpoint may have tokens */
	if (!r && steps_given && !tokens_given)
		o->tokens = NAN;
	if (!r && steps_given && tokens_given)
		r = say_bad("--steps and --tokens exclude each other");
	/* the chunks of a checkpoint belong to its schedule */
	if (!r && has(given, n, AT(pipeline_schedule)) && !has(given, n, AT(chunks)) &&
	    (o->pipeline > 1 || !*o->pipeline_schedule))
		o->chunks = 0;
	/* measurements have the same batches as earlier versions */
	if (!r && !o->order)
		r = option_set(option_find(rows, "order"), o, o->random_tokens ? "random" : "epoch",
			       "--order");
	if (!r)
		r = set_offload(o);
	if (!r)
		set_absolute(&o->tokenizer);
	if (!r)
		set_absolute(&o->eval_choices);
	if (!r && o->val && strcmp(o->val, "-"))
		set_absolute(&o->val);
	if (!r)
		set_absolute_sets(&o->valid);
	if (!r && has(given, n, AT(decay)) && strcmp(o->schedule, "wsd"))
		r = say_bad("--decay: the schedule %s has no such part, expected --schedule wsd",
			    o->schedule);
	if (!r)
		r = groups_parse(o);
	return r ? r : check_needs(o);
}

int opts_digests(const struct opts *o, int32_t *ret_digest)
{
	int n = 0;

	for (const struct option_field *f = rows; f->name; f++, n++) {
		const void *field = (const char *)o + f->offset;
		const char *word = option_is_text(f) ? *(char *const *)field : NULL;
		const int has = word != NULL;
		char text[DIGEST_NBYTES];
		struct digest d = { 0 };

		if (f->key & NAME)
			digest_add(&d, &has, sizeof(has));
		else if (word)
			digest_add(&d, word, strlen(word));
		else if (f->kind != OPTION_HEADING && !option_is_text(f))
			digest_add(&d, field, sizeof(int64_t)); /* or a double */
		digest_end(&d, text);
		ret_digest[n] = f->key & LOCAL ? 0 : (int32_t)(uint32_t)(d.h ^ d.h >> 32);
	}
	return n;
}

const char *opts_name(int i)
{
	return rows[i].name;
}

int opts_set(struct opts *o, const char *name, const char *value)
{
	return option_set(option_find(rows, name), o, value, name);
}

void opts_free(struct opts *o)
{
	option_free(rows, o);
	groups_free(o);
	for (int i = 0; i < o->nfiles; i++)
		free(o->file[i]);
	free(o->file);
	memset(o, 0, sizeof(*o));
}
