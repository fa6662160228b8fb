/* loop.h - training: one object with everything a run holds, and its steps. */
#ifndef LOOP_H
#define LOOP_H

#include <stdio.h>

#include <te/optim.h>
#include <te/plan.h>

#include "ckpt.h"
#include "data.h"
#include "graph.h"
#include "model.h"
#include "opts.h"

/* steps whose data is on its way or whose loss has not been read back */
#define NSLOTS 4

struct slot {
	int32_t *tokens; /* pinned: accum * B rows of inputs, then as many of targets */
	float *loss;	 /* pinned: a micro-batch each */
	struct te_event *done;
	int64_t step; /* whose loss is awaited; -1: none */
};

struct trainer {
	const struct opts *o;
	struct te_ctx *ctx;
	struct te_stream *stream; /* the context's own */
	struct te_device_info device;
	struct model model;
	struct te_recipe recipe;
	struct step_graph graph;
	struct te_plan *eval_plan;
	struct te_adamw *opt;
	struct data *data, *val_data;
	struct span train, val;
	int64_t T, B, accum;

	int32_t *eval_tokens; /* on the CPU */
	struct slot slot[NSLOTS];

	struct progress done;
	FILE *log;
	double start_s;	 /* of this process's training */
	double paused_s; /* validating, saving, sampling: not counted in tokens/s */
	int64_t start_step;
	double sum_loss; /* since the last line */
	int64_t nsum;
	double line_s; /* when that was, without pauses */
	int64_t line_step;
	double shown_s;		     /* when the terminal was last written */
	double train_loss, val_loss; /* newest; NaN before there are any */
	double peak_fraction;	     /* NaN where the peak is unknown */
	int interrupted;
};

/* seconds since some fixed moment */
double now_s(void);

/* opens device, data, model, plans and checkpoint as the options say */
int trainer_create(const struct opts *o, struct trainer *t);
void trainer_free(struct trainer *t);
/* from done.step to the end, with validations, saves and log */
int trainer_run(struct trainer *t);
/* tokens/s of this process's training, pauses not counted */
double trainer_tokens_per_s(const struct trainer *t);

#endif
