/* boot.c - bootstraps: opening by a provider, and the division of ranks into nodes. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libtecomm/meet/lineage.h"

_Thread_local int32_t te__boot_agreed_ms = 10000;

/* ---- nodes ---- */

/* the exchanged record; ranks with equal members from `node` on can exchange descriptors */
struct place {
	uint8_t nonce[TE__NONCE_NBYTES];
	char again[TE__LOCAL_NAME];
	char node[64];	   /* TE_COMM_NODE */
	char boot[64];	   /* boot id of the kernel */
	uint64_t space[2]; /* network namespace, in which abstract sockets can be reached */
};

static void read_line(const char *path, char *ret, size_t nbytes)
{
	FILE *f = fopen(path, "re");

	if (f && fgets(ret, (int)nbytes, f))
		ret[strcspn(ret, "\n")] = 0;
	if (f)
		fclose(f);
}

_Thread_local const char *te__boot_node_name;

static int find_place(struct te__boot *b, struct place *p)
{
	const char *node = te__boot_node_name;
	struct stat st;
	int r;

	memset(p, 0, sizeof(*p));
	snprintf(p->node, sizeof(p->node), "%s", node ? node : te__param_str(TE_PARAM_COMM_NODE));
	read_line("/proc/sys/kernel/random/boot_id", p->boot, sizeof(p->boot));
	if (!p->boot[0] && gethostname(p->boot, sizeof(p->boot) - 1))
		p->boot[0] = 0;
	if (!stat("/proc/self/ns/net", &st)) {
		p->space[0] = st.st_dev;
		p->space[1] = st.st_ino;
	}
	r = 0;
	if (b->nranks > 1)
		r = te__local_listen(SOCK_STREAM, TE__RANKS_MAX, &b->again_fd, p->again);
	if (r)
		return te__boot_fail(b, r, "te_comm_create", "%s cannot listen on a local socket: "
				     "%s", b->text[b->rank], te_strerror(r));
	if (te__random(p->nonce, sizeof(p->nonce)))
		return te__boot_fail(b, -EIO, "te_comm_create", "%s has no random bytes",
				     b->text[b->rank]);
	return 0;
}

static int one_node(const struct place *a, const struct place *b)
{
	return !memcmp(a->node, b->node, sizeof(*a) - offsetof(struct place, node));
}

static int group(struct te__boot *b)
{
	struct place *all = te__calloc((size_t)b->nranks, sizeof(*all));
	int32_t nlocal[TE__RANKS_MAX];
	int r;

	if (!all)
		return te__boot_fail(b, -ENOMEM, "te_comm_create", "%s: not enough memory",
				     b->text[b->rank]);
	r = find_place(b, &all[b->rank]);
	if (!r)
		r = te__boot_allgather(b, &all[b->rank], all, sizeof(*all), "te_comm_create",
				       b->deadline);
	for (int32_t i = 0; i < b->nranks && !r; i++) {
		int32_t k = 0;

		while (k < i && !one_node(&all[i], &all[k]))
			k++;
		b->node[i] = k < i ? b->node[k] : b->nnodes++;
		if (k == i)
			nlocal[b->node[i]] = 0;
		b->local_rank[i] = nlocal[b->node[i]]++;
	}
	for (int32_t i = 0; i < b->nranks && !r; i++)
		if (b->node[i] == b->node[b->rank])
			b->local[b->nlocal++] = i;
	/* from exchanged bytes and b->key, which is not exchanged but shared by communicators */
	if (!r)
		te__key_derive(b->key, "communicator", all, (size_t)b->nranks * sizeof(*all),
			       b->secret);
	for (int32_t i = 0; i < b->nranks && !r; i++)
		memcpy(b->again[i], all[i].again, TE__LOCAL_NAME);
	te__free(all);
	if (!r && b->nnodes > 1 && !b->lineage)
		r = te__lineage_create(b);
	if (!r && b->lineage)
		te__lineage_numbers(b->lineage, b->number);
	return r;
}

/* ---- opening ---- */

static int always(void)
{
	return 1;
}

/* number of ranks by the environment, unless it asks for one rank */
static int64_t named_ranks(void)
{
	return te__param_enum(TE_PARAM_COMM_BOOTSTRAP) ? 0 : te__param_int(TE_PARAM_COMM_NRANKS);
}

static int single_who(struct te__boot *b)
{
	if (!b->nranks && named_ranks() > 1)
		return te__create_fail(b, -EINVAL, "TE_COMM_NRANKS is %lld, and nothing says how "
				       "the ranks connect: expected TE_COMM_DIR or TE_COMM_ID, as "
				       "te_run sets them, or TE_COMM_BOOTSTRAP=single",
				       (long long)named_ranks());
	if (b->nranks > 1)
		return te__create_fail(b, -EINVAL, "the options have neither an id nor a "
				       "bootstrap, and the process was not started by te_run, nor "
				       "by a launcher with PMIx: how do %d ranks connect?",
				       b->nranks);
	b->nranks = 1;
	return 0;
}

