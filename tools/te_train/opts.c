/*
 * opts.c - the options of te_train: the parser, --help, the defaults of presets and the options in
 * checkpoints use one row of a table each.
 */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt.h"
#include "opts.h"
#include "tools/lib/option.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"

enum kind {
	HEADING,
	FLAG,
	INT,
	REAL, /* NaN when not given and the default is empty */
	TEXT,
	WORD, /* one of the choices in arg, "a|b|c" */
	MODE, /* the same; without a word, the second choice */
	TIME, /* seconds, see option_seconds(); NaN when not given */
	SIZE  /* bytes, with k, M, G or T; without a value 0; -1 when not given */
};

#define KEPT 1u /* saved in checkpoints: a resumed run continues with it */

struct row {
	const char *name;
	enum kind kind;
	size_t offset;
	const char *dflt; /* NULL: none */
	double lo, hi;
	uint32_t flags;
	const char *arg;
	const char *help;
};

#define AT(field) offsetof(struct opts, field)
#define BIG 1e15

static const struct row rows[] = {
	{ "Model", HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "preset", TEXT, AT(preset), NULL, 0, 0, 0, "NAME",
	  "a model and its training options (listed below)" },
	{ "model", TEXT, AT(model), NULL, 0, 0, 0, "FILE",
	  "Hugging Face style config.json, or its folder" },
	{ "init", TEXT, AT(init), NULL, 0, 0, 0, "DIR",
	  "start from DIR/model.safetensors and its config.json" },
	{ "resume", TEXT, AT(resume), NULL, 0, 0, 0, "DIR",
	  "continue from a checkpoint, with its options and files" },
	{ "dropout", REAL, AT(dropout), NULL, 0, 0.999, KEPT, "P", "probability of all dropouts" },
	{ "freeze", TEXT, AT(freeze), NULL, 0, 0, KEPT, "PATTERN",
	  "do not train weights or operations of these names, e.g. embed,h.0.*" },

	{ "Data", HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "data-type", WORD, AT(data_type), "auto", 0, 0, KEPT, "auto|text|u16|u32",
	  "what files have: bytes of text, or tokens" },
	{ "random-tokens", FLAG, AT(random_tokens), "0", 0, 1, KEPT, NULL,
	  "no files: random tokens, to measure speed" },
	{ "val-fraction", REAL, AT(val_fraction), "0.1", 0.0001, 0.9, KEPT, "F",
	  "fraction of the data held out for validation" },
	{ "val", TEXT, AT(val), NULL, 0, 0, KEPT, "FILE", "validate on this file instead" },
	{ "dump-val", TEXT, AT(dump_val), NULL, 0, 0, 0, "FILE",
	  "write the held-out text to FILE" },

	{ "Device", HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "backend", WORD, AT(backend), NULL, 0, 0, 0, "auto|host|cuda",
	  "where to run (TE_BACKEND, else auto)" },
	{ "device", INT, AT(device), NULL, 0, 1023, 0, "N",
	  "which device of the backend; default that of the rank, or 0" },
	{ "tensor", INT, AT(tensor), "1", 1, 64, 0, "N",
	  "ranks that divide each model among them" },
	{ "sequence-parallel", FLAG, AT(sequence_parallel), "0", 0, 1, 0, NULL,
	  "with --tensor: norms and residuals are divided by tokens" },
	{ "recover", INT, AT(recover), "0", 0, 1000000, 0, "N",
	  "ranks that are left after others were lost go on, up to N times" },
	{ "recipe", WORD, AT(recipe), "bf16", 0, 0, KEPT,
	  "fp8-delayed|fp8-current|fp8-block|bf16|fp32", "number formats" },
	{ "graph", MODE, AT(graph), "off", 0, 0, KEPT, "off|step|layer",
	  "capture once and replay; without a word: step" },
	{ "pipeline-schedule", TEXT, AT(pipeline_schedule), NULL, 0, 0, KEPT, "NAME|LIST",
	  "order of passes: gpipe, 1f1b, interleaved, zero-bubble, or e.g. 1,2,-2,-1" },
	{ "chunks", INT, AT(chunks), "0", 0, 1 << 16, KEPT, "N",
	  "chunks of the schedule; 0: as many as its list names" },
	{ "offload", TEXT, AT(offload), "off", 1, 1e18, KEPT, "off|auto|all|SIZE",
	  "move values that wait for backward to host memory; auto: if needed" },
	{ "offload-file", TEXT, AT(offload_file), NULL, 4096, 1e18, 0, "DIR[:SIZE]",
	  "and on to a file without a name in DIR, of SIZE bytes; default 8G" },
	{ "offload-pinned", TEXT, AT(offload_pinned), NULL, 1, 1e18, 0, "SIZE",
	  "the most pinned memory that --offload takes; with a file 64M by default" },
	{ "offload-verify", WORD, AT(offload_verify), "all", 0, 0, 0, "off|sample|all",
	  "compare what that file returns with checksums" },
	{ "recompute", TEXT, AT(recompute), "off", 0, 0, KEPT, "off|LIST",
	  "compute outputs of norm, act or named operations again in backward" },

	{ "Training", HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "steps", INT, AT(steps), "1000", 0, BIG, KEPT, "N",
	  "optimizer steps; the schedule ends there" },
	{ "stop-after", INT, AT(stop_after), NULL, 0, BIG, 0, "N",
	  "save and exit at step N" },
	{ "time-limit", TIME, AT(time_limit), NULL, 0, 1e9, 0, "TIME",
	  "exit after this time; the schedule ends there" },
	{ "batch", INT, AT(batch), "8", 1, 1 << 20, KEPT, "N", "sequences of a micro-batch" },
	{ "accum", INT, AT(accum), "1", 1, 1 << 16, KEPT, "N",
	  "micro-batches of a step, of each rank" },
	{ "seq-len", INT, AT(seq_len), "0", 0, 1 << 20, KEPT, "T",
	  "context in tokens; 0: the model's, at most 1024" },
	{ "lr", REAL, AT(lr), "6e-4", 0, 10, KEPT, "RATE", "peak learning rate" },
	{ "min-lr", REAL, AT(min_lr), NULL, 0, 10, KEPT, "RATE",
	  "learning rate at the end; default a tenth of --lr" },
	{ "warmup", INT, AT(warmup), "100", 0, BIG, KEPT, "N", "steps of linear warm-up" },
	{ "weight-decay", REAL, AT(weight_decay), "0.1", 0, 10, KEPT, "W",
	  "weight decay of matrices and embeddings" },
	{ "beta1", REAL, AT(beta1), "0.9", 0, 0.999999, KEPT, "B", "AdamW, first moment" },
	{ "beta2", REAL, AT(beta2), "0.95", 0, 0.999999, KEPT, "B", "AdamW, second moment" },
	{ "clip", REAL, AT(clip), "1", 0, 1e9, KEPT, "NORM",
	  "largest gradient norm; 0: no clipping" },
	{ "seed", INT, AT(seed), "1337", 0, BIG, KEPT, "N",
	  "seed of weights, batches, dropout and samples" },

	{ "Output", HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "out", TEXT, AT(out), NULL, 0, 0, 0, "DIR", "folder for checkpoints; none if not given" },
	{ "overwrite", FLAG, AT(overwrite), "0", 0, 1, 0, NULL,
	  "replace what another run has saved in the folder of --out" },
	{ "save-every", INT, AT(save_every), "1000", 0, BIG, KEPT, "N",
	  "steps between checkpoints; 0: at the end only" },
	{ "save-best", FLAG, AT(save_best), "0", 0, 1, KEPT, NULL,
	  "save the best weights in DIR/best" },
	{ "eval-every", INT, AT(eval_every), "250", 0, BIG, KEPT, "N",
	  "steps between validations; 0: at the end only" },
	{ "eval-batches", INT, AT(eval_batches), "20", 0, BIG, KEPT, "N",
	  "batches of a validation; 0: all held-out text" },
	{ "log", TEXT, AT(log), NULL, 0, 0, 0, "FILE", "append JSON lines for te_plot(1)" },
	{ "log-every", INT, AT(log_every), "10", 1, BIG, KEPT, "N", "steps between loss lines" },
	{ "json", FLAG, AT(json), "0", 0, 1, 0, NULL, "print the summary as a JSON object" },
	{ "estimate", SIZE, AT(estimate), NULL, 1, 1e18, 0, "SIZE",
	  "print the memory that is needed, the largest batch and context, and exit" },
	{ "print-plan", WORD, AT(print_plan), NULL, 0, 0, 0, "text|dot",
	  "print the training plan and exit" },

	{ "Samples", HEADING, 0, 0, 0, 0, 0, 0, 0 },
	{ "sample", INT, AT(sample), "0", 0, 1 << 20, 0, "N", "generate N tokens at the end" },
	{ "sample-first", FLAG, AT(sample_first), "0", 0, 1, 0, NULL, "also before training" },
	{ "sample-only", FLAG, AT(sample_only), "0", 0, 1, 0, NULL,
	  "no training: with --resume or --init" },
	{ "prompt", TEXT, AT(prompt), NULL, 0, 0, 0, "TEXT",
	  "text that samples begin with; default a newline" },
	{ "prompt-tokens", TEXT, AT(prompt_tokens), NULL, 0, 0, 0, "N,N,...",
	  "the same as token numbers, for a model whose tokens are not bytes" },
	{ "temperature", REAL, AT(temperature), "0.8", 0, 100, 0, "T",
	  "sampling temperature; 0: the most likely token" },
	{ "top-k", INT, AT(top_k), "0", 0, BIG, 0, "K",
	  "sample from the K most likely tokens; 0: all" },
	{ "top-p", REAL, AT(top_p), "1", 0, 1, 0, "P",
	  "sample from the fewest tokens that have this probability" },
};
#define NROWS (sizeof(rows) / sizeof(rows[0]))
_Static_assert(NROWS + 2 <= OPTION_ROWS_MAX, "option_next() takes fewer options");

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

