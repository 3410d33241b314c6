package e2b

import (
	"context"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// entry is a file of a sandbox.
type entry struct {
	Name          string    `json:"name" pb:"1"`
	Type          string    `json:"type" pb:"2,FileType"`
	Path          string    `json:"path" pb:"3"`
	Size          int64     `json:"size,string" pb:"4"` // bytes
	Mode          uint32    `json:"mode" pb:"5"`
	Permissions   string    `json:"permissions" pb:"6"`
	Owner         string    `json:"owner" pb:"7"`
	Group         string    `json:"group" pb:"8"`
	ModifiedTime  time.Time `json:"modifiedTime" pb:"9"`
	SymlinkTarget string    `json:"symlinkTarget,omitempty" pb:"10"`
}

var entryTypes = map[string]string{
	cell.TypeFile: "FILE_TYPE_FILE", cell.TypeDirectory: "FILE_TYPE_DIRECTORY", cell.TypeSymlink: "FILE_TYPE_SYMLINK",
}

func (f *Front) entry(i cell.FileInfo) entry {
	e := entry{Name: path.Base(i.Path), Path: i.Path, Type: entryTypes[i.Type], Size: i.Size, Mode: i.Mode,
		Permissions: permissions(i), Owner: f.userName(i.UID), Group: f.userName(i.GID), ModifiedTime: i.MTime, SymlinkTarget: i.Target}
	if t := entryTypes[i.Leads]; t != "" { // clients expect the type of the target
		e.Type = t
	}
	if e.Type == "" {
		e.Type = "FILE_TYPE_UNSPECIFIED"
	}
	return e
}

// permissions formats a mode as ls does.
func permissions(i cell.FileInfo) string {
	m := fs.FileMode(i.Mode & 0o777)
	switch i.Type {
	case cell.TypeDirectory:
		m |= fs.ModeDir
	case cell.TypeSymlink:
		m |= fs.ModeSymlink
	}
	for bit, is := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if i.Mode&bit != 0 {
			m |= is
		}
	}
	return m.String()
}

// userName is the user name of a uid in the cell.
func (f *Front) userName(id int) string {
	switch own := f.cfg.Engine.User(); {
	case id == own.UID:
		return own.Name
	case id == 0:
		return "root"
	}
	return strconv.Itoa(id)
}

type pathRequest struct {
	Path string `json:"path" pb:"1"`
}

// maxDepth bounds the levels of a list.
const maxDepth = 1 << 10

type moveRequest struct {
	Source      string `json:"source" pb:"1"`
	Destination string `json:"destination" pb:"2"`
}

type listRequest struct {
	Path  string `json:"path" pb:"1"`
	Depth uint32 `json:"depth" pb:"2"`
}

type watchRequest struct {
	Path          string `json:"path" pb:"1"`
	Recursive     bool   `json:"recursive" pb:"2"`
	IncludeEntry  bool   `json:"includeEntry" pb:"3"`
	NetworkMounts bool   `json:"allowNetworkMounts" pb:"4"` // a cell has none
}

// watcherID names a polled watcher.
type watcherID struct {
	ID string `json:"watcherId" pb:"1"`
}

type entryAnswer struct {
	Entry entry `json:"entry" pb:"1"`
}

type entriesAnswer struct {
	Entries []entry `json:"entries" pb:"1"`
}

// watchMessage is a message of a stream about a directory; one field is set.
type watchMessage struct {
	Start      *struct{}  `json:"start,omitempty" pb:"1"`
	Filesystem *fileEvent `json:"filesystem,omitempty" pb:"2"`
	Keepalive  *struct{}  `json:"keepalive,omitempty" pb:"3"`
}

type eventsAnswer struct {
	Events []fileEvent `json:"events" pb:"1"`
}

func (f *Front) filesystemRoutes(m *http.ServeMux) {
	const p = "POST /filesystem.Filesystem/"
	path := func(act string) http.HandlerFunc {
		return unary(func(r *http.Request, in *pathRequest) (any, error) {
			return f.one(r, cell.FileAct{Act: act, Path: inHome(in.Path)})
		})
	}
	m.HandleFunc(p+"Stat", path(cell.FileStat))
	m.HandleFunc(p+"MakeDir", path(cell.FileMkdir))
	m.HandleFunc(p+"Move", unary(func(r *http.Request, in *moveRequest) (any, error) {
		return f.one(r, cell.FileAct{Act: cell.FileMove, Path: inHome(in.Source), To: inHome(in.Destination)})
	}))
	m.HandleFunc(p+"ListDir", unary(f.listDir))
	m.HandleFunc(p+"Remove", unary(f.removeFile))
	m.HandleFunc(p+"WatchDir", stream(f.watchDir))
	m.HandleFunc(p+"CreateWatcher", unary(f.createWatcher))
	m.HandleFunc(p+"GetWatcherEvents", unary(f.watcherEvents))
	m.HandleFunc(p+"RemoveWatcher", unary(f.removeWatcher))
}

// one runs an action that answers with one file.
func (f *Front) one(r *http.Request, act cell.FileAct) (any, error) {
	if err := f.user(r); err != nil {
		return nil, err
	}
	list, err := f.cfg.Engine.Files(r.Context(), idIn(r.Context()), act, nil)
	if err != nil {
		return nil, err
	}
	return entryAnswer{f.entry(list[0])}, nil
}

