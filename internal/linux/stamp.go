package linux

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Stamp says what files are now, so that what was learned from them is learned anew when
// they have changed, come or gone. Of files below /proc, which have no times, it is the
// content.
func Stamp(paths ...string) string {
	var b strings.Builder
	for _, p := range paths {
		if strings.HasPrefix(p, "/proc/") {
			content, err := os.ReadFile(p)
			if p == "/proc/modules" { // and not how often each is used
				var names []byte
				for line := range bytes.Lines(content) {
					name, _, _ := bytes.Cut(line, []byte(" "))
					names = append(append(names, name...), ' ')
				}
				content = names
			}
			fmt.Fprintf(&b, "%s %q %t\n", p, content, err == nil)
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil {
			fmt.Fprintf(&b, "%s %v\n", p, err)
			continue
		}
		fmt.Fprintf(&b, "%s %d %d %o %d %d %d %d %d\n", p, st.Dev, st.Ino, st.Mode, st.Uid, st.Gid, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
	}
	return b.String()
}
