/* te_export - a model as a GGUF file, or as a folder of transformers: te_export(1). */
#include "config.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <te/ctx.h>

#include "tools/export/export.h"
#include "tools/lib/model_path.h"
#include "tools/lib/option.h"
#include "tools/lib/say.h"

#define TYPES "f32|bf16|q8_0"

static struct {
	char *model, *adapter, *tokenizer, *type;
	int64_t overwrite;
} opt;
#define AT(field) offsetof(__typeof__(opt), field)

static const struct option_field fields[] = {
	{ "model", OPTION_TEXT, AT(model), NULL, 0, 0, 'm', "DIR|FILE",
	  "folder with config.json and its weights as safetensors, or a GGUF file" },
	{ "adapter", OPTION_TEXT, AT(adapter), NULL, 0, 0, 0, "DIR",
	  "LoRA adapter of te_train or PEFT, which is merged into the weights" },
	{ "tokenizer", OPTION_TEXT, AT(tokenizer), NULL, 0, 0, 't', "FILE|DIR",
	  "tokenizer of the model, if it is not in its folder or file" },
	{ "type", OPTION_WORD, AT(type), "bf16", 0, 0, 0, TYPES,
	  "numbers of matrices; vectors of GGUF files are F32, folders have no q8_0" },
	{ "overwrite", OPTION_FLAG, AT(overwrite), NULL, 0, 1, 0, NULL,
	  "replace the folder of an earlier export" },
	{ 0 },
};

static const struct option_table options = {
	.usage = "usage: te_export --model DIR|FILE [options] OUTPUT.gguf|DIR\n"
		 "Writes a model as a GGUF file or as a folder of safetensors: see "
		 "te_export(1).\n\n",
	.fields = (const struct option_field *const[]){ fields, NULL },
};

static int is_gguf_name(const char *path)
{
	const size_t n = strlen(path);

	return n > 5 && !strcmp(path + n - 5, ".gguf");
}

static int open_model(struct export *x, const char *path, struct te_ctx *ctx)
{
	struct config cfg = { 0 };
	int r = model_path_check(x->from);

	if (!r)
		r = config_read(x->from, &cfg);
	if (r)
		return r;
	r = is_gguf_name(path) ? export_gguf_check(&cfg, x->from) :
				 export_folder_check(path, x->overwrite);
	if (!r)
		r = model_build(ctx, &cfg, &x->model);
	config_free(&cfg);
	return r ? r : tensors_of_folder(x->from, &x->tensors);
}

int main(int argc, char **argv)
{
	struct te_ctx_opts co = TE_CTX_OPTS_INIT;
	struct te_ctx *ctx = NULL;
	struct adapter adapter = { .rank = 0 };
	struct export x = { .from = NULL };
	const char *path;
	int te, r;

	say_as("te_export");
	signal(SIGXFSZ, SIG_IGN); /* a limit of the file's size is an error to report */
	if (option_parse(&options, &opt, argc, argv, &r))
		return r;
	if (!opt.model || argc - optind != 1)
		return say_bad("expected --model DIR|FILE and the file or folder to write; see "
			       "te_export --help");
	path = argv[optind];
	x.from = opt.model;
	x.tokenizer = opt.tokenizer;
	x.overwrite = opt.overwrite != 0;
	x.type = (enum export_type)option_choice(TYPES, opt.type, strlen(opt.type));
	if (x.type == EXPORT_Q8_0 && !is_gguf_name(path))
		return say_bad("%s: expected a name that ends with .gguf for --type q8_0, which "
			       "folders do not have", path);
	export_on_signals();
	co.backend = "host"; /* for the layout of weights; nothing is computed */
	te = te_ctx_create(&co, &ctx);
	r = te < 0 ? say_te(te, "no context") : open_model(&x, path, ctx);
	if (!r && opt.adapter) {
		r = adapter_open(opt.adapter, &adapter);
		x.adapter = &adapter;
	}
	if (!r)
		r = is_gguf_name(path) ? export_gguf(&x, path) : export_folder(&x, path);
	tensors_free(&x.tensors);
	adapter_close(&adapter);
	model_free(&x.model);
	te_ctx_unref(ctx);
	option_free(fields, &opt);
	if (export_stopped())
		raise(export_stopped()); /* the default action */
	return r;
}
