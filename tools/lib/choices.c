/*
 * choices.c - multiple-choice questions: an ending's log probability after the context, and how
 * often the most probable ending is the right one.
 *
 * Sources: file format, https://github.com/rowanz/hellaswag; the tokens of an ending, and the
 * division by its length, lm-evaluation-harness, lm_eval/api/{model,task}.py.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <te/errno.h>

#include "choices.h"
#include "clock.h"
#include "say.h"
#include "tokens.h"

#define MOST_ENDINGS 64 /* most endings of a question */
#define NBYTES 256	/* a vocabulary of at most this size is bytes */

static int no_room(void)
{
	return say_failed("out of memory");
}

/* ---- questions ---- */

/* the field by either name; *ret_name is the name for messages */
static const json_t *field(const json_t *obj, const char *name, const char *other,
			   const char **ret_name)
{
	const json_t *v = json_object_get(obj, name);

	*ret_name = v || !json_object_get(obj, other) ? name : other;
	return v ? v : json_object_get(obj, other);
}

/* joins "ctx_a" and "ctx_b"; *ret: for free(3) */
static int join_context(const json_t *obj, const char *where, char **ret)
{
	const char *a = json_string_value(json_object_get(obj, "ctx_a"));
	const json_t *b = json_object_get(obj, "ctx_b");
	const char *text = b ? json_string_value(b) : "";

	if (!a)
		return say_bad("%s: \"ctx\": expected a text here or in \"ctx_a\"", where);
	if (!text)
		return say_bad("%s: \"ctx_b\": is not a text", where);
	return asprintf(ret, "%s%s%s", a, *a && *text ? " " : "", text) < 0 ? no_room() :
									      STATUS_OK;
}

static int read_context(const json_t *obj, const char *where, char **ret)
{
	const char *name;
	const json_t *v = field(obj, "ctx", "query", &name);

	if (!v)
		return join_context(obj, where, ret);
	if (!json_is_string(v))
		return say_bad("%s: \"%s\": is not a text", where, name);
	*ret = strdup(json_string_value(v));
	return *ret ? STATUS_OK : no_room();
}

/* a number, or a text with one */
static int read_label(const json_t *obj, const char *where, int64_t nendings, int64_t *ret)
{
	const char *name, *text;
	const json_t *v = field(obj, "label", "gold", &name);
	char *end = NULL;
	int64_t label = -1;

	text = json_string_value(v);
	if (json_is_integer(v))
		label = json_integer_value(v);
	else if (text && *text >= '0' && *text <= '9')
		label = strtoll(text, &end, 10);
	if (label < 0 || label >= nendings || (end && *end))
		return say_bad("%s: \"%s\": expected the number of an ending, 0 to %lld", where,
			       name, (long long)nendings - 1);
	*ret = label;
	return STATUS_OK;
}

static int encode(const struct choices *c, const char *where, const char *text, int32_t **ret,
		  size_t *ret_n)
{
	const size_t n = strlen(text);

	if (c->tokenizer)
		return tokenizer_encode(c->tokenizer, where, text, n, 1, ret, ret_n);
	*ret = malloc((n + 1) * sizeof(**ret));
	if (!*ret)
		return no_room();
	for (size_t i = 0; i < n; i++) {
		(*ret)[i] = (unsigned char)text[i];
		if ((*ret)[i] >= c->vocab)
			return say_bad("%s: byte %d is beyond the model's vocabulary of %lld",
				       where, (int)(*ret)[i], (long long)c->vocab);
	}
	*ret_n = n;
	return STATUS_OK;
}

/*
 * Add an ending. Its tokens follow the first nbefore tokens of the whole text;
 * spaces at the end of the context belong to the ending.
 */
static int add_ending(struct choices *c, const char *where, const char *context, size_t ncontext,
		      const int32_t *before, size_t nbefore, const char *text)
{
	struct ending *e = realloc(c->ending, (size_t)(c->nendings + 1) * sizeof(*e));
	char *whole = NULL;
	size_t n = 0, drop = 0;
	int r;

	if (!e)
		return no_room();
	c->ending = e;
	e += c->nendings;
	*e = (struct ending){ .nbytes = strlen(text), .seq = -1 };
	c->nendings++;
	if (asprintf(&whole, "%s%s%s", context, context[ncontext] ? "" : " ", text) < 0)
		return no_room();
	r = encode(c, where, whole, &e->token, &n);
	free(whole);
	if (r)
		return r;
	if (n <= nbefore)
		return say_bad("%s: \"endings\": one adds no tokens to the context", where);
	memcpy(e->token, before, nbefore * sizeof(*before));
	/* the last token predicts none */
	if (n - 1 > (size_t)c->context) {
		drop = n - 1 - (size_t)c->context;
		if (drop >= nbefore)
			return say_bad("%s: \"endings\": one has %zu tokens, the context is %lld",
				       where, n - nbefore, (long long)c->context);
		memmove(e->token, e->token + drop, (n - drop) * sizeof(*e->token));
		c->ntruncated++;
	}
	e->ncontext = (int64_t)(nbefore - drop);
	e->n = (int64_t)(n - drop);
	c->longest = e->n - 1 > c->longest ? e->n - 1 : c->longest;
	return STATUS_OK;
}

