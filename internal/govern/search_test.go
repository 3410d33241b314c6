package govern

import (
	"bufio"
	"io"
	"strings"
	"testing"
)

func TestPatchTextLeavesOutBinaryFiles(t *testing.T) {
	t.Parallel()
	text := "diff --git a/x b/x\n+a line\n+GIT binary patch\ndiff --git a/y b/y\nGIT binary patch\nliteral 9\nzcmV\n\ndiff --git a/z b/z\n+" + strings.Repeat("long ", 40000) + "\n+end"
	got, err := io.ReadAll(&patchText{in: bufio.NewReaderSize(strings.NewReader(text), 4096)})
	want := strings.Replace(text, "GIT binary patch\nliteral 9\nzcmV\n\n", "", 1)
	if err != nil || string(got) != want {
		t.Errorf("%v: %d bytes, want %d", err, len(got), len(want))
	}
}
