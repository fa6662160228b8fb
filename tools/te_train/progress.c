/* progress.c - output of a run: the progress line, the JSON log and the summary. */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <te/version.h>

#include "mem.h"
#include "progress.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"

#define LINE_EVERY_S 0.1 /* on a terminal */
#define LINE_AFTER_S 60	 /* elsewhere, if there was no other line */

/* a line that does not fit on the disk is left out, all of it, and training continues */
static void log_write(struct trainer *t, struct record *rec)
{
	struct stat st;
	json_t *obj;
	size_t n;
	char *text;

	if (!t->log) {
		record_drop(rec);
		return;
	}
	obj = record_end(rec, t->o->log);
	text = obj ? record_to_text(obj, JSON_COMPACT | JSON_REAL_PRECISION(9), t->o->log) : NULL;
	n = text ? strlen(text) : 0;
	json_decref(obj);
	if (text)
		text[n++] = '\n'; /* the whole line in one write */
	if (!text || fstat(fileno(t->log), &st) || fwrite(text, 1, n, t->log) != n) {
		if (!t->log_failed)
			say_failed("%s: %s; training continues, and lines are missing", t->o->log,
				   strerror(errno));
		t->log_failed = 1;
		clearerr(t->log);
		if (text && S_ISREG(st.st_mode) && ftruncate(fileno(t->log), st.st_size))
			t->log_failed = 1; /* part of a line stays */
	}
	free(text);
}

/* peak rate of one rank's device */
static double device_flops(const struct trainer *t)
{
	if (t->recipe.kind != TE_RECIPE_NONE)
		return t->device.peak_fp8_flops;
	return t->recipe.compute == TE_DTYPE_BF16 ? t->device.peak_bf16_flops :
						    t->device.peak_fp32_flops;
}

static double peak_flops(const struct trainer *t)
{
	return ranks_n(&t->ranks) * device_flops(t);
}

static uint64_t memory_nbytes(const struct trainer *t)
{
	struct te_mem_info info = TE_MEM_INFO_INIT;

	return te_ctx_mem_info(t->ctx, &info) < 0 ? 0 : info.measured_nbytes;
}

/* most memory so far, as requested, and workspaces */
static uint64_t peak_nbytes(const struct trainer *t)
{
	struct te_mem_info info = TE_MEM_INFO_INIT;

	return te_ctx_mem_info(t->ctx, &info) < 0 ? 0 : info.peak_nbytes + info.workspace_nbytes;
}

static double bits(double nats)
{
	return nats / M_LN2;
}

/* NaN if the peak is unknown */
static double or_nan(double rate)
{
	return rate > 0 ? rate : NAN;
}

/* record the ranks that this run has lost so far, by their initial numbers */
static void record_lost(const struct trainer *t, struct record *rec)
{
	static const struct {
		enum rank_state state;
		const char *key;
	} list[] = { { RANK_LOST, "lost_ranks" }, { RANK_IDLE, "left_over_ranks" } };

	for (int k = 0; k < 2 && t->nrecovered; k++) {
		record_open_list(rec, list[k].key);
		for (int32_t i = 0; i < t->ranks.nfirst; i++)
			if (t->ranks.state[i] == list[k].state)
				record_int(rec, NULL, i);
		record_close(rec);
	}
}

/* the first line, which describes the run, or the rest of it with the ranks that are left */
static void log_run(struct trainer *t)
{
	struct record rec;

	record_begin(&rec);
	record_text(&rec, "te_train", TE_VERSION);
	record_int(&rec, "time_unix_s", (int64_t)time(NULL));
	record_text(&rec, "recipe", te_recipe_name(&t->recipe));
	record_text(&rec, "backend", t->device.backend);
	record_shown(&rec, "device", t->device.name, strlen(t->device.name));
	record_int(&rec, "from_step", t->now.done.step);
	record_int(&rec, "params", t->now.model.nparams);
	record_int(&rec, "trained_params", t->now.model.ntrained);
	if (t->chunks)
		record_int(&rec, "train_bytes", chunks_nbytes(t->chunks));
	else
		record_int(&rec, "train_tokens", t->train.n);
	record_int(&rec, "val_tokens", t->val.n);
	record_int(&rec, "step_tokens", trainer_step_tokens(t));
	record_int(&rec, "ranks", ranks_n(&t->ranks));
	record_int(&rec, "shards", t->now.model.nshards);
	record_int(&rec, "context", t->now.model.ncontext);
	record_lost(t, &rec);
	record_real(&rec, "flops_per_token", model_flops_per_token(&t->now.model.cfg, t->T));
	record_real(&rec, "peak_flops_per_s", or_nan(peak_flops(t)));
	record_put(&rec, "model", config_to_json(&t->now.model.cfg));
	record_put(&rec, "graph", step_graph_to_json(&t->now.graph));
	record_put(&rec, "options", trainer_options(t));
	log_write(t, &rec);
}