static int add_endings(struct choices *c, const char *where, const char *context,
		       const json_t *list, const char *name)
{
	size_t ncontext = strlen(context), nbefore = 0;
	int32_t *before = NULL;
	char *begin;
	int r;

	while (ncontext && context[ncontext - 1] == ' ')
		ncontext--;
	begin = strndup(context, ncontext);
	r = begin ? encode(c, where, begin, &before, &nbefore) : no_room();
	free(begin);
	if (!r && !nbefore)
		r = say_bad("%s: \"ctx\": has no tokens", where);
	for (size_t i = 0; i < json_array_size(list) && !r; i++) {
		const char *text = json_string_value(json_array_get(list, i));

		if (text)
			text += strspn(text, " ");
		r = !text || !*text ?
			    say_bad("%s: \"%s\": ending %zu is not a text", where, name, i) :
			    add_ending(c, where, context, ncontext, before, nbefore, text);
	}
	free(before);
	return r;
}

static int add_question(void *arg, const json_t *obj, const char *where)
{
	struct choices *c = arg;
	struct question *q = realloc(c->question, (size_t)(c->nquestions + 1) * sizeof(*q));
	const char *name;
	const json_t *list = field(obj, "endings", "choices", &name);
	char *context = NULL;
	int r;

	if (!q)
		return no_room();
	c->question = q;
	q += c->nquestions;
	*q = (struct question){ .first = c->nendings, .nendings = (int64_t)json_array_size(list) };
	if (q->nendings < 2 || q->nendings > MOST_ENDINGS)
		return say_bad("%s: \"%s\": expected a list of 2 to %d texts", where, name,
			       MOST_ENDINGS);
	r = read_label(obj, where, q->nendings, &q->label);
	if (!r)
		r = read_context(obj, where, &context);
	if (!r)
		r = add_endings(c, where, context, list, name);
	free(context);
	c->nquestions += !r;
	return r;
}

int choices_read(struct choices *c, const char *path)
{
	int r;

	if (!c->tokenizer && c->vocab > NBYTES)
		return say_bad("--eval-choices: the model's vocabulary of %lld is not bytes: give "
			       "a --tokenizer", (long long)c->vocab);
	r = record_lines(path, add_question, c);
	return !r && !c->nquestions ? say_bad("%s: has no questions", path) : r;
}

void choices_free(struct choices *c)
{
	for (int64_t i = 0; i < c->nendings; i++)
		free(c->ending[i].token);
	free(c->ending);
	free(c->question);
	*c = (struct choices){ .question = NULL };
}

/* ---- probabilities ---- */

double choices_logprob(const float *logit, int64_t n, int32_t token)
{
	double most = -INFINITY, sum = 0;

	for (int64_t i = 0; i < n; i++) {
		if (!isfinite(logit[i]))
			return NAN;
		most = fmax(most, (double)logit[i]);
	}
	for (int64_t i = 0; i < n; i++)
		sum += exp((double)logit[i] - most);
	return (double)logit[token] - most - log(sum);
}

static int begin(struct te_decoder *d, struct ending *e)
{
	int te = te_decoder_open(d, NULL, &e->seq);

	e->logprob = 0;
	if (te >= 0)
		te = te_decoder_push(d, e->seq, e->token, e->ncontext);
	return te < 0 ? say_te(te, "--eval-choices") : STATUS_OK;
}

/* takes the next token of an ending whose logits are there; closes its sequence after the last */
static int advance(struct te_decoder *d, struct ending *e)
{
	int64_t n, at = te_decoder_length(d, e->seq);
	const float *logit = te_decoder_logits(d, e->seq, &n);
	int te = 0;

	if (!logit)
		return STATUS_OK;
	e->logprob += choices_logprob(logit, n, e->token[at]);
	if (!isfinite(e->logprob))
		return say_failed("--eval-choices: a logit is not finite");
	if (at < e->n - 1)
		te = te_decoder_push(d, e->seq, e->token + at, 1);
	if (te < 0)
		return say_te(te, "--eval-choices");
	if (at == e->n - 1) {
		te_decoder_close(d, e->seq);
		e->seq = -1;
	}
	return STATUS_OK;
}

