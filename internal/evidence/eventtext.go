package evidence

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
)

// EventKind is a kind of event that a run's stream can have: the reference is
// held equal to this list.
type EventKind struct {
	Kind   string
	Does   string       // what happened, in one sentence
	Fields []EventField // what it carries
}

// EventField is one field of a kind of event.
type EventField struct{ Name, Does string }

// The fields of the events that the keeper writes for a process. Those of the
// gateway are in package cell.
type (
	startFields struct {
		Args int  `json:"args"`
		TTY  bool `json:"tty"`
	}
	runningFields struct {
		PID int `json:"pid"`
	}
	failedFields struct {
		Error string `json:"error"`
	}
	signalFields struct {
		Signal string `json:"signal"`
	}
	timeFields struct {
		TimeoutMS int64 `json:"timeout_ms"`
	}
	diskFields struct {
		Limit int64 `json:"limit"`
		Used  int64 `json:"used"`
	}
	exitFields struct {
		Code     int               `json:"code"`
		Signal   string            `json:"signal"`
		Cause    string            `json:"cause"`
		LeftOver int               `json:"left_over"`
		Stdout   cell.StreamStatus `json:"stdout"`
		Stderr   cell.StreamStatus `json:"stderr"`
		Usage    cell.Usage        `json:"usage"`
		Stats    cell.Stats        `json:"stats"`
	}
	missingFields struct {
		Calls  []string `json:"calls"`
		Others int64    `json:"others"`
	}
	noneFields struct {
		Tries int64 `json:"tries"`
	}
	earlierFields struct {
		Allowed int64          `json:"allowed"`
		Denied  int64          `json:"denied"`
		Asked   int64          `json:"asked"`
		Flows   int64          `json:"flows"`
		Denials []cell.Decided `json:"denials"`
	}
)

