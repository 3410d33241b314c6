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

// lostLimit is how long a paused guest waits while its socket has no peer. The socket of a
// restored copy may appear late.
const lostLimit = 10 * time.Second

// hold pauses the guest until it may continue. It reports whether the connection is still the
// same.
func (g *inside) hold(m *mux, id uint32, stop bool) (same bool, err error) {
	if err := m.take(context.Background()); err != nil {
		return false, err
	}
	err = g.holdFiles()
	if err == nil && (stop || g.place.kernel) { // last: the processes run until then
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
				return false, errProtocol("%s of a paused guest", q.Op)
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
		if err := g.stop(false); err != nil { // keep the processes frozen until the adoption
			return false, err
		}
		theirs.Token = nil // the peer must know it
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

// filesGrace is the time limit for pending file requests.
const filesGrace = 8 * time.Second

// holdFiles waits for pending file requests of the cell and blocks new ones.
func (g *inside) holdFiles() error {
	if g.files == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), filesGrace)
	defer cancel()
	if err := g.files.Hold(ctx); err != nil {
		return cell.Errorf(cell.Unavailable, "guest.Hold", "try again", "cannot pause the cell: its file requests did not finish: %w", err)
	}
	return nil
}

// freeFiles ends holdFiles.
func (g *inside) freeFiles() {
	if g.files != nil {
		g.files.GoOn()
	}
}

// stop freezes all processes of the cell; they do not notice. held announces a capture: its
// copies start frozen. gVisor's kernel in a copy must be told again, because it was started
// anew and derives its state from the frozen processes.
func (g *inside) stop(held bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.place.kernel {
		op := freezeTasks
		if held {
			op = freezeHold
		}
		g.still = true // goOn ends it in any case
		_, err := freezer(op, 0)
		return err
	}
	if g.still {
		return nil
	}
	g.still = true
	return g.place.all.freeze(true)
}

// admit lets a command start while the cell's processes are frozen. If the freezer holds all
// commands together, it freezes each existing command by itself from here on; a new one has its
// own group. gVisor freezes processes, so nothing is to do there.
func (g *inside) admit() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.still || g.place.kernel || g.parted {
		return nil
	}
	if err := g.apart(true); err != nil {
		return cell.Errorf(cell.Internal, "guest.Start", "", "cannot start a command while the cell is paused: %w", err)
	}
	return g.place.all.freeze(false)
}

// apart freezes or thaws each command's group by itself. The caller holds mu.
func (g *inside) apart(still bool) (err error) {
	if g.parted == still {
		return nil
	}
	g.place.all.below(func(_ string, sub *group) {
		if ferr := sub.freeze(still); !errors.Is(ferr, os.ErrNotExist) && !errors.Is(ferr, unix.ENODEV) { // it was empty and was removed
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

// adopt sets the identity of a restored copy, audits it, and resumes it.
func (g *inside) adopt(a Adoption) (list []cell.Hazard, err error) {
	if !a.Clock.IsZero() { // first: files written below get this date
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

// overwrite changes a file in place, because it may be a mount point.
func overwrite(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
