/*
 * decoder.c - a model's sequence on new tokens at positions, with a cache of keys and values.
 *
 * A pass is two plans of the sequence: the ops before the head on [1, rows] tokens, and the head,
 * which computes the logits, on the rows whose logits are wanted. There are plans for powers of two
 * of rows; other numbers are padded. Embedding, rope and attention find positions and caches in
 * their call's state (struct te__decode); no other op needs to know.
 *
 * A pass in which each row is the last token of its sequence is the same work for a number of rows,
 * for all positions: it runs once, is recorded the second time, and then replayed. A pass
 * begins with one copy from pinned memory and ends with copies to it, so that a replay is one
 * launch. If all sequences take the most likely token, the device finds it, and logits are copied
 * when somebody asks for them.
 */
#define TE_LOG_CATEGORY "core/decoder"
#include <errno.h>
#include <string.h>

#include "libtecore/plan/decoder.h"

int te_decoder_create(struct te_seq *seq, const struct te_decoder_opts *opts,
		      struct te_decoder **ret_d)
{
	struct te_decoder_opts o = TE_DECODER_OPTS_INIT;
	struct te_decoder *d;
	int r = opts ? te__sized_in("te_decoder_create", te_decoder_opts, opts, &o) : 0;

	if (!r && (!seq || !ret_d))
		r = te__fail(-EINVAL, "te_decoder_create: %s is NULL", seq ? "ret_d" : "seq");
	if (!r)
		r = te__seq_initialised(seq, "te_decoder_create");
	if (r < 0)
		return r;
	d = te__calloc(1, sizeof(*d));
	if (!d)
		return te__no_memory("te_decoder_create");
	atomic_init(&d->refs, 1);
	d->o = o;
	d->seq = te_seq_ref(seq);
	d->ctx = te_seq_ctx(seq);
	d->stream = te_ctx_stream(d->ctx);
	r = te__decoder_make(d);
	d->o.recipe = NULL; /* the caller's */
	if (r < 0) {
		te_decoder_unref(d);
		return r;
	}
	*ret_d = d;
	return 0;
}

struct te_decoder *te_decoder_ref(struct te_decoder *d)
{
	if (d)
		atomic_fetch_add(&d->refs, 1);
	return d;
}

static void free_plans(struct body *b, int n)
{
	for (int i = 0; i < n; i++) {
		te_recording_unref(b[i].whole[0]);
		te_recording_unref(b[i].whole[1]);
		te_plan_unref(b[i].plan);
		te_tensor_unref(b[i].sequence);
		te_tensor_unref(b[i].position);
		te_tensor_unref(b[i].token);
		te__free(b[i].decode);
		te__free(b[i].rope);
	}
}

static void free_pinned(struct te_decoder *d, void *ptr)
{
	if (ptr)
		te_pinned_free(d->ctx, ptr);
}

struct te_decoder *te_decoder_unref(struct te_decoder *d)
{
	if (!d || atomic_fetch_sub(&d->refs, 1) != 1)
		return NULL;
	free_plans(d->body, d->nbodies);
	free_plans(d->head, d->nheads);
	for (int i = 0; i < d->seq->nops; i++) {
		te_tensor_unref(d->k ? d->k[i] : NULL);
		te_tensor_unref(d->v ? d->v[i] : NULL);
		te_tensor_unref(d->k_scale ? d->k_scale[i] : NULL);
		te_tensor_unref(d->v_scale ? d->v_scale[i] : NULL);
	}
	te__free(d->k);
	te__free(d->v);
	te__free(d->k_scale);
	te__free(d->v_scale);
	te_tensor_unref(d->pages);
	te_tensor_unref(d->inputs);
	te__mem_put(d->ctx, d->parts);
	te__mem_put(d->ctx, d->ready);
	for (int32_t s = 0; d->state && s < d->o.max_seqs; s++) {
		te__free(d->state[s].token);
		te__free(d->state[s].logits);
	}
	te__free(d->state);
	free_pinned(d, d->row_sequence);
	free_pinned(d, d->results);
	free_pinned(d, d->raw);
	te__free(d->last);
	te__free(d->free_page);
	te__free(d->room);
	te__free(d->marks);
	te_seq_unref(d->seq);
	te__free(d);
	return NULL;
}

/* ---- sequences ---- */

