package fuseproxy

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// act does the same in any directory, and says what came of it.
func act(dir string) {
	if err := os.Chdir(dir); err != nil {
		fmt.Println(err)
		return
	}
	unix.Umask(0o022)
	say := func(what string, v ...any) {
		for i, x := range v {
			if err, ok := x.(error); ok {
				var e unix.Errno
				if errors.As(err, &e) {
					v[i] = unix.ErrnoName(e)
				}
			}
		}
		fmt.Println(what, strings.TrimSuffix(fmt.Sprintln(v...), "\n"))
	}
	actNames(say)
	actFiles(say)
	actAttrs(say)
	actOpen(say)
	actMany(say)
	if os.Geteuid() == 0 && hasUser(1000) {
		actAs(say, 1000)
	}
	walk(say)
}

type sayer func(what string, v ...any)

func hasUser(uid int) bool {
	b, _ := os.ReadFile("/proc/self/uid_map")
	f := strings.Fields(string(b))
	return len(f) > 2 && f[2] != "1"
}

func actNames(say sayer) {
	say("mkdir", unix.Mkdir("d", 0o777), unix.Mkdir("d", 0o777), unix.Mkdir("none/d", 0o777))
	say("mkdir sticky", unix.Mkdir("sticky", 0o1777), unix.Chmod("sticky", 0o1777))
	say("write", os.WriteFile("d/a", []byte("a"), 0o666), os.WriteFile("d/b", []byte("b"), 0o600))
	say("link", unix.Link("d/a", "d/a2"), unix.Link("d/a", "d/b"), unix.Link("d", "e"))
	say("symlink", unix.Symlink("a", "d/s"), unix.Symlink("../d", "d/up"), unix.Symlink("/etc/passwd", "d/out"), unix.Symlink("s", "d/s"))
	say("long", os.WriteFile(strings.Repeat("x", 255), nil, 0o644), os.WriteFile(strings.Repeat("x", 256), nil, 0o644))
	say("odd", os.WriteFile("d/ü\n\\ \x01", nil, 0o644))
	say("fifo", unix.Mkfifo("d/fifo", 0o640))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	say("socket", err, unix.Bind(fd, &unix.SockaddrUnix{Name: "d/sock"}))
	unix.Close(fd)
	say("through", read1("d/up/s"), unix.Rename("d/up/a2", "a3"))
	say("rename to itself", unix.Rename("d/a", "a3"), exists("d/a"), exists("a3"))
	say("rename over", os.WriteFile("x", []byte("x"), 0o644), unix.Rename("x", "d/b"), read1("d/b"), exists("x"))
	say("rename dirs", unix.Mkdir("e", 0o755), unix.Mkdir("e/f", 0o755), os.WriteFile("e/f/g", []byte("g"), 0o644), unix.Rename("e", "d/e"), read1("d/e/f/g"))
	say("into itself", unix.Rename("d", "d/e/d"), unix.Rename("d/e", "d/a"), unix.Rename("d/a", "d/e"), unix.Mkdir("empty", 0o755), unix.Rename("d/e/f", "empty"), read1("empty/g"))
	say("noreplace", unix.Renameat2(unix.AT_FDCWD, "d/a", unix.AT_FDCWD, "d/b", unix.RENAME_NOREPLACE), unix.Renameat2(unix.AT_FDCWD, "d/b", unix.AT_FDCWD, "d/c", unix.RENAME_NOREPLACE))
	say("exchange", unix.Renameat2(unix.AT_FDCWD, "d/c", unix.AT_FDCWD, "d/e", unix.RENAME_EXCHANGE), read1("d/e"), isDirAt("d/c"), unix.Renameat2(unix.AT_FDCWD, "d/c", unix.AT_FDCWD, "none", unix.RENAME_EXCHANGE))
	say("rmdir", unix.Rmdir("d"), unix.Rmdir("d/e"), unix.Rmdir("none"), unix.Unlink("d/c"), unix.Rmdir("d/c"), exists("d/c"))
	say("unlink", unix.Unlink("none"), os.WriteFile("x", nil, 0o644), unix.Unlink("x"), unix.Unlink("x"), exists("x"))
	say("again", os.WriteFile("x", []byte("1"), 0o644), unix.Unlink("x"), unix.Mkdir("x", 0o700), unix.Rmdir("x"), os.WriteFile("x", []byte("22"), 0o600), read1("x"))
	deep := "deep"
	var e error
	for range 60 {
		e = errors.Join(e, unix.Mkdir(deep, 0o755))
		deep += "/" + strings.Repeat("n", 60)
	}
	say("deep", e, len(deep), exists(filepath.Dir(deep)))
	say("cwd", os.Chdir("empty"), unix.Rename("../empty", "../moved"), read1("g"), os.Chdir(".."))
}

