/* plot_log.h - the JSON lines that te_train writes: losses of --log, and values of --numerics. */
#ifndef PLOT_LOG_H
#define PLOT_LOG_H

#include <stddef.h>
#include <stdint.h>

struct point {
	double step, y;
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

/* what a value of a pass has: shares are of its elements */
enum plot_numeric {
	PLOT_AMAX,
	PLOT_SCALE, /* what codes are multiplied by; only casts have this and the others */
	PLOT_SATURATED,
	PLOT_UNDERFLOW,
	PLOT_NNUMERICS
};

struct plot_value {
	char *name; /* "h.0.act.y forward e4m3" */
	struct curve curve[PLOT_NNUMERICS];
	double worst; /* the largest share that was saturated or became 0; 2: it was not finite */
};

struct plot_numerics {
	struct plot_value *value; /* in the order of the first passes */
	size_t n, room, next;	  /* next: number of the value that is expected, when reading */
	char *bad;		  /* the first value that is not finite; NULL: none */
	double bad_step;
	uint64_t torn; /* as in struct plot_log */
};

/* as plot_log_read() */
int plot_numerics_read(const char *path, struct plot_numerics *ret_n, char ret_why[PLOT_LOG_WHY]);
void plot_numerics_free(struct plot_numerics *n);

#endif
