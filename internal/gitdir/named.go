//go:build linux

package gitdir

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A Named is a path below a source that a configuration names: the program with that
// configuration runs the file, or reads it as configuration.
type Named struct {
	Path string // relative to the source, clean; "." is the whole source
	Why  string // the configuration that names it
	// Exact: only the path itself counts, without files below it.
	Exact bool
	// Anywhere: the path may begin in any folder, since it follows a variable of unknown value.
	Anywhere bool
}

// Places are the places of configuration, and the bases of relative paths.
type Places struct {
	Source string   // the source: absolute, free of symlinks
	Homes  []string // home directories of the users of the source
	Extra  []string // further configuration files of git
	System string   // prefix of /etc; "" outside of tests
	Nested []string // folders of the source with a repository of their own
	Beside []string // work trees beside the source, used together with it; absolute
}

// namer collects the names in configurations.
type namer struct {
	Places
	list []Named
	seen map[string]bool // files that were read
	have map[Named]bool
}

// maxConfigs bounds the configuration files; a source with more counts as unreadable.
const maxConfigs = 2000

func newNamer(p Places) *namer {
	return &namer{Places: p, seen: map[string]bool{}, have: map[Named]bool{}}
}

func (n *namer) add(v Named) {
	if !n.have[v] {
		n.have[v] = true
		n.list = append(n.list, v)
	}
}

// open reads a file once. An unreadable file makes all of the source a control path, since its
// names are unknown.
func (n *namer) open(file string) []byte {
	if n.seen[file] {
		return nil
	}
	n.seen[file] = true
	if len(n.seen) > maxConfigs {
		n.add(Named{Path: ".", Why: fmt.Sprintf("more than %d configuration files say what is run here", maxConfigs)})
		return nil
	}
	st, err := os.Stat(file)
	if err != nil || st.IsDir() || st.Mode()&os.ModeDevice != 0 {
		return nil // no program reads it either; /dev/null is empty
	}
	b, err := readRegular(file, maxFile)
	if err != nil && !os.IsNotExist(err) && !os.IsPermission(err) {
		n.add(Named{Path: ".", Why: fmt.Sprintf("what is run here can't be told: %v", err)})
	}
	return b
}

// name adds the paths of word, relative to each base.
func (n *namer) name(w word, bases []string, v Named) {
	text, anywhere := w.text, false
	if i := strings.LastIndexByte(text, unknown); i >= 0 {
		text, anywhere = strings.TrimLeft(text[i+1:], "/"), true
	}
	text, glob := beforeGlob(text)
	if text == "" || len(text) > 4096 {
		return
	}
	if anywhere {
		for strings.HasPrefix(text, "../") || strings.HasPrefix(text, "./") {
			_, text, _ = strings.Cut(text, "/")
			text = strings.TrimLeft(text, "/")
		}
		if p := filepath.Clean(text); p != "." && p != ".." {
			v.Path, v.Anywhere = p, true
			n.add(v)
		}
		return
	}
	if glob {
		v.Exact = false
	}
	for _, abs := range n.absolutes(text, bases) {
		if p, ok := n.below(abs); ok && (p != "." || w.all) {
			v.Path = p
			n.add(v)
		}
	}
}

// beforeGlob cuts a word at its first wildcard, back to the folder before it.
func beforeGlob(s string) (string, bool) {
	i := strings.IndexAny(s, "*?[")
	if i < 0 {
		return s, false
	}
	return s[:strings.LastIndexByte(s[:i], '/')+1], true
}

// absolutes returns the absolute paths that a word may stand for.
func (n *namer) absolutes(text string, bases []string) (list []string) {
	if rest, ok := strings.CutPrefix(text, "~"); ok {
		user, rest, _ := strings.Cut(rest, "/")
		for _, h := range n.Homes {
			if user == "" || user == filepath.Base(h) {
				list = append(list, filepath.Join(h, rest))
			}
		}
		return list
	}
	text = strings.TrimPrefix(text, "file://")
	if filepath.IsAbs(text) {
		return []string{filepath.Clean(text)}
	}
	for _, b := range bases {
		list = append(list, filepath.Join(b, text))
	}
	return list
}

// below returns the path of abs below the source. Paths through a symlink into it count.
func (n *namer) below(abs string) (string, bool) {
	if p, ok := relative(n.Source, abs); ok {
		return p, true
	}
	for dir, rest := abs, "."; dir != "/"; dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return relative(n.Source, filepath.Join(real, rest))
		}
	}
	return "", false
}

func relative(dir, abs string) (string, bool) {
	p, err := filepath.Rel(dir, abs)
	return p, err == nil && p != ".." && !strings.HasPrefix(p, "../")
}

// A word is a part of a value that may be a path.
type word struct {
	text  string
	first bool // a command begins with it
	all   bool // it may mean the source itself
}

// bare reports whether a word is only a name.
func (w word) bare() bool { return !strings.ContainsAny(w.text, "/"+string(rune(unknown))) }

// unknown stands for text that only a shell knows: variables, output of commands.
const unknown = '\x00'

// words splits a value as a shell would, and further: quoted and substituted parts within it,
// options with a value, lists with ':' or ','. It returns too many words rather than too few.
func words(value, home string) []word {
	s := splitter{home: home}
	s.command(value, 0)
	return s.words
}

type splitter struct {
	home  string
	words []word
}

// Bounds on the words of one value. The rest is one word.
const (
	maxWords   = 10_000
	maxNesting = 5
)

