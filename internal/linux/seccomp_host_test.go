package linux

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// seccompJob is what a re-executed test binary does under the filter: make
// calls, or become another program.
type seccompJob struct {
	Options SeccompOptions
	Calls   []seccompCall
	Exec    []string
	UID     int // 0: stay
}

type seccompCall struct {
	Name string
	Args []uint64
	Want syscall.Errno // 0: success
}

const seccompJobEnv = "PANDO_TEST_SECCOMP_JOB"

// TestSeccompChild is not a test of its own: the others run it as a child.
func TestSeccompChild(t *testing.T) {
	var job seccompJob
	if err := json.Unmarshal([]byte(os.Getenv(seccompJobEnv)), &job); err != nil {
		return
	}
	fail := func(err error) {
		if err != nil {
			fmt.Println("child:", err)
			os.Exit(3)
		}
	}
	runtime.LockOSThread()
	filter, err := SeccompFilter(job.Options)
	fail(err)
	prog, err := NewSeccompProgram(filter)
	fail(err)
	if job.UID != 0 {
		fail(syscall.Setgroups(nil))
		fail(syscall.Setresgid(job.UID, job.UID, job.UID))
		fail(syscall.Setresuid(job.UID, job.UID, job.UID))
	}
	fail(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	fail(prog.Install())
	if len(job.Exec) > 0 {
		os.Unsetenv(seccompJobEnv)
		fail(syscall.Exec(job.Exec[0], job.Exec, os.Environ()))
	}
	for _, c := range job.Calls {
		var args [6]uintptr
		for i, a := range c.Args {
			args[i] = uintptr(a)
		}
		_, _, e := syscall.RawSyscall6(uintptr(SeccompNumbers(NativeArch)[c.Name]), args[0], args[1], args[2], args[3], args[4], args[5])
		if e != c.Want {
			fmt.Printf("%s%#x: %v, want %v\n", c.Name, c.Args, error(e), error(c.Want))
		}
	}
	fmt.Println("done")
	os.Exit(0)
}

func seccompChild(t *testing.T, job seccompJob) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSeccompChild$")
	cmd.Env = append(os.Environ(), seccompJobEnv+"="+string(text))
	return cmd
}

