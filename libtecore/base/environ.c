/*
 * environ.c - the TE_* environment variables as programs see them: their list, warnings and errors
 * for invalid ones, and the filter of TE_LOG.
 */
#include "config.h"

#include <errno.h>
#include <pthread.h>

#include <te/param.h>

#include "libtecore/base/base.h"

static const char *const type_name[] = {
	"BOOL", "INT", "SIZE", "DOUBLE", "STRING", "ENUM",
};

static pthread_once_t warn_once = PTHREAD_ONCE_INIT;

static void warn(void)
{
	for (int id = 0; id < TE_PARAM_END; id++) {
		const struct te__param_seen p = te__param_seen(id);

		if (p.invalid)
			te__log_warn("%s is not a %s", p.name, type_name[p.type]);
	}
	for (size_t i = 0; te_param_unknown(i); i++)
		te__log_warn("%s is not a parameter of this version",
			     te_param_unknown(i));
}

static const char *expected(const struct te__param_seen *p)
{
	switch (p->type) {
	case TE__PARAM_BOOL:
		return "on or off";
	case TE__PARAM_INT:
		return "a whole number";
	case TE__PARAM_SIZE:
		return "a size in bytes such as 1048576, 1024K, 64M or 2G";
	case TE__PARAM_ENUM:
		return p->unit;
	default:
		return "a number";
	}
}

int te__param_check(const char *fn)
{
	const char *log = te__param_str(TE_PARAM_LOG);

	pthread_once(&warn_once, warn);
	for (int id = 0; id < TE_PARAM_END; id++) {
		const struct te__param_seen p = te__param_seen(id);

		if (p.invalid)
			return te__fail(-EINVAL, "%s: %s=%s in the environment: expected %s",
					fn, p.name, p.invalid, expected(&p));
	}
	if (te__log_parse(log, 0) < 0)
		return te__fail(-EINVAL, "%s: TE_LOG=%s in the environment: expected levels such "
				"as warn or info,comm=trace", fn, log);
	return 0;
}

int te_param_info(size_t i, struct te_param_info *ret_info)
{
	struct te__param_seen p;
	struct te_param_info info;
	int r = te__sized_check("te_param_info", te_param_info, ret_info);

	if (r)
		return r;
	if (i >= TE_PARAM_END)
		return te__fail(-EINVAL, "te_param_info: %zu of %d parameters",
				i, TE_PARAM_END);
	p = te__param_seen((int)i);
	info = (struct te_param_info){
		.size = sizeof(info),
		.name = p.name,
		.type = type_name[p.type],
		.value = p.value,
		.dflt = p.dflt,
		.unit = p.unit,
		.category = p.category,
		.text = p.text,
		.source = p.source,
	};
	te__sized_out(te_param_info, &info, ret_info);
	return 0;
}

int te_log_filter(const char *spec)
{
	if (!spec || te__log_parse(spec, 1) < 0)
		return te__fail(-EINVAL, "te_log_filter: invalid filter \"%s\"",
				spec ? spec : "(null)");
	return 0;
}
