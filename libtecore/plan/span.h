/* span.h - the passes in which memory of a span is used. */
#ifndef TE__SPAN_H
#define TE__SPAN_H

#include <te/plan.h>

/* 0 forward, 1 backward, 2 backward_dw, as in enum te_sched_kind */
static inline int te__span_first(int span)
{
	static const int pass[TE_SPAN_COUNT] = { 0, 1, 2, 0, 0, 1 };

	return pass[span];
}

static inline int te__span_last(int span)
{
	static const int pass[TE_SPAN_COUNT] = { 0, 1, 2, 1, 2, 2 };

	return pass[span];
}

/* 1: the span keeps values between passes; 0: scratch */
static inline int te__span_saves(int span)
{
	return te__span_first(span) != te__span_last(span);
}

#endif
