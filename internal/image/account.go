package image

import (
	"fmt"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// An account is a user or group that programs expect to find.
type account struct {
	name string
	id   int
	home string
}

var systemUsers = []account{
	{"root", 0, "/root"}, {"daemon", 1, "/usr/sbin"}, {"bin", 2, "/bin"}, {"sys", 3, "/dev"}, {"games", 5, "/usr/games"},
	{"man", 6, "/var/cache/man"}, {"mail", 8, "/var/mail"}, {"www-data", 33, "/var/www"}, {"nobody", 65534, "/nonexistent"},
}

var systemGroups = []account{
	{name: "root", id: 0}, {name: "daemon", id: 1}, {name: "bin", id: 2}, {name: "sys", id: 3}, {name: "adm", id: 4}, {name: "tty", id: 5},
	{name: "disk", id: 6}, {name: "man", id: 12}, {name: "mail", id: 8}, {name: "kmem", id: 15}, {name: "audio", id: 29}, {name: "www-data", id: 33},
	{name: "utmp", id: 43}, {name: "video", id: 44}, {name: "staff", id: 50}, {name: "games", id: 60}, {name: "users", id: 100}, {name: "nogroup", id: 65534},
}

// generated are the files of /etc that are a cell's own. hosts, hostname,
// machine-id and resolv.conf are there to be covered by the backend, which
// knows their content.
func generated(user cell.User, shell string) map[string]string {
	name := accountName(user.Name)
	var passwd, group strings.Builder
	// The cell's user comes first: a lookup of its number returns its name.
	fmt.Fprintf(&passwd, "%s:x:%d:%d::%s:%s\n", name, user.UID, user.GID, fieldOf(user.Home), shell)
	for _, u := range systemUsers {
		if u.name == name {
			continue
		}
		sh := "/usr/sbin/nologin"
		if u.id == 0 {
			sh = shell
			if user.UID == 0 {
				u.home = fieldOf(user.Home)
			}
		}
		fmt.Fprintf(&passwd, "%s:x:%d:%d:%s:%s:%s\n", u.name, u.id, u.id, u.name, u.home, sh)
	}
	fmt.Fprintf(&group, "%s:x:%d:\n", name, user.GID)
	for _, g := range systemGroups {
		if g.name != name {
			fmt.Fprintf(&group, "%s:x:%d:\n", g.name, g.id)
		}
	}
	return map[string]string{
		"passwd":        passwd.String(),
		"group":         group.String(),
		"nsswitch.conf": nsswitch("files dns files"),
		"hosts":         "127.0.0.1 localhost\n::1 localhost\n",
		"hostname":      "",
		"machine-id":    "",
		"resolv.conf":   silentResolv,
		"environment":   "",
		"profile":       profile,
	}
}

// nsswitch is nsswitch.conf with these sources of hosts. In a cell without a network no resolver
// answers, which programs would take for a temporary fault, and try again for a minute: with
// "files dns files" the last source says that there is no such host, and the question that was
// asked in vain is still counted (linux.Tried). A cell that talks has "files dns": there a fault
// may be temporary.
func nsswitch(hosts string) string {
	return "passwd: files\ngroup: files\nshadow: files\nhosts: " + hosts + "\nnetworks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n"
}

// silentResolv is resolv.conf in a cell without a network. musl has no nsswitch.conf, does not
// see that nothing listens on the loopback, and waits for five seconds: here, for its shortest
// time in which it asks at all, and its question is counted. It still says "try again".
const silentResolv = "options timeout:1 attempts:1\n"

// profile replaces the host's, which would throw PATH away, and the snippets
// it reads, which may hold anything.
const profile = `# A login shell in a cell keeps the environment it is given.
if [ "${PS1-}" ]; then
	if [ "${BASH-}" ] && [ "$BASH" != "/bin/sh" ]; then
		if [ -f /etc/bash.bashrc ]; then . /etc/bash.bashrc; elif [ -f /etc/bashrc ]; then . /etc/bashrc; fi
	fi
fi
`

// accountName makes a name that can't break a line of passwd.
func accountName(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return -1
	}, s)
	if s == "" {
		return "user"
	}
	return s
}

func fieldOf(s string) string {
	return strings.Map(func(r rune) rune {
		if r == ':' || r < ' ' {
			return -1
		}
		return r
	}, s)
}
