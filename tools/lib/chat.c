/* chat.c - templates of chats, and the messages of a conversation as text. */
#include "config.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "chat.h"
#include "folder.h"
#include "gguf.h"
#include "pyjson.h"
#include "say.h"
#include "tokens.h"

#define SOURCE_NBYTES (1 << 20)
#define GGUF_TEXT 8 /* type of a text in metadata */

/* ---- templates ---- */

static const char *const role_name[CHAT_NROLES] = { "system", "user", "assistant" };

#define LLAMA3(role) "<|start_header_id|>" role "<|end_header_id|>\n\n{}<|eot_id|>"

static const struct {
	const char *name, *begin, *role[CHAT_NROLES];
} templates[] = {
	/* ChatML, as Qwen's tokenizers have it */
	{ "chatml",
	  "",
	  { "<|im_start|>system\n{}<|im_end|>\n", "<|im_start|>user\n{}<|im_end|>\n",
	    "<|im_start|>assistant\n{}<|im_end|>\n" } },
	/* model card of Llama 3 */
	{ "llama3",
	  "<|begin_of_text|>",
	  { LLAMA3("system"), LLAMA3("user"), LLAMA3("assistant") } },
	/* mistral-common, version 1 */
	{ "mistral", "<s>", { NULL, " [INST] {} [/INST]", " {}</s>" } },
	/* tokenizer_config.json of Gemma 2 and 3, of Phi-3 and of TinyLlama's chat model */
	{ "gemma",
	  "<bos>",
	  { NULL, "<start_of_turn>user\n{}<end_of_turn>\n",
	    "<start_of_turn>model\n{}<end_of_turn>\n" } },
	{ "phi3",
	  "",
	  { "<|system|>\n{}<|end|>\n", "<|user|>\n{}<|end|>\n", "<|assistant|>\n{}<|end|>\n" } },
	{ "zephyr",
	  "",
	  { "<|system|>\n{}</s>\n", "<|user|>\n{}</s>\n", "<|assistant|>\n{}</s>\n" } },
};

/* a text of the command line */
int chat_unescape(const char *option, const char *text, char **ret)
{
	char *copy = malloc(strlen(text) + 1), *to = copy;

	if (!copy)
		return say_failed("out of memory");
	for (; *text; text++) {
		if (*text != '\\') {
			*to++ = *text;
			continue;
		}
		text++;
		if (*text != 'n' && *text != 't' && *text != '\\') {
			free(copy);
			return say_bad("%s: a backslash is followed by neither n, t nor another",
				       option);
		}
		*to++ = *text == 'n' ? '\n' : *text == 't' ? '\t' : '\\';
	}
	*to = '\0';
	free(*ret);
	*ret = copy;
	return STATUS_OK;
}

static int set_role(const char *name, const char *text, char **ret)
{
	char option[32], *at;
	int r;

	snprintf(option, sizeof(option), "--chat-%s", name);
	r = chat_unescape(option, text, ret);
	if (r)
		return r;
	at = strstr(*ret, "{}");
	if (!at || strstr(at + 2, "{}"))
		return say_bad("%s: \"%s\": expected one {} for the content of a message", option,
			       text);
	return STATUS_OK;
}

int chat_create(const char *name, const char *begin, const char *const role[CHAT_NROLES],
		const char *end, struct chat *ret_chat)
{
	struct chat c = { 0 };
	size_t k = 0;
	int r = STATUS_OK, lacks;

	while (strcmp(templates[k].name, name))
		k++; /* options have these names only */
	c.begin = strdup(templates[k].begin);
	lacks = !c.begin;
	for (int i = 0; i < CHAT_NROLES; i++) {
		const char *text = templates[k].role[i];

		c.role[i] = text ? strdup(text) : NULL;
		lacks |= text && !c.role[i];
	}
	if (lacks)
		r = say_failed("out of memory");
	if (!r && begin)
		r = chat_unescape("--chat-begin", begin, &c.begin);
	for (int i = 0; i < CHAT_NROLES && !r; i++)
		if (role[i])
			r = set_role(role_name[i], role[i], &c.role[i]);
	if (!r && end)
		r = chat_unescape("--doc-end", end, &c.end);
	if (r)
		chat_free(&c);
	else
		*ret_chat = c;
	return r;
}

