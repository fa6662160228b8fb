/* backend.c - the backends of this build and their tables of functions. */
#define TE_LOG_CATEGORY "core/backend"
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include <te/dtype.h>

#include "libtecore/backend/backend.h"
#include "libtecore/base/base.h"

/* in the order in which "auto" tries them */
static const struct te__backend_ops *const listed[] = {
	&te__backend_cuda,
	&te__backend_host,
};

#define NBACKENDS ((int)(sizeof(listed) / sizeof(listed[0])))

static struct te__backend_ops filled[NBACKENDS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* functions for entries that a backend leaves out */

static int absent(const char *what)
{
	return te__fail(-EOPNOTSUPP, "the backend has no %s", what);
}

/* these have parameters for their type only */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define TE__ENTRY(name, args)        \
	static int no_##name args    \
	{                            \
		return absent(#name); \
	}
#define TE__ENTRY_VOID(name, args)  \
	static void no_##name args  \
	{                           \
	}
#define TE__ENTRY_OWN(type, name, args)
#include "libtecore/backend/entries.def"
#undef TE__ENTRY_OWN
#undef TE__ENTRY_VOID
#undef TE__ENTRY

/* entries that cannot return -EOPNOTSUPP */

static void *no_stream_native(void *stream)
{
	return NULL;
}

static int no_capture_active(void *stream)
{
	return 0;
}

static int no_fp8_gemm(void *dev, int scaling)
{
	return 0;
}

static int no_load_shared(void *dev)
{
	return 0;
}

static int no_launch_held(void *stream, int r)
{
	return r;
}

static void *no_exec_graph(void *exec)
{
	return NULL;
}

static void no_graph_node(void *graph, uint64_t index, struct te__gnode *node)
{
	*node = (struct te__gnode){ .kind = TE_NODE_OTHER, .id = -1, .opaque = 1 };
}

void te__backend_fill(struct te__backend_ops *ops)
{
#define TE__ENTRY(name, args) \
	if (!ops->name)       \
		ops->name = no_##name;
#define TE__ENTRY_VOID TE__ENTRY
#define TE__ENTRY_OWN(type, name, args) TE__ENTRY(name, args)
#include "libtecore/backend/entries.def"
#undef TE__ENTRY_OWN
#undef TE__ENTRY_VOID
#undef TE__ENTRY
}

static void fill_all(void)
{
	for (int i = 0; i < NBACKENDS; i++) {
		filled[i] = *listed[i];
		te__backend_fill(&filled[i]);
	}
}

int te__backend_count(void)
{
	return NBACKENDS;
}

const struct te__backend_ops *te__backend_at(int index)
{
	pthread_once(&once, fill_all);
	return index >= 0 && index < NBACKENDS ? &filled[index] : NULL;
}

const struct te__backend_ops *te__backend_by_name(const char *name)
{
	for (int i = 0; i < NBACKENDS; i++)
		if (!strcmp(te__backend_at(i)->name, name))
			return te__backend_at(i);
	return NULL;
}
