package e2e

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/testenv"
)

// A registry is a place that packages come from, in the world as it is.
type registry struct {
	prog   string
	url    string // answers 200 where it can be reached
	preset string
	host   string
	files  map[string]string
	env    []string
	fetch  string // gets the packages
	shows  string // what that prints in the end
	// offline: what to run where the registry is not allowed, if not fetch: a
	// program may have much patience.
	offline string
}

// Real packages, by real package managers, through the gateway: with the
// preset for them it works, and only their registry is visited; without it the
// failure names the registry, and the flag that allows it.
var registries = map[string]registry{
	"npm": {
		prog: "npm", url: "https://registry.npmjs.org/is-odd/3.0.1", preset: "@npm", host: "registry.npmjs.org",
		files: map[string]string{"package.json": npmPackage, "package-lock.json": npmLock},
		fetch: `npm ci --no-audit --no-fund && node -e 'console.log(require("is-odd")(3), require("semver").inc("1.2.3", "minor"))'`, shows: "true 1.3.0\n",
		offline: `npm ci --no-audit --no-fund --fetch-retries=0`,
	},
	"go": {
		prog: "go", url: "https://proxy.golang.org/rsc.io/quote/@v/v1.5.2.info", preset: "@go", host: "proxy.golang.org",
		files: map[string]string{"go.mod": goMod, "go.sum": goSum, "main.go": goMain},
		env:   []string{"GOMODCACHE=/tmp/modules", "GOFLAGS=-modcacherw", "GOPROXY=https://proxy.golang.org", "GOTOOLCHAIN=local", "LANG=en"},
		fetch: `go mod download && go run .`, shows: "Hello, world.\n",
		offline: `go mod download`,
	},
	"apt": {
		prog: "apt-get", url: "http://deb.debian.org/debian/dists/bookworm/InRelease", preset: "@debian", host: "deb.debian.org",
		files: map[string]string{"install.sh": aptInstall},
		fetch: `sh install.sh`, shows: "Hello, world!\n",
	},
}

func TestPackages(t *testing.T) {
	for name, r := range registries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testenv.Program(t, r.prog)
			reachable(t, r.url)
			h := newHost(t)
			if name == "go" {
				h.env = append(h.env, "HOME="+os.Getenv("HOME")) // what was compiled once is there
			}
			for f, text := range r.files {
				h.write(f, text)
			}
			flags := []string{}
			for _, kv := range r.env {
				flags = append(flags, "--env", kv)
			}
			run := func(code int, script string, more ...string) outcome {
				t.Helper()
				return h.exits(code, slices.Concat([]string{"run", "--cell", "p"}, more, flags, []string{"--", "sh", "-ec", script})...)
			}
			o := run(0, r.fetch, "--allow", r.preset)
			if !strings.HasSuffix(o.out, r.shows) {
				t.Errorf("it ended with:\n%s%s", o.out, o.stderr)
			}
			id := h.run("p:latest").ID
			var received int64
			for _, f := range flows(h, id) {
				if f.Host != r.host {
					t.Errorf("it went to %s", f.Host)
				}
				if f.Opened {
					t.Errorf("TLS was opened, and no rule asked for that: %+v", f)
				}
				received += f.Received
			}
			if received == 0 {
				t.Error("nothing is recorded of what came")
			}
			for _, d := range decisions(h, id) {
				if !d.Decision.Allowed() {
					t.Errorf("denied: %s %s:%d: %s", d.Access.Act, d.Access.Host, d.Access.Port, d.Decision.Reason)
				}
			}

			// The same without the registry.
			h.pando("rm", "p", "--yes")
			script := r.offline
			if script == "" {
				script = r.fetch
			}
			start := time.Now()
			bad := h.try(slices.Concat([]string{"run", "--cell", "p", "--allow", "other.example"}, flags, []string{"--", "sh", "-ec", script})...)
			if bad.code == 0 || bad.code >= 125 {
				t.Errorf("without the registry: exit code %d\n%s%s", bad.code, bad.out, bad.stderr)
			}
			if !strings.Contains(bad.stderr, r.host) || !strings.Contains(bad.stderr, "--allow "+r.host) {
				t.Errorf("without the registry, the end names neither it nor the flag:\n%s%s", bad.out, bad.stderr)
			}
			if d := time.Since(start); d > 15*time.Second {
				t.Errorf("without the registry: it took %v to fail", d)
			}
			h.pando("rm", "p", "--yes")
			if left := h.leftovers(); len(left) > 0 {
				t.Errorf("left over: %s", strings.Join(left, "; "))
			}
		})
	}
}