/* 0: offloaded values pass through a file */
static int file_report(const struct trainer *t, struct te_offload_report *ret)
{
	return t->now.graph.offload && t->o->offload_file ?
		       te_offload_report(t->now.graph.offload, ret) :
		       -ENOENT;
}

/* so far: what passed through the file, and the time in which it was busy */
static void record_file(const struct trainer *t, struct record *rec)
{
	struct te_offload_report rep = TE_OFFLOAD_REPORT_INIT;

	if (file_report(t, &rep))
		return;
	record_int(rec, "offload_written_bytes", (int64_t)rep.written_nbytes);
	record_int(rec, "offload_read_bytes", (int64_t)rep.read_nbytes);
	record_real(rec, "offload_write_ms", rep.write_ms);
	record_real(rec, "offload_read_ms", rep.read_ms);
}

static void note_file(const struct trainer *t)
{
	struct te_offload_report rep = TE_OFFLOAD_REPORT_INIT;

	if (!file_report(t, &rep))
		say_note("%.2f MiB were written to the file of --offload in %.0f ms, %.2f MiB read "
			 "in %.0f ms", (double)rep.written_nbytes / (1 << 20), rep.write_ms,
			 (double)rep.read_nbytes / (1 << 20), rep.read_ms);
}

/* the waits of the latest step; while none runs */
static void record_waits(const struct trainer *t, struct record *rec)
{
	struct te_offload_report rep = TE_OFFLOAD_REPORT_INIT;

	if (!t->now.graph.offload || !t->o->log ||
	    te_offload_report(t->now.graph.offload, &rep) < 0)
		return;
	record_real(rec, "offload_waited_ms", rep.waited_ms);
	record_real(rec, "offload_predicted_wait_ms", rep.stall_ms);
}

static void note_waits(const struct trainer *t)
{
	struct te_offload_report rep = TE_OFFLOAD_REPORT_INIT;

	if (t->now.graph.offload && t->o->log && !te_offload_report(t->now.graph.offload, &rep))
		say_note("the last step waited %.3f ms for values to come back, %.3f ms by "
			 "estimate", rep.waited_ms, rep.stall_ms);
}

static void note_offload(const struct trainer *t)
{
	struct te_offload_report rep = TE_OFFLOAD_REPORT_INIT;

	if (!t->now.graph.offload || te_offload_report(t->now.graph.offload, &rep) < 0)
		return;
	say_note("%.2f MiB of activations wait for backward in host memory, %.0f%% of the copies "
		 "are hidden by estimate",
		 (double)rep.moved_nbytes / (1 << 20), 100 * rep.hidden);
}

static void note_recompute(const struct trainer *t)
{
	struct recomputed r;

	if (!t->now.graph.nrecompute)
		return;
	step_graph_recomputed(&t->now.graph, &r);
	say_note("%.2f MiB of activations are computed again in backward",
		 (double)r.nbytes / (1 << 20));
	if (r.nstay)
		say_note("%d values that --recompute names are kept, such as %s", r.nstay, r.why);
}

static void note_run(const struct trainer *t)
{
	const struct opts *o = t->o;
	char text[48];

	if (t->now.model.ntrained < t->now.model.nparams)
		say_note("%.2f million parameters are trained, the others are frozen",
			 1e-6 * (double)t->now.model.ntrained);
	if (t->chunks)
		snprintf(text, sizeof(text), "%lld bytes of text",
			 (long long)chunks_nbytes(t->chunks));
	else
		snprintf(text, sizeof(text), "%lld tokens", (long long)t->train.n);
	say_note("%s model, %.2f million parameters, %s on %s (%s); %s to train on, %lld %s",
		 family_name(t->now.model.cfg.family), 1e-6 * (double)t->now.model.nparams,
		 te_recipe_name(&t->recipe), t->device.name, t->device.backend, text,
		 (long long)t->val.n, t->chunks ? "tokens held out" : "held out");
	note_offload(t);
	note_recompute(t);
	if (t->from && t->now.done.step >= t->steps)
		say_note("nothing is left to train: step %lld of %lld is done",
			 (long long)t->now.done.step, (long long)t->steps);
	else if (t->from && o->stop_after >= 0 && t->now.done.step >= o->stop_after)
		say_note("nothing is left to train: step %lld is done, --stop-after is %lld",
			 (long long)t->now.done.step, (long long)o->stop_after);
	if (!o->out && !o->resume && t->steps > t->now.done.step)
		say_note("without --out nothing that is trained will be saved");
}

