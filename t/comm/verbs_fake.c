/* verbs_fake.c - see verbs_fake.h. One lock; a thread retries what cannot be delivered yet. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "libtecore/base/splitmix64.h"
#include "verbs_fake.h"

struct verbs_fake verbs_fake = { .max_inline = 512 };
_Thread_local int verbs_fake_rank;

#define MOST 512
#define INLINE_MOST 512

struct context {
	struct ibv_context c;
	int rank, write_fd;
	struct context *next;
};

struct region {
	struct ibv_mr mr;
	int rank;
	uint32_t valid; /* its true key */
	int device; /* registered by a dma-buf */
	struct region *next;
};

struct entry {
	struct ibv_wc wc;
	struct queue_pair *qp; /* of a send; NULL: of a receive */
	uint64_t number;
};

struct completions {
	struct ibv_cq cq;
	struct entry *e;
	uint64_t put, got;
	int armed, nunacked;
};

struct request {
	uint64_t id, number;
	enum ibv_wr_opcode op;
	unsigned int flags;
	uint32_t imm, rkey, nbytes;
	uint64_t to;
	const void *from;
	int64_t due, tried;
	int delivered;
	uint8_t copy[INLINE_MOST];
};

struct queue_pair {
	struct ibv_qp qp;
	struct context *ctx;
	struct ibv_qp_cap cap;
	enum ibv_qp_state state;
	uint32_t dest;
	int timeout, retries;
	struct request *sq;
	uint64_t posted, done, freed; /* of sq */
	uint64_t *rq, rposted, rdone;
};

static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER; /* of the worker; taken first */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_t worker;
static int stop;
static struct context *contexts;
static struct region *regions;
static struct queue_pair *qps[MOST];
static uint32_t next_key = 100;
static uint64_t random_state = 1;

static struct ibv_device device[2] = { { .name = "fake0" }, { .name = "fake1" } };

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int fails(const char *name)
{
	static _Thread_local const char *counted;
	static _Thread_local int n;

	if (!verbs_fake.fail || verbs_fake_rank || strcmp(verbs_fake.fail, name))
		return 0;
	if (counted != verbs_fake.fail) { /* a thread has one run */
		counted = verbs_fake.fail;
		n = 0;
	}
	if (++n != verbs_fake.fail_nth)
		return 0;
	verbs_fake.nfired++;
	errno = ENOSPC;
	return ENOSPC;
}

static void *object(size_t nbytes)
{
	verbs_fake.nlive++;
	return calloc(1, nbytes);
}

static void end(void *p)
{
	verbs_fake.nlive--;
	free(p);
}

/* ---- completions, with the lock ---- */

static void push(struct completions *c, const struct entry *e)
{
	if (c->put - c->got >= (uint64_t)c->cq.cqe) {
		verbs_fake.nmisuse++;
		return;
	}
	c->e[c->put++ % (uint64_t)c->cq.cqe] = *e;
	if (c->armed) {
		c->armed = 0;
		eventfd_write(c->cq.channel->fd, 1);
	}
}

static void complete_send(struct queue_pair *q, const struct request *w, enum ibv_wc_status status)
{
	struct entry e = { .wc = { .wr_id = w->id, .status = status, .qp_num = q->qp.qp_num,
				   .vendor_err = status ? 0x81 : 0,
				   .opcode = IBV_WC_RDMA_WRITE },
			   .qp = q, .number = w->number };

	q->done++;
	if (status || w->flags & IBV_SEND_SIGNALED)
		push((struct completions *)(void *)q->qp.send_cq, &e);
}

static void complete_recv(struct queue_pair *q, enum ibv_wc_status status, uint32_t imm,
			  uint32_t nbytes)
{
	struct entry e = { .wc = { .wr_id = q->rq[q->rdone++ % q->cap.max_recv_wr],
				   .status = status, .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
				   .byte_len = nbytes, .qp_num = q->qp.qp_num,
				   .wc_flags = IBV_WC_WITH_IMM } };

	e.wc.imm_data = imm;
	push((struct completions *)(void *)q->qp.recv_cq, &e);
}

