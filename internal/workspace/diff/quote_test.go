package diff

import (
	"testing"
)

func TestShellWord(t *testing.T) {
	for path, want := range map[string]string{
		"a/.b-c_1": "a/.b-c_1", "a b": "'a b'", "-rf": "'-rf'", "it's": `'it'\''s'`, "$(x)": "'$(x)'", "é": "'é'",
		"a\nb'c\x1b": `$'a\nb\'c\033'`, "\xff\"": `$'\377\"'`, "": "''",
	} {
		if got := ShellWord(path); got != want {
			t.Errorf("%q is %s, want %s", path, got, want)
		}
	}
}