// The kernel of this host refuses what the table refuses. The arguments are
// such that no call does harm where the filter is missing.
func TestSeccompInTheKernel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: an unprivileged process is refused by the kernel already")
	}
	const bad = 1 // an address nothing is mapped at
	perm, nosys := syscall.EPERM, syscall.ENOSYS
	cwd, none := uint64(0xffffff9c), uint64(0xffffffff)
	calls := []seccompCall{
		{"getpid", nil, 0},
		{"unshare", []uint64{0}, perm},
		{"unshare", []uint64{unix.CLONE_NEWUSER}, perm},
		{"clone", []uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}, perm},
		{"clone", []uint64{unix.CLONE_PARENT}, perm},
		{"clone", []uint64{unix.CLONE_SIGHAND}, syscall.EINVAL}, // without CLONE_VM: passes the filter, the kernel refuses
		{"clone3", []uint64{0, 0}, nosys},
		{"setns", []uint64{none, 0}, perm},
		{"mount", []uint64{bad, bad, 0, 0, 0}, perm},
		{"umount2", []uint64{bad, 0}, perm},
		{"pivot_root", []uint64{bad, bad}, perm},
		{"chroot", []uint64{bad}, perm},
		{"open_tree", []uint64{none, bad, 0}, perm},
		{"move_mount", []uint64{none, bad, none, bad, 0}, perm},
		{"fsopen", []uint64{bad, 0}, perm},
		{"fsmount", []uint64{none, 0, 0}, perm},
		{"fsconfig", []uint64{none, 0, 0, 0, 0}, perm},
		{"fspick", []uint64{none, bad, 0}, perm},
		{"mount_setattr", []uint64{none, bad, 0, 0, 0}, perm},
		{"keyctl", []uint64{0, 0, 0}, perm},
		{"add_key", []uint64{bad, bad}, perm},
		{"bpf", []uint64{0, bad, 0}, perm},
		{"userfaultfd", []uint64{1 << 30}, perm},
		{"perf_event_open", []uint64{bad, 0, 0, none, 0}, perm},
		{"ptrace", []uint64{0x4200, 0}, perm},
		{"process_vm_readv", []uint64{uint64(os.Getpid()), bad, 0, bad, 0, 0}, perm},
		{"process_madvise", []uint64{none, bad, 0, 0, 0}, perm},
		{"pidfd_getfd", []uint64{none, 0, 0}, perm},
		{"kcmp", []uint64{1, 1, 1, 0, 0}, perm},
		{"io_uring_setup", []uint64{0, bad}, nosys},
		{"init_module", []uint64{bad, 0, bad}, perm},
		{"delete_module", []uint64{bad, 0}, perm},
		{"kexec_load", []uint64{0, 99, bad, 0}, perm},
		{"reboot", []uint64{0, 0, 0, 0}, perm},
		{"swapon", []uint64{bad, 0}, perm},
		{"quotactl", []uint64{0, bad, 0, 0}, perm},
		{"open_by_handle_at", []uint64{none, bad, 0}, perm},
		{"acct", []uint64{bad}, perm},
		{"syslog", []uint64{10, 0, 0}, perm},
		{"settimeofday", []uint64{0, 0}, perm},
		{"clock_settime", []uint64{0, bad}, perm},
		{"adjtimex", []uint64{bad}, perm},
		{"sethostname", []uint64{bad, 1 << 30}, perm},
		{"memfd_secret", []uint64{none}, nosys},
		{"seccomp", []uint64{unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, bad}, perm},
		{"seccomp", []uint64{unix.SECCOMP_SET_MODE_FILTER, 0, bad}, syscall.EFAULT},
		{"ioctl", []uint64{none, unix.TIOCSTI, bad}, perm},
		{"ioctl", []uint64{none, 1<<32 | unix.TIOCSTI, bad}, perm},
		{"ioctl", []uint64{none, 0x541c, bad}, perm},
		{"ioctl", []uint64{none, unix.TIOCGWINSZ, bad}, syscall.EBADF},
		{"mknodat", []uint64{cwd, bad, unix.S_IFCHR | 0o600, 0}, perm},
		{"mknodat", []uint64{cwd, bad, unix.S_IFIFO | 0o600, 0}, syscall.EFAULT},
		{"renameat2", []uint64{cwd, bad, cwd, bad, unix.RENAME_WHITEOUT}, syscall.EINVAL},
		{"renameat2", []uint64{cwd, bad, cwd, bad, 0}, syscall.EFAULT},
		{"personality", []uint64{0xffffffff}, 0},
		{"personality", []uint64{0x0040000}, perm}, // ADDR_NO_RANDOMIZE
		{"socket", []uint64{unix.AF_VSOCK, unix.SOCK_STREAM, 0}, syscall.EAFNOSUPPORT},
		{"socket", []uint64{unix.AF_PACKET, unix.SOCK_RAW, 0}, syscall.EAFNOSUPPORT},
		{"socket", []uint64{unix.AF_ALG, unix.SOCK_SEQPACKET, 0}, syscall.EAFNOSUPPORT},
		{"socket", []uint64{unix.AF_INET, 10, 0}, syscall.ESOCKTNOSUPPORT},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM, 132}, syscall.EPROTONOSUPPORT},
		{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, syscall.EPROTONOSUPPORT},
		{"socket", []uint64{unix.AF_UNIX, unix.SOCK_STREAM, 0}, 0},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC, 0}, 0},
		{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, 0},
		{"socketpair", []uint64{unix.AF_INET, unix.SOCK_STREAM, 0, bad}, syscall.EAFNOSUPPORT},
		{"landlock_create_ruleset", []uint64{0, 0, 1}, 0},
	}
	out, err := seccompChild(t, seccompJob{Calls: calls}).Output()
	if err != nil || string(out) != "done\n" {
		t.Errorf("%v:\n%s", err, out)
	}
	out, err = seccompChild(t, seccompJob{Options: SeccompOptions{AllowPtrace: true, AllowNestedUserNS: true}, Calls: []seccompCall{
		{"unshare", []uint64{0}, 0},
		{"umount2", []uint64{bad, 0}, syscall.EFAULT},
		{"process_vm_readv", []uint64{uint64(os.Getpid()), bad, 0, bad, 0, 1}, syscall.EINVAL},
		{"bpf", []uint64{0, bad, 0}, perm},
	}}).Output()
	if err != nil || string(out) != "done\n" {
		t.Errorf("with downgrades: %v:\n%s", err, out)
	}
}

