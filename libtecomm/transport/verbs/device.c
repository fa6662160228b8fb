/* device.c - which port of which device, and which of its addresses. */
#include "config.h"

#define TE_LOG_CATEGORY "comm/verbs"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libtecomm/transport/verbs/verbs.h"

/* TE_COMM_IB_DEVICE as "name" or "name:port" */
struct wish {
	char name[64]; /* "": any */
	int port;      /* 0: any */
};

static int read_wish(struct wish *ret)
{
	const char *text = te__param_str(TE_PARAM_COMM_IB_DEVICE);
	const char *colon = strchr(text, ':');
	const size_t n = colon ? (size_t)(colon - text) : strlen(text);

	memset(ret, 0, sizeof(*ret));
	if (n >= sizeof(ret->name))
		return te__fail(-EINVAL, "TE_COMM_IB_DEVICE: \"%s\" is too long", text);
	memcpy(ret->name, text, n);
	if (colon) {
		char *end;
		const long port = strtol(colon + 1, &end, 10);

		if (end == colon + 1 || *end || port < 1 || port > 255)
			return te__fail(-EINVAL, "TE_COMM_IB_DEVICE: \"%s\": a port is 1 to 255",
					text);
		ret->port = (int)port;
	}
	return 0;
}

/* Mbit/s; the codes are those of the InfiniBand specification, PortInfo */
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

/* looks for a better port than *best in one device; opens what it keeps */
static int look_at(const struct te__verbs_lib *lib, struct ibv_device *dev,
		   const struct wish *wish, struct te__verbs_port *best, int *ret_seen)
{
	struct te__verbs_port p = { .lib = lib };
	struct ibv_device_attr d;
	int kept = 0, r;

	snprintf(p.name, sizeof(p.name), "%s", lib->get_device_name(dev));
	if (wish->name[0] && strcmp(wish->name, p.name))
		return 0;
	*ret_seen += 1;
	p.ctx = lib->open_device(dev);
	if (!p.ctx)
		return te__fail(errno ? -errno : -ENODEV, "verbs: device %s: ibv_open_device: %s",
				p.name, strerror(errno));
	r = lib->query_device(p.ctx, &d);
	if (r)
		r = te__fail(-r, "verbs: device %s: ibv_query_device: %s", p.name, strerror(r));
	for (int port = 1; !r && port <= d.phys_port_cnt; port++) {
		if (wish->port && port != wish->port)
			continue;
		p.port = (uint8_t)port;
		memset(&p.attr, 0, sizeof(p.attr));
		r = lib->query_port(p.ctx, p.port, &p.attr);
		if (r)
			r = te__fail(-r, "verbs: device %s port %d: ibv_query_port: %s", p.name,
				     port, strerror(r));
		else if (p.attr.state == IBV_PORT_ACTIVE &&
			 (!best->ctx || rate(&p.attr) > rate(&best->attr))) {
			if (!kept)
				te__verbs_port_close(best);
			*best = p;
			kept = 1;
		}
	}
	if (!kept)
		lib->close_device(p.ctx);
	return r;
}

int te__verbs_port_open(struct te__verbs_port *ret_port)
{
	const char *text = te__param_str(TE_PARAM_COMM_IB_DEVICE);
	struct te__verbs_port p = { .lib = NULL };
	const struct te__verbs_lib *lib;
	struct ibv_device **list;
	int r, n = 0, seen = 0, failed = 0;
	struct wish wish;

	r = te__verbs_load(&lib);
	if (!r)
		r = read_wish(&wish);
	if (r)
		return r;
	errno = 0;
	list = lib->get_device_list(&n);
	if (!list && errno == ENOSYS)
		return te__fail(-ENODEV, "verbs: this kernel has no RDMA devices");
	if (!list)
		return te__fail(errno ? -errno : -ENODEV, "verbs: ibv_get_device_list: %s",
				strerror(errno ? errno : ENODEV));
	for (int i = 0; i < n; i++) {
		/* one device that cannot be used does not stop the others from being so */
		r = look_at(lib, list[i], &wish, &p, &seen);
		failed = r ? r : failed;
	}
	lib->free_device_list(list);
	if (!p.ctx && failed)
		return failed;
	if (!p.ctx && !seen)
		return wish.name[0] ? te__fail(-ENODEV, "verbs: there is no device %s "
					       "(TE_COMM_IB_DEVICE)", wish.name)
				    : te__fail(-ENODEV, "verbs: there is no RDMA device");
	if (!p.ctx)
		return te__fail(-ENODEV, "verbs: no port%s%s is active", *text ? " of " : "", text);
	r = choose_gid(&p);
	if (r) {
		te__verbs_port_close(&p);
		return r;
	}
	te__log_debug("device %s port %d, MTU code %d, gid index %d", p.name, p.port,
		      p.attr.active_mtu, p.gid_chosen ? (int)p.gid.gid_index : -1);
	*ret_port = p;
	return 0;
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