static void to_error(struct queue_pair *q)
{
	q->state = IBV_QPS_ERR;
	while (q->rdone < q->rposted)
		complete_recv(q, IBV_WC_WR_FLUSH_ERR, 0, 0);
}

static void raise_event(const struct context *c, enum ibv_event_type type)
{
	struct ibv_async_event e = { .event_type = type };

	if (write(c->write_fd, &e, sizeof(e)) != sizeof(e))
		verbs_fake.nmisuse++;
}

static int is_down(const struct context *c)
{
	const int only = verbs_fake.down_device;

	return verbs_fake.down & 1 << c->rank && (!only || c->c.device == &device[only - 1]);
}

/* ---- delivery, with the lock ---- */

/* keys are those of the protection domain of the queue pair */
static const struct region *covering(const struct ibv_pd *pd, uint32_t key, uint64_t addr,
				     uint32_t nbytes)
{
	for (const struct region *m = regions; m; m = m->next)
		if (m->valid == key && m->mr.pd == pd && addr >= (uintptr_t)m->mr.addr &&
		    addr + nbytes <= (uintptr_t)m->mr.addr + m->mr.length)
			return m;
	return NULL;
}

static struct queue_pair *destination(const struct queue_pair *q)
{
	struct queue_pair *d = q->dest < MOST ? qps[q->dest] : NULL;

	if (!d || (d->state != IBV_QPS_RTR && d->state != IBV_QPS_RTS) || d->dest != q->qp.qp_num ||
	    verbs_fake.cut & (1 << d->ctx->rank | 1 << q->ctx->rank) ||
	    is_down(d->ctx))
		return NULL;
	return d;
}

static void store(uint64_t to, const void *from, uint32_t nbytes)
{
	uint64_t *p = (void *)(uintptr_t)to; /* NOLINT */

	if (nbytes == 8) /* read by polling: atomic, as devices write a word */
		__atomic_store_n(p, __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE),
				 __ATOMIC_RELEASE);
	else
		memcpy(p, from, nbytes);
}

/* memory that the CPU does not read */
static int is_device(const void *p)
{
	const uintptr_t at = (uintptr_t)p;

	for (const struct region *m = regions; m; m = m->next)
		if (m->device && at - (uintptr_t)m->mr.addr < m->mr.length)
			return 1;
	return 0;
}

/* 1: the request is over */
static int deliver(struct queue_pair *q, struct request *w, int64_t now)
{
	struct queue_pair *d = destination(q);
	const int imm = w->op == IBV_WR_RDMA_WRITE_WITH_IMM;
	enum ibv_wc_status status = IBV_WC_SUCCESS;

	if (q->state == IBV_QPS_ERR) {
		complete_send(q, w, IBV_WC_WR_FLUSH_ERR);
		return 1;
	}
	if (is_down(q->ctx)) {
		status = IBV_WC_LOC_QP_OP_ERR;
	} else if (now < w->due) {
		return 0;
	} else if (!d || (w->delivered && verbs_fake.unheard & 1 << q->ctx->rank)) {
		w->tried = w->tried ? w->tried : now;
		if (q->retries == 7 ||
		    now - w->tried < ((int64_t)4096 << q->timeout) * (q->retries + 1))
			return 0;
		status = IBV_WC_RETRY_EXC_ERR;
	} else if (w->delivered) {
		/* what its acknowledgement now tells */
	} else if (w->nbytes && !covering(d->qp.pd, w->rkey, w->to, w->nbytes)) {
		status = IBV_WC_REM_ACCESS_ERR;
		to_error(d);
		raise_event(d->ctx, IBV_EVENT_QP_ACCESS_ERR);
	} else if (imm && d->rdone == d->rposted) {
		status = IBV_WC_RNR_RETRY_EXC_ERR;
		verbs_fake.nrnr++;
	} else {
		store(w->to, w->from ? w->from : w->copy, w->nbytes);
		if (imm)
			complete_recv(d, IBV_WC_SUCCESS, w->imm, w->nbytes);
		w->delivered = 1;
		if (verbs_fake.unheard & 1 << q->ctx->rank)
			return 0;
	}
	complete_send(q, w, status);
	if (status)
		to_error(q);
	return 1;
}

