/* plot_log.h - the losses in a log of te_train, a file of JSON lines. */
#ifndef PLOT_LOG_H
#define PLOT_LOG_H

#include <stddef.h>
#include <stdint.h>

struct point {
	double step, loss;
};

/* steps ascend */
struct curve {
	struct point *point;
	size_t n, room;
};

struct plot_log {
	struct curve train, val; /* one of them may be empty */
	uint64_t
		torn; /* the number of the last line, if it is incomplete and was ignored, else 0 */
};

#define PLOT_LOG_WHY 256

/* 0, or an exit status and why: 1, there is no memory, or 2, the file cannot be used */
int plot_log_read(const char *path, struct plot_log *ret_log, char ret_why[PLOT_LOG_WHY]);
void plot_log_free(struct plot_log *log);

#endif
