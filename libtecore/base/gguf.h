/*
 * gguf.h - walking the metadata of a GGUF file in memory, for libtetoken and tools.
 *
 * Format: https://github.com/ggml-org/ggml, docs/gguf.md, versions 2 and 3, little-endian: a
 * header, metadata, the descriptions of tensors, and their data. All lengths are compared with the
 * size of the file before they are used, so that a damaged file costs no more than a walk through
 * its header.
 */
#ifndef TE__GGUF_H
#define TE__GGUF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TE__GGUF_MOST_ITEMS 65536 /* items of metadata, and tensors */

/* types of values */
enum {
	TE__GGUF_UINT8 = 0,
	TE__GGUF_INT8 = 1,
	TE__GGUF_UINT32 = 4,
	TE__GGUF_INT32 = 5,
	TE__GGUF_FLOAT32 = 6,
	TE__GGUF_BOOL = 7,
	TE__GGUF_TEXT = 8,
	TE__GGUF_LIST = 9
};

static const struct {
	uint8_t nbytes;
	char kind; /* u: natural number, i: integer, b: truth value, f: real */
} te__gguf_types[] = {
	{ 1, 'u' }, { 1, 'i' }, { 2, 'u' }, { 2, 'i' }, { 4, 'u' }, { 4, 'i' }, { 4, 'f' },
	{ 1, 'b' }, { 0, 0 },	{ 0, 0 },   { 8, 'u' }, { 8, 'i' }, { 8, 'f' },
};
#define TE__GGUF_NTYPES (sizeof(te__gguf_types) / sizeof(te__gguf_types[0]))

/* bytes that are left, or a text */
struct te__gguf {
	const char *p;
	size_t n;
};

/* a value: a text, the elements of a list, or the bytes of a number */
struct te__gguf_value {
	uint32_t type, of; /* of: type of a list's elements */
	uint64_t n;	   /* elements of a list */
	struct te__gguf at;
};

/* the next n bytes, or NULL: the file is too short */
static inline const char *te__gguf_take(struct te__gguf *b, uint64_t n)
{
	const char *p = b->p;

	if (n > b->n)
		return NULL;
	b->p += n;
	b->n -= (size_t)n;
	return p;
}

/* a number of n bytes; returns 0 if the file is too short */
static inline int te__gguf_number(struct te__gguf *b, size_t n, uint64_t *ret)
{
	const char *p = te__gguf_take(b, n);

	*ret = 0;
	if (p)
		memcpy(ret, p, n);
	return p != NULL;
}

static inline int te__gguf_text(struct te__gguf *b, struct te__gguf *ret)
{
	uint64_t n;

	*ret = (struct te__gguf){ NULL, 0 };
	if (!te__gguf_number(b, 8, &n))
		return 0;
	ret->p = te__gguf_take(b, n);
	ret->n = (size_t)n;
	return ret->p != NULL;
}

static inline int te__gguf_value(struct te__gguf *b, struct te__gguf_value *v)
{
	uint64_t type, of = 0;
	struct te__gguf text;

	*v = (struct te__gguf_value){ .type = 0 };
	if (!te__gguf_number(b, 4, &type) || type >= TE__GGUF_NTYPES)
		return 0;
	v->type = (uint32_t)type;
	if (type == TE__GGUF_TEXT)
		return te__gguf_text(b, &v->at);
	v->at = *b;
	if (type != TE__GGUF_LIST)
		return te__gguf_take(b, te__gguf_types[type].nbytes) != NULL;
	if (!te__gguf_number(b, 4, &of) || !te__gguf_number(b, 8, &v->n) ||
	    of >= TE__GGUF_NTYPES || of == TE__GGUF_LIST)
		return 0;
	v->of = (uint32_t)of;
	v->at = *b;
	if (of != TE__GGUF_TEXT)
		return v->n <= b->n && te__gguf_take(b, v->n * te__gguf_types[of].nbytes);
	for (uint64_t i = 0; i < v->n; i++)
		if (!te__gguf_text(b, &text))
			return 0;
	return 1;
}

/* the header; returns 0 if the file is too short */
static inline int te__gguf_head(struct te__gguf *b, uint64_t *ret_version, uint64_t *ret_ntensors,
				uint64_t *ret_nitems)
{
	return te__gguf_take(b, 4) && te__gguf_number(b, 4, ret_version) &&
	       te__gguf_number(b, 8, ret_ntensors) && te__gguf_number(b, 8, ret_nitems);
}

#endif
