//go:build linux

package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cli"
	"github.com/pando-dev/pando/internal/daemon"
	"github.com/pando-dev/pando/internal/engine"
	"github.com/pando-dev/pando/internal/gc"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/spf13/pflag"
)

// A daemon that serves has the same limits as one without configured limits.
func TestDefaultLimitsAreTheSame(t *testing.T) {
	var l cli.ServeLimits
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	cli.LimitFlags(f, &l)
	s := serving{Limits: l}
	if *s.limits() != daemon.DefaultLimits || l.Cells != engine.DefaultCells || l.Free != gc.DefaultFree {
		t.Errorf("%+v, %+v; %+v", *s.limits(), daemon.DefaultLimits, l)
	}
}

// New connections get a replaced certificate; old ones continue. An unusable one changes
// nothing, and is an error.
func TestReloadCertificate(t *testing.T) {
	dir := t.TempDir()
	s := &serving{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	replace := func() {
		t.Helper()
		b, err := makeCertificate()
		if err == nil {
			err = os.WriteFile(s.Cert, b, 0o600)
		}
		if err == nil {
			err = os.WriteFile(s.Key, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	replace()
	cert, _, err := s.certificate(paths.Home{})
	if err != nil {
		t.Fatal(err)
	}
	s.now.Store(&cert)
	l, err := tls.Listen("tcp", "127.0.0.1:0", s.config())
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") })}
	go srv.Serve(l)
	defer srv.Close()
	dial := func() (*tls.Conn, []byte) {
		t.Helper()
		c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c, c.ConnectionState().PeerCertificates[0].Raw
	}
	alive := func(c net.Conn) {
		t.Helper()
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if r, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || r.StatusCode != 200 {
			t.Errorf("a connection of before is gone: %v", err)
		}
	}
	old, first := dial()
	if changed, err := s.reload(paths.Home{}); changed || err != nil {
		t.Errorf("nothing is new: %v, %v", changed, err)
	}
	for what, spoil := range map[string]func(){
		"no certificate":      func() { os.WriteFile(s.Cert, []byte("nothing"), 0o600) },
		"no file":             func() { os.Remove(s.Cert) },
		"another one's key":   func() { b, _ := makeCertificate(); os.WriteFile(s.Key, b, 0o600) },
		"half a certificate":  func() { b, _ := os.ReadFile(s.Cert); os.WriteFile(s.Cert, b[:len(b)/3], 0o600) },
		"a key without bytes": func() { os.WriteFile(s.Key, nil, 0o600) },
	} {
		b, _ := os.ReadFile(s.Cert)
		k, _ := os.ReadFile(s.Key)
		spoil()
		changed, err := s.reload(paths.Home{})
		if _, now := dial(); changed || err == nil || !bytes.Equal(now, first) {
			t.Errorf("%s: %v, %v", what, changed, err)
		}
		os.WriteFile(s.Cert, b, 0o600)
		os.WriteFile(s.Key, k, 0o600)
	}
	alive(old)
	replace()
	changed, err := s.reload(paths.Home{})
	if _, now := dial(); !changed || err != nil || bytes.Equal(now, first) {
		t.Errorf("a new one: %v, %v", changed, err)
	}
	if _, err := x509.ParseCertificate(s.now.Load().Certificate[0]); err != nil {
		t.Error(err)
	}
	alive(old)
}

// The daemon's log is bounded: it becomes daemon.log.1, and standard error goes to the new one.
// A log that another program moved is created anew on request.
func TestLogHasAnEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "daemon.log")
	if os.Getenv("PANDO_TEST_LOG") != "" { // in a process of its own, with the file as its standard error
		l := openLog(os.Getenv("PANDO_TEST_LOG"))
		l.max = 1000
		for i := range 100 {
			fmt.Fprintf(l, "line %2d %s\n", i, strings.Repeat("x", 40))
		}
		fmt.Fprintln(os.Stderr, "what it dies of")
		os.Rename(l.path, l.path+".moved")
		if err := l.Reopen(); err != nil {
			fmt.Fprintln(l, err)
		}
		fmt.Fprintln(l, "after that")
		os.Exit(0)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := exec.Command(os.Args[0], "-test.run=TestLogHasAnEnd")
	c.Env, c.Stderr = append(os.Environ(), "PANDO_TEST_LOG="+path), f
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil || len(b) > 1100 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
		return string(b)
	}
	if s := read(path + ".moved"); !strings.Contains(s, "line 99") || !strings.HasSuffix(s, "what it dies of\n") {
		t.Errorf("the log ends with %q", s)
	}
	if s := read(path); s != "after that\n" {
		t.Errorf("the one after that is %q", s)
	}
	if s := read(path + ".1"); !strings.Contains(s, "line 79") {
		t.Errorf("the one before is %q", s)
	}
}
