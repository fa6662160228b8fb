/*
 * te_info - prints versions, build, backends and devices, why one cannot be used, and the
 * parameters in use. All is collected in one JSON object, which --json prints; the
 * plain text is made from it.
 */
#include "config.h"

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include <te/comm.h>
#include <te/ctx.h>
#include <te/graph.h>
#include <te/param.h>
#include <te/version.h>

#include "tools/te_train/say.h"

static json_t *build_json(void)
{
#ifdef HAVE_KERNELS
	int kernels = 1;
#else
	int kernels = 0;
#endif
#ifdef HAVE_CBLAS
	int blas = 1;
#else
	int blas = 0;
#endif
	return json_pack("{s:s, s:b, s:b}", "compiler", __VERSION__, "device_kernels", kernels,
			 "blas", blas);
}

static json_t *device_json(const struct te_device_info *d)
{
	return json_pack("{s:s, s:b, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:f, s:f, s:f, s:f}",
			 "name", d->name, "usable", (int)d->usable, "reason", d->reason, "cc_major",
			 (int)d->cc_major, "cc_minor", (int)d->cc_minor, "nprocs", (int)d->nprocs,
			 "clock_mhz", (int)d->clock_mhz, "mem_total_bytes",
			 (json_int_t)d->mem_total_nbytes, "mem_free_bytes",
			 (json_int_t)d->mem_free_nbytes, "l2_bytes", (json_int_t)d->l2_nbytes,
			 "peak_fp8_flop_per_s", d->peak_fp8_flops, "peak_bf16_flop_per_s",
			 d->peak_bf16_flops, "peak_fp32_flop_per_s", d->peak_fp32_flops,
			 "peak_bandwidth_bytes_per_s", d->peak_bandwidth);
}

/* 0 and a new reference, or an exit status */
static int backends_json(json_t **ret)
{
	json_t *list = json_array();
	int r = 0;

	for (int i = 0; i < te_backend_count() && !r; i++) {
		struct te_backend_info b = TE_BACKEND_INFO_INIT;
		json_t *devices;

		r = te_backend_info(i, &b);
		if (r)
			break;
		devices = json_array();
		for (int k = 0; k < b.ndevices && !r; k++) {
			struct te_device_info d = TE_DEVICE_INFO_INIT;

			r = te_device_info(b.name, k, &d);
			if (!r)
				json_array_append_new(devices, device_json(&d));
		}
		json_array_append_new(list,
				      json_pack("{s:s, s:s, s:s, s:o}", "name", b.name, "version",
						b.version, "reason", b.reason, "devices", devices));
	}
	if (r) {
		json_decref(list);
		return say_te(r, "cannot query a backend");
	}
	*ret = list;
	return 0;
}

static int params_json(json_t **ret)
{
	json_t *list = json_array();

	for (size_t i = 0; i < te_param_count(); i++) {
		struct te_param_info p = TE_PARAM_INFO_INIT;
		int r = te_param_info(i, &p);

		if (r) {
			json_decref(list);
			return say_te(r, "cannot query a parameter");
		}
		json_array_append_new(list,
				      json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "name",
						p.name, "value", p.value, "source", p.source,
						"default", p.dflt, "type", p.type, "unit", p.unit,
						"category", p.category, "text", p.text));
	}
	*ret = list;
	return 0;
}

static json_t *unknown_json(void)
{
	json_t *list = json_array();
	const char *name;

	for (size_t i = 0; (name = te_param_unknown(i)); i++)
		json_array_append_new(list, json_string(name));
	return list;
}

static const char *str(const json_t *obj, const char *key)
{
	return json_string_value(json_object_get(obj, key));
}

static double num(const json_t *obj, const char *key)
{
	return json_number_value(json_object_get(obj, key));
}

static void print_device(size_t index, const json_t *d)
{
	printf("  %zu  %s", index, str(d, "name"));
	if (num(d, "cc_major") > 0)
		printf(", compute capability %.0f.%.0f", num(d, "cc_major"), num(d, "cc_minor"));
	printf(", %.0f processors, %.1f GiB", num(d, "nprocs"), num(d, "mem_total_bytes") / 0x1p30);
	if (num(d, "mem_free_bytes") > 0)
		printf(", %.1f GiB free\n", num(d, "mem_free_bytes") / 0x1p30);
	else
		printf(", free memory unknown\n");
	if (!json_is_true(json_object_get(d, "usable")))
		printf("     not usable: %s\n", str(d, "reason"));
	if (num(d, "peak_fp8_flop_per_s") > 0)
		printf("     peak %.0f FP8, %.0f BF16, %.1f FP32 TFLOP/s, %.2f TB/s\n",
		       num(d, "peak_fp8_flop_per_s") / 1e12, num(d, "peak_bf16_flop_per_s") / 1e12,
		       num(d, "peak_fp32_flop_per_s") / 1e12,
		       num(d, "peak_bandwidth_bytes_per_s") / 1e12);
}

