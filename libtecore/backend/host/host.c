/* host.c - the table of the host backend; see host.h for its files. */
#include "config.h"

#include "libtecore/backend/host/host.h"

/* entries that it leaves out, and one that is another */
#define host_enter NULL
#define host_leave NULL
#define host_page_unregister NULL
#define host_stream_native NULL
#define host_stream_workspace NULL
#define host_launch_hold NULL
#define host_fp8_gemm NULL
#define host_load_shared NULL
#define host_launch_held NULL
#define host_fabric_create host_share_create

const struct te__backend_ops te__backend_host = {
	.name = "host",
#define TE__ENTRY(name, args) .name = host_##name,
#define TE__ENTRY_VOID TE__ENTRY
#define TE__ENTRY_OWN(type, name, args) TE__ENTRY(name, args)
#include "libtecore/backend/entries.def"
};