static int process(struct queue_pair *q)
{
	while (q->done < q->posted)
		if (!deliver(q, &q->sq[q->done % q->cap.max_send_wr], now_ns()))
			return 1;
	return 0;
}

static void *work(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	while (!stop) {
		struct timespec t;
		int pending = 0;

		for (int i = 0; i < MOST; i++)
			if (qps[i] && qps[i]->state != IBV_QPS_RESET)
				pending |= process(qps[i]);
		if (!pending) {
			pthread_cond_wait(&cond, &lock);
			continue;
		}
		clock_gettime(CLOCK_REALTIME, &t);
		t.tv_nsec += 100000;
		t.tv_sec += t.tv_nsec / 1000000000;
		t.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&cond, &lock, &t);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

void verbs_fake_event(int rank, enum ibv_event_type type)
{
	pthread_mutex_lock(&lock);
	for (const struct context *c = contexts; c; c = c->next)
		if (c->rank == rank)
			raise_event(c, type);
	pthread_mutex_unlock(&lock);
}

/* ---- devices ---- */

static struct ibv_device **get_device_list(int *ret_n)
{
	struct ibv_device **list;

	if (fails("get_device_list"))
		return NULL;
	*ret_n = verbs_fake.none ? 0 : 2;
	list = object(3 * sizeof(*list));
	for (int i = 0; i < *ret_n; i++)
		list[i] = &device[i];
	return list;
}

static void free_device_list(struct ibv_device **list)
{
	end(list);
}

static const char *get_device_name(struct ibv_device *dev)
{
	return dev->name;
}

static struct ibv_context *open_device(struct ibv_device *dev)
{
	struct context *c;
	int fd[2], first;

	if (fails("open_device"))
		return NULL;
	if (pipe2(fd, O_CLOEXEC))
		return NULL;
	c = object(sizeof(*c));
	c->c.device = dev;
	c->c.async_fd = fd[0];
	c->write_fd = fd[1];
	c->rank = verbs_fake_rank;
	pthread_mutex_lock(&life);
	pthread_mutex_lock(&lock);
	first = !contexts;
	c->next = contexts;
	contexts = c;
	if (first) {
		stop = 0;
		pthread_create(&worker, NULL, work, NULL);
	}
	pthread_mutex_unlock(&lock);
	pthread_mutex_unlock(&life);
	return &c->c;
}

static int close_device(struct ibv_context *ctx)
{
	struct context *c = (struct context *)(void *)ctx, **p;
	int last;

	pthread_mutex_lock(&life);
	pthread_mutex_lock(&lock);
	for (p = &contexts; *p != c; p = &(*p)->next)
		;
	*p = c->next;
	last = !contexts;
	stop = last;
	pthread_cond_broadcast(&cond);
	pthread_mutex_unlock(&lock);
	if (last)
		pthread_join(worker, NULL);
	pthread_mutex_unlock(&life);
	close(ctx->async_fd);
	close(c->write_fd);
	end(c);
	return 0;
}

static int query_device(struct ibv_context *ctx, struct ibv_device_attr *ret)
{
	const int r = fails("query_device");

	memset(ret, 0, sizeof(*ret));
	ret->phys_port_cnt = ctx->device == &device[1] ? 2 : 1;
	return r;
}

static int query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *ret)
{
	const struct context *c = (const struct context *)(const void *)ctx;
	const int second = ctx->device == &device[1], r = fails("query_port");

	memset(ret, 0, sizeof(*ret));
	ret->state = (second && port == 1) || is_down(c) ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
	ret->active_mtu = second ? IBV_MTU_4096 : IBV_MTU_1024;
	ret->active_width = 2;
	ret->active_speed = second || verbs_fake.equal ? 32 : 1;
	ret->gid_tbl_len = 8;
	ret->lid = 7;
	ret->link_layer = verbs_fake.infiniband ? IBV_LINK_LAYER_INFINIBAND
						: IBV_LINK_LAYER_ETHERNET;
	return r;
}