static void print_machine(const json_t *o)
{
	const json_t *build = json_object_get(o, "build"), *b, *d;
	size_t i, k;

	printf("te %s: libtecore %s, libtegraph %s, libtecomm %s\n", str(o, "version"),
	       str(o, "libtecore_version"), str(o, "libtegraph_version"),
	       str(o, "libtecomm_version"));
	printf("built with compiler %s, %s device kernels, %s BLAS\n", str(build, "compiler"),
	       json_is_true(json_object_get(build, "device_kernels")) ? "with" : "without",
	       json_is_true(json_object_get(build, "blas")) ? "with a" : "without a");
	json_array_foreach(json_object_get(o, "backends"), i, b)
	{
		const json_t *devices = json_object_get(b, "devices");

		printf("\nbackend %s%s%s", str(b, "name"), str(b, "version")[0] ? " " : "",
		       str(b, "version"));
		printf(json_array_size(devices) ? "\n" : ": absent: %s\n", str(b, "reason"));
		json_array_foreach(devices, k, d)
		{
			print_device(k, d);
		}
	}
}

static void print_params(const json_t *o)
{
	const json_t *p, *name;
	size_t i;

	json_array_foreach(json_object_get(o, "parameters"), i, p)
	{
		printf("%s=%s  (%s; default \"%s\"", str(p, "name"), str(p, "value"),
		       str(p, "source"), str(p, "default"));
		printf(str(p, "unit")[0] ? ", %s)\n" : ")\n", str(p, "unit"));
		printf("    %s\n", str(p, "text"));
	}
	json_array_foreach(json_object_get(o, "unknown_parameters"), i, name)
	{
		printf("%s is set, but this version has no such parameter\n",
		       json_string_value(name));
	}
}

/* the requested information as one object: 0, or an exit status */
static int collect(int params_only, json_t **ret)
{
	json_t *params = NULL, *backends = NULL;
	int status = params_json(&params);

	if (status)
		return status;
	if (params_only) {
		*ret = json_pack("{s:o, s:o}", "parameters", params, "unknown_parameters",
				 unknown_json());
		return 0;
	}
	status = backends_json(&backends);
	if (status) {
		json_decref(params);
		return status;
	}
	*ret = json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "version", TE_VERSION,
			 "libtecore_version", te_version(), "libtegraph_version",
			 te_graph_version(), "libtecomm_version", te_comm_version(), "build",
			 build_json(), "backends", backends, "parameters", params,
			 "unknown_parameters", unknown_json());
	return 0;
}

static void print_help(void)
{
	printf("usage: te_info [--params] [--json]\n"
	       "Prints versions, build, backends and devices, and why one cannot be used.\n"
	       "  -p, --params   print the parameters from the environment instead\n"
	       "  -j, --json     print everything, or the parameters, as one JSON object\n"
	       "  -h, --help\n"
	       "      --version\n");
}

int main(int argc, char **argv)
{
	static const struct option longopts[] = {
		{ "params", no_argument, NULL, 'p' },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ NULL, 0, NULL, 0 },
	};
	int c, json = 0, params = 0, status;
	json_t *o = NULL;

	say_as("te_info");
	while ((c = getopt_long(argc, argv, "pjh", longopts, NULL)) != -1) {
		switch (c) {
		case 'p':
			params = 1;
			break;
		case 'j':
			json = 1;
			break;
		case 'h':
			print_help();
			return 0;
		case 'V':
			printf("te_info %s\n", TE_VERSION);
			return 0;
		default:
			return 2; /* getopt has printed why */
		}
	}
	if (optind < argc)
		return say_bad("unexpected argument \"%s\"", argv[optind]);
	say_params();
	status = collect(params, &o);
	if (status)
		return status;
	if (!o)
		return say_failed("out of memory, or a name that is not UTF-8");
	if (json) {
		json_dumpf(o, stdout, JSON_INDENT(2));
		putchar('\n');
	} else if (params) {
		print_params(o);
	} else {
		print_machine(o);
	}
	json_decref(o);
	if (fflush(stdout) || ferror(stdout))
		return say_failed("cannot write the output");
	return 0;
}
