package secret

import (
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
)

// nameOf asks for a path as tests write it: with a slash at its end it is a
// folder.
func nameOf(path string) (why string, ok bool) { return matchName(components(path)) }

func lastOf(p string) (dir, name string) {
	dir, name = path.Split(p)
	return strings.TrimSuffix(dir, "/"), name
}

// samplePath makes a path that a pattern matches.
func samplePath(pattern string) string {
	return strings.TrimSuffix(strings.Replace(pattern, "*", "prod", 1), "/")
}

// Each row of the table of names leaves its name out at any depth and in any
// case, with its backups, and does not leave out what is only near.
func TestF21EverynameOf(t *testing.T) {
	for _, row := range nameRows {
		t.Run(row.pattern, func(t *testing.T) {
			p := samplePath(row.pattern)
			forms := []string{p, strings.ToUpper(p), "a/" + p, "deep/er/and/er/" + p, "a b/é/" + p}
			if strings.HasSuffix(row.pattern, "/") {
				forms = append(forms, p+"/", p+"/x", "sub/"+strings.ToUpper(p)+"/deep/x")
			} else {
				dir, name := lastOf(p)
				forms = append(forms, p+"~", p+".bak", p+".old~", p+".orig", path.Join(dir, "."+name+".swp"), path.Join(dir, "#"+name+"#"))
			}
			for _, f := range forms {
				if why, ok := nameOf(f); !ok || why != row.why {
					t.Errorf("nameOf(%q) = %q, %v; want %q", f, why, ok, row.why)
				}
				isDir := strings.HasSuffix(f, "/")
				d := Decide(strings.TrimSuffix(f, "/"), isDir, false, nil)
				if d.Action != LeaveOut || d.Why != row.why {
					t.Errorf("Decide(%q) = %v", f, d)
				}
				if d := Decide(strings.TrimSuffix(f, "/"), isDir, true, nil); (!d.Tracked || d.Action != LeaveOut) && !gitdir.Inside(f) {
					t.Errorf("tracked %q: %v", f, d)
				}
			}
			dir, name := lastOf(p)
			near := []string{path.Join(dir, name+"_spec.rb"), path.Join(dir, "x"+name+".go"), p + ".example", p + ".sample"}
			if dir != "" {
				near = append(near, name+"0", "other/"+strings.TrimPrefix(name, ".")+"0")
			}
			if strings.HasSuffix(row.pattern, "/") {
				near = []string{p + "x/file", "x" + p + "/file", p + ".go", p + "-notes"}
			} else {
				near = append(near, p+"/") // a folder of that name is a virtual environment or the like
			}
			for _, f := range near {
				if head, _, _ := strings.Cut(row.pattern, "*"); strings.HasSuffix(row.pattern, "*") && strings.HasPrefix(f, head) && !strings.HasSuffix(f, ".example") && !strings.HasSuffix(f, ".sample") && !strings.HasSuffix(f, "/") {
					continue // the pattern has no end to be near of
				}
				if why, ok := nameOf(f); ok && why == row.why && !matchesOther(f, row.pattern) {
					t.Errorf("nameOf(%q) = %q", f, why)
				}
			}
		})
	}
}

// matchesOther reports whether another row with the same reason covers path.
func matchesOther(path, pattern string) bool {
	for _, row := range nameRows {
		if row.pattern == pattern {
			continue
		}
		dir, last := lastOf(strings.TrimSuffix(row.pattern, "/"))
		_, name := lastOf(path)
		head, tail, glob := strings.Cut(last, "*")
		if dir == "" && (name == last || glob && strings.HasPrefix(name, head) && strings.HasSuffix(name, tail)) {
			return true
		}
	}
	return false
}