int progress_begin(struct trainer *t)
{
	const struct opts *o = t->o;

	if (t->ranks.rank)
		return STATUS_OK;
	if (o->log && !t->log) {
		t->log = fopen(o->log, "a");
		if (!t->log)
			return say_bad("%s: %s", o->log, strerror(errno));
		setvbuf(t->log, NULL, _IONBF, 0);
	}
	if (o->numerics && !t->numerics) {
		t->numerics = fopen(o->numerics, "a");
		if (!t->numerics)
			return say_bad("%s: %s", o->numerics, strerror(errno));
	}
	if (t->ranks.comm)
		say_note("%d ranks, each with %lld micro-batch%s a step", (int)ranks_n(&t->ranks),
			 (long long)t->now.accum, t->now.accum == 1 ? "" : "es");
	if (!t->nrecovered)
		note_run(t);
	else
		say_note("training goes on after step %lld, %s%s", (long long)t->now.done.step,
			 t->now.from_copy ? "from the copy in memory" :
			 t->from	  ? "from the checkpoint in " :
					    "with initial weights",
			 t->from && !t->now.from_copy ? t->from : "");
	if (t->log)
		log_run(t);
	return STATUS_OK;
}

static void print_seconds(char *dst, size_t n, double s)
{
	if (!(s >= 0 && s < 1e7))
		snprintf(dst, n, "?");
	else if (s < 60)
		snprintf(dst, n, "%.0fs", s);
	else if (s < 3600)
		snprintf(dst, n, "%dm%02ds", (int)s / 60, (int)s % 60);
	else
		snprintf(dst, n, "%dh%02dm", (int)s / 3600, (int)s / 60 % 60);
}

/* a line of fields, the more important ones first */
struct line {
	char text[256];
	size_t n, room; /* room: with the end; of a terminal, the last column stays free */
};

/* the field, or nothing and no more fields if it does not fit */
static void add_field(struct line *l, const char *fmt, ...) TE_PRINTF(2, 3);
static void add_field(struct line *l, const char *fmt, ...)
{
	char field[64];
	va_list ap;
	size_t n;

	va_start(ap, fmt);
	vsnprintf(field, sizeof(field), fmt, ap);
	va_end(ap);
	n = strlen(field) + (l->n ? 2 : 0);
	if (l->n + n < l->room)
		l->n += (size_t)snprintf(l->text + l->n, l->room - l->n, "%s%s", l->n ? "  " : "",
					 field);
	else
		l->room = 0;
}

static struct line new_line(void)
{
	const int columns = say_columns();
	struct line l = { .room = sizeof(l.text) };

	if (columns > 0 && (size_t)columns < l.room)
		l.room = (size_t)columns;
	return l;
}

static void show(struct trainer *t, int64_t step, double loss, double lr, double tokens_per_s)
{
	const struct opts *o = t->o;
	struct line l = new_line();
	double now = now_s(), left;
	char eta[24];

	left = (double)((t->steps - step) * trainer_step_tokens(t)) / tokens_per_s;
	if (!isnan(o->time_limit))
		left = fmax(fmin(left, o->time_limit - (now - t->start_s)), 0);
	print_seconds(eta, sizeof(eta), left);
	if (isnan(o->time_limit))
		add_field(&l, "step %lld/%lld", (long long)step, (long long)t->steps);
	else /* the number of steps is not known */
		add_field(&l, "step %lld", (long long)step);
	add_field(&l, "loss %.4f", loss);
	if (data_is_bytes(t->data))
		add_field(&l, "%.3f bits/byte", bits(loss));
	add_field(&l, "%.0f tokens/s", tokens_per_s);
	add_field(&l, "eta %s", eta);
	add_field(&l, "lr %.3g", lr);
	if (!isnan(t->now.grad_norm))
		add_field(&l, "norm %.3g", t->now.grad_norm);
	if (!isnan(t->now.peak_fraction))
		add_field(&l, "%.1f%% of peak", 100 * t->now.peak_fraction);
	add_field(&l, "%.2f GiB", (double)memory_nbytes(t) / (1 << 30));
	say_line(l.text);
	t->now.shown_s = now;
}

static int is_line_due(const struct trainer *t)
{
	return now_s() - t->now.shown_s > (say_on_terminal() ? LINE_EVERY_S : LINE_AFTER_S);
}

