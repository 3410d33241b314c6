package engine

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/wire"
)

// wire is what the gateway does with the command's HTTP: it records it, or answers it. The caller closes its file.
func (x *execution) wire() (*cell.Wire, error) {
	switch {
	case x.p.again != nil && x.p.again.answers != nil:
		return &cell.Wire{File: x.p.again.answers}, nil
	case !x.run.In.Record || !x.c.Talks():
		return nil, nil
	}
	to, err := x.e.cfg.Credentials.Recipient()
	if err != nil {
		return nil, err
	}
	f, err := evidence.CreateRecord(x.run.Folder, evidence.RecordingFile)
	return &cell.Wire{File: f, Recipient: to}, err
}

// answers decrypts the recording of the run into a file that has no name. It is nil where there is none that can
// be played; the level says why then.
func (r *replay) answers() (*os.File, error) {
	rec := r.run.Recording
	switch {
	case rec == nil:
		return nil, nil
	case rec.Incomplete != "":
		r.note("its recording is incomplete, and is not played: %s", rec.Incomplete)
		return nil, nil
	}
	from, want, err := r.e.evidence.SealedFile(&r.run, evidence.RecordingFile)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	if d, err := cell.SumReader(from); err != nil || d != want {
		return nil, errors.Join(err, cell.Errorf(cell.Corrupt, "engine.Replay", "", "the recording of run %s is not the one that the receipt names", r.run.ID))
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	clear, err := r.e.cfg.Credentials.Decrypt(from)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("pando recording", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	to := os.NewFile(uintptr(fd), "recording")
	if _, err = io.Copy(to, io.LimitReader(clear, 3*wire.MaxRun)); err == nil {
		_, err = to.Seek(0, io.SeekStart)
	}
	if err != nil {
		to.Close()
		return nil, cell.Errorf(cell.Corrupt, "engine.Replay", "", "cannot decrypt the recording of run %s: %w", r.run.ID, err)
	}
	return to, nil
}

// answered makes of a policy what governs a cell that is answered from a recording: what was asked about is
// allowed, since only what was answered then is answered now.
func (r *replay) answered(p *policy.Result) {
	p.Network.Allow, p.Network.Ask, p.Network.Bounds, p.Credentials = append(slices.Clone(p.Network.Allow), p.Network.Ask...), []policy.Rule{}, nil, []policy.Credential{}
}

// placeholders are the variables by which the cell of the run had its credentials, and those of its agent.
func (r *replay) placeholders(was *policy.Result) []string {
	if s := r.run.In.AgentStart; s != nil {
		return append(slices.Clone(s.Env), r.keys(was, s)...)
	}
	return r.e.govern.Env(&r.src)[len(r.src.Setup.Env):]
}

// wire compares what the command asked for with the recording.
func (r *replay) wire(was, now *state.Run) {
	n, got, rec := was.Network, now.In.Replayed, was.Recording
	if got == nil || rec == nil {
		if n != nil && (n.Requests > 0 || n.Received > 0) {
			text := "not recorded, record it: pando run --record"
			if rec != nil {
				text = "its recording is not played"
			}
			r.level("wire", api.ReplayUnknown, "%s; it had %d bytes of answers of %s, which there are not here", text, n.Received, counted(len(n.Peers), "host"))
		}
		return
	}
	for _, b := range got.Bodies {
		r.note("request differs: %s", b)
	}
	if more := got.Differing - int64(len(got.Bodies)); more > 0 {
		r.note("and %d more requests differ in their bodies", more)
	}
	is, text := api.ReplaySame, counted(int(got.Answered), "request")+" answered from the recording"
	if got.Differing > 0 {
		text += fmt.Sprintf(", %d with another body", got.Differing)
	}
	switch {
	case got.Unanswered > 0:
		is, text = api.ReplayDiffers, "request "+got.First
		if got.Unanswered > 1 {
			text += fmt.Sprintf(" (and %d more)", got.Unanswered-1)
		}
	case got.Unasked > 0:
		is, text = api.ReplayDiffers, fmt.Sprintf("%s not made, the first is %s", counted(int(got.Unasked), "recorded request"), got.FirstUnasked)
	case len(rec.NotRecorded) > 0:
		is, text = api.ReplayUnknown, text+"; not recorded: "+notRecorded(rec.NotRecorded)
	}
	r.level("wire", is, "%s", text)
}

// notRecorded is what cannot be recorded, in words.
func notRecorded(kinds map[string]int64) string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		list = append(list, fmt.Sprintf("%d %s", kinds[k], k))
	}
	return strings.Join(list, ", ")
}
