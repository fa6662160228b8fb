/* device.c - choice of devices, ports and addresses. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/verbs"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libtecomm/reach/link/verbs/verbs.h"

/* an element of TE_COMM_IB_DEVICE: "name" or "name:port" */
struct wish {
	char text[72], name[64]; /* "": any */
	int port;		 /* 0: any */
};

/* parse the list; an empty one stands for any port. Returns the number of elements */
static int read_wishes(struct wish *ret)
{
	const char *list = te__param_str(TE_PARAM_COMM_IB_DEVICE), *s = list;
	int k = 0;

	for (;; k++) {
		const size_t n = strcspn(s, ","), name = strcspn(s, ":,");
		struct wish *w = &ret[k];

		if (k == TE__VERBS_PORTS_MOST)
			return te__fail(-EINVAL, "TE_COMM_IB_DEVICE: \"%s\" has more than %d ports",
					list, TE__VERBS_PORTS_MOST);
		memset(w, 0, sizeof(*w));
		if (n >= sizeof(w->text) || name >= sizeof(w->name))
			return te__fail(-EINVAL, "TE_COMM_IB_DEVICE: \"%s\" is too long", list);
		if (!n && *list)
			return te__fail(-EINVAL, "TE_COMM_IB_DEVICE: \"%s\" has an empty name",
					list);
		memcpy(w->text, s, n);
		memcpy(w->name, s, name);
		if (name < n) {
			char *end;
			const long port = strtol(w->text + name + 1, &end, 10);

			if (end == w->text + name + 1 || *end || port < 1 || port > 255)
				return te__fail(-EINVAL, "TE_COMM_IB_DEVICE: \"%s\": a port is "
						"1 to 255", w->text);
			w->port = (int)port;
		}
		if (!s[n])
			return k + 1;
		s += n + 1;
	}
}

/* Mbit/s; codes from the InfiniBand specification, PortInfo */
static int rate(const struct ibv_port_attr *a)
{
	static const struct {
		int code, value;
	} width[] = { { 1, 1 }, { 2, 4 }, { 4, 8 }, { 8, 12 }, { 16, 2 } },
	  speed[] = { { 1, 2500 },   { 2, 5000 },   { 4, 10000 },  { 8, 10000 },
		      { 16, 14000 }, { 32, 25000 }, { 64, 50000 }, { 128, 100000 } };
	int w = 1, s = 2500;

	for (size_t i = 0; i < sizeof(width) / sizeof(width[0]); i++)
		if (width[i].code == a->active_width)
			w = width[i].value;
	for (size_t i = 0; i < sizeof(speed) / sizeof(speed[0]); i++)
		if (speed[i].code == a->active_speed)
			s = speed[i].value;
	return w * s;
}

static int is_roce(const struct te__verbs_port *p)
{
	return p->attr.link_layer == IBV_LINK_LAYER_ETHERNET;
}

/* higher is better; 0: not usable */
static int gid_worth(const struct ibv_gid_entry *e)
{
	static const uint8_t none[16], v4[12] = { [10] = 0xff, [11] = 0xff };
	const int v2 = e->gid_type == IBV_GID_TYPE_ROCE_V2;

	if (!memcmp(e->gid.raw, none, sizeof(none)))
		return 0;
	if (!memcmp(e->gid.raw, v4, sizeof(v4)))
		return v2 ? 6 : 3;
	if (e->gid.raw[0] == 0xfe && (e->gid.raw[1] & 0xc0) == 0x80) /* link-local */
		return v2 ? 4 : 1;
	return v2 ? 5 : 2;
}

static int choose_gid(struct te__verbs_port *p)
{
	const int64_t wanted = te__param_int(TE_PARAM_COMM_IB_GID);
	int best = 0;

	if (wanted < 0 && !is_roce(p))
		return 0; /* the lid is the address */
	for (int i = 0; i < p->attr.gid_tbl_len; i++) {
		struct ibv_gid_entry e = { .gid_index = 0 };

		if (wanted >= 0 && i != wanted)
			continue;
		if (p->lib->query_gid_ex(p->ctx, p->port, (uint32_t)i, &e, 0, sizeof(e)))
			continue; /* an empty entry */
		if (gid_worth(&e) > best) {
			best = gid_worth(&e);
			p->gid = e;
			p->gid.gid_index = (uint32_t)i;
		}
	}
	if (!best && wanted >= 0)
		return te__fail(-ENODEV, "verbs: device %s port %d has no address of index %lld "
				"(TE_COMM_IB_GID)", p->name, p->port, (long long)wanted);
	if (!best)
		return te__fail(-ENODEV, "verbs: device %s port %d has no address", p->name,
				p->port);
	p->gid_chosen = 1;
	return 0;
}

/* an active port */
struct candidate {
	struct ibv_device *dev;
	int port, rate, near;
};

#define CANDIDATES_MOST 256

struct search {
	const struct te__verbs_lib *lib;
	const struct te__verbs_near *near;
	const struct wish *wish;
	struct candidate c[CANDIDATES_MOST];
	int n, seen;
};

static int query_port(struct te__verbs_port *p)
{
	int r;

	memset(&p->attr, 0, sizeof(p->attr));
	r = p->lib->query_port(p->ctx, p->port, &p->attr);
	return r ? te__fail(-r, "verbs: device %s port %d: ibv_query_port: %s", p->name, p->port,
			    strerror(r)) : 0;
}

