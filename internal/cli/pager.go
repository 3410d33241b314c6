package cli

import (
	"os"
	"os/exec"
	"strings"
)

// pager shows text in the user's pager, less by default. It reports whether that worked.
func pager(text string, out *os.File) bool {
	words := strings.Fields(os.Getenv("PAGER"))
	if len(words) == 0 {
		words = []string{"less"}
	}
	if words[0] == "cat" {
		return false
	}
	path, err := exec.LookPath(words[0])
	if err != nil {
		return false
	}
	cmd := exec.Command(path, words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(text), out, os.Stderr
	cmd.Env = append(os.Environ(), "LESS=FRX", "LESSSECURE=1")
	return cmd.Run() == nil
}