static const struct row *row_find(const char *name)
{
	for (size_t i = 0; i < NROWS; i++) {
		if (rows[i].kind != HEADING && !strcmp(rows[i].name, name))
			return &rows[i];
	}
	return NULL;
}

static int is_choice(const char *choices, const char *word)
{
	return option_choice(choices, word, strlen(word)) >= 0;
}

/* "1" and "0" mean the second choice and the first, as for a flag */
static int mode_set(char **field, const struct row *row, const char *text, const char *where)
{
	const char *first = row->arg, *second = strchr(first, '|') + 1;
	char *word = !strcmp(text, "0") ? strndup(first, strcspn(first, "|")) :
		     !strcmp(text, "1") ? strndup(second, strcspn(second, "|")) :
					  strdup(text);

	if (!word)
		return say_failed("out of memory");
	if (!is_choice(row->arg, word)) {
		free(word);
		return say_bad("%s: \"%s\": expected one of %s", where, text, row->arg);
	}
	free(*field);
	*field = word;
	return STATUS_OK;
}

static int size_set(int64_t *field, const struct row *row, const char *text, const char *where)
{
	char *end = (char *)text;
	double x = strtod(text, &end);
	const int given = end != text;

	x *= option_unit(&end);
	if (!given || *end)
		return say_bad("%s: \"%s\" is not a size such as 80G", where, text);
	if (!(x >= row->lo && x <= row->hi))
		return say_bad("%s: \"%s\": expected a size from %.0f to %.0f bytes", where, text,
			       row->lo, row->hi);
	*field = (int64_t)x;
	return STATUS_OK;
}

