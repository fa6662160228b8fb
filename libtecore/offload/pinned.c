/* pinned.c - the pinned memory of offload: its mapping, registration and slots. */
#define TE_LOG_CATEGORY "core/offload"
#include "config.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libtecore/backend/numa.h"
#include "libtecore/offload/pinned.h"
#include "libtecore/tensor/ctx.h"

#define TOUCH_THREADS 8u
#define TOUCH_NBYTES ((size_t)256 << 20) /* minimum bytes for which a thread is started */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

struct te__pinned {
	struct te_ctx *ctx; /* or NULL */
	void *map;	    /* address from mmap, with room for the alignment of base */
	size_t map_nbytes;
	uint8_t *base; /* slots, then one unit of words and the scratch page */
	size_t nbytes; /* bytes of all slots */
	size_t page;   /* page size of the processor */
	uint8_t *device_base; /* device address of base; NULL: not registered */
	pid_t pid;
	atomic_int kept;
	pthread_mutex_t scratch_lock;

	pthread_mutex_t lock; /* below */
	/* owner[i]: of unit i, the number of units of the slot that begins there; 0 inside of a
	 * slot or free, as used[i] tells */
	uint32_t *owner;
	uint8_t *used;
};

struct touch {
	pthread_t thread;
	uint8_t *p;
	size_t nbytes, page;
};

/* zero pages are written to, so that they exist */
static void *touch(void *arg)
{
	const struct touch *t = arg;

	if (!madvise(t->p, t->nbytes, MADV_POPULATE_WRITE))
		return NULL;
	for (size_t i = 0; i < t->nbytes; i += t->page)
		((volatile uint8_t *)t->p)[i] = 0;
	return NULL;
}

/* first touch takes some 0.3 s per GiB and thread */
static void touch_all(uint8_t *p, size_t nbytes, size_t page)
{
	struct touch part[TOUCH_THREADS];
	size_t n = (nbytes + TOUCH_NBYTES - 1) / TOUCH_NBYTES, each;
	uint32_t nthreads = n > TOUCH_THREADS ? TOUCH_THREADS : (uint32_t)n, started = 0;

	each = (nbytes / nthreads + TE__PINNED_UNIT - 1) / TE__PINNED_UNIT * TE__PINNED_UNIT;
	for (uint32_t i = 0; i < nthreads; i++) {
		const size_t at = i * each;

		part[i] = (struct touch){ .p = p + at, .page = page };
		part[i].nbytes = at >= nbytes ? 0 : nbytes - at < each ? nbytes - at : each;
	}
	while (started + 1 < nthreads &&
	       !te__thread_create(&part[started].thread, "te-touch", touch, &part[started]))
		started++;
	for (uint32_t i = started; i < nthreads; i++)
		touch(&part[i]);
	for (uint32_t i = 0; i < started; i++)
		pthread_join(part[i].thread, NULL);
}

static int bind_node(struct te__pinned *a)
{
	struct te_device_info info = TE_DEVICE_INFO_INIT;
	const char *why;
	int r = a->ctx ? te_ctx_device_info(a->ctx, &info) : 0;

	if (r || !a->ctx || info.numa_node < 0)
		return r;
	if (te__numa_bind(a->base, te__pinned_held_nbytes(a), info.numa_node, &why))
		te__log_warn("arena: %zu bytes are not bound to NUMA node %d: %s",
			     te__pinned_held_nbytes(a), info.numa_node, why);
	return 0;
}

