package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

var gatewayAxis = Axis{
	Name:    "gateway",
	About:   "what a cell's connections cost that go through its gateway",
	measure: measureGateway,
}

const (
	caseStream   = "one stream"
	caseRequests = "requests"
	caseAdded    = "added per request"
	throughCell  = "pando cell"
	direct       = "direct"
	throughProxy = "Go reverse proxy"

	answerSize   = 1 << 10
	loadNumber   = 1000
	loadConns    = 50
	streamSize   = 1 << 30
	streamSmall  = 64 << 20
	gigabits     = 2.0 // the goal, per second
	addedAtMost  = 0.3 // ms
	benchedCell  = "talker"
	benchedName  = "bench.test"
	benchedLabel = benchedName + "."
)

// outside are the servers that the load goes to, on loopback, and a DNS that
// knows them.
type outside struct {
	dns, stream, web, proxy string
	close                   func()
}

func startOutside() (_ *outside, err error) {
	o := &outside{}
	var ends []func() error
	o.close = func() {
		for _, end := range ends {
			end()
		}
	}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	listen := func() (net.Listener, error) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			ends = append(ends, ln.Close)
		}
		return ln, err
	}
	ln, err := listen()
	if err != nil {
		return nil, err
	}
	o.stream = ln.Addr().String()
	go func(ln net.Listener) {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go pour(c)
		}
	}(ln)
	if ln, err = listen(); err != nil {
		return nil, err
	}
	o.web = ln.Addr().String()
	answer := []byte(strings.Repeat("x", answerSize))
	go http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write(answer) }))
	if ln, err = listen(); err != nil {
		return nil, err
	}
	o.proxy = ln.Addr().String()
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: o.web})
	p.Transport = &http.Transport{MaxIdleConnsPerHost: loadConns}
	go http.Serve(ln, p)
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ends = append(ends, pc.Close)
	o.dns = pc.LocalAddr().String()
	go dns.ActivateAndServe(nil, pc, dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if len(q.Question) == 1 && q.Question[0].Name == benchedLabel && q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: benchedLabel, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(127, 0, 0, 1)}}
		}
		w.WriteMsg(m)
	}))
	return o, nil
}

// pour writes as many bytes as the first line says.
func pour(c net.Conn) {
	defer c.Close()
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return
	}
	n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return
	}
	buf := make([]byte, 1<<20)
	for n > 0 {
		k, err := c.Write(buf[:min(n, int64(len(buf)))])
		if err != nil {
			return
		}
		n -= int64(k)
	}
}

// byName is an address with the name that the cell knows it by.
func byName(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return net.JoinHostPort(benchedName, port)
}

func measureGateway(ctx context.Context, l *lab, out *AxisResult) error {
	o, err := startOutside()
	if err != nil {
		return err
	}
	defer o.close()
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	inst.env = append(inst.env, "PANDO_RESOLVER="+o.dns)
	dir, err := l.fresh("load")
	if err != nil {
		return err
	}
	program := filepath.Join(dir, "load")
	if err := copyProgram(filepath.Join(filepath.Dir(l.exe), "pando-bench"), program); err != nil {
		return err
	}
	args := []string{"run", "--cell", benchedCell, "--with-secret", "load"} // shapes of tokens are in it: it knows them
	for _, at := range []string{o.stream, o.web} {
		args = append(args, "--allow", byName(at), "--allow", at)
	}
	run := inst.pando(dir, append(args, "--", "true")...)
	if _, err := run.run(ctx); err != nil {
		return err
	}
	if err := inst.keepAlive(ctx, benchedCell); err != nil {
		return err
	}
	inside := func(ctx context.Context, words ...string) (loaded, error) {
		b, err := inst.exec(ctx, benchedCell, append([]string{program, "load"}, words...)...)
		if err != nil {
			return loaded{}, err
		}
		return decode[loaded](b)
	}
	onHost := func(ctx context.Context, words ...string) (loaded, error) {
		b, err := command{dir: dir, args: append([]string{program, "load"}, words...)}.run(ctx)
		if err != nil {
			return loaded{}, err
		}
		return decode[loaded](b)
	}
	size, goals := int64(streamSize), []Goal{{Series: throughCell, AtMost: streamSize * 8 / gigabits / 1e6}}
	if l.quick {
		size, goals = streamSmall, nil
	}
	number, conns := strconv.Itoa(loadNumber), strconv.Itoa(loadConns)
	asked := func(load func(context.Context, ...string) (loaded, error), ctx context.Context, at string) (float64, error) {
		x, err := load(ctx, "requests", "http://"+at+"/", number, conns)
		return x.MS / loadNumber, err
	}
	ours := contestant{name: throughCell, ours: true, command: run.words(), round: func(ctx context.Context, r *recorder) error {
		x, err := inside(ctx, "stream", byName(o.stream), strconv.FormatInt(size, 10))
		if err != nil {
			return err
		}
		r.put(caseStream, x.MS)
		base, err := asked(onHost, ctx, o.web)
		if err != nil {
			return err
		}
		each, err := asked(inside, ctx, byName(o.web))
		if err != nil {
			return err
		}
		r.put(caseRequests, each)
		r.put(caseAdded, each-base)
		return nil
	}}
	plain := contestant{name: direct, against: throughCell, command: "the same from the host, to 127.0.0.1", lacks: []string{"everything: it is what loopback costs"},
		round: func(ctx context.Context, r *recorder) error {
			x, err := onHost(ctx, "stream", o.stream, strconv.FormatInt(size, 10))
			if err != nil {
				return err
			}
			r.put(caseStream, x.MS)
			each, err := asked(onHost, ctx, o.web)
			if err != nil {
				return err
			}
			r.put(caseRequests, each)
			return nil
		}}
	proxy := contestant{name: throughProxy, against: throughCell, command: "the same from the host, through net/http/httputil.ReverseProxy", lacks: []string{"decisions, events, a network of the cell's own"},
		round: func(ctx context.Context, r *recorder) error {
			base, err := asked(onHost, ctx, o.web)
			if err != nil {
				return err
			}
			each, err := asked(onHost, ctx, o.proxy)
			if err != nil {
				return err
			}
			r.put(caseRequests, each)
			r.put(caseAdded, each-base)
			return nil
		}}
	return l.hold(ctx, out, contest{contestants: []contestant{ours, plain, proxy}, cases: []Case{
		{Name: caseStream, What: fmt.Sprintf("%s into the cell over one TCP connection, from the first byte to the last", bytesWord(size)), Goals: goals},
		{Name: caseRequests, What: fmt.Sprintf("%d HTTP requests with answers of %s over %d connections that are there; the time of all, over their number", loadNumber, bytesWord(answerSize), loadConns)},
		{Name: caseAdded, What: "the same, less what it took directly just before", Goals: []Goal{{Series: throughCell, AtMost: addedAtMost}}},
	}})
}

// copyProgram copies an executable.
func copyProgram(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		dst.Close()
		return err
	}
	return dst.Close()
}
