package evidence

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/state"
)

// callsFile is the name of a run's record of reported tool calls in its folder.
const callsFile = "calls.jsonl"

// maxCallLine bounds a line of that record, in bytes.
const maxCallLine = 1 << 20

// WriteCalls writes what an agent reports of its tool calls into the folder of a run: a line on what was read, and one for
// each call.
func WriteCalls(folder string, t *state.ToolCalls) (err error) {
	f, err := CreateRecord(folder, callsFile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	e := json.NewEncoder(w)
	t.Count = len(t.Calls)
	if err := e.Encode(t); err != nil {
		return err
	}
	for i := range t.Calls {
		if err := e.Encode(&t.Calls[i]); err != nil {
			return err
		}
	}
	return w.Flush()
}

// ReadCalls reads the first calls of a run, at most so many; the others are counted. A run without a record has nil.
func ReadCalls(folder string, most int) (*state.ToolCalls, error) {
	f, err := OpenRecord(folder, callsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxCallLine)
	var t *state.ToolCalls
	for lines.Scan() {
		if t == nil {
			t = &state.ToolCalls{}
			if err := json.Unmarshal(lines.Bytes(), t); err != nil {
				return nil, cell.Errorf(cell.Corrupt, "evidence.ReadCalls", "", "%s is no record of tool calls: %w", callsFile, err)
			}
			t.More += max(0, t.Count-most)
			continue
		}
		if len(t.Calls) == most {
			break
		}
		var c state.ToolCall
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return nil, cell.Errorf(cell.Corrupt, "evidence.ReadCalls", "", "%s is no record of tool calls: %w", callsFile, err)
		}
		t.Calls = append(t.Calls, c)
	}
	return t, lines.Err()
}
