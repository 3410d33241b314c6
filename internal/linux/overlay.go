package linux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OverlayOptions describes an overlay mount.
type OverlayOptions struct {
	Lower     []string // topmost first
	Top       string   // directory that holds Upper and Work; "" for a read-only overlay
	Upper     string   // names inside Top
	Work      string
	UserXAttr bool // as in a user namespace: user.overlay.* and no redirects
	// Plain says that a layer means the same above any other: no renamed folder of a lower
	// layer is kept as a redirect to where it was.
	Plain bool
	IDMap *os.File // id-map every layer through this user namespace
}

// Overlay makes a detached overlay mount. It is volatile: a layer is written once and never
// mounted writable again; data that must survive is synced when the layer is frozen, not at
// each unmount.
//
// There are three ways, from new kernels to old: nothing attached (6.15), layers attached
// (6.5), everything attached. An attached mount costs milliseconds at mount and at unmount,
// because the kernel waits for all processors; one that is never attached costs nothing.
func (m *MountNS) Overlay(o OverlayOptions) (*os.File, error) {
	var out *os.File
	err := m.Do(func() error {
		var err error
		if !m.attachLayers {
			out, err = m.overlay(o, false)
			if err == nil || o.IDMap == nil || !errors.Is(err, unix.EINVAL) {
				return err
			}
		}
		if out, err = m.overlay(o, true); err == nil {
			m.attachLayers = true
		}
		return err
	})
	return out, err
}

func (m *MountNS) overlay(o OverlayOptions, attach bool) (_ *os.File, err error) {
	l := layers{m: m, ids: o.IDMap, attach: attach}
	defer l.close()
	opts := [][2]string{{"index", "off"}, {"metacopy", "off"}}
	var lower []string
	for _, path := range o.Lower {
		p, err := l.open(path)
		if err != nil {
			return nil, err
		}
		lower = append(lower, p)
	}
	if o.Top != "" {
		p, err := l.open(o.Top)
		if err != nil {
			return nil, err
		}
		opts = append(opts, [2]string{"upperdir", p + "/" + o.Upper}, [2]string{"workdir", p + "/" + o.Work}, [2]string{"volatile"})
	}
	switch {
	case o.UserXAttr:
		opts = append(opts, [2]string{"userxattr"})
	case o.Plain:
		opts = append(opts, [2]string{"redirect_dir", "nofollow"})
	default:
		opts = append(opts, [2]string{"redirect_dir", "on"})
	}
	f, err := overlayFS(lower, opts, o.Top == "")
	if errors.Is(err, errOldKernel) {
		return m.overlayMount(lower, opts, o.Top == "")
	}
	return f, err
}

// errOldKernel says that a kernel doesn't take overlay's layers one by one.
var errOldKernel = errors.New("layers can't be given one by one")

// overlayFS makes the mount with the new mount API.
func overlayFS(lower []string, opts [][2]string, readOnly bool) (*os.File, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen overlay", err)
	}
	defer unix.Close(fs)
	for i, p := range lower {
		if err := unix.FsconfigSetString(fs, "lowerdir+", p); err != nil {
			if i == 0 && err == unix.EINVAL {
				return nil, errOldKernel
			}
			return nil, &os.PathError{Op: "overlay lowerdir", Path: p, Err: err}
		}
	}
	for _, o := range opts {
		if o[1] == "" {
			err = unix.FsconfigSetFlag(fs, o[0])
		} else {
			err = unix.FsconfigSetString(fs, o[0], o[1])
		}
		if err != nil {
			return nil, &os.PathError{Op: "overlay option", Path: o[0], Err: err}
		}
	}
	attr := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	if readOnly {
		attr |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, &os.PathError{Op: "mount overlay", Path: strings.Join(lower, ":"), Err: err}
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return nil, os.NewSyscallError("fsmount overlay", err)
	}
	return os.NewFile(uintptr(fd), "overlay"), nil
}

// overlayMount makes the mount with mount(2), which limits options to one page.
func (m *MountNS) overlayMount(lower []string, opts [][2]string, readOnly bool) (*os.File, error) {
	words := []string{"lowerdir=" + strings.Join(lower, ":")}
	for _, o := range opts {
		if o[1] == "" {
			words = append(words, o[0])
		} else {
			words = append(words, o[0]+"="+o[1])
		}
	}
	data := strings.Join(words, ",")
	if len(data) >= 4096 {
		return nil, fmt.Errorf("cannot stack %d layers in one overlay mount", len(lower))
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	at := filepath.Join(m.scratch, "overlay")
	if err := os.MkdirAll(at, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount("overlay", at, "overlay", flags, data); err != nil {
		return nil, &os.PathError{Op: "mount overlay", Path: data, Err: err}
	}
	defer unix.Unmount(at, unix.MNT_DETACH)
	return Detach(at, false)
}

// layers holds the directories of one overlay while it is mounted. Each is named by a
// descriptor, which is short and excludes that a component of its path is swapped.
type layers struct {
	m        *MountNS
	ids      *os.File
	attach   bool
	files    []*os.File
	attached []string
}

func (l *layers) open(path string) (string, error) {
	f, err := l.view(path)
	if err != nil {
		return "", err
	}
	l.files = append(l.files, f)
	if l.ids != nil && l.attach {
		at := filepath.Join(l.m.scratch, "layer"+strconv.Itoa(len(l.files)))
		if err := os.MkdirAll(at, 0o700); err != nil {
			return "", err
		}
		if err := unix.MoveMount(int(f.Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return "", &os.PathError{Op: "move_mount", Path: path, Err: err}
		}
		l.attached = append(l.attached, at)
	}
	return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())), nil
}

// view opens a directory, with its ids mapped if so wanted.
func (l *layers) view(path string) (*os.File, error) {
	if l.ids == nil {
		return os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	f, err := Detach(path, false)
	if err != nil {
		return nil, err
	}
	if err := SetMount(f, MountAttr{IDMap: l.ids}, false); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// close lets go of the layers, of which the overlay has its own hold.
func (l *layers) close() {
	for _, at := range l.attached {
		unix.Unmount(at, unix.MNT_DETACH)
	}
	// A detached mount goes with its last descriptor, and closing that waits for all
	// processors: a goroutine does it.
	files := l.files
	l.m.behind.Go(func() {
		for _, f := range files {
			f.Close()
		}
	})
}
