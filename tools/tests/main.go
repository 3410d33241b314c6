// Tests runs one or more tiers of the tests and reports what happened.
//
//	go run ./tools/tests -tier quick
//	go run ./tools/tests -tier host,root -skips testdata/skips.txt -flaky testdata/flaky.txt
//	go run ./tools/tests -tier host -user pando-test
//
// testdata/tiers.txt names the tier of each package and test; what it does not
// name is in the tier quick. The output is that of go test without -v, then the
// slowest tests, the totals, and each skipped test with its reason.
//
// With -groups N that many commands of go test run at once: one tests the packages that
// have the same -run and -skip.
//
// A test that fails runs once more, alone, after all others. When it passes then,
// it is flaky: the command succeeds, prints "flaky: NAME", and with -flaky FILE
// appends the test, the commit and the failure to FILE. A test that FILE already
// names gets no second run.
//
// With -skips FILE a skip that FILE does not list is a failure. A line of FILE is
// the package below the module, the test, and the reason; # begins a comment.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const module = "github.com/pando-dev/pando/"

// options are the flags.
type options struct {
	tiers    string // comma-separated names of tiers
	table    string // path of the table of tiers
	skips    string // path of the list of known skips; "" accepts every skip
	flaky    string // path of the list of flaky tests; "" records nothing
	user     string // ordinary user that runs the tests; "" is the caller
	race     bool
	shuffle  bool
	groups   int // groups of selections that run at once
	packages int // packages tested at once; 0 is go test's default
	parallel int // tests of a package that run at once; 0 is go test's default
	list     bool
	timeout  time.Duration
	slowest  int    // how many of the tests that took longest are listed
	marks    string // path of a file that gets a line for each flaky test; "" for none
}

func main() {
	var o options
	flag.StringVar(&o.tiers, "tier", "quick", "the `tiers` to run, separated by commas")
	flag.StringVar(&o.table, "table", "testdata/tiers.txt", "the `file` that names the tier of packages and tests")
	flag.StringVar(&o.skips, "skips", "", "the `file` that lists which tests may be skipped")
	flag.StringVar(&o.flaky, "flaky", "", "the `file` that lists tests which failed once and then passed")
	flag.StringVar(&o.user, "user", "", "the ordinary `user` that runs the tests; needs root")
	flag.BoolVar(&o.race, "race", false, "use the race detector")
	flag.BoolVar(&o.shuffle, "shuffle", false, "run the tests of a package in random order")
	flag.IntVar(&o.groups, "groups", 1, "how many groups of packages, of which the same is run and skipped, are tested at once")
	flag.IntVar(&o.packages, "p", 0, "how many packages of a group are tested at once")
	flag.IntVar(&o.parallel, "parallel", 0, "how many parallel tests of a package run at once")
	flag.BoolVar(&o.list, "list", false, "print what would run, and run nothing")
	flag.IntVar(&o.slowest, "slowest", 20, "how many of the tests that took longest are listed")
	flag.DurationVar(&o.timeout, "timeout", time.Hour, "the time limit of one package")
	flag.StringVar(&o.marks, "marks", "", "a `file` that gets a line for each flaky test of this run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) error {
	start := time.Now()
	table, err := readTable(o.table)
	if err != nil {
		return err
	}
	known, err := readFlaky(o.flaky)
	if err != nil {
		return err
	}
	packages, err := testedPackages(ctx)
	if err != nil {
		return err
	}
	if err := table.check(packages); err != nil {
		return fmt.Errorf("%s: %w", o.table, err)
	}
	plan := table.plan(packages, strings.Split(o.tiers, ","))
	if o.list {
		for _, s := range plan {
			fmt.Fprintln(out, s)
		}
		return nil
	}
	r, err := newRunner(ctx, o, packages)
	if err != nil {
		return err
	}
	defer r.close()
	rep := newReport(out)
	all, gctx := errgroup.WithContext(ctx)
	all.SetLimit(o.groups)
	for _, g := range group(plan) {
		all.Go(func() error { return r.run(gctx, g, rep) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	flaky, failed := retry(ctx, r, plan, rep, known)
	rep.summary(o.slowest, len(failed))
	fmt.Fprintf(out, "tier %s took %.0fs\n", o.tiers, time.Since(start).Seconds())
	if err := recordFlaky(ctx, o.flaky, flaky); err != nil {
		failed = append(failed, err.Error())
	}
	for _, f := range flaky {
		fmt.Fprintf(out, "flaky: %s\n", f.test)
	}
	if err := appendMarks(o.marks, flaky); err != nil {
		failed = append(failed, err.Error())
	}
	switch {
	case len(failed) > 0:
		return fmt.Errorf("failed:\n%s", strings.Join(failed, "\n"))
	case rep.passed == 0:
		return errors.New("no test ran")
	case o.skips != "":
		return rep.compareSkips(o.skips)
	}
	return nil
}