static const struct te__boot_provider single = {
	.name = "single",
	.chosen = always,
	.who = single_who,
};

/* the first chosen one is used; in the order of the choices of TE_COMM_BOOTSTRAP after auto */
static const struct te__boot_provider *const by_environment[] = {
	&te__boot_id,
	&te__boot_dir,
	&te__boot_pmix,
	&single,
};

static const struct te__boot_provider *choose(const struct te_comm_opts *o)
{
	int want = te__param_enum(TE_PARAM_COMM_BOOTSTRAP);
	size_t i = 0;

	if (o->bootstrap)
		return &te__boot_callback;
	if (o->id)
		return &te__boot_id;
	if (o->nranks == 1)
		return &single;
	if (want)
		return by_environment[want - 1];
	while (!by_environment[i]->chosen())
		i++;
	return by_environment[i];
}

int te_comm_launched(void)
{
	const struct te_comm_opts o = TE_COMM_OPTS_INIT;

	return choose(&o) != &single || named_ranks() > 1;
}

static int check(const struct te_comm_opts *o)
{
	const char *name = o->name ? o->name : "comm";

	if (o->flags)
		return te__fail(-EINVAL, "te_comm_create: %s: flags 0x%x are not known", name,
				o->flags);
	if (o->id && o->bootstrap)
		return te__fail(-EINVAL, "te_comm_create: %s: both an id and a bootstrap are given",
				name);
	if (o->timeout_ms < 0)
		return te__fail(-EINVAL, "te_comm_create: %s: timeout_ms is %d", name,
				o->timeout_ms);
	if (!o->nranks && (o->id || o->bootstrap))
		return te__fail(-EINVAL, "te_comm_create: %s: %s needs rank and nranks", name,
				o->id ? "an id" : "a bootstrap");
	if (o->nranks &&
	    (o->nranks < 0 || o->nranks > TE__RANKS_MAX || o->rank < 0 || o->rank >= o->nranks))
		return te__fail(-EINVAL, "te_comm_create: %s: rank %d of %d ranks: expected a rank "
				"from 0 of 1 to %d ranks", name, o->rank, o->nranks, TE__RANKS_MAX);
	return 0;
}

static int alloc(struct te__boot *b)
{
	const size_t n = (size_t)b->nranks;

	b->peer = te__calloc(n, sizeof(*b->peer));
	for (size_t i = 0; b->peer && i < n; i++)
		b->peer[i].fd = -1;
	b->state = te__calloc(n, 1);
	b->text = te__calloc(n, sizeof(*b->text));
	b->addrs = te__calloc(n, sizeof(*b->addrs));
	b->node = te__calloc(4 * n, sizeof(*b->node));
	b->again = te__calloc(n, sizeof(*b->again));
	if (!b->peer || !b->state || !b->text || !b->addrs || !b->node || !b->again)
		return te__create_fail(b, -ENOMEM, "not enough memory for %d ranks", b->nranks);
	b->local_rank = b->node + n;
	b->local = b->local_rank + n;
	b->number = b->local + n;
	for (size_t i = 0; i < n; i++)
		snprintf(b->text[i], sizeof(b->text[i]), "rank %zu", i);
	return 0;
}

static void leave(struct te__boot *b)
{
	b->root = te_comm_root_unref(b->root);
	if (b->provider && b->provider->leave)
		b->provider->leave(b);
	te__listen_close(&b->listen);
	te__free(b->addrs);
	b->addrs = NULL;
}

static int open_by(struct te__boot *b)
{
	struct te__hello h;
	int r = b->provider->who(b);

	if (r)
		return r;
	if (b->opts.nranks && (b->opts.nranks != b->nranks || b->opts.rank != b->rank))
		return te__create_fail(b, -TE_EMISMATCH, "the options say rank %d of %d, the "
				       "environment (%s) rank %d of %d", b->opts.rank,
				       b->opts.nranks, b->provider->name, b->rank, b->nranks);
	if (b->nranks < 1 || b->nranks > TE__RANKS_MAX || b->rank < 0 || b->rank >= b->nranks)
		return te__create_fail(b, -EINVAL, "the environment (%s) says rank %d of %d ranks: "
				       "expected a rank from 0 of 1 to %d ranks", b->provider->name,
				       b->rank, b->nranks, TE__RANKS_MAX);
	r = alloc(b);
	if (r)
		return r;
	te__boot_hello(b, &h);
	te__hello_text(&h, b->text[b->rank]);
	if (b->nranks > 1) {
		r = b->provider->meet(b);
		if (!r)
			r = te__mesh_open(b);
	}
	leave(b);
	return r ? r : group(b);
}