static int open_device(const struct te__verbs_lib *lib, struct ibv_device *dev,
		       struct te__verbs_port *ret)
{
	*ret = (struct te__verbs_port){ .lib = lib };
	snprintf(ret->name, sizeof(ret->name), "%s", lib->get_device_name(dev));
	ret->ctx = lib->open_device(dev);
	return ret->ctx ? 0 : te__fail(errno ? -errno : -ENODEV, "verbs: device %s: "
				       "ibv_open_device: %s", ret->name, strerror(errno));
}

/* adds the requested active ports of a device */
static int look_at(struct search *s, struct ibv_device *dev)
{
	struct ibv_device_attr d;
	struct te__verbs_port p;
	int r;

	if (s->wish->name[0] && strcmp(s->wish->name, s->lib->get_device_name(dev)))
		return 0;
	s->seen++;
	r = open_device(s->lib, dev, &p);
	if (r)
		return r;
	r = s->lib->query_device(p.ctx, &d);
	if (r)
		r = te__fail(-r, "verbs: device %s: ibv_query_device: %s", p.name, strerror(r));
	for (int port = 1; !r && port <= d.phys_port_cnt && s->n < CANDIDATES_MOST; port++) {
		if (s->wish->port && port != s->wish->port)
			continue;
		p.port = (uint8_t)port;
		r = query_port(&p);
		if (!r && p.attr.state == IBV_PORT_ACTIVE)
			s->c[s->n++] = (struct candidate){
				dev, port, rate(&p.attr), s->lib->nearness(dev, s->near->pci),
			};
	}
	te__verbs_port_close(&p);
	return r;
}

static int is_better(const struct candidate *a, const struct candidate *b)
{
	return a->rate != b->rate ? a->rate > b->rate : a->near > b->near;
}

/* the fastest port; of equal ones the nearest; of these the one of this rank's turn */
static const struct candidate *best_of(const struct search *s)
{
	const struct candidate *best = &s->c[0];
	int n = 0, turn;

	for (int i = 1; i < s->n; i++)
		if (is_better(&s->c[i], best))
			best = &s->c[i];
	for (int i = 0; i < s->n; i++)
		n += !is_better(best, &s->c[i]);
	turn = s->near->turn % n;
	for (int i = 0;; i++)
		if (!is_better(best, &s->c[i]) && !turn--)
			return &s->c[i];
}

static int open_one(struct search *s, struct ibv_device **list, int n, struct te__verbs_port *ret)
{
	const struct wish *w = s->wish;
	const struct candidate *c;
	int failed = 0, r;

	s->n = s->seen = 0;
	for (int i = 0; i < n; i++) {
		/* an unusable device does not prevent the use of others */
		r = look_at(s, list[i]);
		failed = r ? r : failed;
	}
	if (!s->n && failed)
		return failed;
	if (!s->seen)
		return w->name[0] ? te__fail(-ENODEV, "verbs: there is no device %s "
					     "(TE_COMM_IB_DEVICE)", w->name)
				  : te__fail(-ENODEV, "verbs: there is no RDMA device");
	if (!s->n)
		return te__fail(-ENODEV, "verbs: no port%s%s is active", w->text[0] ? " of " : "",
				w->text);
	c = best_of(s);
	r = open_device(s->lib, c->dev, ret);
	if (r)
		return r;
	ret->port = (uint8_t)c->port;
	r = query_port(ret);
	if (!r)
		r = choose_gid(ret);
	if (!r)
		te__log_debug("device %s port %d, MTU code %d, gid index %d", ret->name, ret->port,
			      ret->attr.active_mtu, ret->gid_chosen ? (int)ret->gid.gid_index : -1);
	return r;
}

int te__verbs_ports_open(const struct te__verbs_near *near, struct te__verbs_port *ret_ports)
{
	struct wish wish[TE__VERBS_PORTS_MOST];
	struct search s = { .near = near };
	int r, n = 0, nwishes = 0, k = 0;
	struct ibv_device **list;

	r = te__verbs_load(&s.lib);
	if (!r)
		r = nwishes = read_wishes(wish);
	if (r < 0)
		return r;
	errno = 0;
	list = s.lib->get_device_list(&n);
	if (!list && errno == ENOSYS)
		return te__fail(-ENODEV, "verbs: this kernel has no RDMA devices");
	if (!list)
		return te__fail(errno ? -errno : -ENODEV, "verbs: ibv_get_device_list: %s",
				strerror(errno ? errno : ENODEV));
	for (r = 0; k < nwishes && !r; k++) {
		s.wish = &wish[k];
		memset(&ret_ports[k], 0, sizeof(ret_ports[k]));
		r = open_one(&s, list, n, &ret_ports[k]);
	}
	s.lib->free_device_list(list);
	while (r && k-- > 0)
		te__verbs_port_close(&ret_ports[k]);
	return r ? r : nwishes;
}

void te__verbs_port_close(struct te__verbs_port *port)
{
	if (port->ctx)
		port->lib->close_device(port->ctx);
	memset(port, 0, sizeof(*port));
}

const char *te__verbs_port_text(const struct te__verbs_port *port, char *ret_text, size_t nbytes)
{
	struct ibv_port_attr a = { .state = IBV_PORT_NOP };

	if (port->lib->query_port(port->ctx, port->port, &a))
		snprintf(ret_text, nbytes, "device %s port %d", port->name, port->port);
	else
		snprintf(ret_text, nbytes, "device %s port %d, %s", port->name, port->port,
			 port->lib->port_state_str(a.state));
	return ret_text;
}