static int find(const char *fn, const struct te_decoder *d, int32_t s, struct seq_state **ret)
{
	if (!d)
		return te__fail(-EINVAL, "%s: d is NULL", fn);
	if (s < 0 || s >= d->o.max_seqs || !d->state[s].open)
		return te__fail(-EINVAL, "%s: sequence %d is not open", fn, s);
	*ret = &d->state[s];
	return 0;
}

/* opens a sequence without tokens */
static int begin(const char *fn, struct te_decoder *d, const struct te_sampling *how,
		 int32_t *ret_s)
{
	struct te_sampling h = TE_SAMPLING_INIT;
	int r = how ? te__sized_in(fn, te_sampling, how, &h) : 0;

	if (!how)
		h.temperature = 0;
	if (!r)
		r = te__sampling_check(fn, &h);
	if (!r && (!d || !ret_s))
		r = te__fail(-EINVAL, "%s: %s is NULL", fn, d ? "ret_s" : "d");
	if (r < 0)
		return r;
	for (int32_t s = 0; s < d->o.max_seqs; s++) {
		struct seq_state *q = &d->state[s];

		if (q->open)
			continue;
		q->open = 1;
		q->ready = 0;
		q->ntokens = q->ncached = q->npages = 0;
		q->how = h;
		*ret_s = s;
		return 0;
	}
	return te__fail(-EBUSY, "%s: all %d sequences are open", fn, d->o.max_seqs);
}

int te_decoder_open(struct te_decoder *d, const struct te_sampling *how, int32_t *ret_s)
{
	return begin("te_decoder_open", d, how, ret_s);
}

/* the len pages of a cache from page `from` on to those from `to` on */
static int copy_pages(const struct te_decoder *d, const struct te_tensor *cache, int64_t from,
		      int64_t to, int64_t len)
{
	const size_t page = cache ? te_tensor_nbytes(cache) / (size_t)d->o.npages : 0;
	char *data = cache ? te_tensor_data(cache) : NULL;

	return cache ? te_copy(d->stream, data + (size_t)to * page, data + (size_t)from * page,
			       (size_t)len * page) : 0;
}

/* n pages of all caches, by rows of the table; adjacent pages by one copy */
static int copy_keys(const struct te_decoder *d, const int32_t *from, const int32_t *to, int64_t n)
{
	int64_t len;
	int r = 0;

	for (int64_t at = 0; at < n && !r; at += len) {
		for (len = 1; at + len < n && from[at + len] == from[at] + len &&
			      to[at + len] == to[at] + len; len++)
			;
		for (int i = 0; i < d->first_head && !r; i++) {
			struct te_tensor *const caches[] = { d->k[i], d->v[i], d->k_scale[i],
							     d->v_scale[i] };

			for (int k = 0; k < 4 && !r; k++)
				r = copy_pages(d, caches[k], from[at], to[at], len);
		}
	}
	return r;
}

int te_decoder_fork(struct te_decoder *d, int32_t s, const struct te_sampling *how,
		    int32_t *ret_s)
{
	static const char fn[] = "te_decoder_fork";
	struct seq_state *q, *t;
	int64_t npages = 0;
	int32_t *from, *to, copy;
	int r = find(fn, d, s, &q);

	if (!r && !ret_s)
		r = te__fail(-EINVAL, "%s: ret_s is NULL", fn);
	if (!r)
		npages = (q->ncached + d->o.page - 1) / d->o.page;
	if (npages > (r ? 0 : d->nfree))
		r = te__fail(-ENOMEM, "%s: the cache has %lld free pages of %lld, and sequence %d "
			     "has %lld", fn, (long long)d->nfree, (long long)d->o.npages, s,
			     (long long)npages);
	if (!r)
		r = begin(fn, d, how, &copy);
	if (r < 0)
		return r;
	t = &d->state[copy];
	from = d->table + s * d->max_pages;
	to = d->table + copy * d->max_pages;
	while (t->npages < npages)
		to[t->npages++] = d->free_page[--d->nfree];
	r = copy_keys(d, from, to, npages);
	if (r < 0) {
		te_decoder_close(d, copy);
		return r;
	}
	memcpy(t->token, q->token, (size_t)q->ntokens * sizeof(*q->token));
	memcpy(t->logits, q->logits, (size_t)d->vocab * sizeof(*q->logits));
	t->ntokens = q->ntokens;
	t->ncached = q->ncached;
	t->ready = q->ready;
	t->raw = q->raw;
	t->best = q->best;
	*ret_s = copy;
	return 0;
}

