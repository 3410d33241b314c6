//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cli"
	"github.com/pando-dev/pando/internal/daemon"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/paths"
)

// serving is the configuration of a daemon for callers over the network. Its sockets come with
// it.
type serving struct {
	TLS   bool         `json:"tls,omitempty"`  // also at addresses that only this host can connect to
	Cert  string       `json:"cert,omitempty"` // files of the user's certificate and key; "" for one that the daemon makes
	Key   string       `json:"key,omitempty"`
	First access.Level `json:"first,omitempty"` // scope of the token that is made when there is none; "" makes none

	Limits   cli.ServeLimits `json:"limits"`
	Ceilings string          `json:"ceilings,omitempty"` // the operator's file of ceilings; "" for the default path
	// BuildAllow and BuildImages: see cli.ServeRequest.
	BuildAllow  []string `json:"build_allow,omitempty"`
	BuildImages []string `json:"build_images,omitempty"`

	now atomic.Pointer[tls.Certificate] // nil without encryption
}

// serveDaemon runs a daemon in the foreground. ready is called when it answers.
func serveDaemon(ctx context.Context, h paths.Home, r cli.ServeRequest, ready func(cli.Served) error) error {
	if err := h.Make(); err != nil {
		return err
	}
	if lock, err := os.OpenFile(h.ServeLock(), os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		defer lock.Close()
		_ = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) // another has it: that is told below
	}
	if err := r.TakeOver(ctx); err != nil { // before the addresses are taken: it may have them
		return err
	}
	sockets, err := listen(r.Listen)
	if err != nil {
		return err
	}
	defer func() {
		for _, s := range sockets {
			s.Close()
		}
	}()
	log := os.Stderr
	if os.Getenv("JOURNAL_STREAM") == "" { // systemd sets it where standard error is its journal
		if log, err = os.OpenFile(h.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			return err
		}
		defer log.Close()
	}
	s := &serving{TLS: r.TLS, Cert: r.Cert, Key: r.Key, First: access.Level(r.FirstScope), Limits: r.Limits, BuildAllow: r.BuildAllow, BuildImages: r.BuildImages, Ceilings: r.Ceilings}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	manager := newNotifier()
	failures := 0
	for first := true; ; first = false {
		p, err := begin(h, log, s, sockets)
		for tries := 1; cell.KindOf(err) == cell.Exists && tries < mostTries; tries++ {
			// A client started one that answers at no TCP address, while none answered.
			if err := r.TakeOver(ctx); err != nil {
				return err
			}
			p, err = begin(h, log, s, sockets)
		}
		if err != nil {
			return err
		}
		began := time.Now()
		err = attend(ctx, h, p, manager, hup, func() error {
			if first {
				return ready(*p.answer.Served)
			}
			r.Say("daemon %d takes its place; cells survive", p.pid.Pid)
			return nil
		})
		p.conn.Close()
		if err == nil {
			return nil
		}
		failed := fmt.Errorf("the daemon has failed: %w; see %s", err, h.Log())
		if errors.Is(err, errNotTold) || manager != "" || ctx.Err() != nil { // a manager starts the next one itself
			return failed
		}
		if failures++; time.Since(began) > steady {
			failures = 1
		}
		if failures >= mostFailures {
			if !killed(err) {
				return failed
			}
			select { // it does not end by itself: the next one may live
			case <-ctx.Done():
				return failed
			case <-time.After(killedPause):
			}
		}
		r.Say("daemon %d has ended (%s)", p.pid.Pid, err)
	}
}

// A daemon that ends without being told to is replaced. The sockets stay open meanwhile,
// and connections wait. A daemon that ran for less than steady counts as a failure, and
// after mostFailures in a row pando serve gives up; when it was killed, it waits for
// killedPause instead.
const (
	steady       = 10 * time.Second
	mostFailures = 4
	killedPause  = time.Second

	mostTries = 10 // takings over of the lock in a row, each of which another daemon may precede
)

// errNotTold is the error of a message to the user that could not be written.
var errNotTold = errors.New("the message that it answers could not be written")

// attend reports that a daemon answers, passes signals on to it and waits for its end.
func attend(ctx context.Context, h paths.Home, p *process, manager notifier, hup <-chan os.Signal, ready func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- p.wait() }()
	if err := ready(); err != nil {
		p.pid.Signal(syscall.SIGTERM)
		<-ended
		return fmt.Errorf("%w: %w", errNotTold, err)
	}
	manager.say("READY=1\nSTATUS=answers at " + strings.Join(p.answer.Served.URLs, ", "))
	watched, end := context.WithCancel(ctx)
	defer end()
	go manager.alive(watched, h.Socket(), watchdog(), func() { p.pid.Kill() })
	stop := ctx.Done()
	for {
		select {
		case err := <-ended:
			return err
		case <-hup:
			manager.reloading()
			p.pid.Signal(syscall.SIGHUP)
			manager.say("READY=1")
		case <-stop:
			manager.say("STOPPING=1\nSTATUS=cells live on")
			p.pid.Signal(syscall.SIGTERM)
			stop = nil
		}
	}
}

// listen opens sockets at addresses, or takes those that systemd has opened.
func listen(addrs []string) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close()
			}
		}
	}()
	if n, _ := strconv.Atoi(os.Getenv("LISTEN_FDS")); n > 0 && os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) {
		for i := range n {
			syscall.CloseOnExec(3 + i)
			files = append(files, os.NewFile(uintptr(3+i), "socket of systemd"))
		}
		return files, nil
	}
	for _, a := range addrs {
		l, err := net.Listen("tcp", a)
		if err != nil {
			return files, cell.Errorf(cell.Unavailable, "listen", "choose another with --listen ADDRESS:PORT", "cannot listen at %s: %w", a, errors.Unwrap(err))
		}
		f, err := l.(*net.TCPListener).File()
		l.Close()
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}