void progress_eval_batch(struct trainer *t, int64_t k, int64_t n)
{
	struct line l = new_line();

	if (!is_line_due(t))
		return;
	add_field(&l, "step %lld", (long long)t->now.done.step);
	add_field(&l, "validation, batch %lld of %lld", (long long)k + 1, (long long)n);
	say_line(l.text);
	t->now.shown_s = now_s();
}

void progress_step(struct trainer *t, int64_t step, double end_s, double loss, double lr)
{
	double tokens_per_s = (double)((step - t->now.line_step) * trainer_step_tokens(t)) /
			      (end_s - t->now.line_s);
	const double ms = 1e3 * (double)trainer_step_tokens(t) / tokens_per_s;
	const int first = say_on_terminal() && step == t->now.start_step + 1;
	int line = step % t->o->log_every == 0;
	struct record rec;

	t->now.sum_loss += loss;
	t->now.nsum++;
	t->now.train_loss = t->now.sum_loss / (double)t->now.nsum;
	t->now.peak_fraction =
		peak_flops(t) > 0 ? tokens_per_s * model_flops_per_token(&t->now.model.cfg, t->T) /
					    peak_flops(t) :
				    NAN;
	if (first || is_line_due(t) || (line && !say_on_terminal()))
		show(t, step, t->now.train_loss, lr, tokens_per_s);
	if (!line)
		return;
	t->now.step_ms = t->now.step_ms > 0 && t->now.step_ms < ms ? t->now.step_ms : ms;
	record_begin(&rec);
	record_int(&rec, "step", step);
	record_real(&rec, "train_loss_nats", t->now.train_loss);
	record_real(&rec, "lr", lr);
	record_real(&rec, "grad_norm", t->now.grad_norm);
	record_int(&rec, "skipped_steps", (int64_t)t->now.nskipped);
	record_real(&rec, "tokens_per_s", tokens_per_s);
	record_real(&rec, "step_ms", ms);
	record_real(&rec, "peak_fraction", t->now.peak_fraction);
	record_real(&rec, "epochs", t->now.slot[(step - 1) % NSLOTS].epochs);
	record_file(t, &rec);
	record_real(&rec, "elapsed_s", now_s() - t->start_s);
	t->now.sum_loss = 0;
	t->now.nsum = 0;
	t->now.line_s = end_s;
	t->now.line_step = step;
	log_write(t, &rec);
}

/* bits per byte of text, NaN for other tokens */
static double text_bits(const struct trainer *t, double nats)
{
	return data_is_bytes(t->data) ? bits(nats) : NAN;
}

static void record_valid(const struct trainer *t, struct record *rec)
{
	if (!t->nvalid)
		return;
	record_open(rec, "valid_loss_nats");
	for (int i = 0; i < t->nvalid; i++)
		record_real(rec, t->valid[i].name, t->now.valid_loss[i]);
	record_close(rec);
}

static void record_choices(const struct trainer *t, struct record *rec)
{
	if (!t->now.decoder)
		return;
	record_open(rec, "choices");
	record_real(rec, "acc", t->now.acc);
	record_real(rec, "acc_norm", t->now.acc_norm);
	record_int(rec, "questions", t->choices.nquestions);
	record_close(rec);
}

int progress_eval(struct trainer *t)
{
	struct te_adamw_stats stats = TE_ADAMW_STATS_INIT;
	int bytes = data_is_bytes(t->data);
	struct record rec;
	char unit[48] = "";
	int r = te_adamw_stats(t->now.opt, &stats);

	if (r < 0)
		return say_te(r, "the optimizer");
	if (bytes)
		snprintf(unit, sizeof(unit), "  %.3f bits/byte", bits(t->now.val_loss));
	else
		snprintf(unit, sizeof(unit), "  perplexity %.4g", exp(t->now.val_loss));
	say_note("step %lld: validation loss %.4f%s%s", (long long)t->now.done.step,
		 t->now.val_loss, unit,
		 t->now.done.best_step == t->now.done.step ? "  (best)" : "");
	for (int i = 0; i < t->nvalid; i++)
		say_note("step %lld: validation loss %.4f of %s", (long long)t->now.done.step,
			 t->now.valid_loss[i], t->valid[i].name);
	if (t->now.decoder)
		say_note("step %lld: acc %.4f, acc_norm %.4f of %lld questions",
			 (long long)t->now.done.step, t->now.acc, t->now.acc_norm,
			 (long long)t->choices.nquestions);
	record_begin(&rec);
	record_int(&rec, "step", t->now.done.step);
	record_real(&rec, "val_loss_nats", t->now.val_loss);
	record_real(&rec, "val_bits_per_byte", text_bits(t, t->now.val_loss));
	record_real(&rec, "val_perplexity", bytes ? NAN : exp(t->now.val_loss));
	record_valid(t, &rec);
	record_choices(t, &rec);
	record_real(&rec, "grad_norm", (double)stats.grad_norm);
	record_int(&rec, "skipped_steps", (int64_t)stats.nskipped);
	record_waits(t, &rec);
	record_real(&rec, "elapsed_s", now_s() - t->start_s);
	log_write(t, &rec);
	return STATUS_OK;
}

