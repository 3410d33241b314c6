package guest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// lostLimit is how long a guest that stands still waits for somebody to come when
// nobody is there: the socket of a restored copy may not be there at once.
const lostLimit = 10 * time.Second

// hold stands still until it may go on, and reports whether the connection is the
// same.
func (g *inside) hold(m *mux, id uint32, stop bool) (same bool, err error) {
	if err := m.take(); err != nil {
		return false, err
	}
	err = g.holdFiles()
	if err == nil && (stop || g.place.kernel) { // last: until then they run
		err = g.stop(true)
	}
	if err != nil {
		g.freeFiles()
		g.goOn()
		a, _ := json.Marshal(answer{Error: toWire(err)})
		if err := m.writeNow(frameAnswer, id, a); err != nil {
			return false, err
		}
		m.give()
		return true, nil
	}
	if err := m.writeNow(frameAnswer, id, []byte("{}")); err != nil {
		return false, err
	}
	buf := make([]byte, maxPayload)
	var lost time.Time
	for {
		g.door.await()
		t, id, b, err := readFrame(g.door, buf)
		switch {
		case err != nil:
			if lost.IsZero() {
				lost = time.Now()
			}
			if time.Since(lost) > lostLimit {
				return false, err
			}
			time.Sleep(glance)
			continue
		case t == frameAsk:
			var q question
			if err := decode(b, &q); err != nil {
				return false, err
			}
			if q.Op != opGoOn {
				return false, errProtocol("%s of who stands still", q.Op)
			}
			g.goOn()
			g.freeFiles()
			if err := m.writeNow(frameAnswer, id, []byte("{}")); err != nil {
				return false, err
			}
			m.give()
			return true, nil
		}
		theirs, err := asGreeting(t, b)
		if err != nil {
			return false, err
		}
		if err := g.stop(false); err != nil { // none of them may go on before it was adopted
			return false, err
		}
		theirs.Token = nil // who comes must know it
		g.mu.Lock()
		token := g.token
		g.mu.Unlock()
		if _, err := greetKeeper(g.door, theirs, token, nil); err != nil {
			continue
		}
		g.freeFiles()
		return false, nil
	}
}

// filesGrace is how long files that are under way may take to arrive.
const filesGrace = 8 * time.Second

// holdFiles waits until nothing of the cell's files is under way, and lets nothing
// begin.
func (g *inside) holdFiles() error {
	if g.files == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), filesGrace)
	defer cancel()
	if err := g.files.Hold(ctx); err != nil {
		return cell.Errorf(cell.Unavailable, "guest.Hold", "try again", "cannot let the cell stand still: its files are under way: %w", err)
	}
	return nil
}

// freeFiles ends holdFiles.
func (g *inside) freeFiles() {
	if g.files != nil {
		g.files.GoOn()
	}
}

// stop freezes all processes of the cell. No process notices anything of it. held says that
// a capture follows, whose copies begin frozen. In a copy of it gVisor's kernel must be told
// once more: it was started anew, and knows what is frozen by what began so.
func (g *inside) stop(held bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.place.kernel {
		op := freezeTasks
		if held {
			op = freezeHold
		}
		g.still = true // whatever comes of it, goOn ends it
		_, err := freezer(op, 0)
		return err
	}
	if g.still {
		return nil
	}
	g.still = true
	return g.place.all.freeze(true)
}

// admit lets a command begin while the cell's processes stand still. Where the freezer
// holds all commands together, each of those that are there is held by itself from here
// on: a new one has a group of its own. gVisor's holds processes.
func (g *inside) admit() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.still || g.place.kernel || g.parted {
		return nil
	}
	if err := g.apart(true); err != nil {
		return cell.Errorf(cell.Internal, "guest.Start", "", "cannot start a command while the cell stands still: %w", err)
	}
	return g.place.all.freeze(false)
}

// apart freezes or thaws the groups of all commands that there are, each by itself. mu
// is held.
func (g *inside) apart(still bool) (err error) {
	if g.parted == still {
		return nil
	}
	g.place.all.below(func(_ string, sub *group) {
		if ferr := sub.freeze(still); !errors.Is(ferr, os.ErrNotExist) && !errors.Is(ferr, unix.ENODEV) { // it is gone, and was empty
			err = errors.Join(err, ferr)
		}
	})
	g.parted = still
	return err
}

// goOn ends stop.
func (g *inside) goOn() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.still {
		return nil
	}
	g.still = false
	if g.place.kernel {
		_, err := freezer(freezeThaw, 0)
		return err
	}
	return errors.Join(g.place.all.freeze(false), g.apart(false))
}

// adopt gives a restored copy its identity, measures it, and lets it go on.
func (g *inside) adopt(a Adoption) (list []cell.Hazard, err error) {
	if !a.Clock.IsZero() { // first: what is written below has a date
		t := unix.NsecToTimespec(a.Clock.UnixNano())
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &t); err != nil {
			return nil, cell.Errorf(cell.Internal, "guest.Adopt", "", "cannot set the copy's clock: %w", err)
		}
	}
	if len(a.Seed) > 0 {
		if err := reseed(a.Seed); err != nil {
			return nil, err
		}
	}
	if a.Limits != nil {
		if err := g.place.bound(*a.Limits); err != nil {
			return nil, cell.Errorf(cell.Internal, "guest.Adopt", "", "cannot bound the cell's commands: %w", err)
		}
	}
	seen := func(name, value string) { list = append(list, cell.Hazard{Name: name, Seen: "inside", Value: value}) }
	if a.Hostname != "" {
		if err := unix.Sethostname([]byte(a.Hostname)); err != nil {
			return nil, cell.Errorf(cell.Internal, "guest.Adopt", "", "cannot name the copy: %w", err)
		}
		var u unix.Utsname
		if err := unix.Uname(&u); err != nil {
			return nil, err
		}
		seen("hostname", unix.ByteSliceToString(u.Nodename[:]))
	}
	for _, path := range slices.Sorted(maps.Keys(a.Files)) {
		if err := overwrite(path, a.Files[path]); err != nil {
			return nil, cell.Errorf(cell.Internal, "guest.Adopt", "", "cannot give the copy its own %s: %w", path, err)
		}
		if path == "/etc/machine-id" {
			b, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			seen("machine-id", strings.TrimSpace(string(b)))
		}
	}
	fresh := make([]byte, 32)
	if f, err := os.Open("/dev/urandom"); err == nil {
		_, err = f.Read(fresh)
		f.Close()
		if err == nil {
			sum := sha256.Sum256(fresh)
			seen("kernel randomness", "fresh, sha256 "+hex.EncodeToString(sum[:8]))
		}
	} else { // the call that programs use
		rand.Read(fresh)
		sum := sha256.Sum256(fresh)
		seen("kernel randomness", "fresh, sha256 "+hex.EncodeToString(sum[:8]))
	}
	seen("clock", time.Now().UTC().Format(time.RFC3339Nano))
	g.ended = append(g.ended, g.place.disconnect()...)
	ended := g.ended
	seen("descriptors", fmt.Sprintf("%d connections ended", len(ended)))
	for _, to := range ended {
		seen("descriptors", "ended "+to)
	}
	if len(a.Token) > 0 {
		g.mu.Lock()
		g.token = a.Token
		g.mu.Unlock()
	}
	if a.Waits {
		return list, nil
	}
	g.ended = nil
	if a.Still {
		return list, nil
	}
	return list, g.goOn()
}

// overwrite changes a file in place, because something may be mounted there.
func overwrite(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
