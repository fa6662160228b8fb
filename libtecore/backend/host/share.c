/*
 * share.c - memory that other processes map: a sealed memfd, which is mapped into reserved
 * addresses. Its pages are allocated when they are first written.
 *
 * Fabric handles are simulated by TE_HOST_FABRIC: they name a descriptor of the process that has
 * the memory, which others of the same user and machine open.
 *
 * Multicast is simulated: its memfd has counts of devices in the first page, and is mapped
 * without access. Reference kernels compute which memory its addresses stand for
 * (kernels/comm/nvls.c).
 */
#define TE_LOG_CATEGORY "core/host"
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libtecore/backend/host/host.h"

#define MULTICAST_MAGIC 0x74656d63u
#define FABRIC_MAGIC 0x74656662u

/* in memory that all processes map */
struct multicast {
	uint32_t magic, ndevices;
	uint32_t nadded, nbound;
};

struct host_share {
	struct host_dev *dev;
	int fd;
	int created; /* here, and counted as memory of the device */
	size_t nbytes;
	struct multicast *multicast; /* or NULL: memory */
	int bound;
};

int host_share_unit(void *dev, size_t *ret_nbytes)
{
	(void)dev;
	if (host_fault("share_unit"))
		return -ENOMEM;
	*ret_nbytes = (size_t)sysconf(_SC_PAGESIZE);
	return 0;
}

/* NULL: -ENOMEM is recorded */
static struct host_share *share_new(struct host_dev *dev, int fd, size_t nbytes)
{
	struct host_share *s = te__calloc(1, sizeof(*s));

	if (!s)
		te__fail(-ENOMEM, "host: no memory for a share");
	else
		*s = (struct host_share){ .dev = dev, .fd = fd, .nbytes = nbytes };
	return s;
}

/* new memory is filled like any other of the device */
static int poison(int fd, size_t nbytes)
{
	void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return te__fail(-errno, "host: map %zu bytes: %s", nbytes, strerror(errno));
	memset(p, 0xff, nbytes);
	munmap(p, nbytes);
	return 0;
}

int host_share_create(void *dev, size_t nbytes, void **ret_share)
{
	struct host_dev *d = dev;
	struct host_share *s = NULL;
	int r, fd = -1;

	if (nbytes % (size_t)sysconf(_SC_PAGESIZE))
		return te__fail(-EINVAL, "host: %zu bytes to share are no whole pages", nbytes);
	if (!te__devmem_take(&d->mem, nbytes))
		return te__devmem_full(&d->mem, nbytes);
	r = te__sealed_create("host", nbytes, &fd);
	if (!r && d->poison)
		r = poison(fd, nbytes);
	if (!r)
		s = share_new(d, fd, nbytes);
	if (!s) {
		if (fd >= 0)
			close(fd);
		te__devmem_give(&d->mem, nbytes);
		return r ? r : -ENOMEM;
	}
	s->created = 1;
	*ret_share = s;
	return 0;
}

static int duplicate(int fd, int *ret_fd)
{
	int copy = te__fault_point() ? (errno = EMFILE, -1) : fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (copy < 0)
		return te__fail(-errno, "host: duplicate file descriptor %d: %s", fd,
				strerror(errno));
	*ret_fd = copy;
	return 0;
}

int host_share_export(void *share, int *ret_fd)
{
	const struct host_share *s = share;

	return duplicate(s->fd, ret_fd);
}

int host_share_import(void *dev, int fd, size_t nbytes, void **ret_share)
{
	struct host_share *s;
	int r = te__sealed_check("host", fd, nbytes), copy;

	if (!r)
		r = duplicate(fd, &copy);
	if (r)
		return r;
	s = share_new(dev, copy, nbytes);
	if (!s) {
		close(copy);
		return -ENOMEM;
	}
	*ret_share = s;
	return 0;
}

void host_share_release(void *share)
{
	struct host_share *s = share;

	if (s->created)
		te__devmem_give(&s->dev->mem, s->nbytes);
	if (s->multicast)
		munmap(s->multicast, sizeof(*s->multicast));
	close(s->fd);
	te__free(s);
}