func (f *Front) listDir(r *http.Request, in *listRequest) (any, error) {
	if err := f.user(r); err != nil {
		return nil, err
	}
	list, err := f.cfg.Engine.Files(r.Context(), idIn(r.Context()), cell.FileAct{Act: cell.FileList, Path: inHome(in.Path), Depth: max(int(min(in.Depth, maxDepth)), 1)}, nil)
	if err != nil {
		return nil, err
	}
	out := make([]entry, 0, len(list))
	for _, i := range list {
		out = append(out, f.entry(i))
	}
	return entriesAnswer{out}, nil
}

// removeFile removes a file; a missing one is no error, as in envd.
func (f *Front) removeFile(r *http.Request, in *pathRequest) (any, error) {
	if err := f.user(r); err != nil {
		return nil, err
	}
	_, err := f.cfg.Engine.Files(r.Context(), idIn(r.Context()), cell.FileAct{Act: cell.FileRemove, Path: inHome(in.Path)}, nil)
	if cell.KindOf(err) == cell.NotFound {
		err = nil
	}
	return struct{}{}, err
}

var eventTypes = map[string]string{
	"create": "EVENT_TYPE_CREATE", "write": "EVENT_TYPE_WRITE", "remove": "EVENT_TYPE_REMOVE", "rename": "EVENT_TYPE_RENAME", "chmod": "EVENT_TYPE_CHMOD",
}

// fileEvent is a change in a directory.
type fileEvent struct {
	Name  string `json:"name" pb:"1"` // relative to the directory
	Type  string `json:"type" pb:"2,EventType"`
	Entry *entry `json:"entry,omitempty" pb:"3"`
}

// fileEvents sends changes in a directory, as E2B events.
func (f *Front) fileEvents(ctx context.Context, id cell.ID, in *watchRequest, began func(), tell func(fileEvent) error) error {
	root := ""
	return f.cfg.Engine.Watch(ctx, id, inHome(in.Path), in.Recursive, func(ev cell.FileEvent) error {
		if root == "" {
			root = ev.Path
			began()
			return nil
		}
		t := eventTypes[ev.What]
		if t == "" {
			return cell.Errorf(cell.Unavailable, "e2b.watch", "watch the directory again, and list it", "cannot follow %s: it changes faster than the client reads", root)
		}
		out := fileEvent{Name: relative(root, ev.Path), Type: t}
		if in.IncludeEntry {
			if list, err := f.cfg.Engine.Files(ctx, id, cell.FileAct{Act: cell.FileStat, Path: ev.Path}, nil); err == nil {
				e := f.entry(list[0])
				out.Entry = &e
			}
		}
		return tell(out)
	})
}

func relative(root, p string) string {
	if root == "/" {
		return p[1:]
	}
	return p[len(root)+1:]
}

func (f *Front) watchDir(r *http.Request, in *watchRequest, s *sender) error {
	if err := f.user(r); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		tick := time.NewTicker(pings(r))
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if s.send(watchMessage{Keepalive: &struct{}{}}) != nil {
					cancel()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return f.fileEvents(ctx, idIn(ctx), in, func() { s.send(watchMessage{Start: &struct{}{}}) }, func(ev fileEvent) error {
		return s.send(watchMessage{Filesystem: &ev})
	})
}

// watcher is a directory that a client polls.
type watcher struct {
	stop context.CancelFunc

	mu     sync.Mutex // guards the fields below
	events []fileEvent
	err    error
}

// maxEvents bounds the events kept for a client that does not poll.
const maxEvents = 100_000

func (f *Front) createWatcher(r *http.Request, in *watchRequest) (any, error) {
	if err := f.user(r); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	w := &watcher{stop: cancel}
	id := idIn(ctx)
	began, over := make(chan struct{}), make(chan error, 1)
	go func() {
		err := f.fileEvents(ctx, id, in, sync.OnceFunc(func() { close(began) }), func(ev fileEvent) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.events) >= maxEvents {
				return cell.Errorf(cell.Unavailable, "e2b.watch", "poll the watcher more often", "cannot follow %s: %d changes were not polled", in.Path, maxEvents)
			}
			w.events = append(w.events, ev)
			return nil
		})
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
		over <- err
	}()
	select {
	case <-began:
	case err := <-over:
		cancel()
		return nil, err
	case <-r.Context().Done():
		cancel()
		return nil, context.Cause(r.Context())
	}
	b := f.box(id)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	name := "w" + strconv.Itoa(b.next)
	b.watchers[name] = w
	return watcherID{name}, nil
}

func (f *Front) watcher(r *http.Request, name string) (*box, *watcher, error) {
	b := f.box(idIn(r.Context()))
	b.mu.Lock()
	defer b.mu.Unlock()
	if w := b.watchers[name]; w != nil {
		return b, w, nil
	}
	return nil, nil, cell.Errorf(cell.NotFound, "e2b.watcher", "", "watcher with id %s not found", cell.Clip(name))
}

func (f *Front) watcherEvents(r *http.Request, in *watcherID) (any, error) {
	_, w, err := f.watcher(r, in.ID)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) == 0 && w.err != nil {
		return nil, w.err
	}
	events := append([]fileEvent{}, w.events...)
	w.events = nil
	return eventsAnswer{events}, nil
}

func (f *Front) removeWatcher(r *http.Request, in *watcherID) (any, error) {
	b, w, err := f.watcher(r, in.ID)
	if err != nil {
		return nil, err
	}
	w.stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.watchers, in.ID)
	return struct{}{}, nil
}
