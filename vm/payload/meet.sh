# meet.sh - for payloads of two guests with a wire between them: addresses, an RDMA device, and ids
# of communicators, which the first guest (te.rank=0) serves to the second.

load crc32_generic ib_uverbs rdma_rxe
ip link set eth0 mtu 4200
ip addr add 10.9.0.$((rank + 1))/24 dev eth0
ip link set eth0 up
rdma link add rxe0 type rxe netdev eth0 || exit 1

# fetch FILE: of the first guest, into /tmp. By nc, because Debian's static wget crashes without a
# database of services
fetch()
{
	printf 'GET /%s HTTP/1.0\r\n\r\n' "$1" | nc 10.9.0.1 80 | tr -d '\r' >/tmp/reply &&
		head -n 1 /tmp/reply | grep -q ' 200 ' && sed '1,/^$/d' /tmp/reply >"/tmp/$1"
}

# serve FILE TEXT: to the second guest
serve()
{
	echo "$2" >/tmp/www/new
	mv /tmp/www/new "/tmp/www/$1"
}

if [ "$rank" = 0 ]; then
	mkdir /tmp/www
	root 20 >/tmp/ids &
	until_true test -s /tmp/ids
	serve ids "$(cat /tmp/ids)"
	httpd -p 80 -h /tmp/www
else
	until_true fetch ids || exit 1
fi