static int map_all(struct te__pinned *a)
{
	const size_t held = te__pinned_held_nbytes(a);
	int r;

	a->map_nbytes = held + TE__PINNED_UNIT - a->page;
	a->map = te__fault_point() ? (errno = ENOMEM, MAP_FAILED) :
				     mmap(NULL, a->map_nbytes, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (a->map == MAP_FAILED) {
		a->map = NULL;
		return te__fail(-errno, "offload: cannot map %zu bytes of host memory: %s",
				a->map_nbytes, strerror(errno));
	}
	a->base = (uint8_t *)(((uintptr_t)a->map + TE__PINNED_UNIT - 1) &
			      ~(uintptr_t)(TE__PINNED_UNIT - 1));
	/* both may fail: without huge pages it is slower; a child that writes would break the
	 * pinning, so it gets none of the memory */
	(void)madvise(a->base, held, MADV_HUGEPAGE);
	(void)madvise(a->map, a->map_nbytes, MADV_DONTFORK);
	r = bind_node(a);
	if (!r)
		touch_all(a->base, held, a->page);
	return r;
}

static int set_up(struct te__pinned *a)
{
	const size_t n = a->nbytes / TE__PINNED_UNIT;
	void *seen;
	int r = map_all(a);

	if (r)
		return r;
	a->owner = te__calloc(n, sizeof(*a->owner));
	a->used = te__calloc(n, sizeof(*a->used));
	if (!a->owner || !a->used)
		return te__fail(-ENOMEM, "offload: no memory for an arena of %zu bytes", a->nbytes);
	if (!a->ctx)
		return 0;
	r = te__page_register(a->ctx, a->base, te__pinned_held_nbytes(a), &seen);
	if (!r)
		a->device_base = seen;
	return r;
}

int te__pinned_create(struct te_ctx *ctx, size_t nbytes, struct te__pinned **ret_arena)
{
	struct te__pinned *a;
	int r;

	if (!nbytes || nbytes > SIZE_MAX / 2)
		return te__fail(-EINVAL, "offload: an arena of %zu bytes", nbytes);
	a = te__calloc(1, sizeof(*a));
	if (!a)
		return te__fail(-ENOMEM, "offload: no memory for an arena");
	pthread_mutex_init(&a->lock, NULL);
	pthread_mutex_init(&a->scratch_lock, NULL);
	a->ctx = ctx ? te_ctx_ref(ctx) : NULL;
	a->nbytes = (nbytes + TE__PINNED_UNIT - 1) / TE__PINNED_UNIT * TE__PINNED_UNIT;
	a->page = (size_t)sysconf(_SC_PAGESIZE);
	a->pid = getpid();
	r = set_up(a);
	if (r) {
		te__pinned_destroy(a);
		return r;
	}
	*ret_arena = a;
	return 0;
}

struct te__pinned *te__pinned_destroy(struct te__pinned *a)
{
	if (!a)
		return NULL;
	if (a->device_base)
		te__page_unregister(a->ctx, a->base);
	/* a forked child does not have the mapping, and may have another there */
	if (a->map && !atomic_load(&a->kept) && a->pid == getpid())
		munmap(a->map, a->map_nbytes);
	te_ctx_unref(a->ctx);
	pthread_mutex_destroy(&a->scratch_lock);
	pthread_mutex_destroy(&a->lock);
	te__free(a->owner);
	te__free(a->used);
	te__free(a);
	return NULL;
}

void te__pinned_keep(struct te__pinned *a)
{
	atomic_store(&a->kept, 1);
}

void *te__pinned_base(const struct te__pinned *a)
{
	return a->base;
}

size_t te__pinned_nbytes(const struct te__pinned *a)
{
	return a->nbytes;
}

size_t te__pinned_held_nbytes(const struct te__pinned *a)
{
	return a->nbytes + TE__PINNED_UNIT;
}

void *te__pinned_device_ptr(const struct te__pinned *a, const void *ptr)
{
	return a->device_base + ((const uint8_t *)ptr - a->base);
}

_Atomic uint32_t *te__pinned_word(const struct te__pinned *a, uint32_t i)
{
	return (_Atomic uint32_t *)(a->base + a->nbytes + (size_t)i * 64);
}

void *te__pinned_scratch_lock(struct te__pinned *a)
{
	pthread_mutex_lock(&a->scratch_lock);
	return te__pinned_word(a, TE__PINNED_NWORDS);
}

void te__pinned_scratch_unlock(struct te__pinned *a)
{
	pthread_mutex_unlock(&a->scratch_lock);
}

int te__pinned_take(struct te__pinned *a, size_t nbytes, void **ret_slot)
{
	const size_t all = a->nbytes / TE__PINNED_UNIT;
	const size_t want = nbytes ? (nbytes - 1) / TE__PINNED_UNIT + 1 : 1;
	size_t run = 0, nfree = 0, i;

	pthread_mutex_lock(&a->lock);
	for (i = 0; i < all && run < want; i++) {
		run = a->used[i] ? 0 : run + 1;
		nfree += !a->used[i];
	}
	if (run == want) {
		memset(a->used + i - want, 1, want);
		a->owner[i - want] = (uint32_t)want;
	}
	pthread_mutex_unlock(&a->lock);
	if (run < want)
		return te__fail(-ENOMEM, "offload: no slot of %zu bytes in the arena: %zu of %zu "
				"bytes are free", nbytes, nfree * TE__PINNED_UNIT, a->nbytes);
	*ret_slot = a->base + (i - want) * TE__PINNED_UNIT;
	return 0;
}

void te__pinned_give(struct te__pinned *a, void *slot)
{
	size_t i;

	if (!slot)
		return;
	i = (size_t)((uint8_t *)slot - a->base) / TE__PINNED_UNIT;
	pthread_mutex_lock(&a->lock);
	memset(a->used + i, 0, a->owner[i]);
	a->owner[i] = 0;
	pthread_mutex_unlock(&a->lock);
}
