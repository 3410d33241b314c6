package repl

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

// pythonProgram returns the Python program as pythonBoot reads it: the sources that are
// compiled on demand, by name, then the other files in the order of their names.
func pythonProgram() []byte {
	var b bytes.Buffer
	later := map[string]string{}
	names, _ := fs.Glob(pythonFiles, "python/later/*.py")
	for _, n := range names {
		src, _ := pythonFiles.ReadFile(n)
		later[strings.TrimSuffix(path.Base(n), ".py")] = string(src)
	}
	text, _ := json.Marshal(later) // also a valid Python literal
	b.WriteString("LATER = " + string(text) + "\n")
	names, _ = fs.Glob(pythonFiles, "python/*.py")
	for _, n := range names {
		src, _ := pythonFiles.ReadFile(n)
		b.Write(src)
		b.WriteByte('\n')
	}
	return sized(b.Bytes())
}

// pythonBoot reads the program from the socket, after its length in sixteen bytes. So the cell
// contains no file of it, and ps shows no long argument. Its names in __main__ are removed
// before the first evaluation.
const pythonBoot = `import os,sys
if sys.version_info<(3,8):sys.exit("Python 3.8 or later is needed, and this is %d.%d"%sys.version_info[:2])
def __pando__(n,b=b""):
 while len(b)<n:b+=os.read(3,n-len(b)) or os._exit(0)
 return b
__pando__=compile(__pando__(int(__pando__(16))),"<pando>","exec")
del os,sys
exec(__pando__,{"__name__":"_pando","__builtins__":__builtins__})`