int te_decoder_close(struct te_decoder *d, int32_t s)
{
	struct seq_state *q;
	int r = find("te_decoder_close", d, s, &q);

	if (r < 0)
		return r;
	while (q->npages)
		d->free_page[d->nfree++] = d->table[s * d->max_pages + --q->npages];
	q->open = 0;
	return 0;
}

int te_decoder_push(struct te_decoder *d, int32_t s, const int32_t *token, int64_t n)
{
	static const char fn[] = "te_decoder_push";
	struct seq_state *q;
	int r = find(fn, d, s, &q);

	if (!r && (n < 0 || (n && !token)))
		r = te__fail(-EINVAL, "%s: %s", fn, n < 0 ? "n is negative" : "token is NULL");
	if (r < 0)
		return r;
	for (int64_t i = 0; i < n; i++)
		if (token[i] < 0 || token[i] >= d->vocab)
			return te__fail(-EINVAL, "%s: token %lld is %d, expected 0 to %lld", fn,
					(long long)i, token[i], (long long)d->vocab - 1);
	if (n > d->o.max_tokens - q->ntokens)
		return te__fail(-ENOSPC, "%s: sequence %d: %lld tokens and %lld more are above "
				"max_tokens, %d", fn, s, (long long)q->ntokens, (long long)n,
				d->o.max_tokens);
	if (!n)
		return 0;
	memcpy(q->token + q->ntokens, token, (size_t)n * sizeof(*token));
	q->ntokens += n;
	q->ready = 0;
	return 0;
}

/* ---- steps ---- */

/* rows for up to n tokens of sequence s; as many as there are pages for */
static int64_t add_rows(struct te_decoder *d, int32_t s, int64_t n, int64_t at)
{
	struct seq_state *q = &d->state[s];
	int64_t i = 0;

	for (; i < n; i++, at++) {
		const int64_t pos = q->ncached + i;

		if (pos / d->o.page >= q->npages) {
			if (!d->nfree)
				break;
			d->table[s * d->max_pages + q->npages++] = d->free_page[--d->nfree];
		}
		d->row_sequence[at] = s;
		d->row_position[at] = (int32_t)pos;
		d->row_token[at] = q->token[pos];
	}
	return i;
}

/* returns the number of rows of a pass; *left: tokens that come later */
static int64_t choose_rows(struct te_decoder *d, int64_t *left)
{
	const int32_t n = d->o.max_seqs;
	int64_t rows = 0;

	*left = 0;
	/* sequences with one token are generating, and come first */
	for (int many = 0; many < 2; many++)
		for (int32_t i = 0; i < n; i++) {
			const int32_t s = (d->next + i) % n;
			const struct seq_state *q = &d->state[s];
			const int64_t pending = q->open ? q->ntokens - q->ncached : 0;

			if (!pending || (pending > 1) != many)
				continue;
			*left += pending;
			rows += add_rows(d, s, pending < d->o.chunk - rows ? pending :
								       d->o.chunk - rows, rows);
		}
	d->next = (d->next + 1) % n;
	*left -= rows;
	return rows;
}

static struct body *body_for(struct body *b, int n, int64_t rows)
{
	int i = 0;

	while (i < n - 1 && b[i].rows < rows)
		i++;
	return &b[i];
}

/* the first copy of a pass: what the rows are */
static int copy_inputs(struct te_decoder *d)
{
	return te_copy(d->stream, te_tensor_data(d->inputs), d->row_sequence,
		       (size_t)(d->at.noutside + 1) * sizeof(*d->row_sequence));
}

/* the last ones: n rows of logits or, greedy, the largest of them, and noutside */
static int copy_results(struct te_decoder *d, const struct te_tensor *logits, int64_t n, int greedy)
{
	int32_t *in = te_tensor_data(d->inputs);
	const struct te_k_argmax best = {
		.x = te_tensor_data(logits),
		.part = (uint64_t *)(void *)(in + d->at.best),
		.rows = n,
		.ld = d->width_padded,
		.n = d->vocab,
	};
	const int64_t nresults =
		greedy ? d->at.best - d->at.noutside + 2 * TE_K_ARGMAX_PARTS * n : 1;
	int r = 0;

	if (greedy && n)
		r = TE__LAUNCH(d->stream, ARGMAX, &best);
	else if (n)
		r = te_copy(d->stream, d->raw, te_tensor_data(logits),
			    (size_t)(n * d->width_padded) * te_dtype_nbytes(d->recipe.compute));
	return r < 0 ? r : te_copy(d->stream, d->results, in + d->at.noutside,
				   (size_t)nresults * sizeof(*in));
}

