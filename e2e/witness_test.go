package e2e

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// reached is the answer of every server of a witness to a forbidden visit.
const reached = "you were never here"

// A witness is all hosts that a cell may try to reach: it listens on every address of the test's
// world, and records visits.
type witness struct {
	t    *testing.T
	ca   *authority
	cert tls.Certificate
	repo string            // a git repository, at /open/repo.git
	dns  map[string]*names // DNS servers that a cell may try, by address
	mu   sync.Mutex
	saw  []visit
}

// visit is one connection, request or packet that arrived.
type visit struct {
	at   string // the address that was dialled, with its port
	what string // "tcp", "udp", "tls NAME", "http NAME"
	more string
}

func (v visit) String() string { return strings.TrimSpace(v.at + " " + v.what + " " + v.more) }

func newWitness(t *testing.T, ca *authority, hosts ...string) *witness {
	t.Helper()
	w := &witness{t: t, ca: ca, cert: ca.leaf(hosts...), dns: map[string]*names{}}
	for _, port := range []int{22, 25, 853, 5432, 8080, 9418} {
		w.listen(port, func(c net.Conn) {
			io.WriteString(c, reached+"\r\n")
		})
	}
	var both http.Protocols
	both.SetHTTP1(true)
	both.SetHTTP2(true)
	both.SetUnencryptedHTTP2(true)
	serve := func(port int, wrap func(net.Listener) net.Listener) {
		ln, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		must(t, err)
		s := &http.Server{Handler: http.HandlerFunc(w.http), Protocols: &both, ErrorLog: log.New(io.Discard, "", 0), ConnState: func(c net.Conn, st http.ConnState) {
			if st == http.StateNew {
				w.note(visit{at: c.LocalAddr().String(), what: "tcp"})
			}
		}}
		go s.Serve(wrap(ln))
		t.Cleanup(func() { s.Close() })
	}
	serve(80, func(l net.Listener) net.Listener { return l })
	serve(443, func(l net.Listener) net.Listener {
		return tls.NewListener(l, &tls.Config{NextProtos: []string{"h2", "http/1.1"}, GetConfigForClient: func(hi *tls.ClientHelloInfo) (*tls.Config, error) {
			w.note(visit{at: hi.Conn.LocalAddr().String(), what: "tls " + hi.ServerName})
			return &tls.Config{Certificates: []tls.Certificate{w.cert}, NextProtos: []string{"h2", "http/1.1"}}, nil
		}})
	})
	for _, port := range []int{123, 443, 9999} {
		pc, err := net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		must(t, err)
		t.Cleanup(func() { pc.Close() })
		go func() {
			b := make([]byte, 2048)
			for {
				n, from, err := pc.ReadFrom(b)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				w.note(visit{at: pc.LocalAddr().String(), what: "udp", more: fmt.Sprintf("%q", b[:n])})
				pc.WriteTo([]byte(reached), from)
			}
		}()
	}
	return w
}

func (w *witness) listen(port int, serve func(net.Conn)) {
	w.t.Helper()
	ln, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	must(w.t, err)
	w.t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			w.note(visit{at: c.LocalAddr().String(), what: "tcp"})
			go func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(5 * time.Second))
				serve(c)
				bufio.NewReader(c).ReadString('\n')
			}()
		}
	}()
}

// resolve makes a DNS server of the world of an address.
func (w *witness) resolve(addr string, zone *names) {
	w.t.Helper()
	n := newNames(w.t, net.JoinHostPort(addr, "53"))
	n.mu.Lock()
	n.zone = zone.zone
	n.mu.Unlock()
	w.dns[addr] = n
}

func (w *witness) http(rw http.ResponseWriter, r *http.Request) {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	v := visit{at: local.String(), what: "http " + r.Host, more: r.Method + " " + r.URL.RequestURI()}
	w.note(v)
	greeting := reached
	if v.permitted() {
		greeting = "welcome"
	}
	if file, ok := strings.CutPrefix(r.URL.Path, "/open/repo.git/"); ok && w.repo != "" {
		http.ServeFile(rw, r, filepath.Join(w.repo, filepath.FromSlash(path.Clean("/"+file))))
		return
	}
	fmt.Fprintf(rw, "%s: %s %s %s\n", greeting, r.Method, r.Host, r.URL.RequestURI())
}

func (w *witness) note(v visit) {
	v.at = strings.Replace(v.at, "[::ffff:", "[", 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.saw = append(w.saw, v)
}

// take returns the visits since the last call, and the queries of its DNS servers.
func (w *witness) take() (list []visit) {
	w.mu.Lock()
	list, w.saw = w.saw, nil
	w.mu.Unlock()
	for addr, n := range w.dns {
		n.mu.Lock()
		for _, q := range n.saw {
			list = append(list, visit{at: addr + ":53", what: "dns", more: q})
		}
		n.saw = nil
		n.mu.Unlock()
	}
	return list
}
