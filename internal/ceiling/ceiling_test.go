package ceiling

import (
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/policy"
)

var host = policy.Host{CPUs: 2, Memory: 23 << 30}

// X56: a sandbox of a program's door takes a part of the host without a word of its operator.
func TestX56BuiltIn(t *testing.T) {
	s := BuiltIn(host)
	for _, door := range []string{E2B, MCP} {
		b := s.For(Caller{Door: door})
		if b.Default.Memory != 2<<30 || b.Max.Memory != host.Memory/2>>20<<20 || b.Default.PIDs != 2048 || len(b.Counts) != 1 || b.Keep != 30*24*time.Hour || b.By["memory"] != "door "+door+", built in" {
			t.Errorf("%s: %+v", door, b)
		}
	}
	for _, door := range []string{Local, REST} {
		if b := s.For(Caller{Door: door}); b.Default != (Limits{}) || b.Max != (Limits{}) || len(b.Counts) != 0 {
			t.Errorf("%s: %+v", door, b)
		}
	}
	if b := BuiltIn(policy.Host{Memory: 1 << 30}).For(Caller{Door: E2B}); b.Default.Memory != 512<<20 || b.Max.Memory != 512<<20 {
		t.Errorf("on a small host: %+v", b)
	}
}

const some = `version: 1
queue: {length: 3, wait: 5s}
doors:
  e2b:
    max: {memory: 8G, cpus: 2.5}
    cells: 7
  rest:
    default: {memory: 3G}
tokens:
  ci: {max: {memory: 4G, egress: 1G}, cells: none, keep: 1d}
labels:
  team=a: {default: {memory: 5G}, cells: 2}
`

func TestX56FilesOverBuiltIn(t *testing.T) {
	s, err := Parse("c.yaml", []byte(some), host)
	if err != nil {
		t.Fatal(err)
	}
	if s.Queue != (Queue{3, 5 * time.Second}) {
		t.Errorf("%+v", s.Queue)
	}
	b := s.For(Caller{Door: E2B, Token: "t-1", TokenName: "ci", Labels: map[string]string{"team": "a"}})
	want := Limits{CPUs: 2.5, Memory: 4 << 30, PIDs: 4096, Disk: 20 << 30, Egress: 1 << 30}
	if b.Max != want || b.By["memory"] != "token ci, c.yaml" || b.By["disk"] != "door e2b, built in" {
		t.Errorf("%+v", b)
	}
	if b.Default.Memory != 4<<30 { // the label's, and no more than the token may have
		t.Errorf("default %+v", b.Default)
	}
	if len(b.Counts) != 2 || b.Counts[0].Most != 7 || b.Counts[1].Most != 2 || b.Counts[1].Scope.String() != "label team=a" {
		t.Errorf("%+v", b.Counts)
	}
	if b.Keep != 24*time.Hour || b.KeepBy != "token ci, c.yaml" {
		t.Errorf("%s by %s", b.Keep, b.KeepBy)
	}
	if b := s.For(Caller{Door: REST, Token: "t-2", TokenName: "other", Labels: map[string]string{"team": "b"}}); b.Default.Memory != 3<<30 || b.Max != (Limits{}) || len(b.Counts) != 0 {
		t.Errorf("of others: %+v", b)
	}
	if n := len(s.List()); n != 5 {
		t.Errorf("%d rules: %+v", n, s.List())
	}
}

func TestX56WhatIsNoFile(t *testing.T) {
	for text, want := range map[string]string{
		"version: 2":                                      "version",
		"version: 1\nfoo: 1":                              "foo",
		"doors: {}":                                       "version",
		"version: 1\ndoors: {e3b: {cells: 1}}":            "e3b",
		"version: 1\ndoors: {e2b: {cells: 0}}":            "cells",
		"version: 1\ndoors: {e2b: {max: {memory: much}}}": "max.memory",
		"version: 1\ndoors: {e2b: {keep: 3}}":             "keep",
		"version: 1\nlabels: {team: {cells: 1}}":          "NAME=VALUE",
		"version: 1\ndoors: {e2b: {default: {memory: 9G}, max: {memory: 8G}}}": "more than its maximum",
	} {
		if _, err := Parse("c.yaml", []byte(text), host); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
