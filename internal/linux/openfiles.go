package linux

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenForWriting returns the files that a process can write to through the mount
// at a place, as it sees them.
func OpenForWriting(pid int, place string) (list []string) {
	dir := "/proc/" + strconv.Itoa(pid)
	mounts := mountsAt(dir, place)
	fds, _ := os.ReadDir(dir + "/fd")
	for _, fd := range fds {
		info, err := os.ReadFile(dir + "/fdinfo/" + fd.Name())
		if err != nil {
			continue
		}
		flags, _ := strconv.ParseInt(StatusField(info, "flags"), 8, 64)
		if flags&unix.O_ACCMODE == unix.O_RDONLY || flags&unix.O_PATH != 0 || !mounts[StatusField(info, "mnt_id")] {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(dir+"/fd/"+fd.Name(), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG { // pipes and devices hold no mount
			if file, err := os.Readlink(dir + "/fd/" + fd.Name()); err == nil && !slices.Contains(list, file) {
				list = append(list, file)
			}
		}
	}
	return list
}

// mountsAt are the numbers of the mounts at a place, as a process sees it.
func mountsAt(dir, place string) map[string]bool {
	b, _ := os.ReadFile(dir + "/mountinfo")
	ids := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && unescapeMount(f[4]) == path.Clean(place) {
			ids[f[0]] = true
		}
	}
	return ids
}