/* 0 and 1: link-local, 2 and 3: IPv4, each of version 1 and 2; 4: IPv6; the others are empty */
static int query_gid_ex(struct ibv_context *ctx, uint32_t port, uint32_t index,
			struct ibv_gid_entry *ret, uint32_t flags, size_t nbytes)
{
	static const uint8_t raw[][16] = {
		{ 0xfe, 0x80, [15] = 1 },
		{ [10] = 0xff, [11] = 0xff, 10, 0, 0, 1 },
		{ 0x20, 0x01, 0x0d, 0xb8, [15] = 1 },
	};

	(void)ctx;
	(void)flags;
	if (fails("query_gid_ex"))
		return ENOSPC;
	if (index > 4)
		return ENODATA;
	memset(ret, 0, nbytes);
	memcpy(ret->gid.raw, raw[index / 2], 16);
	ret->gid_index = index;
	ret->port_num = port;
	ret->gid_type = index & 1 || index == 4 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
	return 0;
}

static struct ibv_pd *alloc_pd(struct ibv_context *ctx)
{
	struct ibv_pd *pd;

	if (fails("alloc_pd"))
		return NULL;
	pd = object(sizeof(*pd));
	pd->context = ctx;
	return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	pthread_mutex_lock(&lock);
	for (const struct region *m = regions; m; m = m->next)
		verbs_fake.nmisuse += m->mr.pd == pd;
	for (int i = 0; i < MOST; i++)
		verbs_fake.nmisuse += qps[i] && qps[i]->qp.pd == pd;
	pthread_mutex_unlock(&lock);
	end(pd);
	return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t nbytes, int access)
{
	struct region *m;

	if (fails("reg_mr"))
		return NULL;
	m = object(sizeof(*m));
	m->mr = (struct ibv_mr){ .pd = pd, .addr = addr, .length = nbytes };
	m->rank = ((struct context *)(void *)pd->context)->rank;
	if (!(access & IBV_ACCESS_REMOTE_WRITE))
		verbs_fake.nmisuse++;
	pthread_mutex_lock(&lock);
	m->valid = m->mr.lkey = m->mr.rkey = next_key += 2;
	if (verbs_fake.wrong_rkey && !m->rank)
		m->mr.rkey++;
	m->next = regions;
	regions = m;
	pthread_mutex_unlock(&lock);
	return &m->mr;
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t nbytes,
				    uint64_t iova, int fd, int access)
{
	struct ibv_mr *mr;

	if (verbs_fake.no_dmabuf) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	verbs_fake.nmisuse += offset || fcntl(fd, F_GETFD) < 0;
	verbs_fake.ndmabuf++;
	mr = reg_mr(pd, (void *)(uintptr_t)iova, nbytes, access);
	if (mr)
		((struct region *)(void *)mr)->device = 1;
	return mr;
}

static int dereg_mr(struct ibv_mr *mr)
{
	struct region **p;

	pthread_mutex_lock(&lock);
	for (p = &regions; &(*p)->mr != mr; p = &(*p)->next)
		;
	*p = (*p)->next;
	pthread_mutex_unlock(&lock);
	end(mr);
	return 0;
}

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *ctx)
{
	struct ibv_comp_channel *c;

	if (fails("create_comp_channel"))
		return NULL;
	c = object(sizeof(*c));
	c->context = ctx;
	c->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	return c;
}

static int destroy_comp_channel(struct ibv_comp_channel *c)
{
	verbs_fake.nmisuse += c->refcnt;
	close(c->fd);
	end(c);
	return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *ctx, int ncqe, void *user,
				struct ibv_comp_channel *channel, int vector)
{
	struct completions *c;

	(void)vector;
	if (fails("create_cq"))
		return NULL;
	c = object(sizeof(*c));
	c->cq = (struct ibv_cq){ .context = ctx, .channel = channel, .cq_context = user,
				 .cqe = ncqe };
	c->e = calloc((size_t)ncqe, sizeof(*c->e));
	channel->refcnt++;
	channel->context = (void *)c; /* there is one */
	return &c->cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
	struct completions *c = (struct completions *)(void *)cq;

