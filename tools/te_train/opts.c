/*
 * opts.c - the options of te_train: the parser, --help, the defaults of presets and the options in
 * checkpoints use one row of a table each.
 */
#include "config.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/quant.h>

#include "ckpt.h"
#include "opts.h"
#include "tools/lib/option.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"

#define KEPT 1u /* saved in checkpoints: a resumed run continues with it */
#define AT(field) offsetof(struct opts, field)
#define BIG 1e15

static const struct option_field rows[] = {
	{ "Model", OPTION_HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "preset", OPTION_TEXT, AT(preset), NULL, 0, 0, 0, "NAME",
	  "a model and its training options (listed below)" },
	{ "model", OPTION_TEXT, AT(model), NULL, 0, 0, 0, "FILE",
	  "Hugging Face style config.json, or its folder" },
	{ "init", OPTION_TEXT, AT(init), NULL, 0, 0, 0, "DIR",
	  "start from DIR/model.safetensors and its config.json" },
	{ "resume", OPTION_TEXT, AT(resume), NULL, 0, 0, 0, "DIR",
	  "continue from a checkpoint, with its options and files" },
	{ "dropout", OPTION_REAL, AT(dropout), NULL, 0, 0.999, KEPT, "P",
	  "probability of all dropouts" },
	{ "freeze", OPTION_TEXT, AT(freeze), NULL, 0, 0, KEPT, "PATTERN",
	  "do not train weights or operations of these names, e.g. embed,h.0.*" },

	{ "Data", OPTION_HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "data-type", OPTION_WORD, AT(data_type), "auto", 0, 0, KEPT, "auto|text|u16|u32|jsonl",
	  "what files have: bytes of text, tokens, or JSON lines" },
	{ "tokenizer", OPTION_TEXT, AT(tokenizer), NULL, 0, 0, KEPT, "FILE|DIR",
	  "tokens of text and prompts by this; default the model's folder" },
	{ "order", OPTION_WORD, AT(order), NULL, 0, 0, KEPT, "epoch|random",
	  "all windows once an epoch, or windows at random offsets (epoch)" },
	{ "check-data", OPTION_WORD, AT(check_data), "auto", 0, 0, KEPT, "auto|all",
	  "check all tokens first, or those beyond 64 MiB when they are read" },
	{ "chat-template", OPTION_WORD, AT(chat_template), "chatml", 0, 0, KEPT,
	  "chatml|llama3|mistral", "texts around the messages of JSON lines" },
	{ "chat-begin", OPTION_TEXT, AT(chat_begin), NULL, 0, 0, KEPT, "TEXT",
	  "text before the first message instead; with \\n for a newline" },
	{ "chat-system", OPTION_TEXT, AT(chat_system), NULL, 0, 0, KEPT, "TEXT",
	  "text of a message of the system instead, {} for its content" },
	{ "chat-user", OPTION_TEXT, AT(chat_user), NULL, 0, 0, KEPT, "TEXT",
	  "text of a message of the user instead" },
	{ "chat-assistant", OPTION_TEXT, AT(chat_assistant), NULL, 0, 0, KEPT, "TEXT",
	  "text of a message of the assistant instead" },
	{ "doc-end", OPTION_TEXT, AT(doc_end), NULL, 0, 0, KEPT, "TEXT",
	  "text after each text and completion of JSON lines; default: see te_train(1)" },
	{ "random-tokens", OPTION_FLAG, AT(random_tokens), "0", 0, 1, KEPT, NULL,
	  "no files: random tokens, to measure speed" },
	{ "val-fraction", OPTION_REAL, AT(val_fraction), "0.1", 0.0001, 0.9, KEPT, "F",
	  "fraction of the data held out for validation" },
	{ "val", OPTION_TEXT, AT(val), NULL, 0, 0, KEPT, "FILE", "validate on this file instead" },
	{ "valid", OPTION_TEXT, AT(valid), NULL, 0, 0, KEPT, "NAME=FILE,...",
	  "validate on these files too" },
	{ "dump-val", OPTION_TEXT, AT(dump_val), NULL, 0, 0, 0, "FILE",
	  "write the held-out text to FILE" },

	{ "Device", OPTION_HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "backend", OPTION_WORD, AT(backend), NULL, 0, 0, 0, "auto|host|cuda",
	  "where to run (TE_BACKEND, else auto)" },
	{ "device", OPTION_INT, AT(device), NULL, 0, 1023, 0, "N",
	  "which device of the backend; default the device of the rank, or 0" },
	{ "tensor", OPTION_INT, AT(tensor), "1", 1, 64, 0, "N",
	  "ranks that divide each model among them" },
	{ "sequence-parallel", OPTION_FLAG, AT(sequence_parallel), "0", 0, 1, 0, NULL,
	  "with --tensor: norms and residuals are divided by tokens" },
	{ "recover", OPTION_INT, AT(recover), "0", 0, 1000000, 0, "N",
	  "ranks that are left after others were lost go on, up to N times" },
	{ "recipe", OPTION_WORD, AT(recipe), "bf16", 0, 0, KEPT, TE_RECIPE_NAMES,
	  "number formats" },
	{ "graph", OPTION_MODE, AT(graph), "off", 0, 0, KEPT, "off|step|layer",
	  "capture once and replay; without a word: step" },
	{ "pipeline-schedule", OPTION_TEXT, AT(pipeline_schedule), NULL, 0, 0, KEPT, "NAME|LIST",
	  "order of passes: gpipe, 1f1b, interleaved, zero-bubble, or e.g. 1,2,-2,-1" },
	{ "chunks", OPTION_INT, AT(chunks), "0", 0, 1 << 16, KEPT, "N",
	  "chunks of the schedule; 0: as many as its list names" },
	{ "offload", OPTION_TEXT, AT(offload), "off", 1, 1e18, KEPT, "off|auto|all|SIZE",
	  "move values that wait for backward to host memory; auto: if needed" },
	{ "offload-file", OPTION_TEXT, AT(offload_file), NULL, 4096, 1e18, 0, "DIR[:SIZE]",
	  "and on to a file without a name in DIR, of SIZE bytes; default 8G" },
	{ "offload-pinned", OPTION_TEXT, AT(offload_pinned), NULL, 1, 1e18, 0, "SIZE",
	  "the most pinned memory that --offload takes; with a file 64M by default" },
	{ "offload-verify", OPTION_WORD, AT(offload_verify), "all", 0, 0, 0, "off|sample|all",
	  "compare what that file returns with checksums" },
	{ "recompute", OPTION_TEXT, AT(recompute), "off", 0, 0, KEPT, "off|LIST",
	  "compute outputs of norm, act or named operations again in backward" },

	{ "Training", OPTION_HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "steps", OPTION_INT, AT(steps), "1000", 0, BIG, KEPT, "N",
	  "optimizer steps; the schedule ends there" },
	{ "tokens", OPTION_REAL, AT(tokens), NULL, 1, BIG, KEPT, "N",
	  "instead of --steps: as many as have N tokens, e.g. 2e9" },
	{ "stop-after", OPTION_INT, AT(stop_after), NULL, 0, BIG, 0, "N",
	  "save and exit at step N" },
	{ "time-limit", OPTION_TIME, AT(time_limit), NULL, 0, 1e9, 0, "TIME",
	  "exit after this time; the schedule ends there" },
	{ "batch", OPTION_INT, AT(batch), "8", 1, 1 << 20, KEPT, "N",
	  "sequences of a micro-batch" },
	{ "accum", OPTION_INT, AT(accum), "1", 1, 1 << 16, KEPT, "N",
	  "micro-batches of a step, of each rank" },
	{ "seq-len", OPTION_INT, AT(seq_len), "0", 0, 1 << 20, KEPT, "T",
	  "context in tokens; 0: the model's, at most 1024" },
	{ "lr", OPTION_REAL, AT(lr), "6e-4", 0, 10, KEPT, "RATE", "peak learning rate" },
	{ "min-lr", OPTION_REAL, AT(min_lr), NULL, 0, 10, KEPT, "RATE",
	  "learning rate at the end; default a tenth of --lr" },
	{ "schedule", OPTION_WORD, AT(schedule), "cosine", 0, 0, KEPT, "cosine|linear|constant|wsd",
	  "fall of the learning rate after warm-up; wsd: at the end" },
	{ "decay", OPTION_REAL, AT(decay), "0.1", 0.001, 1, KEPT, "F",
	  "with --schedule wsd: fraction of the steps after warm-up in which it falls" },
	{ "warmup", OPTION_INT, AT(warmup), "100", 0, BIG, KEPT, "N", "steps of linear warm-up" },
	{ "weight-decay", OPTION_REAL, AT(weight_decay), "0.1", 0, 10, KEPT, "W",
	  "weight decay of matrices and embeddings" },
	{ "beta1", OPTION_REAL, AT(beta1), "0.9", 0, 0.999999, KEPT, "B", "AdamW, first moment" },
	{ "beta2", OPTION_REAL, AT(beta2), "0.95", 0, 0.999999, KEPT, "B", "AdamW, second moment" },
	{ "clip", OPTION_REAL, AT(clip), "1", 0, 1e9, KEPT, "NORM",
	  "largest gradient norm; 0: no clipping" },
	{ "seed", OPTION_INT, AT(seed), "1337", 0, BIG, KEPT, "N",
	  "seed of weights, batches, dropout and samples" },

	{ "Output", OPTION_HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "out", OPTION_TEXT, AT(out), NULL, 0, 0, 0, "DIR",
	  "folder for checkpoints; none if not given" },
	{ "overwrite", OPTION_FLAG, AT(overwrite), "0", 0, 1, 0, NULL,
	  "replace what another run has saved in the folder of --out" },
	{ "save-every", OPTION_INT, AT(save_every), "1000", 0, BIG, KEPT, "N",
	  "steps between checkpoints; 0: at the end only" },
	{ "save-dtype", OPTION_WORD, AT(save_dtype), "fp32", 0, 0, KEPT, "bf16|fp32",
	  "type of saved weights; with bf16 the state has FP32 weights too" },
	{ "save-best", OPTION_FLAG, AT(save_best), "0", 0, 1, KEPT, NULL,
	  "save the best weights in DIR/best" },
	{ "eval-every", OPTION_INT, AT(eval_every), "250", 0, BIG, KEPT, "N",
	  "steps between validations; 0: at the end only" },
	{ "eval-batches", OPTION_INT, AT(eval_batches), "20", 0, BIG, KEPT, "N",
	  "batches of a validation; 0: all held-out text" },
	{ "log", OPTION_TEXT, AT(log), NULL, 0, 0, 0, "FILE", "append JSON lines for te_plot(1)" },
	{ "log-every", OPTION_INT, AT(log_every), "10", 1, BIG, KEPT, "N",
	  "steps between loss lines" },
	{ "json", OPTION_FLAG, AT(json), "0", 0, 1, 0, NULL, "print the summary as a JSON object" },
	{ "estimate", OPTION_SIZE, AT(estimate), NULL, 1, 1e18, 0, "SIZE",
	  "print the memory that is needed, the largest batch and context, and exit" },
	{ "print-plan", OPTION_WORD, AT(print_plan), NULL, 0, 0, 0, "text|dot",
	  "print the training plan and exit" },
	{ "profile", OPTION_MODE, AT(profile), NULL, 0, 0, 0, "json|text",
	  "print the time of each step of the training plan and exit" },

	{ "Samples", OPTION_HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "sample", OPTION_INT, AT(sample), "0", 0, 1 << 20, 0, "N",
	  "generate N tokens at the end" },
	{ "sample-first", OPTION_FLAG, AT(sample_first), "0", 0, 1, 0, NULL,
	  "also before training" },
	{ "sample-only", OPTION_FLAG, AT(sample_only), "0", 0, 1, 0, NULL,
	  "no training: with --resume or --init" },
	{ "prompt", OPTION_TEXT, AT(prompt), NULL, 0, 0, 0, "TEXT",
	  "text that samples begin with; default a newline" },
	{ "prompt-tokens", OPTION_TEXT, AT(prompt_tokens), NULL, 0, 0, 0, "N,N,...",
	  "the same as token numbers, for a model whose tokens are not bytes" },
	{ "temperature", OPTION_REAL, AT(temperature), "0.8", 0, 100, 0, "T",
	  "sampling temperature; 0: the most likely token" },
	{ "top-k", OPTION_INT, AT(top_k), "0", 0, BIG, 0, "K",
	  "sample from the K most likely tokens; 0: all" },
	{ "top-p", OPTION_REAL, AT(top_p), "1", 0, 1, 0, "P",
	  "sample from the fewest tokens that have this probability" },
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
	{ "char-gpt", "6 layers, 384 wide, bytes: nanoGPT's train_shakespeare_char",
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
	{ "llama-tiny", "8 layers, 512 wide, grouped queries, bytes: for a GPU",
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
	if (!strcmp(o->offload, "off"))
		return say_bad("--offload-file needs --offload");
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
static void set_tokenizer(struct opts *o)
{
	char *path = o->tokenizer ? realpath(o->tokenizer, NULL) : NULL;

	if (!path)
		return;
	free(o->tokenizer);
	o->tokenizer = path;
}

/* options that need others, or exclude them */
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
	return STATUS_OK;
}

int opts_parse(struct opts *o, int argc, char **argv, int *ret_done)
{
	const struct option_field *const tables[] = { rows, NULL };
	const struct option_table table = { .help = print_help, .fields = tables };
	struct option_given given[256];
	const char *preset = NULL, *resume = NULL;
	int random_given = 0, steps_given = 0, tokens_given = 0, n, r;

	*ret_done = 0;
	memset(o, 0, sizeof(*o));
	r = option_defaults(rows, o);
	if (r)
		return r;
	n = option_given(&table, argc, argv, given, 256);
	*ret_done = n == OPTION_DONE;
	if (n < 0)
		return *ret_done ? STATUS_OK : STATUS_BAD;
	for (int i = 0; i < n; i++) {
		const size_t at = given[i].field->offset;

		preset = at == AT(preset) ? given[i].text : preset;
		resume = at == AT(resume) ? given[i].text : resume;
		random_given |= at == AT(random_tokens);
		steps_given |= at == AT(steps);
		tokens_given |= at == AT(tokens);
	}
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
	/* measurements have the same batches as earlier versions */
	if (!r && !o->order)
		r = option_set(option_find(rows, "order"), o, o->random_tokens ? "random" : "epoch",
			       "--order");
	if (!r)
		r = set_offload(o);
	if (!r)
		set_tokenizer(o);
	return r ? r : check_needs(o);
}

void opts_free(struct opts *o)
{
	option_free(rows, o);
	for (int i = 0; i < o->nfiles; i++)
		free(o->file[i]);
	free(o->file);
	memset(o, 0, sizeof(*o));
}
