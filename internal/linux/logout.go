package linux

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// AtLogout is what the end of a user's login does to a process.
type AtLogout struct {
	UID string // of the user; "": nothing happens to the process
	// Session says that the process is in the scope of a login, the processes of which systemd kills with it
	// whether the user lingers or not. Else it is below the user's own systemd, which ends with the
	// last login unless the user lingers.
	Session bool
}

// LogoutOf returns what the end of a login does to a process, by what is below root ("" for this
// host). name returns the name of the user with an id, "" if it is not known. Where systemd does not
// run, or where it can't be told, nothing happens.
func LogoutOf(root, pid string, name func(uid string) string) AtLogout {
	read := func(path string) string {
		b, _ := os.ReadFile(root + path)
		return string(b)
	}
	if _, err := os.Stat(root + "/run/systemd/system"); err != nil {
		return AtLogout{}
	}
	in := regexp.MustCompile(`(?m)^(?:0:|\d+:name=systemd):/user\.slice/user-(\d+)\.slice/(user@|session-)[^/\n]*`).FindStringSubmatch(read("/proc/" + pid + "/cgroup"))
	switch {
	case in == nil:
		return AtLogout{}
	case in[2] == "session-":
		if kills(root, read) {
			return AtLogout{UID: in[1], Session: true}
		}
		return AtLogout{}
	}
	if user := name(in[1]); user != "" {
		if _, err := os.Lstat(root + "/var/lib/systemd/linger/" + user); err != nil {
			return AtLogout{UID: in[1]}
		}
	}
	return AtLogout{}
}

// kills reports whether logind kills what is left of a login when that ends: by the last setting
// that is made, or else by the default, which distributions leave as a comment in its file.
func kills(root string, read func(path string) string) (is bool) {
	files := []string{"/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf"}
	more, _ := filepath.Glob(root + "/etc/systemd/logind.conf.d/*.conf")
	for _, f := range more {
		files = append(files, strings.TrimPrefix(f, root))
	}
	set := false
	for _, f := range files {
		for l := range strings.Lines(read(f)) {
			comment, v, ok := strings.Cut(strings.TrimSpace(l), "KillUserProcesses=")
			if !ok || comment != "" && (comment != "#" || set) {
				continue
			}
			is, set = v == "yes" || v == "true" || v == "1" || v == "on", set || comment == ""
		}
	}
	return is
}