// EventKinds lists the kinds of events there are.
func EventKinds() []EventKind {
	return []EventKind{
		{"process.start", "The command is about to start.", []EventField{
			{"args", "how many words it has"}, {"tty", "whether it has a terminal"}}},
		{"process.running", "It runs.", []EventField{
			{"pid", "its number, as the keeper sees it"}}},
		{"process.failed", "It could not be started.", []EventField{
			{"error", "why"}}},
		{"process.signal", "It was sent a signal.", []EventField{
			{"signal", "which: SIGINT"}}},
		{"process.exec", "A process of the command executes a program: the command itself, and whatever it starts. docs/reference/processes.md says where that is observed.", []EventField{
			{"pid", "its number, as the keeper sees it; of a cell with a kernel of its own, in the cell"}, {"parent", "that of its parent, 0 if not known"},
			{"argv", "its words, without credentials; at most 1 KiB of a word, 4 KiB and 256 words of all"}, {"cut", "how many bytes of its words are not here; -1: there are more, and it is not known how many"},
			{"path", "the file"}, {"tried", "files that the same call looked for before, as a search through PATH does"},
			{"as", "observed: the cell's kernel reports what it executed; asked: what the process asked for, which another thread of it could change afterwards, and which may have failed"}}},
		{"process.ended", "A process that executed a program has ended.", []EventField{
			{"pid", "its number"}, {"code", "exit code; 128+n after signal n; null where it was not seen"}, {"signal", "the signal that ended it, empty for none"},
			{"as", "observed; not seen: that it ended is known, and not how"}}},
		{"process.lost", "Processes started or ended and are not in the events.", []EventField{
			{"starts", "how many starts, since the last such event"}, {"ends", "how many ends"}, {"why", "the first reason"}}},
		{"process.unseen", "What can't be observed of the command's processes.", []EventField{
			{"what", "what is not seen"}, {"why", "why not"}}},
		{"process.exit", "It has ended. Always the last event of a command that ran.", []EventField{
			{"code", "exit code; 128+n after signal n"}, {"signal", "the signal that ended it, empty for none"},
			{"cause", "why, when it was not its own doing: timeout, interrupted, memory limit, disk limit, stopped"},
			{"left_over", "how many processes of it were ended with it"}, {"stdout", "what it wrote there: bytes, kept, digest of all"},
			{"stderr", "the same"}, {"usage", "what it and its ended children used: user_ms, system_ms, max_rss"},
			{"stats", "what the cell used: processes, memory, peak_memory, cpu_us, written, oom_kills, peak_pids; measured names those that were counted"}}},
		{"sample", "What the cell uses at that time. There is one a second at first, and fewer of a command that takes long; none while it does hardly anything.", []EventField{
			{"cpu_us", "processor time since the command began, in microseconds"}, {"memory", "bytes now"}, {"written", "bytes to disks since the command began, as the kernel counted"},
			{"processes", "how many there are, where that is counted"}}},
		{"output", "How far its output is at that time, so that what it says can be put between the other events. There is one a second at first while it writes, and fewer of a command that takes long.", []EventField{
			{"stdout", "bytes written there since the command began"}, {"stderr", "the same"}}},
		{"limit.time", "Its time was up.", []EventField{
			{"timeout_ms", "the limit, in milliseconds"}}},
		{"limit.disk", "The cell's disk was over its limit.", []EventField{
			{"limit", "bytes"}, {"used", "bytes"}}},
		{"decision", "The policy, or a person, said whether the cell may do something.", []EventField{
			{"id", "of the request: q-…"}, {"access", "what was asked: act (resolve, connect, request, sign, execute), host, addr, port, transport, scheme, method, path, key, program"},
			{"decision", "what was said: effect (allow, deny, ask), rule, origin, reason, permit, line, narrower, open, credential, by"},
			{"policy", "digest of the policy that was in force"}, {"conn", "the connection it belongs to"},
			{"count", "how many like it came at once and are told by this one event; none for one"}}},
		{"flow", "A connection, or an HTTP request in one, has ended.", []EventField{
			{"conn", "the connection"}, {"id", "of the decision it was allowed by"}, {"host", "the name"}, {"addr", "the address that was dialled"}, {"proxy", "the proxy of the host, HOST:PORT, that it went through"}, {"unchecked", "whether the host itself found no address of the name, so that where the proxy found it was not judged"}, {"port", "of the peer"},
			{"scheme", "https or http; none for what is neither"}, {"opened", "whether the gateway opened TLS"}, {"method", "of the request"}, {"path", "of the request, without its query"},
			{"status", "of the response"}, {"sent", "bytes out of the cell"}, {"received", "bytes into it"}, {"ms", "how long it took"},
			{"error", "why it ended, unless by its two ends"}, {"secret", "handle of the credential that was put in"},
			{"without", "handle of the credential that the host is for, where none was put in"}, {"protocol", "HTTP/1.1, HTTP/2.0, websocket"},
			{"model", "of an answer of a model, what it says of its use: model, requests (1), input, output, cache_read and cache_write (tokens), unseen (1 when it does not say it), calls of tools"}}},
		{"budget", "The budget of the cell and its forks was nearly used up, was reached, was granted again, or was refused.", []EventField{
			{"what", "near, reached, granted, refused"}, {"budget", "time, requests, tokens, usd; price or usage where that is not known"}, {"text", "one sentence"}, {"by", "the person that decided"}}},
		{"network.earlier", "What the cell's processes did on the network while no run was there to record it.", []EventField{
			{"allowed", "how many requests were allowed"}, {"denied", "how many were denied"}, {"asked", "how many waited for a person"},
			{"flows", "how many connections and requests ended"}, {"denials", "the first of those that were denied, as decisions"}}},
		{"kernel.missing", "The command made system calls that the cell's kernel does not have, and got an error for an answer.", []EventField{
			{"calls", "which, by name; what was asked for stands behind the name where the kernel has the call, but not for that"},
			{"others", "how many calls there were besides, when there were too many different ones to tell apart"}}},
		{"network.none", "The command looked for the network of a cell that has none.", []EventField{
			{"tries", "how many packets had nowhere to go, as the kernel counted"}}},
		{"network.unresolved", "A name that is allowed could not be looked up: the host's resolver did not answer, or failed.", []EventField{
			{"host", "the name"}, {"error", "what went wrong"}}},
	}
}

