package interp

import (
	"bytes"
	"embed"
	"io/fs"
)

//go:embed python/*.py
var pythonFiles embed.FS

// pythonProgram is the Python end, its files in the order of their names, as
// pythonBoot reads it.
func pythonProgram() []byte {
	var b bytes.Buffer
	names, _ := fs.Glob(pythonFiles, "python/*.py")
	for _, n := range names {
		src, _ := pythonFiles.ReadFile(n)
		b.Write(src)
		b.WriteByte('\n')
	}
	return sized(b.Bytes())
}

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
