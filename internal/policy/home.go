package policy

import (
	"path"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// Home says what comes into the home of a cell before a run. Paths of the host are absolute, or
// begin with ~/. What the files have is no part of the policy; texts are.
type Home struct {
	Instructions []Instruction `json:"instructions,omitempty"`
	Git          GitIdentity   `json:"git,omitzero"`
	KnownHosts   string        `json:"known_hosts,omitempty"` // path on the host
	GH           string        `json:"gh,omitempty"`          // path on the host of a config.yml of gh
	Files        []HomeFile    `json:"files,omitempty"`
}

// Instruction is a text that an agent reads before each conversation: Text, or that of the file
// Source of the host.
type Instruction struct {
	For    string `json:"for"` // one of InstructionsFor
	Text   string `json:"text,omitempty"`
	Source string `json:"source,omitempty"`
}

// InstructionsFor are all agents together, and each.
func InstructionsFor() []string {
	return []string{"common", "claude", "codex", "copilot", "gemini", "opencode"}
}

// GitIdentity is the name and address under commits.
type GitIdentity struct {
	Name  string `json:"name"`
	Email string `json:"email"`
}

// HomeFile is a file of the host that is copied into the home.
type HomeFile struct {
	Source string `json:"source"`
	Target string `json:"target"` // below the home
	Secret bool   `json:"secret"` // it comes although it looks like a secret
}

// FileHome is the section home of a file.
type FileHome struct {
	Home
	GitLine   int
	FileLines []int          // of Files
	lines     map[string]int // of the rest, by the names of origins
}

// words are those of the section home.
func (h *FileHome) words() section {
	at := func(name string) func(int) {
		return func(n int) {
			if h.lines == nil {
				h.lines = map[string]int{}
			}
			h.lines[name] = n
		}
	}
	path := func(name string, dst *string) shape {
		return text{at: at(name), set: func(s string) error { *dst = s; return checkHostPath(s) }}
	}
	one := func(dst *string) shape {
		return text{set: func(s string) error {
			*dst = s
			if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '<' || r == '>' || r == '"' || r == '\\' }) {
				return cell.Errorf(cell.Invalid, "policy.ParseFile", "", "%s is no name or address of commits", Quoted(s))
			}
			return nil
		}}
	}
	var instructions []word
	for _, agent := range InstructionsFor() {
		about := "A text for " + agent + ", or {file: PATH} of the host."
		if agent == "common" {
			about = "A text for every agent, or {file: PATH} of the host."
		}
		instructions = append(instructions, word{name: agent, about: about, shape: h.instruction(agent, at("instructions "+agent))})
	}
	return section{words: []word{
		{name: "instructions", about: "What agents read before each conversation, beside the instructions of the repository.", shape: section{words: instructions}},
		{name: "git", about: "The name and address under commits. Without, those of your git configuration.", line: &h.GitLine, shape: section{words: []word{
			{name: "name", about: "As in user.name.", shape: one(&h.Git.Name), must: true},
			{name: "email", about: "As in user.email.", shape: one(&h.Git.Email), must: true},
		}}},
		{name: "known_hosts", about: "Path of a known_hosts of SSH on the host.", shape: path("known hosts", &h.KnownHosts)},
		{name: "gh", about: "Path of a config.yml of gh on the host; never its hosts.yml, which has logins.", shape: path("gh", &h.GH)},
		{name: "files", about: "Files of the host that are copied into the home.", shape: list{item: func(int) shape {
			h.Files, h.FileLines = append(h.Files, HomeFile{}), append(h.FileLines, 0)
			i := len(h.Files) - 1
			f := &h.Files[i]
			return section{words: []word{
				{name: "source", about: "Path on the host: absolute, or with ~/ before it.", must: true, shape: text{set: func(s string) error { f.Source = s; return checkHostPath(s) }, at: func(n int) { h.FileLines[i] = n }}},
				{name: "target", about: "Path below the home of the cell.", must: true, shape: text{set: func(s string) (err error) { f.Target, err = homePath(s); return err }}},
				{name: "secret", about: "Copy it although it looks like a secret. The receipt says so.", shape: yes{&f.Secret}},
			}}
		}}},
	}}
}

func (h *FileHome) instruction(agent string, at func(int)) shape {
	add := func(i Instruction) {
		i.For = agent
		h.Instructions = append(h.Instructions, i)
	}
	return either{
		short: text{at: at, set: func(s string) error { add(Instruction{Text: s}); return nil }},
		long: section{words: []word{{name: "file", about: "Path on the host: absolute, or with ~/ before it.", must: true,
			shape: text{set: func(s string) error { add(Instruction{Source: s}); return checkHostPath(s) }}}}},
	}
}

