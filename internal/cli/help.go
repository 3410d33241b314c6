package cli

import (
	"encoding/json"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpCmd is cobra's help command with our errors for unknown words, and with JSON for programs.
func (a *app) helpCmd() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND|TOPIC]", Short: "Help about any command", GroupID: "system",
		Long: `Help about any command or topic. With --json all commands, or those below COMMAND,
with their flags.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				if hint := foreignVerb(strings.Join(args, " ")); hint != "" {
					return noCommand(args[0], hint)
				}
				if len(rest) == 0 || !about.HasAvailableSubCommands() {
					return usage("there is no help about %q", strings.Join(args, " "))
				}
				return unknownCommand(about, rest[0])
			}
			if a.json {
				return json.NewEncoder(a.stdout).Encode(commandsOf(about))
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) (out []string, _ cobra.ShellCompDirective) {
			about, _, err := cmd.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, c := range about.Commands() {
				if c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand() {
					out = append(out, c.Name()+"\t"+c.Short)
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// A command is the description of one command in `pando help --json`.
type command struct {
	Command string   `json:"command"` // name without pando
	Use     string   `json:"use"`     // with arguments
	Aliases []string `json:"aliases,omitempty"`
	Group   string   `json:"group,omitempty"`
	Short   string   `json:"short"`
	Long    string   `json:"long,omitempty"`
	Example string   `json:"example,omitempty"`
	Flags   []option `json:"flags,omitempty"` // without --help and --json, which all commands have
}

// An option is a flag of a command.
type option struct {
	Name    string `json:"name"`
	Letter  string `json:"letter,omitempty"`
	Value   string `json:"value,omitempty"` // placeholder of the value; "" for a switch
	Default string `json:"default,omitempty"`
	Says    string `json:"says"`
}

// commandsOf lists a command and those below it in the order of the help, without commands that
// only group others, and those of sessions: they are listed by their names as verbs of cells.
func commandsOf(c *cobra.Command) []command {
	out := []command{}
	if c.Runnable() && c.HasParent() && !c.Hidden {
		path := strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ")
		_, takes, _ := strings.Cut(c.Use, " ")
		d := command{Command: path, Use: strings.TrimSpace(path + " " + takes), Aliases: c.Aliases, Group: c.GroupID, Short: c.Short, Long: c.Long, Example: c.Example}
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" {
				return
			}
			o := option{Name: f.Name, Letter: f.Shorthand, Value: valueName(f), Says: f.Usage}
			if f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "" {
				o.Default = f.DefValue
			}
			d.Flags = append(d.Flags, o)
		})
		out = append(out, d)
	}
	for _, sub := range c.Commands() {
		if c.Name() != sessionName && sub.Name() != "completion" && !sub.IsAdditionalHelpTopicCommand() {
			out = append(out, commandsOf(sub)...)
		}
	}
	return out
}

// valueName returns the placeholder that help shows for a flag's value; "" for a switch.
func valueName(f *pflag.Flag) string {
	switch f.Name {
	case "listen":
		return "ADDRESS"
	case "allow", "for":
		return "HOST"
	case "as":
		return "HEADER"
	case "backend", "cell", "credential", "kind", "scope", "certify":
		return "NAME"
	case "env":
		if f.Usage == "variable that holds the placeholder in a cell" {
			return "NAME"
		}
		return "NAME[=VALUE]"
	case "name":
		return "PREFIX"
	case "from", "source", "dir", "file", "from-file", "include", "output", "policy", "save", "tls-cert", "tls-key", "workdir", "with-secret", "key", "known", "bundle", "token-file":
		return "PATH"
	case "image", "kernel":
		return "IMAGE"
	case "mount":
		return "SRC:DST[:rw]"
	case "memory", "disk":
		return "SIZE"
	case "timeout", "ttl", "expires", "idle-pause":
		return "DURATION"
	case "check", "at-fork":
		return "COMMAND"
	case "setup", "eval":
		return "CODE"
	case "message", "reason", "comment":
		return "TEXT"
	case "label":
		return "NAME=VALUE"
	case "to", "cpus", "pids":
		return "N"
	case "expect":
		return "DIGEST"
	}
	switch t := f.Value.Type(); t {
	case "bool":
		return ""
	case "int", "number", "float64":
		return "N"
	case "string", "stringArray", "stringSlice":
		return "VALUE"
	default:
		return strings.ToUpper(t)
	}
}

// namedValue is a flag value with the placeholder that help shows.
type namedValue struct {
	pflag.Value
	name string
}

func (v namedValue) Type() string { return v.name }

// nameValues makes help show placeholders in place of Go's types.
func nameValues(root *cobra.Command) {
	usage := root.UsageFunc()
	root.SetUsageFunc(func(c *cobra.Command) error {
		var undo []func()
		c.Flags().VisitAll(func(f *pflag.Flag) {
			name := valueName(f)
			if name == "" {
				return
			}
			value, none := f.Value, f.DefValue
			undo = append(undo, func() { f.Value, f.DefValue = value, none })
			if f.Value = (namedValue{value, name}); none == "[]" {
				f.DefValue = ""
			}
		})
		defer func() {
			for _, f := range undo {
				f()
			}
		}()
		return usage(c)
	})
}
