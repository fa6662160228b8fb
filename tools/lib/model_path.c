/* model_path.c - what a user gave as a model, if it cannot be one. */
#include "config.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf.h"
#include "model_path.h"
#include "say.h"

/* ORG/NAME or NAME, as the hub names models, also in an address; NULL: none, or a folder here */
static const char *hub_name(const char *s)
{
	static const char *const address[] = { "https://huggingface.co/", "https://hf.co/",
					       "hf://" };
	static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				   "0123456789-_.";
	struct stat st;
	size_t n;

	if (!stat(s, &st) || errno != ENOENT || *s == '.' || strstr(s, ".json") ||
	    strstr(s, ".gguf"))
		return NULL;
	for (size_t i = 0; i < sizeof(address) / sizeof(address[0]); i++)
		if (!strncmp(s, address[i], strlen(address[i])))
			s += strlen(address[i]);
	n = strspn(s, word);
	if (s[n] == '/' && s[n + 1] != '.')
		n += 1 + strspn(s + n + 1, word);
	return n && !s[n] && s[n - 1] != '/' ? s : NULL;
}

int model_path_check_hub(const char *path)
{
	const char *hub = hub_name(path);

	return !hub ? STATUS_OK :
		      say_bad("%s: there is no such file or folder, and only local ones are read: "
			      "a model of the Hugging Face hub is downloaded by, for example, "
			      "hf download %s --local-dir DIR", path, hub);
}

/* a folder downloaded for its GGUF files */
static int check_gguf_in(const char *dir)
{
	char file[4096];
	const struct dirent *e;
	int r = STATUS_OK;
	DIR *d;

	snprintf(file, sizeof(file), "%s/config.json", dir);
	d = access(file, F_OK) ? opendir(dir) : NULL;
	if (!d)
		return STATUS_OK;
	while (!r && (e = readdir(d)))
		if (!fnmatch("*.gguf", e->d_name, 0) && strcmp(e->d_name, "tokenizer.gguf"))
			r = say_bad("%s: there is no config.json, but %s: give that file, %s/%s",
				    dir, e->d_name, dir, e->d_name);
	closedir(d);
	return r;
}

int model_path_check(const char *path)
{
	int r = model_path_check_hub(path);
	struct stat st;

	if (r || stat(path, &st))
		return r;
	if (S_ISDIR(st.st_mode))
		return check_gguf_in(path);
	return gguf_is(path) ? STATUS_OK :
			       say_bad("%s: expected a folder with config.json and "
				       "model.safetensors, or a GGUF file", path);
}
