/*
 * te_info - prints versions, build, backends and devices, why one cannot be used, the transports
 * of devices, and the parameters in use. All is collected in one JSON object, which --json prints;
 * the plain text is made from it.
 */
#include "config.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <te/comm.h>
#include <te/ctx.h>
#include <te/errno.h>
#include <te/graph.h>
#include <te/param.h>
#include <te/spill.h>
#include <te/version.h>

#include "tools/lib/option.h"
#include "tools/lib/record.h"
#include "tools/lib/say.h"

static void record_build(struct record *rec)
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
#ifdef HAVE_HWLOC
	int hwloc = 1;
#else
	int hwloc = 0;
#endif
#ifdef HAVE_LIBURING
	int liburing = 1;
#else
	int liburing = 0;
#endif
	record_open(rec, "build");
	record_text(rec, "compiler", __VERSION__);
	record_flag(rec, "device_kernels", kernels);
	record_flag(rec, "blas", blas);
	record_flag(rec, "hwloc", hwloc);
	record_flag(rec, "liburing", liburing);
	record_close(rec);
}

static const struct {
	enum te_feature bit;
	const char *key, *name;
} feature[] = {
	{ TE_FEATURE_FP8_CONVERT, "fp8_convert", "FP8 conversion" },
	{ TE_FEATURE_FP8_MMA, "fp8_mma", "FP8 tensor cores" },
	{ TE_FEATURE_CLUSTERS, "clusters", "clusters" },
	{ TE_FEATURE_PDL, "pdl", "programmatic launch" },
	{ TE_FEATURE_TMA, "tma", "TMA" },
	{ TE_FEATURE_WGMMA, "wgmma", "wgmma" },
	{ TE_FEATURE_MULTICAST, "multicast", "multicast" },
	{ TE_FEATURE_MEM_OPS, "mem_ops", "batch memory operations" },
};
#define NFEATURES (sizeof(feature) / sizeof(feature[0]))

static int record_variants(struct record *rec, const struct te_device_info *d)
{
	int r = 0;

	record_open_list(rec, "variants");
	for (int i = 0; i < te_variant_count() && !r; i++) {
		struct te_variant_info v = TE_VARIANT_INFO_INIT;

		r = te_variant_info(d, i, &v);
		record_open(rec, NULL);
		record_text(rec, "task", v.task);
		record_text(rec, "variant", v.variant);
		record_text(rec, "reason", v.reason);
		record_close(rec);
	}
	record_close(rec);
	return r;
}

static int record_device(struct record *rec, const struct te_device_info *d)
{
	int r;

	record_open(rec, NULL);
	record_shown(rec, "name", d->name, strlen(d->name));
	record_shown(rec, "pci_address", d->pci_address, strlen(d->pci_address));
	record_flag(rec, "usable", d->usable);
	record_shown(rec, "reason", d->reason, strlen(d->reason));
	record_int(rec, "cc_major", d->cc_major);
	record_int(rec, "cc_minor", d->cc_minor);
	record_int(rec, "nprocs", d->nprocs);
	record_int(rec, "clock_mhz", d->clock_mhz);
	record_int(rec, "mem_total_bytes", (int64_t)d->mem_total_nbytes);
	record_int(rec, "mem_free_bytes", (int64_t)d->mem_free_nbytes);
	record_int(rec, "l2_bytes", (int64_t)d->l2_nbytes);
	record_real(rec, "peak_fp8_flop_per_s", d->peak_fp8_flops);
	record_real(rec, "peak_bf16_flop_per_s", d->peak_bf16_flops);
	record_real(rec, "peak_fp32_flop_per_s", d->peak_fp32_flops);
	record_real(rec, "peak_bandwidth_bytes_per_s", d->peak_bandwidth);
	record_int(rec, "numa_node", d->numa_node);
	record_int(rec, "block_smem_bytes", (int64_t)d->block_smem_nbytes);
	record_int(rec, "kernels_cc", d->kernels_cc);
	record_open(rec, "features");
	for (size_t i = 0; i < NFEATURES; i++)
		record_flag(rec, feature[i].key, (d->features & feature[i].bit) != 0);
	record_close(rec);
	r = record_variants(rec, d);
	record_close(rec);
	return r;
}