int host_share_reserve(void *dev, size_t nbytes, void **ret_base)
{
	void *p = te__fault_point() ? (errno = ENOMEM, MAP_FAILED) :
				      mmap(NULL, nbytes, PROT_NONE,
					   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	(void)dev;
	if (p == MAP_FAILED)
		return te__fail(-errno, "host: reserve %zu bytes of addresses: %s", nbytes,
				strerror(errno));
	*ret_base = p;
	return 0;
}

int host_share_map(void *share, void *at)
{
	const struct host_share *s = share;
	const struct multicast *m = s->multicast;
	void *p;

	if (m && __atomic_load_n(&m->nbound, __ATOMIC_ACQUIRE) < m->ndevices)
		return te__fail(-TE_ESTATE, "host: multicast is mapped when %u of %u devices have "
				"bound their memory", m->nbound, m->ndevices);
	p = te__fault_point() ? (errno = ENOMEM, MAP_FAILED) :
				mmap(at, s->nbytes, m ? PROT_NONE : PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_FIXED, s->fd, 0);
	if (p == MAP_FAILED)
		return te__fail(-errno, "host: map %zu bytes at %p: %s", s->nbytes, at,
				strerror(errno));
	return 0;
}

/* the addresses stay reserved */
void host_share_unmap(void *dev, void *at, size_t nbytes)
{
	(void)dev;
	if (mmap(at, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
		 -1, 0) == MAP_FAILED)
		te__log_warn("unmap %zu bytes at %p: %s", nbytes, at, strerror(errno));
}

void host_share_unreserve(void *dev, void *base, size_t nbytes)
{
	(void)dev;
	munmap(base, nbytes);
}

/* ---- multicast ---- */

int host_multicast_unit(void *dev, int ndevices, size_t nbytes, size_t *ret_nbytes)
{
	int r = te__multicast_check();

	(void)ndevices;
	(void)nbytes;
	return r ? r : host_share_unit(dev, ret_nbytes);
}

/* takes the descriptor; this device is added. ndevices: of a new one; 0: it exists */
static int multicast_open(struct host_dev *dev, int fd, size_t nbytes, int ndevices,
			  void **ret_share)
{
	struct host_share *s = share_new(dev, fd, nbytes);
	struct multicast *m;
	int r = -ENOMEM;

	if (!s) {
		close(fd);
		return r;
	}
	m = mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m == MAP_FAILED) {
		r = te__fail(-errno, "host: map a multicast object: %s", strerror(errno));
		goto fail;
	}
	s->multicast = m;
	if (ndevices)
		*m = (struct multicast){ MULTICAST_MAGIC, (uint32_t)ndevices, 0, 0 };
	r = -EINVAL;
	if (m->magic != MULTICAST_MAGIC) {
		te__fail(r, "host: the memfd to import is no multicast object");
		goto fail;
	}
	if (__atomic_fetch_add(&m->nadded, 1, __ATOMIC_ACQ_REL) >= m->ndevices) {
		te__fail(r, "host: multicast of %u devices: one more was added", m->ndevices);
		goto fail;
	}
	*ret_share = s;
	return 0;
fail:
	host_share_release(s);
	return r;
}

int host_multicast_create(void *dev, int ndevices, size_t nbytes, void **ret_share)
{
	int fd;
	int r = te__multicast_check();

	if (!r)
		r = te__sealed_create("host", nbytes, &fd);
	return r ? r : multicast_open(dev, fd, nbytes, ndevices, ret_share);
}

int host_multicast_import(void *dev, int fd, size_t nbytes, void **ret_share)
{
	int copy;
	int r = te__multicast_check();

	if (!r)
		r = te__sealed_check("host", fd, nbytes);
	if (!r)
		r = duplicate(fd, &copy);
	return r ? r : multicast_open(dev, copy, nbytes, 0, ret_share);
}

