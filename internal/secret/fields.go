package secret

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// A fieldRow is a kind of file that is of use without its secret fields: the
// fields are emptied, the rest stays as it is. In all of them a password in a
// URL ("https://user:password@host/") is a field, too.
type fieldRow struct {
	patterns []string // as in nameRow
	why      string
	find     func(content []byte, secret func(key, value string) bool) []fieldEdit
	secret   func(key, value string) bool // key is in lower case
}

// fieldRows is the one table of them.
var fieldRows = []fieldRow{
	{[]string{".npmrc", "npmrc"}, "npm tokens", iniFields, anyKey("_authtoken", "_auth", "_password", "key")},
	{[]string{".yarnrc"}, "npm tokens", wordFields, anyKey("_authtoken", "_auth", "_password")},
	{[]string{".yarnrc.yml"}, "npm tokens", textFields, anyKey("npmauthtoken", "npmauthident")},
	{[]string{"bunfig.toml"}, "npm tokens", textFields, anyKey("token", "password")},
	{[]string{".pypirc"}, "PyPI passwords", pythonFields, anyKey("password")},
	{[]string{"pip.conf", "pip.ini", "uv.toml", "pipfile", ".condarc", "poetry.toml", ".pdm.toml"}, "package index passwords", nil, nil},
	{[]string{".gemrc"}, "RubyGems keys", textFields, keyEnding("api_key")},
	{[]string{".bundle/config"}, "gem source passwords", textFields, bundleKey},
	{[]string{".cargo/config", ".cargo/config.toml"}, "cargo tokens", textFields, anyKey("token", "secret-key")},
	{[]string{"nuget.config"}, "NuGet passwords", xmlFields, anyKey("cleartextpassword", "password", "apikey")},
	{[]string{".m2/settings.xml", ".m2/settings-security.xml"}, "Maven passwords", xmlFields, anyKey("password", "passphrase", "master")},
	{[]string{"gradle.properties", "local.properties"}, "Gradle passwords", propertyFields, keyEnding("password", "passphrase", "token", "secret", "apikey", "api_key", "api.key", "secretkey", "gpr.key", "keypass", "storepass")},
	{[]string{".git/config", ".git/config.worktree"}, "git credentials", repositoryFields, gitKey}, // and wherever isGitConfig says
	{[]string{".gitconfig", ".config/git/config", ".gitmodules"}, "git credentials", gitFields, gitKey},
	{[]string{".git/fetch_head"}, "git credentials", nil, nil}, // and the logs
	{[]string{".hgrc", ".hg/hgrc"}, "Mercurial passwords", pythonFields, keyEnding("password")},
	{[]string{".curlrc", "_curlrc"}, "passwords", wordFields, curlKey},
	{[]string{".wgetrc"}, "passwords", iniFields, keyEnding("password", "header")},
}

// fieldsOf returns the row for a path, nil if there is none.
func fieldsOf(comps []string, isDir bool) *fieldRow {
	if isDir {
		return nil
	}
	t := fieldTables()
	if row := t.names.find(comps); row != nil {
		return t.rows[row]
	}
	for i, c := range comps[:len(comps)-1] {
		if !strings.HasSuffix(c, ".git") { // ".git" itself, and "name.git"
			continue
		}
		switch last := comps[len(comps)-1]; {
		case comps[i+1] == "objects" || comps[i+1] == "refs":
		case last == "config" || last == "config.worktree": // modules/*/config, worktrees/*/config.worktree
			return t.git
		case last == "fetch_head" || slices.Contains(comps[i+1:], "logs"):
			return t.urls
		}
	}
	return nil
}

// More than any file with fields has.
const (
	maxFieldFile = 1 << 20
	maxFieldLine = 16 << 10
)

// ScrubFields empties the secret fields of a file that Decide wants scrubbed
// and names them, with their lines. The rest stays byte by byte. A value that
// only refers to the environment (${NPM_TOKEN}) is no secret and stays.
//
// It is not ok, and the file must stay out, if path is no such file, if content
// is no text, or if something with the shape of a live token would remain.
func ScrubFields(path string, content []byte) (out []byte, fields []string, ok bool) {
	row := fieldsOf(components(path))
	if row == nil || len(content) > maxFieldFile || bytes.IndexByte(content, 0) >= 0 {
		return nil, nil, false
	}
	for line := range bytes.Lines(content) {
		if len(line) > maxFieldLine {
			return nil, nil, false
		}
	}
	edits := urlFields(content)
	if row.find != nil {
		edits = append(edits, row.find(content, row.secret)...)
	}
	slices.SortStableFunc(edits, func(a, b fieldEdit) int {
		if a.from != b.from {
			return a.from - b.from
		}
		return b.to - a.to
	})
	done, line := 0, 1
	for _, e := range edits {
		if e.from < done || (e.from == e.to && e.with == "") {
			continue // within a field that is emptied as a whole
		}
		line += bytes.Count(content[done:e.from], []byte("\n"))
		fields = append(fields, fmt.Sprintf("line %d: %s", line, e.name))
		line += bytes.Count(content[e.from:e.to], []byte("\n"))
		out = append(out, content[done:e.from]...)
		out = append(out, e.with...)
		done = e.to
	}
	out = append(out, content[done:]...)
	if len(Scan(path, out)) > 0 {
		return nil, nil, false
	}
	return out, fields, true
}