/* this and the functions below return an exit status */
static int record_backend(struct record *rec, int index)
{
	struct te_backend_info b = TE_BACKEND_INFO_INIT;
	int r = te_backend_info(index, &b);

	record_open(rec, NULL);
	record_text(rec, "name", b.name);
	record_shown(rec, "version", b.version, strlen(b.version));
	record_shown(rec, "reason", b.reason, strlen(b.reason));
	record_open_list(rec, "devices");
	for (int k = 0; k < b.ndevices && !r; k++) {
		struct te_device_info d = TE_DEVICE_INFO_INIT;

		r = te_device_info(b.name, k, &d);
		if (!r)
			r = record_device(rec, &d);
	}
	record_close(rec);
	record_close(rec);
	return r ? say_te(r, "cannot query a backend"), STATUS_FAILED : STATUS_OK;
}

static int record_backends(struct record *rec)
{
	int r = STATUS_OK;

	record_open_list(rec, "backends");
	for (int i = 0; i < te_backend_count() && !r; i++)
		r = record_backend(rec, i);
	record_close(rec);
	return r;
}

/* results of a trial in TE_OFFLOAD_DIR, or else in the current folder */
static int record_spill(struct record *rec)
{
	struct te_spill_info s = TE_SPILL_INFO_INIT;
	int r = te_spill_info(NULL, &s);

	if (r)
		return say_te(r, "cannot try offload to a file"), STATUS_FAILED;
	record_open(rec, "offload_file");
	record_flag(rec, "usable", s.usable);
	record_text(rec, "engine", s.engine);
	record_shown(rec, "reason", s.reason, strlen(s.reason));
	record_flag(rec, "direct", s.direct);
	record_int(rec, "align_bytes", s.align_bytes);
	record_flag(rec, "registered_memory", s.registered);
	record_int(rec, "free_bytes", (int64_t)s.free_nbytes);
	/* JSON null: no limit */
	if (s.memlock_nbytes == UINT64_MAX)
		record_text(rec, "memlock_bytes", NULL);
	else
		record_int(rec, "memlock_bytes", (int64_t)s.memlock_nbytes);
	record_close(rec);
	return STATUS_OK;
}

/* a context is created on each usable device */
static int record_transport(struct record *rec, struct te_ctx *ctx, int index)
{
	struct te_transport_info t = TE_TRANSPORT_INFO_INIT;
	int r = te_transport_info(ctx, index, &t);

	record_open(rec, NULL);
	record_text(rec, "name", t.name);
	record_flag(rec, "available", t.available);
	record_shown(rec, "reason", t.reason, strlen(t.reason));
	record_close(rec);
	return r;
}

static int record_device_transports(struct record *rec, const struct te_device_info *d)
{
	struct te_ctx_opts o = TE_CTX_OPTS_INIT;
	struct te_ctx *ctx = NULL;
	int r;

	o.backend = d->backend;
	o.device = d->index;
	r = te_ctx_create(&o, &ctx);
	record_open(rec, NULL);
	record_text(rec, "backend", d->backend);
	record_int(rec, "device", d->index);
	record_shown(rec, "name", d->name, strlen(d->name));
	record_open_list(rec, "transports");
	for (int i = 0; i < te_transport_count() && !r; i++)
		r = record_transport(rec, ctx, i);
	record_close(rec);
	record_close(rec);
	te_ctx_unref(ctx);
	return r;
}

static int record_transports(struct record *rec)
{
	int r = 0;

	record_open_list(rec, "devices");
	for (int i = 0; i < te_backend_count() && !r; i++) {
		struct te_backend_info b = TE_BACKEND_INFO_INIT;

		r = te_backend_info(i, &b);
		for (int k = 0; k < b.ndevices && !r; k++) {
			struct te_device_info d = TE_DEVICE_INFO_INIT;

			r = te_device_info(b.name, k, &d);
			if (!r && d.usable)
				r = record_device_transports(rec, &d);
		}
	}
	record_close(rec);
	return r ? say_te(r, "cannot query the transports"), STATUS_FAILED : STATUS_OK;
}

static int record_params(struct record *rec)
{
	int r = 0;

	record_open_list(rec, "parameters");
	for (size_t i = 0; i < te_param_count() && !r; i++) {
		struct te_param_info p = TE_PARAM_INFO_INIT;

		r = te_param_info(i, &p);
		record_open(rec, NULL);
		record_text(rec, "name", p.name);
		record_shown(rec, "value", p.value, strlen(p.value));
		record_text(rec, "source", p.source);
		record_text(rec, "default", p.dflt);
		record_text(rec, "type", p.type);
		record_text(rec, "unit", p.unit);
		record_text(rec, "category", p.category);
		record_text(rec, "text", p.text);
		record_close(rec);
	}
	record_close(rec);
	return r ? say_te(r, "cannot query a parameter"), STATUS_FAILED : STATUS_OK;
}