// limits are those of the daemon.
func (s *serving) limits() *daemon.Limits {
	return &daemon.Limits{Rate: s.Limits.Rate, Flight: int(s.Limits.Requests), Conns: int(s.Limits.Connections), Failures: int(s.Limits.Failures), Body: s.Limits.Body, Upload: s.Limits.Archive}
}

// open makes listeners of the sockets, and the first token.
func (s *serving) open(h paths.Home, tokens *access.Store, sockets []*os.File) (list []daemon.Open, out *cli.Served, err error) {
	out = &cli.Served{}
	for _, f := range sockets {
		l, err := net.FileListener(f)
		f.Close()
		if err != nil {
			return nil, nil, fmt.Errorf("cannot listen: %w", err)
		}
		if l.Addr().Network() != "tcp" {
			return nil, nil, cell.Errorf(cell.Invalid, "serve", "give TCP sockets alone", "cannot listen at %s: it is no TCP socket", l.Addr())
		}
		o := daemon.Open{Listener: l, URL: "http://" + l.Addr().String()}
		if s.TLS || s.Cert != "" || !daemon.Loopback(l.Addr()) {
			if s.now.Load() == nil {
				cert, fingerprint, err := s.certificate(h)
				if err != nil {
					return nil, nil, err
				}
				out.Fingerprint = fingerprint
				s.now.Store(&cert)
			}
			o.TLS, o.URL = s.config(), "https://"+l.Addr().String()
		}
		list = append(list, o)
		out.URLs = append(out.URLs, o.URL)
	}
	if len(list) == 0 {
		return nil, nil, cell.Errorf(cell.Invalid, "serve", "give an address with --listen ADDRESS:PORT", "cannot serve: there is nowhere to listen")
	}
	if s.First != "" && len(tokens.List()) == 0 {
		if _, out.Token, err = tokens.Create("first", s.First, time.Time{}); err != nil {
			return nil, nil, err
		}
	}
	return list, out, nil
}

// config is the TLS configuration of new connections: with the present certificate.
func (s *serving) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.now.Load(), nil }}
}

// reload loads the certificate anew. When that fails the old one stays. changed reports whether
// it differs.
func (s *serving) reload(h paths.Home) (changed bool, err error) {
	was := s.now.Load()
	if was == nil {
		return false, nil
	}
	cert, _, err := s.certificate(h)
	if err != nil || bytes.Equal(cert.Certificate[0], was.Certificate[0]) {
		return false, err
	}
	s.now.Store(&cert)
	return true, nil
}

// certificate loads the certificate: the user's, or the daemon's own, which is made once.
// fingerprint is of the latter.
func (s *serving) certificate(h paths.Home) (cert tls.Certificate, fingerprint string, err error) {
	if s.Cert != "" {
		if cert, err = keyPair(s.Cert, s.Key); err != nil {
			if e, ok := errors.AsType[*api.Error](err); ok && e.Kind == api.Kind(cell.Denied) {
				return cert, "", cell.Errorf(cell.Denied, "serve", e.Hint, "%s", e.Message)
			}
			return cert, "", cell.Errorf(cell.Invalid, "serve", "give both as PEM: --tls-cert FILE --tls-key FILE", "cannot use the certificate: %w", err)
		}
	} else {
		if cert, err = ownCertificate(durable.Disk(h.Keys())); err != nil {
			return cert, "", err
		}
		sum := sha256.Sum256(cert.Certificate[0])
		fingerprint = hex.EncodeToString(sum[:])
	}
	return cert, fingerprint, nil
}

// keyPair loads a certificate and its key. The key's file must belong to its owner alone, like
// all files with secrets; links to it are followed, because programs that renew certificates
// make them. The certificate is public.
func keyPair(certFile, keyFile string) (tls.Certificate, error) {
	if to, err := filepath.EvalSymlinks(keyFile); err == nil {
		keyFile = to
	}
	f, err := cli.OpenSecretFile("use the key of the certificate", keyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	defer f.Close()
	key, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return tls.Certificate{}, err
	}
	cert, err := os.ReadFile(certFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// ownFile holds the daemon's own certificate and its key, PEM.
const ownFile = "tls.pem"

// ownCertificate reads the daemon's own certificate. Clients recognise it by its fingerprint
// alone, so it is kept for long.
func ownCertificate(keys durable.FS) (tls.Certificate, error) {
	b, err := durable.ReadFile(keys, ownFile)
	if errors.Is(err, fs.ErrNotExist) {
		if b, err = makeCertificate(); err == nil {
			err = durable.WriteFile(keys, ownFile, b, 0o600)
		}
	}
	if err != nil {
		return tls.Certificate{}, err
	}
	cert, err := tls.X509KeyPair(b, b)
	if err != nil {
		return cert, cell.Errorf(cell.Corrupt, "serve", "remove it, and give clients the new fingerprint", "cannot read keys/%s: %w", ownFile, err)
	}
	return cert, nil
}

func makeCertificate() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	names := []string{"localhost", "*.localhost"}
	if host, err := os.Hostname(); err == nil && !strings.EqualFold(host, "localhost") {
		names = append(names, host)
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "pando"}, DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "pando"}}, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k})...), nil
}