void chat_free(struct chat *c)
{
	free(c->begin);
	for (int i = 0; i < CHAT_NROLES; i++)
		free(c->role[i]);
	free(c->end);
	memset(c, 0, sizeof(*c));
}

/* ---- messages ---- */

struct writer {
	const struct chat *c;
	chat_put put;
	void *arg;
	char *wrong;
};

/* the failure of a message: the caller reports it with the line */
#define wrong(w, ...) (snprintf((w)->wrong, CHAT_NWRONG, __VA_ARGS__), STATUS_BAD)

static int add_text(struct writer *w, const char *text, size_t n, int target)
{
	return w->put(w->arg, text, n, target);
}

static int add_string(struct writer *w, const char *text, int target)
{
	return add_text(w, text, strlen(text), target);
}

static int add_field(struct writer *w, const json_t *obj, const char *key, int target)
{
	const json_t *v = json_object_get(obj, key);

	if (!json_is_string(v))
		return wrong(w, "\"%s\" is not a text", key);
	return add_text(w, json_string_value(v), json_string_length(v), target);
}

/* a text, or a list of parts, each {"type": "text", "text": ...} */
static int add_content(struct writer *w, const json_t *content, int target)
{
	int r = STATUS_OK;

	if (json_is_string(content))
		return add_text(w, json_string_value(content), json_string_length(content), target);
	if (!json_is_array(content))
		return wrong(w, "the \"content\" of a message is not a text");
	for (size_t i = 0; i < json_array_size(content) && !r; i++) {
		const json_t *part = json_array_get(content, i);
		const char *type = json_string_value(json_object_get(part, "type"));

		r = type && !strcmp(type, "text") ?
			    add_field(w, part, "text", target) :
			    wrong(w, "a part of a message is not {\"type\": \"text\", ...}");
	}
	return r;
}

static int find_role(struct writer *w, const json_t *message, enum chat_role *ret)
{
	const char *role = json_string_value(json_object_get(message, "role"));

	for (int i = 0; i < CHAT_NROLES && role; i++) {
		if (strcmp(role, role_name[i]))
			continue;
		*ret = (enum chat_role)i;
		return STATUS_OK;
	}
	return wrong(w, "the role of a message is \"%.40s\", expected system, user or assistant",
		       role ? role : "");
}

/* before: content of a message without a text of its own, or NULL */
static int add_message(struct writer *w, const json_t *message, enum chat_role role,
		       const json_t *before)
{
	const char *text = w->c->role[role], *at = strstr(text, "{}");
	const int target = role == CHAT_ASSISTANT;
	int r = add_text(w, text, (size_t)(at - text), 0);

	if (!r && before)
		r = add_content(w, before, 0);
	if (!r && before)
		r = add_string(w, "\n\n", 0);
	if (!r)
		r = add_content(w, json_object_get(message, "content"), target);
	return r ? r : add_string(w, at + 2, target);
}

int chat_messages(const struct chat *c, const json_t *list, chat_put put, void *arg,
		  char ret_wrong[CHAT_NWRONG])
{
	struct writer writer = { c, put, arg, ret_wrong }, *w = &writer;
	const json_t *before = NULL;
	int r = STATUS_OK;

	if (!json_is_array(list))
		return wrong(w, "\"messages\" is not a list");
	for (size_t i = 0; i < json_array_size(list) && !r; i++) {
		const json_t *message = json_array_get(list, i);
		enum chat_role role = CHAT_USER;

		r = find_role(w, message, &role);
		if (!r && before && role != CHAT_USER)
			r = wrong(w, "no message of the user follows the one of the system");
		if (!r && !w->c->role[role]) {
			before = json_object_get(message, "content");
			continue;
		}
		if (!r)
			r = add_message(w, message, role, before);
		before = NULL;
	}
	if (!r && before)
		r = wrong(w, "no message of the user follows the one of the system");
	return r;
}

/* ---- templates of transformers ---- */

/* words of a text in Jinja's language, where a newline is one or \n, and a word that it lacks */
static const struct {
	const char *name, *has[3], *lacks;
} sources[] = {
	{ "chatml", { "<|im_start|>", "<|im_end|>", "\n" }, "<|im_sep|>" },
	{ "llama3",
	  { "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>" },
	  "<|python_start|>" },
	{ "gemma", { "<start_of_turn>", "<end_of_turn>\n", "model" }, "<|" },
	{ "phi3", { "<|user|>\n", "<|end|>\n", "<|assistant|>\n" }, "eos_token" },
	{ "zephyr",
	  { "<|user|>\n' + message['content'] + eos_token",
	    "<|assistant|>\n' + message['content'] + eos_token", "\n" },
	  "bos_token" },
	{ "mistral", { "[INST] ", " [/INST]", "eos_token" }, "<<SYS>>" },
};