func TestF21NamesThatAreShared(t *testing.T) {
	for _, row := range sharedRows {
		for _, p := range []string{samplePath(row.pattern), ".env" + strings.TrimPrefix(row.pattern, "*"), "a/id_rsa" + strings.TrimPrefix(row.pattern, "*")} {
			if strings.HasPrefix(row.pattern, "*") || p == row.pattern {
				if why, ok := nameOf(p); ok {
					t.Errorf("nameOf(%q) = %q", p, why)
				}
			}
		}
	}
	for p, secret := range map[string]bool{
		".env": true, ".env.local": true, ".env.test": true, ".env.example.local": true, ".env.production.bak": true, "..env.swp": true, ".ENV": true, "prod.env": true,
		".env.example": false, ".env.test.sample": false, "environment": false, ".envoy.yaml": false, "env.go": false, "venv": false, ".environment": false,
		".env/": false, ".env/bin/python": false, // a virtual environment
		"id_rsa": true, "id_rsa.pub": false, "id_ed25519_work": true, "my_id_rsa": false,
		"src/docker/config.json": false, "x/.docker/config.json": true, ".docker/daemon.json": false,
		".kube/cache/x": true, "kube/config": false, "kubeconfig.go": false, "deploy/kubeconfig": true,
		"terraform.tfvars": true, "variables.tf": false, "terraform.tfvars.example": false, "terraform.tfstate.backup": true,
		"": false, "/": false, "a": false, "~": false, ".bak": false, "#": false, "##": false, ".swp": false, "server.pem": false,
	} {
		if why, ok := nameOf(p); ok != secret {
			t.Errorf("nameOf(%q) = %q, %v", p, why, ok)
		}
	}
}

// By name alone these stay; their content is searched, also for fields.
func TestF21NamesWhoseContentDecides(t *testing.T) {
	for _, row := range contentRows {
		p := "conf/" + samplePath(row.pattern)
		if d := Decide(p, false, false, nil); d.Action != ScanContent || d.Why != row.why {
			t.Errorf("Decide(%q) = %v", p, d)
		}
		content := []byte(`{"client_secret": "` + "h7Gq2LmZ0pXw" + `"}`)
		if f := Scan(p, content); len(f) != 1 || f[0].What != "credential" {
			t.Errorf("Scan(%q) = %v", p, f)
		}
		scan := NewScanner(1)
		scan.Reset(p)
		scan.Write(content)
		if f := scan.Findings(); len(f) != 1 || f[0].Why() != "credential inside" {
			t.Errorf("Scanner: %v", f)
		}
		if f := Scan("conf/app.json", content); len(f) > 0 {
			t.Errorf("other name: %v", f)
		}
	}
	for text, found := range map[string]bool{
		`"private_key_id": "h7Gq2LmZ0pXw"`:        false,
		`"password": "short"`:                     false,
		`"password": "${PASSWORD_FROM_ENV}"`:      false,
		`"password": "your-password-here"`:        false,
		`"password": "xxxxxxxxxxxx"`:              false,
		`"password": "changeme123"`:               false,
		`password = h7Gq2LmZ0pXw`:                 true,
		`password: 'h7Gq2LmZ0pXw'`:                true,
		`the password is not shown`:               false,
		`"refresh_token" : "h7Gq2LmZ0pXw", "x":1`: true,
	} {
		if f := Scan("credentials.json", []byte(text)); (len(f) > 0) != found {
			t.Errorf("Scan(%s) = %v", text, f)
		}
	}
}