// reachable skips where a registry can't be had.
func reachable(t *testing.T, url string) {
	t.Helper()
	if os.Getenv("E2E_OFFLINE") != "" {
		t.Skip("E2E_OFFLINE is set")
	}
	c := &http.Client{Timeout: 10 * time.Second}
	resp, err := c.Get(url)
	if err != nil {
		t.Skipf("%s can't be reached: %v", url, err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Skipf("%s answers %s", url, resp.Status)
	}
}

const npmPackage = `{"name":"greet","version":"1.0.0","private":true,"dependencies":{"is-odd":"3.0.1","semver":"7.7.2"}}
`

const npmLock = `{
  "name": "greet",
  "version": "1.0.0",
  "lockfileVersion": 3,
  "requires": true,
  "packages": {
    "": {
      "name": "greet",
      "version": "1.0.0",
      "dependencies": {"is-odd": "3.0.1", "semver": "7.7.2"}
    },
    "node_modules/is-number": {
      "version": "6.0.0",
      "resolved": "https://registry.npmjs.org/is-number/-/is-number-6.0.0.tgz",
      "integrity": "sha512-Wu1VHeILBK8KAWJUAiSZQX94GmOE45Rg6/538fKwiloUu21KncEkYGPqob2oSZ5mUT73vLGrHQjKw3KMPwfDzg=="
    },
    "node_modules/is-odd": {
      "version": "3.0.1",
      "resolved": "https://registry.npmjs.org/is-odd/-/is-odd-3.0.1.tgz",
      "integrity": "sha512-CQpnWPrDwmP1+SMHXZhtLtJv90yiyVfluGsX5iNCVkrhQtU3TQHsUWPG9wkdk9Lgd5yNpAg9jQEo90CBaXgWMA==",
      "dependencies": {"is-number": "^6.0.0"}
    },
    "node_modules/semver": {
      "version": "7.7.2",
      "resolved": "https://registry.npmjs.org/semver/-/semver-7.7.2.tgz",
      "integrity": "sha512-RF0Fw+rO5AMf9MAyaRXI4AV0Ulj5lMHqVxxdSgiVbixSCXoEmmX/jk0CuJw4+3SqroYO9VoUh+HcuJivvtJemA==",
      "bin": {"semver": "bin/semver.js"}
    }
  }
}
`

const goMod = `module example.com/greet

go 1.22

require rsc.io/quote v1.5.2

require (
	golang.org/x/text v0.0.0-20170915032832-14c0d48ead0c // indirect
	rsc.io/sampler v1.3.0 // indirect
)
`

const goSum = `golang.org/x/text v0.0.0-20170915032832-14c0d48ead0c h1:qgOY6WgZOaTkIIMiVjBQcw93ERBE4m30iBm00nkL0i8=
golang.org/x/text v0.0.0-20170915032832-14c0d48ead0c/go.mod h1:NqM8EUOU14njkJ3fqMW+pc6Ldnwhi/IjpwHt7yyuwOQ=
rsc.io/quote v1.5.2 h1:w5fcysjrx7yqtD/aO+QwRjYZOKnaM9Uh2b40tElTs3Y=
rsc.io/quote v1.5.2/go.mod h1:LzX7hefJvL54yjefDEDHNONDjII0t9xZLPXsUe+TKr0=
rsc.io/sampler v1.3.0 h1:7uVkIFmeBqHfdjD+gZwtXXI+RODJ2Wc4O7MPEh/QiW4=
rsc.io/sampler v1.3.0/go.mod h1:T1hPZKmBbMNahiBKFy5HrXp6adAjACjK9JXDnKaTXpA=
`

const goMain = `package main

import (
	"fmt"

	"rsc.io/quote"
)

func main() { fmt.Println(quote.Hello()) }
`

// aptInstall has apt and dpkg, as they come, install into a root that is the
// cell's own: the system's is read-only in a cell. The C library is taken for
// installed, as it is that of the host. A cell of an ordinary user has one user
// in it, and dpkg gives files away to another: there they are unpacked only.
const aptInstall = `set -e
r=$PWD/root
mkdir -p $r/var/lib/dpkg/info $r/var/lib/dpkg/updates $r/var/lib/apt/lists/partial $r/var/cache/apt/archives/partial $r/var/log/apt $r/etc/apt
printf 'Package: libc6\nStatus: install ok installed\nArchitecture: %s\nMaintainer: x\nVersion: 999\nDescription: of the host\n\n' $(dpkg --print-architecture) > $r/var/lib/dpkg/status
cat > $r/etc/apt/apt.conf <<END
Dir::State "$r/var/lib/apt";
Dir::State::status "$r/var/lib/dpkg/status";
Dir::Cache "$r/var/cache/apt";
Dir::Log "$r/var/log/apt";
Dir::Etc::sourcelist "$r/etc/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::parts "/dev/null";
APT::Sandbox::User "$(id -un)";
DPkg::Options { "--root=$r"; "--force-not-root"; "--force-script-chrootless"; "--log=$r/var/log/dpkg.log"; };
Acquire::Retries "0";
Acquire::Languages "none";
END
echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main' > $r/etc/apt/sources.list
export APT_CONFIG=$r/etc/apt/apt.conf
apt-get -q update --error-on=any
if [ $(id -u) = 0 ]; then
	apt-get -q install -y --no-install-recommends hello
else
	apt-get -q install -y --no-install-recommends --download-only hello
	for deb in $r/var/cache/apt/archives/*.deb; do dpkg-deb -x $deb $r; done
fi
$r/usr/bin/hello
`