/* mean of the fastest log interval; without one, of all steps, with the capture of the first */
static double step_ms(const struct trainer *t, double tokens_per_s)
{
	return t->now.step_ms > 0 ? t->now.step_ms :
				    1e3 * (double)trainer_step_tokens(t) / tokens_per_s;
}

static void print_summary(const struct trainer *t, double rate, const char *dir)
{
	char used[32], predicted[32];

	if (isfinite(t->now.done.best_val)) {
		printf("best validation loss %.4f", t->now.done.best_val);
		if (data_is_bytes(t->data))
			printf(" (%.3f bits/byte)", bits(t->now.done.best_val));
		printf(" at step %lld; ", (long long)t->now.done.best_step);
	}
	printf("%lld steps, %.0f tokens/s", (long long)t->now.done.step, rate);
	if (t->predicted_ms > 0)
		printf(", a step %.2f ms (predicted %.2f), %s (predicted %s)", step_ms(t, rate),
		       t->predicted_ms, mem_amount(peak_nbytes(t), used),
		       mem_amount(t->predicted_nbytes, predicted));
	if (dir)
		printf(", checkpoint in %s", dir);
	putchar('\n');
}

int progress_end(struct trainer *t, struct record *samples)
{
	const struct opts *o = t->o;
	const char *dir = o->out ? o->out : o->resume;
	double rate = trainer_tokens_per_s(t);
	double flops = rate * model_flops_per_token(&t->now.model.cfg, t->T);
	struct record rec;
	json_t *list;

	say_line_end();
	if (t->ranks.rank) {
		record_drop(samples);
		return STATUS_OK;
	}
	note_file(t);
	note_waits(t);
	if (t->bubble > 0)
		say_note("in the last step ranks waited %.1f%% of the time, %.1f%% by prediction "
			 "from the times of its passes", 100 * t->bubble,
			 100 * t->predicted_bubble);
	if (!o->json) {
		record_drop(samples);
		print_summary(t, rate, dir);
		return STATUS_OK;
	}
	list = record_end(samples, "samples");
	record_begin(&rec);
	record_int(&rec, "steps", t->now.done.step);
	record_lost(t, &rec);
	record_real(&rec, "best_val_loss_nats", t->now.done.best_val);
	record_real(&rec, "best_val_bits_per_byte", text_bits(t, t->now.done.best_val));
	record_int(&rec, "best_step", t->now.done.best_step);
	record_real(&rec, "val_loss_nats", t->now.val_loss);
	record_valid(t, &rec);
	record_choices(t, &rec);
	record_real(&rec, "train_loss_nats", t->now.train_loss);
	record_real(&rec, "tokens_per_s", rate);
	if (t->predicted_ms > 0) {
		record_real(&rec, "predicted_step_ms", t->predicted_ms);
		record_real(&rec, "step_ms", step_ms(t, rate));
		record_int(&rec, "predicted_bytes", (int64_t)t->predicted_nbytes);
		record_int(&rec, "peak_bytes", (int64_t)peak_nbytes(t));
	}
	if (t->bubble > 0) {
		record_real(&rec, "bubble", t->bubble);
		record_real(&rec, "predicted_bubble", t->predicted_bubble);
	}
	record_real(&rec, "peak_fraction", flops / or_nan(peak_flops(t)));
	record_int(&rec, "memory_bytes", (int64_t)memory_nbytes(t));
	record_waits(t, &rec);
	record_real(&rec, "elapsed_s", now_s() - t->start_s);
	record_int(&rec, "params", t->now.model.nparams);
	record_int(&rec, "trained_params", t->now.model.ntrained);
	record_text(&rec, "backend", t->device.backend);
	record_shown(&rec, "device", t->device.name, strlen(t->device.name));
	record_text(&rec, "recipe", te_recipe_name(&t->recipe));
	if (dir)
		record_shown(&rec, "checkpoint", dir, strlen(dir));
	if (o->log)
		record_shown(&rec, "log", o->log, strlen(o->log));
	record_flag(&rec, "interrupted", t->now.interrupted);
	record_put(&rec, "samples", json_incref(json_object_get(list, "samples")));
	json_decref(list);
	return record_print(&rec, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
}
