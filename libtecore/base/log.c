/* log.c - filters, formats and delivers log messages; environ.c has te_log_filter(). */
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/base/base.h"

#define FILTER_RULES 16 /* categories one spec may name */

struct filter {
	int nrules;
	struct {
		char category[32]; /* "" matches all */
		enum te_log_level level;
	} rule[FILTER_RULES];
};

static const char *const level_name[] = {
	"off", "error", "warn", "info", "debug", "trace",
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct filter filter;	/* under lock */
static te_log_fn *log_fn;	/* under lock */
static void *log_arg;		/* under lock */
static atomic_int level_max;	/* maximum of all rules, checked first */

/* one item: LEVEL or CATEGORY=LEVEL */
static int parse_item(struct filter *f, const char *s, size_t len)
{
	const char *eq = memchr(s, '=', len);
	const char *level = eq ? eq + 1 : s;
	size_t level_len = (size_t)(s + len - level);
	size_t category_len = eq ? (size_t)(eq - s) : 0;

	if (f->nrules == FILTER_RULES ||
	    category_len >= sizeof(f->rule[0].category) ||
	    (eq && !category_len))
		return -EINVAL;
	for (int i = 0; i <= TE_LOG_TRACE; i++) {
		if (strlen(level_name[i]) != level_len ||
		    memcmp(level_name[i], level, level_len))
			continue;
		memcpy(f->rule[f->nrules].category, s, category_len);
		f->rule[f->nrules].category[category_len] = '\0';
		f->rule[f->nrules++].level = i;
		return 0;
	}
	return -EINVAL;
}

static int filter_parse(struct filter *f, const char *spec)
{
	f->nrules = 0;
	for (;;) {
		size_t len = strcspn(spec, ",");
		int r = parse_item(f, spec, len);

		if (r < 0 || !spec[len])
			return r;
		spec += len + 1;
	}
}

/* with the lock held, or before another thread can read the filter */
static void filter_install(const struct filter *f)
{
	int max = TE_LOG_OFF;

	filter = *f;
	for (int i = 0; i < f->nrules; i++)
		if ((int)f->rule[i].level > max)
			max = f->rule[i].level;
	atomic_store(&level_max, max);
}

/* another thread of the parent may have held it */
static void unlock_in_child(void)
{
	pthread_mutex_init(&lock, NULL);
}

static void init(void)
{
	struct filter f;

	/* if it fails without memory, a child that logs may block forever */
	(void)pthread_atfork(NULL, NULL, unlock_in_child);

	/* an invalid TE_LOG asks for messages: log warnings */
	if (filter_parse(&f, te__param_str(TE_PARAM_LOG)) < 0)
		filter_parse(&f, "warn");
	filter_install(&f);
}

/* the longest category that is a prefix at a slash decides */
static enum te_log_level filter_level(const char *category)
{
	enum te_log_level level = TE_LOG_OFF;
	size_t best = 0;

	for (int i = 0; i < filter.nrules; i++) {
		size_t n = strlen(filter.rule[i].category);

		if (n < best || strncmp(category, filter.rule[i].category, n))
			continue;
		if (n && category[n] && category[n] != '/')
			continue;
		best = n;
		level = filter.rule[i].level;
	}
	return level;
}

int te__log_on(enum te_log_level level, const char *category)
{
	int on;

	pthread_once(&once, init);
	if ((int)level > atomic_load_explicit(&level_max, memory_order_relaxed))
		return 0;
	pthread_mutex_lock(&lock);
	on = level <= filter_level(category);
	pthread_mutex_unlock(&lock);
	return on;
}

void te__log_at(enum te_log_level level, const char *category, const char *fmt,
		...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	/* one call at a time: messages of two threads never mix */
	pthread_mutex_lock(&lock);
	if (log_fn)
		log_fn(log_arg, level, category, text);
	else
		fprintf(stderr, "te: %s: %s: %s\n", level_name[level], category,
			text);
	pthread_mutex_unlock(&lock);
}

void te_log_set(te_log_fn *fn, void *arg)
{
	pthread_mutex_lock(&lock);
	log_fn = fn;
	log_arg = arg;
	pthread_mutex_unlock(&lock);
}

int te__log_parse(const char *spec, int install)
{
	struct filter f;
	int r = filter_parse(&f, spec);

	if (r < 0 || !install)
		return r;
	pthread_once(&once, init); /* otherwise it would overwrite the new filter later */
	pthread_mutex_lock(&lock);
	filter_install(&f);
	pthread_mutex_unlock(&lock);
	return 0;
}