// refused reports whether an event tells of something that the policy denied or
// that met a limit. What can't be read might be one.
func refused(ev receipt.Event) bool {
	switch ev.Kind {
	case "limit.time", "limit.disk", "network.none":
		return true
	case "budget":
		f, ok := fieldsOf[cell.BudgetNote](ev)
		return !ok || f.What == "reached" || f.What == "refused"
	case "decision":
		f, ok := fieldsOf[cell.Decided](ev)
		return !ok || f.Decision.Effect != cell.Allow && f.Decision.Effect != cell.Ask
	case "network.earlier":
		f, ok := fieldsOf[earlierFields](ev)
		return !ok || f.Denied > 0
	}
	return false
}

// eventText says in one line what happened. Fields that can't be read, and
// kinds that a newer keeper may have, are shown as they are.
func eventText(ev receipt.Event) string {
	switch ev.Kind {
	case "process.start":
		return told(ev, func(f startFields) string {
			if f.TTY {
				return fmt.Sprintf("starting, %d words, on a terminal", f.Args)
			}
			return fmt.Sprintf("starting, %d words", f.Args)
		})
	case "process.running":
		return told(ev, func(f runningFields) string { return fmt.Sprintf("runs as process %d", f.PID) })
	case "process.failed":
		return told(ev, func(f failedFields) string { return "failed to start: " + f.Error })
	case "process.signal":
		return told(ev, func(f signalFields) string { return "was sent " + f.Signal })
	case "process.exec":
		return told(ev, func(f server.ExecFields) string {
			return strings.Join(f.Argv, " ") + cutText(f.Cut) + fmt.Sprintf(" (pid %d, %s)", f.PID, f.As)
		})
	case "process.ended":
		return told(ev, endedText)
	case "process.lost":
		return told(ev, func(f server.LostFields) string {
			return fmt.Sprintf("not recorded: %d starts and %d ends of processes: %s", f.Starts, f.Ends, f.Why)
		})
	case "process.unseen":
		return told(ev, func(f server.UnseenFields) string { return "not seen: " + f.What + ": " + f.Why })
	case "sample":
		return told(ev, func(f cell.Sample) string {
			return fmt.Sprintf("uses %s, %.1f s of processors so far", policy.FormatSize(f.Memory), float64(f.CPU)/1e6)
		})
	case "output":
		return told(ev, func(f cell.Written) string {
			return fmt.Sprintf("has written %s to stdout, %s to stderr", policy.FormatSize(f.Stdout), policy.FormatSize(f.Stderr))
		})
	case "process.exit":
		return told(ev, exitText)
	case "limit.time":
		return told(ev, func(f timeFields) string {
			return "its time was up after " + (time.Duration(f.TimeoutMS) * time.Millisecond).String()
		})
	case "limit.disk":
		return told(ev, func(f diskFields) string {
			return fmt.Sprintf("over its disk: %s of %s", policy.FormatSize(f.Used), policy.FormatSize(f.Limit))
		})
	case "decision":
		return told(ev, decidedText)
	case "flow":
		return told(ev, flowText)
	case "budget":
		return told(ev, func(f cell.BudgetNote) string { return f.Text })
	case "kernel.missing":
		return told(ev, func(f missingFields) string {
			return "called what the cell's kernel does not have: " + strings.Join(missingCalls(f), ", ")
		})
	case "network.none":
		return told(ev, func(f noneFields) string {
			return fmt.Sprintf("looked for a network, and the cell has none: %d packets had nowhere to go", f.Tries)
		})
	case "network.unresolved":
		return told(ev, func(f cell.Unresolved) string {
			return fmt.Sprintf("could not look up %s, which is allowed: %s", f.Host, f.Error)
		})
	case "network.earlier":
		return told(ev, func(f earlierFields) string {
			return fmt.Sprintf("while no run was there: %d allowed, %d denied, %d asked, %d ended", f.Allowed, f.Denied, f.Asked, f.Flows)
		})
	}
	return string(ev.Fields)
}

func fieldsOf[T any](ev receipt.Event) (f T, ok bool) {
	return f, json.Unmarshal(ev.Fields, &f) == nil
}

