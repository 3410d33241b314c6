package isolation

import (
	"fmt"
	"os"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// Identity is the file system with a fork's hostname, hosts and machine-id files, writable
// by the keeper. The fork has read-only mounts of each file.
type Identity struct{ mounts *linux.StoredMounts }

// Drop releases the keeper's reference. The fork's mounts stay.
func (i *Identity) Drop() {
	if i != nil {
		i.mounts.Drop()
	}
}

// Write writes the files that a change of the hostname changes.
func (i *Identity) Write(id cell.ID, before, hostname string) error {
	return identify(func(name, text string) error { return i.mounts.Write(0, name, text, 0o444) }, id, before, hostname)
}

// store returns the keeper's mount store, created on first use.
func (d *Driver) store() (*linux.MountStore, error) {
	d.storing.Lock()
	defer d.storing.Unlock()
	var err error
	if d.mounts == nil {
		d.mounts, err = linux.NewMountStore()
	}
	return d.mounts, err
}

// KeepMounts implements server.MountKeeper.
func (d *Driver) KeepMounts(mounts []*os.File) (paths []string, drop func(), err error) {
	s, err := d.store()
	if err != nil {
		return nil, nil, unopened(err)
	}
	kept, err := s.Keep(mounts...)
	if err != nil {
		return nil, nil, unopened(err)
	}
	for i := range mounts {
		paths = append(paths, kept.Path(i))
	}
	return paths, kept.Drop, nil
}

// identityMounts creates a fork's identity and returns the mounts for the fork.
func (c *Cell) identityMounts() (id *Identity, list []*os.File, err error) {
	fs, err := linux.TmpFS([2]string{"size", "64k"}, [2]string{"mode", "0755"})
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make the fork's identity: %w", err)
	}
	defer fs.Close()
	if err := identify(func(name, text string) error { return linux.WriteAt(fs, name, text, 0o444) }, c.w.Spec.ID, "", c.w.Spec.Hostname); err != nil {
		return nil, nil, err
	}
	for _, f := range idFiles(c.w.Spec.ID, "") {
		m, err := linux.DetachIn(fs, f.path[len("/etc/"):])
		if err == nil {
			err = linux.SetMount(m, linux.MountAttr{ReadOnly: true, NoSUID: true, NoDev: true}, false)
		}
		if err == nil {
			m, err = linux.Raise(m)
		}
		if err != nil {
			return nil, list, err
		}
		list = append(list, m)
	}
	s, err := c.d.store()
	if err != nil {
		return nil, list, err
	}
	kept, err := s.Keep(fs)
	if err != nil {
		return nil, list, err
	}
	return &Identity{kept}, list, nil
}

// identify writes the identity files. If before is not "", it writes only those that differ
// from before.
func identify(write func(name, text string) error, id cell.ID, before, hostname string) error {
	old := idFiles(id, before)
	for i, f := range idFiles(id, hostname) {
		if before != "" && f.text == old[i].text {
			continue
		}
		if err := write(f.path[len("/etc/"):], f.text); err != nil {
			return unopened(fmt.Errorf("cannot write the fork's identity: %w", err))
		}
	}
	return nil
}
