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

// A peer may send Limits.Failures requests without a good token at once, and a tenth of
// that in a second from then on. What comes beyond that is answered with 429. A request with a
// good token is answered whatever else its peer has sent.
const maxPeers = 4096 // that are told apart; the others share one budget

// peerOf returns the peer of a remote address: an IPv4 address, or the /64 network of
// an IPv6 address, because one host has all addresses of such a network. An address
// that can't be parsed is the zero Prefix.
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

// strangers counts failed authentication by peer.
type strangers struct {
	burst float64 // 0 for no limit

	mu    sync.Mutex // guards peers
	peers map[netip.Prefix]*failures
}

// failures is the budget of one peer: how many attempts are left at a time.
type failures struct {
	left float64
	at   time.Time
}

// rate is how many attempts are added in a second.
func (s *strangers) rate() float64 { return s.burst / 10 }

func (s *strangers) refill(f *failures, now time.Time) {
	f.left = min(s.burst, f.left+s.rate()*now.Sub(f.at).Seconds())
	f.at = now
}

// failed notes an attempt without a good token, and says whether it is beyond the
// peer's budget, and in how long the next one is not.
func (s *strangers) failed(peer netip.Prefix) (beyond bool, wait time.Duration) {
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

// forget drops peers whose budget is whole again. The caller holds mu.
func (s *strangers) forget(now time.Time) {
	for p, f := range s.peers {
		if s.refill(f, now); f.left >= s.burst {
			delete(s.peers, p)
		}
	}
}

// reject answers a request of a caller without a good token: err, or that its peer
// has failed too often. On the unix socket, which is the user's, nothing is counted.
func (d *Daemon) reject(w http.ResponseWriter, r *http.Request, front *Front, challenge string, err error) {
	w.Header().Set("WWW-Authenticate", challenge)
	if v := visitOf(r); v != nil && v.from != "socket" {
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(strangerWrite))
		if beyond, wait := d.strangers.failed(peerOf(v.from)); beyond {
			after := int(wait/time.Second) + 1
			err = cell.Errorf(cell.Limited, "daemon", "send a good token; a request with one is answered at once",
				"cannot answer now: too many requests without a good token came from this address; the next may come in %d s", after)
			front.turnAway(w, r, err, "Retry-After", strconv.Itoa(after), "Connection", "close")
			return
		}
	}
	front.turnAway(w, r, err)
}