func (s *splitter) command(text string, depth int) {
	var cur strings.Builder
	first, quoted := true, false
	flush := func() {
		if cur.Len() > 0 || quoted {
			s.word(cur.String(), first, depth)
			first = false
		}
		cur.Reset()
		quoted = false
	}
	var quote byte
	for i := 0; i < len(text) && len(s.words) < maxWords; i++ {
		switch c := text[i]; {
		case c == unknown:
			cur.WriteByte(unknown)
		case quote == 0 && strings.IndexByte(" \t\r\n;|&<>(){},", c) >= 0:
			flush()
			first = first || c == ';' || c == '|' || c == '&' || c == '(' || c == '\n'
		case quote == 0 && (c == '"' || c == '\''):
			quote, quoted = c, true
		case c == quote && quote != 0:
			quote = 0
		case c == '\\' && quote != '\'' && i+1 < len(text):
			i++
			cur.WriteByte(text[i])
		case c == '$' && quote != '\'' && i+1 < len(text):
			i += s.variable(&cur, text[i+1:], depth)
		case c == '%' && i+1 < len(text) && isName(text[i+1]): // %workspace% and similar
			n := nameLen(text[i+1:])
			if i+1+n < len(text) && text[i+1+n] == '%' {
				cur.WriteByte(unknown)
				i += n + 1
			} else {
				cur.WriteByte(c)
			}
		case c == '`' && quote != '\'':
			end := strings.IndexByte(text[i+1:], '`')
			if end < 0 {
				end = len(text) - i - 1
			}
			if depth < maxNesting {
				s.command(text[i+1:i+1+end], depth+1)
			}
			cur.WriteByte(unknown)
			i += end + 1
		default:
			cur.WriteByte(c)
		}
	}
	flush()
}

// variable appends the unknown value of "$NAME", "${…}" or "$(…)" to cur, and returns its length
// after the dollar.
func (s *splitter) variable(cur *strings.Builder, text string, depth int) int {
	open, closing := text[0], byte(0)
	switch open {
	case '(':
		closing = ')'
	case '{':
		closing = '}'
	default:
		n := nameLen(text)
		if n == 0 {
			n = 1 // $1, $@
		}
		s.value(cur, text[:n])
		return n
	}
	end, level := 0, 0
	for ; end < len(text); end++ {
		if text[end] == open {
			level++
		}
		if text[end] == closing {
			if level--; level == 0 {
				break
			}
		}
	}
	inner := text[1:min(end, len(text))]
	if open == '{' {
		n := nameLen(inner)
		s.value(cur, inner[:n])
		inner = strings.TrimLeft(inner[n:], ":-=+?#%/^,")
	} else {
		cur.WriteByte(unknown)
	}
	if inner != "" && depth < maxNesting {
		s.command(inner, depth+1)
	}
	return min(end+1, len(text))
}

func (s *splitter) value(cur *strings.Builder, name string) {
	if name == "HOME" && s.home != "" {
		cur.WriteString(s.home)
		return
	}
	cur.WriteByte(unknown)
}

func isName(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func nameLen(s string) (n int) {
	for n < len(s) && isName(s[n]) {
		n++
	}
	return n
}

// word adds a word and the words within it.
func (s *splitter) word(text string, first bool, depth int) {
	if strings.ContainsAny(text, " \t\n;|&\"'`") && depth < maxNesting { // it was quoted: a command, or a path with blanks
		s.words = append(s.words, word{text: text, first: first})
		s.command(text, depth+1)
		return
	}
	text = strings.TrimLeft(text, "!@+")
	s.words = append(s.words, word{text: text, first: first})
	if strings.HasPrefix(text, "-") {
		s.words = append(s.words, word{text: strings.TrimLeft(text, "-")})
		if len(text) > 2 && text[1] != '-' {
			s.words = append(s.words, word{text: text[2:]})
		}
	}
	if strings.ContainsAny(text, "=:@") {
		for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '=' || r == ':' || r == '@' }) {
			s.words = append(s.words, word{text: strings.TrimLeft(part, "-")})
		}
	}
}

// A ConfigFile is a configuration file of some program other than git.
type ConfigFile struct {
	File string // absolute
	Base string // the folder that its paths begin in, beside its own
	Why  string // which file names it
	// Folders: it may name folders that programs are run from.
	Folders bool
}

// NamedIn returns what configuration files name, whatever their format: each
// word with a slash, or with a dot in it, may be a path. Comments and lines
// that only watch files do not count, and neither do words with wildcards,
// which say what a file is about.
func NamedIn(p Places, files []ConfigFile) []Named {
	n := newNamer(p)
	for _, f := range files {
		n.text(f, n.open(f.File))
	}
	return n.list
}

// text adds what the words of a text name.
func (n *namer) text(f ConfigFile, b []byte) {
	bases := []string{f.Base, filepath.Dir(f.File)}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' || strings.HasPrefix(line, "//") || strings.HasPrefix(line, "watch_") {
			continue
		}
		paths := f.Folders && strings.Contains(strings.ToLower(line), "path")
		for _, h := range append([]string{""}, n.Homes...) {
			for _, w := range words(strings.NewReplacer("[", " ", "]", " ").Replace(line), h) {
				if w.bare() && !paths && !strings.Contains(w.text, ".") || strings.ContainsAny(w.text, "*?") {
					continue
				}
				n.name(w, bases, Named{Why: f.Why, Exact: !f.Folders})
			}
		}
	}
}
