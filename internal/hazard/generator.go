// Package hazard finds what a copy of a process has in common with its source: the
// generators of random numbers that live in user space. A kernel renews its own when it
// is copied; a library that seeded itself once goes on from the same state in every copy.
//
// A generator is recognized by the files that a living process has mapped as code, never
// by the name of its command: by the functions that a file exports (RAND_bytes is
// OpenSSL, whatever the file is called), and by the sources of randomness that it
// imports. A file that can't be read counts as one that has a generator. What is reported
// may have no state, or none that was ever drawn from; what is not reported has none that
// was seeded from the kernel or by the C library.
//
// The package reads bytes of a cell: sizes are bounded, and only regular files inside the
// process's own root are opened.
package hazard

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A Generator is a generator in user space.
type Generator struct {
	Family string `json:"family"` // "OpenSSL"; "own" of a file that seeds one itself; "unknown" of one that can't be read
	File   string `json:"file"`   // in which it is, as the process sees it
	// Renewed says that it seeds itself from the kernel before it gives anything in this copy.
	Renewed bool `json:"renewed,omitempty"`
}

// OpenSSL is the family that internal/libcrypto can renew. The others here are no library's.
const (
	OpenSSL = "OpenSSL"
	Own     = "own"
	Unknown = "unknown"
)

// Process is what a process has.
type Process struct {
	PID         int         `json:"pid"`     // in its cell
	Program     string      `json:"program"` // its executable, as it sees it; "" where that can't be told
	Interpreter bool        `json:"interpreter,omitempty"`
	Generators  []Generator `json:"generators,omitempty"`
}

// maxFiles bounds how many files of one process are looked at, maxKnown how many are remembered.
const (
	maxFiles = 4096
	maxKnown = 8192
	maxMaps  = 16 << 20
)

// A Scanner looks at processes, and remembers files that it has seen. The zero value is
// ready. Its methods may be called at the same time.
type Scanner struct {
	mu    sync.Mutex // guards known
	known map[seen]string
}

// seen identifies the content of a file. The inode is left out: a copy's kernel may number
// its files anew.
type seen struct {
	path        string
	size        int64
	mtime, ctim int64
}

