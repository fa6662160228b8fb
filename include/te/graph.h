/* te/graph.h - libtegraph. */
#ifndef TE_GRAPH_H
#define TE_GRAPH_H

#include <te/export.h>

TE_BEGIN_DECLS

/**
 * te_graph_version - the version of the libtegraph that runs, as "0.1.0"
 *
 * Thread: any thread.
 * Since:  0.1
 */
TE_EXPORT const char *te_graph_version(void);

TE_END_DECLS

#endif
