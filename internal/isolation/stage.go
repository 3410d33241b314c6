package isolation

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/confine"
	"github.com/pando-dev/pando/internal/linux"
)

// A Stage is a mount namespace beside a cell, for the programs that run the cell's commands on
// another kernel than the host's. It has the cell's root at StageRoot. Its processes are in the
// cell's other namespaces and cgroups, have all capabilities of the family's user namespace
// unless they are in a Jail, and end with the cell. The cell's commands do not see it.
type Stage struct {
	c     *Cell
	mount *os.File // mount namespace
	root  *os.File // root directory (O_PATH)
}

// StageRoot is the path of a cell's root on its stage. Beside it are /proc, /dev, an empty
// /tmp, and the Scene.
const StageRoot = "/cell"

// inEveryCell is a directory that every cell's root has. The stage covers it while it is built.
const inEveryCell = runDir

// A Scene is the content of a stage, by absolute paths. Parent directories are created.
type Scene struct {
	Files map[string][]byte
	// Moved maps paths on the stage to directories below the cell's root that move there. An
	// empty directory remains in the cell.
	Moved map[string]string
}

// Stage makes a cell's stage.
func (d *Driver) Stage(id cell.ID, scene Scene) (*Stage, error) {
	c, err := d.Cell(id)
	if err != nil {
		return nil, err
	}
	entry, err := c.entry()
	defer entry.close()
	if err != nil {
		return nil, err
	}
	s := &linux.Script{Gated: true}
	s.Stdio([3]*os.File{}, append([]*os.File{c.Init.PIDFD}, entry.tasks...)...)
	for _, f := range entry.tasks {
		s.WriteTo("enter cgroup "+f.Name(), int(f.Fd()), "0")
	}
	s.Call("join the cell", unix.SYS_SETNS, int(c.Init.PIDFD.Fd()), c.joinFlags())
	if slices.ContainsFunc(c.w.Spec.Mounts, func(m cell.Mount) bool { return m.Kind == cell.Tmpfs && m.Target == runDir }) {
		handOver(s)
	}
	s.Call("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWNS)
	tree := s.Call("take the cell's root", unix.SYS_OPEN_TREE, linux.AtCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	s.Mount("tmpfs", inEveryCell, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755")
	s.Call("chdir", unix.SYS_CHDIR, inEveryCell)
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
	for to, from := range scene.Moved {
		for _, up := range append(above(to), to) {
			mkdir(up)
		}
		s.Mount(StageRoot+from, to, "", unix.MS_BIND|unix.MS_REC, "")
	}
	for _, from := range scene.Moved {
		s.Mount("tmpfs", StageRoot+from, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RDONLY, "mode=0555")
	}
	for p, b := range scene.Files {
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
	child, err := linux.Spawn(s, linux.SpawnOptions{PIDNS: int(c.Init.PIDFD.Fd()), CgroupFD: entry.into, Gate: func(pid int) (err error) {
		if st.mount, err = os.Open(procPath(pid, "ns/mnt")); err == nil {
			st.root, err = os.OpenFile(procPath(pid, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		return err
	}})
	if err != nil {
		st.Close()
		return nil, fmt.Errorf("cannot make the cell's stage: %w", err)
	}
	defer child.PIDFD.Close()
	child.Wait()
	return st, nil
}

// handOver leaves /run to the cell's own kernel, which covers it with memory: what the keeper wrote
// there would not reach the cell. Its guest makes Locks, unless something is mounted there.
func handOver(s *linux.Script) {
	s.Try("rmdir "+Locks, unix.SYS_UNLINKAT, linux.AtCWD, Locks, unix.AT_REMOVEDIR)
	remount(s, runDir, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV)
}

// Place returns what the canaries of a command on the stage must know.
func (st *Stage) Place() confine.Place { return st.c.place(false) }

// A Proof records what the gateway of a talking cell must see of a command's canaries.
type Proof struct {
	Attempts []confine.Attempt // accesses to try
	Skipped  []string          // canaries that the policy allows
	p        *proof
}

// Announce registers the coming canaries of a command with the cell's gateway.
func (st *Stage) Announce() (*Proof, error) {
	list, skipped, p, err := st.c.announce()
	if err != nil {
		return nil, err
	}
	return &Proof{list, skipped, p}, nil
}

// Complete waits until the gateway has seen all canaries. It fails with Denied if one did not
// arrive.
func (p *Proof) Complete() error {
	err := p.p.complete(0)
	if u, ok := errors.AsType[*unseen](err); ok {
		return cell.Errorf(cell.Denied, "isolation.Start", "report this: the cell's isolation does not hold on this host",
			"the canary %q was stopped, but nothing of it came to the gateway", u.name).About(cell.Canary)
	}
	return err
}

// End makes the gateway forget the canaries.
func (p *Proof) End() { p.p.end() }

// Gone is closed when the cell's first process has ended, and all others with it.
func (st *Stage) Gone() <-chan struct{} { return st.c.gone }

// above returns the directories above p without the root, topmost first.
func above(p string) (list []string) {
	if p = path.Dir(p); p == "/" {
		return nil
	}
	return append(above(p), p)
}

// Open opens a program on the stage. Start also runs programs that were opened elsewhere, but
// those do not find files beside themselves.
func (st *Stage) Open(p string) (*os.File, error) {
	fd, err := unix.Openat2(int(st.root.Fd()), p, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: p, Err: err}
	}
	return os.NewFile(uintptr(fd), p), nil
}

// Start runs program on the stage, in jail j, or unconfined if j is nil. more become its
// descriptors from 3 on.
func (st *Stage) Start(j *Jail, program *os.File, args []string, stdio [3]*os.File, more ...*os.File) (*linux.Child, error) {
	c := st.c
	var filter *linux.SeccompProgram
	if j != nil {
		var err error
		if filter, err = c.d.filter(j); err != nil {
			return nil, err
		}
	}
	given := append(append(stdio[:], program), more...)
	high := make([]*os.File, len(given))
	for i, f := range given {
		g, err := dup(f)
		if err != nil {
			return nil, err
		}
		if high[i], err = linux.Raise(g); err != nil {
			return nil, err
		}
		defer high[i].Close()
	}
	program, more = high[3], high[4:]
	entry, err := c.entry()
	defer entry.close()
	if err != nil {
		return nil, err
	}
	s := &linux.Script{}
	s.Stdio([3]*os.File(high[:3]), append(append([]*os.File{c.Init.PIDFD, st.mount, program}, more...), entry.tasks...)...)
	for _, f := range entry.tasks {
		s.WriteTo("enter cgroup "+f.Name(), int(f.Fd()), "0")
	}
	s.Call("join the cell", unix.SYS_SETNS, int(c.Init.PIDFD.Fd()), c.joinFlags()&^unix.CLONE_NEWNS)
	s.Call("join the stage", unix.SYS_SETNS, int(st.mount.Fd()), unix.CLONE_NEWNS)
	s.Call("setsid", unix.SYS_SETSID)
	if j != nil {
		s.Slack = j.Slack
		j.enclose(s)
	}
	s.CloseOthers(3, high[3:]...) // the raised files are above the numbers that more gets
	for i, f := range more {
		s.Call("dup3", unix.SYS_DUP3, int(f.Fd()), 3+i, 0)
	}
	s.CloseOthers(3+len(more), program)
	if c.Outside() {
		confine.Filter(s, c.d.servesNoSetID)
	}
	if j != nil {
		j.shed(s, c.capsOf(j.Caps), c.d.lastCap, filter)
	}
	s.ExecFD(int(program.Fd()), args, nil)
	return linux.Spawn(s, linux.SpawnOptions{PIDNS: int(c.Init.PIDFD.Fd()), CgroupFD: entry.into, Share: true})
}

// Net returns the socket on which machines on the stage exchange frames. Each machine gets a
// duplicate. It is nil if the cell has no such link.
func (st *Stage) Net() *os.File {
	if st.c.link == nil {
		return nil
	}
	return st.c.link.machine
}

// Dial connects to a socket on the stage.
func (st *Stage) Dial(path string) (*net.UnixConn, error) {
	c, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d%s", st.root.Fd(), path))
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// Identify writes the identity files for a hostname that is set after the cell was made and
// before anything ran. It returns their paths in the cell.
func (st *Stage) Identify(hostname string) (paths []string, err error) {
	for _, f := range idFiles(st.c.w.Spec.ID, hostname) {
		at := path.Join(confine.CanaryDir, path.Base(f.path))
		paths = append(paths, f.path, at)
		fd, err := unix.Openat2(int(st.root.Fd()), path.Join(StageRoot, at)[1:], &unix.OpenHow{Flags: unix.O_WRONLY | unix.O_TRUNC | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
		if err != nil {
			return nil, fmt.Errorf("cannot write the cell's identity: %w", err)
		}
		_, err = unix.Write(fd, []byte(f.text))
		unix.Close(fd)
		if err != nil {
			return nil, fmt.Errorf("cannot write the cell's identity: %w", err)
		}
	}
	return paths, nil
}

// Close releases the stage. Its programs continue.
func (st *Stage) Close() error {
	CloseFiles([]*os.File{st.mount, st.root})
	return nil
}