/* set a field from text, NULL for a SIZE without a value; error messages begin with where, its
 * source */
static int row_set(struct opts *o, const struct row *row, const char *text, const char *where)
{
	void *field = (char *)o + row->offset;
	char *end = "";
	char **s;
	double x;

	switch (row->kind) {
	case HEADING:
		break;
	case FLAG:
	case INT:
		errno = 0;
		x = (double)strtoll(text, &end, 10);
		if (end == text || *end || errno || x < row->lo || x > row->hi) {
			return say_bad("%s: \"%s\" is not a whole number from %.0f to %.0f", where,
				       text, row->lo, row->hi);
		}
		*(int64_t *)field = strtoll(text, NULL, 10);
		break;
	case REAL:
		x = strtod(text, &end);
		if (end == text || *end || !(x >= row->lo && x <= row->hi)) {
			return say_bad("%s: \"%s\" is not a number from %g to %g", where, text,
				       row->lo, row->hi);
		}
		*(double *)field = x;
		break;
	case TIME:
		x = option_seconds(text);
		if (!(x >= row->lo && x <= row->hi))
			return say_bad("%s: \"%s\" is not a time such as 90, 10m or 1h30m", where,
				       text);
		*(double *)field = x;
		break;
	case MODE:
		return mode_set(field, row, text, where);
	case SIZE:
		*(int64_t *)field = 0;
		return text ? size_set(field, row, text, where) : STATUS_OK;
	case WORD:
		if (!is_choice(row->arg, text))
			return say_bad("%s: \"%s\": expected one of %s", where, text, row->arg);
		/* fall through */
	case TEXT:
		s = field;
		free(*s);
		*s = strdup(text);
		if (!*s)
			return say_failed("out of memory");
		break;
	}
	return STATUS_OK;
}

