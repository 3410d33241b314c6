package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/cleanup"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// A family is a cell with all cells forked from it, in one keeper. The keeper's lock and socket
// are named after the first cell, even after that was removed. The cells of a family share one
// client.

// share makes c the shared client of a family.
func (h *Host) share(family cell.ID, c *Client) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shared == nil {
		h.shared = map[cell.ID]*Client{}
	}
	for id, old := range h.shared { // unused clients
		if s := old.Share(); s == nil {
			delete(h.shared, id)
		} else {
			s.Close()
		}
	}
	h.shared[family] = c
}

// client returns a client of a family's keeper. The caller closes it.
func (h *Host) client(ctx context.Context, family cell.ID) (*Client, error) {
	h.mu.Lock()
	c := h.shared[family]
	h.mu.Unlock()
	if c != nil {
		if c = c.Share(); c != nil {
			return c, nil
		}
	}
	c, _, err := Dial(ctx, h.Dir, h.socket(family))
	if err == nil {
		h.share(family, c)
	}
	return c, err
}

// Reach connects to the keeper of a living cell, and fails with NotFound if there is none. A
// keeper without a complete cell has been left behind by a daemon that died. Reach dismisses
// it.
func (h *Host) Reach(ctx context.Context, id, family cell.ID) (*Client, error) {
	if family == "" {
		family = id
	}
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		c, err := h.reach(ctx, id, family)
		if cell.KindOf(err) != cell.Unavailable || ctx.Err() != nil || time.Since(began) > going {
			return c, err
		} // otherwise a broken connection, or a dying keeper that still has its lock
	}
}

func (h *Host) reach(ctx context.Context, id, family cell.ID) (*Client, error) {
	if !h.Alive(family) {
		return nil, cell.Errorf(cell.NotFound, "keeper.Reach", "", "cell %s has no keeper", id)
	}
	c, err := h.client(ctx, family)
	if err != nil {
		return nil, err
	}
	note, err := c.Do(ctx, proto.Request{Op: "note", Cell: id})
	if err == nil && len(note.Note) > 0 {
		return c, nil
	}
	defer c.Close()
	if err != nil && cell.KindOf(err) != cell.NotFound {
		return nil, err
	}
	hello, herr := c.Do(ctx, proto.Request{Op: "hello", Version: proto.Version})
	if herr != nil {
		return nil, herr
	}
	others := slices.DeleteFunc(hello.Cells, func(c cell.ID) bool { return c == id })
	if len(others) > 0 {
		if err == nil { // it exists and is not complete
			if _, err := c.Do(ctx, proto.Request{Op: "remove", Cell: id}); err != nil && cell.KindOf(err) != cell.NotFound {
				return nil, err
			}
		}
		return nil, cell.Errorf(cell.NotFound, "keeper.Reach", "", "cell %s is not in the keeper of its family", id)
	}
	if _, err := c.Do(ctx, proto.Request{Op: "shutdown"}); err != nil {
		return nil, err
	}
	for began := time.Now(); h.Alive(family) && time.Since(began) < cleanup.Grace && ctx.Err() == nil; {
		time.Sleep(5 * time.Millisecond)
	}
	h.Release(family)
	return nil, cell.Errorf(cell.NotFound, "keeper.Reach", "", "cell %s was not complete", id)
}

// Living lists the cells of this backend's keepers. The error names keepers that do not answer.
func (h *Host) Living(ctx context.Context) (list []cell.Held, err error) {
	all, _, err := h.keepers()
	for _, family := range all {
		c, cerr := h.client(ctx, family)
		if cerr != nil {
			if h.Alive(family) {
				err = errors.Join(err, fmt.Errorf("the keeper of %s: %w", family, cerr))
			}
			continue
		}
		hello, herr := c.Do(ctx, proto.Request{Op: "hello", Version: proto.Version})
		c.Close()
		switch {
		case herr != nil && h.Alive(family):
			err = errors.Join(err, fmt.Errorf("the keeper of %s: %w", family, herr))
		case herr != nil, hello.Backend != h.Backend:
		case len(hello.Cells) == 0:
			list = append(list, cell.Held{ID: family})
		default:
			for _, id := range hello.Cells {
				list = append(list, held(id, family))
			}
		}
	}
	return list, err
}

// held returns a cell with its family as in its spec.
func held(id, family cell.ID) cell.Held {
	if id == family {
		family = ""
	}
	return cell.Held{ID: id, Family: family}
}

// Attach returns the instance of a living cell.
func (h *Host) Attach(ctx context.Context, id, family cell.ID) (*Instance, error) {
	client, err := h.Reach(ctx, id, family)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(ctx, proto.Request{Op: "note", Cell: id})
	if err != nil {
		client.Close()
		return nil, err
	}
	i := &Instance{Host: h, Client: client, Cell: id, Family: family}
	if err := json.Unmarshal(resp.Note, &i.Known); err != nil {
		client.Close()
		return nil, err
	}
	return i, nil
}

// Members lists the cells of a family's keeper, or none without a keeper.
func (h *Host) Members(ctx context.Context, family cell.ID) []cell.ID {
	if !h.Alive(family) {
		return nil
	}
	c, err := h.client(ctx, family)
	if err != nil {
		return nil
	}
	defer c.Close()
	hello, err := c.Do(ctx, proto.Request{Op: "hello", Version: proto.Version})
	if err != nil {
		return nil
	}
	return hello.Cells
}

// Deaths implements backend.Warmer.
func (i *Instance) Deaths(ctx context.Context, since int64) ([]cell.Death, int64, error) {
	resp, err := i.do(ctx, proto.Request{Op: "deaths", Since: since})
	if err != nil {
		return nil, since, err
	}
	return resp.Deaths, resp.DeathsAt, nil
}
