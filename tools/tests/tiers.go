package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// A rule of the table puts tests of a package into a tier.
type rule struct {
	tier    string
	pkg     string // below the module; ends with /... for all packages below it
	pattern string // a pattern of go test -run without alternatives; "*" is the whole package
}

func (r rule) covers(pkg string) bool {
	if dir, ok := strings.CutSuffix(r.pkg, "/..."); ok {
		return pkg == dir || strings.HasPrefix(pkg, dir+"/")
	}
	return pkg == r.pkg
}

// A table is testdata/tiers.txt. For a package the last rule with "*" that covers
// it counts; other rules move single tests out of that tier.
type table []rule

// quick is the tier of what the table does not name.
const quick = "quick"

// known are the tiers.
var known = []string{quick, "plain", "host", "host-full", "root", "vm", "vm-full", "clients", "soak"}

func readTable(path string) (table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var t table
	sc := bufio.NewScanner(f)
	for n := 1; sc.Scan(); n++ {
		fields := strings.Fields(sc.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) < 3 {
			return nil, fmt.Errorf("%s:%d: want: tier package tests reason", path, n)
		}
		if !slices.Contains(known, fields[0]) {
			return nil, fmt.Errorf("%s:%d: no tier %q: one of %s", path, n, fields[0], strings.Join(known, ", "))
		}
		t = append(t, rule{fields[0], fields[1], fields[2]})
	}
	return t, sc.Err()
}

// check refuses rules that cover no package.
func (t table) check(packages []string) error {
	var errs []error
	for _, r := range t {
		if !slices.ContainsFunc(packages, r.covers) {
			errs = append(errs, fmt.Errorf("%s has no tests", r.pkg))
		}
	}
	return errors.Join(errs...)
}

// A selection is what runs of one package: the arguments -run and -skip of go test.
type selection struct {
	pkg, run, skip string
}

func (s selection) String() string {
	text := s.pkg
	if s.run != "" {
		text += " -run " + s.run
	}
	if s.skip != "" {
		text += " -skip " + s.skip
	}
	return text
}

// plan selects the tests of some tiers.
func (t table) plan(packages, tiers []string) []selection {
	var plan []selection
	for _, pkg := range packages {
		tier := quick
		var in, out []string // patterns in the tiers, and in others
		for _, r := range t {
			switch {
			case !r.covers(pkg):
			case r.pattern == "*":
				tier = r.tier
			case slices.Contains(tiers, r.tier):
				in = append(in, r.pattern)
			default:
				out = append(out, r.pattern)
			}
		}
		if slices.Contains(tiers, tier) {
			// A pattern of the tiers below one of others can't be said with -skip:
			// it is a selection of its own.
			plan = append(plan, selection{pkg: pkg, skip: strings.Join(anchored(out), "|")})
			in = slices.DeleteFunc(in, func(p string) bool {
				return !slices.ContainsFunc(out, func(o string) bool { return below(p, o) })
			})
		}
		if len(in) > 0 {
			out = slices.DeleteFunc(out, func(o string) bool {
				return !slices.ContainsFunc(in, func(p string) bool { return below(o, p) })
			})
			plan = append(plan, selection{pkg, strings.Join(anchored(in), "|"), strings.Join(anchored(out), "|")})
		}
	}
	return plan
}

// below reports whether a pattern selects some of the tests of another.
func below(pattern, other string) bool { return strings.HasPrefix(pattern, other+"/") }

// anchored makes each element of patterns match whole names.
func anchored(patterns []string) []string {
	var all []string
	for _, p := range patterns {
		parts := strings.Split(p, "/")
		for i, e := range parts {
			parts[i] = "^" + e + "$"
		}
		all = append(all, strings.Join(parts, "/"))
	}
	return all
}

// group joins selections that differ in the package only, in the order of the first.
func group(plan []selection) [][]selection {
	var groups [][]selection
	for _, s := range plan {
		i := slices.IndexFunc(groups, func(g []selection) bool { return g[0].run == s.run && g[0].skip == s.skip })
		if i < 0 {
			groups = append(groups, nil)
			i = len(groups) - 1
		}
		groups[i] = append(groups[i], s)
	}
	return groups
}

// testedPackages lists the packages of the module that have tests, below the module.
func testedPackages(ctx context.Context) ([]string, error) {
	c := exec.CommandContext(ctx, "go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "./...")
	c.Stderr = os.Stderr
	b, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list the packages: %w", err)
	}
	var all []string
	for _, p := range strings.Fields(string(b)) {
		all = append(all, strings.TrimPrefix(p, module))
	}
	return all, nil
}
