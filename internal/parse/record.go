package parse

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// maxRecords are kept at most; the oldest go first.
const maxRecords = 1024

// A record is of one input.
type record struct {
	What  string    `json:"what"`
	Tried int       `json:"tried"` // without an answer
	Last  time.Time `json:"last"`
}

// begin records an attempt, or refuses it.
func (p *Parser) begin(what string, key cell.Digest) error {
	return p.change(func(all map[string]record) error {
		r := all[key.String()]
		if r.Tried >= attempts {
			return cell.Errorf(cell.TooLarge, "parse.Do", "remove "+p.file+" from pando's state to have it tried again",
				"cannot read %s: it ended the process that parses it %d times and is not tried again", what, r.Tried)
		}
		all[key.String()] = record{What: what, Tried: r.Tried + 1, Last: time.Now().UTC()}
		for len(all) > maxRecords {
			delete(all, slices.MinFunc(slices.Collect(maps.Keys(all)), func(a, b string) int { return all[a].Last.Compare(all[b].Last) }))
		}
		return nil
	})
}

// forget takes back n attempts.
func (p *Parser) forget(key cell.Digest, n int) error {
	return p.change(func(all map[string]record) error {
		r := all[key.String()]
		if r.Tried -= n; r.Tried > 0 {
			all[key.String()] = r
		} else {
			delete(all, key.String())
		}
		return nil
	})
}

func (p *Parser) change(do func(map[string]record) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]record{}
	b, err := durable.ReadFile(p.fsys, p.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(b, &all); err != nil {
			return cell.Errorf(cell.Corrupt, "parse", "remove it: inputs that can't be parsed are then tried again", "cannot read %s: %w", p.file, err)
		}
	}
	if err := do(all); err != nil {
		return err
	}
	if b, err = json.Marshal(all); err != nil {
		return fmt.Errorf("cannot write %s: %w", p.file, err)
	}
	return durable.WriteFile(p.fsys, p.file, b, 0o600)
}
