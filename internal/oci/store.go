package oci

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/linux"
)

// Store keeps images in a directory:
//
//	ID/image.json   what it is
//	ID/root/        its root file system
//	refs.json       what was last known of each reference
//	X.partial/      a pull under way
//
// It is safe for concurrent use; a directory has one Store.
type Store struct {
	dir   string
	own   bool // files can be given to others
	lim   Limits
	agent string

	mu   sync.Mutex // guards refs.json and busy
	busy map[cell.Digest]*sync.Mutex
}

// Image is one image that is kept.
type Image struct {
	ID      cell.Digest `json:"id"`     // its config's
	Digest  cell.Digest `json:"digest"` // its manifest's
	Refs    []string    `json:"refs"`   // by which it was pulled, and still is what they mean here
	Layers  int         `json:"layers"`
	Created time.Time   `json:"created,omitzero"`
	Pulled  time.Time   `json:"pulled"`
	Env     []string    `json:"env,omitempty"`
	User    string      `json:"user,omitempty"`
	Workdir string      `json:"workdir,omitempty"`
	Shell   []string    `json:"shell,omitempty"`    // what a Dockerfile's RUN gives its text to
	OnBuild []string    `json:"on_build,omitempty"` // instructions of a Dockerfile that is made FROM it
	Service Service     `json:"service,omitzero"`
	Counts  Counts      `json:"counts"`
	Made    *Made       `json:"made,omitempty"` // nil: it was pulled
	// OneID says that the unpacking process could not change the owner of files.
	OneID bool      `json:"one_id,omitempty"`
	Used  time.Time `json:"-"` // when it was last asked for with Use
	Root  string    `json:"-"` // its root file system
}

// Service is what an image says of the program that it is made for (image-spec, config.md).
type Service struct {
	Entrypoint []string `json:"entrypoint,omitempty"`
	Command    []string `json:"command,omitempty"` // its arguments; without an entrypoint: the program and its arguments
	Ports      []int    `json:"ports,omitempty"`   // of TCP, on which it listens; ascending
	Volumes    []string `json:"volumes,omitempty"` // directories with its data; ascending
	StopSignal string   `json:"stop_signal,omitempty"`
	// Ready is a command that succeeds when the program works: the test of HEALTHCHECK, but for its first word.
	// ReadyShell: it is one text, for the image's shell.
	Ready      []string `json:"ready,omitempty"`
	ReadyShell bool     `json:"ready_shell,omitempty"`
}

// SetReady takes a test as Docker has it: CMD or CMD-SHELL, and the command. Others (NONE) are no test.
func (s *Service) SetReady(test []string) {
	s.Ready, s.ReadyShell = nil, false
	if len(test) < 2 || test[0] != "CMD" && test[0] != "CMD-SHELL" {
		return
	}
	s.Ready, s.ReadyShell = test[1:], test[0] == "CMD-SHELL"
}

// AddPort adds a port as an image names it: "5432", "5432/tcp", "8000-8010". Those of other protocols, and what is no
// port, are no ports of a service.
func (s *Service) AddPort(text string) {
	text, protocol, _ := strings.Cut(text, "/")
	if protocol != "" && !strings.EqualFold(protocol, "tcp") {
		return
	}
	from, to, isRange := strings.Cut(text, "-")
	first, err := strconv.ParseUint(from, 10, 16)
	last := first
	if err == nil && isRange {
		last, err = strconv.ParseUint(to, 10, 16)
	}
	if err != nil || first == 0 {
		return
	}
	ports := slices.Clone(s.Ports)
	for p := first; p <= last && len(ports) < maxPorts; p++ {
		ports = append(ports, int(p))
	}
	slices.Sort(ports)
	s.Ports = slices.Compact(ports)
}

// AddVolume adds a directory with data. One that is not absolute is none.
func (s *Service) AddVolume(dir string) {
	if !path.IsAbs(dir) || len(s.Volumes) >= maxPorts {
		return
	}
	volumes := append(slices.Clone(s.Volumes), path.Clean(dir))
	slices.Sort(volumes)
	s.Volumes = slices.Compact(volumes)
}

// maxPorts bounds the ports of a service, and its volumes.
const maxPorts = 256

// service is what a config says of the image's program.
func (c *config) service() Service {
	s := Service{Entrypoint: c.Config.Entrypoint, Command: c.Config.Cmd, StopSignal: c.Config.StopSignal}
	s.SetReady(c.Config.Healthcheck.Test)
	for port := range c.Config.ExposedPorts {
		s.AddPort(port)
	}
	for dir := range c.Config.Volumes {
		s.AddVolume(dir)
	}
	return s
}

// Progress says how far a pull is.
type Progress struct {
	Step   string // "looking", "pulling", "unpacking"
	Layer  int    // from 1
	Layers int
	Digest string // of the layer, shortened
	Done   int64  // bytes of the layer
	Total  int64
}

// PullOptions are how an image is pulled.
type PullOptions struct {
	Login  Login
	Report func(Progress) // may be nil; is called by one goroutine at a time
}

// OpenStore opens the store in a directory, which need not be there, and removes
// what pulls that were killed have left. own says that this process may give
// files away.
func OpenStore(dir string, own bool, version string) (*Store, error) {
	s := &Store{dir: dir, own: own, lim: DefaultLimits, agent: "pando/" + version, busy: map[cell.Digest]*sync.Mutex{}}
	left, err := filepath.Glob(filepath.Join(dir, "*"+partial))
	if err != nil {
		return nil, err
	}
	for _, d := range left {
		if err := linux.RemoveTree(d); err != nil {
			return nil, err
		}
	}
	return s, nil
}

const partial = ".partial"