// Common programs run under the filter, as root and as an ordinary user.
func TestSeccompPrograms(t *testing.T) {
	uids := []int{0}
	if os.Geteuid() == 0 {
		uids = append(uids, 65534)
	}
	programs := []struct{ name, script, want string }{
		{"sh", `exec 2>&1; a=$(printf x | cat); (exit 0) & wait; mkfifo f && test -p f && echo $a ok`, "x ok"},
		{"ls", `ls -l / >/dev/null && echo ok`, "ok"},
		{"tar", `mkdir d && echo 1 >d/a && tar cf t d && rm -r d && tar xf t && cat d/a`, "1"},
		{"git", `git init -q r && cd r && echo a >a && git add a && git -c user.name=a -c user.email=a@b commit -qm m && git gc -q && git log --format=%s`, "m"},
		{"python3", `python3 -c '
import subprocess, threading, socket, multiprocessing, asyncio, tempfile, os
def w(q): q.put(2)
if __name__ == "__main__":
    q = multiprocessing.get_context("fork").Queue(); p = multiprocessing.get_context("fork").Process(target=w, args=(q,)); p.start(); n = q.get(); p.join()
    t = threading.Thread(target=lambda: None); t.start(); t.join()
    s = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(s.getsockname()); s.accept()
    asyncio.run(asyncio.sleep(0)); subprocess.run(["true"], check=True); os.urandom(8)
    try: socket.socket(socket.AF_VSOCK)
    except OSError as e: print(n, e.errno)
'`, "2 97"},
		{"node", `node -e '
const {Worker} = require("worker_threads"), http = require("http"), fs = require("fs"), cp = require("child_process");
fs.writeFileSync("n", "x"); cp.execSync("true"); new Worker("", {eval: true});
const s = http.createServer((q, r) => r.end("hi")).listen(0, "127.0.0.1", () =>
  http.get({port: s.address().port, host: "127.0.0.1"}, r => r.on("data", d => { console.log(String(d)); s.close() })));'`, "hi"},
		{"go", `printf 'package main\nfunc main() { c := make(chan string); go func() { c <- "hello" }(); print(<-c) }\n' >main.go &&
			printf 'module x\ngo 1.26\n' >go.mod && GOCACHE=$PWD/cache GOFLAGS=-mod=mod GOPROXY=off go build -o x . && ./x 2>&1`, "hello"},
		{"gcc", `printf '#include <stdio.h>\n#include <pthread.h>\nvoid*f(void*a){return a;}\nint main(){pthread_t t;int r=pthread_create(&t,0,f,0);pthread_join(t,0);printf("%%d\\n",r);}\n' >c.c && gcc -pthread -o c c.c && ./c`, "0"},
		{"curl", `echo hi >h; curl --version >/dev/null && curl -s file://$PWD/h`, "hi"},
		{"openssl", `openssl genrsa 2048 2>/dev/null | head -1 | cut -c1-10; openssl rand -hex 4 >/dev/null && echo ok`, "ok"},
		{"perl", `perl -e 'use Socket; my $p = fork; exit 0 unless $p; waitpid $p, 0; socket(my $s, PF_INET, SOCK_STREAM, 0) or die; print "ok\n"'`, "ok"},
		{"ss", `ss -tln >/dev/null 2>&1 && echo ok`, "ok"},
		{"make", `printf 'all: a b\na b:\n\t@touch $@\n' >Makefile; make -j4 && ls a b | wc -l`, "2"},
		{"sqlite3", `sqlite3 db 'create table t(a); insert into t values (7); select a from t'`, "7"},
		{"bwrap", `bwrap --ro-bind / / true 2>&1 | grep -c 'not permitted\|No permissions'`, "1"}, // refused, and says so
	}
	for _, uid := range uids {
		for _, p := range programs {
			t.Run(fmt.Sprintf("%s-%d", p.name, uid), func(t *testing.T) {
				path, err := exec.LookPath(p.name)
				if real, e := filepath.EvalSymlinks(path); err != nil || e != nil || uid != 0 && strings.HasPrefix(real, "/root/") {
					path = "/usr/bin/" + p.name
				}
				if _, err := os.Stat(path); err != nil {
					t.Skipf("needs %s on PATH", p.name)
				}
				dir, err := os.MkdirTemp("", "seccomp")
				if err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(dir)
				if err := os.Chmod(dir, 0o777); err != nil {
					t.Fatal(err)
				}
				cmd := seccompChild(t, seccompJob{Exec: []string{"/bin/sh", "-c", p.script}, UID: uid})
				cmd.Dir = dir
				cmd.Env = append(cmd.Env, "HOME="+dir, "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GOMODCACHE="+dir+"/mod", "GOTOOLCHAIN=local")
				if uid != 0 {
					cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(path)+":/usr/local/bin:/usr/bin:/bin")
				}
				var out, errOut bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &errOut
				if err := cmd.Run(); err != nil || !strings.Contains(out.String(), p.want) {
					t.Errorf("%v\nstdout: %s\nstderr: %s", err, out.String(), errOut.String())
				}
			})
		}
	}
}