static void record_unknown(struct record *rec)
{
	const char *name;

	record_open_list(rec, "unknown_parameters");
	for (size_t i = 0; (name = te_param_unknown(i)); i++)
		record_shown(rec, NULL, name, strlen(name));
	record_close(rec);
}

static const char *str(const json_t *obj, const char *key)
{
	return json_string_value(json_object_get(obj, key));
}

static double num(const json_t *obj, const char *key)
{
	return json_number_value(json_object_get(obj, key));
}

/* kernels, features and variants of a GPU */
static void print_kernels(const json_t *d)
{
	const json_t *features = json_object_get(d, "features"), *v;
	const int cc = (int)num(d, "kernels_cc");
	const char *comma = " ";
	size_t i;

	printf("     kernels for %d.%d, %.0f KiB of shared memory a block;", cc / 10, cc % 10,
	       num(d, "block_smem_bytes") / 1024);
	for (i = 0; i < NFEATURES; i++) {
		if (!json_is_true(json_object_get(features, feature[i].key)))
			continue;
		printf("%s%s", comma, feature[i].name);
		comma = ", ";
	}
	printf("\n");
	json_array_foreach(json_object_get(d, "variants"), i, v) {
		printf("     %s: %s (%s)\n", str(v, "task"), str(v, "variant"), str(v, "reason"));
	}
}

static void print_device(size_t index, const json_t *d)
{
	printf("  %zu  %s", index, str(d, "name"));
	if (*str(d, "pci_address"))
		printf(" at %s", str(d, "pci_address"));
	if (num(d, "cc_major") > 0)
		printf(", compute capability %.0f.%.0f", num(d, "cc_major"), num(d, "cc_minor"));
	printf(", %.0f processors, %.1f GiB", num(d, "nprocs"), num(d, "mem_total_bytes") / 0x1p30);
	if (num(d, "mem_free_bytes") > 0)
		printf(", %.1f GiB free\n", num(d, "mem_free_bytes") / 0x1p30);
	else
		printf(", free memory unknown\n");
	if (num(d, "numa_node") >= 0)
		printf("     NUMA node %.0f\n", num(d, "numa_node"));
	if (!json_is_true(json_object_get(d, "usable")))
		printf("     not usable: %s\n", str(d, "reason"));
	if (num(d, "peak_bf16_flop_per_s") > 0)
		printf("     peak %.0f FP8, %.0f BF16, %.1f FP32 TFLOP/s, %.2f TB/s\n",
		       num(d, "peak_fp8_flop_per_s") / 1e12, num(d, "peak_bf16_flop_per_s") / 1e12,
		       num(d, "peak_fp32_flop_per_s") / 1e12,
		       num(d, "peak_bandwidth_bytes_per_s") / 1e12);
	if (num(d, "kernels_cc") > 0)
		print_kernels(d);
}

static void print_spill(const json_t *s)
{
	const json_t *memlock = json_object_get(s, "memlock_bytes");

	printf("\noffload to files: ");
	if (!json_is_true(json_object_get(s, "usable"))) {
		printf("not usable: %s\n", str(s, "reason"));
		return;
	}
	printf("%s", str(s, "engine"));
	if (json_is_true(json_object_get(s, "direct")))
		printf(", direct I/O aligned to %.0f bytes", num(s, "align_bytes"));
	else
		printf(", no direct I/O");
	printf(", %.1f GiB free, ", num(s, "free_bytes") / 0x1p30);
	if (json_is_null(memlock))
		printf("no limit of locked memory\n");
	else
		printf("up to %.0f KiB of locked memory\n", json_number_value(memlock) / 1024);
	if (*str(s, "reason"))
		printf("  %s\n", str(s, "reason"));
}

static void print_machine(const json_t *o)
{
	const json_t *build = json_object_get(o, "build"), *b, *d;
	size_t i, k;

	printf("te %s: libtecore %s, libtegraph %s, libtecomm %s\n", str(o, "version"),
	       str(o, "libtecore_version"), str(o, "libtegraph_version"),
	       str(o, "libtecomm_version"));
	printf("built with compiler %s, %s device kernels, %s BLAS, %s hwloc, "
	       "%s liburing\n",
	       str(build, "compiler"),
	       json_is_true(json_object_get(build, "device_kernels")) ? "with" : "without",
	       json_is_true(json_object_get(build, "blas")) ? "with a" : "without a",
	       json_is_true(json_object_get(build, "hwloc")) ? "with" : "without",
	       json_is_true(json_object_get(build, "liburing")) ? "with" : "without");
	json_array_foreach(json_object_get(o, "backends"), i, b) {
		const json_t *devices = json_object_get(b, "devices");

		printf("\nbackend %s%s%s", str(b, "name"), str(b, "version")[0] ? " " : "",
		       str(b, "version"));
		printf(json_array_size(devices) ? "\n" : ": absent: %s\n", str(b, "reason"));
		json_array_foreach(devices, k, d) {
			print_device(k, d);
		}
	}
	print_spill(json_object_get(o, "offload_file"));
}

