package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pando-dev/pando/api"
)

// Words of Docker, git and kubectl. Words with the same meaning work as aliases and flags of our
// commands; these tables name our word for the others.

// foreignVerb returns what to write instead of a verb of another program; "" if it is unknown.
func foreignVerb(word string) string {
	switch word {
	case "apply", "pull-request", "push":
		return "`pando accept --apply` brings a cell's result into the source"
	case "merge", "rebase":
		return "`pando accept --apply --merge` merges a cell's result with what the source became, `pando sync CELL` brings that into the cell"
	case "commit", "snapshot", "save", "stash":
		return "`pando checkpoint CELL -m TEXT` keeps a state of a cell; `pando accept --apply` brings a result into the source, where git commits it"
	case "reset", "rollback", "checkout", "switch":
		return "`pando undo` goes back to before the latest change, `pando restore CELL@N` to a checkpoint"
	case "log":
		return "`pando history CELL` lists checkpoints, `pando runs` the runs, `pando logs` what a run wrote"
	case "clone", "copy":
		return "`pando fork CELL` makes new cells of a checkpoint, `pando branch CELL` of a cell that runs"
	case "kill", "terminate":
		return "`pando stop CELL` ends the processes of a cell; `pando exec CELL -- kill PID` one of them"
	case "start", "restart", "create", "new", "up":
		return "`pando run --cell NAME -- COMMAND` makes a cell and runs something in it, or goes on in one"
	case "down", "delete", "remove", "destroy":
		return "`pando rm CELL` removes a cell, `pando stop CELL` ends what runs in it"
	case "build":
		return "`pando template build NAME` makes a warm cell to fork"
	case "images":
		return "`pando image ls`"
	case "pull":
		return "`pando image pull REF` for an image; `pando sync CELL` brings into a cell what its source became"
	case "rmi":
		return "`pando image rm REF`"
	case "describe", "get":
		return "`pando show CELL` or `pando show RUN`, with --json for programs"
	case "port", "expose", "port-forward":
		return "`pando forward CELL PORT`"
	case "prune", "clean", "system":
		return "`pando gc` says what can be freed, `pando gc --yes` frees it; `pando df` tells what takes space"
	case "info":
		return "`pando doctor` tells what works on this host, `pando version` the versions"
	case "secret", "secrets":
		return "`pando credential add NAME` keeps a secret that cells are lent; `pando token` lets callers in"
	case "tag", "rename":
		return "a cell is named when it is made, by `pando run --cell NAME` or `pando fork CELL --name PREFIX`; a checkpoint has a text, by `pando checkpoint -m TEXT`"
	case "ssh", "sh", "bash":
		return "`pando shell CELL`"
	case "container", "sandbox", "sandboxes", "cells", "cell":
		return "verbs stand alone: `pando ls`, `pando show CELL`, `pando rm CELL`"
	case "update", "upgrade":
		return "pando does not replace itself; `pando daemon stop` lets the next command start the daemon of a new build"
	}
	return ""
}

// noCommand is the error for a verb of another program.
func noCommand(word, hint string) error {
	return &api.Error{Kind: "invalid", Message: fmt.Sprintf("cannot run `pando %s`: there is no such command", word), Hint: hint}
}

// foreignFlag returns what to write instead of another program's flag of a command; "" if it is
// unknown. Flags of one letter come without the dash.
func foreignFlag(command, flag string) string {
	runs := command == "run" || command == "exec" || command == "shell" || command == "fork" || command == "template build"
	switch flag {
	case "v", "volume":
		if runs {
			return "--mount SRC:DST shows a host path read-only, --mount SRC:DST:rw lets the cell write there, outside of rollback"
		}
	case "p", "publish", "P", "publish-all", "expose":
		if runs {
			return "`pando forward CELL PORT` reaches a port of a cell from here; nothing is published"
		}
	case "rm":
		return "without --cell nothing is kept but what waits for you: an unchanged cell goes with its run, else `pando discard` or `pando rm CELL`"
	case "name":
		if command == "run" {
			return "--cell NAME"
		}
	case "u", "user", "privileged", "cap-add", "cap-drop", "security-opt", "userns":
		if runs {
			return "a command runs as you, in a user namespace of the cell and with no more rights than it has; --image oci:REF brings the users of an image"
		}
	case "network", "net", "dns", "add-host":
		if runs {
			return "a cell has no network but what --allow HOST[:PORT] or --allow @PRESET opens"
		}
	case "env-file":
		if runs {
			return "--env NAME=VALUE, or --env NAME to pass your own; secrets are lent with --credential NAME"
		}
	case "entrypoint":
		if runs {
			return "the command behind -- is what is run"
		}
	case "pids-limit":
		return "--pids N"
	case "mount-type", "tmpfs":
		if runs {
			return "the image is read-only to others anyway: what a cell writes stays in the cell; --mount SRC:DST shows a host path"
		}
	case "gpus", "device", "runtime":
		if runs {
			return "`pando doctor` lists backends and what each can; --backend chooses one"
		}
	case "C", "directory":
		return "--from PATH names the source, --workdir PATH where a command runs"
	case "a", "all":
		switch command {
		case "ls", "runs", "ps":
			return "everything is listed anyway"
		}
	case "since", "timestamps":
		if command == "logs" {
			return "`pando events` has times"
		}
	case "hard":
		return "`pando undo` takes back files and processes, and what was applied of them; --keep-source leaves the source"
	case "name-only", "name-status", "cached", "staged":
		if command == "diff" {
			return "--stat lists the files, --patch is what git would show"
		}
	case "f", "force":
		if command == "rm" {
			return "what runs is ended anyway; -y does not ask about results that wait"
		}
	case "r", "R", "recursive":
		if command == "cp" {
			return "folders are copied whole anyway"
		}
	}
	return ""
}

// terminalFlags accepts Docker's flags for a terminal, without effect: a terminal is used where
// there is one, and standard input is always passed on.
func terminalFlags(f *pflag.FlagSet) {
	for _, x := range [][2]string{{"interactive", "i"}, {"tty", "t"}} {
		f.BoolP(x[0], x[1], false, "as in Docker; a terminal is used where there is one anyway")
		f.Lookup(x[0]).Hidden = true
	}
}

// flagError turns an error of a command's flags into wrong usage. It names our flag where other
// programs have another one.
func flagError(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	name := unknown.GetSpecifiedName()
	hint := foreignFlag(strings.TrimPrefix(cmd.CommandPath(), "pando "), name)
	if hint == "" {
		return fmt.Errorf("%w: %w%s", errUsage, err, similarFlag(cmd, name))
	}
	dash := "--"
	if unknown.GetSpecifiedShortnames() != "" {
		dash = "-"
	}
	return &api.Error{Kind: "invalid", Message: fmt.Sprintf("cannot do `%s`: it has no flag %s%s", cmd.CommandPath(), dash, printable(name)), Hint: hint}
}

// similarFlag names the flags of a command that have a similar name.
func similarFlag(cmd *cobra.Command, name string) string {
	if len(name) < 2 {
		return ""
	}
	flags := &cobra.Command{SuggestionsMinimumDistance: 2} // a command's subcommands are looked up the same way
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	near := flags.SuggestionsFor(name)
	if len(near) == 0 {
		return ""
	}
	return "; did you mean --" + strings.Join(near, " or --") + "?"
}
