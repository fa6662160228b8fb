/* pyjson.h - JSON files of Python programs, which may have values that JSON has not. */
#ifndef PYJSON_H
#define PYJSON_H

#include <jansson.h>

/*
 * record_load() with extensions of Python's json module: NaN, Infinity, -Infinity, and reals beyond
 * a double become {"__float__": "Infinity"} and so on, as transformers 5 writes them; integers
 * beyond 64 bits become reals. So a field that needs a number refuses them, and an unused field may
 * have any value.
 */
int pyjson_load(const char *path, json_t **ret_obj);

#endif