func actFiles(say sayer) {
	f, err := os.OpenFile("f", os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o664)
	say("create", err)
	_, err = os.OpenFile("f", os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o664)
	say("create again", err)
	say("writes", third(f.WriteAt([]byte("hello"), 3)), third(f.WriteAt([]byte("far"), 5<<20)), size("f"), sum1("f"))
	say("truncate", f.Truncate(100), size("f"), f.Truncate(7000), sum1("f"), unix.Truncate("f", 5), read1("f"), unix.Truncate("d", 0), unix.Truncate("none", 0))
	f.Close()
	w, err := os.OpenFile("f", os.O_WRONLY|os.O_APPEND, 0)
	say("append", err, third(w.Write([]byte("+1"))), third(w.Write([]byte("+2"))), read1("f"))
	_, err = w.Read(make([]byte, 1))
	say("read of a writer", err)
	w.Close()
	w, err = os.OpenFile("f", os.O_WRONLY, 0)
	say("a part of a page", err, third(w.WriteAt([]byte("#"), 2)), w.Close(), read1("f"))
	w, err = os.OpenFile("f", os.O_WRONLY|os.O_TRUNC, 0)
	say("trunc", err, size("f"), " ", third(w.WriteString("new")), w.Close(), read1("f"))
	w, err = os.OpenFile("d/a", os.O_RDONLY, 0)
	_, e2 := w.Write([]byte("x"))
	say("write of a reader", err, e2, w.Close())
	big := strings.Repeat("0123456789abcdef", 200_000)
	say("big", os.WriteFile("big", []byte(big), 0o644), size("big"), sum1("big"))
	say("read at the end", tail("big"))
	// Sparse.
	f, _ = os.Create("sparse")
	say("sparse", f.Truncate(64<<20), third(f.WriteAt([]byte("x"), 32<<20)), f.Sync(), f.Close(), blocksBelow("sparse", 1<<20))
	f, _ = os.Open("sparse")
	at, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	hole, err2 := unix.Seek(int(f.Fd()), 32<<20, unix.SEEK_HOLE)
	_, err3 := unix.Seek(int(f.Fd()), 65<<20, unix.SEEK_DATA)
	say("holes", at, err, hole, err2, err3)
	f.Close()
	f, _ = os.OpenFile("sparse", os.O_RDWR, 0)
	say("fallocate", unix.Fallocate(int(f.Fd()), 0, 0, 4096), unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 32<<20, 4096), unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 70<<20, 4096), size("sparse"), sum1("sparse"))
	f.Close()
	in, _ := os.Open("big")
	out, _ := os.Create("copy")
	n, err := io.Copy(out, in)
	say("copy", n, err, out.Close(), in.Close(), sum1("copy"))
	// Mapped.
	f, _ = os.OpenFile("mapped", os.O_RDWR|os.O_CREATE, 0o644)
	f.Truncate(10000)
	m, err := unix.Mmap(int(f.Fd()), 0, 10000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	say("map", err)
	if err == nil {
		copy(m[5000:], "mapped")
		say("msync", unix.Msync(m, unix.MS_SYNC), unix.Munmap(m))
	}
	f.Close()
	say("mapped", sum1("mapped"), size("mapped"))
	f, _ = os.OpenFile("mapped", os.O_RDWR, 0)
	m, _ = unix.Mmap(int(f.Fd()), 0, 10000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	f.Close()
	copy(m[100:], "closed before")
	runtime.KeepAlive(m)
	say("mapped, closed", unix.Munmap(m), sum1("mapped"))
	say("directory as a file", os.WriteFile("d", nil, 0o644), third(os.ReadFile("d")))
}

func actAttrs(say sayer) {
	say("modes", unix.Chmod("f", 0o4755), mode("f"), unix.Chmod("d", 0o2750), mode("d"), unix.Chmod("none", 0))
	say("sgid", os.WriteFile("d/in", nil, 0o644), unix.Mkdir("d/sub", 0o755), mode("d/sub"))
	ts := []unix.Timespec{{Sec: 1, Nsec: 2}, {Sec: 1_700_000_000, Nsec: 123_456_789}}
	say("times", unix.UtimesNanoAt(unix.AT_FDCWD, "f", ts, 0), times("f"), unix.UtimesNanoAt(unix.AT_FDCWD, "d/s", ts, unix.AT_SYMLINK_NOFOLLOW), times("d/s"))
	f, _ := os.OpenFile("late", os.O_CREATE|os.O_WRONLY, 0o644)
	f.WriteString("written before")
	say("times after writing", unix.UtimesNanoAt(unix.AT_FDCWD, "late", ts, 0), f.Close(), times("late"))
	before := time.Now().Add(-2 * time.Second)
	say("times of now", os.WriteFile("now", []byte("x"), 0o644), since("now", before), os.Chtimes("now", time.Time{}, time.Unix(5, 0)), times("now"))
	say("xattrs", unix.Setxattr("f", "user.a", []byte("1"), 0), unix.Setxattr("f", "user.a", []byte("2"), unix.XATTR_CREATE), unix.Setxattr("f", "user.b", nil, unix.XATTR_REPLACE),
		unix.Setxattr("f", "user.long", []byte(strings.Repeat("v", 1000)), 0), xattr("f", "user.a", 10), xattr("f", "user.long", 10), xattr("f", "user.long", 0), xattr("f", "user.none", 10))
	b := make([]byte, 100)
	n, err := unix.Listxattr("f", b)
	names := strings.Split(strings.TrimRight(string(b[:max(n, 0)]), "\x00"), "\x00")
	sort.Strings(names)
	_, err2 := unix.Listxattr("f", b[:3])
	say("names", names, err, err2, unix.Removexattr("f", "user.a"), unix.Removexattr("f", "user.a"), unix.Lsetxattr("d/s", "user.a", nil, 0))
	say("link counts", nlink("a3"), nlink("d/b"), unix.Link("a3", "a4"), nlink("a3"), unix.Unlink("a4"), nlink("a3"))
	var x, y unix.Stat_t
	unix.Stat("a3", &x)
	unix.Stat("d/a", &y)
	say("same", x.Ino == y.Ino, x.Dev == y.Dev, os.WriteFile("a3", []byte("both"), 0), read1("d/a"))
	unix.Stat("d", &x)
	unix.Stat("d/sub/..", &y)
	say("dot dot", x.Ino == y.Ino)
	var st unix.Statfs_t
	say("statfs", unix.Statfs("d", &st), st.Blocks > 0, st.Namelen)
}

func actOpen(say sayer) {
	f, _ := os.OpenFile("gone", os.O_CREATE|os.O_RDWR, 0o640)
	f.WriteString("still ")
	say("unlink of an open file", unix.Unlink("gone"), exists("gone"))
	_, err := f.WriteString("here")
	b := make([]byte, 20)
	n, err2 := f.ReadAt(b, 0)
	say("goes on", err, string(b[:n]), err2, f.Truncate(3), f.Chmod(0o600), f.Sync())
	var x unix.Stat_t
	say("stat", unix.Fstat(int(f.Fd()), &x), x.Nlink, x.Size, x.Mode)
	say("another", os.WriteFile("gone", []byte("another"), 0o644), read1("gone"))
	n, _ = f.ReadAt(b, 0)
	say("not mixed up", string(b[:n]))
	f.Close()
	f, _ = os.Open("d/a")
	say("renamed over", os.WriteFile("n", []byte("next"), 0o644), unix.Rename("n", "d/a"))
	n, _ = f.ReadAt(b, 0)
	say("the old one", string(b[:n]), read1("d/a"), read1("a3"))
	f.Close()
	unix.Mkdir("leave", 0o755)
	d, _ := os.Open("leave")
	say("rmdir of an open directory", unix.Rmdir("leave"))
	left, _ := unix.Getdents(int(d.Fd()), make([]byte, 4096))
	say("is empty", left <= 0)
	_, err = unix.Openat(int(d.Fd()), "x", unix.O_CREAT|unix.O_RDWR, 0o644)
	say("and stays", err)
	d.Close()
}

func actMany(say sayer) {
	unix.Mkdir("many", 0o755)
	for i := range 1200 {
		os.WriteFile(fmt.Sprintf("many/%04d-%s", i, strings.Repeat("y", i%60)), nil, 0o644)
	}
	l, err := os.ReadDir("many")
	say("many", len(l), err, l[0].Name(), l[len(l)-1].Name())
	d, _ := os.Open("many")
	part, _ := d.Readdirnames(100)
	for _, n := range part {
		unix.Unlink("many/" + n)
	}
	rest, err := d.Readdirnames(-1)
	d.Seek(0, 0)
	again, _ := d.Readdirnames(-1)
	say("while reading", len(part)+len(rest) >= 1200, err, len(again))
	d.Close()
	l, _ = os.ReadDir("many")
	say("fewer", len(l), os.RemoveAll("many"), exists("many"))
}

// actAs acts as another user.
func actAs(say sayer, uid int) {
	say("give away", os.WriteFile("theirs", []byte("x"), 0o640), unix.Chmod("theirs", 0o6755), unix.Chown("theirs", uid, uid), owner("theirs"), mode("theirs"), unix.Lchown("d/s", uid, 5), owner("d/s"))
	unix.Chmod("theirs", 0o4755)
	unix.Mkdir("shared", 0o777)
	unix.Chmod("shared", 0o777)
	unix.Mkdir("grouped", 0o777)
	unix.Chown("grouped", 0, 7)
	unix.Chmod("grouped", 0o2777)
	os.WriteFile("secret", []byte("s"), 0o600)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good
		syscall.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
		syscall.RawSyscall(unix.SYS_SETRESGID, uintptr(uid), uintptr(uid), uintptr(uid))
		syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
		say("as another", os.WriteFile("shared/f", []byte("f"), 0o666), owner("shared/f"), unix.Mkdir("shared/d", 0o755), owner("shared/d"), unix.Symlink("x", "shared/l"), owner("shared/l"), unix.Mkfifo("shared/p", 0o600), owner("shared/p"))
		say("in a group's", os.WriteFile("grouped/f", nil, 0o644), owner("grouped/f"), unix.Mkdir("grouped/d", 0o755), owner("grouped/d"), mode("grouped/d"))
		say("may not", read1("secret"), os.WriteFile("a3", nil, 0), os.WriteFile("new", nil, 0o644), unix.Unlink("a3"), unix.Chmod("a3", 0o777), unix.Chown("shared/f", 0, 0), unix.Mkdir("d/x", 0o755), unix.Rename("shared/f", "f2"))
		say("sticky", unix.Unlink("sticky/none"), os.WriteFile("sticky/mine", nil, 0o644))
		w, err := os.OpenFile("theirs", os.O_WRONLY, 0)
		if err == nil {
			_, err = w.WriteString("y")
			w.Close()
		}
		say("writing drops set-user-id", err, mode("theirs"))
		say("access", unix.Access("secret", unix.R_OK), unix.Access("shared/f", unix.W_OK), unix.Access("f", unix.X_OK))
	}()
	<-done
	say("of both", unix.Rename("shared/f", "f2"), owner("f2"), os.WriteFile("capable", []byte("x"), 0o755), mode("capable"))
	c := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	say("capability", unix.Setxattr("capable", "security.capability", c, 0), xattr("capable", "security.capability", 20))
	w, _ := os.OpenFile("capable", os.O_WRONLY|os.O_APPEND, 0)
	w.WriteString("more")
	w.Close()
	say("is lost", xattr("capable", "security.capability", 20))
}

