/* t/tools/jsonl.c - te_train's JSON lines: documents, their targets, templates of chats. */
#include "config.h"

#include "tools/lib/say.h"
#include "tools/te_train/blocks.h"
#include "tools/te_train/jsonl.h"
#include "tt.h"

static void setup(void)
{
	say_hush(1);
}

static void teardown(void)
{
	say_hush(0);
}

static const char *const no_role[CHAT_NROLES];

/* text: the tokens, with \1 before and \2 after those that are targets */
static const struct {
	const char *chat, *line, *text;
} documents[] = {
	{ "chatml", "{\"text\": \"ab\\u0007c\"}", "a\1b\7c\n" },
	{ "chatml", "{\"text\": \"\"}", "\n" },
	{ "chatml", "{\"prompt\": \"Hi \", \"completion\": \"yo\", \"id\": 5}", "Hi \1yo\n" },
	{ "chatml", "{\"prompt\": \"\", \"completion\": \"yo\"}", "y\1o\n" },
	{ "chatml",
	  "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"},"
	  " {\"role\": \"assistant\", \"content\": \"bc\"}]}",
	  "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n\1bc<|im_end|>\n" },
	{ "mistral",
	  "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"},"
	  " {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}]},"
	  " {\"role\": \"assistant\", \"content\": \"b\"},"
	  " {\"role\": \"user\", \"content\": \"c\"}]}",
	  "<s> [INST] s\n\na [/INST] \1b</s>\2 [INST] c [/INST]" },
	{ "llama3", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"b\"}]}",
	  "<|begin_of_text|><|start_header_id|>assistant<|end_header_id|>\n\n\1b<|eot_id|>" },
};

/* the documents of lines that come in chunks of random sizes */
static struct docs read_lines(const char *template, const char *text, size_t n)
{
	struct docs docs = { 0 };
	struct chat c = { 0 };
	struct jsonl j = { .name = "x", .chat = &c, .docs = &docs };

	ck_assert_int_eq(chat_create(template, NULL, no_role, NULL, &c), 0);
	for (size_t at = 0, k; at < n; at += k) {
		k = (size_t)tt_rand_int(1, 30);
		k = k < n - at ? k : n - at;
		jsonl_add(&j, (const uint8_t *)text + at, k);
	}
	ck_assert_int_eq(jsonl_end(&j), 0);
	chat_free(&c);
	return docs;
}

CASE(jsonl, "host", .setup = setup, .teardown = teardown);

TEST_EACH(jsonl, documents_have_masks, TT_LEN(documents))
{
	char text[1024];
	const int n = snprintf(text, sizeof(text), "\n%s\n  \n%s", documents[_i].line,
			       documents[_i].line);
	struct docs docs = read_lines(documents[_i].chat, text, (size_t)n);
	int64_t i = 0, ntargets = 0;

	for (int twice = 0; twice < 2; twice++) {
		int target = 0;

		for (const char *p = documents[_i].text; *p; p++) {
			if (*p == '\1' || *p == '\2') {
				target = *p == '\1';
				continue;
			}
			ck_assert_int_lt(i, docs.n);
			ck_assert_int_eq(docs.token[i], *p);
			ck_assert_int_eq(docs.ignored[i] == DOCS_TARGET, target);
			ck_assert_int_eq(docs.ignored[i] == DOCS_FIRST, p == documents[_i].text);
			ntargets += target;
			i++;
		}
	}
	ck_assert_int_eq(i, docs.n);
	ck_assert_int_eq(docs.ntargets, ntargets);
	docs_free(&docs);
}

