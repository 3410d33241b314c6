package namespace

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/linux"
)

// A Stage is a place beside a cell, for what runs the cell's commands instead of
// the host's kernel: a mount namespace of its own, in which the cell's root is
// StageRoot. Who works there is in all other namespaces and in the cgroups of the
// cell, has all capabilities of the family's user namespace, and ends with the
// cell. The cell's commands see nothing of it.
type Stage struct {
	c     *liveCell
	mount *os.File // its mount namespace
}

// StageRoot is where a cell's root lies on its stage; beside it are /proc, /dev,
// an empty /tmp, and what Stage was given.
const StageRoot = "/cell"

// Stage makes a cell's stage, with files in it by their absolute paths. The
// directories on the way are made.
func (d *Driver) Stage(id cell.ID, files map[string][]byte) (*Stage, error) {
	c, err := d.cell(id)
	if err != nil {
		return nil, err
	}
	s := &linux.Script{Gated: true}
	s.Stdio([3]*os.File{}, append([]*os.File{c.init.PIDFD}, c.enter...)...)
	for _, f := range c.enter {
		s.WriteTo("enter cgroup "+f.Name(), int(f.Fd()), "0")
	}
	s.Call("join the cell", unix.SYS_SETNS, int(c.init.PIDFD.Fd()), c.joinFlags())
	s.Call("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWNS)
	tree := s.Call("take the cell's root", unix.SYS_OPEN_TREE, linux.AtCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	s.Mount("tmpfs", stage, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755")
	s.Call("chdir", unix.SYS_CHDIR, stage)
	s.Mkdir("oldroot", 0o700)
	s.Call("pivot_root", unix.SYS_PIVOT_ROOT, ".", "oldroot")
	s.Call("chdir", unix.SYS_CHDIR, "/")
	made := map[string]bool{"/": true}
	mkdir := func(p string) {
		if !made[p] {
			made[p] = true
			s.Mkdir(p, 0o755)
		}
	}
	for _, p := range []string{StageRoot, "/proc", "/dev", "/tmp"} {
		mkdir(p)
	}
	s.Attach(tree, StageRoot)
	s.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	s.Mount(StageRoot+"/dev", "/dev", "", unix.MS_BIND|unix.MS_REC, "")
	for p, b := range files {
		for _, up := range above(p) {
			mkdir(up)
		}
		fd := s.Call("create "+p, unix.SYS_OPENAT, linux.AtCWD, p, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o444)
		s.Call("write "+p, unix.SYS_WRITE, fd, b, len(b))
		s.Call("close", unix.SYS_CLOSE, fd)
	}
	s.Call("umount the old root", unix.SYS_UMOUNT2, "/oldroot", unix.MNT_DETACH)
	s.Gate()
	s.Exit()
	st := &Stage{c: c}
	child, err := linux.Spawn(s, linux.SpawnOptions{PIDNS: int(c.init.PIDFD.Fd()), CgroupFD: c.into, Gate: func(pid int) (err error) {
		st.mount, err = os.Open(procPath(pid, "ns/mnt"))
		return err
	}})
	if err != nil {
		return nil, fmt.Errorf("cannot make the cell's stage: %w", err)
	}
	defer child.PIDFD.Close()
	child.Wait()
	return st, nil
}

// Place is what the battery of a command must know that is started on the stage.
func (st *Stage) Place() confine.Place { return st.c.place(false) }

// A Proof is what the gateway of a talking cell must have seen of a command's
// canaries.
type Proof struct {
	Attempts []confine.Attempt // what is to be tried
	Skipped  []string          // what is not: the policy allows it
	p        *proof
}

// Announce tells the cell's gateway what the canaries of a command will try.
func (st *Stage) Announce() (*Proof, error) {
	list, skipped, p, err := st.c.announce()
	if err != nil {
		return nil, err
	}
	return &Proof{list, skipped, p}, nil
}

// Complete waits until the gateway has seen all that was tried; Denied if it has
// not.
func (p *Proof) Complete() error {
	err := p.p.complete(0)
	if u, ok := errors.AsType[*unseen](err); ok {
		return cell.Errorf(cell.Denied, "namespace.Start", "report this: the cell's isolation does not hold on this host",
			"the canary %q was stopped, but nothing of it came to the gateway", u.name)
	}
	return err
}

// End has the gateway forget them.
func (p *Proof) End() { p.p.end() }

// Gone is closed when the cell's first process has ended, and all with it.
func (st *Stage) Gone() <-chan struct{} { return st.c.gone }

// above are the directories above p, the root left out, topmost first.
func above(p string) (list []string) {
	if p = path.Dir(p); p == "/" {
		return nil
	}
	return append(above(p), p)
}

// Start runs program on the stage.
func (st *Stage) Start(program *os.File, args []string, stdio [3]*os.File) (*linux.Child, error) {
	c := st.c
	var high [4]*os.File
	for i, f := range append(stdio[:], program) {
		g, err := dup(f)
		if err != nil {
			return nil, err
		}
		if high[i], err = linux.Raise(g); err != nil {
			return nil, err
		}
		defer high[i].Close()
	}
	program = high[3]
	s := &linux.Script{}
	s.Stdio([3]*os.File(high[:3]), append([]*os.File{c.init.PIDFD, st.mount, program}, c.enter...)...)
	for _, f := range c.enter {
		s.WriteTo("enter cgroup "+f.Name(), int(f.Fd()), "0")
	}
	s.Call("join the cell", unix.SYS_SETNS, int(c.init.PIDFD.Fd()), c.joinFlags()&^unix.CLONE_NEWNS)
	s.Call("join the stage", unix.SYS_SETNS, int(st.mount.Fd()), unix.CLONE_NEWNS)
	s.Call("setsid", unix.SYS_SETSID)
	s.CloseOthers(3, program)
	s.ExecFD(int(program.Fd()), args, nil)
	return linux.Spawn(s, linux.SpawnOptions{PIDNS: int(c.init.PIDFD.Fd()), CgroupFD: c.into, Share: true})
}

// Close lets go of the stage. What runs there goes on.
func (st *Stage) Close() error { return st.mount.Close() }