// walk says what is there in the end.
func walk(say sayer) {
	filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			say("walk", p, err)
			return nil
		}
		var x unix.Stat_t
		if err := unix.Lstat(p, &x); err != nil {
			say("walk", p, err)
			return nil
		}
		text, target := "", ""
		switch d.Type() {
		case 0:
			text = sum1(p)
		case fs.ModeSymlink:
			target, _ = os.Readlink(p)
		}
		size := x.Size
		if d.IsDir() {
			size = 0
		}
		say("walk", p, fmt.Sprintf(" %v %o %d %d %d %d %s %s", d.Type(), x.Mode, x.Nlink, x.Uid, x.Gid, size, text, target))
		return nil
	})
}

func third(_ any, err error) error { return err }

func exists(p string) bool { _, err := os.Lstat(p); return err == nil }

func isDirAt(p string) bool { i, err := os.Lstat(p); return err == nil && i.IsDir() }

func read1(p string) string {
	b, err := os.ReadFile(p)
	var e unix.Errno
	if errors.As(err, &e) {
		return unix.ErrnoName(e)
	}
	return fmt.Sprintf("%q", b)
}

func sum1(p string) string {
	b, err := os.ReadFile(p)
	if err != nil {
		return read1(p)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))[:12]
}

func stat1(p string) unix.Stat_t {
	var x unix.Stat_t
	unix.Lstat(p, &x)
	return x
}

func size(p string) int64  { return stat1(p).Size }
func mode(p string) string { return fmt.Sprintf("%o", stat1(p).Mode) }
func nlink(p string) int   { return int(stat1(p).Nlink) }

func owner(p string) string {
	x := stat1(p)
	return fmt.Sprintf("%d:%d", x.Uid, x.Gid)
}

func times(p string) string {
	x := stat1(p)
	return fmt.Sprint(x.Mtim.Sec, x.Mtim.Nsec)
}

func since(p string, t time.Time) bool {
	x := stat1(p)
	m := time.Unix(x.Mtim.Sec, x.Mtim.Nsec)
	return m.After(t) && m.Before(time.Now().Add(time.Second))
}

func blocksBelow(p string, n int64) bool { return stat1(p).Blocks*512 < n }

func tail(p string) string {
	f, err := os.Open(p)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	b := make([]byte, 100)
	n, err := f.ReadAt(b, size(p)-10)
	return fmt.Sprint(string(b[:n]), err)
}

func xattr(p, name string, room int) string {
	b := make([]byte, room)
	n, err := unix.Getxattr(p, name, b)
	var e unix.Errno
	if errors.As(err, &e) {
		return unix.ErrnoName(e)
	}
	if room == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%q", b[:n])
}