	pthread_mutex_lock(&lock);
	verbs_fake.nmisuse += c->nunacked;
	for (int i = 0; i < MOST; i++)
		verbs_fake.nmisuse += qps[i] && qps[i]->qp.send_cq == cq;
	pthread_mutex_unlock(&lock);
	cq->channel->refcnt--;
	free(c->e);
	end(c);
	return 0;
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq, void **ret_user)
{
	struct completions *c = (void *)channel->context;
	eventfd_t n;

	if (fails("get_cq_event"))
		return -1;
	if (eventfd_read(channel->fd, &n))
		return -1;
	c->nunacked++;
	*ret_cq = &c->cq;
	*ret_user = c->cq.cq_context;
	return 0;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	((struct completions *)(void *)cq)->nunacked -= (int)n;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *ret)
{
	struct completions *c = (struct completions *)(void *)cq;
	int k = 0;

	if (fails("poll_cq"))
		return -1;
	if (verbs_fake.short_poll && n > verbs_fake.short_poll)
		n = verbs_fake.short_poll;
	pthread_mutex_lock(&lock);
	for (; k < n && c->got < c->put; k++) {
		const struct entry *e = &c->e[c->got++ % (uint64_t)cq->cqe];

		ret[k] = e->wc;
		if (e->qp)
			e->qp->freed = e->number;
	}
	pthread_mutex_unlock(&lock);
	return k;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	const int r = fails("req_notify_cq");

	(void)solicited_only;
	pthread_mutex_lock(&lock);
	((struct completions *)(void *)cq)->armed = !r;
	pthread_mutex_unlock(&lock);
	return r;
}