static int set_defaults(struct opts *o)
{
	memset(o, 0, sizeof(*o));
	for (size_t i = 0; i < NROWS; i++) {
		void *field = (char *)o + rows[i].offset;
		int r = STATUS_OK;

		if (rows[i].dflt)
			r = row_set(o, &rows[i], rows[i].dflt, rows[i].name);
		else if (rows[i].kind == REAL || rows[i].kind == TIME)
			*(double *)field = NAN;
		else if (rows[i].kind == INT || rows[i].kind == SIZE)
			*(int64_t *)field = -1;
		if (r)
			return r;
	}
	return STATUS_OK;
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
		r = row_set(o, row_find(w), eq + 1, w);
	}
	return r;
}

json_t *opts_to_json(const struct opts *o)
{
	struct record rec;

	record_begin(&rec);
	for (size_t i = 0; i < NROWS; i++) {
		const void *field = (const char *)o + rows[i].offset;

		if (!(rows[i].flags & KEPT))
			continue;
		switch (rows[i].kind) {
		case HEADING:
		case SIZE:
		case TIME:
			break;
		case FLAG:
		case INT:
			record_int(&rec, rows[i].name, *(const int64_t *)field);
			break;
		case REAL:
			if (!isnan(*(const double *)field))
				record_real(&rec, rows[i].name, *(const double *)field);
			break;
		case TEXT:
		case WORD:
		case MODE:
			if (*(char *const *)field)
				record_name(&rec, rows[i].name, *(char *const *)field);
			break;
		}
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
		/* of a pipe such as /dev/fd/3, that names no file */
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
static int set_kept(struct opts *o, const struct row *row, const json_t *v, const char *where)
{
	int number = row->kind == FLAG || row->kind == INT || row->kind == REAL;
	char num[64], *text = number ? NULL : record_name_of(v);
	int r;

	if (text) {
		r = row_set(o, row, text, where);
		free(text);
		return r;
	}
	/* a mode was a flag once */
	if (json_is_integer(v) && (number || row->kind == MODE))
		snprintf(num, sizeof(num), "%lld", (long long)json_integer_value(v));
	else if (json_is_real(v) && number)
		snprintf(num, sizeof(num), "%.17g", json_real_value(v));
	else
		return say_bad("%s is not a %s", where, number ? "number" : "text");
	return row_set(o, row, num, where);
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
		const struct row *row = row_find(name);
		char where[4200];

		snprintf(where, sizeof(where), "%s: option \"%s\"", file, name);
		if (row && (row->flags & KEPT)) /* not one of a later version */
			r = set_kept(o, row, v, where);
		if (r)
			break;
	}
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
	       "Trains a transformer on text, whose bytes are the tokens, or on token files;\n"
	       "- is the standard input. Files may be compressed (.gz, .xz, .zst).\n");
	for (size_t i = 0; i < NROWS; i++) {
		const struct row *row = &rows[i];
		char head[80];

		if (row->kind == HEADING) {
			printf("\n%s\n", row->name);
			continue;
		}
		snprintf(head, sizeof(head),
			 row->kind == MODE ? "--%s%s[%s]" :
			 row->kind == SIZE ? "--%s[%s%s]" :
					     "--%s%s%s",
			 row->name, row->kind == SIZE ? "=" : row->arg ? " " : "",
			 row->arg ? row->arg : "");
		printf("  %-26s%s%s", head,
		       strlen(head) > 24 ? "\n                            " : "  ", row->help);
		if (row->dflt && row->kind != FLAG)
			printf(" (%s)", row->dflt);
		putchar('\n');
	}
	printf("\nPresets\n");
	for (size_t i = 0; i < NPRESETS; i++)
		printf("  %-26s  %s\n", presets[i].name, presets[i].text);
	printf("\nOther\n  --help                      print this\n"
	       "  --version                   print the version\n"
	       "Exit status: 0 success, 1 failure, 2 bad usage or input,\n"
	       "130 ended by a signal and saved.\n");
}

