package daemon

import (
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// A peer may send Limits.Failures requests without a valid token at once, and a tenth of that
// per second afterwards. Further ones are answered with 429. Requests with a valid token are
// answered whatever else their peer has sent.
const maxPeers = 4096 // number of separate budgets; further peers share one

// peerOf returns the peer of a remote address: an IPv4 address, or the /64 network of an IPv6
// address, since one host has all addresses of such a network. An unparsable address gives the
// zero Prefix.
func peerOf(address string) netip.Prefix {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Prefix{}
	}
	if a = a.Unmap().WithZone(""); a.Is4() {
		return netip.PrefixFrom(a, 32)
	}
	p, err := a.Prefix(64)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// authFailures counts failed authentication by peer.
type authFailures struct {
	burst float64 // 0 is unlimited

	mu    sync.Mutex // guards peers
	peers map[netip.Prefix]*failures
}

// failures is the budget of one peer: its remaining attempts at a time.
type failures struct {
	left float64
	at   time.Time
}

// rate is the number of attempts added per second.
func (s *authFailures) rate() float64 { return s.burst / 10 }

func (s *authFailures) refill(f *failures, now time.Time) {
	f.left = min(s.burst, f.left+s.rate()*now.Sub(f.at).Seconds())
	f.at = now
}

// failed counts an attempt without a valid token. It reports whether the peer's budget is
// exceeded, and the time until the next attempt is within it.
func (s *authFailures) failed(peer netip.Prefix) (beyond bool, wait time.Duration) {
	if s.burst <= 0 {
		return false, 0
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.peers[peer]
	if f == nil {
		if len(s.peers) >= maxPeers {
			s.forget(now)
		}
		if len(s.peers) >= maxPeers {
			peer = netip.Prefix{}
			f = s.peers[peer]
		}
	}
	if f == nil {
		if s.peers == nil {
			s.peers = map[netip.Prefix]*failures{}
		}
		f = &failures{left: s.burst, at: now}
		s.peers[peer] = f
	}
	s.refill(f, now)
	if f.left < 1 {
		return true, time.Duration((1 - f.left) / s.rate() * float64(time.Second))
	}
	f.left--
	return false, 0
}

// forget drops peers with a full budget. The caller holds mu.
func (s *authFailures) forget(now time.Time) {
	for p, f := range s.peers {
		if s.refill(f, now); f.left >= s.burst {
			delete(s.peers, p)
		}
	}
}

// reject answers a request without a valid token: with err, or that its peer has failed too
// often. On the unix socket, which is the user's, nothing is counted.
func (d *Daemon) reject(w http.ResponseWriter, r *http.Request, front *Front, challenge string, err error) {
	w.Header().Set("WWW-Authenticate", challenge)
	if v := requestRecordOf(r); v != nil && v.from != "socket" {
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(strangerWrite))
		if beyond, wait := d.authFailures.failed(peerOf(v.from)); beyond {
			after := int(wait/time.Second) + 1
			err = cell.Errorf(cell.Limited, "daemon", "send a valid token; a request with one is answered at once",
				"cannot answer now: too many requests without a valid token came from this address; the next may come in %d s", after)
			front.refuseAndClose(w, r, err, "Retry-After", strconv.Itoa(after), "Connection", "close")
			return
		}
	}
	front.refuseAndClose(w, r, err)
}
