/* recording.c - recordings: made by the end of a capture, launched, updated by another capture. */
#define TE_LOG_CATEGORY "core/recording"
#include "config.h"

#include <errno.h>

#include "libtecore/capture/recording.h"

static int recording_new(struct te_ctx *ctx, void *graph, uint32_t edges,
			 struct te_recording **ret_rec)
{
	const char *fn = "te_capture_end";
	struct te_recording *rec = te__calloc(1, sizeof(*rec));
	int r;

	if (!rec)
		return te__recording_no_memory(fn, "a recording");
	rec->info.size = sizeof(rec->info);
	r = ctx->ops->graph_info(graph, &rec->info);
	if (!r)
		r = te__nodes_init(&rec->nodes, ctx->ops, graph, rec->info.nnodes, fn);
	if (!r)
		r = ctx->ops->graph_instantiate(graph, &rec->exec);
	if (r) {
		te__nodes_free(&rec->nodes);
		te__free(rec);
		return r;
	}
	rec->info.ninstantiated = 1;
	rec->refs = 1;
	rec->concurrent = (edges & TE_CAPTURE_CONCURRENT) != 0;
	rec->ctx = te_ctx_ref(ctx);
	*ret_rec = rec;
	return 0;
}

int te_capture_end(struct te_stream *stream, struct te_recording **ret_rec)
{
	uint32_t edges;
	void *graph;
	int r;

	if (!stream || !ret_rec)
		return te__fail(-EINVAL, "te_capture_end: %s is NULL",
				stream ? "ret_rec" : "stream");
	r = te__capture_end(stream, "te_capture_end", &graph, &edges);
	if (!r) {
		r = recording_new(stream->ctx, graph, edges, ret_rec);
		if (r)
			stream->ctx->ops->graph_destroy(graph);
	}
	te__mem_flush(stream->ctx);
	return r;
}

/* returns enum te_update, or an error after which the recording is unchanged */
static int recording_update(struct te_recording *rec, void *graph, uint32_t edges)
{
	const char *fn = "te_capture_update";
	const struct te__backend_ops *ops = rec->ctx->ops;
	struct te_recording_info info = TE_RECORDING_INFO_INIT;
	struct te__nodes nodes;
	int r = ops->graph_info(graph, &info);

	if (!r)
		r = te__nodes_init(&nodes, ops, graph, info.nnodes, fn);
	if (r)
		return r;
	r = ops->exec_update(rec->exec, graph, te__nodes_same(rec, graph, info.nnodes));
	if (r < 0) {
		te__nodes_free(&nodes);
		return r;
	}
	info.ninstantiated = rec->info.ninstantiated + (r == TE_UPDATE_INSTANTIATED);
	info.nupdated = rec->info.nupdated + (r == TE_UPDATE_IN_PLACE);
	rec->info = info;
	te__nodes_free(&rec->nodes);
	rec->nodes = nodes;
	/* only the caller knows what the pointers of the new nodes are */
	te__bindings_free(rec);
	te__used_free(&rec->used);
	rec->concurrent = (edges & TE_CAPTURE_CONCURRENT) != 0;
	return r;
}

int te_capture_update(struct te_stream *stream, struct te_recording *rec, enum te_update *ret_how)
{
	uint32_t edges;
	void *graph;
	int r;

	if (!stream || !rec)
		return te__fail(-EINVAL, "te_capture_update: %s is NULL",
				stream ? "rec" : "stream");
	if (rec->ctx != stream->ctx)
		return te__fail(-EINVAL,
				"te_capture_update: rec and stream belong to different contexts");
	r = te__capture_end(stream, "te_capture_update", &graph, &edges);
	if (!r) {
		r = recording_update(rec, graph, edges);
		if (r < 0)
			stream->ctx->ops->graph_destroy(graph);
	}
	te__mem_flush(stream->ctx);
	if (r < 0)
		return r;
	if (ret_how)
		*ret_how = (enum te_update)r;
	return 0;
}

int te_recording_launch(struct te_recording *rec, struct te_stream *stream)
{
	int r;

	if (!rec || !stream)
		return te__fail(-EINVAL, "te_recording_launch: %s is NULL", rec ? "stream" : "rec");
	if (rec->ctx != stream->ctx)
		return te__fail(-EINVAL,
				"te_recording_launch: rec and stream belong to different contexts");
	r = te__ctx_check_fork(rec->ctx, "te_recording_launch");
	if (!r)
		r = te__stream_not_capturing(stream, "te_recording_launch");
	return r ? r : rec->ctx->ops->graph_launch(rec->exec, stream->impl);
}

int te_recording_info(const struct te_recording *rec, struct te_recording_info *ret_info)
{
	int r = te__sized_check("te_recording_info", te_recording_info, ret_info);

	if (r)
		return r;
	if (!rec)
		return te__fail(-EINVAL, "te_recording_info: rec is NULL");
	te__sized_out(te_recording_info, &rec->info, ret_info);
	return 0;
}

struct te_recording *te_recording_ref(struct te_recording *rec)
{
	if (rec)
		atomic_fetch_add(&rec->refs, 1);
	return rec;
}

struct te_recording *te_recording_unref(struct te_recording *rec)
{
	struct te_ctx *ctx = rec ? rec->ctx : NULL;

	if (!rec || atomic_fetch_sub(&rec->refs, 1) != 1)
		return NULL;
	if (!te__ctx_forked(ctx))
		ctx->ops->exec_destroy(rec->exec);
	te__nodes_free(&rec->nodes);
	te__bindings_free(rec);
	te__used_free(&rec->used);
	te__free(rec->scratch.patch);
	te__free(rec->scratch.args);
	te__free(rec);
	te_ctx_unref(ctx);
	return NULL;
}