struct given {
	const struct row *row;
	const char *text;
};

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
	return colon[1] ? size_set(&o->offload_quota, row_find("offload-file"), colon + 1,
				   "--offload-file") :
			  say_bad("--offload-file: no size after the colon");
}

static int set_offload(struct opts *o)
{
	int r = set_offload_file(o);

	o->offload_nbytes = o->pinned_nbytes = 0;
	if (!r && o->offload_pinned)
		r = size_set(&o->pinned_nbytes, row_find("offload-pinned"),
			     o->offload_pinned, "--offload-pinned");
	if (r || is_choice("off|auto|all", o->offload))
		return r;
	if (!*o->offload)
		return say_bad("--offload: \"\": expected off, auto, all or a size");
	return size_set(&o->offload_nbytes, row_find("offload"), o->offload, "--offload");
}

int opts_parse(struct opts *o, int argc, char **argv, int *ret_done)
{
	struct option_row list[NROWS + 1] = { 0 };
	const struct option_table options = { .help = print_help, .rows = list };
	struct given given[256];
	const char *preset = NULL, *resume = NULL;
	int n = 0, ngiven = 0, random_given = 0, c, r;

	*ret_done = 0;
	for (size_t i = 0; i < NROWS; i++) {
		if (rows[i].kind == HEADING)
			continue;
		list[n++] = (struct option_row){
			.name = rows[i].name,
			.key = (int)i + 1000,
			.arg = rows[i].kind == MODE || rows[i].kind == SIZE ? "[" : rows[i].arg,
		};
	}

	r = set_defaults(o);
	if (r)
		return r;
	while ((c = option_next(&options, argc, argv)) >= 0) {
		if (ngiven == (int)(sizeof(given) / sizeof(given[0])))
			return say_bad("too many options");
		given[ngiven].row = &rows[c - 1000];
		/* the word of a mode may be the next argument: getopt treats that as a file */
		if (given[ngiven].row->kind == MODE && !optarg && optind < argc &&
		    is_choice(given[ngiven].row->arg, argv[optind]))
			optarg = argv[optind++];
		given[ngiven].text = optarg			       ? optarg :
				     given[ngiven].row->kind == SIZE ? NULL :
								       "1";
		if (given[ngiven].row->offset == AT(preset))
			preset = optarg;
		if (given[ngiven].row->offset == AT(resume))
			resume = optarg;
		random_given |= given[ngiven].row->offset == AT(random_tokens);
		ngiven++;
	}
	if (c != OPTION_END) {
		*ret_done = c == OPTION_DONE;
		return *ret_done ? STATUS_OK : STATUS_BAD;
	}
	if (preset)
		r = set_preset(o, preset);
	if (!r && resume)
		r = set_resumed(o, resume);
	o->accum_kept = resume != NULL;
	for (int i = 0; i < ngiven && !r; i++) {
		char where[64];

		snprintf(where, sizeof(where), "--%s", given[i].row->name);
		r = row_set(o, given[i].row, given[i].text, where);
		if (given[i].row->offset == AT(accum))
			o->accum_kept = 0;
	}
	/* files or random tokens given here replace what the checkpoint names */
	o->files_given = optind < argc || random_given;
	if (!r && o->files_given)
		r = set_files(o, argc - optind, argv + optind);
	if (!r && o->files_given)
		o->random_tokens = random_given;
	return r ? r : set_offload(o);
}

void opts_free(struct opts *o)
{
	for (size_t i = 0; i < NROWS; i++) {
		if (rows[i].kind == TEXT || rows[i].kind == WORD || rows[i].kind == MODE)
			free(*(char **)((char *)o + rows[i].offset));
	}
	for (int i = 0; i < o->nfiles; i++)
		free(o->file[i]);
	free(o->file);
	memset(o, 0, sizeof(*o));
}
