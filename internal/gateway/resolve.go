package gateway

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/singleflight"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	resolveTry  = 2 * time.Second // one query to one server
	resolveAll  = 8 * time.Second
	maxCached   = 4096
	cacheLeast  = time.Second
	cacheMost   = time.Minute
	maxAddrs    = 32
	cnameLength = 8
)

// answer is a cached answer for a name.
type answer struct {
	addrs []netip.Addr
	rcode int // dns.RcodeSuccess, dns.RcodeNameError
	until time.Time
}

// resolver asks only the servers of the host, or the given ones, and only for the names that it
// gets: there are no search domains.
type resolver struct {
	servers []string
	hosts   bool // /etc/hosts of the host counts
	flight  singleflight.Group

	mu    sync.Mutex
	cache map[string]answer
}

func newResolver(servers []string) (*resolver, error) {
	r := &resolver{servers: servers, cache: map[string]answer{}}
	for _, s := range servers {
		if _, err := netip.ParseAddrPort(s); err != nil {
			return nil, fmt.Errorf("the resolver %q is no address with a port", s)
		}
	}
	if len(servers) == 0 {
		r.hosts = true
		if c, err := dns.ClientConfigFromFile("/etc/resolv.conf"); err == nil {
			for _, s := range c.Servers {
				r.servers = append(r.servers, net.JoinHostPort(s, c.Port))
			}
		}
		if len(r.servers) == 0 {
			r.servers = []string{"127.0.0.1:53"}
		}
	}
	return r, nil
}

// lookup returns the addresses of a name. It fails when the servers don't answer or can't; a
// missing name is an answer.
func (r *resolver) lookup(ctx context.Context, host string) (answer, error) {
	now := time.Now()
	if host == cell.HostName { // the loopback of the host, and no name's
		return answer{addrs: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, until: now}, nil
	}
	r.mu.Lock()
	a, ok := r.cache[host]
	r.mu.Unlock()
	if ok && now.Before(a.until) {
		return a, nil
	}
	if r.hosts {
		if list := hostsFile("/etc/hosts", host); len(list) > 0 {
			return answer{addrs: list, until: now}, nil
		}
	}
	ch := r.flight.DoChan(host, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), resolveAll)
		defer cancel()
		a, err := r.ask(ctx, host)
		if err == nil {
			r.keep(host, a)
		}
		return a, err
	})
	select {
	case res := <-ch:
		if res.Err != nil {
			return answer{}, res.Err
		}
		return res.Val.(answer), nil
	case <-ctx.Done():
		return answer{}, fmt.Errorf("resolve %s: %w", host, context.Cause(ctx))
	}
}

// Addresses returns the present addresses of a name, as a gateway would find them. resolvers are
// as in cell.Governance.
func Addresses(ctx context.Context, resolvers []string, host string) ([]netip.Addr, error) {
	r, err := newResolver(resolvers)
	if err != nil {
		return nil, err
	}
	a, err := r.lookup(ctx, host)
	return a.addrs, err
}

func (r *resolver) keep(host string, a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cache) >= maxCached {
		for k := range r.cache { // any of them
			delete(r.cache, k)
			if len(r.cache) < maxCached*3/4 {
				break
			}
		}
	}
	r.cache[host] = a
}

// ask queries both kinds of address at once.
func (r *resolver) ask(ctx context.Context, host string) (answer, error) {
	type part struct {
		answer
		err error
	}
	kinds := []uint16{dns.TypeA, dns.TypeAAAA}
	parts := make([]part, len(kinds))
	var wg sync.WaitGroup
	for i, k := range kinds {
		wg.Go(func() { parts[i].answer, parts[i].err = r.follow(ctx, host, k) })
	}
	wg.Wait()
	a := answer{until: time.Now().Add(cacheMost)}
	for _, p := range parts {
		if p.err != nil {
			continue
		}
		a.addrs = append(a.addrs, p.addrs...)
		a.rcode = max(a.rcode, p.rcode)
		if p.until.Before(a.until) {
			a.until = p.until
		}
	}
	if len(a.addrs) > 0 {
		a.rcode = dns.RcodeSuccess
	} else {
		for _, p := range parts {
			if p.err != nil {
				return answer{}, p.err
			}
		}
	}
	return a, nil
}

