package cli

import (
	"bufio"
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/bluekeyes/go-gitdiff/gitdiff"
)

const hunksBase = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n17\n18\n19\n20\n"

const hunksPatch = `diff --git a/f b/f
index 1111111..2222222 100644
--- a/f
+++ b/f
@@ -1,8 +1,8 @@
 1
-2
+two
 3
 4
-5
+five
 6
 7
 8
@@ -16,5 +16,6 @@
 16
 17
 18
+eighteen and a half
 19
 20
diff --git a/new b/new
new file mode 100644
index 0000000..3333333
--- /dev/null
+++ b/new
@@ -0,0 +1 @@
+new` + "\t\x1b[31m" + `
diff --git a/old b/moved
similarity index 100%
rename from old
rename to moved
`

// answers answers the questions about hunksPatch, and returns what is taken, and what f becomes.
func answers(t *testing.T, edit func(string) (string, error), keys ...string) (paths []string, f, said string) {
	t.Helper()
	files, _, err := gitdiff.Parse(strings.NewReader(hunksPatch))
	if err != nil || len(files) != 3 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	var out bytes.Buffer
	p := &picker{in: bufio.NewReader(strings.NewReader(strings.Join(keys, "\n") + "\n")), out: &out, edit: edit}
	paths, patch := p.pick(files)
	some, _, err := gitdiff.Parse(strings.NewReader(patch))
	if err != nil {
		t.Fatalf("the patch is no patch: %v\n%s", err, patch)
	}
	var text bytes.Buffer
	for _, s := range some {
		if s.OldName != "f" || s.NewName != "f" || len(some) > 1 {
			t.Errorf("the patch is of %q and %q:\n%s", s.OldName, s.NewName, patch)
		}
		if err := gitdiff.Apply(&text, strings.NewReader(hunksBase), s); err != nil {
			t.Errorf("the patch does not fit: %v\n%s", err, patch)
		}
	}
	return paths, text.String(), out.String()
}

// what changed in f is, of the lines of hunksBase, 2, 5, and one after 18.
func hunksText(two, five, more string) string {
	s := strings.Replace(hunksBase, "2\n", two+"\n", 1)
	s = strings.Replace(s, "5\n", five+"\n", 1)
	return strings.Replace(s, "18\n", "18\n"+more, 1)
}

func TestHunksAreTakenAsGitAddDoes(t *testing.T) {
	t.Parallel()
	const more = "eighteen and a half\n"
	for _, c := range []struct {
		keys  string
		paths string
		f     string
	}{
		{"y y y y", "f new old moved", ""},
		{"a y n", "f new", ""},
		{"n n n n", "", ""},
		{"d d d", "", ""},
		{"y n n n", "", hunksText("two", "five", "")},
		{"n y n n", "", hunksText("2", "5", more)},
		{"s n y n n n", "", hunksText("2", "five", "")},
		{"s y n y y n", "new", hunksText("two", "5", more)},
		{"s y y y n y", "f old moved", ""},
		{"j y k n q", "", hunksText("2", "5", more)},
		{"J K y q", "", hunksText("two", "five", "")},
		{"s J J K K d y", "new", ""},
		{"x ? y", "", hunksText("two", "five", "")}, // the input ends
		{"q", "", ""},
	} {
		paths, f, said := answers(t, nil, strings.Fields(c.keys)...)
		if !slices.Equal(paths, strings.Fields(c.paths)) || f != c.f {
			t.Errorf("%q takes %q, and f becomes\n%s\nafter\n%s", c.keys, paths, f, said)
		}
	}
}

// What is shown of a file is harmless, and says what can be answered.
func TestHunksAreShown(t *testing.T) {
	t.Parallel()
	_, _, said := answers(t, nil, "s", "?", "n", "n", "n", "y", "n")
	for _, want := range []string{
		"file f\n@@ -1,8 +1,8 @@\n 1\n-2\n+two\n", "(1/2) Take this hunk [y,n,q,a,d,j,J,s,e,?]? split into 2 hunks\n",
		"(1/3) Take this hunk [y,n,q,a,d,j,J,e,?]? y - take this hunk\n", "]? @@ -3,6 +3,6 @@\n 3\n 4\n-5\n+five\n 6\n",
		"new file new\n+new\t\\x1b[31m\n(1/1) Take this file [y,n,q,a,d,?]? ", "file old renamed to moved\n(1/1) Take this file",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
}

// An edited hunk has the lines of the source still.
func TestHunksAreEdited(t *testing.T) {
	t.Parallel()
	swap := func(pairs ...string) func(string) (string, error) {
		return func(text string) (string, error) {
			if !strings.Contains(text, "\n# To leave") {
				t.Errorf("without an explanation: %q", text)
			}
			return strings.NewReplacer(pairs...).Replace(text), nil
		}
	}
	for _, c := range []struct {
		edit func(string) (string, error)
		f    string
		said string
	}{
		{swap("+two\n", "+zwei\n+deux\n", "-5\n+five\n", " 5\n"), hunksText("zwei\ndeux", "5", ""), ""},
		{swap("-5\n", " 5\n"), hunksText("two", "5\nfive", ""), ""},
		{swap(" 3\n", ""), "", "lines of the source were changed"},
		{swap(" 3\n", "3\n"), "", "a line begins with"},
		{swap("-2\n+two\n", " 2\n", "-5\n+five\n", " 5\n"), "", "no change is left"},
		{func(string) (string, error) { return "", errors.New("it failed") }, "", "the hunk is as it was: it failed"},
	} {
		if _, f, said := answers(t, c.edit, "e", "q"); f != c.f || !strings.Contains(said, c.said) {
			t.Errorf("f becomes\n%s\nafter\n%s", f, said)
		}
	}
}
