package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/receipt"
)

var ledgerAxis = Axis{
	Name:    "ledger",
	About:   "signing receipts durably, and verifying many",
	measure: measureLedger,
}

// The cases of the axis.
const (
	caseAppend   = "append"
	caseTogether = "append, 16 at once"
	caseVerify   = "verify"
	caseOpen     = "daemon start"
	together     = 16
	perRound     = 50 // appends in each round
)

func measureLedger(ctx context.Context, l *lab, out *AxisResult) error {
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	sample, err := inst.receipt(ctx)
	if err != nil {
		return err
	}
	out.note("each receipt says what that of a real run says: %d bytes of predicate", len(sample))
	if err := l.appending(ctx, out, sample); err != nil {
		return err
	}
	return l.verifying(ctx, out, inst, sample)
}

// receipt makes a run and returns the predicate of its receipt.
func (i *installation) receipt(ctx context.Context) (predicate []byte, err error) {
	dir, err := i.l.tree(runFiles, runAverage)
	if err != nil {
		return nil, err
	}
	if _, err := i.pando(dir, "run", "--", "true").run(ctx); err != nil {
		return nil, err
	}
	run, err := i.latest(ctx, dir)
	if err != nil {
		return nil, err
	}
	r, err := i.client.Receipt(ctx, run.Receipt)
	if err != nil {
		return nil, err
	}
	s, err := decode[struct {
		Predicate map[string]json.RawMessage `json:"predicate"`
	}](r.Statement)
	if err != nil {
		return nil, err
	}
	for _, bound := range []string{"key", "ledger", "incomplete", "completes"} { // the ledger's own
		delete(s.Predicate, bound)
	}
	return json.Marshal(s.Predicate)
}

func decode[T any](b []byte) (v T, err error) { return v, json.Unmarshal(b, &v) }

// forge is the request for a receipt of a run that never was.
func forge(sample []byte, i int) receipt.Request {
	id := fmt.Sprintf("r-%016x", i)
	return receipt.Request{
		Key: id + "/run", Type: receipt.PredicateRun, Predicate: json.RawMessage(sample),
		Subjects: []receipt.Subject{{Name: "policy", Digest: cell.Sum(nil)}, {Name: "workspace before", Digest: cell.Sum([]byte(id))}, {Name: "workspace after", Digest: cell.Sum([]byte(id))}},
	}
}

func (l *lab) appending(ctx context.Context, out *AxisResult, sample []byte) error {
	dir, err := l.fresh("ledger")
	if err != nil {
		return err
	}
	key, err := receipt.OpenKey(durable.Disk(dir))
	if err != nil {
		return err
	}
	ledger, err := receipt.OpenLedger(durable.Disk(dir), key)
	if err != nil {
		return err
	}
	defer ledger.Close()
	n := 0
	add := func(i int) error { _, err := ledger.Append(ctx, forge(sample, i)); return err }
	ours := contestant{name: "receipt.Append", ours: true, command: "receipt.Ledger.Append: encode, sign, append, sync, sign the head, append, sync", round: func(ctx context.Context, r *recorder) error {
		for range perRound {
			n++
			if err := r.time(caseAppend, func() error { return add(n) }); err != nil {
				return err
			}
		}
		t := time.Now()
		var g errgroup.Group
		for k := range together {
			g.Go(func() error {
				for i := range perRound {
					if err := add(1<<32 + r.n<<16 + k<<8 + i); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		r.put(caseTogether, toMS(time.Since(t)/(together*perRound)))
		return nil
	}}
	floor := contestant{name: "write, fdatasync", against: ours.name, command: "append as many bytes to a file, fdatasync, twice", lacks: []string{"a signature, a tree, a head: it is what the disk alone needs"},
		round: func(ctx context.Context, r *recorder) error { return bare(r, dir, sample) }}
	return l.hold(ctx, out, contest{contestants: []contestant{ours, floor}, cases: []Case{
		{Name: caseAppend, What: "one after the other: until it survives power loss and a signed head covers it", Goals: []Goal{{Series: ours.name, AtMost: 0.5}}},
		{Name: caseTogether, What: fmt.Sprintf("the time of all, over their number: %d appenders share syncs", together)},
	}})
}

// bare appends to a file and syncs it, as a ledger does with two files.
func bare(r *recorder, dir string, sample []byte) error {
	f, err := os.OpenFile(filepath.Join(dir, "bare"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, 200)
	for range perRound {
		err := r.time(caseAppend, func() error {
			for _, b := range [][]byte{sample, head} {
				if _, err := f.Write(b); err != nil {
					return err
				}
				if err := datasync(f); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) verifying(ctx context.Context, out *AxisResult, inst *installation, sample []byte) error {
	number := 100_000
	goals := []Goal{{Series: "pando receipt verify", AtMost: 3000}}
	if l.quick {
		number, goals = 5000, nil
	}
	h, err := inst.home()
	if err != nil {
		return err
	}
	if err := inst.stop(ctx); err != nil {
		return err
	}
	l.log("ledger: writing %d receipts", number)
	if err := fill(ctx, h.Keys(), h.Ledger(), sample, number); err != nil {
		return err
	}
	ls := inst.pando(l.dir, "ls")
	c := inst.pando(l.dir, "receipt", "verify", "--all", "--json")
	verify := contestant{name: "pando receipt verify", ours: true, command: "pando receipt verify --all", round: func(ctx context.Context, r *recorder) error {
		if err := r.time(caseOpen, func() error { return all(ctx, ls) }); err != nil {
			return err
		}
		if err := l.rest(ctx); err != nil {
			return err
		}
		err := r.time(caseVerify, func() error {
			b, err := c.run(ctx)
			if err != nil {
				return err
			}
			v, err := decode[api.Verification](b)
			if err == nil && (!v.OK || v.Receipts < int64(number)) {
				err = fmt.Errorf("verified %d of %d receipts, %d problems", v.Receipts, number, len(v.Problems))
			}
			return err
		})
		if err != nil {
			return err
		}
		return inst.stop(ctx)
	}}
	return l.hold(ctx, out, contest{contestants: []contestant{verify}, cases: []Case{
		{Name: caseVerify, What: fmt.Sprintf("%d receipts, every signature, hash and head, from starting the program to its end", number), Goals: goals},
		{Name: caseOpen, What: fmt.Sprintf("pando ls, no daemon, a ledger of %d", number)},
	}})
}

// fill appends receipts to the ledger of an installation without a running daemon.
func fill(ctx context.Context, keys, dir string, sample []byte, number int) error {
	key, err := receipt.OpenKey(durable.Disk(keys))
	if err != nil {
		return err
	}
	ledger, err := receipt.OpenLedger(durable.Disk(dir), key)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(256)
	for i := range number {
		g.Go(func() error { _, err := ledger.Append(ctx, forge(sample, i)); return err })
	}
	if err := g.Wait(); err != nil {
		ledger.Close()
		return err
	}
	return ledger.Close()
}
