/* patterns.c - options that select values by patterns of fnmatch(3). */
#define TE_LOG_CATEGORY "core"
#include <errno.h>
#include <fnmatch.h>

#include "libtecore/base/base.h"
#include "libtecore/base/private.h"

int te__patterns_match(const char *name, const char *const *pattern, int n)
{
	for (int i = 0; i < n; i++)
		if (!fnmatch(pattern[i], name, 0))
			return 1;
	return 0;
}

int te__patterns_check(const char *fn, const char *option, int32_t n, const char *const *pattern)
{
	if (n < 0 || (n && !pattern))
		return te__fail(-EINVAL, "%s: n%s is %d, and %s is %s", fn, option, (int)n, option,
				pattern ? "a list" : "NULL");
	for (int32_t i = 0; i < n; i++)
		if (!pattern[i])
			return te__fail(-EINVAL, "%s: %s[%d] is NULL", fn, option, (int)i);
	return 0;
}