/* key, lineage, from: NULL, or of a bootstrap before; most_ms: within that, ranks meet */
static int open_with(const struct te__boot_provider *provider, const uint8_t *key,
		     struct te__lineage *lineage, const struct te__boot_from *from,
		     const struct te_comm_opts *opts, int32_t most_ms, struct te__boot **ret_boot)
{
	const int64_t ms =
		opts->timeout_ms ? opts->timeout_ms : te__param_int(TE_PARAM_COMM_TIMEOUT_MS);
	struct te__boot *b;
	int r = 0;

	if (ms < 1)
		return te__fail(-EINVAL, "te_comm_create: %s: TE_COMM_TIMEOUT_MS is %lld, not 1 or "
				"more", opts->name ? opts->name : "comm", (long long)ms);
	b = te__calloc(1, sizeof(*b));
	if (!b)
		return te__fail(-ENOMEM, "te_comm_create: not enough memory");
	b->opts = *opts;
	snprintf(b->name, sizeof(b->name), "%s", opts->name ? opts->name : "comm");
	b->rank = opts->nranks ? opts->rank : 0;
	b->nranks = opts->nranks;
	b->timeout_ms = ms > INT32_MAX ? INT32_MAX : (int32_t)ms;
	b->begin = te__boot_now();
	b->deadline = b->begin + (ms < most_ms ? ms : most_ms) * 1000000;
	b->again_fd = -1;
	b->from = from;
	b->lineage = te__lineage_ref(lineage);
	if (key)
		memcpy(b->key, key, sizeof(b->key));
	pthread_mutex_init(&b->lock, NULL);
	pthread_mutex_init(&b->fail_lock, NULL);
	b->wake_fd = te__fault_point() ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (b->wake_fd < 0)
		r = te__create_fail(b, -EMFILE, "eventfd: no descriptor");
	if (!r) {
		b->provider = provider;
		r = open_by(b);
	}
	if (r) {
		char why[512];

		snprintf(why, sizeof(why), "%s", te_error_detail());
		te__boot_close(b);
		return te__fail(r, "%s", why); /* closing may have recorded other messages */
	}
	te__log_info("%s: rank %d of %d by %s, %d nodes, after %.1f ms", b->name, b->rank,
		     b->nranks, b->provider->name, b->nnodes,
		     (double)(te__boot_now() - b->begin) / 1e6);
	b->from = NULL;
	*ret_boot = b;
	return 0;
}

int te__boot_open(const struct te_comm_opts *opts, struct te__boot **ret_boot)
{
	int r = check(opts);

	return r ? r : open_with(choose(opts), NULL, NULL, NULL, opts, INT32_MAX, ret_boot);
}

int te__boot_reopen(const struct te__boot_from *from, const struct te_comm_opts *opts,
		    struct te__boot **ret_boot)
{
	const struct te__boot *old = from->old;
	const int32_t most_ms = te__boot_agreed_ms;
	uint8_t key[TE__KEY_NBYTES];
	int r = check(opts);

	if (r)
		return r;
	if (opts->id)
		return open_with(&te__boot_id, NULL, NULL, from, opts, most_ms, ret_boot);
	if (!from->ranks) {
		te__lineage_key(old->lineage, key);
		return open_with(&te__boot_again, key, old->lineage, from, opts, most_ms,
				 ret_boot);
	}
	te__key_derive(old->secret, from->what, from->salt, sizeof(from->salt), key);
	return open_with(&te__boot_again, key, NULL, from, opts, most_ms, ret_boot);
}

int te__boot_settles(const struct te__boot *b)
{
	return b->lineage != NULL;
}

int32_t te__boot_settle(struct te__boot *b, int64_t deadline_ns, int32_t *ret_rank)
{
	int32_t n = 0;
	int r;

	for (int32_t i = 0; i < b->nranks; i++)
		if (te__mesh_has_ended(b, i))
			te__lineage_ended(b->lineage, b->number[i]);
	r = te__lineage_settle(b->lineage, deadline_ns);
	for (int32_t i = 0; i < b->nranks && !r; i++)
		if (te__lineage_has(b->lineage, b->number[i]))
			ret_rank[n++] = i;
	return r ? r : n;
}

struct te__boot *te__boot_close(struct te__boot *b)
{
	if (!b)
		return NULL;
	leave(b);
	te__mesh_close(b);
	if (b->provider && b->provider->close)
		b->provider->close(b);
	if (b->wake_fd >= 0)
		close(b->wake_fd);
	if (b->again_fd >= 0)
		close(b->again_fd);
	te__free(b->again);
	te__lineage_unref(b->lineage);
	pthread_mutex_destroy(&b->lock);
	pthread_mutex_destroy(&b->fail_lock);
	te__free(b->peer);
	te__free(b->state);
	te__free(b->text);
	te__free(b->node);
	te__free(b);
	return NULL;
}
