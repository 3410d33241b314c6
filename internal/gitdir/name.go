package gitdir

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// IsDotGit reports whether git, on some file system, would take name for ".git". Git itself
// refuses to store such names (verify_path in its source): other cases, dots, spaces and streams
// that NTFS drops, the short name "git~1", and code points that HFS+ ignores. A backslash
// separates folders on Windows.
func IsDotGit(name string) bool {
	if name == "" {
		return false
	}
	if c := name[0]; c != '.' && c != 'g' && c != 'G' && c < utf8.RuneSelf && strings.IndexByte(name, '\\') < 0 {
		return false
	}
	for part := range strings.SplitSeq(name, `\`) {
		switch FoldName(part) {
		case ".git", "git~1":
			return true
		}
	}
	return false
}

// IsDotGitmodules is the same for ".gitmodules", which git refuses as a symlink. NTFS has
// several short names for it; it matches all names that git refuses, and a few more.
func IsDotGitmodules(name string) bool {
	s := FoldName(name)
	if s == ".gitmodules" {
		return true
	}
	short, number, ok := strings.Cut(s, "~")
	if !ok || short == "" || strings.Trim(number, "0123456789") != "" {
		return false
	}
	return short == "gitmod" || strings.HasPrefix("gi7eba", short)
}

// Inside reports whether path is a ".git" on some file system, or lies below one.
func Inside(path string) bool { return Enclosing(path) != "" }

// Enclosing returns the part of path that ends with a ".git", "" if none.
func Enclosing(path string) string {
	for i := 0; i <= len(path); i++ {
		if (i == len(path) || path[i] == '/') && IsDotGit(path[strings.LastIndexByte(path[:i], '/')+1:i]) {
			return path[:i]
		}
	}
	return ""
}

// FoldName maps all names that some file system considers equal to one spelling: it folds case
// and drops invisible characters, NTFS streams, and dots and spaces at the end.
func FoldName(name string) string {
	ascii := true
	for i := 0; i < len(name); i++ {
		ascii = ascii && name[i] < utf8.RuneSelf
	}
	if !ascii {
		name = strings.Map(func(r rune) rune {
			if unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) {
				return -1
			}
			return r
		}, name)
		name = strings.ToUpper(name) // some letters, such as U+017F, reach their ASCII form only this way
	}
	if i := strings.IndexByte(name, ':'); i > 0 {
		name = name[:i]
	}
	return strings.ToLower(strings.TrimRight(name, ". "))
}

// FoldPath folds each name of a path.
func FoldPath(path string) string {
	parts := strings.Split(strings.ReplaceAll(path, `\`, "/"), "/")
	for i, p := range parts {
		parts[i] = FoldName(p)
	}
	return strings.Join(parts, "/")
}