// Process looks at a process that the proc file system at proc shows with the number pid.
// ok is false when it is gone.
func (s *Scanner) Process(proc string, pid int) (p Process, ok bool) {
	p.PID = pid
	dir := filepath.Join(proc, strconv.Itoa(pid))
	p.Program, _ = os.Readlink(filepath.Join(dir, "exe"))
	f, err := os.Open(filepath.Join(dir, "maps"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return p, false
	}
	var files []string
	if err == nil {
		files, err = Mapped(io.LimitReader(f, maxMaps))
		f.Close()
	}
	if errors.Is(err, unix.ESRCH) {
		return p, false
	}
	if err == nil && len(files) == 0 {
		if p.Program == "" { // a zombie, or a thread of the kernel
			return p, false
		}
		err = errors.New("it maps no file")
	}
	if err != nil {
		p.Generators = []Generator{{Family: Unknown, File: p.Program}}
		return p, true
	}
	root, err := os.OpenFile(filepath.Join(dir, "root"), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		p.Generators = []Generator{{Family: Unknown, File: p.Program}}
		return p, true
	}
	defer root.Close()
	for _, name := range files {
		if family := s.file(root, name); family != "" {
			p.Generators = append(p.Generators, Generator{Family: family, File: name})
		}
	}
	return p, true
}

// Mapped lists the files that proc_pid_maps(5) shows as mapped for execution, each once.
func Mapped(r io.Reader) (files []string, err error) {
	b := bufio.NewScanner(r)
	b.Buffer(nil, 64<<10)
	for b.Scan() {
		// address perms offset dev inode path
		f := strings.SplitN(b.Text(), " ", 6)
		if len(f) < 6 || len(f[1]) < 3 || f[1][2] != 'x' {
			continue
		}
		name := strings.TrimLeft(f[5], " ")
		if !strings.HasPrefix(name, "/") || slices.Contains(files, name) {
			continue // anonymous: code that a runtime has made; it is mapped as a file, too
		}
		if len(files) == maxFiles {
			return nil, fmt.Errorf("more than %d files are mapped", maxFiles)
		}
		files = append(files, name)
	}
	return files, b.Err()
}

// file is the family of what a file has; "" for none.
func (s *Scanner) file(root *os.File, name string) string {
	if ours(name) {
		return ""
	}
	fd, err := unix.Openat2(int(root.Fd()), strings.TrimPrefix(name, "/"), &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if errors.Is(err, unix.ENOSYS) { // gVisor
		fd, err = openBelow(root, name)
	}
	if err != nil {
		return Unknown
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return Unknown
	}
	key := seen{name, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
	s.mu.Lock()
	family, known := s.known[key]
	s.mu.Unlock()
	if known {
		return family
	}
	family = familyOf(f, st.Size)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || len(s.known) >= maxKnown {
		s.known = map[seen]string{}
	}
	s.known[key] = family
	return family
}

// openBelow opens a file without following a symbolic link: the kernel shows the mapped
// file's own path, in which there is none.
func openBelow(root *os.File, name string) (int, error) {
	at := int(root.Fd())
	parts := strings.Split(strings.Trim(path.Clean(name), "/"), "/")
	for i, part := range parts {
		flags := unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		if i == len(parts)-1 {
			flags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		}
		fd, err := unix.Openat(at, part, flags, 0)
		if at != int(root.Fd()) {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at = fd
	}
	return at, nil
}

// ours reports whether a mapping is of pando's own: the page of code with which an
// interpreter of ours forks itself.
func ours(name string) bool { return name == "/memfd:pando (deleted)" }

// familyOf is the family of what an ELF file has; "" for none.
func familyOf(r io.ReaderAt, size int64) string {
	x, err := readELF(r, size)
	if err != nil {
		return Unknown
	}
	for _, f := range families {
		if slices.ContainsFunc(f.exports, func(n string) bool { return x.exports[n] }) {
			return f.name
		}
	}
	switch {
	case x.golang:
		return "Go"
	case !x.dynamic:
		return Unknown
	case slices.ContainsFunc(stateless, func(n string) bool { return x.exports[n] }):
		return ""
	}
	for n := range x.imports {
		if slices.Contains(sources, n) || strings.HasPrefix(n, randomDevice) {
			return Own
		}
	}
	return ""
}

// families are recognized by a function that they export; the first that fits it is.
var families = []struct {
	name    string
	exports []string
}{
	{"Node.js", []string{"napi_create_function", "node_api_symbol_for"}}, // with its own OpenSSL, or beside one
	{OpenSSL, []string{"RAND_bytes"}},                                    // LibreSSL, BoringSSL, AWS-LC
	{"Java", []string{"JNI_CreateJavaVM"}},
	{"Python", []string{"Py_BytesMain", "PyRun_SimpleStringFlags"}},
	{"PHP", []string{"php_random_bytes", "zend_parse_parameters"}},
	{"Ruby", []string{"ruby_init", "rb_random_bytes"}},
	{"Perl", []string{"perl_construct"}},
	{"Lua", []string{"luaL_newstate"}},
	{"GnuTLS", []string{"gnutls_rnd"}},
	{"libgcrypt", []string{"gcry_randomize"}},
	{"NSS", []string{"PK11_GenerateRandom", "FREEBL_GetVector"}},
	{"Mbed TLS", []string{"mbedtls_ctr_drbg_random"}},
	{"wolfSSL", []string{"wc_RNG_GenerateBlock"}},
	{"libsodium", []string{"randombytes_buf"}},
	{"SQLite", []string{"sqlite3_randomness"}},
	{"GLib", []string{"g_random_int"}},
	{"GSL", []string{"gsl_rng_alloc"}},
	{"MKL", []string{"vslNewStream"}},
	{"CUDA", []string{"curandCreateGenerator"}},
}

// stateless are exports of libraries that ask a source each time, and keep nothing of it:
// the C library, its loader, that of C++, libuuid and Expat. What state the C library has
// (random, drand48) is counted to the files that import it.
var stateless = []string{"__libc_start_main", "__tls_get_addr", "_ZNSt13random_device9_M_getvalEv", "uuid_generate_random", "XML_ParserCreate", "PyInit_pyexpat"}

// sources are what a generator is seeded from, or is.
var sources = []string{
	"getrandom", "getentropy", "arc4random", "arc4random_buf", "arc4random_uniform",
	"rand", "srand", "random", "srandom", "initstate", "setstate", "random_r", "srandom_r", "initstate_r",
	"drand48", "erand48", "lrand48", "nrand48", "mrand48", "jrand48", "srand48", "seed48", "lcong48",
}

// interesting reports whether a symbol is in one of the tables above.
func interesting(name string) bool {
	return named()[name] || strings.HasPrefix(name, randomDevice)
}

// randomDevice begins the symbols of C++'s std::random_device.
const randomDevice = "_ZNSt13random_device"

var named = sync.OnceValue(func() map[string]bool {
	all := map[string]bool{}
	for _, f := range families {
		for _, n := range f.exports {
			all[n] = true
		}
	}
	for _, n := range append(slices.Clone(stateless), sources...) {
		all[n] = true
	}
	return all
})
