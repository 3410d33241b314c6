// Package agent is what pando knows about coding agents: for each an Adapter, in a package of
// its own below this one. An adapter is data and pure functions; it starts nothing and reads no
// file. What it says is added to a run that asks for the agent: its command, its hosts, its
// credential, its variables, and the files of its home by which its first start asks nothing.
package agent

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
)

// An Adapter knows one agent program.
type Adapter interface {
	About() About
	// Command is the program with its arguments. It refuses (cell.Invalid) arguments that would
	// undo what the adapter arranges.
	Command(Start) ([]string, error)
	// Env are variables, NAME=value, that keep the program from asking other hosts than its
	// model's and tell it that it is confined.
	Env(Start) []string
	// Files are the files of the agent's home that are made or changed before it starts.
	Files(Start) []File
	// Off are the files and folders of a repository that the program would run things from, or
	// take settings of, and that it leaves alone by how it is started. Below the repository.
	Off(Start) []string
	// Brings are what of the user's home may come along when it is asked for. The rest stays.
	Brings() []Bring
}

// About are the facts of an agent that do not depend on how it is started.
type About struct {
	Name    string  // as users write it: "claude"
	Title   string  // as its makers write it: "Claude Code"
	Program string  // the name of its program
	Package string  // of npm, by which it is installed
	Tested  string  // the version of it that the adapter was last tried with, as tools/agents installs it
	Logins  []Login // ways to a model, at least one; see Choose
	Memory  string  // the file of its home that it reads before each conversation
	Setup   *Setup  // its login that prints a token which is kept; nil: it has none
}

// Setup is a login of the program's own that asks at a terminal, and shows a token at its end that
// does not expire soon and is good elsewhere.
type Setup struct {
	Args       []string // of the program
	Allow      []string // what it reaches: presets and hosts
	Credential string   // of Logins: what the token is stored as
	Begins     string   // how the token begins; letters, digits, - and _ follow
	Least      int      // characters that a token has at least
}

// Login is a way to a model.
type Login struct {
	Credential string   // the name of the credential that is lent
	Variables  []string // variables that may hold it
	Allow      []string // what the policy allows for it: presets and hosts
	// Reads is the variable in which the program looks for it, when that is none of Variables:
	// it gets what the first of them has.
	Reads string
	// Bearer is a variable of which the program sends the value as "Authorization: Bearer", when it sends
	// that of Variables in another header; "" if there is none.
	Bearer string
	// Account says that it is an account's and no key, which a model server of the user's own could take. No
	// other agent has it, so that it comes before keys.
	Account bool
}

// Choose returns the first login that one of the reasons holds for, the reasons in their order:
// what is asked for comes before what is there. When none holds it is the first of all.
func (a About) Choose(reasons ...func(Login) bool) Login {
	for _, holds := range reasons {
		if i := slices.IndexFunc(a.Logins, holds); i >= 0 {
			return a.Logins[i]
		}
	}
	return a.Logins[0]
}

// Start is how an agent is started.
type Start struct {
	Args     []string // the user's, for the program
	Prompt   string   // without a terminal: the task; "" for a session at a terminal
	Asks     bool     // it asks before it uses a tool
	Continue bool     // it goes on with its newest conversation
	Trusts   bool     // it runs what the repository configures for it
	Login    Login    // one of its logins
	Servers  []byte   // MCP servers of the user's that come along, where they are an argument
	Model    string   // base URL of a model server in place of the login's; "" for none
	// Dir is where it starts, Root the top of the work tree, and Env are the variables of the
	// cell, among them the placeholder of its credential. They are known when the cell is there,
	// and empty before.
	Dir, Root string
	Env       []string
}

// Base is Model without a version at its end, for programs that add one to it.
func (s Start) Base() string { return strings.TrimSuffix(strings.TrimRight(s.Model, "/"), "/v1") }

// Versioned is Model with the version of OpenAI's interface at its end, unless it has a path.
func (s Start) Versioned() string {
	base := strings.TrimRight(s.Model, "/")
	if _, rest, _ := strings.Cut(base, "://"); strings.Contains(rest, "/") {
		return base
	}
	return base + "/v1"
}

// Getenv is the value of a variable of the cell.
func (s Start) Getenv(name string) string {
	for _, kv := range slices.Backward(s.Env) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// File is a file of an agent's home.
type File struct {
	Path string // below the home, with slashes
	// Link is where a symbolic link leads that is made where nothing is yet; "" for a file.
	Link string
	// Make returns what the file shall be. Old is what it is, nil where there is none.
	Make func(old []byte) []byte
}

// Set is a list of adapters.
type Set []Adapter

// Find returns the adapter of a name.
func (s Set) Find(name string) (Adapter, bool) {
	for _, a := range s {
		if a.About().Name == name {
			return a, true
		}
	}
	return nil, false
}

// Names lists the agents, sorted.
func (s Set) Names() []string {
	var names []string
	for _, a := range s {
		names = append(names, a.About().Name)
	}
	slices.Sort(names)
	return names
}

// Refuse is the refusal of the first of the user's arguments that is, or begins with, one of
// these options: what they would set is the adapter's to set.
func Refuse(title string, args []string, options ...string) error {
	for _, a := range args {
		name, _, _ := strings.Cut(a, "=")
		if slices.Contains(options, name) {
			return cell.Errorf(cell.Invalid, "agent.Refuse", "leave it out: in a cell an agent asks nothing; --autonomy prompting makes it ask",
				"cannot start %s with %s: pando sets that", title, name)
		}
	}
	return nil
}

// maxValues bounds the values in a JSON file that a cell may have written: each takes some
// hundred bytes when it is decoded.
const maxValues = 100_000

// Merge changes a JSON object; what is none, or is too large for a settings file, stays as it is.
// Numbers keep their digits. Nothing is indented: a deep file would expand to gigabytes.
func Merge(old []byte, change func(map[string]any)) []byte {
	conf := map[string]any{}
	if old != nil {
		if !json.Valid(old) || bound.Values(old, "settings", maxValues) != nil {
			return old
		}
		d := json.NewDecoder(bytes.NewReader(old))
		d.UseNumber()
		if d.Decode(&conf) != nil || conf == nil {
			return old
		}
	}
	change(conf)
	b, err := json.Marshal(conf)
	if err != nil {
		return old
	}
	return append(b, '\n')
}

// Object is the object at a key of another, made where there is none.
func Object(of map[string]any, key string) map[string]any {
	o, ok := of[key].(map[string]any)
	if !ok {
		o = map[string]any{}
		of[key] = o
	}
	return o
}