static void show(const struct choices *c, int64_t ended)
{
	char line[80];

	snprintf(line, sizeof(line), "endings: %lld of %lld", (long long)ended,
		 (long long)c->nendings);
	say_line(line);
}

int choices_score(struct choices *c, struct te_decoder *d, int64_t most, int64_t at, int64_t n)
{
	const double from = now_s();
	const struct question *last = &c->question[at + n - 1];
	const int64_t end = last->first + last->nendings;
	int64_t first = c->question[at].first, next = first, live = 0;
	int r = STATUS_OK;

	while (!r && (next < end || live)) {
		int64_t left;

		for (; next < end && live < most && !r; next++, live++)
			r = begin(d, &c->ending[next]);
		left = r ? 0 : te_decoder_step(d);
		if (left < 0)
			r = say_te((int)left, "--eval-choices");
		for (int64_t i = first; i < next && !r; i++) {
			struct ending *e = &c->ending[i];

			if (e->seq < 0)
				continue;
			r = advance(d, e);
			live -= e->seq < 0;
			c->ncomputed += e->seq < 0 ? e->n - 1 : 0;
		}
		while (first < next && c->ending[first].seq < 0)
			first++;
		if (!r && say_on_terminal())
			show(c, next - live);
	}
	say_line_clear();
	c->s += now_s() - from;
	return r;
}

/* ---- accuracies ---- */

/* the first of equal endings is best */
int64_t choices_nright(const struct choices *c, int normalized, int64_t first, int64_t n)
{
	int64_t nright = 0;

	for (int64_t i = first; i < first + n; i++) {
		const struct question *q = &c->question[i];
		double best = -INFINITY;
		int64_t choice = 0;

		for (int64_t k = 0; k < q->nendings; k++) {
			const struct ending *e = &c->ending[q->first + k];
			const double x = normalized ? e->logprob / (double)e->nbytes : e->logprob;

			choice = x > best ? k : choice;
			best = fmax(x, best);
		}
		nright += choice == q->label;
	}
	return nright;
}

/* fraction of the questions whose best ending is the right one */
static double accuracy(const struct choices *c, int normalized)
{
	return (double)choices_nright(c, normalized, 0, c->nquestions) / (double)c->nquestions;
}

/* standard error of an accuracy */
static double error(const struct choices *c, double p)
{
	return c->nquestions > 1 ? sqrt(p * (1 - p) / (double)(c->nquestions - 1)) : NAN;
}

void choices_record(const struct choices *c, struct record *rec)
{
	const double p = accuracy(c, 0), q = accuracy(c, 1);

	record_int(rec, "questions", c->nquestions);
	record_real(rec, "acc", p);
	record_real(rec, "acc_stderr", error(c, p));
	record_real(rec, "acc_norm", q);
	record_real(rec, "acc_norm_stderr", error(c, q));
	record_int(rec, "truncated", c->ntruncated);
	record_open_list(rec, "logprobs");
	for (int64_t i = 0; i < c->nquestions; i++) {
		record_open_list(rec, NULL);
		for (int64_t k = 0; k < c->question[i].nendings; k++)
			record_real(rec, NULL, c->ending[c->question[i].first + k].logprob);
		record_close(rec);
	}
	record_close(rec);
	record_int(rec, "tokens", c->ncomputed);
	record_real(rec, "tokens_per_s", c->s > 0 ? (double)c->ncomputed / c->s : 0);
}

void choices_print(const struct choices *c)
{
	const double p = accuracy(c, 0), q = accuracy(c, 1);

	if (c->nquestions > 1)
		printf("questions %lld, acc %.4f +- %.4f, acc_norm %.4f +- %.4f\n",
		       (long long)c->nquestions, p, error(c, p), q, error(c, q));
	else
		printf("questions %lld, acc %.4f, acc_norm %.4f\n", (long long)c->nquestions, p, q);
	if (c->ntruncated)
		say_note("%lld of %lld endings: the context lost its first tokens",
			 (long long)c->ntruncated, (long long)c->nendings);
	say_note("%lld tokens, %.1f a second", (long long)c->ncomputed,
		 c->s > 0 ? (double)c->ncomputed / c->s : 0);
}
