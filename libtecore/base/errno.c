/* errno.c - names of result codes, and the error message of each thread's last failure. */
#include "config.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "libtecore/base/base.h"

static _Thread_local struct {
	char detail[512];
	char errno_text[128];
	int cuda;
	int verbs;
	uint64_t nfails;
} last;

const char *te_strerror(int r)
{
	int e = r < 0 && r > INT_MIN ? -r : r;

	switch (e) {
#define TE_ERRNO_CASE(name, number, text) \
	case number:                      \
		return text;
		TE_ERRNO_MAP(TE_ERRNO_CASE)
#undef TE_ERRNO_CASE
	}
	if (e <= 0 || e >= 1000)
		return r < 0 ? "unknown error" : "success";
	/* the GNU form: it may or may not use the buffer */
	return strerror_r(e, last.errno_text, sizeof(last.errno_text));
}

const char *te_error_detail(void)
{
	return last.detail;
}

int te_error_cuda(void)
{
	return last.cuda;
}

int te_error_verbs(void)
{
	return last.verbs;
}

void te_error_clear(void)
{
	last.detail[0] = '\0';
	last.cuda = 0;
	last.verbs = 0;
}

/* names in files, and text of other ranks, must not control the terminal that shows them */
static void make_printable(char *text)
{
	for (; *text; text++)
		if (((unsigned char)*text < ' ' && *text != '\n' && *text != '\t') || *text == 127)
			*text = '?';
}

static void record(const char *category, int code, int cuda, int verbs,
		   const char *fmt, va_list ap)
{
	char text[sizeof(last.detail)];
	int n;

	/* formatted into a copy: an argument may be the old message */
	n = vsnprintf(text, sizeof(text), fmt, ap);
	if (cuda && n >= 0 && (size_t)n < sizeof(text))
		snprintf(text + n, sizeof(text) - (size_t)n, " (CUresult %d)",
			 cuda);
	make_printable(text);
	memcpy(last.detail, text, sizeof(text));
	last.nfails++;
	last.cuda = cuda;
	last.verbs = verbs;
	if (te__log_on(TE_LOG_DEBUG, category))
		te__log_at(TE_LOG_DEBUG, category, "%s: %s", te_strerror(code),
			   text);
}

int te__fail_at(const char *category, int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	record(category, code, 0, 0, fmt, ap);
	va_end(ap);
	return code;
}

int te_fail(int code, const char *fmt, ...)
{
	va_list ap;

	if (!fmt)
		fmt = "";
	va_start(ap, fmt);
	record("user", code, 0, 0, fmt, ap);
	va_end(ap);
	return code;
}

uint64_t te__nfails(void)
{
	return last.nfails;
}

int te__callback_failed(uint64_t nfails, int r, const char *fmt, ...)
{
	char text[128];
	va_list ap;

	if (last.nfails != nfails)
		return r;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return te__fail_at("core", r, "%s returned %d and gave no reason", text, r);
}

int te__fail_cuda_at(const char *category, int curesult, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	record(category, -TE_ECUDA, curesult, 0, fmt, ap);
	va_end(ap);
	return -TE_ECUDA;
}

int te__fail_verbs_at(const char *category, int code, int status,
		      const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	record(category, code, 0, status, fmt, ap);
	va_end(ap);
	return code;
}
