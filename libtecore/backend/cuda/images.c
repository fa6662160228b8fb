/* images.c - device code of one level, unpacked on threads while the driver makes a context. */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef HAVE_LZMA
#include <lzma.h>
#endif

#include "libtecore/backend/cuda/images.h"

#define THREADS 4

struct te__cuda_images {
	pthread_t thread[THREADS];
	int nthreads;
	atomic_size_t next; /* index of the first image that no thread has begun */
	size_t n;
	struct {
		const struct te__kernel_image *from;
		struct te__cuda_image to;
	} image[];
};

static const struct te__kernel_image *embedded = te__kernel_images;

void te__cuda_images_fake(const struct te__kernel_image *images)
{
	embedded = images;
}

#ifdef HAVE_LZMA
/* size of what an .xz file has, or 0 */
static size_t unpacked_nbytes(const uint8_t *in, size_t n)
{
	lzma_stream_flags footer;
	lzma_index *index = NULL;
	uint64_t limit = UINT64_MAX;
	size_t pos = 0;
	uint64_t nbytes;

	if (n < 2 * LZMA_STREAM_HEADER_SIZE ||
	    lzma_stream_footer_decode(&footer, in + n - LZMA_STREAM_HEADER_SIZE) != LZMA_OK ||
	    footer.backward_size > n - 2 * LZMA_STREAM_HEADER_SIZE)
		return 0;
	in += n - LZMA_STREAM_HEADER_SIZE - footer.backward_size;
	if (lzma_index_buffer_decode(&index, &limit, NULL, in, &pos, footer.backward_size) !=
	    LZMA_OK)
		return 0;
	nbytes = lzma_index_uncompressed_size(index);
	lzma_index_end(index, NULL);
	return nbytes > TE__CUDA_IMAGE_NBYTES_MAX ? 0 : (size_t)nbytes;
}

static int unpack(const uint8_t *in, size_t nin, void **ret, size_t *ret_nbytes)
{
	uint64_t limit = UINT64_MAX;
	size_t nbytes = unpacked_nbytes(in, nin), ipos = 0, opos = 0;
	uint8_t *out;

	if (!nbytes)
		return -TE_EKERNEL;
	out = te__malloc(nbytes);
	if (!out)
		return -ENOMEM;
	if (lzma_stream_buffer_decode(&limit, 0, NULL, in, &ipos, nin, out, &opos, nbytes) !=
		    LZMA_OK || opos != nbytes) {
		te__free(out);
		return -TE_EKERNEL;
	}
	*ret = out;
	*ret_nbytes = nbytes;
	return 0;
}
#else
static int unpack(const uint8_t *in, size_t nin, void **ret, size_t *ret_nbytes)
{
	(void)in;
	(void)nin;
	(void)ret;
	(void)ret_nbytes;
	return -TE_EKERNEL;
}
#endif

/* the PTX for compute capability cc among texts, each of which ends with a NUL */
static const char *ptx_for(const char *text, size_t nbytes, size_t cc)
{
	const char *const end = text + nbytes, *found;
	char target[64];
	int n = snprintf(target, sizeof(target), "\n.target sm_%zu", cc);

	if (!nbytes || end[-1])
		return NULL;
	for (; text < end; text += strlen(text) + 1) {
		found = strstr(text, target);
		if (found && (found[n] == '\n' || found[n] == ','))
			return text;
	}
	return NULL;
}

/* n letters, one or two: an index below 27 * 27 */
static unsigned letters(const char *p, unsigned n)
{
	return (unsigned)(p[0] - 'a' + 1) * 27 + (n > 1 ? (unsigned)(p[1] - 'a' + 1) : 0);
}

/* the start of a register or a label, "%rd" or "$L__BB12_": its length or 0, and an index */
static size_t prefix(const char *p, unsigned *ret_kind)
{
	static const char label[] = "$L__BB";
	size_t n = 1;

	if (*p == '%') {
		while (p[n] >= 'a' && p[n] <= 'z')
			n++;
		if (n < 2 || n > 3)
			return 0;
		*ret_kind = letters(p + 1, (unsigned)n - 1);
		return n;
	}
	if (*p != '$' || strncmp(p, label, sizeof(label) - 1))
		return 0;
	n = sizeof(label) - 1;
	n += strspn(p + n, "0123456789");
	*ret_kind = 0;
	return p[n] == '_' ? n + 1 : 0;
}

/* the text that kernels/ptx.awk read, and its length with the NUL; out NULL: the length only */
static size_t ptx_read(const char *p, char *out)
{
	unsigned last[27 * 27] = { 0 }, kind = 0;
	size_t to = 0;

	while (*p) {
		size_t n = prefix(p, &kind);
		char number[16] = "";

		if (!n)
			n = 1;
		else if (p[n] >= 'A' && p[n] <= '_')
			snprintf(number, sizeof(number), "%u",
				 last[kind] += (unsigned)(p[n] - 'P'));
		else if (p[n] == '`' && p[n + 1])
			snprintf(number, sizeof(number), "%u",
				 last[kind] += (unsigned)(p[n + 1] - 'P'));
		else if (p[n] >= '0' && p[n] <= '9')
			last[kind] = (unsigned)strtoul(p + n, NULL, 10);
		if (out) {
			memcpy(out + to, p, n);
			memcpy(out + to + n, number, strlen(number));
		}
		to += n + strlen(number);
		p += n + (number[0] ? (p[n] == '`' ? 2 : 1) : 0);
	}
	if (out)
		out[to] = 0;
	return to + 1;
}