func TestDecide(t *testing.T) {
	allowed, err := NewWith([]string{"./conf/../.env", "home/.aws/config", "keys/"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path           string
		isDir, tracked bool
		want           Action
	}{
		{"main.go", false, true, Keep},
		{"main.go", false, false, ScanContent},
		{"src", true, false, Keep},
		{"testdata/server.pem", false, true, Keep},
		{"testdata/server.pem", false, false, ScanContent},
		{"sub/.env", false, false, LeaveOut},
		{"sub/.env", false, true, Keep},
		{".env", false, false, Keep}, // let in
		{".ENV", false, false, LeaveOut},
		{".env.local", false, false, LeaveOut},
		{"home/.aws", true, false, Keep}, // on the way to what is let in
		{"home/.aws/config", false, false, Keep},
		{"home/.aws/credentials", false, false, LeaveOut},
		{"other/.aws", true, false, LeaveOut},
		{"keys/id_rsa", false, false, Keep},
		{"keys", true, false, Keep},
		{"keys2/id_rsa", false, false, LeaveOut},
		{"fixtures/.ssh", true, true, Keep}, // something in it is tracked
		{"fixtures/.ssh/known", false, true, Keep},
		{"fixtures/.ssh/extra", false, false, LeaveOut},
		{".npmrc", false, false, Scrub},
		{".npmrc", false, true, Keep},
		{".npmrc.bak", false, false, Scrub},
		{"x/.pypirc", false, false, Scrub},
		{".git", true, false, Keep},
		{".git", false, false, Keep}, // of a worktree
		{"sub/.git", false, true, Keep},
		{".git/config", false, false, Scrub},
		{".git/config", false, true, Scrub}, // git never tracks it, whatever an index says
		{"a/b/.git/config", false, true, Scrub},
		{".git/modules/lib/config", false, false, Scrub},
		{".git/modules/objects/config", false, false, Scrub},
		{".git/modules/a/modules/b/config", false, false, Scrub},
		{".git/worktrees/w/config.worktree", false, false, Scrub},
		{"mirror.git/config", false, false, Scrub},
		{".git/FETCH_HEAD", false, false, Scrub},
		{".git/logs/HEAD", false, false, Scrub},
		{".git/logs/refs/heads/prod.env", false, false, Scrub},
		{".git/refs/heads/prod.env", false, false, Keep},
		{".git/refs/heads/config", false, false, Keep},
		{".git/objects/ab/cdef", false, false, Keep},
		{".git/objects/pack/x.pack", false, false, Keep},
		{".git/lfs/objects/ab/cd/x", false, false, Keep},
		{".git/HEAD", false, false, Keep},
		{".git/index", false, false, Keep},
		{".git/modules/lib/index", false, false, Keep},
		{".git/hooks/pre-push", false, false, ScanContent},
		{".git/hooks", true, false, Keep},
		{".git/credentials", false, false, LeaveOut},
		{".git/annex/creds", true, false, LeaveOut},
		{".git/annex/creds/uuid", false, false, LeaveOut},
		{"src/objects/.git/hooks/x", false, false, ScanContent},
		{"src/objects/.env", false, false, LeaveOut},
	} {
		got := Decide(c.path, c.isDir, c.tracked, allowed)
		if got.Tracked { // it comes in, and is named
			got.Action = Keep
		}
		if got.Action != c.want {
			t.Errorf("Decide(%q, dir %v, tracked %v) = %s (%s), want %s", c.path, c.isDir, c.tracked, got.Action, got.Why, c.want)
		}
	}
	if d := Decide("a/.env", false, false, nil); d != (Decision{Action: LeaveOut, Why: "environment file"}) {
		t.Errorf("%+v", d)
	}
}

func TestF64WithSecretHasOneSpelling(t *testing.T) {
	for _, p := range []string{".env", "./.env", "a/../.env", ".//.env", "a/b/../../.env", ".env/", "./a/./../.env/."} {
		w, err := NewWith([]string{p})
		if err != nil {
			t.Fatal(err)
		}
		if d := Decide(".env", false, false, w); d.Action != Keep {
			t.Errorf("--with-secret %s: %v", p, d)
		}
		if d := Decide("a/.env", false, false, w); d.Action != LeaveOut {
			t.Errorf("--with-secret %s lets in a/.env: %v", p, d)
		}
	}
	for _, p := range []string{"", ".", "./", "a/..", "..", "../x", "a/../../x", "/etc/x", "/", "/proc/self/cwd/.env", "a\x00b", "x/../.."} {
		_, err := NewWith([]string{"ok", p})
		if cell.KindOf(err) != cell.Invalid || !strings.HasPrefix(err.Error(), "cannot ") || cell.HintOf(err) == "" {
			t.Errorf("--with-secret %q: %v, want an Invalid error with a hint", p, err)
		}
	}
	var none With
	if none.Has("x") || none.below("x") {
		t.Error("nil lets something in")
	}
}

func BenchmarkDecide(b *testing.B) {
	paths := make([]string, 100_000)
	for i := range paths {
		paths[i] = fmt.Sprintf("pkg%d/internal/module%d/source_file_%d.go", i%20, i%1000, i)
	}
	b.ResetTimer()
	for i := 0; b.Loop(); i++ {
		Decide(paths[i%len(paths)], false, false, nil)
	}
}
