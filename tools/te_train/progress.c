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

#include "progress.h"
#include "say.h"

#define LINE_EVERY_S 0.1 /* on a terminal */

/* a line that does not fit on the disk is left out, all of it, and training continues */
static void log_write(struct trainer *t, json_t *obj)
{
	struct stat st;
	size_t n;
	char *text;

	if (!t->log) {
		json_decref(obj);
		return;
	}
	text = json_dumps(obj, JSON_COMPACT | JSON_REAL_PRECISION(9));
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

/* null for a value that is not finite: JSON has no NaN */
static json_t *real(double x)
{
	return isfinite(x) ? json_real(x) : json_null();
}

static double peak_flops(const struct trainer *t)
{
	if (t->recipe.kind != TE_RECIPE_NONE)
		return t->device.peak_fp8_flops;
	return t->recipe.compute == TE_DTYPE_BF16 ? t->device.peak_bf16_flops :
						    t->device.peak_fp32_flops;
}

static uint64_t memory_nbytes(const struct trainer *t)
{
	struct te_mem_info info = { .size = sizeof(info) };

	return te_ctx_mem_info(t->ctx, &info) < 0 ? 0 : info.measured_nbytes;
}

static double bits(double nats)
{
	return nats / M_LN2;
}

int progress_begin(struct trainer *t)
{
	const struct opts *o = t->o;
	json_t *obj;

	if (o->log)
		t->log = fopen(o->log, "a");
	if (o->log && !t->log)
		return say_bad("%s: %s", o->log, strerror(errno));
	say_note("%s model, %.2f million parameters, %s on %s (%s); %lld tokens to train on, "
		 "%lld held out",
		 family_name(t->model.cfg.family), 1e-6 * (double)t->model.nparams, o->recipe,
		 t->device.name, t->device.backend, (long long)t->train.n, (long long)t->val.n);
	if (!o->out && !o->resume && o->steps > t->done.step)
		say_note("without --out nothing that is trained will be saved");
	if (!o->log)
		return STATUS_OK;
	setvbuf(t->log, NULL, _IONBF, 0);
	obj = json_pack("{s:s,s:I,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:f,s:o,s:o,s:o,s:o}", "te_train",
			TE_VERSION, "time_unix_s", (json_int_t)time(NULL), "recipe", o->recipe,
			"backend", t->device.backend, "device", t->device.name, "from_step",
			(json_int_t)t->done.step, "params", (json_int_t)t->model.nparams,
			"train_tokens", (json_int_t)t->train.n, "val_tokens", (json_int_t)t->val.n,
			"step_tokens", (json_int_t)(t->accum * t->B * t->T), "flops_per_token",
			model_flops_per_token(&t->model.cfg, t->T), "peak_flops_per_s",
			peak_flops(t) > 0 ? json_real(peak_flops(t)) : json_null(), "model",
			config_to_json(&t->model.cfg), "graph", step_graph_to_json(&t->graph),
			"options", opts_to_json(o));
	log_write(t, obj);
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

static void show(struct trainer *t, int64_t step, double loss, double lr, double tokens_per_s)
{
	const struct opts *o = t->o;
	int columns = say_columns();
	struct line l = { .room = sizeof(l.text) };
	double now = now_s(), left;
	char eta[24];

	if (columns > 0 && (size_t)columns < l.room)
		l.room = (size_t)columns;
	left = (double)((o->steps - step) * t->accum * t->B * t->T) / tokens_per_s;
	if (!isnan(o->time_limit))
		left = fmin(left, o->time_limit - (now - t->start_s));
	print_seconds(eta, sizeof(eta), left);
	if (isnan(o->time_limit))
		add_field(&l, "step %lld/%lld", (long long)step, (long long)o->steps);
	else /* the number of steps is not known */
		add_field(&l, "step %lld", (long long)step);
	add_field(&l, "loss %.4f", loss);
	if (data_is_bytes(t->data))
		add_field(&l, "%.3f bits/byte", bits(loss));
	add_field(&l, "%.0f tokens/s", tokens_per_s);
	add_field(&l, "eta %s", eta);
	add_field(&l, "lr %.3g", lr);
	if (!isnan(t->grad_norm))
		add_field(&l, "norm %.3g", t->grad_norm);
	if (!isnan(t->peak_fraction))
		add_field(&l, "%.1f%% of peak", 100 * t->peak_fraction);
	add_field(&l, "%.2f GiB", (double)memory_nbytes(t) / (1 << 30));
	say_line(l.text);
	t->shown_s = now;
}

void progress_step(struct trainer *t, int64_t step, double loss, double lr)
{
	double busy = now_s() - t->start_s - t->paused_s, dt = busy - t->line_s;
	double tokens_per_s = (double)((step - t->line_step) * t->accum * t->B * t->T) / dt;
	int line = step % t->o->log_every == 0;
	json_t *obj;

	t->sum_loss += loss;
	t->nsum++;
	t->train_loss = t->sum_loss / (double)t->nsum;
	t->peak_fraction =
		peak_flops(t) > 0 ?
			tokens_per_s * model_flops_per_token(&t->model.cfg, t->T) / peak_flops(t) :
			NAN;
	if (say_on_terminal() ? now_s() - t->shown_s > LINE_EVERY_S : line)
		show(t, step, t->train_loss, lr, tokens_per_s);
	if (!line)
		return;
	obj = json_pack("{s:I,s:o,s:f,s:o,s:I,s:f,s:o,s:f}", "step", (json_int_t)step,
			"train_loss_nats", real(t->train_loss), "lr", lr, "grad_norm",
			real(t->grad_norm), "skipped_steps", (json_int_t)t->nskipped,
			"tokens_per_s", tokens_per_s, "peak_fraction", real(t->peak_fraction),
			"elapsed_s", now_s() - t->start_s);
	t->sum_loss = 0;
	t->nsum = 0;
	t->line_s = busy;
	t->line_step = step;
	log_write(t, obj);
}

int progress_eval(struct trainer *t)
{
	struct te_adamw_stats stats = { .size = sizeof(stats) };
	int bytes = data_is_bytes(t->data);
	char unit[48] = "";
	int r = te_adamw_stats(t->opt, &stats);

	if (r < 0)
		return say_te(r, "the optimizer");
	if (bytes)
		snprintf(unit, sizeof(unit), "  %.3f bits/byte", bits(t->val_loss));
	say_note("step %lld: validation loss %.4f%s%s", (long long)t->done.step, t->val_loss, unit,
		 t->done.best_step == t->done.step ? "  (best)" : "");
	log_write(t, json_pack("{s:I,s:o,s:o,s:f,s:I,s:f}", "step", (json_int_t)t->done.step,
			       "val_loss_nats", real(t->val_loss), "val_bits_per_byte",
			       bytes ? real(bits(t->val_loss)) : json_null(), "grad_norm",
			       (double)stats.grad_norm, "skipped_steps", (json_int_t)stats.nskipped,
			       "elapsed_s", now_s() - t->start_s));
	return STATUS_OK;
}

void progress_end(struct trainer *t, json_t *samples)
{
	const struct opts *o = t->o;
	const char *dir = o->out ? o->out : o->resume;
	int bytes = data_is_bytes(t->data);
	double rate = trainer_tokens_per_s(t), peak = peak_flops(t);
	double fraction = peak > 0 ? rate * model_flops_per_token(&t->model.cfg, t->T) / peak : NAN;
	json_t *obj;

	say_line_end();
	if (!o->json) {
		if (isfinite(t->done.best_val)) {
			printf("best validation loss %.4f", t->done.best_val);
			if (bytes)
				printf(" (%.3f bits/byte)", bits(t->done.best_val));
			printf(" at step %lld; ", (long long)t->done.best_step);
		}
		printf("%lld steps, %.0f tokens/s", (long long)t->done.step, rate);
		if (dir)
			printf(", checkpoint in %s", dir);
		putchar('\n');
		return;
	}
	obj = json_pack(
		"{s:I,s:o,s:o,s:I,s:o,s:o,s:f,s:o,s:I,s:f,s:I,s:s,s:s,s:s,s:s*,s:s*,s:b,s:o}",
		"steps", (json_int_t)t->done.step, "best_val_loss_nats", real(t->done.best_val),
		"best_val_bits_per_byte", bytes ? real(bits(t->done.best_val)) : json_null(),
		"best_step", (json_int_t)t->done.best_step, "val_loss_nats", real(t->val_loss),
		"train_loss_nats", real(t->train_loss), "tokens_per_s", rate, "peak_fraction",
		real(fraction), "memory_bytes", (json_int_t)memory_nbytes(t), "elapsed_s",
		now_s() - t->start_s, "params", (json_int_t)t->model.nparams, "backend",
		t->device.backend, "device", t->device.name, "recipe", o->recipe, "checkpoint", dir,
		"log", o->log, "interrupted", t->interrupted, "samples",
		samples ? samples : json_array());
	json_dumpf(obj, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
	putchar('\n');
	json_decref(obj);
}