int te__ptx_kernel_next(const char *text, struct te__ptx_kernel *ret)
{
	static const char entry[] = ".entry ";
	const char *p = strstr(text, entry);
	int depth = 0;

	if (!p)
		return 0;
	ret->start = p;
	while (ret->start > text && ret->start[-1] != '\n')
		ret->start--;
	ret->name = p + sizeof(entry) - 1;
	ret->name_nbytes = strcspn(ret->name, "(");
	p = ret->name;
	do {
		p += strcspn(p, "{}");
		if (!*p)
			return -TE_EKERNEL;
		depth += *p++ == '{' ? 1 : -1;
	} while (depth > 0);
	ret->end = p;
	return depth ? -TE_EKERNEL : 1;
}

/* a copy with the kernels last, a line each, after the rest; NULL: no memory */
static char *kernels_last(const char *text, size_t *ret_rest)
{
	struct te__ptx_kernel k;
	const char *p = text;
	size_t n = strlen(text) + 1, at = 0;
	char *out;

	for (; te__ptx_kernel_next(p, &k) > 0; p = k.end)
		n++;
	out = te__malloc(n);
	if (!out)
		return NULL;
	for (p = text; te__ptx_kernel_next(p, &k) > 0; p = k.end) {
		memcpy(out + at, p, (size_t)(k.start - p));
		at += (size_t)(k.start - p);
	}
	n = strlen(p);
	memcpy(out + at, p, n);
	*ret_rest = at += n;
	for (p = text; te__ptx_kernel_next(p, &k) > 0; p = k.end) {
		out[at++] = '\n';
		memcpy(out + at, k.start, (size_t)(k.end - k.start));
		at += (size_t)(k.end - k.start);
	}
	out[at] = 0;
	return out;
}

int te__cuda_image_unpack(const struct te__kernel_image *image, struct te__cuda_image *ret)
{
	static const uint8_t xz[] = { 0xfd, '7', 'z', 'X', 'Z', 0 };
	size_t nbytes = (size_t)(image->end - image->start);
	const void *data = image->start;
	size_t rest = 0;
	void *memory = NULL;
	int r = 0;

	if (nbytes >= sizeof(xz) && !memcmp(data, xz, sizeof(xz)))
		r = unpack(image->start, nbytes, &memory, &nbytes);
	if (r)
		return r;
	if (memory)
		data = memory;
	if (image->ptx) {
		const char *text = ptx_for(data, nbytes, image->ptx);
		char *read = text ? te__malloc(ptx_read(text, NULL)) : NULL;
		const int found = text != NULL;

		if (read)
			ptx_read(text, read);
		te__free(memory);
		data = memory = read ? kernels_last(read, &rest) : NULL;
		te__free(read);
		if (!memory)
			return found ? -ENOMEM : -TE_EKERNEL;
	}
	*ret = (struct te__cuda_image){ image->name, data, memory, rest, 0 };
	return 0;
}

static void *unpack_some(void *arg)
{
	struct te__cuda_images *k = arg;
	size_t i;

	while ((i = atomic_fetch_add(&k->next, 1)) < k->n) {
		struct te__cuda_image *to = &k->image[i].to;

		to->error = te__cuda_image_unpack(k->image[i].from, to);
		to->name = k->image[i].from->name;
	}
	return NULL;
}

struct te__cuda_images *te__cuda_images_begin(int level, int ptx)
{
	const struct te__kernel_image *from;
	struct te__cuda_images *k;
	size_t n = 0;

	while (embedded[n].name)
		n++;
	k = te__calloc(1, sizeof(*k) + n * sizeof(k->image[0]));
	if (!k)
		return NULL;
	for (from = embedded; from->name; from++)
		if (from->level == (size_t)level && !from->ptx == !ptx)
			k->image[k->n++].from = from;
	while (k->nthreads < THREADS && (size_t)k->nthreads < k->n &&
	       !te__thread_create(&k->thread[k->nthreads], "te-unpack", unpack_some, k))
		k->nthreads++;
	return k;
}

size_t te__cuda_images_wait(struct te__cuda_images *k)
{
	unpack_some(k); /* all of them if there are no threads */
	while (k->nthreads)
		pthread_join(k->thread[--k->nthreads], NULL);
	return k->n;
}

const struct te__cuda_image *te__cuda_image(const struct te__cuda_images *k, size_t i)
{
	return &k->image[i].to;
}

struct te__cuda_images *te__cuda_images_end(struct te__cuda_images *k)
{
	if (!k)
		return NULL;
	te__cuda_images_wait(k);
	for (size_t i = 0; i < k->n; i++)
		te__free(k->image[i].to.memory);
	te__free(k);
	return NULL;
}
