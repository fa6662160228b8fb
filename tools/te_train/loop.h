/*
 * loop.h - training: one object with everything a run holds, its steps, and what happens after a
 * failure.
 */
#ifndef LOOP_H
#define LOOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include <te/optim.h>
#include <te/plan.h>

#include "batch.h"
#include "ckpt.h"
#include "data.h"
#include "graph.h"
#include "opts.h"
#include "tools/lib/chat.h"
#include "tools/lib/choices.h"
#include "tools/lib/clock.h"
#include "tools/lib/model.h"

/* steps in flight: their loss has not been read yet */
#define NSLOTS 4

/* words that a rank adds to the losses that are exchanged */
enum { WORD_STOP, WORD_ELAPSED, WORD_SAVED, WORD_RETURN, NWORDS };

#define MOST_VALID 16

/* a set of --valid */
struct valid {
	char name[32];
	struct data *data;
	struct span span;
};

struct slot {
	int32_t *tokens; /* pinned: trainer_rows() of accum * B rows */
	float *loss;	 /* pinned: one for each micro-batch, or the blocks of all ranks */
	struct te_event *done;
	int64_t step;		     /* step whose loss has not been read; -1: none */
	struct te_adamw_stats stats; /* after the step, if it is one for the log */
	double end_s;		     /* when it ended, if it is one for the log, by busy_s() */
	double epochs;		     /* epochs after the step; NaN with --order random */
};

/* a checkpoint that another thread writes, of one rank or of rank 0; or a part, of each rank */
struct saver {
	pthread_t thread;
	int running; /* the end of the save is not known yet; on all ranks */
	int has_thread; /* to be joined */
	atomic_int done;
	int status; /* after done */
	int parts;  /* each rank writes one */
	int told;   /* 1 + status, once rank 0 or with parts each rank has told all ranks; or 0 */
	const char *dir;
	const struct model *model;
	struct ckpt_copy *copy;
	int64_t step;
};

/* objects of the present ranks, created again after others were lost */
struct attempt {
	struct model model;
	struct step_graph graph;
	struct te_plan **eval_plan; /* [model.nchunks] */
	struct te_decoder *decoder; /* with --eval-choices */
	struct te_adamw *opt;
	int64_t accum;
	int32_t *eval_tokens; /* on the CPU */
	struct slot slot[NSLOTS];

	struct progress done;
	double paused_s; /* time of validation, saving, recovery: not counted in tokens/s */
	int64_t start_step;
	double sum_loss; /* since the last log line */
	int64_t nsum;
	double line_s; /* when that line's step ended, by busy_s() */
	int64_t line_step;
	double step_ms;		     /* mean of the fastest log interval; 0 before the first */
	double shown_s;		     /* time of the last progress line */
	double train_loss, val_loss; /* most recent; NaN before the first */
	double valid_loss[MOST_VALID];
	double acc, acc_norm;	     /* accuracies of --eval-choices, likewise */
	double peak_fraction;	     /* NaN if the peak is unknown */
	double grad_norm;	     /* norm in the last step for the log, NaN before it */
	uint64_t nskipped;	     /* steps, up to that one */
	/* several ranks: values of the latest exchange, equal on all */
	double ranks_s;	     /* elapsed time */
	int64_t ranks_stop;  /* the step after which all stop */
	uint32_t copied;     /* bit 0, of --out, and 1, of best: tokenizer_copy() */
	int lost;	     /* the weights in memory are not to be saved */
	int64_t tried_step;  /* not to be saved again, or -1 */
	double retry_s;	     /* when to try a failed save again; infinity: none failed */
	double retry_wait_s; /* how long that is after the failure */
	int from_copy;	     /* it began with a copy of trainer_copy() */
	int returning;	     /* ranks wait to return, as all ranks know */
	int grows;	     /* this attempt has ended for them, after a save */
	struct saver saver;
	int interrupted;     /* by a signal */
	int closed;	     /* stderr was closed by its reader */
};

/* objects of the process */
struct trainer {
	const struct opts *o;
	struct config cfg;
	struct tokenizer *tokenizer; /* NULL: tokens are bytes, or numbers */
	const char *tokenizer_from;  /* the model's folder or file that has it, or NULL */
	struct te_ctx *ctx;
	struct te_stream *stream; /* the context's own */
	struct te_device_info device;
	struct te_recipe recipe, head_recipe;
	struct layer_recipe *layer_recipe; /* [nlayer_recipes]; their patterns are in recipe_text */
	char *recipe_text;
	int32_t nlayer_recipes;
	struct ranks ranks;
	struct data *data, *val_data;
	struct span train, val;
	struct valid valid[MOST_VALID];
	int nvalid;
	struct choices choices; /* questions of --eval-choices */
	int64_t T, B;
	int by_epoch; /* order of training windows; 0: random offsets */
	struct order *order; /* training windows have permuted documents; NULL: they have not */
	struct chunks *chunks; /* windows of --order chunks, which `train` lacks; NULL: another */
	struct chat chat;      /* templates that they have, and text between documents */
	char *split;
	int64_t steps; /* number of the last step */
	int64_t micro_batches; /* micro-batches of a step, of all ranks */
	FILE *log, *numerics; /* files of rank 0; NULL: not asked for */
	int log_failed;	    /* once a line could not be written */
	int lock_fd;	    /* lock of the folder for checkpoints, or -1 */
	size_t out_kept;    /* characters of its path that existed before the run */
	int made_out;	    /* no step has begun, and the folder may be this run's */
	double start_s;	    /* begin of this process's training; 0 before */
	const char *from;   /* the folder of the latest checkpoint, or NULL */
	char *base;	    /* with --lora: the folder or file of the model; else NULL */
	char base_digest[DIGEST_NBYTES]; /* digest of its weights */
	int64_t saved_step; /* the latest that was saved, or -1 */
	struct ckpt_copy *copy; /* with --copy-every, the state after a step; or NULL */
	int64_t nrecovered; /* how often ranks that were left have met */
	/* results of pipeline_bubble() for the last step; 0: there is none */
	double bubble, predicted_bubble;
	/* time of a step and memory, as --memory chose them; 0: not predicted */
	double predicted_ms;
	uint64_t predicted_nbytes;
	struct te_offload *offload; /* measured rates of --memory; NULL: each attempt measures */
	int out_was_free;   /* the folder of --out, when this process began */
	int64_t out_written_ns; /* ckpt_written_ns() at that time */
	int drop_best;	    /* the best weights in it are of another run */
	struct attempt now;
};

