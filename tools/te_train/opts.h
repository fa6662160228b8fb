/* opts.h - the options of te_train, from opts.def. */
#ifndef OPTS_H
#define OPTS_H

#include <jansson.h>
#include <stdint.h>

#include <te/optim.h>

/* C types of the fields by the kinds of tools/lib/option.h */
#define OPTS_FLAG int64_t
#define OPTS_COUNT int64_t
#define OPTS_INT int64_t
#define OPTS_MODE char *
#define OPTS_REAL double
#define OPTS_SIZE int64_t
#define OPTS_TEXT char *
#define OPTS_TIME double
#define OPTS_WORD char *

/* strings are NULL if not given */
struct opts {
#define HEADING(text)
#define OPTION(name, kind, field, ...) OPTS_##kind field;
#include "opts.def"
#undef HEADING
#undef OPTION
	int64_t offload_nbytes; /* if offload is a size; else 0 */
	int64_t offload_quota, pinned_nbytes;
	char **file; /* data files */
	int nfiles;
	int files_given; /* 1: the data is from the command line, not from the checkpoint */
	/* 1: from the command line, and not for --memory to choose */
	int recompute_given, chunk_given, offload_given, states_given, copies_given;
	struct te_adamw_group *group; /* from groups; their names are in group_text */
	char *group_text;
	int32_t ngroups;
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

/* digests of the values that ranks need to have in common, one for each row of opts.def, 0 for
 * others; at most OPTION_ROWS_MAX. Returns their number */
int opts_digests(const struct opts *o, int32_t *ret_digest);
/* name of the option with the i-th digest */
const char *opts_name(int i);

/* sets an option as the command line does; returns an exit status */
int opts_set(struct opts *o, const char *name, const char *value);

/* options of the optimizer */
struct te_adamw_opts opts_adamw(const struct opts *o);
/* flags of te_seq_bind(); GPUs have remainders in device memory */
uint32_t opts_masters(const struct opts *o, const char *backend);
/* TE_SEQ_BF16_GRADS, or 0 */
uint32_t opts_grads(const struct opts *o);

/* TE_SEQ_HOST_MASTERS and TE_SEQ_HOST_GRADS of --states */
uint32_t opts_hosted(const struct opts *o);

/* TE_SEQ_RECOMPUTE_COLS, or 0 */
uint32_t opts_copies(const struct opts *o);

/* returns a new object of the options that a checkpoint saves, or NULL after a failure */
json_t *opts_to_json(const struct opts *o);

#endif
