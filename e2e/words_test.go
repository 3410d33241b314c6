package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// exits runs a command and compares its exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || neg {
		ts.Fatalf("usage: exits CODE COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d\n[stderr]\n%s", got, want, ts.ReadFile("stderr"))
	}
}

// socketClient talks to the daemon of a script's installation.
func socketClient(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		dir, err := os.Open(filepath.Dir(socket))
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		return net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(socket)))
	}, DisableKeepAlives: true}}
}

// rawAPI sends one request as it is: nothing of package client tidies it.
func rawAPI(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: api METHOD PATH [BODY]")
	}
	var body io.Reader
	if len(args) == 3 {
		text := args[2]
		if !strings.HasPrefix(text, "{") {
			text = ts.ReadFile(text)
		}
		body = strings.NewReader(text)
	}
	req, err := http.NewRequest(args[0], "http://pando/", body)
	ts.Check(err)
	path, query, _ := strings.Cut(args[1], "?")
	req.URL.Opaque = "//pando" + path // not cleaned, not escaped anew
	req.URL.RawQuery = query
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	c := socketClient(filepath.Join(ts.Getenv("PANDO_HOME"), "run/pando.sock"))
	resp, err := c.Do(req)
	ts.Check(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	ts.Check(err)
	ts.Stdout().Write(b)
	fmt.Fprintln(ts.Stderr(), resp.Status)
	if (resp.StatusCode >= 400) != neg {
		ts.Fatalf("%s %s: %s\n%s", args[0], args[1], resp.Status, b)
	}
}

func let(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 || neg {
		ts.Fatalf("usage: let VAR .path.to.field")
	}
	v := lookUp(ts, args[1])
	if v == "" {
		ts.Fatalf("%s is not there", args[1])
	}
	ts.Setenv(args[0], v)
}

func edit(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 || neg {
		ts.Fatalf("usage: edit FILE OLD NEW")
	}
	path := ts.MkAbs(args[0])
	b, err := os.ReadFile(path)
	ts.Check(err)
	if !bytes.Contains(b, []byte(args[1])) {
		ts.Fatalf("%s does not contain %q", args[0], args[1])
	}
	st, err := os.Stat(path)
	ts.Check(err)
	ts.Check(os.WriteFile(path, bytes.ReplaceAll(b, []byte(args[1]), []byte(args[2])), st.Mode()))
}

func remember(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 || neg {
		ts.Fatalf("usage: remember NAME DIR")
	}
	ts.Setenv("REMEMBERED_"+args[0], describe(ts, ts.MkAbs(args[1])))
}

func unchanged(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: unchanged NAME DIR")
	}
	old, now := ts.Getenv("REMEMBERED_"+args[0]), describe(ts, ts.MkAbs(args[1]))
	if (old == now) != neg {
		return
	}
	was := map[string]bool{}
	for _, l := range strings.Split(old, "\n") {
		was[l] = true
	}
	var diff []string
	for _, l := range strings.Split(now, "\n") {
		if !was[l] {
			diff = append(diff, "+ "+l)
		}
		delete(was, l)
	}
	for l := range was {
		diff = append(diff, "- "+l)
	}
	ts.Fatalf("%s differs:\n%s", args[1], strings.Join(diff, "\n"))
}

// describe lists everything about a tree that a program could notice, one
// line an entry.
func describe(ts *testscript.TestScript, dir string) string {
	text, err := describeTree(dir)
	ts.Check(err)
	return text
}

func describeDir(t *testing.T, dir string) string {
	t.Helper()
	text, err := describeTree(dir)
	must(t, err)
	return text
}

func describeTree(dir string) (string, error) {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := os.Lstat(p)
		if err != nil {
			return err
		}
		sys := st.Sys().(*syscall.Stat_t)
		rel, _ := filepath.Rel(dir, p)
		fmt.Fprintf(&b, "%q %s %d:%d %d links %s", rel, st.Mode(), sys.Uid, sys.Gid, sys.Nlink, st.ModTime().UTC().Format("15:04:05.000000000"))
		switch {
		case st.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(p)
			fmt.Fprintf(&b, " -> %q", to)
		case st.Mode().IsRegular():
			if text, err := os.ReadFile(p); err == nil {
				fmt.Fprintf(&b, " %x", sha256.Sum256(text))
			}
		}
		b.WriteByte('\n')
		return nil
	})
	return b.String(), err
}

// setXAttr sets an extended attribute; setfattr may be missing.
func setXAttr(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: setxattr FILE NAME VALUE")
	}
	if err := unix.Lsetxattr(ts.MkAbs(args[0]), args[1], []byte(args[2]), 0); (err != nil) != neg {
		ts.Fatalf("setxattr %s: %v", args[0], err)
	}
}
