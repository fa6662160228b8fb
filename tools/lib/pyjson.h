/* pyjson.h - JSON files of Python programs, which may have values that JSON has not. */
#ifndef PYJSON_H
#define PYJSON_H

#include <jansson.h>

/*
 * As record_load(), with what Python's json module writes besides: NaN, Infinity and -Infinity, and
 * reals beyond a double, become {"__float__": "Infinity"} and so on, as transformers 5 writes them;
 * integers beyond 64 bits become reals. So a field that needs a number refuses them, and a field
 * that is not used has any.
 */
int pyjson_load(const char *path, json_t **ret_obj);

#endif
