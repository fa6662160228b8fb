/* work.c - copies, fills, host calls, words and kernels, queued or captured. */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <errno.h>

#include "libtecore/backend/host/host.h"

int host_work(struct host_stream *s, const struct host_op *op, const void *args, size_t nbytes)
{
	return s->member ? host_capture_add(s, op, args, nbytes) :
			   host_push(s, op, args, nbytes, NULL);
}

int host_copy(void *stream, void *dst, const void *src, size_t nbytes)
{
	if (host_fault("copy"))
		return -ENOMEM;
	if (!nbytes)
		return 0;
	return host_work(stream,
			 &(struct host_op){
				 .kind = HOST_COPY, .dst = dst, .src = src, .nbytes = nbytes },
			 NULL, 0);
}

int host_fill8(void *stream, void *dst, uint8_t value, size_t nbytes)
{
	if (host_fault("fill8"))
		return -ENOMEM;
	if (!nbytes)
		return 0;
	return host_work(stream,
			 &(struct host_op){
				 .kind = HOST_FILL8, .value = value, .dst = dst, .nbytes = nbytes },
			 NULL, 0);
}

int host_fill32(void *stream, void *dst, uint32_t value, size_t nwords)
{
	if (host_fault("fill32"))
		return -ENOMEM;
	if (!nwords)
		return 0;
	return host_work(stream,
			 &(struct host_op){ .kind = HOST_FILL32,
					    .value = value,
					    .dst = dst,
					    .nbytes = 4 * nwords },
			 NULL, 0);
}

int host_host_call(void *stream, te_host_fn fn, const void *arg, size_t nbytes)
{
	if (host_fault("host_call"))
		return -ENOMEM;
	return host_work(stream,
			 &(struct host_op){ .kind = HOST_CALL,
					    .fn = fn,
					    .dst = (void *)(uintptr_t)arg,
					    .nbytes = nbytes },
			 arg, nbytes);
}

int host_word_set(void *stream, void *word, uint32_t value)
{
	if (host_fault("word_set"))
		return -ENOMEM;
	return host_work(
		stream, &(struct host_op){ .kind = HOST_WORD_SET, .dst = word, .value = value },
		NULL, 0);
}

int host_word_take(void *stream, void *word)
{
	if (host_fault("word_take"))
		return -ENOMEM;
	return host_work(stream, &(struct host_op){ .kind = HOST_WORD_TAKE, .dst = word }, NULL,
			 0);
}

int host_launch(void *stream, const struct te__launch *l)
{
	if (host_fault("launch"))
		return -ENOMEM;
	if (!te__k_reference(l->id))
		return te__fail(-TE_EKERNEL, "host: this build holds no kernel %s",
				te__k_name(l->id));
	return host_work(stream,
			 &(struct host_op){
				 .kind = HOST_KERNEL, .value = l->id, .nbytes = l->nbytes },
			 l->args, l->nbytes);
}