/*
 * Runs a body, and the head on rows of its output: n of them, or all if last is NULL. Results are
 * in the order of rows.
 */
static int pass(struct te_decoder *d, struct body *b, const struct body *h,
		const int32_t *last, int64_t n, int greedy)
{
	struct te_tensor *to = te_plan_input(h->plan, "x");
	const struct te_tensor *from = b->out;
	const size_t row = (size_t)te_tensor_cols(from) * te_dtype_nbytes(d->recipe.compute);
	const int64_t len = last ? 1 : b->rows < h->rows ? b->rows : h->rows;
	int r = copy_inputs(d);

	b->one_each = !last;
	if (!r)
		r = te_plan_forward(b->plan, d->stream, 0);
	/* rows ascend: if to is from, those that were written are not read again */
	for (int64_t i = 0; i < (last ? n : 1) && !r; i++) {
		const int64_t source = last ? last[i] : 0;

		if (to != from || source != i)
			r = te_copy(d->stream, (char *)te_tensor_data(to) + (size_t)i * row,
				    (const char *)te_tensor_data(from) + (size_t)source * row,
				    (size_t)len * row);
	}
	if (!r && n)
		r = te_plan_forward(h->plan, d->stream, 0);
	return r ? r : copy_results(d, te_plan_output(h->plan), n, greedy);
}

static int whole_pass(struct te_decoder *d, struct body *b, const struct body *h, int greedy)
{
	struct te_recording **whole = &b->whole[greedy];
	int r;

	if (!*whole && b->nwhole[greedy]++ == 1) {
		r = te_capture_begin(d->stream);
		if (r < 0)
			return r;
		te_capture_edges(d->stream, TE_CAPTURE_PDL); /* fails if the capture does */
		pass(d, b, h, NULL, h->rows, greedy); /* te_capture_end() fails if it does */
		r = te_capture_end(d->stream, whole);
		if (r < 0)
			return r;
	}
	return *whole ? te_recording_launch(*whole, d->stream) :
			pass(d, b, h, NULL, h->rows, greedy);
}

/* queues the pass over rows; *ret_n sequences get logits */
static int queue(struct te_decoder *d, int64_t rows, int32_t *last, int64_t *ret_n)
{
	struct body *b = body_for(d->body, d->nbodies, rows), *h;
	int greedy = d->recipe.compute == TE_DTYPE_BF16, r;
	int64_t n = 0;

	for (int64_t i = 0; i < rows; i++) {
		const struct seq_state *q = &d->state[d->row_sequence[i]];

		if (d->row_position[i] != q->ntokens - 1)
			continue;
		last[n++] = (int32_t)i;
		greedy &= te__is_greedy(&q->how);
	}
	*ret_n = n;
	for (int64_t i = rows; i < b->rows; i++) {
		d->row_sequence[i] = -1;
		d->row_position[i] = d->row_token[i] = 0;
	}
	h = body_for(d->head, d->nheads, n);
	r = n == rows ? whole_pass(d, b, h, greedy) : pass(d, b, h, last, n, greedy);
	d->unread = r || !greedy ? NULL : te_plan_output(h->plan);
	d->nunread = n;
	return r;
}

/* after a pass that left logits on the device */
static int read_logits(struct te_decoder *d)
{
	int r, synced;

	if (!d->unread)
		return 0;
	r = te_copy(d->stream, d->raw, te_tensor_data(d->unread),
		    (size_t)(d->nunread * d->width_padded) * te_dtype_nbytes(d->recipe.compute));
	synced = te_stream_sync(d->stream);
	r = r ? r : synced;
	d->unread = r ? d->unread : NULL;
	return r;
}

static void take_logits(struct te_decoder *d, const int32_t *last, int64_t n)
{
	const void *results = d->results + (d->at.best - d->at.noutside);
	const uint64_t *best = results;

	for (int64_t i = 0; i < n; i++) {
		struct seq_state *q = &d->state[d->row_sequence[last[i]]];

		if (d->recipe.compute == TE_DTYPE_FP32)
			memcpy(q->logits, (const float *)d->raw + i * d->width_padded,
			       (size_t)d->vocab * sizeof(float));
		else
			q->raw = (const uint16_t *)d->raw + i * d->width_padded;
		q->best = d->unread ? best + i * TE_K_ARGMAX_PARTS : NULL;
		q->ready = 1;
	}
}