// follow queries one kind of address, along aliases.
func (r *resolver) follow(ctx context.Context, host string, kind uint16) (answer, error) {
	a := answer{until: time.Now().Add(cacheMost)}
	name := dns.Fqdn(host)
	for range cnameLength {
		m, err := r.exchange(ctx, name, kind)
		if err != nil {
			return a, err
		}
		before := name
		for range cnameLength { // aliases come in any order
			moved := false
			for _, rr := range m.Answer {
				if c, ok := rr.(*dns.CNAME); ok && strings.EqualFold(c.Hdr.Name, name) {
					name, moved = c.Target, true
					a.live(c.Hdr.Ttl)
				}
			}
			if !moved {
				break
			}
		}
		for _, rr := range m.Answer {
			if !strings.EqualFold(rr.Header().Name, name) || len(a.addrs) >= maxAddrs {
				continue
			}
			var ip net.IP
			switch rr := rr.(type) {
			case *dns.A:
				ip = rr.A
			case *dns.AAAA:
				ip = rr.AAAA
			}
			if addr, ok := netip.AddrFromSlice(ip); ok {
				a.addrs = append(a.addrs, addr.Unmap())
				a.live(rr.Header().Ttl)
			}
		}
		if m.Rcode != dns.RcodeSuccess || len(a.addrs) > 0 || name == before {
			a.rcode = m.Rcode
			if len(a.addrs) == 0 {
				a.live(5)
			}
			return a, nil
		}
	}
	return a, fmt.Errorf("resolve %s: too many aliases", host)
}

// live bounds the lifetime of an answer by a TTL in seconds.
func (a *answer) live(ttl uint32) {
	d := min(max(time.Duration(ttl)*time.Second, cacheLeast), cacheMost)
	if t := time.Now().Add(d); t.Before(a.until) {
		a.until = t
	}
}

// exchange sends a query to one server after the other, twice.
func (r *resolver) exchange(ctx context.Context, name string, kind uint16) (*dns.Msg, error) {
	q := new(dns.Msg).SetQuestion(name, kind)
	q.SetEdns0(1232, false)
	var last error
	for range 2 {
		for _, s := range r.servers {
			c := dns.Client{Net: "udp", Timeout: resolveTry, UDPSize: 1232}
			m, _, err := c.ExchangeContext(ctx, q, s)
			if err == nil && m.Truncated {
				c.Net = "tcp"
				m, _, err = c.ExchangeContext(ctx, q, s)
			}
			switch {
			case err != nil:
				last = fmt.Errorf("resolve %s: %w", name, err)
			case !m.Response || m.Id != q.Id || len(m.Question) != 1 || !strings.EqualFold(m.Question[0].Name, name) || m.Question[0].Qtype != kind:
				last = fmt.Errorf("resolve %s: %s answered something else", name, s)
			case m.Rcode == dns.RcodeFormatError && q.IsEdns0() != nil: // a server from before EDNS
				q.Extra = nil
				last = fmt.Errorf("resolve %s: %s doesn't take the question", name, s)
			case m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError:
				last = fmt.Errorf("resolve %s: %s answers %s", name, s, dns.RcodeToString[m.Rcode])
			default:
				return m, nil
			}
			if ctx.Err() != nil {
				return nil, last
			}
		}
	}
	return nil, last
}

// hostsFile returns the addresses of a name in a hosts file.
func hostsFile(path, host string) (list []netip.Addr) {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		line, _, _ := strings.Cut(s.Text(), "#")
		fields := strings.Fields(line)
		for i, name := range fields {
			if i > 0 && strings.EqualFold(strings.TrimSuffix(name, "."), host) {
				if a, err := netip.ParseAddr(fields[0]); err == nil {
					list = append(list, a.Unmap())
				}
			}
		}
	}
	return list
}
