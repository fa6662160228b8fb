/* lora.c - options of low-rank adapters, and adapter_config.json of PEFT. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lora.h"
#include "record.h"
#include "say.h"

#define MOST_RANK 4096

/* the number after "key=", up to a comma; *text becomes what follows the comma */
static int parse_number(const char **text, double lo, double hi, double *ret_x)
{
	char *end;
	const char *value = strchr(*text, '=') + 1;

	*ret_x = strtod(value, &end);
	if (end == value || (*end && *end != ',') || !(*ret_x >= lo) || !(*ret_x <= hi))
		return say_bad("--lora: \"%s\": expected a number from %g to %g after =", *text, lo,
			       hi);
	*text = end + (*end == ',');
	return STATUS_OK;
}

int lora_parse(const char *text, struct lora *ret_l)
{
	struct lora l = { 0 };
	double rank = 0, alpha = 0;
	int r = STATUS_OK;

	while (*text && !r) {
		if (!strncmp(text, "rank=", 5)) {
			r = parse_number(&text, 1, MOST_RANK, &rank);
		} else if (!strncmp(text, "alpha=", 6)) {
			r = parse_number(&text, 1e-6, 1e6, &alpha);
		} else if (!strncmp(text, "dropout=", 8)) {
			r = parse_number(&text, 0, 0.999, &l.dropout);
		} else if (!strncmp(text, "targets=", 8) && text[8]) {
			l.targets = text + 8;
			break;
		} else {
			return say_bad("--lora: \"%s\": expected rank=R, alpha=A, dropout=P or, at "
				       "the end, targets=LIST", text);
		}
	}
	if (r)
		return r;
	if (rank < 1 || rank != floor(rank))
		return say_bad("--lora: expected rank=R, a whole number from 1 to %d", MOST_RANK);
	l.rank = (int64_t)rank;
	l.alpha = alpha > 0 ? alpha : 2 * rank;
	*ret_l = l;
	return STATUS_OK;
}

int lora_adapts(const struct lora *l, const char *name)
{
	return l->rank && config_matches(l->targets ? l->targets : "*", name);
}

json_t *lora_to_json(const struct lora *l, const json_t *modules)
{
	struct record rec;

	record_begin(&rec);
	record_text(&rec, "peft_type", "LORA");
	record_text(&rec, "task_type", "CAUSAL_LM");
	record_name(&rec, "base_model_name_or_path", l->base);
	record_int(&rec, "r", l->rank);
	record_real(&rec, "lora_alpha", l->alpha);
	record_real(&rec, "lora_dropout", l->dropout);
	record_text(&rec, "bias", "none");
	record_flag(&rec, "inference_mode", 1);
	record_put(&rec, "target_modules", json_deep_copy(modules));
	return record_end(&rec, ADAPTER_JSON);
}

static int load_json(const char *dir, char **ret_path, json_t **ret_obj)
{
	int r;

	*ret_obj = NULL;
	if (asprintf(ret_path, "%s/" ADAPTER_JSON, dir) < 0) {
		*ret_path = NULL;
		return say_failed("out of memory");
	}
	r = record_load(*ret_path, ret_obj);
	return r;
}

int lora_base(const char *dir, char **ret_base)
{
	char *path;
	json_t *obj;
	int r = load_json(dir, &path, &obj);

	*ret_base = r ? NULL : record_name_of(json_object_get(obj, "base_model_name_or_path"));
	if (!r && !*ret_base)
		r = say_bad("%s: \"base_model_name_or_path\" is not a text", path);
	json_decref(obj);
	free(path);
	return r;
}

/* fields of other methods; each must be missing, null, false or empty */
static const char *const refused[] = {
	"use_dora",	   "lora_bias",		   "modules_to_save",	      "rank_pattern",
	"alpha_pattern",   "layer_replication",	   "trainable_token_indices", "use_qalora",
	"target_parameters", "alora_invocation_tokens",
};

static int is_off(const json_t *v)
{
	return !v || json_is_null(v) || json_is_false(v) ||
	       (json_is_array(v) && !json_array_size(v)) ||
	       (json_is_object(v) && !json_object_size(v));
}

static int read_json(const json_t *obj, const char *path, struct adapter *a)
{
	struct record_reader rd = { obj, path, STATUS_OK };
	const char *type = record_get_text(&rd, "peft_type");
	const json_t *bias = json_object_get(obj, "bias");
	double alpha;

	a->rank = record_get_int(&rd, "r", 1, MOST_RANK);
	alpha = record_get_real(&rd, "lora_alpha", NAN);
	if (rd.status)
		return rd.status;
	if (strcmp(type, "LORA"))
		return say_bad("%s: \"peft_type\" \"%s\" is not implemented, expected LORA", path,
			       type);
	if (bias && strcmp(json_is_string(bias) ? json_string_value(bias) : "", "none"))
		return say_bad("%s: adapters with biases are not implemented: \"bias\" is not "
			       "\"none\"", path);
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		if (!is_off(json_object_get(obj, refused[i])))
			return say_bad("%s: \"%s\" is not implemented", path, refused[i]);
	if (!isfinite(alpha))
		return say_bad("%s: \"lora_alpha\" is not a number", path);
	a->scale = alpha / (json_is_true(json_object_get(obj, "use_rslora")) ?
				    sqrt((double)a->rank) : (double)a->rank);
	return STATUS_OK;
}

int adapter_open(const char *dir, struct adapter *ret_a)
{
	struct adapter a = { .scale = 0 };
	char *path;
	json_t *obj;
	int r = load_json(dir, &path, &obj);

	if (!r)
		r = read_json(obj, path, &a);
	json_decref(obj);
	free(path);
	if (!r)
		r = tensors_of_adapter(dir, &a.tensors);
	if (!r)
		a.base_digest = st_get_meta(a.tensors.file[0], BASE_DIGEST);
	if (!r)
		*ret_a = a;
	return r;
}

void adapter_check(const struct adapter *a, const char *path, const char *digest)
{
	if (a->base_digest && strcmp(a->base_digest, digest))
		say_note("%s: warning: %s was trained with other weights than %s has",
			 say_program(), a->tensors.path, path);
}

void adapter_close(struct adapter *a)
{
	tensors_free(&a->tensors);
}
