package repl

import (
	_ "embed" // the programs
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// A Kind is a language with a built-in interpreter program.
type Kind struct {
	Name     string        // in requests and flags
	Title    string        // in sentences
	Programs []string      // executables, in search order
	Args     []string      // arguments, without argv[0]
	First    func() []byte // data sent over its socket first; nil for none
	Stdin    []byte        // content of the file that is its standard input, positioned at its end
	Unsound  string        // error type of code that can never be parsed
}

//go:embed node/bridge.js
var nodeProgram []byte

// nodeBoot reads the program from the socket, as Python's does. It provides a module loader,
// because compiled code has none.
const nodeBoot = `if(parseInt(process.versions.node)<18){console.error("Node 18 or later is needed, and this is "+process.version);process.exit(1)}
{const fs=require("fs"),read=(b,n=0)=>{for(let m;n<b.length;n+=m)if(!(m=fs.readSync(3,b,n,b.length-n)))process.exit(0);return b.toString()};
require("vm").compileFunction(read(Buffer.alloc(+read(Buffer.alloc(16)))),["require","outside"],{filename:"<pando>"})(require,(s,o)=>o===undefined?import(s):import(s,o))}`

//go:embed java/bridge.jar
var javaArchive []byte

// kinds lists all kinds.
var kinds = []Kind{
	{Name: cell.WarmPython, Title: "Python", Programs: []string{"python3"}, Args: []string{"-c", pythonBoot}, First: sync.OnceValue(pythonProgram), Unsound: "SyntaxError"},
	// Code that was interrupted in a callback corrupts Node's count of callbacks. Without the
	// check Node continues.
	{Name: cell.WarmNode, Title: "Node", Programs: []string{"node", "nodejs"}, Args: []string{"--no-force-async-hooks-checks", "-e", nodeBoot}, First: sync.OnceValue(func() []byte { return sized(nodeProgram) }), Unsound: "SyntaxError"},
	// Java loads classes only from files: its standard input is one.
	{Name: cell.WarmJava, Title: "Java", Programs: []string{"java"}, Args: []string{"-jar", "/proc/self/fd/0"}, Stdin: javaArchive, Unsound: "CompilationError"},
}

// KindOf returns the kind with a name.
func KindOf(name string) (Kind, bool) {
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return kinds[i], true
}

// KindNames returns the names of all kinds.
func KindNames() []string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.Name)
	}
	return out
}

// ProgramOf returns the program of a command line. built reports whether the arguments are
// those of a built-in interpreter; these are left out.
func ProgramOf(command string) (program string, built bool) {
	for _, k := range kinds {
		if program, built = strings.CutSuffix(command, " "+strings.Join(k.Args, " ")); built {
			return program, true
		}
	}
	return command, false
}

// sized prefixes a program with its length in sixteen bytes.
func sized(src []byte) []byte { return append(fmt.Appendf(nil, "%16d", len(src)), src...) }

// File returns an immutable file in memory with this content, positioned at its end. Reopening
// it by /proc/self/fd reads from the start.
func File(content []byte) (*os.File, error) {
	f, err := linux.MemoryFile("pando", false)
	if err != nil {
		return nil, err
	}
	if _, err = f.Write(content); err == nil {
		err = linux.Seal(f)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
