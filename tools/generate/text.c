/* text.c - tokens as text. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/generate/generate.h"
#include "tools/lib/say.h"
#include "tools/lib/tokens.h"

/* ---- text ---- */

/* control characters would change what a terminal does */
static void put_text(const char *text, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const unsigned char c = (unsigned char)text[i];

		putchar((c < ' ' && c != '\n' && c != '\t') || c == 127 ? '?' : c);
	}
}

int text_put(const struct run *r, int32_t token)
{
	const char byte = (char)token;
	char *text = NULL;
	size_t n = 0;
	int s = STATUS_OK;

	if (r->tokenizer) {
		s = tokenizer_decode(r->tokenizer, token, &text, &n);
		if (!s)
			put_text(text, n);
		free(text);
	} else if (token >= 0 && run_is_bytes(r)) {
		put_text(&byte, 1);
	} else if (token >= 0) {
		printf("%d ", (int)token);
	}
	return s;
}

int text_put_job(const struct run *r, const struct job *j)
{
	const int64_t end = r->stop ? j->nprompt : j->n;
	char *text = NULL;
	size_t n = 0;
	int s = STATUS_OK;

	if (j->text)
		put_text(j->text, strlen(j->text));
	for (int64_t i = j->text || j->messages ? j->nprompt : 0; i < end && !s; i++)
		s = text_put(r, j->token[i]);
	if (!s)
		s = text_put(r, -1);
	if (!s && r->stop)
		s = text_after(r, j, &text, &n);
	if (text)
		put_text(text, n);
	free(text);
	return s;
}

/* whole: with the start of a character that later tokens would complete */
static int read_text(const struct run *r, const struct job *j, int whole, char **ret_text,
		     size_t *ret_n)
{
	size_t n = 0, room = 0;
	char *text = NULL;
	FILE *f;
	int s = STATUS_OK;

	if (!r->tokenizer && !run_is_bytes(r))
		return STATUS_OK;
	f = open_memstream(&text, &room);
	if (!f)
		return no_memory();
	for (int64_t k = j->nprompt; k <= j->n && !s; k++) {
		char *part = NULL;

		if (r->tokenizer)
			s = tokenizer_decode(r->tokenizer, k < j->n ? j->token[k] : -1, &part, &n);
		else if (k < j->n)
			putc(j->token[k], f);
		if (part && (k < j->n || whole))
			fwrite(part, 1, n, f);
		free(part);
	}
	if (fclose(f) && !s)
		s = no_memory();
	if (s) {
		free(text);
		return s;
	}
	*ret_text = text;
	*ret_n = room;
	return STATUS_OK;
}

int text_after(const struct run *r, const struct job *j, char **ret_text, size_t *ret_n)
{
	const int s = read_text(r, j, 1, ret_text, ret_n);
	const char *end = NULL;

	if (!s && r->stop)
		end = memmem(*ret_text, *ret_n, r->stop, strlen(r->stop));
	if (end)
		*ret_n = (size_t)(end - *ret_text);
	return s;
}

int text_stop(const struct run *r, struct job *j, int loud)
{
	const size_t nstop = strlen(r->stop);
	char *text, *end;
	size_t n, kept;
	int s = read_text(r, j, j->end != NULL, &text, &n);

	if (s)
		return s;
	end = memmem(text, n, r->stop, nstop);
	if (end) {
		j->end = "stop";
		n = (size_t)(end - text);
	}
	/* bytes that may be the first ones of the text that stops are not printed yet */
	for (kept = n < nstop ? n : nstop - 1; kept && !j->end; kept--)
		if (!memcmp(text + n - kept, r->stop, kept))
			break;
	n -= j->end ? 0 : kept;
	if (loud && n > j->nshown) {
		put_text(text + j->nshown, n - j->nshown);
		j->nshown = n;
	}
	free(text);
	return STATUS_OK;
}
