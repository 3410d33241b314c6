package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

func decode(out string, v any) error { return json.Unmarshal([]byte(out), v) }

// numbers are those of the lines in a text, each of which must be one more than that before it.
func numbers(text string) (list []int, err error) {
	for _, m := range regexp.MustCompile(`line (\d{6})`).FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[1])
		if len(list) > 0 && n != list[len(list)-1]+1 {
			err = errors.Join(err, fmt.Errorf("after line %d comes line %d", list[len(list)-1], n))
		}
		list = append(list, n)
	}
	return list, err
}

// truth compares the record with what the program itself wrote.
func (x *session) truth() error {
	if x.id == "" {
		return nil // it never began, as was said
	}
	run, err := x.record(x.id)
	if err != nil {
		return err
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if run.Phase != "ended" || run.ExitCode == nil || run.Ended.IsZero() || run.Verdict == "" || run.Receipt == "" || run.Error != nil {
		return fmt.Errorf("its record is not terminal: %+v", run)
	}
	if run.Cause != x.cause || run.Signal != x.sig {
		bad("it ended with cause %q and signal %q; it should be %q and %q", run.Cause, run.Signal, x.cause, x.sig)
	}

	// The log has all that it wrote, once.
	out := x.h.pando("logs", x.id)
	lines, err := numbers(out)
	if err != nil || len(lines) == 0 || lines[0] != 1 {
		bad("its log has %d lines: %v", len(lines), err)
	} else if last := lines[len(lines)-1]; last < x.shown {
		bad("a client saw line %d; its log ends with %d", x.shown, last)
	}
	over := regexp.MustCompile(`over (\d+) with (\d+)`).FindAllStringSubmatch(out, -1)
	said := len(over) == 1
	switch {
	case len(over) > 1:
		bad("it said %d times that it ends", len(over))
	case said && over[0][2] != strconv.Itoa(*run.ExitCode):
		bad("it ended with %s; the record says %d", over[0][2], *run.ExitCode)
	case said && over[0][2] != strconv.Itoa(x.code):
		bad("it ended with %s; it should be %d", over[0][2], x.code)
	case said && over[0][1] != strconv.Itoa(len(lines)) && over[0][1] != strconv.Itoa(len(lines)+1): // asked to end just before it wrote
		bad("it ended after line %s; its log has %d", over[0][1], len(lines))
	case !said && run.Signal == "SIGKILL" && *run.ExitCode != 137, !said && run.Cause == cell.CauseKeeperLost && *run.ExitCode != 255:
		bad("it was ended with cause %q and signal %q; the record says exit code %d", run.Cause, run.Signal, *run.ExitCode)
	case !said && x.sig == "" && x.cause != cell.CauseKeeperLost:
		bad("it ended without saying so")
	}

	// What was typed was heard once.
	heard := 0
	for word := range x.typed {
		n := strings.Count(out, "heard "+word+"\r") + strings.Count(out, "heard "+word+"\n")
		heard += n
		if n != 1 {
			bad("%q was heard %d times", word, n)
		}
	}
	x.done("typed", len(x.typed))
	x.done("heard", heard)

	// The verdict follows from how it ended. Where another daemon than the first saw that, a failure
	// waits; whether there was input is known to the keeper alone.
	verdict := "pending"
	switch {
	case x.name == "removed":
		verdict = "discarded"
	case x.cause == "" && *run.ExitCode != 0 && !run.Interactive && !x.between(run.Started, run.Ended):
		verdict = "restored"
	}
	if run.Verdict != verdict {
		bad("its verdict is %q (%s); it should be %q", run.Verdict, run.Reason, verdict)
	}
	if (heard > 0 && !run.Interactive || len(x.typed) == 0 && run.Interactive) && run.Cause != cell.CauseKeeperLost {
		bad("it heard %d words; the record says interactive %v", heard, run.Interactive)
	}
	return errors.Join(errs...)
}
