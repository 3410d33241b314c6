package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	c, err := Dial(ctx, h.Dir, h.socket(family))
	if err == nil {
		h.share(family, c)
	}
	return c, err
}

// find connects to the keeper of a living cell and returns the cell's note, or fails with
// NotFound if there is none. A keeper without cells has been left behind by a daemon that died.
// find ends it.
func (h *Host) find(ctx context.Context, id, family cell.ID) (*Client, proto.Noted, error) {
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		c, n, err := h.look(ctx, id, family)
		if cell.KindOf(err) != cell.Unavailable || ctx.Err() != nil || time.Since(began) > going {
			return c, n, err
		} // otherwise a broken connection, or a dying keeper that still has its lock
	}
}

func (h *Host) look(ctx context.Context, id, family cell.ID) (*Client, proto.Noted, error) {
	if !h.Alive(family) {
		return nil, proto.Noted{}, cell.Errorf(cell.NotFound, "keeper.Attach", "", "cell %s has no keeper", id)
	}
	c, err := h.client(ctx, family)
	if err != nil {
		return nil, proto.Noted{}, err
	}
	note, err := Ask(ctx, c, proto.Note, proto.OfCell{Cell: id})
	if err == nil {
		return c, note, nil
	}
	defer c.Close()
	if cell.KindOf(err) != cell.NotFound {
		return nil, note, err
	}
	hello, err := c.hello(ctx)
	if err != nil {
		return nil, note, err
	}
	if len(hello.Cells) > 0 {
		return nil, note, cell.Errorf(cell.NotFound, "keeper.Attach", "", "cell %s is not in the keeper of its family", id)
	}
	if _, err := Ask(ctx, c, proto.Shutdown, proto.None{}); err != nil {
		return nil, note, err
	}
	for began := time.Now(); h.Alive(family) && time.Since(began) < cleanup.Grace && ctx.Err() == nil; {
		time.Sleep(5 * time.Millisecond)
	}
	h.Release(family)
	return nil, note, cell.Errorf(cell.NotFound, "keeper.Attach", "", "cell %s was not complete", id)
}

// hello greets the keeper once more.
func (c *Client) hello(ctx context.Context) (proto.Welcome, error) {
	return Ask(ctx, c, proto.Hello, proto.Greeting{Version: proto.Version})
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
		hello, herr := c.hello(ctx)
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
	if family == "" {
		family = id
	}
	c, note, err := h.find(ctx, id, family)
	if err != nil {
		return nil, err
	}
	i := &Instance{Host: h, Client: c, Cell: id, Family: family}
	if err = json.Unmarshal(note.Note, &i.Known); err == nil {
		err = h.measure(&i.Known, note.Measured)
	}
	if err != nil {
		c.Close()
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
	hello, err := c.hello(ctx)
	if err != nil {
		return nil
	}
	return hello.Cells
}

// Deaths implements backend.Warmer.
func (i *Instance) Deaths(ctx context.Context, since int64) ([]cell.Death, int64, error) {
	news, err := Ask(ctx, i.Client, proto.Deaths, proto.Since{Since: since})
	if err != nil {
		return nil, since, err
	}
	return news.Deaths, news.At, nil
}