int host_multicast_bind(void *multicast, void *share)
{
	struct host_share *s = multicast;
	const struct host_share *memory = share;
	const uint32_t nadded = __atomic_load_n(&s->multicast->nadded, __ATOMIC_ACQUIRE);
	int r = te__multicast_check();

	if (r)
		return r;
	if (host_fault("multicast_bind"))
		return -ENOMEM;
	if (nadded < s->multicast->ndevices)
		return te__fail(-TE_ESTATE, "host: multicast: memory is bound when %u of %u "
				"devices have been added", nadded, s->multicast->ndevices);
	if (s->bound || memory->nbytes != s->nbytes)
		return te__fail(-EINVAL, "host: multicast of %zu bytes: %zu bytes are bound%s",
				s->nbytes, memory->nbytes, s->bound ? " once more" : "");
	s->bound = 1;
	__atomic_fetch_add(&s->multicast->nbound, 1, __ATOMIC_ACQ_REL);
	return 0;
}

/* ---- fabric handles ---- */

/* contents of a handle */
struct fabric {
	uint32_t magic;
	int32_t pid, fd;
	uint64_t inode; /* another process or file may have the numbers by now */
};

_Static_assert(sizeof(struct fabric) <= sizeof(struct te__fabric_handle), "a handle holds it");

/* processes that see each other by their numbers are in one domain */
int host_fabric_probe(void *dev, struct te__fabric_domain *ret_domain)
{
	struct stat st;
	char boot[37] = "";
	int fd;

	(void)dev;
	if (host_fault("fabric_probe"))
		return -ENOMEM;
	if (!te__param_bool(TE_PARAM_HOST_FABRIC))
		return te__fail(-EOPNOTSUPP, "the host backend has no fabric handles: "
				"TE_HOST_FABRIC is off");
	fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, boot, 36) != 36 || stat("/proc/self/ns/pid", &st)) {
		if (fd >= 0)
			close(fd);
		return te__fail(-EOPNOTSUPP, "the host backend has no fabric handles: /proc does "
				"not tell which machine this is");
	}
	close(fd);
	snprintf((char *)ret_domain->id, sizeof(ret_domain->id), "%s %llx", boot,
		 (unsigned long long)st.st_ino);
	return 0;
}

int host_fabric_export(void *share, struct te__fabric_handle *ret_handle)
{
	const struct host_share *s = share;
	struct fabric f = { .magic = FABRIC_MAGIC, .pid = getpid(), .fd = s->fd };
	struct stat st;

	if (host_fault("fabric_export"))
		return -ENOMEM;
	if (fstat(s->fd, &st))
		return te__fail(-errno, "host: fstat: %s", strerror(errno));
	f.inode = st.st_ino;
	memset(ret_handle, 0, sizeof(*ret_handle));
	memcpy(ret_handle, &f, sizeof(f));
	return 0;
}

int host_fabric_import(void *dev, const struct te__fabric_handle *handle, size_t nbytes,
		       void **ret_share)
{
	struct fabric f;
	struct stat st;
	char path[64];
	int fd, r;

	memcpy(&f, handle, sizeof(f));
	if (f.magic != FABRIC_MAGIC)
		return te__fail(-EINVAL, "host: the fabric handle to import is of another "
				"backend");
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", f.pid, f.fd);
	fd = te__fault_point() ? (errno = EMFILE, -1) : open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return te__fail(-errno, "host: the memory of a fabric handle, %s: %s", path,
				strerror(errno));
	if (fstat(fd, &st) || st.st_ino != f.inode)
		r = te__fail(-EINVAL, "host: the memory of a fabric handle, %s, no longer exists",
			     path);
	else
		r = host_share_import(dev, fd, nbytes, ret_share);
	close(fd);
	return r;
}

/* ---- pages and network adapters ---- */

int host_page_register(void *dev, void *page, size_t nbytes, void **ret_ptr)
{
	(void)dev;
	(void)nbytes;
	if (host_fault("page_register"))
		return -ENOMEM;
	*ret_ptr = page;
	return 0;
}

int host_adapter_export(void *dev, void *ptr, size_t nbytes, int *ret_fd)
{
	(void)dev;
	(void)ptr;
	(void)nbytes;
	if (host_fault("adapter_export"))
		return -ENOMEM;
	*ret_fd = -1;
	return 0;
}

int host_adapter_flush(void *stream)
{
	(void)stream;
	return host_fault("adapter_flush") ? -ENOMEM : 0;
}