/* device, other ranks: what lasts as long as the process */
int trainer_create(const struct opts *o, struct trainer *t);
void trainer_free(struct trainer *t);
/* the model and how its steps are made, without memory and without an offload */
int trainer_plan(struct trainer *t);
/* data, model, plans and the checkpoint, for the ranks that there are */
int trainer_open(struct trainer *t);
/* releases all of it except the data; trainer_open() can be called again, with other ranks */
void trainer_close(struct trainer *t);
/* the tokenizer of --tokenizer or of the model's folder; STATUS_OK, too, if data may need none */
int trainer_open_tokenizer(struct trainer *t);
/* the data of a model with vocab tokens, its validation sets, and the order of documents */
int trainer_open_data(struct trainer *t, int64_t vocab);
const char *trainer_data_name(const struct trainer *t); /* for messages */
/* digests of what is trained and validated on */
void trainer_digests(const struct trainer *t, char ret_text[2 * DIGEST_NBYTES]);
/* from done.step to the end, with validations, saves and log */
int trainer_run(struct trainer *t);
/*
 * After a failure of any of these. 1: the ranks that are left can go on, by trainer_open().
 * 0: the run ends with *status, on all ranks that had not been lost.
 */
int trainer_recover(struct trainer *t, int *status);
/* 1: ranks that were lost can return */
int trainer_looks(const struct trainer *t);
/* After an attempt that ended for ranks that return. 1: training goes on, by trainer_open() */
int trainer_grow(struct trainer *t, int *status);

/* ---- save.c: checkpoints, in trainer_folder() ---- */

/* save now: all ranks wait for rank 0 */
int trainer_save(struct trainer *t);
/* the part of the moments that the rank has with --zero; n 0: all */
struct ckpt_part trainer_part(const struct trainer *t, int64_t zero);
/* rank 0, or with --sharded each rank, copies what it saves, and another thread writes it; a
 * failure is tried again */
void trainer_begin_save(struct trainer *t);
/* has the other thread ended, as far as all ranks know */
int trainer_save_is_over(const struct trainer *t);
/* wait until the other thread has ended, if there is one. together: the other ranks wait, too.
 * After a failure they do not: rank 0 alone knows the status, and parts are not used */
void trainer_wait_save(struct trainer *t, int together);
/* a save during training has ended: after a failure training continues, and it is tried again */
void trainer_judge_save(struct trainer *t, int failed, int64_t step);
/* rank 0 writes all before it returns; opt NULL: the best weights only */
int trainer_save_files(struct trainer *t, const char *dir, struct te_adamw *opt);

/* ---- copy.c: copies in memory ---- */

/* after all queued steps: replaces the copy of this rank, which stays if there is no memory */
void trainer_copy(struct trainer *t);
/*
 * Collective, after a failure or for ranks that return: all ranks get the newest copy of any rank,
 * and its state, unless no rank has one or a later step was saved: now.from_copy tells which.
 */
int trainer_load_copy(struct trainer *t);

/*
 * STATUS_FAILED, with a message: what has a value that is not finite, and the first weight that has
 * one too. then: the end of the message.
 */
int trainer_not_finite(const struct trainer *t, const char *what, double value, const char *then);
/* folder of checkpoints, or NULL */
const char *trainer_folder(const struct trainer *t);
/*
 * 1: the checkpoint in the folder is of this run. Rank 0 may have been lost after it wrote the
 * first one, and before it told.
 */
int trainer_has_saved(const struct trainer *t);
/* 2, or 3 with documents: arrays of nrows rows in one, which are tokens, targets, documents */
int trainer_ninputs(const struct trainer *t);
struct rows trainer_rows(const struct trainer *t, int32_t *tokens, int64_t nrows);
/* write B rows of those that the plans of all chunks have; returns the library's code */
int trainer_feed(const struct trainer *t, struct te_plan *const *plan, const struct rows *rows);
/* number of tokens of a sequence that this rank has */
int64_t trainer_own_tokens(const struct trainer *t);
/* keeps only these of each row of tokens and targets: [nrows, trainer_own_tokens()] */
void trainer_cut(const struct trainer *t, const struct rows *rows);
/* tokens of a step, of all ranks */
int64_t trainer_step_tokens(const struct trainer *t);
/* epochs of the windows drawn so far; NaN with --order random */
double trainer_epochs(const struct trainer *t);
/* the options to be saved: accum is of all ranks; a new reference, or NULL after a failure */
json_t *trainer_options(const struct trainer *t);
/* time since training began; all ranks have the same */
double trainer_elapsed_s(const struct trainer *t);
/* time of this process's training, pauses for validations and saves not counted */
double trainer_busy_s(const struct trainer *t);
/* tokens/s in that time */
double trainer_tokens_per_s(const struct trainer *t);

#endif
