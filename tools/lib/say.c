/* say.c - messages of a tool: one line for each failure, and the progress line. */
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <te/errno.h>
#include <te/param.h>

#include "say.h"

static const char *program = "te_train";
static atomic_int line_open; /* a progress line was printed without its newline */
static _Thread_local int hushed;
static int only_failures;
static void (*put)(const char *line);
static int closed; /* 1: the reader of stderr has closed it */
static _Thread_local int code; /* code of the latest failure */

void say_as(const char *name)
{
	program = name;
}

void say_by(void (*to)(const char *line))
{
	put = to;
}

const char *say_program(void)
{
	return program;
}

/* a full disk may have room again; a pipe without a reader or a terminal (EIO) is closed */
static void check_stderr(void)
{
	if (!ferror(stderr))
		return;
	if (errno == EPIPE || (errno == EIO && say_on_terminal()))
		closed = 1;
	clearerr(stderr);
}

int say_closed(void)
{
	return closed;
}

void say_from_handler(const char *text)
{
	char line[256] = "";
	size_t n = 0;

	if (only_failures)
		return;
	if (line_open)
		line[n++] = '\n';
	line_open = 0;
	while (*text && n < sizeof(line) - 1)
		line[n++] = *text++;
	line[n++] = '\n';
	if (write(STDERR_FILENO, line, n) < 0)
		return; /* the next message finds out */
}

/* prints one line, also if names contain newlines */
static void print_line(const char *head, const char *fmt, va_list ap, const char *tail)
{
	char text[2048], line[4096];

	if (hushed)
		return;
	vsnprintf(text, sizeof(text), fmt, ap);
	for (char *p = text; *p; p++) {
		if ((unsigned char)*p < ' ' || *p == 127)
			*p = '?';
	}
	snprintf(line, sizeof(line), "%s%s%s%s%s", head, *head ? ": " : "", text, *tail ? ": " : "",
		 tail);
	if (put) {
		put(line);
		return;
	}
	if (line_open)
		fputs("\r\033[K", stderr);
	line_open = 0;
	fprintf(stderr, "%s\n", line);
	check_stderr();
}

int say_bad(const char *fmt, ...)
{
	va_list ap;

	code = 0;
	va_start(ap, fmt);
	print_line(program, fmt, ap, "");
	va_end(ap);
	return STATUS_BAD;
}

int say_failed(const char *fmt, ...)
{
	va_list ap;

	code = 0;
	va_start(ap, fmt);
	print_line(program, fmt, ap, "");
	va_end(ap);
	return STATUS_FAILED;
}

int say_te(int r, const char *fmt, ...)
{
	static const int asked[] = {
		-EINVAL,    -ENODEV,	-ENOMEM,      -TE_EDEVICE, -TE_EKERNEL, -TE_EBLAS,
		-TE_ESHAPE, -TE_EDTYPE, -TE_ECORRUPT, -TE_EFORMAT, -TE_EORDER,
	};
	const char *detail = te_error_detail();
	va_list ap;

	code = r;
	va_start(ap, fmt);
	print_line(program, fmt, ap, *detail ? detail : te_strerror(r));
	va_end(ap);
	for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
		if (r == asked[i])
			return STATUS_BAD;
	}
	return STATUS_FAILED;
}

int say_code(void)
{
	return code;
}

void say_hush(int on)
{
	hushed = on;
}

void say_only_failures(int on)
{
	only_failures = on;
}

void say_note(const char *fmt, ...)
{
	va_list ap;

	if (only_failures)
		return;
	va_start(ap, fmt);
	print_line("", fmt, ap, "");
	va_end(ap);
}

int say_on_terminal(void)
{
	static int known = -1;

	if (known < 0)
		known = isatty(STDERR_FILENO);
	return known;
}

int say_columns(void)
{
	struct winsize ws;

	if (!say_on_terminal() || ioctl(STDERR_FILENO, TIOCGWINSZ, &ws))
		return 0;
	return ws.ws_col;
}

void say_line(const char *text)
{
	if (only_failures)
		return;
	if (!say_on_terminal()) {
		fprintf(stderr, "%s\n", text);
	} else {
		fprintf(stderr, "\r\033[K%s", text);
		line_open = 1;
	}
	check_stderr();
}

void say_line_end(void)
{
	if (line_open)
		fputc('\n', stderr);
	line_open = 0;
}

void say_line_clear(void)
{
	if (line_open)
		fputs("\r\033[K", stderr);
	line_open = 0;
}

/* description of valid values of the parameter */
static const char *form_of(const struct te_param_info *p)
{
	static const struct {
		const char *type, *form;
	} form[] = {
		{ "BOOL", "on or off" },
		{ "INT", "an integer" },
		{ "SIZE", "a number of bytes, with K, M, G or T" },
		{ "DOUBLE", "a number" },
	};

	for (size_t i = 0; i < sizeof(form) / sizeof(form[0]); i++)
		if (!strcmp(p->type, form[i].type))
			return form[i].form;
	return p->unit; /* the choices of an ENUM */
}

int say_params(void)
{
	const char *name;
	int status = STATUS_OK;

	for (size_t i = 0; i < te_param_count(); i++) {
		struct te_param_info p = TE_PARAM_INFO_INIT;

		if (te_param_info(i, &p) || strcmp(p.source, "invalid"))
			continue;
		name = getenv(p.name);
		status = say_bad("%s=%s in the environment: expected %s", p.name, name ? name : "",
				 form_of(&p));
	}
	for (size_t i = 0; (name = te_param_unknown(i)); i++)
		say_note("%s: warning: %s is set, but this version has no such variable", program,
			 name);
	return status;
}