/* ---- queue pairs ---- */

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct queue_pair *q;
	uint32_t n = 1;

	if (fails("create_qp"))
		return NULL;
	if (attr->cap.max_inline_data > verbs_fake.max_inline) {
		errno = EINVAL;
		return NULL;
	}
	attr->cap.max_inline_data = verbs_fake.max_inline;
	q = object(sizeof(*q));
	q->cap = attr->cap;
	verbs_fake.nqps++;
	q->ctx = (struct context *)(void *)pd->context;
	q->sq = calloc(attr->cap.max_send_wr, sizeof(*q->sq));
	q->rq = calloc(attr->cap.max_recv_wr, sizeof(*q->rq));
	pthread_mutex_lock(&lock);
	while (qps[n])
		n++;
	q->qp = (struct ibv_qp){ .context = pd->context, .pd = pd, .send_cq = attr->send_cq,
				 .recv_cq = attr->recv_cq, .qp_num = n };
	qps[n] = q;
	pthread_mutex_unlock(&lock);
	return &q->qp;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct queue_pair *q = (struct queue_pair *)(void *)qp;
	const int r = fails("modify_qp");

	if (r)
		return r;
	pthread_mutex_lock(&lock);
	q->state = attr->qp_state;
	if (mask & IBV_QP_DEST_QPN)
		q->dest = attr->dest_qp_num;
	if (mask & IBV_QP_AV)
		verbs_fake.ngid = attr->ah_attr.is_global ? attr->ah_attr.grh.sgid_index : -1;
	if (mask & IBV_QP_AV)
		verbs_fake.traffic_class = attr->ah_attr.grh.traffic_class;
	if (mask & IBV_QP_RETRY_CNT) {
		q->retries = attr->retry_cnt;
		q->timeout = attr->timeout;
		if (attr->retry_cnt > verbs_fake.most_retries)
			verbs_fake.most_retries = attr->retry_cnt;
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

static int destroy_qp(struct ibv_qp *qp)
{
	struct queue_pair *q = (struct queue_pair *)(void *)qp;

	pthread_mutex_lock(&lock);
	qps[qp->qp_num] = NULL;
	pthread_mutex_unlock(&lock);
	free(q->sq);
	free(q->rq);
	end(q);
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **ret_bad)
{
	struct queue_pair *q = (struct queue_pair *)(void *)qp;
	struct request *w;
	int r = fails("post_send");

	*ret_bad = wr;
	pthread_mutex_lock(&lock);
	if (!r && q->posted - q->freed >= q->cap.max_send_wr)
		r = ENOMEM;
	if (r) {
		pthread_mutex_unlock(&lock);
		return r;
	}
	w = &q->sq[q->posted % q->cap.max_send_wr];
	w->id = wr->wr_id;
	w->number = ++q->posted;
	w->op = wr->opcode;
	w->flags = wr->send_flags;
	w->imm = wr->imm_data;
	w->rkey = wr->wr.rdma.rkey;
	w->to = wr->wr.rdma.remote_addr;
	w->nbytes = wr->num_sge ? wr->sg_list->length : 0;
	w->from = wr->num_sge ? (const void *)(uintptr_t)wr->sg_list->addr : NULL; /* NOLINT */
	w->tried = w->delivered = 0;
	w->due = now_ns();
	if (verbs_fake.delay_us)
		w->due += (int64_t)(te__splitmix64(&random_state) %
				    (uint64_t)(verbs_fake.delay_us * 1000));
	if (w->flags & IBV_SEND_INLINE) {
		verbs_fake.nmisuse += w->nbytes > q->cap.max_inline_data || is_device(w->from);
		memcpy(w->copy, w->from, w->nbytes);
		w->from = NULL;
		verbs_fake.ninline++;
	} else if (w->nbytes &&
		   !covering(q->qp.pd, wr->sg_list->lkey, wr->sg_list->addr, w->nbytes)) {
		verbs_fake.nmisuse++;
	}
	verbs_fake.nsends++;
	if (w->nbytes > sizeof(uint64_t) * 4)
		verbs_fake.used |= q->ctx->c.device == &device[1] ? 2 : 1;
	verbs_fake.nunsignalled += !(w->flags & IBV_SEND_SIGNALED);
	if (process(q))
		pthread_cond_broadcast(&cond);
	pthread_mutex_unlock(&lock);
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **ret_bad)
{
	struct queue_pair *q = (struct queue_pair *)(void *)qp;
	int r = fails("post_recv");

	*ret_bad = wr;
	pthread_mutex_lock(&lock);
	if (!r && q->rposted - q->rdone >= q->cap.max_recv_wr)
		r = ENOMEM;
	if (!r && q->state == IBV_QPS_RESET)
		r = EINVAL;
	if (!r)
		q->rq[q->rposted++ % q->cap.max_recv_wr] = wr->wr_id;
	if (!r && q->state == IBV_QPS_ERR)
		complete_recv(q, IBV_WC_WR_FLUSH_ERR, 0, 0);
	pthread_mutex_unlock(&lock);
	return r;
}

/* ---- events and texts ---- */

static int get_async_event(struct ibv_context *ctx, struct ibv_async_event *ret)
{
	if (read(ctx->async_fd, ret, sizeof(*ret)) != sizeof(*ret))
		return -1;
	verbs_fake.nlive++;
	return 0;
}

static void ack_async_event(struct ibv_async_event *e)
{
	(void)e;
	verbs_fake.nlive--;
}

static const char *wc_status_str(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_RETRY_EXC_ERR:
		return "transport retry counter exceeded";
	case IBV_WC_REM_ACCESS_ERR:
		return "remote access error";
	case IBV_WC_LOC_QP_OP_ERR:
		return "local QP operation error";
	case IBV_WC_WR_FLUSH_ERR:
		return "Work Request Flushed Error";
	default:
		return "another status";
	}
}

static const char *port_state_str(enum ibv_port_state state)
{
	return state == IBV_PORT_ACTIVE ? "active" : "down";
}

static const char *event_type_str(enum ibv_event_type type)
{
	return type == IBV_EVENT_DEVICE_FATAL	? "local catastrophic error"
	       : type == IBV_EVENT_PORT_ERR	? "port error"
	       : type == IBV_EVENT_QP_ACCESS_ERR ? "local access violation work queue error"
						 : "another event";
}

static int nearness(struct ibv_device *dev, const char *pci)
{
	pthread_mutex_lock(&lock); /* ranks are threads */
	snprintf(verbs_fake.pci, sizeof(verbs_fake.pci), "%s", pci);
	pthread_mutex_unlock(&lock);
	return verbs_fake.near[dev - device];
}

const struct te__verbs_lib verbs_fake_lib = {
#define TE__IBV(member, symbol, type, args) .member = member,
#include "libtecomm/reach/link/verbs/syms.def"
#undef TE__IBV
	.poll_cq = poll_cq,
	.req_notify_cq = req_notify_cq,
	.post_send = post_send,
	.post_recv = post_recv,
	.nearness = nearness,
};