static void print_params(const json_t *o)
{
	const json_t *p, *name;
	size_t i;

	json_array_foreach(json_object_get(o, "parameters"), i, p) {
		printf("%s=%s  (%s; default \"%s\"", str(p, "name"), str(p, "value"),
		       str(p, "source"), str(p, "default"));
		printf(str(p, "unit")[0] ? ", %s)\n" : ")\n", str(p, "unit"));
		printf("    %s\n", str(p, "text"));
	}
	json_array_foreach(json_object_get(o, "unknown_parameters"), i, name) {
		printf("%s is set, but this version has no such parameter\n",
		       json_string_value(name));
	}
}

static void print_transports(const json_t *o)
{
	const json_t *d, *t;
	size_t i, k;

	json_array_foreach(json_object_get(o, "devices"), i, d) {
		printf("%s %.0f  %s\n", str(d, "backend"), num(d, "device"), str(d, "name"));
		json_array_foreach(json_object_get(d, "transports"), k, t) {
			const int can = json_is_true(json_object_get(t, "available"));

			printf("  %-11s%s%s\n", str(t, "name"),
			       can ? "available" : "not available: ", str(t, "reason"));
		}
	}
}

enum what { MACHINE, PARAMS, TRANSPORTS };

/* the requested information as one object */
static int collect(enum what what, json_t **ret)
{
	struct record rec;
	int status = STATUS_OK;

	record_begin(&rec);
	if (what == TRANSPORTS)
		status = record_transports(&rec);
	if (what == MACHINE) {
		record_text(&rec, "version", TE_VERSION);
		record_text(&rec, "libtecore_version", te_version());
		record_text(&rec, "libtegraph_version", te_graph_version());
		record_text(&rec, "libtecomm_version", te_comm_version());
		record_build(&rec);
		status = record_backends(&rec);
		if (!status)
			status = record_spill(&rec);
	}
	if (what != TRANSPORTS) {
		if (!status)
			status = record_params(&rec);
		record_unknown(&rec);
	}
	*ret = record_end(&rec, "the report");
	if (status) {
		json_decref(*ret);
		return status;
	}
	return *ret ? STATUS_OK : STATUS_FAILED;
}

static int print_json(const json_t *o)
{
	char *text = record_to_text(o, JSON_INDENT(2), "the report");
	int r = text ? STATUS_OK : STATUS_FAILED;

	if (text)
		puts(text);
	free(text);
	return r;
}

static struct {
	int64_t params, transports, json;
} opt;
#define AT(field) offsetof(__typeof__(opt), field)

static const struct option_field fields[] = {
	{ "params", OPTION_FLAG, AT(params), NULL, 0, 1, 'p', NULL,
	  "print the parameters from the environment instead" },
	{ "transports", OPTION_FLAG, AT(transports), NULL, 0, 1, 't', NULL,
	  "print how ranks share memory and nodes are connected instead" },
	{ "json", OPTION_FLAG, AT(json), NULL, 0, 1, 'j', NULL,
	  "print everything, or what is asked for, as one JSON object" },
	{ 0 },
};

static const struct option_table options = {
	.usage = "usage: te_info [--params | --transports] [--json]\n"
		 "Prints versions, build, backends and devices, and why one cannot be used.\n",
	.fields = (const struct option_field *const[]){ fields, NULL },
};

int main(int argc, char **argv)
{
	enum what what;
	int status;
	json_t *o = NULL;

	say_as("te_info");
	if (option_parse(&options, &opt, argc, argv, &status))
		return status;
	if (opt.params && opt.transports)
		return say_bad("--params and --transports exclude each other");
	what = opt.params ? PARAMS : opt.transports ? TRANSPORTS : MACHINE;
	if (optind < argc)
		return say_bad("unexpected argument \"%s\"", argv[optind]);
	say_params();
	status = collect(what, &o);
	if (status)
		return status;
	if (opt.json) {
		status = print_json(o);
	} else if (what == PARAMS) {
		print_params(o);
	} else if (what == TRANSPORTS) {
		print_transports(o);
	} else {
		print_machine(o);
	}
	json_decref(o);
	if (!status && (fflush(stdout) || ferror(stdout)))
		status = say_failed("cannot write the output");
	return status;
}
