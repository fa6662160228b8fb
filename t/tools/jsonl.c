/* t/tools/jsonl.c - te_train's JSON lines: documents, their targets, templates of chats. */
#include "config.h"

#include "tools/lib/say.h"
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

START_TEST(documents_have_masks)
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
END_TEST

START_TEST(templates_can_be_given)
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
END_TEST

TT_SUITE("tools/jsonl", TT_NEED_NOTHING)
{
	TCase *c = tt_case(s, "jsonl", "host");

	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_loop_test(c, documents_have_masks, 0, TT_LEN(documents));
	tcase_add_test(c, templates_can_be_given);
}
