// Command upgrades tries the rules of package finding on what really happens: it has pando turn each release of modules of Go and
// packages of npm into the next one, in a cell, and counts what the reports of these runs find.
//
//	go run ./tools/upgrades [-pando FILE] [-dir DIR] [-n RELEASES] [-all FILE] LIST
//
// A line of LIST is "go MODULE" or "npm PACKAGE". Releases are downloaded from the public registries, and kept in DIR. All
// findings are written to FILE, a JSON line for each change; the table on standard output has, for each rule, in how many
// changes it found something.
package main

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/finding"
)

func main() {
	if err := do(); err != nil {
		fmt.Fprintln(os.Stderr, "upgrades:", err)
		os.Exit(1)
	}
}

// maxFetched bounds a download, in bytes.
const maxFetched = 256 << 20

func fetch(at string) ([]byte, error) {
	c := http.Client{Timeout: 2 * time.Minute}
	resp, err := c.Get(at)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", at, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxFetched))
}

// release is one release: its version, and what unpacks it into a directory.
type release struct {
	version string
	unpack  func(dir string) error
}

// newest are the newest releases of versions, oldest first, without those before a release.
func newest(versions []string, n int) []string {
	versions = slices.DeleteFunc(versions, func(v string) bool { return !semver.IsValid(v) || semver.Prerelease(v) != "" })
	slices.SortFunc(versions, semver.Compare)
	return versions[max(0, len(versions)-n):]
}

func ofGo(name string, n int) (list []release, err error) {
	escaped, err := module.EscapePath(name)
	if err != nil {
		return nil, err
	}
	at := "https://proxy.golang.org/" + escaped + "/@v/"
	b, err := fetch(at + "list")
	if err != nil {
		return nil, err
	}
	for _, v := range newest(strings.Fields(string(b)), n) {
		list = append(list, release{v, func(dir string) error {
			b, err := fetch(at + v + ".zip")
			if err != nil {
				return err
			}
			z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
			if err != nil {
				return err
			}
			for _, f := range z.File {
				r, err := f.Open()
				if err == nil {
					err = put(dir, strings.TrimPrefix(f.Name, name+"@"+v+"/"), 0o644, r)
					r.Close()
				}
				if err != nil {
					return err
				}
			}
			return nil
		}})
	}
	return list, nil
}

func ofNPM(name string, n int) (list []release, err error) {
	b, err := fetch("https://registry.npmjs.org/" + url.PathEscape(name))
	if err != nil {
		return nil, err
	}
	var doc struct {
		Versions map[string]struct{ Dist struct{ Tarball string } }
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, err
	}
	var versions []string
	for v := range doc.Versions {
		versions = append(versions, "v"+v)
	}
	for _, v := range newest(versions, n) {
		at := doc.Versions[v[1:]].Dist.Tarball
		list = append(list, release{v, func(dir string) error {
			b, err := fetch(at)
			if err != nil {
				return err
			}
			z, err := gzip.NewReader(bytes.NewReader(b))
			if err != nil {
				return err
			}
			for r := tar.NewReader(z); ; {
				h, err := r.Next()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				if _, path, below := strings.Cut(h.Name, "/"); below && h.Typeflag == tar.TypeReg {
					if err := put(dir, path, os.FileMode(h.Mode)&0o755|0o600, r); err != nil {
						return err
					}
				}
			}
		}})
	}
	return list, nil
}

