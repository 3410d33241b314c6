package daemon

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/testenv"
)

func readAll(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Too many requests are refused with the time to retry; other callers are not affected.
func TestRateOfATokenIsLimited(t *testing.T) {
	d, srv := house(t, Config{Limits: &Limits{Rate: 1}})
	a, b := token(t, d, Read, time.Time{}), token(t, d, Read, time.Time{})
	var last int
	for range 3 {
		status, body, head := call(t, srv, "GET", "/v1/daemon", a)
		if last = status; status == http.StatusTooManyRequests && (head.Get("Retry-After") != "1" || !strings.Contains(body, `"limited"`)) {
			t.Errorf("%v %s", head, body)
		}
	}
	if last != http.StatusTooManyRequests {
		t.Errorf("the third request is answered with %d", last)
	}
	if status, _, _ := call(t, srv, "GET", "/v1/daemon", b); status != http.StatusOK {
		t.Errorf("another token is answered with %d", status)
	}
}

// F54: the audit log has the caller and the action of each request, one object a line whatever
// is in names. It reopens its file on request, and contains no token.
func TestF54Audit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	a, err := OpenAudit(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	d, srv := house(t, Config{Audit: a})
	secret := token(t, d, access.Run, time.Time{})
	call(t, srv, "POST", "/v1/cells/we%0Ab%22/pause", secret)
	call(t, srv, "DELETE", "/v1/credentials/web", secret)
	call(t, srv, "GET", "/v1/cells?x=pando_123", "pando_wrong")
	os.Rename(path, path+".old")
	if err := a.Reopen(); err != nil {
		t.Fatal(err)
	}
	call(t, srv, "GET", "/v1/cells", secret)
	var lines []auditLine
	for _, p := range []string{path + ".old", path} {
		text := readAll(t, p)
		if strings.Contains(text, strings.TrimPrefix(secret, "pando_")) || strings.Contains(text, "pando_") {
			t.Errorf("a token is in it: %s", text)
		}
		for l := range strings.Lines(text) {
			var x auditLine
			if err := json.Unmarshal([]byte(l), &x); err != nil {
				t.Fatalf("%s: %v", l, err)
			}
			if x.Request == "" || x.From == "" || x.Time.IsZero() {
				t.Errorf("incomplete: %s", l)
			}
			lines = append(lines, x)
		}
	}
	name := d.cfg.Tokens.List()[0].Name
	var got []string
	for _, l := range lines {
		got = append(got, fmt.Sprint(l.Who, " ", l.What, " ", l.Object, " ", l.Status, " ", l.Kind))
	}
	want := []string{
		name + " POST /v1/cells/{cell}/pause we\nb\" 200 ",
		name + " DELETE /v1/credentials/{credential} web 403 denied",
		" GET /v1/cells  401 unauthenticated",
		name + " GET /v1/cells  200 ",
	}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// A request has an id, the caller's if it is one.
func TestRequestIDs(t *testing.T) {
	_, srv := house(t, Config{})
	for given, kept := range map[string]bool{"": false, "a-1.b_2": true, strings.Repeat("a", 65): false, "a b": false, `a"b`: false} {
		r, _ := http.NewRequest("GET", srv.URL+"/healthz", nil)
		r.Header.Set("X-Request-Id", given)
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("X-Request-Id"); got == "" || (got == given) != kept {
			t.Errorf("%q became %q", given, got)
		}
	}
}

// raw sends bytes as they are and returns what comes back until the end.
func raw(t *testing.T, addr, text string, wait time.Duration) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(wait))
	io.WriteString(c, text)
	b, _ := io.ReadAll(bufio.NewReader(c))
	return string(b)
}

