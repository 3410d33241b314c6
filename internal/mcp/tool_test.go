package mcp

import "testing"

// Hints are written for people at a terminal; a program that calls tools is told of tools.
func TestX47HintsNameTools(t *testing.T) {
	const users = " (pando's commands are the user's, in a terminal)"
	for hint, want := range map[string]string{
		"run `pando restore web@3` first":           "run the tool restore first",
		"see which there are: pando ls":             "see which there are: the tool list",
		"remove cells (pando rm CELL)":              "remove cells (the tool kill CELL)",
		"`pando resume web` lets it go on":          "`pando resume web` lets it go on" + users,
		"ask `pando policy why web connect`":        "ask the tool policy_why",
		"write one: pando policy init":              "write one: pando policy init" + users,
		"pando can do more, and pando has no word":  "pando can do more, and pando has no word",
		"look at it: pando policy show":             "look at it: pando policy show" + users,
		"begin with a new one: pando eval --fresh":  "begin with a new one: the tool eval with fresh",
		"take it by hand: pando diff --patch | git": "take it by hand: pando diff --patch | git" + users,
		"see pando receipt ls and pando runs":       "see pando receipt ls and pando runs" + users,
		"look at it: pando receipt show r-1":        "look at it: the tool receipt r-1",
		"wait and try again":                        "wait and try again",
		"`pando exec c -- true`, or pando gc":       "the tool exec, or pando gc" + users,
	} {
		if got := toolHint(hint); got != want {
			t.Errorf("%q becomes %q, not %q", hint, got, want)
		}
	}
}

func TestNumbersHaveTheirNoun(t *testing.T) {
	for want, got := range map[string]string{
		"0 files": numbered(0, "file"), "1 file": numbered(1, "file"), "2 files": numbered(2, "file"), "1 process": numbered(1, "process"), "3 processes": numbered(3, "process"),
	} {
		if got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