// told is text about an event's fields, or the fields as they are.
func told[T any](ev receipt.Event, text func(T) string) string {
	if f, ok := fieldsOf[T](ev); ok {
		return text(f)
	}
	return string(ev.Fields)
}

func cutText(n int64) string {
	switch {
	case n == 0:
		return ""
	case n < 0:
		return " … (more)"
	}
	return fmt.Sprintf(" … (%s more)", policy.FormatSize(n))
}

func endedText(f server.EndedFields) string {
	switch {
	case f.Code == nil:
		return fmt.Sprintf("pid %d ended, how was %s", f.PID, f.As)
	case f.Signal != "":
		return fmt.Sprintf("pid %d ended by %s", f.PID, f.Signal)
	}
	return fmt.Sprintf("pid %d exit %d", f.PID, *f.Code)
}

func exitText(f exitFields) string {
	var b strings.Builder
	switch {
	case f.Signal != "":
		b.WriteString("ended by " + f.Signal)
	default:
		fmt.Fprintf(&b, "exit %d", f.Code)
	}
	if f.Cause != "" {
		b.WriteString(" (" + f.Cause + ")")
	}
	fmt.Fprintf(&b, ", %s to stdout, %s to stderr", policy.FormatSize(f.Stdout.Bytes), policy.FormatSize(f.Stderr.Bytes))
	fmt.Fprintf(&b, ", CPU %s", (time.Duration(f.Usage.UserMS+f.Usage.SystemMS) * time.Millisecond).String())
	if f.LeftOver > 0 {
		fmt.Fprintf(&b, ", %d left over ended with it", f.LeftOver)
	}
	return b.String()
}

func decidedText(f cell.Decided) string {
	var b strings.Builder
	switch f.Decision.Effect {
	case cell.Allow:
		b.WriteString("allowed ")
	case cell.Ask:
		b.WriteString("asked ")
	default:
		b.WriteString("denied ")
	}
	b.WriteString(f.Access.Want())
	if f.Count > 1 {
		fmt.Fprintf(&b, " (%d times)", f.Count)
	}
	b.WriteString(" by " + f.Decision.Rule)
	if o := f.Decision.Origin; o != "" && o != f.Decision.Rule {
		b.WriteString(" (" + o + ")")
	}
	if f.Decision.Effect == cell.Allow {
		if f.Decision.By == "person" {
			b.WriteString(", as a person said")
		}
		if f.Decision.Credential != "" {
			b.WriteString(", with credential " + f.Decision.Credential)
		}
		return b.String()
	}
	if f.Decision.Reason != "" {
		b.WriteString(": " + f.Decision.Reason)
	}
	if f.Decision.Permit != "" {
		b.WriteString("; " + f.Decision.Permit + " would allow it")
	}
	return b.String()
}

func flowText(f cell.Flow) string {
	act := cell.Connect
	if f.Method != "" {
		act = cell.Request
	}
	var b strings.Builder
	b.WriteString(cell.Access{Act: act, Host: f.Host, Addr: f.Addr, Port: f.Port, Scheme: f.Scheme, Method: f.Method, Path: f.Path}.Want())
	if f.Status != 0 {
		fmt.Fprintf(&b, " %d", f.Status)
	}
	fmt.Fprintf(&b, ", %s out, %s in, %s", policy.FormatSize(f.Sent), policy.FormatSize(f.Received), time.Duration(f.MS*float64(time.Millisecond)).Round(100*time.Microsecond))
	if f.Secret != "" {
		b.WriteString(", credential " + f.Secret + " put in")
	}
	if m := f.Model; m != nil && m.Unseen > 0 {
		b.WriteString(", an answer of a model without its use")
	} else if m != nil {
		fmt.Fprintf(&b, ", %s: %d tokens in, %d out", cmp.Or(m.Model, "a model"), m.Input+m.CacheRead+m.CacheWrite, m.Output)
	}
	if f.Without != "" {
		b.WriteString(", without credential " + f.Without)
	}
	if f.Error != "" {
		b.WriteString(", ended: " + f.Error)
	}
	return b.String()
}
