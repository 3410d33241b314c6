package interp

import (
	_ "embed" // the programs
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// A Kind is a language whose interpreter is built in.
type Kind struct {
	Name     string        // what requests and flags call it
	Title    string        // what sentences call it
	Programs []string      // the program's names, in the order in which they are looked for
	Args     []string      // its arguments, without argv[0]
	First    func() []byte // what it reads from its socket before anything is asked; nil for nothing
	Stdin    []byte        // what lies in the file that is its standard input, which is at its end
	Unsound  string        // the type of the error of code that can't be understood, and never will be
}

//go:embed node/bridge.js
var nodeProgram []byte

// nodeBoot reads the program from the socket, as Python's does. A loader comes
// with it: code that was compiled has none.
const nodeBoot = `if(parseInt(process.versions.node)<18){console.error("Node 18 or later is needed, and this is "+process.version);process.exit(1)}
{const fs=require("fs"),read=(b,n=0)=>{for(let m;n<b.length;n+=m)if(!(m=fs.readSync(3,b,n,b.length-n)))process.exit(0);return b.toString()};
require("vm").compileFunction(read(Buffer.alloc(+read(Buffer.alloc(16)))),["require","outside"],{filename:"<pando>"})(require,(s,o)=>o===undefined?import(s):import(s,o))}`

//go:embed java/bridge.jar
var javaArchive []byte

// kinds is the one list of them.
var kinds = []Kind{
	{Name: cell.WarmPython, Title: "Python", Programs: []string{"python3"}, Args: []string{"-c", pythonBoot}, First: sync.OnceValue(pythonProgram), Unsound: "SyntaxError"},
	// What was ended in a callback leaves Node's own account of callbacks wrong:
	// without the check it goes on.
	{Name: cell.WarmNode, Title: "Node", Programs: []string{"node", "nodejs"}, Args: []string{"--no-force-async-hooks-checks", "-e", nodeBoot}, First: sync.OnceValue(func() []byte { return sized(nodeProgram) }), Unsound: "SyntaxError"},
	// Java loads classes from files alone: its standard input is one.
	{Name: cell.WarmJava, Title: "Java", Programs: []string{"java"}, Args: []string{"-jar", "/proc/self/fd/0"}, Stdin: javaArchive, Unsound: "CompilationError"},
}

// KindOf returns the kind of that name.
func KindOf(name string) (Kind, bool) {
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return kinds[i], true
}

// KindNames are the names of all kinds.
func KindNames() []string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.Name)
	}
	return out
}

// ProgramOf is the program of a command line, without the arguments of a
// built-in interpreter if it has them, which built tells.
func ProgramOf(command string) (program string, built bool) {
	for _, k := range kinds {
		if program, built = strings.CutSuffix(command, " "+strings.Join(k.Args, " ")); built {
			return program, true
		}
	}
	return command, false
}

// sized is a program with its length in sixteen bytes before it.
func sized(src []byte) []byte { return append(fmt.Appendf(nil, "%16d", len(src)), src...) }

// File returns a file in memory that has this content, can't be changed, and is
// at its end: who opens it again, by /proc/self/fd, reads it from its beginning.
func File(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("pando", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "program")
	if _, err = f.Write(content); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