/* 1 if the word begins at the text */
static int begins(const char *text, const char *word)
{
	for (; *word; word++, text++) {
		if (*word == '\n' && text[0] == '\\' && text[1] == 'n')
			text++;
		else if (*word != *text)
			return 0;
	}
	return 1;
}

static int has(const char *text, const char *word)
{
	for (; *text; text++)
		if (begins(text, word))
			return 1;
	return 0;
}

const char *chat_name(const char *source)
{
	for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
		if (has(source, sources[i].has[0]) && has(source, sources[i].has[1]) &&
		    has(source, sources[i].has[2]) && !has(source, sources[i].lacks))
			return sources[i].name;
	return NULL;
}

/* chat_template: a text, or a list of {"name": ..., "template": ...} */
static const char *source_of(const json_t *config)
{
	const json_t *v = json_object_get(config, "chat_template"), *e;
	const char *name;
	size_t i;

	json_array_foreach(v, i, e) {
		name = json_string_value(json_object_get(e, "name"));
		if (name && !strcmp(name, "default"))
			return json_string_value(json_object_get(e, "template"));
	}
	return json_string_value(v);
}

static int read_text(const char *path, char **ret)
{
	struct stat st;
	ssize_t n = -1;
	int fd, r = file_open(path, &fd);

	if (r)
		return r;
	if (fstat(fd, &st) || st.st_size > SOURCE_NBYTES) {
		close(fd);
		return say_bad("%s: is larger than %d bytes", path, SOURCE_NBYTES);
	}
	*ret = calloc(1, (size_t)st.st_size + 1);
	if (*ret)
		n = pread(fd, *ret, (size_t)st.st_size, 0);
	r = !*ret ? say_failed("out of memory") :
	    n < 0 ? say_failed("%s: %s", path, strerror(errno)) :
		    STATUS_OK;
	close(fd);
	return r;
}

static int source_of_folder(const char *dir, char **ret)
{
	json_t *config = NULL;
	const char *text;
	char *path;
	int r = STATUS_OK;

	if (asprintf(&path, "%s/chat_template.jinja", dir) < 0)
		return say_failed("out of memory");
	if (!access(path, F_OK)) {
		r = read_text(path, ret);
		free(path);
		return r;
	}
	free(path);
	if (asprintf(&path, "%s/tokenizer_config.json", dir) < 0)
		return say_failed("out of memory");
	if (!access(path, F_OK))
		r = pyjson_load(path, &config);
	free(path);
	text = source_of(config);
	if (text)
		*ret = strdup(text);
	if (text && !*ret)
		r = say_failed("out of memory");
	json_decref(config);
	return r;
}

/* an item is the key's length and the key, 4 bytes of type, the text's length and the text */
static int source_of_gguf(const char *path, char **ret)
{
	static const char key[] = "tokenizer.chat_template";
	const size_t head = 8 + strlen(key) + 4 + 8;
	uint64_t nitems, n, len;
	size_t nbytes;
	void *items;
	uint32_t type;
	int r = gguf_items(path, key, &items, &nbytes, &nitems);
	const char *p;

	if (r)
		return r;
	p = items;
	if (nitems && nbytes >= head) {
		memcpy(&n, p, 8);
		memcpy(&type, p + head - 12, 4);
		memcpy(&len, p + head - 8, 8);
		if (n == strlen(key) && type == GGUF_TEXT && len <= nbytes - head) {
			*ret = strndup(p + head, (size_t)len);
			r = *ret ? STATUS_OK : say_failed("out of memory");
		}
	}
	free(items);
	return r;
}

int chat_source(const char *path, char **ret)
{
	char *file;
	int r;

	*ret = NULL;
	if (gguf_is(path))
		return source_of_gguf(path, ret);
	r = source_of_folder(path, ret);
	if (r || *ret)
		return r;
	if (asprintf(&file, "%s/" TOKENIZER_GGUF, path) < 0)
		return say_failed("out of memory");
	if (gguf_is(file))
		r = source_of_gguf(file, ret);
	free(file);
	return r;
}