// A debugger works with AllowPtrace and only then.
func TestSeccompDebugger(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace on PATH")
	}
	for _, allow := range []bool{false, true} {
		job := seccompJob{Exec: []string{strace, "-f", "-e", "trace=openat", "/bin/true"}, Options: SeccompOptions{AllowPtrace: allow}}
		if err := seccompChild(t, job).Run(); (err == nil) != allow {
			t.Errorf("AllowPtrace=%v: strace %v", allow, err)
		}
	}
}

// A Go program with all its threads under the filter can listen, dial and
// start programs: its runtime falls back where it has to.
func TestSeccompGoRuntime(t *testing.T) {
	const env = "PANDO_TEST_SECCOMP_GO"
	if os.Getenv(env) != "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			if c, err := l.Accept(); err == nil {
				io.Copy(c, c)
				c.Close()
			}
		}()
		c, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := net.Interfaces(); err != nil {
			t.Error(err)
		}
		if err := exec.Command("/bin/true").Run(); err != nil { // clone3, pidfd
			t.Error(err)
		}
		if _, err := os.FindProcess(os.Getpid()); err != nil {
			t.Error(err)
		}
		return
	}
	cmd := seccompChild(t, seccompJob{Exec: []string{os.Args[0], "-test.run=^TestSeccompGoRuntime$", "-test.v"}})
	cmd.Env = append(cmd.Env, env+"=1")
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// The program's memory keeps its address and contents, is closed once, and
// refuses what the kernel would.
func TestSeccompProgramMemory(t *testing.T) {
	filter, err := SeccompFilter(SeccompOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewSeccompProgram(filter)
	if err != nil {
		t.Fatal(err)
	}
	a, keep := p.Prog()
	runtime.GC()
	if b, _ := p.Prog(); a == 0 || a != b || keep == nil || p.Len() != len(filter) {
		t.Errorf("address %#x, then %#x; %d instructions", a, b, p.Len())
	}
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
	for _, n := range []int{0, 4097} {
		if _, err := NewSeccompProgram(make([]unix.SockFilter, n)); err == nil {
			t.Errorf("%d instructions accepted", n)
		}
	}
}
