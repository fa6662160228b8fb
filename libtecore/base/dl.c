/* dl.c - tables of the functions of libraries that may be absent. */
#include "config.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "libtecore/base/private.h"

/* NULL, or the name of the missing library or function */
static const char *load(const struct te__dl *dl)
{
	const char *name = "no library";
	void *lib = NULL;

	for (size_t i = 0; !lib && i < sizeof(dl->lib) / sizeof(dl->lib[0]) && dl->lib[i]; i++) {
		name = dl->lib[i];
		lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	}
	if (!lib)
		return name;
	for (size_t i = 0; i < dl->nsyms; i++) {
		void *p = dlsym(lib, dl->sym[i].name);

		if (!p)
			return dl->sym[i].name;
		memcpy((char *)dl->table + dl->sym[i].at, &p, sizeof(p));
	}
	return NULL;
}

const char *te__dl_open(struct te__dl *dl)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	const char *missing;

	pthread_mutex_lock(&lock);
	if (!dl->opened)
		dl->missing = load(dl);
	dl->opened = 1;
	missing = dl->missing;
	pthread_mutex_unlock(&lock);
	return missing;
}