// What could be read in two ways is refused, and nothing is answered that was
// smuggled in behind it.
func TestCrookedRequestsAreRefused(t *testing.T) {
	d, srv := house(t, Config{})
	admin := token(t, d, Admin, time.Time{})
	addr := srv.Listener.Addr().String()
	auth := "Authorization: Bearer " + admin + "\r\n"
	second := "POST /v1/daemon/stop HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n"
	for name, text := range map[string]string{
		"two lengths":          "POST /v1/gc HTTP/1.1\r\nHost: x\r\n" + auth + "Content-Length: 0\r\nContent-Length: " + fmt.Sprint(len(second)) + "\r\n\r\n" + second,
		"unknown coding":       "POST /v1/gc HTTP/1.1\r\nHost: x\r\n" + auth + "Transfer-Encoding: xchunked\r\n\r\n" + second,
		"no host":              "GET /v1/daemon HTTP/1.1\r\n" + auth + "\r\n",
		"two hosts":            "GET /v1/daemon HTTP/1.1\r\nHost: a\r\nHost: b\r\n" + auth + "\r\n",
		"blank in a name":      "GET /v1/daemon HTTP/1.1\r\nHost: x\r\nAuthorization : Bearer " + admin + "\r\n\r\n",
		"folded line":          "GET /v1/daemon HTTP/1.1\r\nHost: x\r\n Authorization: Bearer " + admin + "\r\n\r\n",
		"null in a value":      "GET /v1/daemon HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\x00b\r\n" + auth + "\r\n",
		"way up":               "GET /v1/cells/../daemon HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n",
		"way up, escaped":      "GET /v1/cells/%2e%2e HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n",
		"empty name":           "GET /v1/cells//history HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n",
		"another method":       "CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n" + auth + "\r\n",
		"header of 100 KB":     "GET /v1/daemon HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 100<<10) + "\r\n" + auth + "\r\n",
		"length and a coding ": "POST /v1/nothing HTTP/1.1\r\nHost: x\r\n" + auth + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		got := raw(t, addr, text, 500*time.Millisecond)
		if strings.Contains(got, "reached") {
			t.Errorf("%s: %s", name, got)
		}
		if !strings.HasPrefix(got, "HTTP/1.1 4") && !strings.HasPrefix(got, "HTTP/1.1 5") && got != "" {
			t.Errorf("%s is not refused: %s", name, got)
		}
	}
	// A name that is a header in disguise stays a name.
	r, _ := http.NewRequest("GET", srv.URL+"/v1/cells/x%0d%0aSet-Cookie:%20a=b", nil)
	r.Header.Set("Authorization", "Bearer "+admin)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.Header.Get("Set-Cookie") != "" {
		t.Error("a header was smuggled in")
	}
}

// An unauthenticated caller can't occupy a connection by sending slowly, nor make the daemon
// read much.
func TestStrangersCannotLinger(t *testing.T) {
	_, srv := house(t, Config{})
	c, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(testenv.Patience()))
	io.WriteString(c, "PUT /v1/cells/web/files HTTP/1.1\r\nHost: x\r\nContent-Length: 10737418240\r\n\r\n")
	sent := make(chan error, 1)
	go func() { // until it is closed there
		for {
			if _, err := c.Write([]byte("x")); err != nil {
				sent <- err
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	b, _ := io.ReadAll(c)
	if !strings.HasPrefix(string(b), "HTTP/1.1 401") {
		t.Errorf("%s", b)
	}
	if err, _ := testenv.Receive(t, sent, "the end of the connection"); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a caller without a token kept its connection by sending slowly")
	}
}

// A list is told in pages, none of which misses or repeats what stays, whatever
// is added and removed meanwhile.
func TestPages(t *testing.T) {
	d, srv := house(t, Config{})
	secret := token(t, d, Read, time.Time{})
	var list []api.Cell
	d.mux = d.routes([]Route{{Method: "GET", Path: "/v1/cells?limit&cursor", Access: Read, cannot: "list cells", handle: func(*Daemon, http.ResponseWriter, *http.Request) (any, error) { return list, nil }}})
	for i := range 25 {
		list = append(list, api.Cell{ID: fmt.Sprintf("c-%02d", i)})
	}
	var seen []string
	cursor := ""
	for pages := 0; ; pages++ {
		status, body, head := call(t, srv, "GET", "/v1/cells?limit=10&cursor="+cursor, secret)
		var got []api.Cell
		if err := json.Unmarshal([]byte(body), &got); err != nil || status != 200 {
			t.Fatal(status, body)
		}
		for _, c := range got {
			seen = append(seen, c.ID)
		}
		if cursor = head.Get("X-Next-Cursor"); cursor == "" {
			break
		}
		// The last that was told goes, and new ones come before the first.
		if pages == 0 {
			list = append([]api.Cell{{ID: "c-new"}}, append(list[:9:9], list[10:]...)...)
		}
	}
	if len(seen) != 25 || seen[0] != "c-00" || seen[24] != "c-24" {
		t.Errorf("%d seen: %v", len(seen), seen)
	}
	for _, bad := range []string{"x", "WyJjLTk5Il0", "bnVsbA"} { // no cursor; one behind c-99; null
		if status, body, _ := call(t, srv, "GET", "/v1/cells?cursor="+bad, secret); status/100 != 4 {
			t.Errorf("%s: %d %s", bad, status, body)
		}
	}
	if status, _, _ := call(t, srv, "GET", "/v1/cells?limit=-1", secret); status != 400 {
		t.Errorf("a negative limit: %d", status)
	}
}
