// Compare measures two builds of pando against each other: it runs `pando bench` of one
// and of the other by turns, appends what they measured to a file, and prints the medians
// of all that is in the file, with their relation. A long comparison can be taken up again
// another day with the same file.
//
//	go run ./tools/compare [-turns N] [-runs N] [-dir DIR] -file FILE OLD NEW [AXIS[,FLAG…]]…
//
// OLD and NEW are programs. "spawn,--n,1,10" passes flags: what follows an axis up to the
// next comma is one argument, so that lists are written with ":" for "," (--n,1:10:100).
// DIR is where cells are made; a tmpfs takes the disk out of the figures. Without an axis
// nothing is measured and the file is printed.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/pando-dev/pando/bench"
)

// sides are what the lines of a file are about.
var sides = [2]string{"old", "new"}

// line is a line of the file: what one side measured in one turn.
type line struct {
	Side   string       `json:"side"`
	Result bench.Result `json:"result"`
}

func main() {
	turns := flag.Int("turns", 4, "how often each is measured")
	runs := flag.Int("runs", 5, "rounds of `pando bench` in each turn")
	dir := flag.String("dir", "", "where cells are made")
	file := flag.String("file", "", "what was measured, a line each turn; is appended to")
	flag.Parse()
	if *file == "" || flag.NArg() != 0 && flag.NArg() < 3 {
		fmt.Fprintln(os.Stderr, "usage: compare [-turns N] [-runs N] [-dir DIR] -file FILE [OLD NEW AXIS[,FLAG…]…]")
		os.Exit(2)
	}
	err := func() error {
		for turn := range *turns {
			for _, axis := range flag.Args()[min(2, flag.NArg()):] {
				for side := range sides {
					side = (side + turn) % len(sides) // neither is always the first
					args := append(arguments(axis), "--runs", strconv.Itoa(*runs), "-q", "--json")
					if *dir != "" {
						args = append(args, "--dir", *dir)
					}
					fmt.Fprintf(os.Stderr, "turn %d of %d: %s %s\n", turn+1, *turns, sides[side], axis)
					if err := measure(*file, sides[side], flag.Arg(side), args); err != nil {
						return err
					}
				}
			}
		}
		f, err := os.Open(*file)
		if err != nil {
			return err
		}
		defer f.Close()
		return table(os.Stdout, f)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot compare:", err)
		os.Exit(1)
	}
}

// arguments are those of `pando` that measure an axis.
func arguments(axis string) []string {
	args := []string{"bench"}
	for _, a := range strings.Split(axis, ",") {
		args = append(args, strings.ReplaceAll(a, ":", ","))
	}
	return args
}

func measure(file, side, program string, args []string) error {
	cmd := exec.Command(program, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	l := line{Side: side}
	if err == nil {
		err = json.Unmarshal(out, &l.Result)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, said.Bytes())
	}
	if why := missing(l.Result); why != "" {
		return fmt.Errorf("%s %s: %s", program, strings.Join(args, " "), why)
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	return errors.Join(err, f.Close())
}

// missing says why an axis has nothing of pando in it; "" if all have.
func missing(r bench.Result) string {
	for _, a := range r.Axes {
		if len(a.Cases) > 0 && a.Error == "" {
			continue
		}
		why := []string{"not all of " + a.Axis + " was measured"}
		for _, x := range a.Absent {
			why = append(why, x.Peer+": "+x.Why)
		}
		if a.Error != "" {
			why = append(why, a.Error)
		}
		return strings.Join(why, "; ")
	}
	return ""
}

// table writes the medians of each series, and of its parts, that both sides measured.
func table(w io.Writer, r io.Reader) error {
	type key struct{ axis, of string }
	samples := map[key]*[len(sides)][]float64{}
	var order []key
	for d := json.NewDecoder(r); ; {
		var l line
		err := d.Decode(&l)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		side := 0
		if l.Side == sides[1] {
			side = 1
		}
		add := func(k key, list []float64) {
			if samples[k] == nil {
				samples[k] = &[len(sides)][]float64{}
				order = append(order, k)
			}
			samples[k][side] = append(samples[k][side], list...)
		}
		for _, a := range l.Result.Axes {
			for _, c := range a.Cases {
				for _, s := range c.Series {
					k := key{a.Axis, c.Name + ": " + s.Name}
					add(k, s.Samples)
					for _, p := range s.Parts {
						add(key{k.axis, k.of + ": " + p.Name}, p.Samples)
					}
				}
			}
		}
	}
	if len(order) == 0 {
		return fs.ErrNotExist
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "old\tnew\tnew/old\tquarter points\tn\t  of")
	for _, k := range order {
		a, b := samples[k][0], samples[k][1]
		if len(a) == 0 || len(b) == 0 {
			continue
		}
		sort.Float64s(a)
		sort.Float64s(b)
		relation := "-"
		if m := at(a, 2); m > 0 {
			relation = fmt.Sprintf("%+.1f %%", 100*(at(b, 2)/m-1))
		}
		fmt.Fprintf(t, "%.3f\t%.3f\t%s\t%.3f, %.3f\t%d, %d\t  %s %s\n", at(a, 2), at(b, 2), relation, at(a, 4), at(b, 4), len(a), len(b), k.axis, k.of)
	}
	return t.Flush()
}

// at is the value of sorted samples below which one of n parts of them is: the median with
// 2, the first quarter point with 4.
func at(sorted []float64, n int) float64 {
	if n == 2 && len(sorted)%2 == 0 {
		return (sorted[len(sorted)/2-1] + sorted[len(sorted)/2]) / 2
	}
	return sorted[len(sorted)/n]
}