// put writes a file below a directory.
func put(dir, path string, mode os.FileMode, r io.Reader) error {
	if path == "" || strings.HasSuffix(path, "/") {
		return nil
	}
	if !filepath.IsLocal(path) {
		return fmt.Errorf("%q leads out of its package", path)
	}
	at := filepath.Join(dir, path)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// change is what was found in one upgrade.
type change struct {
	Package  string           `json:"package"`
	From     string           `json:"from"`
	To       string           `json:"to"`
	Files    int              `json:"files"`
	Findings []api.RunFinding `json:"findings"`
}

func do() error {
	pando := flag.String("pando", "bin/pando", "the executable")
	dir := flag.String("dir", "", "where releases are kept (default: a temporary directory)")
	n := flag.Int("n", 6, "releases of each")
	all := flag.String("all", "", "file for all findings")
	flag.Parse()
	if flag.NArg() != 1 {
		return errors.New("give one list of packages")
	}
	exe, err := filepath.Abs(*pando)
	if err != nil {
		return err
	}
	if *dir == "" {
		if *dir, err = os.MkdirTemp("", "pando-upgrades-"); err != nil {
			return err
		}
		defer os.RemoveAll(*dir)
	}
	f, err := os.Open(flag.Arg(0))
	if err != nil {
		return err
	}
	defer f.Close()
	env := append(os.Environ(), "PANDO_HOME="+filepath.Join(*dir, "home"))
	run := func(in string, args ...string) ([]byte, error) {
		cmd := exec.Command(exe, args...)
		cmd.Dir, cmd.Env = in, env
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("pando %s: %w: %s", args[0], err, errs.String())
		}
		return out, err
	}
	defer run(*dir, "daemon", "stop")
	var changes []change
	for sc := bufio.NewScanner(f); sc.Scan(); {
		kind, name, ok := strings.Cut(strings.TrimSpace(sc.Text()), " ")
		if !ok || strings.HasPrefix(kind, "#") {
			continue
		}
		list, err := map[string]func(string, int) ([]release, error){"go": ofGo, "npm": ofNPM}[kind](name, *n)
		if err != nil {
			return err
		}
		last := ""
		for i, r := range list {
			at := filepath.Join(*dir, kind, strings.ReplaceAll(name, "/", "_"), r.version)
			if _, err := os.Stat(at); err != nil {
				if err := errors.Join(os.MkdirAll(at+".new", 0o755), r.unpack(at+".new"), os.Rename(at+".new", at)); err != nil {
					return err
				}
			}
			if last != "" {
				c := change{Package: name, From: list[i-1].version, To: r.version}
				if _, err := run(last, "run", "--no-config", "--mount", at+":/new", "--", "sh", "-c", "find . -mindepth 1 -delete; cp -a /new/. ."); err != nil {
					return err
				}
				b, err := run(last, "report", "--json")
				if err != nil {
					return err
				}
				var rep api.Report
				if err := json.Unmarshal(b, &rep); err != nil {
					return err
				}
				if len(rep.Problems) > 0 {
					return fmt.Errorf("%s %s: %s", name, r.version, strings.Join(rep.Problems, "; "))
				}
				c.Files, c.Findings = rep.Run.Changes.Files, rep.Findings
				changes = append(changes, c)
				if _, err := run(last, "discard"); err != nil {
					fmt.Fprintln(os.Stderr, err) // nothing changed
				}
			}
			last = at
		}
		fmt.Fprintf(os.Stderr, "%s: %d releases\n", name, len(list))
	}
	return tell(changes, *all)
}

// tell writes the table, and all findings to a file if one is named.
func tell(changes []change, all string) error {
	in, count, clear := map[string]int{}, map[string]int{}, 0
	for _, c := range changes {
		seen, severe := map[string]bool{}, false
		for _, f := range c.Findings {
			count[f.Rule]++
			severe = severe || f.Severity == api.SeverityHigh
			if !seen[f.Rule] {
				seen[f.Rule] = true
				in[f.Rule]++
			}
		}
		if !severe {
			clear++
		}
	}
	rules := finding.Rules()
	slices.SortStableFunc(rules, func(a, b finding.Rule) int {
		return cmp.Or(cmp.Compare(api.SeverityWeight(b.Severity), api.SeverityWeight(a.Severity)), cmp.Compare(in[b.ID], in[a.ID]))
	})
	fmt.Printf("%d changes, %d without a finding of severity high.\n\n| rule | severity | changes | findings |\n|---|---|---:|---:|\n", len(changes), clear)
	for _, r := range rules {
		if in[r.ID] > 0 {
			fmt.Printf("| `%s` | %s | %d | %d |\n", r.ID, r.Severity, in[r.ID], count[r.ID])
		}
	}
	if all == "" {
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, c := range changes {
		if err := enc.Encode(c); err != nil {
			return err
		}
	}
	return os.WriteFile(all, b.Bytes(), 0o644)
}