TEST(jsonl, templates_can_be_given)
{
	const char *role[CHAT_NROLES] = { "S{}\\n", NULL, "{}" };
	const char *const bad[] = { "", "{", "{}{}", "{}\\", "{}\\x" };
	struct chat c = { 0 };

	ck_assert_int_eq(chat_create("mistral", "\\t", role, "", &c), 0);
	ck_assert_str_eq(c.begin, "\t");
	ck_assert_str_eq(c.role[CHAT_SYSTEM], "S{}\n");
	ck_assert_str_eq(c.role[CHAT_USER], " [INST] {} [/INST]");
	ck_assert_str_eq(c.role[CHAT_ASSISTANT], "{}");
	ck_assert_str_eq(c.end, "");
	chat_free(&c);
	for (size_t i = 0; i < TT_LEN(bad); i++) {
		role[CHAT_USER] = bad[i];
		ck_assert_int_eq(chat_create("mistral", NULL, role, NULL, &c), STATUS_BAD);
	}
	ck_assert_int_eq(chat_create("llama3", "\\", no_role, NULL, &c), STATUS_BAD);
	ck_assert_ptr_null(c.begin);
}

#define NLINES 3000

/* documents of random lengths, some of many blocks, and blank lines; *ret_n: without the newline at
 * the end */
static char *random_lines(size_t *ret_n)
{
	char *text = malloc((size_t)NLINES * 64 + 8 * 5000), *p = text;

	ck_assert_ptr_nonnull(text);
	for (int i = 0; i < NLINES; i++) {
		const int n = i % 500 == 7 ? 5000 : (int)tt_rand_int(0, 20);

		if (tt_rand_int(0, 9))
			p += sprintf(p, "{\"prompt\": \"%d\", \"completion\": \"%0*d\"}", i, n,
				     0);
		*p++ = '\n';
	}
	*ret_n = (size_t)(p - text) - 1;
	return text;
}

static int read_blocks(int nthreads, const char *text, size_t n, struct docs *ret_docs)
{
	struct chat c = { 0 };
	struct jsonl j = { .name = "x", .chat = &c, .docs = ret_docs };
	struct blocks *b;
	int r;

	ck_assert_int_eq(blocks_begin(&j, nthreads, 1000, &b), 0);
	for (size_t at = 0, k; at < n; at += k) {
		k = (size_t)tt_rand_int(1, 3000);
		k = k < n - at ? k : n - at;
		blocks_add(b, (const uint8_t *)text + at, k, (int64_t)at);
	}
	r = blocks_end(b);
	chat_free(&c);
	return r;
}

TEST_EACH(jsonl, threads_find_the_same_documents, 6, .from = 1)
{
	size_t n;
	char *text = random_lines(&n);
	struct docs want = read_lines("chatml", text, n), got = { 0 };

	ck_assert_int_eq(read_blocks(_i, text, n, &got), 0);
	ck_assert_int_eq(got.n, want.n);
	ck_assert_int_eq(got.ntargets, want.ntargets);
	ck_assert_mem_eq(got.token, want.token, (size_t)want.n * sizeof(*want.token));
	ck_assert_mem_eq(got.ignored, want.ignored, (size_t)want.n);
	docs_free(&want);
	docs_free(&got);
	free(text);
}

static char said[256];

static void note(const char *line)
{
	snprintf(said, sizeof(said), "%s", line);
}

TEST(jsonl, threads_report_the_first_bad_line)
{
	size_t n;
	char *text = random_lines(&n), *p = text;
	struct docs docs = { 0 };
	const int first = (int)tt_rand_int(0, NLINES - 1);
	char want[64];

	/* this line and all after it */
	for (int i = 0; i < first; i++)
		p = strchr(p, '\n') + 1;
	for (char *q = p; q < text + n; q++)
		*q = *q == '\n' ? *q : '?';
	*p = '?';
	snprintf(want, sizeof(want), "x: line %d: is not JSON", first + 1);
	say_hush(0);
	say_by(note);
	ck_assert_int_eq(read_blocks(4, text, n + 1, &docs), STATUS_BAD);
	say_by(NULL);
	ck_assert_msg(strstr(said, want) != NULL, "%s, expected %s", said, want);
	docs_free(&docs);
	free(text);
}

TT_MAIN("tools/jsonl", TT_NEED_NOTHING)
