package notice

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

var sample = api.Notice{What: "ended", Run: "r-1", Cell: "c-1", CellName: "web", Verdict: "pending", Title: "pando: web", Text: `<b>"$(touch pwned)"`, Next: "pando diff r-1"}

func TestWays(t *testing.T) {
	for way, want := range map[string]cell.Kind{"desktop": "", "https://hooks.example.com/x": "", "http://127.0.0.1:1/": "", "command:true": "",
		"": cell.Invalid, "command:": cell.Invalid, "command: ": cell.Invalid, "ftp://x/": cell.Invalid, "https://u:p@x/": cell.Invalid, "true": cell.Invalid} {
		if err := Check(way); cell.KindOf(err) != want {
			t.Errorf("%q: %v", way, err)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if err := Works(Desktop); cell.KindOf(err) != cell.Unsupported {
		t.Error(err)
	}
}

func TestAddressIsTold(t *testing.T) {
	var got api.Notice
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil || r.Header.Get("Content-Type") != "application/json" || r.Method != http.MethodPost {
			t.Error(err, r.Header, r.Method)
		}
		w.WriteHeader(status)
	}))
	defer s.Close()
	if err := Send(t.Context(), s.URL+"/secret", sample); err != nil || got != sample {
		t.Errorf("%+v %v", got, err)
	}
	status = http.StatusForbidden
	if err := Send(t.Context(), s.URL, sample); err == nil || !strings.Contains(err.Error(), "403") {
		t.Error(err)
	}
	s.Close()
	if err := Send(t.Context(), s.URL+"/secret", sample); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("it names the whole address: %v", err)
	}
}

func TestCommandHasTheNotice(t *testing.T) {
	dir := t.TempDir()
	n := sample
	n.Text += "\n\x1b[2J"
	if err := Send(t.Context(), "command:cd "+dir+"; cat >in; printf '%s|' \"$PANDO_WHAT\" \"$PANDO_RUN\" \"$PANDO_TEXT\" >vars", n); err != nil {
		t.Fatal(err)
	}
	var got api.Notice
	in, _ := os.ReadFile(dir + "/in")
	if err := json.Unmarshal(in, &got); err != nil || got.Text != sample.Text+"  [2J" || got.Run != "r-1" {
		t.Errorf("%s %v", in, err)
	}
	if vars, _ := os.ReadFile(dir + "/vars"); string(vars) != "ended|r-1|"+got.Text+"|" {
		t.Errorf("%s", vars)
	}
	if _, err := os.Stat(dir + "/pwned"); err == nil {
		t.Error("text of a cell was executed")
	}
	if err := Send(t.Context(), "command:echo no such thing >&2; exit 3", sample); err == nil || !strings.Contains(err.Error(), "no such thing") {
		t.Error(err)
	}
}

func TestDesktop(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	script := "#!/bin/sh\nfor a; do echo \"$a\"; done >" + dir + "/args; echo $DBUS_SESSION_BUS_ADDRESS >" + dir + "/bus\n"
	if err := os.WriteFile(filepath.Join(dir, notifier), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	n := sample
	n.Title = "--icon=/x"
	if err := Send(t.Context(), Desktop, n); err != nil {
		t.Fatal(err)
	}
	if args, _ := os.ReadFile(dir + "/args"); string(args) != "--app-name=pando\n--\n--icon=/x\n&lt;b&gt;\"$(touch pwned)\"\npando diff r-1\n" {
		t.Errorf("%s", args)
	}
	if bus, _ := os.ReadFile(dir + "/bus"); !strings.HasPrefix(string(bus), "unix:path=/run/user/") {
		t.Errorf("%s", bus)
	}
}
