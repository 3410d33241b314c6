//go:build linux

package gitdir

import (
	"bytes"
	"path/filepath"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Settings is the part of a user's git configuration for a cell.
type Settings struct {
	Config     []byte // ~/.gitconfig of the cell
	Ignore     []byte // ~/.config/git/ignore; nil: none
	Attributes []byte // ~/.config/git/attributes; nil: none
	Signs      bool   // the user signs commits or tags, which the cell does not
}

// CellSettings returns the configuration of git in a cell, from that of the user with that
// home directory. With home "" it only makes copied files appear unchanged.
//
// Variables are selected by name (see shared), and values by their form: no address, no
// path, no program but those of filters, and none for which secret is true. Includes are
// not followed, and nothing is executed. The user's ignore rules and attributes become
// files of the cell, wherever the user has them.
//
// In the cell, git compares files by size and time: they are copies, with other inodes and
// change times than in git's index (core.checkStat and core.trustctime of git-config(1)).
// Each folder is safe there: the cell isolates the programs that git starts.
func CellSettings(home string, secret func([]byte) bool) Settings {
	return cellSettings("/etc/gitconfig", home, secret)
}

func cellSettings(system, home string, secret func([]byte) bool) Settings {
	w := newSettings(home, secret)
	if home == "" {
		return Settings{Config: w.out}
	}
	for _, file := range []string{system, filepath.Join(home, ".config/git/config"), filepath.Join(home, ".gitconfig")} {
		if conf, err := readRegular(file, maxFile); err == nil {
			w.add(conf)
		}
	}
	s := Settings{Signs: w.signs["commit"] || w.signs["tag"], Ignore: sharedFile(w.ignore, secret), Attributes: sharedFile(w.attributes, secret)}
	if s.Signs {
		w.out = append(w.out, "# Commits and tags are not signed here: the key is outside.\n"...)
	}
	s.Config = w.out
	return s
}

// settings are collected from the config files, in git's order.
type settings struct {
	home               string
	secret             func([]byte) bool
	out                []byte
	section            string // current section of out
	ignore, attributes string // paths
	signs              map[string]bool
}

func newSettings(home string, secret func([]byte) bool) *settings {
	config := filepath.Join(home, ".config/git")
	return &settings{home: home, secret: secret, ignore: filepath.Join(config, "ignore"), attributes: filepath.Join(config, "attributes"), signs: map[string]bool{},
		out: []byte("# Made by pando for this cell.\n[core]\n\tcheckStat = minimal\n\ttrustctime = false\n[safe]\n\tdirectory = *\n")}
}

func (w *settings) add(conf []byte) {
	c := configReader{rest: bytes.TrimPrefix(conf, []byte("\xef\xbb\xbf"))}
	for c.next() {
		first, sub, _ := strings.Cut(c.section, " ")
		sub = strings.TrimSpace(sub)
		switch name := first + "." + c.key; {
		case sub != "":
		case name == "core.excludesfile":
			w.ignore = homePath(w.home, c.value)
		case name == "core.attributesfile":
			w.attributes = homePath(w.home, c.value)
		case name == "commit.gpgsign" || name == "tag.gpgsign":
			w.signs[first] = c.bare || truthy(c.value)
		}
		if len(w.out) > maxSettings || !shares(first, sub, c.key, c.value) || w.secret([]byte(c.value)) || w.secret([]byte(sub)) {
			continue
		}
		if w.section != c.section {
			w.section = c.section
			w.out = append(w.out, "["+c.section+"]\n"...)
		}
		w.out = append(w.out, "\t"+c.key...)
		if !c.bare {
			value := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\t", `\t`).Replace(c.value)
			w.out = append(w.out, " = \""+value+"\""...)
		}
		w.out = append(w.out, '\n')
	}
}

// maxSettings bounds the config of a cell's home, in bytes.
const maxSettings = 64 << 10

// homePath is a path in a user's config: "~/" is the home. A relative path is resolved there,
// too, where git would use its working directory.
func homePath(home, value string) string {
	if value == "" {
		return ""
	}
	return absFrom(home, strings.TrimPrefix(value, "~/"))
}

// sharedFile reads ignore rules or attributes; nil where there are none, or none that may be
// shared.
func sharedFile(path string, secret func([]byte) bool) []byte {
	if path == "" {
		return nil
	}
	b, err := readRegular(path, maxFile)
	if err != nil || len(b) == 0 || !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 || bytes.Contains(b, []byte("://")) || secret(b) {
		return nil
	}
	return b
}

func truthy(v string) bool {
	switch strings.ToLower(v) {
	case "", "false", "no", "off", "0":
		return false
	}
	return true
}

// The kinds of values of shared variables.
type sharing int

const (
	isWord    sharing = iota + 1 // words, numbers, format characters: no "/" and no "~"
	isText                       // text for people: names, mail addresses, output formats
	isRef                        // a name with slashes
	isGit                        // an alias that is a git command
	isProgram                    // runs in the cell
)

// shared lists the variables for cells, with the kind of their values. "SECTION.*" is every
// variable of a section without a subsection; "SECTION.?.KEY" has one.
//
// Variables that name programs, files, addresses, keys or credentials are not in it; nor are
// those that describe one repository.
var shared = sync.OnceValue(func() map[string]sharing {
	all := map[string]sharing{}
	for kind, names := range map[sharing]string{
		isText: `user.name user.email author.name author.email committer.name committer.email
			core.commentchar core.commentstring core.whitespace
			format.pretty pretty.* log.date blame.date diff.wordregex diff.?.wordregex diff.?.xfuncname diff.?.funcname merge.?.name
			color.* color.?.* column.* grep.* status.* log.excludedecoration tag.sort branch.sort`,
		isRef: `init.defaultbranch checkout.defaultremote clone.defaultremotename remote.pushdefault`,
		isGit: `alias.*`,
		isWord: `core.autocrlf core.eol core.safecrlf core.ignorecase core.quotepath core.abbrev core.precomposeunicode core.protecthfs core.protectntfs
			core.logallrefupdates core.warnambiguousrefs core.bigfilethreshold core.compression core.symlinks core.filemode
			advice.* pull.rebase pull.ff pull.octopus push.default push.autosetupremote push.followtags
			fetch.prune fetch.prunetags branch.autosetupmerge branch.autosetuprebase
			merge.conflictstyle merge.ff merge.renames merge.renamelimit merge.log merge.stat merge.autostash merge.directoryrenames merge.branchdesc
			rebase.autosquash rebase.autostash rebase.stat rebase.updaterefs rebase.rebasemerges rebase.abbreviatecommands rebase.missingcommitscheck rebase.forkpoint
			rerere.enabled rerere.autoupdate
			diff.algorithm diff.renames diff.renamelimit diff.noprefix diff.mnemonicprefix diff.colormoved diff.colormovedws diff.context
			diff.interhunkcontext diff.indentheuristic diff.submodule diff.suppressblankempty diff.statgraphwidth diff.statnamewidth diff.ignoresubmodules
			diff.relative diff.dirstat diff.wserrorhighlight diff.autorefreshindex diff.?.binary diff.?.algorithm
			log.abbrevcommit log.decorate log.follow log.showroot log.mailmap log.diffmerges log.graphcolors log.initialdecorationset
			show.* stash.* submodule.recurse commit.verbose commit.cleanup commit.status
			blame.coloring blame.showemail blame.showroot blame.blankboundary blame.markunblamablelines blame.markignoredlines
			checkout.guess clean.requireforce worktree.guessremote worktree.userelativepaths help.autocorrect interactive.singlekey versionsort.suffix
			apply.whitespace apply.ignorewhitespace am.threeway am.keepcr user.useconfigonly i18n.commitencoding i18n.logoutputencoding
			filter.?.required`,
		isProgram: `filter.?.clean filter.?.smudge filter.?.process`,
	} {
		for _, n := range strings.Fields(names) {
			all[n] = kind
		}
	}
	return all
})

// shares reports whether a variable with that value is for cells.
func shares(section, sub, key, value string) bool {
	kind := shared()[section+"."+key]
	switch {
	case sub != "":
		if kind = shared()[section+".?."+key]; kind == 0 {
			kind = shared()[section+".?.*"]
		}
	case kind == 0:
		kind = shared()[section+".*"]
	}
	if len(value) > 1000 || !utf8.ValidString(value) || strings.ContainsFunc(value, func(r rune) bool { return unicode.IsControl(r) && r != '\t' }) {
		return false
	}
	address := strings.Contains(value, "://")
	path := strings.HasPrefix(value, "/") || strings.HasPrefix(value, "~") || strings.HasPrefix(value, ".")
	switch kind {
	case isWord:
		return !path && !strings.ContainsAny(value, "/\\~$`'\"@")
	case isText:
		return !address && !path
	case isRef:
		return !address && !path && !strings.ContainsAny(value, " :@$`'\"\\")
	case isGit:
		return !address && !strings.HasPrefix(strings.TrimSpace(value), "!")
	case isProgram:
		return !address
	}
	return false
}
