package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

var cachesAxis = Axis{
	Name:    "caches",
	About:   "building again what was built before, in a new cell of the same source with a kept cache, beside the host with its own",
	measure: measureCaches,
}

// What is measured of each tool.
const (
	cachesCell   = ", new cell"
	cachesFork   = ", fork"
	cachesAtMost = 1.2
	cachesHost   = "host"
	cachesPando  = "pando run --cache"
)

// A cached is a tool with a cache, and work that is quick with it.
type cached struct {
	name, kept string // for people, and of --cache
	program    string
	plant      func(dir string, quick bool) error
	env        func(dir string) []string // where the cache is: dir is its own
	fill, work string                    // shell: the first time, which may use the network, and again
	allow      []string
}

func measureCaches(ctx context.Context, l *lab, out *AxisResult) error {
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	host := contestant{name: cachesHost, against: cachesPando, command: "the same command on the host",
		lacks: []string{"everything that a cell is, and files and caches of its own"}}
	cell := contestant{name: cachesPando, ours: true}
	var cases []Case
	var rounds [2][]func(context.Context, *recorder) error
	for _, t := range cachedTools() {
		p := l.find(ctx, t.program)
		if p.why != "" {
			out.absent(t.program, p.why)
			continue
		}
		here, there, err := t.prepare(ctx, l, inst)
		if err != nil {
			out.absent(t.program, strings.TrimSpace(strings.ReplaceAll(err.Error(), "\n", " ")))
			continue
		}
		rounds[0], rounds[1] = append(rounds[0], here), append(rounds[1], there)
		goals := []Goal{{Series: cachesPando, AtMost: cachesAtMost, Of: cachesHost}}
		cell.command = "pando run --cache " + t.kept + " -- sh -c '" + t.work + "'"
		cases = append(cases,
			Case{Name: t.name + cachesCell, What: "`" + t.work + "` after the same was done in another cell; on the host, after it was done there", Goals: goals},
			Case{Name: t.name + cachesFork, What: "the same in a fork of such a cell", Goals: slices.Clone(goals)})
	}
	all := func(list []func(context.Context, *recorder) error) func(context.Context, *recorder) error {
		return func(ctx context.Context, r *recorder) error {
			for _, round := range list {
				if err := round(ctx, r); err != nil {
					return err
				}
			}
			return nil
		}
	}
	host.round, cell.round = all(rounds[0]), all(rounds[1])
	if len(cases) == 0 {
		return nil
	}
	return l.hold(ctx, out, contest{contestants: []contestant{cell, host}, cases: cases, settle: true})
}

// prepare fills both caches, and returns a round of each contestant.
func (t *cached) prepare(ctx context.Context, l *lab, inst *installation) (host, cell func(context.Context, *recorder) error, err error) {
	var dirs, caches [2]string
	for i := range dirs {
		if dirs[i], err = l.fresh("caches"); err != nil {
			return nil, nil, err
		}
		if caches[i], err = l.fresh("cache"); err != nil {
			return nil, nil, err
		}
		if err := t.plant(dirs[i], l.quick); err != nil {
			return nil, nil, err
		}
	}
	if err := os.Remove(caches[1]); err != nil { // the cell's is pando's
		return nil, nil, err
	}
	sh := func(script string) command {
		return command{dir: dirs[0], env: append(os.Environ(), t.env(caches[0])...), args: []string{"sh", "-ec", script}}
	}
	in := func(script string, flags ...string) command {
		args := append([]string{"run", "--cache", t.kept}, flags...)
		c := inst.pando(dirs[1], append(args, "--", "sh", "-ec", script)...)
		c.env = append(slices.Clone(c.env), t.env(caches[1])...)
		return c
	}
	if _, err := sh(t.fill).run(ctx); err != nil {
		return nil, nil, err
	}
	for _, lock := range []string{"package-lock.json", "pnpm-lock.yaml", "yarn.lock", "Cargo.lock"} { // what was resolved on the host
		if b, err := os.ReadFile(filepath.Join(dirs[0], lock)); err == nil {
			if err := put(dirs[1], lock, string(b)); err != nil {
				return nil, nil, err
			}
		}
	}
	var allow []string
	for _, a := range t.allow {
		allow = append(allow, "--allow", a)
	}
	if _, err := in(t.fill, append(allow, "--cache-write", "always")...).run(ctx); err != nil {
		return nil, nil, err
	}
	host = func(ctx context.Context, r *recorder) error {
		for _, what := range []string{cachesCell, cachesFork} {
			if err := r.time(t.name+what, func() error { _, err := sh(t.work).run(ctx); return err }); err != nil {
				return err
			}
		}
		return nil
	}
	cell = func(ctx context.Context, r *recorder) error {
		name := fmt.Sprintf("caches-%s-%d", strings.Fields(t.name)[0], r.n)
		do := func(what string, flags ...string) error {
			if err := r.time(t.name+what, func() error { _, err := in(t.work, flags...).run(ctx); return err }); err != nil {
				return err
			}
			return r.started(ctx, inst, dirs[1], t.name+what)
		}
		if err := do(cachesCell, "--cell", name); err != nil {
			return err
		}
		fork := name + "-fork"
		if _, err := inst.pando(dirs[1], "fork", name, "--name", fork).run(ctx); err != nil {
			return err
		}
		if err := do(cachesFork, "--cell", fork); err != nil {
			return err
		}
		_, err := inst.pando(dirs[1], "rm", "--yes", name, fork).run(ctx)
		return err
	}
	return host, cell, nil
}