func checkHostPath(s string) error {
	if !path.IsAbs(s) && !strings.HasPrefix(s, "~/") || strings.ContainsAny(s, "\x00\n") {
		return cell.Errorf(cell.Invalid, "policy.ParseFile", "give a path from /, or ~/ for your home", "%s is no path of the host", Quoted(s))
	}
	return nil
}

// homePath gives the one form of a path below a home.
func homePath(s string) (string, error) {
	c := path.Clean(strings.TrimPrefix(s, "~/"))
	if strings.ContainsAny(s, "\x00\n") || path.IsAbs(c) || c == "." || c == ".." || strings.HasPrefix(c, "../") || c == ".config" || strings.HasPrefix(c+"/", ".config/pando/") {
		return "", cell.Errorf(cell.Invalid, "policy.ParseFile", "give a path below the home of the cell, such as .config/tool/config", "%s is no path of a home", Quoted(s))
	}
	return c, nil
}

// ofHost is the first line of a section that names a file of the host; 0 for none.
func (h *FileHome) ofHost() (name string, line int) {
	for _, i := range h.Instructions {
		if i.Source != "" {
			return "instructions." + i.For, h.lines["instructions "+i.For]
		}
	}
	switch {
	case h.KnownHosts != "":
		return "known_hosts", h.lines["known hosts"]
	case h.GH != "":
		return "gh", h.lines["gh"]
	case len(h.Files) > 0:
		return "files", h.FileLines[0]
	}
	return "", 0
}

// home adds up texts and files; of the rest that of the lowest layer counts. A repository names no
// files of the host, also in a policy that was allowed.
func (m *merger) home(l Layer) error {
	h := &l.File.Home
	if name, line := h.ofHost(); name != "" && l.Name == LayerProject {
		at := l.File.at(line)
		return cell.Errorf(cell.Denied, "policy.Merge", "write it into your own policy, or a file for --policy", "cannot use home.%s (%s): a policy of a repository names no files of the host", name, at)
	}
	dst := &m.r.Home
	note := func(name string, line int) { m.origin("home "+name, l.File.at(line)) }
	for _, i := range h.Instructions {
		dst.Instructions = append(slices.Clone(dst.Instructions), i)
		note("instructions "+i.For, h.lines["instructions "+i.For])
	}
	if h.Git != (GitIdentity{}) {
		dst.Git = h.Git
		delete(m.r.Origins.Lines, "home git")
		note("git", h.GitLine)
	}
	for _, one := range []struct {
		name string
		from string
		to   *string
	}{{"known hosts", h.KnownHosts, &dst.KnownHosts}, {"gh", h.GH, &dst.GH}} {
		if one.from != "" {
			*one.to = one.from
			delete(m.r.Origins.Lines, "home "+one.name)
			note(one.name, h.lines[one.name])
		}
	}
	for i, f := range h.Files {
		dst.Files = slices.DeleteFunc(slices.Clone(dst.Files), func(o HomeFile) bool { return o.Target == f.Target })
		dst.Files = append(dst.Files, f)
		delete(m.r.Origins.Lines, "home file "+f.Target)
		note("file "+f.Target, h.FileLines[i])
	}
	return nil
}

// canonical has files in the order of their targets. The order of texts means something.
func (h Home) canonical() Home {
	h.Files = slices.Clone(h.Files)
	slices.SortFunc(h.Files, func(a, b HomeFile) int { return strings.Compare(a.Target, b.Target) })
	return h
}

// show lists what the section says: name, as origins have it, and text.
func (h Home) show() (out [][2]string) {
	said := map[string]bool{}
	for _, i := range h.Instructions {
		if name := "home instructions " + i.For; !said[name] {
			said[name] = true
			reader := i.For
			if reader == "common" {
				reader = "every agent"
			}
			out = append(out, [2]string{name, "instructions for " + reader})
		}
	}
	if h.Git != (GitIdentity{}) {
		out = append(out, [2]string{"home git", "commits are of " + h.Git.Name + " <" + h.Git.Email + ">"})
	}
	if h.KnownHosts != "" {
		out = append(out, [2]string{"home known hosts", "known hosts of SSH from " + h.KnownHosts})
	}
	if h.GH != "" {
		out = append(out, [2]string{"home gh", "configuration of gh from " + h.GH})
	}
	for _, f := range h.Files {
		out = append(out, [2]string{"home file " + f.Target, "file " + f.Source + " at ~/" + f.Target + map[bool]string{true: ", a secret"}[f.Secret]})
	}
	return out
}
