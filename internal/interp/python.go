package interp

import (
	"bytes"
	"embed"
	"encoding/json"
	"io/fs"
	"path"
	"strings"
)

//go:embed python/*.py python/later/*.py
var pythonFiles embed.FS

// pythonProgram is the Python end, as pythonBoot reads it: the texts of the parts that
// are compiled when they are needed, by name, then the files in the order of their names.
func pythonProgram() []byte {
	var b bytes.Buffer
	later := map[string]string{}
	names, _ := fs.Glob(pythonFiles, "python/later/*.py")
	for _, n := range names {
		src, _ := pythonFiles.ReadFile(n)
		later[strings.TrimSuffix(path.Base(n), ".py")] = string(src)
	}
	text, _ := json.Marshal(later) // a literal of Python, too
	b.WriteString("LATER = " + string(text) + "\n")
	names, _ = fs.Glob(pythonFiles, "python/*.py")
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
