/* boot.c - bootstraps: opening by a provider, failures, and the division of ranks into nodes. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/boot"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libtecomm/meet/lineage.h"

_Thread_local int32_t te__boot_agreed_ms = 10000;

/* ---- helpers ---- */

int64_t te__boot_now(void)
{
	return (int64_t)te__now_ns();
}

int te__poll(struct pollfd *p, size_t n, int64_t wake_ns)
{
	const int64_t left = wake_ns - te__boot_now();
	const int64_t ns = left > 0 ? left : 0;
	const struct timespec t = { ns / 1000000000, ns % 1000000000 };

	return ppoll(p, n, &t, NULL) < 0 && errno != EINTR ? -errno : 0;
}

const char *te__time_text(int64_t ns, char text[24])
{
	const long long ms = (ns + 999999) / 1000000;

	if (ms < 1000)
		snprintf(text, 24, "%lld ms", ms);
	else
		snprintf(text, 24, "%g s", (double)((ms + 50) / 100) / 10);
	return text;
}

const char *te__ranks_text(const uint8_t *in, uint8_t value, int32_t nranks, char text[160])
{
	int32_t n = 0, listed = 0;
	size_t at = 0;

	for (int32_t r = 0; r < nranks; r++)
		n += in[r] == value;
	at = (size_t)snprintf(text, 160, n == 1 ? "rank" : "ranks");
	for (int32_t r = 0; r < nranks && at < 100; r++)
		if (in[r] == value)
			at += (size_t)snprintf(text + at, 160 - at, "%s%d", listed++ ? ", " : " ",
					       r);
	if (listed < n)
		at += (size_t)snprintf(text + at, 160 - at, " and %d more", n - listed);
	snprintf(text + at, 160 - at, " of %d", nranks);
	return text;
}

void te__hello_text(const struct te__hello *h, char text[TE__PEER_TEXT])
{
	snprintf(text, TE__PEER_TEXT, "rank %d (host %s, pid %u)", h->rank, h->host, h->pid);
}

void te__boot_hello(const struct te__boot *b, struct te__hello *ret_h)
{
	const int64_t left = (b->deadline - te__boot_now()) / 1000000;

	memset(ret_h, 0, sizeof(*ret_h));
	ret_h->rank = b->rank;
	ret_h->nranks = b->nranks;
	ret_h->pid = (uint32_t)getpid();
	ret_h->timeout_ms = (int32_t)((b->deadline - b->begin) / 1000000);
	ret_h->left_ms = left > 0 ? (int32_t)left : 0;
	snprintf(ret_h->version, sizeof(ret_h->version), "%s", PACKAGE_VERSION);
	if (gethostname(ret_h->host, sizeof(ret_h->host) - 1))
		snprintf(ret_h->host, sizeof(ret_h->host), "?");
}

const char *te__frame_differs(const struct te__frame *f, const char *me, char text[TE__REFUSE_MOST])
{
	if (f->version == TE__FRAME_VERSION)
		return NULL;
	snprintf(text, TE__REFUSE_MOST, "a rank speaks version %u of the bootstrap protocol, %s "
		 "version %u: they run different versions of libtecomm", f->version, me,
		 TE__FRAME_VERSION);
	return text;
}

const char *te__hello_differs(const struct te__hello *h, int32_t nranks, const char *me,
			      char text[TE__REFUSE_MOST])
{
	char other[TE__PEER_TEXT];

	te__hello_text(h, other);
	if (strcmp(h->version, PACKAGE_VERSION))
		snprintf(text, TE__REFUSE_MOST, "%s runs libtecomm %s, %s %s", other, h->version,
			 me, PACKAGE_VERSION);
	else if (h->nranks != nranks)
		snprintf(text, TE__REFUSE_MOST, "%s was told that there are %d ranks, %s %d", other,
			 h->nranks, me, nranks);
	else
		return NULL;
	return text;
}

/* ---- failure ---- */

void te__boot_note(struct te__boot *b, int code, const char *fmt, ...)
{
	va_list ap;

	pthread_mutex_lock(&b->fail_lock);
	if (!atomic_load(&b->fail_code)) {
		va_start(ap, fmt);
		vsnprintf(b->fail_text, sizeof(b->fail_text), fmt, ap);
		va_end(ap);
		atomic_store(&b->fail_code, code);
		eventfd_write(b->wake_fd, 1);
	}
	pthread_mutex_unlock(&b->fail_lock);
}

int te__boot_failed(const struct te__boot *b, const char *what)
{
	const int code = atomic_load(&b->fail_code);

	return code ? te__fail(code, "%s: %s: %s", what, b->name, b->fail_text) : 0;
}

const char *te__boot_why(const struct te__boot *b, int *ret_code)
{
	const int code = atomic_load(&b->fail_code);

	if (!code)
		return NULL;
	*ret_code = code;
	return b->fail_text;
}

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

int te__who_by_environment(struct te__boot *b)
{
	const int64_t rank = te__param_int(TE_PARAM_COMM_RANK);
	const int64_t nranks = te__param_int(TE_PARAM_COMM_NRANKS);

	/* the options have them, and the environment need not */
	if (b->nranks && !nranks)
		return 0;
	if (nranks < 1 || nranks > TE__RANKS_MAX || rank < 0 || rank >= nranks)
		return te__create_fail(b, -EINVAL, "TE_COMM_RANK is %lld and TE_COMM_NRANKS is "
				       "%lld: expected a rank from 0 of 1 to %d ranks",
				       (long long)rank, (long long)nranks, TE__RANKS_MAX);
	b->rank = (int32_t)rank;
	b->nranks = (int32_t)nranks;
	return 0;
}

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
		return te__create_fail(b, -EINVAL, "TE_COMM_NRANKS is %lld, and the ranks have no "
				       "way to meet: expected TE_COMM_DIR or TE_COMM_ID, as te_run "
				       "sets them, or TE_COMM_BOOTSTRAP=single",
				       (long long)named_ranks());
	if (b->nranks > 1)
		return te__create_fail(b, -EINVAL, "the options have neither an id nor a "
				       "bootstrap, and the process was not started by te_run, nor "
				       "by a launcher with PMIx: how do %d ranks meet?", b->nranks);
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

/* ---- accessors ---- */

int32_t te__boot_rank(const struct te__boot *b)
{
	return b->rank;
}

int32_t te__boot_nranks(const struct te__boot *b)
{
	return b->nranks;
}

const char *te__boot_provider(const struct te__boot *b)
{
	return b->provider->name;
}

int32_t te__boot_timeout_ms(const struct te__boot *b)
{
	return b->timeout_ms;
}

int64_t te__boot_deadline(const struct te__boot *b)
{
	return te__boot_now() + (int64_t)b->timeout_ms * 1000000;
}

const uint8_t *te__boot_key(const struct te__boot *b)
{
	return b->secret;
}

int32_t te__boot_nnodes(const struct te__boot *b)
{
	return b->nnodes;
}

int32_t te__boot_node(const struct te__boot *b, int32_t rank)
{
	return b->node[rank];
}

int32_t te__boot_local_rank(const struct te__boot *b, int32_t rank)
{
	return b->local_rank[rank];
}

int32_t te__boot_nlocal(const struct te__boot *b)
{
	return b->nlocal;
}

int32_t te__boot_local(const struct te__boot *b, int32_t i)
{
	return b->local[i];
}

const char *te__boot_peer(const struct te__boot *b, int32_t rank)
{
	return b->text[rank];
}
