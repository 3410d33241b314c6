package linux

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// The filter, from top to bottom:
//
//	foreign architecture → kill
//	number ≥ newest+1    → ENOSYS          (x32 calls have bit 30 set)
//	a binary search over runs of numbers with the same action
//	the argument checks of single calls
//	one return for each action
//
// The search only compares the number with constants, so that the kernel (5.11 and newer)
// finds out once which calls are always allowed and does not run the filter for them.

// Offsets in struct seccomp_data. Both our architectures are little-endian:
// the low half of an argument comes first.
const (
	dataNR   = 0
	dataArch = 4
	dataArgs = 16
)

type seccompAsm struct {
	code   []unix.SockFilter
	jumps  []seccompJump  // to be filled in when labels are known
	labels map[string]int // label to index in code
}

type seccompJump struct {
	at          int
	ifYes, ifNo string // "" falls through
}

func (a *seccompAsm) op(code uint16, k uint32) {
	a.code = append(a.code, unix.SockFilter{Code: code, K: k})
}

// jump tests the accumulator against k and goes to one of two labels.
func (a *seccompAsm) jump(test uint16, k uint32, ifYes, ifNo string) {
	a.jumps = append(a.jumps, seccompJump{len(a.code), ifYes, ifNo})
	a.op(unix.BPF_JMP|test|unix.BPF_K, k)
}

func (a *seccompAsm) label(name string) { a.labels[name] = len(a.code) }

func (a *seccompAsm) load(offset uint32) { a.op(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset) }

func fateLabel(f SeccompFate) string { return "return " + f.String() }

// link fills in the distances of jumps.
func (a *seccompAsm) link() ([]unix.SockFilter, error) {
	for _, j := range a.jumps {
		for _, side := range []struct {
			to   string
			dist *uint8
		}{{j.ifYes, &a.code[j.at].Jt}, {j.ifNo, &a.code[j.at].Jf}} {
			if side.to == "" {
				continue
			}
			target, ok := a.labels[side.to]
			d := target - j.at - 1
			if !ok || d < 0 || d > 255 {
				return nil, fmt.Errorf("cannot make a filter: jump from %d to %q (%d) is out of reach", j.at, side.to, target)
			}
			*side.dist = uint8(d)
		}
	}
	return a.code, nil
}

func compileSeccomp(arch SeccompArch, opts SeccompOptions) ([]unix.SockFilter, error) {
	plan, checked, err := seccompPlan(arch, opts)
	if err != nil {
		return nil, err
	}
	return assembleSeccomp(arch, plan, checked)
}

// assembleSeccomp makes the filter of what is to be done for each number, and of the
// rows with checks by the names of their calls.
func assembleSeccomp(arch SeccompArch, plan []seccompRule, checked map[string]SeccompGroup) ([]unix.SockFilter, error) {
	a := &seccompAsm{labels: map[string]int{}}
	a.load(dataArch)
	a.jump(unix.BPF_JEQ, uint32(arch), "", fateLabel(SeccompKill))
	a.load(dataNR)

	var runs []seccompRun
	for n, r := range plan {
		if n == 0 || r != plan[n-1] {
			runs = append(runs, seccompRun{uint32(n), r})
		}
	}
	runs = append(runs, seccompRun{uint32(len(plan)), seccompRule{fate: failENOSYS}})
	a.search(runs)

	fates := []SeccompFate{SeccompAllow, failEPERM, failENOSYS, SeccompKill}
	for _, r := range runs {
		if r.rule.check == "" {
			continue
		}
		g := checked[r.rule.check]
		a.checks(r.rule.check, g)
		for _, c := range g.Check {
			fates = append(fates, c.Else)
		}
	}
	slices.Sort(fates)
	for _, f := range slices.Compact(fates) {
		a.label(fateLabel(f))
		a.op(unix.BPF_RET|unix.BPF_K, uint32(f))
	}
	return a.link()
}

// A seccompRun is a row of numbers with one rule, up to the next run's first.
type seccompRun struct {
	first uint32
	rule  seccompRule
}

func (r seccompRun) target() string {
	if r.rule.check != "" {
		return "check " + r.rule.check
	}
	return fateLabel(r.rule.fate)
}

// search emits the binary search over runs. A single run needs no code: its
// parent jumps to its target.
func (a *seccompAsm) search(runs []seccompRun) {
	mid := len(runs) / 2
	left, right := runs[:mid], runs[mid:]
	enter := func(part []seccompRun) string {
		if len(part) == 1 {
			return part[0].target()
		}
		return fmt.Sprintf("from %d", part[0].first)
	}
	ifNo := enter(left)
	if len(left) > 1 {
		ifNo = "" // its code follows
	}
	a.jump(unix.BPF_JGE, right[0].first, enter(right), ifNo)
	for _, part := range [][]seccompRun{left, right} {
		if len(part) > 1 {
			if part[0].first == right[0].first {
				a.label(enter(right))
			}
			a.search(part)
		}
	}
}

// checks emits what decides about one call by its arguments. At least one
// check of a call stands whatever the options; link finds out otherwise.
func (a *seccompAsm) checks(call string, g SeccompGroup) {
	a.label("check " + call)
	next := func(i int) string {
		if i == len(g.Check) {
			return fateLabel(g.Fate)
		}
		return fmt.Sprintf("check %s %d", call, i)
	}
	for i, c := range g.Check {
		a.label(next(i))
		if c.If != nil {
			must := fmt.Sprintf("must %s %d", call, i)
			a.match(*c.If, must, next(i+1))
			a.label(must)
		}
		a.match(c.Must, next(i+1), fateLabel(c.Else))
	}
}

// match goes to yes when m holds and to no otherwise.
func (a *seccompAsm) match(m SeccompMatch, yes, no string) {
	if m.Not {
		yes, no = no, yes
	}
	a.load(dataArgs + 8*uint32(m.Arg))
	if m.Mask != 0 && len(m.In) == 1 && m.In[0] == 0 {
		a.jump(unix.BPF_JSET, m.Mask, no, yes)
		return
	}
	if m.Mask != 0 {
		a.op(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, m.Mask)
	}
	for i, v := range m.In {
		otherwise := ""
		if i == len(m.In)-1 {
			otherwise = no
		}
		a.jump(unix.BPF_JEQ, v, yes, otherwise)
	}
}
