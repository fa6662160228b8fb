/*
 * te_token - tokens of a text, text of tokens, and vocabularies: te_token(1).
 *
 * Tokens are decimal numbers, or with --binary 32-bit integers of the host's byte order.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/errno.h>
#include <te/token.h>

#include "tools/lib/clock.h"
#include "tools/lib/option.h"
#include "tools/lib/say.h"
#include "tools/lib/target.h"

static struct {
	char *tokenizer, *pattern, *output;
	int64_t template, ordinary, skip_special, binary, threads, vocab, json;
} opt;
#define AT(field) offsetof(__typeof__(opt), field)

static const struct option_field fields[] = {
	{ "tokenizer", OPTION_TEXT, AT(tokenizer), NULL, 0, 0, 't', "FILE|DIR",
	  "tokenizer.json, tekken.json, a file of tiktoken or SentencePiece, or a folder" },
	{ "pattern", OPTION_TEXT, AT(pattern), NULL, 0, 0, 0, "NAME",
	  "gpt2, cl100k, o200k, llama3 or qwen2: for train, and files of tiktoken" },
	{ "output", OPTION_TEXT, AT(output), NULL, 0, 0, 'o', "FILE", "instead of stdout" },
	{ "template", OPTION_FLAG, AT(template), NULL, 0, 1, 0, NULL,
	  "encode, count: add the tokens that begin and end a text" },
	{ "ordinary", OPTION_FLAG, AT(ordinary), NULL, 0, 1, 0, NULL,
	  "encode, count: special tokens in the text are ordinary text" },
	{ "skip-special", OPTION_FLAG, AT(skip_special), NULL, 0, 1, 0, NULL,
	  "decode: leave out special tokens" },
	{ "binary", OPTION_FLAG, AT(binary), NULL, 0, 1, 'b', NULL,
	  "tokens are 32-bit integers, not text" },
	{ "threads", OPTION_INT, AT(threads), "0", 0, 1024, 0, "N", "0: one for each core" },
	{ "vocab", OPTION_COUNT, AT(vocab), "8192", 256, 4194304, 0, "N",
	  "train: size of the vocabulary" },
	{ "json", OPTION_FLAG, AT(json), NULL, 0, 1, 0, NULL, "count: print one JSON object" },
	{ 0 },
};

static const struct option_table options = {
	.usage = "usage: te_token encode|decode|count -t FILE|DIR [options] [FILE]\n"
		 "       te_token train [--vocab N] [options] [FILE]\n"
		 "Turns text into tokens and back: see te_token(1).\n\n",
	.fields = (const struct option_field *const[]){ fields, NULL },
};

/* options that other commands would ignore */
static int check_options(const char *command)
{
	const struct {
		const char *name, *commands;
		int given;
	} only[] = {
		{ "tokenizer", "encode|decode|count", opt.tokenizer != NULL },
		{ "template", "encode|count", opt.template != 0 },
		{ "ordinary", "encode|count", opt.ordinary != 0 },
		{ "skip-special", "decode", opt.skip_special != 0 },
		{ "binary", "encode|decode", opt.binary != 0 },
		{ "json", "count", opt.json != 0 },
	};

	for (size_t i = 0; i < sizeof(only) / sizeof(only[0]); i++)
		if (only[i].given && option_choice(only[i].commands, command, strlen(command)) < 0)
			return say_bad("--%s: not an option of %s, but of %s", only[i].name,
				       command, only[i].commands);
	return STATUS_OK;
}

/* all bytes of a file, or of stdin for NULL or "-" */
static int read_all(const char *path, char **ret_p, size_t *ret_n)
{
	const int is_stdin = !path || !strcmp(path, "-");
	const int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
	size_t n = 0, room = 0;
	char *p = NULL, *q;
	ssize_t k = 1;

	if (fd < 0)
		return say_bad("%s: %s", path, strerror(errno));
	while (k) {
		if (n == room) {
			room = room ? 2 * room : 1 << 16;
			q = realloc(p, room);
			if (!q) {
				free(p);
				return say_failed("out of memory");
			}
			p = q;
		}
		k = read(fd, p + n, room - n);
		if (k < 0 && errno == EINTR)
			continue;
		if (k < 0) {
			free(p);
			return say_bad("%s: %s", is_stdin ? "stdin" : path, strerror(errno));
		}
		n += (size_t)k;
	}
	if (!is_stdin)
		close(fd);
	*ret_p = p;
	*ret_n = n;
	return 0;
}

static struct target target = { .fd = -1 }; /* the file of --output */
static FILE *out;

static int open_output(void)
{
	int r, fd;

	out = stdout;
	if (!opt.output)
		return STATUS_OK;
	r = target_open(&target, opt.output);
	if (r)
		return r;
	fd = fcntl(target.fd, F_DUPFD_CLOEXEC, 0);
	out = fd < 0 ? NULL : fdopen(fd, "w");
	return out ? STATUS_OK : say_failed("%s: %s", opt.output, strerror(errno));
}

static int finish(void)
{
	const int bad = ferror(out);

	if (fclose(out) || bad)
		return say_failed("%s: %s", opt.output ? opt.output : "standard output",
				  strerror(errno));
	return opt.output ? target_commit(&target) : STATUS_OK;
}

