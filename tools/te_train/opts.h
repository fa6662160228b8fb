/* opts.h - the options of te_train, from one table. */
#ifndef OPTS_H
#define OPTS_H

#include <jansson.h>
#include <stdint.h>

/* One field for each row of the table in opts.c; strings are NULL if not given. */
struct opts {
	char *preset, *model, *init, *freeze;
	char *val, *valid, *dump_val, *data_type, *tokenizer;
	char *order, *check_data;
	char *chat_template, *chat_begin, *chat_system, *chat_user, *chat_assistant, *doc_end;
	char *backend, *recipe;
	char *out, *resume, *log, *save_dtype;
	char *prompt, *prompt_tokens, *print_plan, *profile;
	char *graph, *pipeline_schedule;
	char *offload; /* "off", "auto", "all", or a size */
	char *offload_file, *offload_verify; /* the folder */
	char *offload_pinned;
	char *recompute; /* "off", or words and patterns */
	int64_t device, tensor, sequence_parallel, recover, random_tokens;
	int64_t steps, stop_after, batch, seq_len, accum, seed, chunks;
	int64_t warmup;
	char *schedule;
	double tokens, decay; /* tokens is NaN: steps has the length */
	double lr, min_lr, weight_decay, beta1, beta2, clip, dropout;
	double val_fraction, time_limit;
	int64_t eval_every, eval_batches, log_every, save_every;
	int64_t sample, top_k;
	double temperature, top_p;
	int64_t offload_nbytes; /* if offload is a size; else 0 */
	int64_t offload_quota, pinned_nbytes;
	int64_t estimate; /* -1: not given; 0: for the device; else for that many bytes */
	int64_t overwrite, save_best, sample_first, sample_only, json;
	char **file; /* data files */
	int nfiles;
	int files_given; /* 1: the data is from the command line, not from the checkpoint */
	int accum_kept;	 /* 1: accum is from the checkpoint, and counts all ranks */
};

struct preset {
	const char *name;
	const char *text;     /* for --help */
	const char *config;   /* contents of config.json */
	const char *defaults; /* "option=value ..."; the user's options take precedence */
};
/* NULL if no preset has that name */
const struct preset *preset_find(const char *name);

/*
 * Fill o from its defaults, then the preset, then the checkpoint that --resume
 * names, then the command line. --help and --version print and set *ret_done.
 */
int opts_parse(struct opts *o, int argc, char **argv, int *ret_done);
void opts_free(struct opts *o);

/* returns a new object of the options that a checkpoint saves, or NULL after a failure */
json_t *opts_to_json(const struct opts *o);

#endif
