package interp

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"strings"
	"sync"
)

//go:embed python/*.py
var pythonFiles embed.FS

// pythonSource is the Python end: its files, in the order of their names.
var pythonSource = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	names, _ := fs.Glob(pythonFiles, "python/*.py")
	for _, n := range names {
		src, _ := pythonFiles.ReadFile(n)
		b.Write(src)
		b.WriteByte('\n')
	}
	return b.Bytes()
})

// pythonBoot reads the program from the socket, its length in sixteen bytes
// before it: no file of it is in the cell, and ps shows no long argument. What it
// names in __main__ is gone before anything is evaluated.
const pythonBoot = `import os,sys
if sys.version_info<(3,8):sys.exit("Python 3.8 or later is needed, and this is %d.%d"%sys.version_info[:2])
def __pando__(n,b=b""):
 while len(b)<n:b+=os.read(3,n-len(b)) or os._exit(0)
 return b
__pando__=compile(__pando__(int(__pando__(16))),"<pando>","exec")
del os,sys
exec(__pando__,{"__name__":"_pando","__builtins__":__builtins__})`

// PythonArgs are the arguments of the built-in interpreter, without argv[0].
// Its first input is what PythonProgram returns.
func PythonArgs() []string { return []string{"-c", pythonBoot} }

// ProgramOf is the program of a command line, without the arguments of the
// built-in interpreter if it has them, which built tells.
func ProgramOf(command string) (program string, built bool) {
	return strings.CutSuffix(command, " -c "+pythonBoot)
}

// PythonProgram is what an interpreter started with PythonArgs reads before
// anything else.
func PythonProgram() []byte {
	src := pythonSource()
	return append(fmt.Appendf(nil, "%16d", len(src)), src...)
}
