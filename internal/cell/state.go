package cell

import "fmt"

// State is the state of a cell. States are words on disk and on the wire.
type State string

// The states of a cell.
const (
	Creating State = "creating" // being made; not usable yet
	Idle     State = "idle"     // at rest: files, no process
	Running  State = "running"  // has processes
	Paused   State = "paused"   // has processes, all frozen
	Failed   State = "failed"   // broken, with a cause; its checkpoints are intact
	Removed  State = "removed"  // gone; only records remain
)

// moves is the state machine of a cell: the transitions from each state.
var moves = map[State][]State{
	"":       {Creating, Idle, Running}, // a fork is recorded when it is made
	Creating: {Idle, Failed, Removed},
	Idle:     {Running, Failed, Removed},
	Running:  {Idle, Paused, Failed, Removed},
	Paused:   {Running, Idle, Failed, Removed},
	Failed:   {Idle, Removed},
	Removed:  {},
}

// To returns next when the transition from s is allowed, else a Conflict.
func (s State) To(next State) (State, error) {
	for _, m := range moves[s] {
		if m == next {
			return next, nil
		}
	}
	return s, Errorf(Conflict, "cell.To", "", "cell is %s and cannot become %s", s, next)
}

// Verdict is the decision about a run's result.
type Verdict string

// The verdicts.
const (
	Pending   Verdict = "pending"   // waits for a person
	Accepted  Verdict = "accepted"  // taken over
	Restored  Verdict = "restored"  // the cell went back; the result is kept as a checkpoint
	Forked    Verdict = "forked"    // the result lives on in another cell
	Discarded Verdict = "discarded" // thrown away by a person; kept as a checkpoint for a while
)

var verdictMoves = map[Verdict][]Verdict{
	"":        {Pending, Accepted, Restored, Discarded},
	Pending:   {Accepted, Restored, Forked, Discarded},
	Forked:    {Accepted, Restored, Discarded, Forked},
	Accepted:  {Restored, Forked, Accepted, Pending}, // pending: it was taken back from the source
	Restored:  {Pending, Discarded},                  // pending: `restore CELL@N` to the kept result opens the run again; discarded: that is given up
	Discarded: {Pending, Discarded},
}

// To returns next when the transition from v is allowed, else a Conflict.
func (v Verdict) To(next Verdict) (Verdict, error) {
	for _, m := range verdictMoves[v] {
		if m == next {
			return next, nil
		}
	}
	return v, Errorf(Conflict, "cell.To", "", "the run is %s and cannot become %s", word(v), next)
}

func word(v Verdict) string {
	if v == "" {
		return "unfinished"
	}
	return fmt.Sprint(string(v))
}

// Phase is the progress of a run.
type Phase string

// The phases of a run.
const (
	Preparing Phase = "preparing" // import, checkpoint, set-up
	Executing Phase = "executing" // the command runs
	Finishing Phase = "finishing" // freezing, digests, verdict, receipt
	Ended     Phase = "ended"     // has a verdict and a receipt, or failed to start
)

var phaseMoves = map[Phase][]Phase{
	"":        {Preparing},
	Preparing: {Executing, Finishing, Ended},
	Executing: {Finishing, Ended}, // ended: its command never started, or its end could not be recorded
	Finishing: {Ended},
	Ended:     {},
}

// To returns next when the transition from p is allowed, else a Conflict.
func (p Phase) To(next Phase) (Phase, error) {
	for _, m := range phaseMoves[p] {
		if m == next {
			return next, nil
		}
	}
	return p, Errorf(Conflict, "cell.To", "", "a run that is %s cannot become %s", p, next)
}