static int encode(struct te_token *t, const char *p, size_t n, int is_count)
{
	const uint32_t flags =
		(opt.template ? TE_TOKEN_TEMPLATE : 0) | (opt.ordinary ? TE_TOKEN_ORDINARY : 0);
	int32_t *ids;
	size_t nids;
	double from, s;
	int r;

	from = now_s();
	r = te_token_encode(t, p, n, flags, (int)opt.threads, &ids, &nids);
	s = now_s() - from;
	if (r)
		return say_te(r, "encode");
	if (is_count && opt.json)
		fprintf(out,
			"{\"tokens\": %zu, \"bytes\": %zu, \"vocab\": %" PRId32
			", \"seconds\": %.6f}\n",
			nids, n, te_token_count(t), s);
	else if (is_count)
		fprintf(out, "%zu tokens, %zu bytes\n", nids, n);
	else if (opt.binary)
		fwrite(ids, sizeof(*ids), nids, out);
	else
		for (size_t i = 0; i < nids; i++)
			fprintf(out, "%" PRId32 "%c", ids[i],
				i + 1 == nids || i % 16 == 15 ? '\n' : ' ');
	free(ids);
	return finish();
}

/* the next token of a text of numbers; 1: there is none; an exit status if it is no number */
static int number(const char **p, const char *end, int32_t *ret)
{
	int64_t v = 0;
	const char *q = *p;

	while (q < end && strchr(" \t\r\n,[]", *q) && *q)
		q++;
	*p = q;
	if (q == end)
		return 1;
	while (q < end && *q >= '0' && *q <= '9' && v <= INT32_MAX)
		v = v * 10 + (*q++ - '0');
	if (q == *p || v > INT32_MAX)
		return say_bad("decode: expected a token, found %.*s",
			       (int)(end - q < 20 ? end - q : 20), *p);
	*p = q;
	*ret = (int32_t)v;
	return 0;
}

static int decode(struct te_token *t, const char *p, size_t n)
{
	const char *at = p;
	int32_t *ids = malloc(n / (opt.binary ? 1 : 2) * sizeof(*ids) + sizeof(*ids));
	size_t nids = 0, ntext;
	char *text;
	int r = 0;

	if (!ids)
		return say_failed("out of memory");
	if (opt.binary && n % sizeof(*ids))
		r = say_bad("decode: %zu bytes are no whole number of tokens", n);
	if (opt.binary && n && !r) {
		memcpy(ids, p, n);
		nids = n / sizeof(*ids);
	}
	while (!opt.binary && !r)
		r = number(&at, p + n, &ids[nids]), nids += !r;
	if (r == 1 && at == p + n)
		r = 0;
	if (!r) {
		r = te_token_decode(t, ids, nids, opt.skip_special ? TE_TOKEN_SKIP_SPECIAL : 0,
				    &text, &ntext);
		if (r) {
			r = say_te(r, "decode");
		} else {
			fwrite(text, 1, ntext, out);
			free(text);
			r = finish();
		}
	}
	free(ids);
	return r;
}

static int train(const char *p, size_t n)
{
	struct te_token *t;
	char *json;
	int r = te_token_train(p, n, (int32_t)opt.vocab, opt.pattern, &json);

	if (r)
		return say_te(r, "train");
	r = te_token_load(json, strlen(json), NULL, &t);
	if (r) {
		free(json);
		return say_te(r, "train");
	}
	if (te_token_count(t) < opt.vocab)
		say_note("te_token: warning: the text has pairs for %" PRId32
			 " tokens only, --vocab "
			 "is %" PRId64,
			 te_token_count(t), opt.vocab);
	te_token_unref(t);
	fprintf(out, "%s\n", json);
	free(json);
	return finish();
}

int main(int argc, char **argv)
{
	static const char commands[] = "encode|decode|count|train";
	struct te_token *t = NULL;
	const char *command;
	char *p = NULL;
	size_t n = 0;
	int r, which;

	say_as("te_token");
	if (option_parse(&options, &opt, argc, argv, &r))
		return r;
	command = optind < argc ? argv[optind] : "";
	which = option_choice(commands, command, strlen(command));
	if (which < 0 || argc - optind > 2)
		return say_bad("expected encode, decode, count or train, and one file at most; "
			       "see te_token --help");
	r = check_options(command);
	if (r)
		return r;
	if (which < 3 && !opt.tokenizer)
		return say_bad("%s needs --tokenizer FILE|DIR", command);
	signal(SIGXFSZ, SIG_IGN); /* a limit of the file's size is an error to report */
	if (which < 3) {
		r = te_token_open(opt.tokenizer, opt.pattern, &t);
		if (r)
			return r == -ENOMEM ? say_failed("out of memory") :
					      say_bad("%s", te_error_detail());
	}
	r = read_all(argv[optind + 1], &p, &n);
	if (!r)
		r = open_output();
	if (!r)
		r = which == 1 ? decode(t, p, n) :
		    which == 3 ? train(p, n) :
				 encode(t, p, n, which == 2);
	free(p);
	target_close(&target);
	te_token_unref(t);
	option_free(fields, &opt);
	return r;
}