func anyKey(keys ...string) func(string, string) bool {
	return func(key, _ string) bool { return slices.Contains(keys, key) }
}

func keyEnding(ends ...string) func(string, string) bool {
	return func(key, _ string) bool {
		for _, e := range ends {
			if strings.HasSuffix(key, e) {
				return true
			}
		}
		return false
	}
}

// gitKey: secrets that people put into a git config.
func gitKey(key, value string) bool {
	switch key {
	case "extraheader", "smtppass", "pass", "password", "token", "oauth-token", "oauthtoken", "apikey", "privatetoken", "accesstoken", "secret":
		return true
	case "helper": // a shell command that prints a password, or has one
		v := strings.ToLower(value)
		return strings.HasPrefix(strings.Trim(v, `"`), "!") && (strings.Contains(v, "password") || strings.Contains(v, "echo") || strings.Contains(v, "printf"))
	}
	return false
}

// curlKey: options with a password or a header that lets in.
func curlKey(key, value string) bool {
	switch strings.TrimLeft(key, "-") {
	case "u", "user", "proxy-user", "oauth2-bearer", "pass", "proxy-pass":
		return true
	case "h", "header", "proxy-header":
		v := strings.ToLower(value)
		return strings.Contains(v, "auth") || strings.Contains(v, "token") || strings.Contains(v, "key") || strings.Contains(v, "cookie")
	}
	return false
}

// bundleKey: BUNDLE_<HOST WITH "__" FOR DOTS>: "user:password".
func bundleKey(key, value string) bool {
	if !strings.HasPrefix(key, "bundle_") || !strings.Contains(key, "__") || strings.ContainsAny(value, " \t") {
		return false
	}
	for _, other := range []string{"bundle_build__", "bundle_local__", "bundle_mirror__", "bundle_disable"} {
		if strings.HasPrefix(key, other) {
			return false
		}
	}
	return value != "true" && value != "false"
}

type fieldTable struct {
	names     *nameTable
	rows      map[*nameRow]*fieldRow
	git, urls *fieldRow
}

var fieldTables = sync.OnceValue(func() *fieldTable {
	t := &fieldTable{names: &nameTable{exact: map[string][]nameRule{}}, rows: map[*nameRow]*fieldRow{}}
	for i := range fieldRows {
		row := &fieldRows[i]
		for _, p := range row.patterns {
			r := &nameRow{p, row.why}
			t.rows[r] = row
			t.names.add(r)
		}
		switch row.patterns[0] {
		case ".git/config":
			t.git = row
		case ".git/fetch_head":
			t.urls = row
		}
	}
	return t
})

// urlFields are the passwords in URLs, and user names that are tokens.
func urlFields(content []byte) (edits []fieldEdit) {
	for at := 0; ; {
		i := bytes.Index(content[at:], []byte("://"))
		if i < 0 {
			return edits
		}
		at += i + 3
		end := at
		for end < len(content) && strings.IndexByte("/?#\\ \t\r\n\"'`<>", content[end]) < 0 {
			end++
		}
		n := bytes.LastIndexByte(content[at:end], '@')
		if n <= 0 {
			continue
		}
		user, password, both := strings.Cut(string(content[at:at+n]), ":")
		from := at + len(user)
		to := at + n
		if user == "" || password == "x-oauth-basic" || isTokenName(user) {
			from, to = at, to+1 // the token is the user, or there is none
		} else if !both || password == "" {
			continue
		}
		if !isReference(password) || isTokenName(user) {
			edits = append(edits, fieldEdit{from, to, "", "password in a URL"})
		}
		at = to
	}
}

// isTokenName tells a token in the place of a user's name.
func isTokenName(user string) bool {
	return len(Scan("", []byte(user))) > 0 || len(user) >= 20 && len(leading([]byte(user), alnumLine)) == len(user) && strings.ContainsAny(user, "0123456789") && looksRandom([]byte(user))
}

// isReference reports whether a value is only the name of a variable: ${NAME},
// $NAME, ${env.NAME}, ${NAME-} or %NAME%.
func isReference(value string) bool {
	v := strings.Trim(value, `"' `)
	name, ok := strings.CutPrefix(v, "$")
	if ok && strings.HasPrefix(name, "{") && strings.HasSuffix(name, "}") {
		name = strings.TrimRight(name[1:len(name)-1], ":-?")
	} else if len(v) > 2 && v[0] == '%' && v[len(v)-1] == '%' {
		name, ok = v[1:len(v)-1], true
	}
	return ok && name != "" && len(leading([]byte(name), alnumLine.or(newByteSet(".")))) == len(name)
}