/* logits of a sequence as FP32, which the most likely token does without */
static int decode_logits(struct te_decoder *d, struct seq_state *q)
{
	int r = q->raw ? read_logits(d) : 0;

	if (r < 0)
		return r;
	if (q->raw)
		te__decode_logits(q->raw, d->vocab, q->logits);
	q->raw = NULL;
	return 0;
}

static int64_t step(struct te_decoder *d)
{
	int64_t left, n = 0, rows = choose_rows(d, &left);
	int r = 0, synced;

	/* logits from which no token was taken: the pass overwrites them */
	for (int32_t s = 0; s < d->o.max_seqs && rows && !r; s++)
		if (d->state[s].open && d->state[s].ready)
			r = decode_logits(d, &d->state[s]);
	if (r < 0)
		return r;

	if (!rows)
		return left ? te__fail(-ENOMEM, "te_decoder_step: the cache has no free page of "
				       "%lld, and %lld tokens are left: close a sequence",
				       (long long)d->o.npages, (long long)left) :
			      0;
	r = queue(d, rows, d->last, &n);
	synced = te_stream_sync(d->stream); /* after a failure too: rows change before the next */
	r = r ? r : synced;
	if (!r && *d->results)
		r = te__fail(-TE_ESTATE, "te_decoder_step: %u of %lld tokens are outside the cache",
			     *d->results, (long long)rows);
	if (r < 0)
		return r;
	for (int64_t i = 0; i < rows; i++)
		d->state[d->row_sequence[i]].ncached++;
	take_logits(d, d->last, n);
	return left;
}

int64_t te_decoder_step(struct te_decoder *d)
{
	return d ? step(d) : te__fail(-EINVAL, "te_decoder_step: d is NULL");
}

/* ---- results ---- */

static int most_likely(struct te_decoder *d, const struct seq_state *q, int32_t *ret_token)
{
	uint64_t key = 0;
	int r;

	for (int i = 0; i < TE_K_ARGMAX_PARTS && q->best; i++)
		key = q->best[i] > key ? q->best[i] : key;
	if (key && !(key & TE_K_ARGMAX_NOT_FINITE)) {
		*ret_token = (int32_t)te_k_argmax_column(key);
		return 0;
	}
	r = read_logits(d);
	return r < 0 ? r : te__most_likely("te_decoder_take", q->raw, d->vocab, ret_token);
}

int te_decoder_take(struct te_decoder *d, int32_t s, int32_t *ret_token)
{
	static const char fn[] = "te_decoder_take";
	struct seq_state *q;
	int32_t token;
	int r = find(fn, d, s, &q);

	if (!r && !ret_token)
		r = te__fail(-EINVAL, "%s: ret_token is NULL", fn);
	if (r < 0 || !q->ready)
		return r;
	if (q->ntokens == d->o.max_tokens)
		return te__fail(-ENOSPC, "%s: sequence %d: has max_tokens, %d", fn, s,
				d->o.max_tokens);
	if (q->raw && te__is_greedy(&q->how)) {
		r = most_likely(d, q, &token);
	} else {
		r = decode_logits(d, q);
		r = r ? r : te__choose(fn, &q->how, q->logits, d->vocab, q->token, q->ntokens,
				       d->room, d->marks, &token);
	}
	if (r < 0)
		return r;
	q->token[q->ntokens++] = token;
	q->ready = 0;
	*ret_token = token;
	return 1;
}

const float *te_decoder_logits(const struct te_decoder *d, int32_t s, int64_t *ret_n)
{
	struct seq_state *q = NULL;

	if (find("te_decoder_logits", d, s, &q) < 0 || !q->ready)
		return NULL;
	if (decode_logits((struct te_decoder *)(uintptr_t)d, q) < 0)
		return NULL;
	if (ret_n)
		*ret_n = d->vocab;
	return q->logits;
}

int64_t te_decoder_length(const struct te_decoder *d, int32_t s)
{
	struct seq_state *q = NULL;
	int r = find("te_decoder_length", d, s, &q);

	return r < 0 ? r : q->ntokens;
}
