/* work.c - copies, fills, host calls, words and kernels, queued or captured. */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <errno.h>

#include "libtecore/backend/host/host.h"

/* queue work or, if the stream is capturing, record it; what: the entry, for messages */
static int work(struct host_stream *s, const char *what, const struct host_op *op, const void *args,
		size_t nbytes)
{
	if (host_fault(what))
		return -ENOMEM;
	return s->member ? host_capture_add(s, op, args, nbytes) :
			   host_push(s, op, args, nbytes, NULL);
}

/* a copy or fill */
static int transfer(void *stream, const char *what, const struct host_op *op)
{
	if (!op->nbytes)
		return host_fault(what) ? -ENOMEM : 0;
	return work(stream, what, op, NULL, 0);
}

int host_copy(void *stream, void *dst, const void *src, size_t nbytes)
{
	return transfer(stream, "copy", &(struct host_op){
		.kind = HOST_COPY, .dst = dst, .src = src, .nbytes = nbytes });
}

int host_fill8(void *stream, void *dst, uint8_t value, size_t nbytes)
{
	return transfer(stream, "fill8", &(struct host_op){
		.kind = HOST_FILL8, .value = value, .dst = dst, .nbytes = nbytes });
}

int host_fill32(void *stream, void *dst, uint32_t value, size_t nwords)
{
	return transfer(stream, "fill32", &(struct host_op){
		.kind = HOST_FILL32, .value = value, .dst = dst, .nbytes = 4 * nwords });
}

int host_host_call(void *stream, te_host_fn fn, const void *arg, size_t nbytes)
{
	const struct host_op op = {
		.kind = HOST_CALL, .fn = fn, .dst = (void *)(uintptr_t)arg, .nbytes = nbytes,
	};

	return work(stream, "host_call", &op, arg, nbytes);
}

int host_word_set(void *stream, void *word, uint32_t value)
{
	const struct host_op op = { .kind = HOST_WORD_SET, .dst = word, .value = value };

	return work(stream, "word_set", &op, NULL, 0);
}

int host_word_take(void *stream, void *word)
{
	const struct host_op op = { .kind = HOST_WORD_TAKE, .dst = word };

	return work(stream, "word_take", &op, NULL, 0);
}

int host_launch(void *stream, const struct te__launch *l)
{
	const struct host_op op = { .kind = HOST_KERNEL, .value = l->id, .nbytes = l->nbytes };

	if (!te__k_reference(l->id))
		return te__fail(-TE_EKERNEL, "host: this build holds no kernel %s",
				te__k_name(l->id));
	return work(stream, "launch", &op, l->args, l->nbytes);
}
