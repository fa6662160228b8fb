/* job.c - jobs: the clients with one key, what they have stored and published; see ted.h. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/ted.h"

/* takes the same time for all keys */
static int same_key(const uint8_t *a, const uint8_t *b)
{
	volatile uint8_t diff = 0;

	for (int i = 0; i < TE__WIRE_KEY_NBYTES; i++)
		diff |= a[i] ^ b[i];
	return !diff;
}

struct ted_job *ted_job_join(struct ted *t, struct ted_client *c, const uint8_t *key)
{
	struct ted_job *j, *found = NULL;

	for (j = t->jobs; j; j = j->next)
		if (same_key(j->key, key) && j->uid == c->uid)
			found = j;
	j = found ? found : calloc(1, sizeof(*j));
	if (!j) {
		ted_error(t, c, -ENOMEM, "HELLO: no memory for a job");
		return NULL;
	}
	if (!found) {
		memcpy(j->key, key, sizeof(j->key));
		j->uid = c->uid;
		j->id = ++t->next_id;
		j->next = t->jobs;
		t->jobs = j;
	}
	j->nclients++;
	c->job = j;
	c->rank = TE__WIRE_NO_RANK;
	return j;
}

static void drop_item(struct ted_job *j, struct ted_item *it)
{
	close(it->fd);
	it->owner->nfds--;
	*it = j->items[--j->nitems];
}

int ted_job_page(struct ted_job *j)
{
	const size_t nbytes = j->nranks * sizeof(*j->page);
	void *p = MAP_FAILED;
	const int fd = memfd_create("ted-abort", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	/* a client that made it shorter would crash ted */
	if (fd >= 0 && !ftruncate(fd, (off_t)nbytes) &&
	    !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) {
		const int code = -errno;

		if (fd >= 0)
			close(fd);
		return code;
	}
	j->page = p;
	j->page_fd = fd;
	return 0;
}

void ted_job_abort(struct ted_job *j)
{
	for (uint32_t i = 0; j->page && i < j->nranks; i++)
		j->page[i] = (uint32_t)-j->code;
}

/* what its clients have stored, and how they have failed */
static void forget(struct ted_job *j)
{
	if (j->page) {
		munmap((void *)(uintptr_t)j->page, j->nranks * sizeof(*j->page));
		close(j->page_fd);
		j->page = NULL;
	}
	for (size_t i = 0; i < j->nkeys; i++) {
		free(j->keys[i].name);
		free(j->keys[i].data);
	}
	free(j->keys);
	free(j->items);
	free(j->rank);
	j->keys = NULL;
	j->items = NULL;
	j->rank = NULL;
	j->nkeys = j->keys_cap = j->items_cap = 0;
	j->nranks = 0;
	j->nbytes = 0;
	j->code = 0;
}

static void destroy(struct ted *t, struct ted_job *j)
{
	struct ted_job **at = &t->jobs;

	while (*at != j)
		at = &(*at)->next;
	*at = j->next;
	explicit_bzero(j->key, sizeof(j->key));
	free(j);
}

void ted_job_leave(struct ted *t, struct ted_client *c)
{
	struct ted_job *j = c->job;

	for (size_t i = j->nitems; i-- > 0;)
		if (j->items[i].owner == c)
			drop_item(j, &j->items[i]);
	c->job = NULL;
	if (--j->nclients)
		return;
	forget(j);
	if (!j->ngrants)
		destroy(t, j);
}

void ted_job_release(struct ted *t, struct ted_job *j)
{
	if (!--j->ngrants && !j->nclients)
		destroy(t, j);
}

/* where name is, or is to be */
static size_t position(const struct ted_job *j, const char *name, int *ret_found)
{
	size_t lo = 0, hi = j->nkeys;

	*ret_found = 0;
	while (lo < hi) {
		const size_t mid = lo + (hi - lo) / 2;
		const int order = strcmp(name, j->keys[mid].name);

		if (!order) {
			*ret_found = 1;
			return mid;
		}
		if (order < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

struct ted_key *ted_job_key(const struct ted_job *j, const char *name)
{
	int found;
	const size_t at = position(j, name, &found);

	return found ? &j->keys[at] : NULL;
}

/* makes room for one more; 0, or -ENOMEM */
static int grow(void **array, size_t n, size_t *cap, size_t nbytes)
{
	const size_t want = *cap ? 2 * *cap : 8;
	void *p;

	if (n < *cap)
		return 0;
	p = realloc(*array, want * nbytes);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = want;
	return 0;
}

int ted_job_put(struct ted_job *j, const char *name, const void *data, size_t nbytes)
{
	int found;
	const size_t at = position(j, name, &found);
	struct ted_key k = { .data = malloc(nbytes ? nbytes : 1), .nbytes = nbytes };
	void *keys = j->keys;

	if (!k.data)
		return -ENOMEM;
	memcpy(k.data, data, nbytes);
	j->nbytes += (int64_t)nbytes;
	if (found) {
		j->nbytes -= (int64_t)j->keys[at].nbytes;
		free(j->keys[at].data);
		k.name = j->keys[at].name;
		j->keys[at] = k;
		return 0;
	}
	k.name = strdup(name);
	if (!k.name || grow(&keys, j->nkeys, &j->keys_cap, sizeof(k))) {
		j->nbytes -= (int64_t)nbytes;
		free(k.name);
		free(k.data);
		return -ENOMEM;
	}
	j->keys = keys;
	memmove(&j->keys[at + 1], &j->keys[at], (j->nkeys - at) * sizeof(k));
	j->keys[at] = k;
	j->nkeys++;
	return 0;
}

struct ted_item *ted_job_item(const struct ted_job *j, uint32_t item)
{
	for (size_t i = 0; i < j->nitems; i++)
		if (j->items[i].item == item)
			return &j->items[i];
	return NULL;
}

int ted_job_publish(struct ted_client *c, uint32_t item, uint64_t nbytes, int fd)
{
	struct ted_job *j = c->job;
	void *items = j->items;

	if (grow(&items, j->nitems, &j->items_cap, sizeof(*j->items)))
		return -ENOMEM;
	j->items = items;
	j->items[j->nitems++] = (struct ted_item){ item, nbytes, fd, c };
	c->nfds++;
	return 0;
}
