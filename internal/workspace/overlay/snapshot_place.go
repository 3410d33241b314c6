package overlay

import (
	"context"
	"os"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/workspace"
	"golang.org/x/sys/unix"
)

// place brings the copy to what was decided.
func (s *snapshot) place(ctx context.Context, m moment) error {
	kept := s.keeps()
	s.torn = true
	for i := len(s.placed) - 1; i >= 0; i-- { // children first
		if t := &s.placed[i]; !kept[t.Path] {
			err := s.to.At(t.Path, func(at string) error {
				if t.Type() == workspace.Folder {
					return unix.Rmdir(at)
				}
				return unix.Unlink(at)
			})
			if err != nil {
				return &os.PathError{Op: "remove", Path: linux.Abridged(t.Path), Err: err}
			}
		}
	}
	s.to.Forget()
	var files, others []*thing
	first := map[string]*thing{}
	missed := map[string]bool{}
	var links [][2]*thing
	for i := range s.items {
		t := &s.items[i]
		if i == 0 || !t.wanted() || kept[t.Path] {
			continue
		}
		switch {
		case t.Type() == workspace.Folder:
			if err := s.to.At(t.Path, func(at string) error { return os.Mkdir(at, 0o700) }); err != nil {
				return err
			}
		case t.Type() != workspace.File:
			others = append(others, t)
		case t.Stat.Nlink > 1 && first[workspace.LinkKey(&t.Stat)] != nil:
			links = append(links, [2]*thing{first[workspace.LinkKey(&t.Stat)], t})
		default:
			if t.Stat.Nlink > 1 {
				first[workspace.LinkKey(&t.Stat)] = t
			}
			files = append(files, t)
		}
	}
	size := int64(0)
	for _, t := range files {
		if size += t.Blocks * 512; s.opt.Most > 0 && size > s.opt.Most {
			return tooLarge(s.opt.Most)
		}
	}
	for _, t := range others {
		err := s.copySpecial(t, m)
		if err != nil && (m != ahead || !workspace.Fleeting(err)) {
			return m.moved(err)
		}
		if err != nil {
			missed[t.Path] = true
		}
	}
	absent := make([]bool, len(files))
	err := workspace.Parallel(ctx, len(files), func(i int) error {
		err := s.copyFile(files[i], m)
		if absent[i] = err != nil && m == ahead && workspace.Fleeting(err); absent[i] {
			return nil
		}
		return m.moved(err)
	})
	if err != nil {
		return err
	}
	for i, t := range files {
		if absent[i] {
			missed[t.Path] = true
		}
	}
	for _, l := range links {
		if missed[l[0].Path] {
			missed[l[1].Path] = true
			continue
		}
		if err := workspace.LinkInto(s.to, l[0].Path, s.to, l[1].Path); err != nil {
			return err
		}
	}
	s.placed = s.placed[:0]
	for i := range s.items {
		t := &s.items[i]
		if t.missed = missed[t.Path]; i > 0 && t.wanted() && !t.missed {
			s.placed = append(s.placed, *t)
		}
	}
	s.torn = false
	return nil
}

func tooLarge(most int64) error {
	return cell.Errorf(cell.TooLarge, "overlay.Snapshot", "", "more than %d MiB would be copied", most>>20)
}

// keeps are the paths that the copy has as they are wanted.
func (s *snapshot) keeps() map[string]bool {
	if len(s.placed) == 0 {
		return nil
	}
	kept := make(map[string]bool, len(s.placed))
	links := map[string]bool{} // whether all names of a file are kept
	i := 0
	for j := range s.items {
		t := &s.items[j]
		if j == 0 || !t.wanted() {
			continue
		}
		for i < len(s.placed) && s.placed[i].Path < t.Path {
			i++
		}
		keep := false
		if i < len(s.placed) && s.placed[i].Path == t.Path {
			was := &s.placed[i]
			if t.Type() == workspace.Folder {
				keep = was.Type() == workspace.Folder
			} else {
				keep = was.Stat == t.Stat && !was.doubtful && !t.doubtful
			}
		}
		if t.Type() == workspace.File && t.Stat.Nlink > 1 {
			key := workspace.LinkKey(&t.Stat)
			all, seen := links[key]
			links[key] = keep && (all || !seen)
		}
		if keep {
			kept[t.Path] = true
		}
	}
	for j := range s.items {
		if t := &s.items[j]; t.Type() == workspace.File && t.Stat.Nlink > 1 && kept[t.Path] && !links[workspace.LinkKey(&t.Stat)] {
			delete(kept, t.Path)
		}
	}
	return kept
}

// copySpecial copies what is neither a file nor a folder.
func (s *snapshot) copySpecial(t *thing, m moment) error {
	switch h := s.glance.heldOf(t); {
	case h == nil:
	case h.path != "":
		return s.to.At(t.Path, func(at string) error { return os.Rename(h.path, at) })
	default:
		return s.to.At(t.Path, func(at string) error { return workspace.CopyLink(h.target, &t.Found, at) })
	}
	if t.Type() == workspace.Symlink && m != still { // the others have nothing that is not in a Stat
		fd, err := workspace.OpenBeneath(s.from, t.Path, unix.O_PATH|unix.O_NOFOLLOW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := m.unmoved(fd, t); err != nil {
			return err
		}
		target, err := workspace.ReadLinkOf(fd, t.Path)
		if err != nil {
			return err
		}
		return s.to.At(t.Path, func(at string) error { return workspace.CopyLink(target, &t.Found, at) })
	}
	return s.to.At(t.Path, func(at string) error { return workspace.CopySpecial(s.from, &t.Found, at, m.with) })
}

// copyFile copies a regular file.
func (s *snapshot) copyFile(t *thing, m moment) error {
	switch h := s.glance.heldOf(t); {
	case h == nil:
		return s.to.At(t.Path, func(at string) error { return s.copyTo(t, at, m) })
	case h.path != "":
		return s.to.At(t.Path, func(at string) error { return os.Rename(h.path, at) })
	default:
		return s.to.At(t.Path, func(at string) error { return workspace.WriteFound(h.data, h.xattrs, at, &t.Found) })
	}
}

// openFile opens a regular file.
func (s *snapshot) openFile(t *thing) (*os.File, error) {
	fd, err := workspace.OpenBeneath(s.from, t.Path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	in := os.NewFile(uintptr(fd), t.Path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		in.Close()
		return nil, os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		in.Close()
		return nil, &os.PathError{Op: "copy", Path: linux.Abridged(t.Path), Err: unix.EINVAL} // it was one when it was looked at
	}
	return in, nil
}

// settle waits for a change of an open file that is under way. A file that is cut has its new size before its new times
// (ext4_setattr, xfs_setattr_size and shmem_setattr in the kernel), so that a Stat can show the one with the others of before; both
// are set under a lock that these calls take, too: the first on ext4, Btrfs and tmpfs, the second on XFS.
func settle(fd int) {
	unix.Seek(fd, 0, unix.SEEK_DATA)
	unix.Pread(fd, make([]byte, 1), 0)
}

// copyTo copies a regular file to a path on the host.
func (s *snapshot) copyTo(t *thing, at string, m moment) error {
	return s.within(t.Path, m, func() error {
		in, err := s.openFile(t)
		if err != nil {
			return err
		}
		defer in.Close()
		fd := int(in.Fd())
		if err := m.unmoved(fd, t); err != nil && m == ahead {
			return err
		}
		if err := workspace.CopyFound(in, at, &t.Found, s.p.mark); err != nil {
			os.Remove(at)
			return err
		}
		if m != after {
			return nil
		}
		return m.unmoved(fd, t)
	})
}
