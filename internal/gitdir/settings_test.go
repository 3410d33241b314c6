package gitdir

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const usersConfig = `
[user]
	name = "Ada \"A\" \\ L"
	email = ada@example.com
	signingKey = ABCDEF
[core]
	autocrlf = input
	quotePath
	pager = less
	editor = vi
	fsmonitor = touch made
	hooksPath = ~/hooks
	sshCommand = ssh -i ~/.ssh/key
	excludesFile = ~/global
	attributesFile = attrs
	askPass = prog
[include]
	path = evil
[url "https://me:pw@example.com/"]
	insteadOf = x:
[remote "r"]
	url = https://me:pw@example.com/x
[credential]
	helper = store
	username = me
[credential "https://example.com"]
	helper = !echo token
[http]
	extraHeader = Authorization: Bearer x
	proxy = http://p:q@proxy/
[alias]
	st = status --short
	lg = log --format='%h %s'
	bad = !touch made
	worse = "  !touch made"
[filter "lfs"]
	clean = git-lfs clean -- %f
	required = true
[diff]
	external = touch made
	noprefix = true
	orderFile = /etc/order
[diff "odd \\ \"name"]
	textconv = touch made
	xfuncname = "^a"
[merge]
	conflictStyle = diff3
	tool = touch
[color "status"]
	added = green bold
[commit]
	gpgSign = true
	template = ~/message
[pull]
	rebase = /etc/passwd
[log]
	date = format:%Y/%m/%d
[advice]
	detachedHead = SECRET
[init]
	templateDir = ~/t
	defaultBranch = work/x
[gpg]
	program = gpg
[sendemail]
	smtpPass = pw
`

func noSecret([]byte) bool { return false }

// The user's configuration comes along by a list of names and by what their values can
// hold; git reads what is written as what it was.
func TestX30SettingsOfTheUser(t *testing.T) {
	home := t.TempDir()
	writeAt(t, home, ".config/git/config", "[user]\nname = General\nemail = general@example.com\n[color]\n\tui = always\n")
	writeAt(t, home, ".gitconfig", usersConfig)
	writeAt(t, home, "evil", "[user]\nname = Evil\n")
	writeAt(t, home, "global", "*.bak\n")
	writeAt(t, home, "attrs", "*.txt text\n")
	s := cellSettings("", home, func(b []byte) bool { return bytes.Contains(b, []byte("SECRET")) })
	writeAt(t, home, "made", string(s.Config))
	out := gitOracle(t, home, "", "config", "--file", "made", "--list")
	want := `core.checkstat=minimal
core.trustctime=false
safe.directory=*
user.name=General
user.email=general@example.com
color.ui=always
user.name=Ada "A" \ L
user.email=ada@example.com
core.autocrlf=input
core.quotepath
alias.st=status --short
alias.lg=log --format='%h %s'
filter.lfs.clean=git-lfs clean -- %f
filter.lfs.required=true
diff.noprefix=true
diff.odd \ "name.xfuncname=^a
merge.conflictstyle=diff3
color.status.added=green bold
log.date=format:%Y/%m/%d
init.defaultbranch=work/x
`
	if out != want {
		t.Errorf("cells get\n%s\nwant\n%s", out, want)
	}
	if !s.Signs || string(s.Ignore) != "*.bak\n" || string(s.Attributes) != "*.txt text\n" {
		t.Errorf("signs %v, ignore %q, attributes %q", s.Signs, s.Ignore, s.Attributes)
	}

	// A value can't bring settings of its own along; what is no rule stays outside.
	writeAt(t, home, ".gitconfig", "[user]\nname = \"x\\n[core]\\n\\tfsmonitor = touch made\\n\"\n[core]\nexcludesFile = key\n[commit]\ngpgsign = true\ngpgsign = false\n")
	writeAt(t, home, "key", "SECRET\n")
	s = cellSettings("", home, func(b []byte) bool { return bytes.Contains(b, []byte("SECRET")) })
	if strings.Contains(string(s.Config), "fsmonitor") || s.Ignore != nil || s.Attributes != nil || s.Signs {
		t.Errorf("%s; ignore %q, attributes %q, signs %v", s.Config, s.Ignore, s.Attributes, s.Signs)
	}
	writeAt(t, home, ".config/git/ignore", "*.tmp\n")
	if err := os.Remove(filepath.Join(home, ".gitconfig")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(home, ".gitconfig")); err != nil {
		t.Fatal(err)
	}
	s = cellSettings("", home, noSecret)
	if configValue(s.Config, "user.name") != "General" || string(s.Ignore) != "*.tmp\n" {
		t.Errorf("a device is read: %s, ignore %q", s.Config, s.Ignore)
	}

	// Of no user.
	if s = cellSettings("", "", noSecret); configValue(s.Config, "core.checkstat") != "minimal" || strings.Contains(string(s.Config), "user") || s.Ignore != nil {
		t.Errorf("of nobody: %s, ignore %q", s.Config, s.Ignore)
	}
}

// Of no variable a value comes along that is an address or, but for filters, a program of
// the host.
func TestX30SettingsAreBounded(t *testing.T) {
	for name, kind := range shared() {
		first, rest, _ := strings.Cut(name, ".")
		sub, key, has := strings.Cut(rest, ".")
		if !has {
			sub, key = "", rest
		}
		key = strings.Replace(key, "*", "any", 1)
		for _, v := range []string{"https://me:pw@example.com/", "!touch made", "/bin/x", "~/x", "a\nb", "\x1b[2J", strings.Repeat("x", 2000), "\xff"} {
			if kind == isText && v[0] == '!' || kind == isRef && v[0] == '!' || kind == isGit && (v[0] == '/' || v[0] == '~') || kind == isProgram && strings.ContainsAny(v[:1], "!/~") || kind == isWord && v == "!touch made" {
				continue
			}
			if shares(first, sub, key, v) {
				t.Errorf("%s = %q comes along", name, v)
			}
		}
	}
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte(usersConfig))
	f.Add([]byte("[a \"b\\\"]\"]\nc\n[user]name=\\\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newSettings("/home/u", noSecret)
		s.add(b)
		got, want := configReader{rest: s.out}, configReader{rest: bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))}
		for range 3 { // pando's own
			got.next()
		}
		for want.next() {
			first, sub, _ := strings.Cut(want.section, " ")
			if !shares(first, strings.TrimSpace(sub), want.key, want.value) || len(s.out) > maxSettings {
				return
			}
			if !got.next() || got.section != want.section || got.key != want.key || got.value != want.value || got.bare != want.bare {
				t.Fatalf("[%s] %s = %q is read back as [%s] %s = %q", want.section, want.key, want.value, got.section, got.key, got.value)
			}
		}
		if got.next() {
			t.Fatalf("more is written: %s", s.out)
		}
	})
}