// cachedTools are those that can be measured.
func cachedTools() []cached {
	npm := func(dir string, quick bool) error {
		deps := `"typescript": "5.9.2", "prettier": "3.6.2", "undici": "7.16.0", "semver": "7.7.2", "yaml": "2.8.1"`
		if err := put(dir, "package.json", `{"name": "bench", "version": "1.0.0", "private": true, "dependencies": {`+deps+`}}`); err != nil {
			return err
		}
		return put(dir, ".gitignore", "node_modules\n")
	}
	return []cached{
		{name: "go test ./...", kept: "go", program: "go", plant: plantGo,
			env:  func(dir string) []string { return []string{"GOCACHE=" + dir, "GOFLAGS=-mod=mod", "GOPROXY=off"} },
			fill: "go test ./...", work: "go test ./..."},
		{name: "npm ci", kept: "npm", program: "npm", plant: npm, allow: []string{"@npm"},
			env:  func(dir string) []string { return []string{"npm_config_cache=" + dir} },
			fill: "npm install --package-lock-only --no-audit --no-fund && npm ci --no-audit --no-fund", work: "npm ci --offline --no-audit --no-fund"},
		{name: "pnpm install", kept: "pnpm", program: "pnpm", plant: npm, allow: []string{"@npm"},
			env:  func(dir string) []string { return []string{"npm_config_store_dir=" + dir} },
			fill: "pnpm install", work: "rm -rf node_modules && pnpm install --offline --frozen-lockfile"},
		{name: "yarn install", kept: "yarn", program: "yarn", plant: npm, allow: []string{"@npm", "registry.yarnpkg.com"},
			env:  func(dir string) []string { return []string{"YARN_CACHE_FOLDER=" + dir} },
			fill: "yarn install", work: "rm -rf node_modules && yarn install --offline --frozen-lockfile"},
		{name: "ccache", kept: "ccache", program: "ccache", plant: plantC,
			env:  func(dir string) []string { return []string{"CCACHE_DIR=" + dir} },
			fill: ccacheAll, work: ccacheAll},
		{name: "cargo build", kept: "cargo", program: "cargo", plant: plantRust,
			env:  func(dir string) []string { return []string{"CARGO_TARGET_DIR=" + dir} },
			fill: "cargo build --offline", work: "cargo build --offline"},
	}
}

const ccacheAll = "for f in *.c; do ccache cc -O2 -c $f -o /tmp/$f.o; done"

func put(dir, name, text string) error {
	at := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	return os.WriteFile(at, []byte(text), 0o644)
}

// plantGo writes a module of many packages, which use much of the standard library.
func plantGo(dir string, quick bool) error {
	n := 60
	if quick {
		n = 6
	}
	if err := put(dir, "go.mod", "module bench.test/m\n\ngo 1.24\n"); err != nil {
		return err
	}
	for i := range n {
		text := fmt.Sprintf("package p%d\n\nimport (\n\t\"crypto/tls\"\n\t\"encoding/json\"\n\t\"net/http\"\n)\n\n// F is %d.\nfunc F() any {\n\t_, _ = json.Marshal(&tls.Config{})\n\treturn http.StatusText(%d)\n}\n", i, i, 200+i)
		test := fmt.Sprintf("package p%d\n\nimport \"testing\"\n\nfunc TestF(t *testing.T) {\n\tif F() == nil {\n\t\tt.Fatal()\n\t}\n}\n", i)
		if err := put(dir, fmt.Sprintf("p%d/p.go", i), text); err != nil {
			return err
		}
		if err := put(dir, fmt.Sprintf("p%d/p_test.go", i), test); err != nil {
			return err
		}
	}
	return nil
}

func plantC(dir string, quick bool) error {
	n := 40
	if quick {
		n = 8
	}
	for i := range n {
		text := fmt.Sprintf("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <math.h>\nint f%d(int n) { char *s = malloc(n); memset(s, %d, n); for (int i = 0; i < n; i++) s[i] = s[i] * 3 + i; return s[n - 1] + printf(\"%%s\", s); }\n", i, i)
		if err := put(dir, fmt.Sprintf("f%d.c", i), text); err != nil {
			return err
		}
	}
	return nil
}

// plantRust writes a crate without others: what is compiled is kept in the folder of targets.
func plantRust(dir string, quick bool) error {
	n := 40
	if quick {
		n = 4
	}
	main := ""
	for i := range n {
		main += fmt.Sprintf("mod m%d;\n", i)
		if err := put(dir, fmt.Sprintf("src/m%d.rs", i), fmt.Sprintf("use std::collections::HashMap;\npub fn f() -> usize { let mut m: HashMap<String, Vec<u64>> = HashMap::new(); m.insert(\"%d\".into(), (0..%d).collect()); m.values().map(|v| v.len()).sum() }\n", i, i+1)); err != nil {
			return err
		}
	}
	main += "fn main() { println!(\"{}\", 0"
	for i := range n {
		main += fmt.Sprintf(" + m%d::f()", i)
	}
	if err := put(dir, "src/main.rs", main+"); }\n"); err != nil {
		return err
	}
	return put(dir, "Cargo.toml", "[package]\nname = \"bench\"\nversion = \"0.1.0\"\nedition = \"2021\"\n")
}