// refRecord is what is known of a reference.
type refRecord struct {
	ID     cell.Digest `json:"id"`
	Digest cell.Digest `json:"digest"`
	Pulled time.Time   `json:"pulled"`
}

func (s *Store) refs() (map[string]refRecord, error) {
	m := map[string]refRecord{}
	b, err := os.ReadFile(filepath.Join(s.dir, "refs.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	if json.Unmarshal(b, &m) != nil { // images can be pulled again
		return map[string]refRecord{}, nil
	}
	return m, nil
}

// changeRefs writes the references anew.
func (s *Store) changeRefs(change func(map[string]refRecord)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.refs()
	if err != nil {
		return err
	}
	change(m)
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(durable.Disk(s.dir), "refs.json", append(b, '\n'), 0o600)
}

func (s *Store) folder(id cell.Digest) string {
	return filepath.Join(s.dir, strings.TrimPrefix(id.String(), "sha256:"))
}

// Get returns an image that is kept, by its ID.
func (s *Store) Get(id cell.Digest) (Image, error) {
	var img Image
	b, err := os.ReadFile(filepath.Join(s.folder(id), "image.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return img, cell.Errorf(cell.NotFound, "oci.Get", "pull it again: pando image pull", "cannot find image %s", id)
	}
	if err != nil {
		return img, err
	}
	if err := json.Unmarshal(b, &img); err != nil || img.ID != id {
		return img, cell.Errorf(cell.Corrupt, "oci.Get", "remove it (pando image rm) and pull it again", "cannot read what is kept of image %s", id)
	}
	img.Root = filepath.Join(s.folder(id), "root")
	if st, err := os.Stat(filepath.Join(s.folder(id), "image.json")); err == nil {
		img.Used = st.ModTime()
	}
	return img, nil
}

// Confirm is Get for what must not be removed any more: a removal under way is over when it returns, and a later one asks what is needed.
func (s *Store) Confirm(id cell.Digest) (Image, error) {
	unlock := s.lock(id)
	defer unlock()
	return s.Get(id)
}

// Use notes that an image is used now.
func (s *Store) Use(id cell.Digest) {
	now := time.Now()
	os.Chtimes(filepath.Join(s.folder(id), "image.json"), now, now)
}

// Known returns the image that a reference to a registry meant when it was
// pulled last. Kind: NotFound.
func (s *Store) Known(r Reference) (Image, error) {
	s.mu.Lock()
	refs, err := s.refs()
	s.mu.Unlock()
	if err != nil {
		return Image{}, err
	}
	rec, ok := refs[r.String()]
	if !ok {
		return Image{}, cell.Errorf(cell.NotFound, "oci.Known", "pull it: pando image pull "+r.String(), "cannot find image %s here", r)
	}
	img, err := s.Get(rec.ID)
	img.Digest = rec.Digest
	return img, err
}

// List returns all images that are kept, the newest first.
func (s *Store) List() ([]Image, error) {
	names, err := filepath.Glob(filepath.Join(s.dir, "*", "image.json"))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	refs, err := s.refs()
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var out []Image
	for _, n := range names {
		id, err := cell.ParseDigest("sha256:" + filepath.Base(filepath.Dir(n)))
		if err != nil {
			continue
		}
		img, err := s.Get(id)
		if cell.KindOf(err) == cell.NotFound {
			continue
		}
		if err != nil {
			img = Image{ID: id, Root: filepath.Join(s.folder(id), "root")}
		}
		for ref, rec := range refs {
			if rec.ID == id {
				img.Refs = append(img.Refs, ref)
			}
		}
		slices.Sort(img.Refs)
		out = append(out, img)
	}
	slices.SortFunc(out, func(a, b Image) int { return b.Pulled.Compare(a.Pulled) })
	return out, nil
}

// Remove removes an image, and what is known of its references, unless needed
// reports an error. From then on it is not there.
func (s *Store) Remove(id cell.Digest, needed func() error) error {
	unlock := s.lock(id)
	defer unlock()
	if err := needed(); err != nil {
		return err
	}
	gone := filepath.Join(s.dir, random()+partial)
	if err := os.Rename(s.folder(id), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := s.changeRefs(func(m map[string]refRecord) {
		for ref, rec := range m {
			if rec.ID == id {
				delete(m, ref)
			}
		}
	})
	return errors.Join(err, linux.RemoveTree(gone))
}

// Name has a name mean an image that was made here, in place of what it meant before.
func (s *Store) Name(name string, id cell.Digest) error {
	s.mu.Lock()
	refs, err := s.refs()
	s.mu.Unlock()
	if err != nil || refs[name].ID == id {
		return err
	}
	return s.changeRefs(func(m map[string]refRecord) { m[name] = refRecord{ID: id, Pulled: time.Now().UTC()} })
}

// Forget forgets what a reference means. The image stays.
func (s *Store) Forget(ref string) error {
	return s.changeRefs(func(m map[string]refRecord) { delete(m, ref) })
}

// lock lets one at a time work on an image.
func (s *Store) lock(id cell.Digest) (unlock func()) {
	s.mu.Lock()
	m := s.busy[id]
	if m == nil {
		m = &sync.Mutex{}
		s.busy[id] = m
	}
	s.mu.Unlock()
	m.Lock()
	return m.Unlock
}

func random() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// room reports an error when a disk has no room for so many bytes more, with
// some to spare.
func room(dir string, bytes int64) error {
	const spare = 256 << 20
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if free := int64(st.Bavail) * st.Bsize; free-spare < bytes {
		return cell.Errorf(cell.Unavailable, "oci.Pull", "free some space (`pando gc` and `pando image ls` show what pando can free), then try again",
			"cannot unpack: the disk that holds %s has %d MiB left, and %d are needed", dir, free>>20, (bytes+spare)>>20)
	}
	return nil
}
